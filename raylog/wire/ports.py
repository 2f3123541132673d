"""Which port a server gets, the one that it wants or the next free one where that is taken, and how
it is given back.

A ``Port`` is one listener of a server. With TLS it can be given another context while it listens:
another listening object takes over a copy of the same socket, so no client that connects is lost.
Connections keep the context with which they were opened.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable
from ssl import SSLContext, SSLObject
from typing import Any

from raylog.errors import ClusterError
from raylog.types import Endpoint
from raylog.wire.bearer_tokens import BearerTokens
from raylog.wire.plain_logins import PlainLogins

logger = logging.getLogger("raylog.wire")

PORTS_TRIED_MAX = 100
BACKLOG = 1024


class Port:
    """Where a server listens. ``wanted``: port 0 is any free one. ``ssl``: who connects speaks TLS,
    and has ``handshake_timeout_s`` for its handshake. ``principal_of`` returns who is at the other
    end of such a connection, or raises ProtocolError. ``has_sasl``: clients authenticate by SASL,
    and TLS does not say who they are; ``tokens`` are those that OAUTHBEARER takes there, ``logins``
    the users of PLAIN, if the listener has its own.
    ``connection`` makes the connections of this listener, if they are not the server's usual ones.
    """

    def __init__(
        self,
        listener: str,
        wanted: Endpoint,
        *,
        must_match: bool = False,
        ssl: SSLContext | None = None,
        principal_of: Callable[[SSLObject], str] | None = None,
        has_sasl: bool = False,
    ) -> None:
        self.listener = listener
        self.tokens: BearerTokens | None = None
        self.logins: PlainLogins | None = None
        self.has_sasl = has_sasl
        self.connection: Callable[[Any], Any] | None = None
        self.wanted = wanted
        self.ssl = ssl
        self.principal_of = principal_of
        self.endpoint: Endpoint | None = None
        self._must_match = must_match
        self._bound: socket.socket | None = None
        self._listening: asyncio.Server | None = None
        self._accept: Callable[[Port], asyncio.BaseProtocol]
        self._handshake_timeout_s: float | None = None

    def bind(self) -> Endpoint:
        """Takes the port; who connects waits for ``listen``. Raises ClusterError if it can't be had."""
        if self._bound is None:
            host, port = self.wanted.host, self.wanted.port
            self._bound = listening_socket(host, port, port_must_match=self._must_match)
        self.endpoint = Endpoint(self.wanted.host, self._bound.getsockname()[1])
        return self.endpoint

    async def listen(self, accept: Callable[[Port], asyncio.BaseProtocol], *, handshake_timeout_s: float) -> None:
        """``accept`` makes the protocol of a new connection."""
        self.bind()
        self._accept = accept
        self._handshake_timeout_s = handshake_timeout_s if self.ssl is not None else None
        bound, self._bound = self._bound, None  # nobody closes it while the loop takes it
        assert bound is not None, "bound before"
        self._listening = await self._open(bound)
        self._bound = bound

    async def use(self, ssl: SSLContext, principal_of: Callable[[SSLObject], str]) -> None:
        """Connections that are accepted from now on have this context."""
        self.ssl, self.principal_of = ssl, principal_of
        before, bound = self._listening, self._bound
        if before is None or bound is None:
            return
        opened = await self._open(bound)
        if self._listening is not before:  # it was closed meanwhile
            await end_listening(opened)
            return
        self._listening = opened
        await end_listening(before)

    async def _open(self, bound: socket.socket) -> asyncio.Server:
        loop = asyncio.get_running_loop()
        return await loop.create_server(
            lambda: self._accept(self),
            sock=bound.dup() if self.ssl is not None else bound,
            backlog=BACKLOG,
            ssl=self.ssl,
            ssl_handshake_timeout=self._handshake_timeout_s,
        )

    async def close(self) -> None:
        """Idempotent."""
        listening, self._listening = self._listening, None
        if listening is not None:
            await end_listening(listening)
        bound, self._bound = self._bound, None
        if bound is not None:
            bound.close()


def listening_socket(host: str, port: int, *, port_must_match: bool) -> socket.socket:
    """A socket that listens there; non-blocking. Port 0 is any free one.

    If the port is taken, one of the next ``PORTS_TRIED_MAX`` is taken instead, with a notice,
    unless ``port_must_match``. Raises ClusterError when none can be had.
    """
    family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    last_port = port if port_must_match or not port else min(65_535, port + PORTS_TRIED_MAX)
    for tried in range(port, last_port + 1):
        listening = socket.socket(family, kind)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.setblocking(False)
            listening.bind((str(address[0]), tried))
            listening.listen(BACKLOG)
        except OSError as error:
            listening.close()
            if error.errno != errno.EADDRINUSE:
                raise ClusterError(f"cannot listen on {host}:{tried}: {error.strerror}") from error
            continue
        if tried != port and port:
            logger.warning("port %d is taken; listening on %d instead", port, tried)
        return listening
    which = f"port {port} is" if last_port == port else f"ports {port} to {last_port} are"
    raise ClusterError(f"cannot listen on {host}: {which} taken; name another port")


async def end_listening(listener: asyncio.Server) -> None:
    """Close a listener when what it has accepted has become connections.

    The servers of asyncio's own loop forget a socket that they have accepted and not yet made a
    transport of when they close: its peer would wait for ever. uvloop's do not.
    """
    loop = asyncio.get_running_loop()
    if isinstance(loop, asyncio.SelectorEventLoop):
        for listening in listener.sockets:
            loop.remove_reader(listening.fileno())
        for _ in range(3):  # accepted; its transport made; its protocol told
            await asyncio.sleep(0)
    listener.close()
