"""The one server class: reads frames, finds the handler of the API key, writes replies. Every actor
uses it; only the table differs.

A connection opens with the handshake (``raylog.wire.handshake``) where the server has a secret;
until it is done the peer may send ``HANDSHAKE_BYTES_MAX`` bytes per frame and has
``handshake_timeout_ms``. Then each request goes to ``handlers[api_key](request)``. A handler is a
plain function or a coroutine function; it answers by ``request.reply(entity)``, now or later, from
the loop's thread; a handler that keeps the request parks it at the cost of one object. A coroutine
may also return the reply. An API key or version that is not in the table ends the connection, as
Kafka's brokers do, except ApiVersions, which is answered in version 0 with UNSUPPORTED_VERSION so
that a newer client can step down.

Who asks. Each request has a ``RequestContext`` (``raylog.kafka.context``), and before its handler
the server's ``stages`` run (``raylog.kafka.chain``). A server with a handshake learns from it who
is at the other end, a port with TLS from a certificate, one with SASL from its exchange; all others
are anonymous. Who may come in at all: ``raylog.wire.acceptor``.

The order of answers, back-pressure, leaving and bad input: ``raylog.wire.server_connection``.
``adopt`` goes on with a connection that has left another server.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from ssl import SSLContext
from typing import Any, Final

from raylog.kafka.chain import Refusal, Stage
from raylog.kafka.context import INTERNAL
from raylog.types import ActorIdentity, Endpoint
from raylog.wire import api_versions, private
from raylog.wire.acceptor import Acceptor
from raylog.wire.certificates import CertificateWatch
from raylog.wire.frames import API_VERSIONS, RequestHeader, UnsupportedVersionError, known_versions
from raylog.wire.internal_tls import Secret, SecretInsideTls
from raylog.wire.limits import Limits
from raylog.wire.ports import Port
from raylog.wire.request import Handler, Request
from raylog.wire.server_connection import ServerConnection
from raylog.wire.server_counts import ServerCounts
from raylog.wire.slow_requests import SlowRequests

logger = logging.getLogger("raylog.wire")

SWEEP_INTERVAL_S: Final = 1.0


class Server:
    """A listener with a table of handlers.

    ``versions`` narrows which versions of an API are spoken (default: all that the codec has).
    ``secret`` None means that there is no handshake: anybody may connect. With one that says so, the
    port has TLS, and goes by certificates that change (``internal_tls``). ``port`` 0 takes any free
    one; a busy port moves to the next free one with a notice in the log, unless
    ``port_must_match``. ``borrows_records``: large records in a request are views of what was read,
    whose memory they hold. ``undecoded``: APIs whose handlers may do without a decoded body
    (``request``). ``ignores_trailing_bytes``: what follows a request in its frame is skipped, as
    Kafka does (librdkafka leaves some bytes there). ``claimed_versions``: what ApiVersions says of
    an API instead of what is spoken, for clients that draw conclusions from a range. ``listener``:
    its name, which contexts have. ``ssl``: who connects speaks TLS. ``ports``: several listeners,
    instead of ``host``, ``port``, ``listener`` and ``ssl``; limits hold for all of them together.
    ``stages`` run before every handler, in that order (``raylog.kafka.chain``). ``refusals``: how
    this server refuses an API for which filling in a form is not enough.
    """

    loop: asyncio.AbstractEventLoop
    slow: SlowRequests | None = None  # whether there is to be a line for what takes long

    def __init__(
        self,
        handlers: Mapping[int, Handler],
        *,
        connection: Callable[[Server], ServerConnection] = ServerConnection,
        identity: ActorIdentity | None = None,
        secret: Secret | None = None,
        cluster_id: str | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        port_must_match: bool = False,
        ordered: bool = False,
        versions: Mapping[int, range] | None = None,
        claimed_versions: Mapping[int, range] | None = None,
        limits: Limits | None = None,
        borrows_records: bool = False,
        undecoded: Collection[int] = (),
        ignores_trailing_bytes: bool = False,
        listener: str = INTERNAL,
        ssl: SSLContext | None = None,
        ports: Sequence[Port] = (),
        stages: Sequence[Stage] = (),
        refusals: Mapping[int, Refusal] | None = None,
    ) -> None:
        self.handlers = dict(handlers)
        self._certificates = CertificateWatch()
        first = self._port(listener, Endpoint(host, port), secret, ssl, must_match=port_must_match)
        self.ports = tuple(ports) or (first,)
        self.listener = self.ports[0].listener
        self.stages = tuple(stages)
        self.refusals = dict(refusals or {})
        self._connection = connection
        self.borrows_records = borrows_records
        self.undecoded = frozenset(undecoded)
        self.ignores_trailing_bytes = ignores_trailing_bytes
        self.identity = identity
        self.secret = secret
        self.cluster_id = cluster_id if cluster_id is not None else (identity.cluster_id if identity else "")
        self.ordered = ordered
        self.limits = limits or Limits()
        self.acceptor = Acceptor(self)
        self.connections: set[ServerConnection] = set()
        self.connections_elsewhere = 0  # those that have left, and count all the same
        self.connections_of_host: Counter[str] = Counter()  # by address, also of those that have left
        self.waiting: set[ServerConnection] = set()
        self.unread: set[ServerConnection] = set()  # those that may hold answers
        self.on_read: Callable[[], None] = lambda: None  # some peer has read, or is gone
        self.turned_away_s: Callable[[str], float] | None = None  # whether, and how soon, a new peer is to go
        self.in_flight_bytes = 0
        self.refused_connections = 0
        self.counts = ServerCounts()
        self.is_over = False
        self.endpoint: Endpoint | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._sweeper: asyncio.TimerHandle | None = None
        self.handlers.setdefault(API_VERSIONS, api_versions.answer)
        if secret is not None:
            self.handlers.setdefault(private.CANCEL, _cancel)
        self.claimed_versions = dict(claimed_versions or {})
        self.versions = _served_versions(self.handlers, versions or {})

    def _port(
        self, listener: str, wanted: Endpoint, secret: Secret | None, ssl: SSLContext | None, *, must_match: bool
    ) -> Port:
        if isinstance(secret, SecretInsideTls):
            return self._certificates.port(listener, wanted, secret.server(), must_match=must_match)
        return Port(listener, wanted, must_match=must_match, ssl=ssl)

    def bind(self) -> Endpoint:
        """Takes the ports; who connects waits for ``start``. Returns the first. Raises ClusterError
        when one can't be had.
        """
        bound = [port.bind() for port in self.ports]
        self.endpoint = bound[0]
        return self.endpoint

    async def start(self) -> Endpoint:
        """Listens. Raises ClusterError when no port can be had."""
        self.begin()
        endpoint = self.bind()
        for port in self.ports:
            port.listen(self.acceptor.accepted)
        self._certificates.start()
        if self.is_over:  # it was stopped meanwhile, and nobody will stop it again
            await self.stop()
        return endpoint

    def connection_of(self, port: Port) -> ServerConnection:
        """What is to speak with somebody who has come to that port."""
        connection: ServerConnection = (port.connection or self._connection)(self)
        connection.listener = port.listener
        # With a secret, the handshake says who is at the other end.
        connection.principal_of = None if port.has_sasl or self.secret is not None else port.principal_of
        return connection

    def begin(self) -> None:
        """Begins to look after connections. ``start`` does it; a server that only adopts them
        doesn't listen.
        """
        self.loop = asyncio.get_running_loop()
        self.is_over = False
        self._sweeper = self.loop.call_later(SWEEP_INTERVAL_S, self._sweep)

    def adopt(self, sock: socket.socket, pending: bytes, prepare: Callable[[ServerConnection], None]) -> None:
        """Goes on with a connection that another server has begun; ``prepare`` is called with it
        before anything is read.

        ``pending``: what was read from it and not parsed. The socket is this server's from now on.
        """
        sock.setblocking(False)
        connection = self._connection(self)
        connection.is_adopted = True
        prepare(connection)
        if self.is_over:
            sock.close()
            connection.never_came()
            return
        connection.begin_with(pending)
        self.spawn(self._go_on_with(connection, sock)).add_done_callback(partial(_close_if_cancelled, sock))

    async def _go_on_with(self, connection: ServerConnection, sock: socket.socket) -> None:
        try:
            await self.loop.connect_accepted_socket(lambda: connection, sock)
        except OSError as error:  # its peer has gone meanwhile
            logger.debug("a connection ended while it was moved: %s", error)
            sock.close()
            connection.never_came()

    async def stop(self, *, grace_s: float = 1.0) -> None:
        """Stops listening and closes every connection; replies already given are sent if the peers
        read them within ``grace_s``.
        """
        self.is_over = True
        await self._certificates.stop()
        for port in self.ports:
            port.close()
        self.acceptor.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for connection in list(self.connections):
            connection.close()
        deadline = self.loop.time() + grace_s if self.connections else 0.0
        while self.connections:
            if self.loop.time() >= deadline:
                for connection in list(self.connections):
                    connection.abort()
            await asyncio.sleep(0.001)

    def leave_host(self, host: str) -> None:
        """One connection of that address less."""
        self.connections_of_host[host] -= 1
        if self.connections_of_host[host] <= 0:
            del self.connections_of_host[host]

    def handler_of(self, header: RequestHeader) -> Handler:
        spoken = self.versions.get(header.api_key)
        if spoken is None or header.version not in spoken:
            raise UnsupportedVersionError(header.api_key, header.version, header.correlation_id)
        return self.handlers[header.api_key]

    @property
    def told_versions(self) -> dict[int, range]:
        """What ApiVersions says."""
        return {**self.versions, **self.claimed_versions}

    def spawn(self, work: Any) -> asyncio.Task[None]:
        """Runs a handler's coroutine and keeps it alive."""
        task: asyncio.Task[None] = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def unread_bytes(self) -> int:
        """Of answers that peers have not taken; without the little that connections hold which are
        not paused.
        """
        sizes = [(each, each.unread_bytes) for each in self.unread]
        self.unread.difference_update([each for each, size in sizes if not size])
        return sum(size for _, size in sizes)

    def wake_waiting(self) -> None:
        for connection in list(self.waiting):
            connection.maybe_go_on()

    def _sweep(self) -> None:
        now = self.loop.time()
        for connection in list(self.connections):
            connection.sweep(now)
        self._sweeper = self.loop.call_later(SWEEP_INTERVAL_S, self._sweep)


def _close_if_cancelled(sock: socket.socket, adopting: asyncio.Task[None]) -> None:
    """A task that is cancelled before its first step does nothing, not even close what it was given."""
    if adopting.cancelled():
        sock.close()


def _cancel(request: Request) -> None:
    request.connection.cancel(request.body.correlation_id)
    request.reply(private.CancelResponse())


def _served_versions(api_keys: Iterable[int], versions: Mapping[int, range]) -> dict[int, range]:
    """By API key; raylog's own APIs have one version."""
    kafkas = {key: versions.get(key, known_versions(key)) for key in api_keys if key < private.FIRST_API_KEY}
    return {key: kafkas.get(key, range(1)) for key in api_keys}
