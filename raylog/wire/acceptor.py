"""Who may come in at a server's ports, decided as soon as a socket is accepted.

The peer's address is all that is known then, and all that these limits need. So they are applied
before a byte is read and before TLS begins, for plain ports and those with TLS alike::

    accepted ──► refused       a limit is reached; the socket is closed at once
             ──► turned away   its address opens too many (a quota); the socket is closed later, unread
             ──► arriving      its transport is made; with TLS, after the handshake
                    ├──► open  the server's connection, in ``Server.connections``
                    └──► gone  no handshake within ``handshake_timeout_ms``, or one that failed

Whoever is arriving, and whoever has been turned away and waits for its end, counts towards
``connections_max`` and ``connections_of_host_max``. A connection that still has to prove who it is
also counts towards ``unauthenticated_of_host_max``: with TLS until its handshake is done, with SASL
until it has authenticated. Its time to do so, all steps together, begins when it is accepted.

A connection that another process has accepted (``Server.adopt``) was judged there.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

from raylog.wire.ports import Port
from raylog.wire.tls_alerts import alerts_go_to

if TYPE_CHECKING:
    from raylog.wire.server import Server
    from raylog.wire.server_connection import ServerConnection

logger = logging.getLogger("raylog.wire")


class Acceptor:
    """The door of one server, for all of its ports.

    ``unauthenticated_of_host``: connections by address that have not proved yet who they are, where
    they have to.
    """

    def __init__(self, server: Server) -> None:
        self.unauthenticated_of_host: Counter[str] = Counter()
        self._server = server
        self._arriving: set[ServerConnection] = set()
        self._turned_away: dict[socket.socket, tuple[asyncio.TimerHandle, str]] = {}  # with their hosts

    @property
    def at_the_door(self) -> int:
        """How many sockets are held that are no connections yet, or never will be."""
        return len(self._arriving) + len(self._turned_away)

    def accepted(self, port: Port, sock: socket.socket, address: Any) -> None:
        """Takes a new socket of that port, whose peer is at ``address``."""
        server = self._server
        peername = f"{address[0]}:{address[1]}" if isinstance(address, tuple) else str(address)
        host = peername.rpartition(":")[0]
        must_prove = port.has_sasl or port.ssl is not None
        why = "the server ends" if server.is_over else self._too_many(host, must_prove)
        if why:
            logger.warning("closing the connection of %s: %s", peername, why)
            server.refused_connections += 1
            sock.close()
            return
        seconds = server.turned_away_s(host) if server.turned_away_s is not None else 0.0
        if seconds:
            self._turn_away(sock, peername, host, seconds)
            return
        connection = server.connection_of(port)
        connection.peername = peername
        connection.accepted_at = server.loop.time()
        server.connections_of_host[host] += 1
        if must_prove:
            self.unauthenticated_of_host[host] += 1
            connection.must_prove = True
        self._arriving.add(connection)
        server.spawn(self._open(port, connection, sock)).add_done_callback(partial(self._opened, connection, sock))

    def arrived(self, connection: ServerConnection) -> bool:
        """Whether it came in here. It is open from now on."""
        if connection not in self._arriving:
            return False
        self._arriving.remove(connection)
        return True

    def proved(self, connection: ServerConnection) -> None:
        """It has proved who it is, or is gone. Idempotent."""
        if connection.must_prove:
            connection.must_prove = False
            self.unauthenticated_of_host[connection.host] -= 1
            if not self.unauthenticated_of_host[connection.host]:
                del self.unauthenticated_of_host[connection.host]

    def close(self) -> None:
        """Ends those that were turned away; whoever is arriving ends with its task."""
        for sock in list(self._turned_away):
            self._let_go(sock)

    def _too_many(self, host: str, must_prove: bool) -> str:
        """Which limit is reached; empty if none is."""
        server, limits = self._server, self._server.limits
        if must_prove and self.unauthenticated_of_host[host] >= limits.unauthenticated_of_host_max:
            return f"{limits.unauthenticated_of_host_max} connections of its address have not authenticated yet"
        open_ = len(server.connections) + server.connections_elsewhere + self.at_the_door
        if limits.connections_max is not None and open_ >= limits.connections_max:
            return f"{limits.connections_max} connections are open, which is all that are allowed"
        of_host_max = limits.connections_of_host_max
        if of_host_max is not None and server.connections_of_host[host] >= of_host_max:
            return f"{of_host_max} connections of its address are open, which is all that are allowed"
        return ""

    def _turn_away(self, sock: socket.socket, peername: str, host: str, seconds: float) -> None:
        """Closes it later, so that its peer does not try again at once."""
        logger.warning("closing the connection of %s in %g s: its address opens too many", peername, seconds)
        self._server.refused_connections += 1
        self._server.connections_of_host[host] += 1
        self._turned_away[sock] = self._server.loop.call_later(seconds, self._let_go, sock), host

    def _let_go(self, sock: socket.socket) -> None:
        timer, host = self._turned_away.pop(sock)
        timer.cancel()
        sock.close()
        self._server.leave_host(host)

    async def _open(self, port: Port, connection: ServerConnection, sock: socket.socket) -> None:
        server = self._server
        patience_s = None
        if port.ssl is not None:
            patience_s = server.limits.handshake_timeout_ms / 1000
            alerts_go_to(sock)
        making = asyncio.ensure_future(
            server.loop.connect_accepted_socket(
                lambda: connection, sock, ssl=port.ssl, ssl_handshake_timeout=patience_s
            )
        )
        try:
            await asyncio.shield(making)
        except asyncio.CancelledError:
            # uvloop, interrupted here, forgets a transport that it has made already. So the socket ends it,
            # unless the connection is open: then the server closes it, with the replies that it owes.
            with contextlib.suppress(OSError):
                if connection in self._arriving:
                    sock.shutdown(socket.SHUT_RDWR)
                await making
            raise
        except OSError as error:  # also what is wrong with TLS
            logger.debug("%s never came in: %s", connection.peername, error)

    def _opened(self, connection: ServerConnection, sock: socket.socket, opening: asyncio.Task[None]) -> None:
        if self.arrived(connection):  # it has not become one
            self._server.leave_host(connection.host)
            self.proved(connection)
            if opening.cancelled():  # perhaps before its first step, which would have taken the socket
                sock.close()
