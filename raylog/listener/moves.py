"""Moves connections from the listener to a host of this broker, and takes them back.

A Broker passes each Produce and Fetch on to the process that leads the partition, and what a client
asks in a transaction to the process that coordinates it: two processes see every request. A
connection whose requests all go to the same host needs only that one, so after some of them
(``PATIENCE``) it moves there (``raylog.server.door``). It comes back with the first request that the
host doesn't serve. Each return makes the Broker wait sixteen times longer before it moves that
connection again, unless the host served it for long.

A connection with TLS stays at the listener, because its keys are in this process.

A connection whose client has a quota takes it along, and the host counts. It comes back with
the request that follows the one by which the client has exceeded the quota, and this process
throttles it. Then it stays for as long as rates remember what was used, from the last time that the
client had to wait: a client above its quota is served here, one within it at the host. Such a return
does not make the next move later. When quotas change, each connection comes back with its next
request. All this goes by client id, so a connection moves with one: it comes back with the first
request that has another.

Hosts ask no authorizer. Where there is one, a connection takes along what it has been allowed on its
way there (``Grant``), and comes back with the first request for anything else. When the authorizer
may decide otherwise, all that was granted is revoked, and each connection comes back with its next
request. A host that has lost its Broker closes the connections that need grants. Requests to a
coordinator are not granted: where an authorizer is asked about them, their connection stays.

Connections that have moved count toward ``max.connections``. They outlive the Broker: when it dies
the host continues to serve them. A request that the host doesn't serve then ends the connection, as
the death of its broker would have.

A host may stand still, and its clients would wait with it. So the Broker keeps a descriptor of each
connection that has moved, and ends the connection when the controller declares the host dead: the
client connects again, and finds who leads now.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from raylog.kafka.context import RequestContext
from raylog.listener.owners import Owner, Owners
from raylog.listener.raw_forward import OnePartition
from raylog.wire.moved_connections import Channel, Grant, Message, Moved, MovedQuota, Revoked, connect
from raylog.wire.private import DoorOpened, OpenDoor
from raylog.wire.request import Request
from raylog.wire.server import Server
from raylog.wire.server_connection import KEPT_CHARACTERS_MAX, ServerConnection

logger = logging.getLogger("raylog.broker")

PATIENCE: Final = 4
"""How many requests in a row must go to one host before their connection moves there."""
RETURNS_COUNTED_MAX: Final = 4
OPEN_TIMEOUT_MS: Final = 5_000
GRANTS_MAX: Final = 64
GRANT_BYTES_MAX: Final = 64 << 10
"""In sum. A connection that needs more of them stays at the listener, for a message holds no more."""


class _Route:
    """Where a connection's requests go: the last ``count`` in a row, up to request number ``last``,
    went to one host, and had this context. ``grants``: what they were allowed in that edition of the
    authorizer and the quotas; None where nobody was asked. ``stays``: they are too many.
    """

    __slots__ = ("context", "count", "edition", "grants", "last", "owner", "stays")

    def __init__(
        self, owner: Owner, last: int, context: RequestContext, edition: int, grants: set[Grant] | None
    ) -> None:
        self.owner = owner
        self.last = last
        self.context = context
        self.count = 1
        self.edition = edition
        self.grants = grants
        self.stays = False


@dataclass(frozen=True, slots=True)
class _Away:
    """A connection that has moved: the address of its client, and a descriptor of its own."""

    client_host: str
    sock: socket.socket

    def end(self) -> None:
        """Have both sides see its end, though the host has a descriptor of it, too."""
        with suppress(OSError):  # it has ended already
            self.sock.shutdown(socket.SHUT_RDWR)


class _Host:
    """The channel to one host, once it is open, and the connections that have moved there, by their
    numbers.
    """

    def __init__(self) -> None:
        self.channel: Channel | None = None
        self.there: dict[int, _Away] = {}


class MoveLimits(Protocol):
    """What the quotas of clients have to do with their connections (``raylog.listener.quotas``)."""

    def holds(self, request: Request, bytes_max: int = 0) -> bool:
        """Whether the connection has to stay here for now."""

    def limits(self, context: RequestContext) -> tuple[MovedQuota, ...]:
        """What it takes along."""

    def exceeded(self, key: str, context: RequestContext) -> None:
        """It has come back because of that quota."""


def _nobody(_: Request) -> bool:
    return False


def _are_too_many(grants: Collection[Grant]) -> bool:
    size = sum(len(topic) + len(transactional_id.encode()) for _, topic, transactional_id in grants)
    return len(grants) > GRANTS_MAX or size > GRANT_BYTES_MAX


def _grant(request: Request, asked: OnePartition) -> Grant:
    return request.api_key, asked.named, asked.transactional_id


class ConnectionMoves:
    """``server`` returns the listener for clients, once there is one. ``is_judged`` may be set; it
    says whether an authorizer is asked about a request.
    """

    def __init__(self, owners: Owners, quotas: MoveLimits) -> None:
        self.server: Server
        self.is_judged: Callable[[Request], bool] = _nobody
        self.are_held = False  # no connection moves
        self._quotas = quotas
        self._owners = owners
        self._hosts: dict[Owner, _Host] = {}
        self._last_number = 0
        self._edition = 0  # of what the authorizer decides, and of quotas

    def routed(self, request: Request, owner: Owner, asked: OnePartition) -> None:
        """Count a request for one partition that is allowed and about to be forwarded; its
        connection may move once it is answered.
        """
        if self.are_held or self._quotas.holds(request, asked.answer_bytes_max):
            return
        route = self._continued(request, owner)
        if route is None:
            self._begin(request, owner, {_grant(request, asked)} if self.is_judged(request) else None)
            return
        if route.stays:
            return
        if route.grants is not None:
            route.grants.add(_grant(request, asked))
            if _are_too_many(route.grants):
                route.stays = True
                return
        self._move_when_due(request.connection, route)

    def coordinated(self, request: Request, owner: Owner) -> None:
        """Count a request to the process that coordinates its transaction, in the same way."""
        if self.are_held or self._quotas.holds(request) or self.is_judged(request):
            return
        route = self._continued(request, owner)
        if route is None:
            self._begin(request, owner, None)
        else:
            self._move_when_due(request.connection, route)

    def _continued(self, request: Request, owner: Owner) -> _Route | None:
        """The connection's route with one request more; None if another one begins."""
        connection = request.connection
        route: _Route | None = connection.route
        if (
            route is None
            or route.last + 1 != connection.requests
            or route.owner != owner
            or route.context.client_id != request.context.client_id
            or route.edition != self._edition
        ):
            return None
        route.last += 1
        route.count += 1
        return route

    def _begin(self, request: Request, owner: Owner, grants: set[Grant] | None) -> None:
        connection, context = request.connection, request.context
        if len(context.client_id or "") <= KEPT_CHARACTERS_MAX:  # else a message has no room for it
            connection.route = _Route(owner, connection.requests, context, self._edition, grants)

    def _move_when_due(self, connection: ServerConnection, route: _Route) -> None:
        if route.count < PATIENCE << 4 * min(connection.came_back, RETURNS_COUNTED_MAX) or connection.is_leaving:
            return
        if not connection.may_leave:
            return
        owner = route.owner
        host = self._hosts.get(owner)
        if host is None:
            self._open(owner)
        elif host.channel is not None:
            connection.leave(partial(self._hand_over, host, connection))

    def revoke(self) -> None:
        """The authorizer may decide otherwise from now on, or other clients have quotas. A host that
        can't be told loses its channel, and the connections that it has.
        """
        self._edition += 1
        for owner, host in list(self._hosts.items()):
            if host.channel is not None and not host.channel.send(Revoked()):
                self._lose(owner)

    def keep(self, living: Collection[Owner]) -> None:
        """Close the channels to all other processes, and end the connections that these have."""
        for owner in [owner for owner in self._hosts if owner not in living]:
            self._lose(owner)

    def close(self) -> None:
        """Close all channels. The hosts keep their connections."""
        for owner in list(self._hosts):
            self._close(owner)

    # ------------------------------------------------------------------ channels

    def _open(self, owner: Owner) -> None:
        host = self._hosts[owner] = _Host()

        def opened(reply: DoorOpened | None, error: Exception | None) -> None:
            if self._hosts.get(owner) is not host:
                return
            try:
                if reply is None:
                    raise OSError(str(error))
                sock = connect(reply.name, reply.token)
            except OSError as failure:  # retried when the host has a new process
                logger.info("connections cannot move to node %d: %s", owner.node_id, failure)
                return
            host.channel = Channel(sock, partial(self._heard, host), partial(self._lose, owner))

        self._owners.call(owner, OpenDoor(), opened, timeout_ms=OPEN_TIMEOUT_MS)

    def _lose(self, owner: Owner) -> None:
        """The host is dead or stands still: its clients shall not wait for it."""
        for away in self._hosts[owner].there.values() if owner in self._hosts else ():
            away.end()
        self._close(owner)

    def _close(self, owner: Owner) -> None:
        host = self._hosts.pop(owner, None)
        if host is None:
            return
        for number in list(host.there):
            self._forget(host, number)
        if host.channel is not None:
            host.channel.close()

    def _forget(self, host: _Host, number: int) -> None:
        away = host.there.pop(number)
        away.sock.close()
        self.server.leave_host(away.client_host)
        self.server.connections_elsewhere -= 1

    # ------------------------------------------------------------------ connections

    def _hand_over(self, host: _Host, connection: ServerConnection, sock: socket.socket, pending: bytes) -> bool:
        route: _Route = connection.route
        self._last_number += 1
        moved = Moved(
            self._last_number,
            pending,
            connection.principal,
            connection.listener,
            connection.came_back,
            None if route.grants is None else tuple(route.grants),
            connection.client_software,
            route.context.client_id,
            self._quotas.limits(route.context),
        )
        if route.edition != self._edition or host.channel is None or not host.channel.send(moved, sock):
            sock.close()
            return False
        host.there[moved.number] = _Away(connection.host, sock)
        self.server.connections_elsewhere += 1
        self.server.connections_of_host[connection.host] += 1
        return True

    def _heard(self, host: _Host, message: Message, sock: socket.socket | None) -> None:
        assert not isinstance(message, Revoked), "a host doesn't decide about grants"
        if message.number in host.there:
            self._forget(host, message.number)
        if isinstance(message, Moved):
            assert sock is not None
            if message.exceeded:
                context = RequestContext(message.principal, message.listener, "", message.client_id)
                self._quotas.exceeded(message.exceeded, context)
            self.server.adopt(sock, message.pending, partial(_prepare, message))


def _prepare(moved: Moved, connection: ServerConnection) -> None:
    connection.principal, connection.listener = moved.principal, moved.listener
    connection.came_back = moved.came_back
    connection.client_software = moved.client_software
