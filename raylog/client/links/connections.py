"""The connections of one handle: one per endpoint, opened and proven when first wanted, and the
link to the active controller. From outside, every Broker takes what the controller does.

``Connections`` opens each endpoint once however many ask for it, waits between failed attempts
(``reconnect.backoff.ms`` and its maximum) and closes what nobody has used for
``connections.max.idle.ms``. ``ControllerConnection`` sends a request to whichever controller is
active: it tries the known endpoints in turn until one answers that is not a standby; a standby says
where the active one is. When none answers, it asks servers that it has heard of where the
controller is: a controller whose port was taken while it was away listens elsewhere, and every
server has a session with it. What one handle has learned, all later handles of the process with the
same address know.

Lives in one event loop. Knows nothing of topics or leaders; whether a request may be repeated is
the caller's business (the controller's requests all may: a repeated creation says that the topic
exists).
"""

from __future__ import annotations

import asyncio
import logging
import random
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kio.schema.errors import ErrorCode

from raylog.client.links.address import ClusterAddress, not_from_outside
from raylog.client.links.job import default_client_id
from raylog.client.links.link_config import LinkConfig
from raylog.clock import clock_of
from raylog.errors import (
    ClientTimeoutError,
    ClosedError,
    ClusterError,
    DisconnectedError,
    ProtocolError,
    RaylogError,
    kafka_error,
)
from raylog.kafka.refusal import is_not_controller
from raylog.types import Endpoint
from raylog.wire.connection import Connection
from raylog.wire.frames import api_of
from raylog.wire.handshake import HandshakeError
from raylog.wire.private import FIRST_API_KEY, FindController

logger = logging.getLogger("raylog.client")

_chance = random.SystemRandom()  # not the common one: a program may have seeded it
_IDLE_SWEEP_S = 30.0
_WARM_MAX = 64  # doors of a handle up to which it opens some ahead
_SERVERS_MAX = 64  # remembered to be asked for the controller
_ASKED_AT_ONCE = 4
_ASK_SERVER_S = 1.0
_SILENCE_S = 1.0  # without an answer, before the other controllers are asked which one is active
_UNREACHED_S = 3.0  # without a connection to any controller, before a warning is logged
_NOT_CONTROLLER = kafka_error(ErrorCode.not_controller)


@dataclass(slots=True)
class _Door:
    """What is known of one endpoint."""

    connection: Connection | None = None
    opening: asyncio.Task[Connection] | None = None
    failures: int = 0  # in a row
    not_before: float = 0.0  # loop time of the next attempt
    used_at: float = 0.0


class Connections:
    def __init__(self, address: ClusterAddress, config: LinkConfig, *, borrows_records: bool = False) -> None:
        """``borrows_records``: see ``Connection.open``."""
        self._address = address
        self._config = config
        self._borrows_records = borrows_records
        self._doors: dict[Endpoint, _Door] = {}
        self._closed = False
        self._sweeper: asyncio.TimerHandle | None = None

    @property
    def are_outside(self) -> bool:
        """Whether they lead to the brokers' listeners."""
        return self._address.is_outside

    @property
    def cluster_id(self) -> str:
        """The cluster that everything connected to here belongs to."""
        return self._address.cluster_id

    def peek(self, endpoint: Endpoint) -> Connection | None:
        """The open connection to an endpoint, if there is one."""
        door = self._doors.get(endpoint)
        if door is None or door.connection is None:
            return None
        if not door.connection.is_open:
            door.connection = None
            return None
        door.used_at = asyncio.get_running_loop().time()
        return door.connection

    async def get(self, endpoint: Endpoint) -> Connection:
        """An open, proven connection. Raises DisconnectedError, ClientTimeoutError or ProtocolError
        (a stranger answers).
        """
        connection = self.peek(endpoint)
        if connection is not None:
            return connection
        if self._closed:
            raise ClosedError("this handle is closed: make another one")
        door = self._doors.setdefault(endpoint, _Door())
        if door.opening is None:
            door.opening = asyncio.get_running_loop().create_task(self._open(endpoint, door))
            door.opening.add_done_callback(
                lambda task: task.cancelled() or task.exception()
            )  # nobody may be waiting any more
        return await asyncio.shield(door.opening)

    def pause_s(self, endpoint: Endpoint) -> float:
        """For how long nobody dials an endpoint, because it has just failed; 0 where a connection
        is open, or may be opened.
        """
        door = self._doors.get(endpoint)
        return max(0.0, door.not_before - asyncio.get_running_loop().time()) if door is not None else 0.0

    def warm(self, endpoints: Iterable[Endpoint]) -> None:
        """Open and prove connections that may be wanted soon, a few at most; failures are of no
        consequence.
        """
        loop = asyncio.get_running_loop()
        for endpoint in endpoints:
            if len(self._doors) >= _WARM_MAX or self._closed:
                return
            if endpoint not in self._doors:
                door = self._doors[endpoint] = _Door()
                door.opening = loop.create_task(self._open(endpoint, door))
                door.opening.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def _open(self, endpoint: Endpoint, door: _Door) -> Connection:
        loop = asyncio.get_running_loop()
        config = self._config
        try:
            if (pause := door.not_before - loop.time()) > 0:
                await asyncio.sleep(pause)
            timeout_ms = min(
                config.socket_connection_setup_timeout_ms * 2 ** min(door.failures, 8),
                config.socket_connection_setup_timeout_max_ms,
            )
            connection = await Connection.open(
                endpoint,
                secret=self._address.secret,
                cluster_id=self._address.cluster_id,
                client_id=config.client_id or default_client_id(),
                timeout_ms=int(timeout_ms),
                borrows_records=self._borrows_records,
                obeys_throttle=True,
                security=self._address.security,
            )
        except RaylogError:
            door.failures += 1
            backoff = min(
                config.reconnect_backoff_ms * 2 ** min(door.failures - 1, 16), config.reconnect_backoff_max_ms
            )
            door.not_before = loop.time() + backoff * clock_of(loop).chance.uniform(0.8, 1.2) / 1000
            raise
        finally:
            door.opening = None
        door.failures = 0
        door.not_before = 0.0
        door.used_at = loop.time()
        if self._closed:
            connection.close()
            raise ClosedError("this handle is closed: make another one")
        self._set_socket_buffers(connection)
        door.connection = connection
        if self._sweeper is None and config.connections_max_idle_ms >= 0:
            self._sweeper = loop.call_later(
                min(_IDLE_SWEEP_S, config.connections_max_idle_ms / 1000 + 0.01), self._sweep
            )
        return connection

    def _set_socket_buffers(self, connection: Connection) -> None:
        sock = connection.transport.get_extra_info("socket") if connection.transport else None
        for option, size in (
            (socket.SO_SNDBUF, self._config.send_buffer_bytes),
            (socket.SO_RCVBUF, self._config.receive_buffer_bytes),
        ):
            if size > 0 and sock is not None:
                sock.setsockopt(socket.SOL_SOCKET, option, size)

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        idle_s = self._config.connections_max_idle_ms / 1000
        for door in self._doors.values():
            connection = door.connection
            if connection is not None and connection.in_flight == 0 and loop.time() - door.used_at > idle_s:
                door.connection = None
                connection.close()
        self._sweeper = loop.call_later(min(_IDLE_SWEEP_S, idle_s + 0.01), self._sweep)

    async def close(self) -> None:
        """Close all; what is in flight fails with DisconnectedError."""
        self._closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        for door in self._doors.values():
            if door.opening is not None:
                door.opening.cancel()
        open_ones = [door.connection for door in self._doors.values() if door.connection is not None]
        for connection in open_ones:
            connection.close()
        for connection in open_ones:
            try:
                async with asyncio.timeout(1.0):
                    await connection.wait_closed()
            except TimeoutError:
                connection.abort()
        self._doors.clear()


@dataclass(slots=True)
class _Whereabouts:
    """What this process has learned of a cluster behind an address."""

    controllers: list[Endpoint]  # the newest last
    servers: dict[int, Endpoint] = field(default_factory=dict)  # some, by node id; each can say where the controller is

    def learn_servers(self, servers: Mapping[int, Endpoint]) -> None:
        merged = {**self.servers, **servers}  # a new one: handles of other threads read it
        for node in _chance.sample(sorted(merged), max(0, len(merged) - _SERVERS_MAX)):
            del merged[node]
        self.servers = merged


_whereabouts: dict[ClusterAddress, _Whereabouts] = {}


def _known_of(address: ClusterAddress) -> _Whereabouts:
    return _whereabouts.setdefault(address, _Whereabouts(list(reversed(address.bootstrap))))


def learn_servers(address: ClusterAddress, servers: Mapping[int, Endpoint]) -> None:
    """Remember servers, by node id, for all handles of an address."""
    _known_of(address).learn_servers(servers)


def knows_servers(address: ClusterAddress) -> bool:
    """Whether this process knows a server that may say where the controller of that address is."""
    return bool(_known_of(address).servers)


def current(address: ClusterAddress) -> ClusterAddress:
    """The address with every controller endpoint that this process has learned, the newest first."""
    known = _whereabouts.get(address)
    return address if known is None else replace(address, bootstrap=tuple(reversed(known.controllers)))


class _Elsewhere(Exception):
    """Another controller is active than the one that does not answer."""

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(f"the active controller is at {endpoint}")
        self.endpoint = endpoint


class ControllerConnection:
    """Requests to the active controller, wherever it is."""

    def __init__(self, address: ClusterAddress, config: LinkConfig, connections: Connections) -> None:
        self._name = address.name
        self._is_outside = address.is_outside
        self._what = "broker" if address.is_outside else "controller"
        self._known = _known_of(address)
        self._endpoints = list(reversed(self._known.controllers))
        self._config = config
        self._connections = connections
        self._active = 0  # the place in _endpoints of the one that answered last
        self._failure: RaylogError | None = None  # of the latest attempt
        self._is_announced = False
        self._is_warned = False  # since a controller answered last

    @property
    def endpoint(self) -> Endpoint:
        """The controller that answered last."""
        return self._endpoints[self._active]

    def learn(self, endpoint: Endpoint) -> None:
        """Remember an address at which a controller may listen."""
        if endpoint not in self._endpoints:
            self._endpoints.append(endpoint)
        if endpoint not in self._known.controllers:
            self._known.controllers.append(endpoint)

    def learn_servers(self, servers: Mapping[int, Endpoint]) -> None:
        """Remember servers, by node id, that can say where the controller is; some of them, where
        there are many.
        """
        self._known.learn_servers(servers)

    def trouble(self) -> str:
        """Why there is no answer yet, for an error message."""
        tried = ", ".join(map(str, self._endpoints))
        return f"the {self._what}, sought at {tried}: {self._failure or 'no answer yet'}"

    async def request(
        self,
        entity: Any,
        *,
        timeout_ms: float | None = None,
        answer_within_ms: float | None = None,
        attempts_max: int | None = None,
    ) -> Any:
        """The active controller's reply.

        Keeps trying for ``timeout_ms`` (default ``request.timeout.ms``); each attempt waits
        ``answer_within_ms`` for its answer. Raises ClusterError if no controller could be reached
        at all, ClientTimeoutError if one was and did not answer, ConfigError for what may not be
        asked from outside; what a reply says of errors is the caller's to read. Logs what it tries
        when it first connects, and a warning once no controller is reached for a while.
        """
        if self._is_outside and api_of(entity)[0] >= FIRST_API_KEY:
            raise not_from_outside(f"the request {type(entity).__name__}")
        limit_ms = self._config.request_timeout_ms if timeout_ms is None else timeout_ms
        if not self._is_announced:
            self._is_announced = True
            tried = ", ".join(map(str, self._endpoints))
            logger.info("Connecting to cluster %r at %s (up to %g s)…", self._name, tried, limit_ms / 1000)
        warning = asyncio.get_running_loop().call_later(_UNREACHED_S, self._warn_unreached, limit_ms)
        try:
            reply = await self._request(entity, limit_ms, answer_within_ms, attempts_max)
        finally:
            warning.cancel()
        self._is_warned = False
        return reply

    def _warn_unreached(self, limit_ms: float) -> None:
        if self._is_warned or any(self._connections.peek(each) is not None for each in self._endpoints):
            return
        self._is_warned = True
        logger.warning(
            "No %s of cluster %r reached for %g s: %s. Trying for %g s",
            self._what,
            self._name,
            _UNREACHED_S,
            self.trouble(),
            limit_ms / 1000,
        )

    async def _request(
        self, entity: Any, limit_ms: float, answer_within_ms: float | None, attempts_max: int | None
    ) -> Any:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + limit_ms / 1000
        failures = 0
        failure: RaylogError | None = None
        followed: set[Endpoint] = set()  # hints of this round
        while True:
            is_standby, asked = False, self.endpoint
            try:
                reply = await self._watched_attempt(entity, deadline, answer_within_ms)
                if not is_not_controller(reply):
                    return reply
                failure, is_standby = _NOT_CONTROLLER(f"{asked} is a standby controller"), True
            except _NOT_CONTROLLER as error:
                failure, is_standby = error, True
            except (DisconnectedError, ClientTimeoutError) as error:
                if failure is None or loop.time() < deadline:  # "no time left" tells less than what went wrong before
                    failure = error
            except HandshakeError as error:  # a neighbour on a reused port; the controller may be elsewhere
                failure = error
            except _Elsewhere as error:
                self._active = self._endpoints.index(error.endpoint)
                failures += 1
                continue
            self._failure = failure
            if is_standby and await self._follow_hint(asked, followed, deadline):
                continue
            self._move_on(asked)
            failures += 1
            if failures % len(self._endpoints) == 0 and await self._ask_servers(deadline):
                continue
            pause = self._pause_s(failures)
            if loop.time() + pause >= deadline or (attempts_max is not None and failures >= attempts_max):
                raise self._unreachable(failure, limit_ms) from failure
            await asyncio.sleep(pause)
            followed.clear()

    async def _watched_attempt(self, entity: Any, deadline: float, answer_within_ms: float | None) -> Any:
        """An attempt that is given up when nothing was heard for a while and another controller
        says that the active one is elsewhere.

        A controller that was stopped, or whose machine is gone, keeps its connections open and
        answers nothing.
        """
        if len(self._endpoints) == 1:
            return await self._attempt(entity, deadline, answer_within_ms)
        attempt = asyncio.ensure_future(self._attempt(entity, deadline, answer_within_ms))
        try:
            while not (await asyncio.wait({attempt}, timeout=_SILENCE_S))[0]:
                elsewhere = await self._active_elsewhere(deadline)
                if elsewhere is not None and not attempt.done():
                    raise _Elsewhere(elsewhere)
            return attempt.result()
        finally:
            attempt.cancel()

    async def _active_elsewhere(self, deadline: float) -> Endpoint | None:
        """Where the active controller is, if another controller names another one than that which
        is being asked.
        """
        left_s = min(_ASK_SERVER_S, deadline - asyncio.get_running_loop().time())
        others = [each for each in self._endpoints if each != self.endpoint]
        answers = await asyncio.gather(*(self._ask_server(each, left_s) for each in others))
        named = [each for each in answers if each is not None and each != self.endpoint]
        if not named:
            return None
        self.learn(named[0])
        return named[0]

    async def _attempt(self, entity: Any, deadline: float, answer_within_ms: float | None) -> Any:
        loop = asyncio.get_running_loop()
        left_ms = (deadline - loop.time()) * 1000
        if left_ms <= 0:
            raise ClientTimeoutError("no time left")
        try:
            async with asyncio.timeout(left_ms / 1000):
                connection = await self._connections.get(self.endpoint)
        except TimeoutError:
            raise ClientTimeoutError(
                f"{self.endpoint} did not accept a connection in time, or did not answer on it"
            ) from None
        left_ms = max(1.0, (deadline - loop.time()) * 1000)
        return await connection.request(
            entity, timeout_ms=left_ms if answer_within_ms is None else min(left_ms, answer_within_ms)
        )

    def _move_on(self, asked: Endpoint) -> None:
        """Try the next controller in turn that may be dialled now; unless another request has moved
        on from that one already.
        """
        if self.endpoint != asked:
            return
        count = len(self._endpoints)
        turn = [(self._active + step) % count for step in range(1, count + 1)]
        self._active = min(turn, key=lambda place: self._connections.pause_s(self._endpoints[place]))

    async def _follow_hint(self, standby: Endpoint, followed: set[Endpoint], deadline: float) -> bool:
        """Whether the standby that has just refused names another controller; it is tried next,
        once.
        """
        endpoint = await self._ask_server(standby, min(_ASK_SERVER_S, deadline - asyncio.get_running_loop().time()))
        if endpoint is None or endpoint == standby or endpoint in followed:
            return False
        followed.add(endpoint)
        self.learn(endpoint)
        self._active = self._endpoints.index(endpoint)
        return True

    async def _ask_servers(self, deadline: float) -> bool:
        """Whether a server named a controller endpoint that was not known; it is tried next."""
        left_s = min(_ASK_SERVER_S, deadline - asyncio.get_running_loop().time())
        servers = list(self._known.servers.values())
        clock_of(asyncio.get_running_loop()).chance.shuffle(servers)
        servers.sort(key=lambda server: self._connections.peek(server) is None)  # those at hand first
        asked = [asyncio.ensure_future(self._ask_server(server, left_s)) for server in servers[:_ASKED_AT_ONCE]]
        try:
            for answer in asyncio.as_completed(asked):
                endpoint = await answer
                if endpoint is not None and endpoint not in self._endpoints:
                    self.learn(endpoint)
                    self._active = self._endpoints.index(endpoint)
                    return True
        finally:
            for each in asked:
                each.cancel()
        return False

    async def _ask_server(self, server: Endpoint, within_s: float) -> Endpoint | None:
        if self._is_outside:
            return None  # a listener says nothing of controllers
        try:
            async with asyncio.timeout(within_s):
                connection = await self._connections.get(server)
                reply = await connection.request(FindController(), timeout_ms=max(1.0, within_s * 1000))
        except (RaylogError, TimeoutError):
            return None
        return Endpoint(reply.host, reply.port) if reply.port >= 0 else None

    def _pause_s(self, failures: int) -> float:
        rounds, place = divmod(failures, len(self._endpoints))
        if place or failures <= 1:
            return 0.0  # another endpoint, or the first failure: at once
        backoff = min(self._config.retry_backoff_ms * 2 ** min(rounds - 1, 16), self._config.retry_backoff_max_ms)
        return float(backoff * clock_of(asyncio.get_running_loop()).chance.uniform(0.8, 1.2) / 1000)

    def _unreachable(self, failure: RaylogError, limit_ms: float) -> RaylogError:
        tried = ", ".join(map(str, self._endpoints))
        if isinstance(failure, ProtocolError):
            return ClusterError(
                f"the server at {tried} does not belong to cluster {self._name!r} ({failure}): get a fresh address with raylog.connect()"
            )
        if isinstance(failure, ClientTimeoutError):
            return ClientTimeoutError(
                f"the {self._what} of cluster {self._name!r} did not answer within {limit_ms:g} ms (tried {tried}): {failure}"
            )
        return ClusterError(
            f"no {self._what} of cluster {self._name!r} answers at {tried} ({failure}): see `raylog status`, or start it with `raylog up`"
        )
