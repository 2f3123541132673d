"""Which port a server gets, the one that it wants or the next free one where that is taken, and how
it is given back.

A ``Port`` is one listener of a server. It accepts by itself, and not by ``loop.create_server``, so
that the peer's address is known before TLS begins (``acceptor``). With TLS it can be given another
context while it listens; connections keep the one with which they were accepted. While the process
has no descriptor or memory left for a connection, a port accepts nobody, and tries again each
``PAUSE_S``; whoever connects meanwhile waits.
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
ACCEPTED_AT_ONCE_MAX = 64
"""Then it is others' turn."""
PAUSE_S = 1.0
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

Accepted = Callable[["Port", socket.socket, Any], None]
"""Takes a new connection of a port: its socket, and its peer's address as ``accept`` has it."""


class Port:
    """Where a server listens. ``wanted``: port 0 is any free one. ``ssl``: who connects speaks TLS.
    ``principal_of`` returns who is at the other
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
        self._loop: asyncio.AbstractEventLoop | None = None  # once it listens
        self._paused: asyncio.TimerHandle | None = None
        self._accepted: Accepted

    def bind(self) -> Endpoint:
        """Takes the port; who connects waits for ``listen``. Raises ClusterError if it can't be had."""
        if self._bound is None:
            host, port = self.wanted.host, self.wanted.port
            self._bound = listening_socket(host, port, port_must_match=self._must_match)
        self.endpoint = Endpoint(self.wanted.host, self._bound.getsockname()[1])
        return self.endpoint

    def listen(self, accepted: Accepted) -> None:
        """``accepted`` is called with each new socket, non-blocking, and its peer's address."""
        self.bind()
        self._accepted = accepted
        self._loop = asyncio.get_running_loop()
        self._resume()

    def use(self, ssl: SSLContext, principal_of: Callable[[SSLObject], str]) -> None:
        """Connections that are accepted from now on have this context."""
        self.ssl, self.principal_of = ssl, principal_of

    def _resume(self) -> None:
        self._paused = None
        assert self._loop is not None and self._bound is not None, "listens"
        self._loop.add_reader(self._bound.fileno(), self._accept)

    def _accept(self) -> None:
        """Some of those who wait; the loop calls again while anybody does."""
        for _ in range(ACCEPTED_AT_ONCE_MAX):
            if self._bound is None:  # closed by whoever was told of the last one
                return
            try:
                sock, address = self._bound.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionAbortedError:  # it has gone meanwhile
                continue
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
                self._pause(error)
                return
            sock.setblocking(False)
            self._accepted(self, sock, address)

    def _pause(self, error: OSError) -> None:
        assert self._loop is not None and self._bound is not None, "listens"
        logger.error("listener %s accepts nobody for %g s: %s", self.listener, PAUSE_S, error.strerror)
        self._loop.remove_reader(self._bound.fileno())
        self._paused = self._loop.call_later(PAUSE_S, self._resume)

    def close(self) -> None:
        """Idempotent."""
        bound, self._bound = self._bound, None
        if self._paused is not None:
            self._paused.cancel()
            self._paused = None
        if bound is not None:
            if self._loop is not None:
                self._loop.remove_reader(bound.fileno())
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
