"""Connections of a process that holds replicas to those that lead what it follows: one to each, and
to each that may lead it next.

A link is opened when an assignment names a process that holds a replica in sync of a partition that
this one holds, too (``warm``): where a host dies, hundreds of partitions get new leaders at once,
and the first fetches from them wait for no handshake. Nobody waits for such a link, and one that
can't be opened is tried again with the next assignment that names it, or by the first fetch. An
idle one costs its two sockets, until the other end closes it.

A process is its node id and its incarnation: the handshake proves both, and a link to an earlier
incarnation is closed when a fetch or an assignment for a later one comes. Decides nothing: a
``SendFetch`` goes out as a frame, and what comes of it, an answer or none, goes back to the machine
as an event. The machine gives up a fetch when it sends a newer one to the same leader. On an open
link both travel; while the link is being opened the newer one takes the place of the older.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from raylog.control.session import Assignment
from raylog.errors import ProtocolError, RaylogError
from raylog.replication.events import FetchAnswered, FetchFailed, SendFetch
from raylog.server import follower_fetches
from raylog.types import Endpoint, broker_of
from raylog.wire.connection import Connection
from raylog.wire.handshake import Peer
from raylog.wire.internal_tls import Secret

logger = logging.getLogger("raylog.replica")

ANSWER_GRACE_MS = 30_000
"""How long beyond the wait that a fetch allows its answer may take."""


@dataclass(frozen=True, slots=True)
class _Caller:
    """Who fetches, and what proves it."""

    peer: Peer
    secret: Secret
    cluster_id: str
    on_event: Callable[[FetchAnswered | FetchFailed], None]


class LeaderLinks:
    """On the event loop. ``on_event`` hears of each fetch once, unless its link is closed before or
    a newer fetch has taken its place.
    """

    def __init__(
        self,
        peer: Peer,
        *,
        secret: Secret,
        cluster_id: str,
        on_event: Callable[[FetchAnswered | FetchFailed], None],
    ) -> None:
        self._caller = _Caller(peer, secret, cluster_id, on_event)
        self._links: dict[tuple[int, int], _LeaderLink] = {}

    def send(self, effect: SendFetch) -> None:
        """Fetch from the process that the effect names."""
        self._link_to((effect.leader_node, effect.leader_incarnation), effect.endpoint).send(effect)

    def warm(self, assignments: Iterable[Assignment]) -> None:
        """Have links to the processes that may lead these partitions: those that hold a replica in
        sync, and live.

        The assignments are in the order in which they were made: of two incarnations the later one
        counts.
        """
        own_node = self._caller.peer.node_id
        others = {
            replica.node_id: (replica.incarnation, replica.endpoint)
            for assignment in assignments
            for replica in assignment.replicas
            if replica.broker_id in assignment.isr and replica.node_id != own_node and replica.endpoint is not None
        }
        for node, (incarnation, endpoint) in others.items():
            self._link_to((node, incarnation), endpoint).warm()

    def _link_to(self, key: tuple[int, int], endpoint: Endpoint) -> _LeaderLink:
        link = self._links.get(key)
        if link is None:
            for old in [each for each in self._links if each[0] == key[0]]:
                self._links.pop(old).close()
            link = self._links[key] = _LeaderLink(self._caller, endpoint, key)
        return link

    def close(self) -> None:
        """Close all of them."""
        for link in self._links.values():
            link.close()


class _LeaderLink:
    def __init__(self, caller: _Caller, endpoint: Endpoint, key: tuple[int, int]) -> None:
        self._caller = caller
        self._endpoint = endpoint
        self._key = key
        self._connection: Connection | None = None
        self._opening: asyncio.Task[None] | None = None
        self._waiting: SendFetch | None = None  # while the connection is being opened

    def send(self, effect: SendFetch) -> None:
        if self._connection is not None and self._connection.is_open:
            self._call(self._connection, effect)
        else:
            self._waiting = effect
            self.warm()

    def warm(self) -> None:
        """Begin to open the connection, unless it is open or being opened."""
        is_open = self._connection is not None and self._connection.is_open
        if not is_open and self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._open())

    async def _open(self) -> None:
        caller = self._caller
        connection: Connection | None = None
        try:
            connection = await Connection.open(
                self._endpoint,
                secret=caller.secret,
                cluster_id=caller.cluster_id,
                expect=self._key,
                caller=caller.peer,
                client_id=f"replica-{broker_of(caller.peer.node_id)}",
                borrows_records=True,
            )
        except RaylogError as error:
            # Nobody misses a link that no fetch waits for.
            level = logging.DEBUG if self._waiting is None else logging.INFO
            logger.log(level, "cannot fetch from node %d at %s: %s", self._key[0], self._endpoint, error)
        finally:
            effect, self._waiting = self._waiting, None
            self._opening = None  # before anybody hears of it: a failed fetch may be sent again at once
        self._connection = connection
        if effect is None:
            return
        if connection is None:
            caller.on_event(FetchFailed(*self._key, effect.fetch_id))
        else:
            self._call(connection, effect)

    def _call(self, connection: Connection, effect: SendFetch) -> None:
        def answered(frame: Any, error: Exception | None) -> None:
            reply = None
            if error is None:
                try:
                    reply = follower_fetches.results(frame)
                except ProtocolError as mistake:
                    connection.refused(mistake)
            if reply is not None:
                self._caller.on_event(FetchAnswered(*self._key, effect.fetch_id, reply.partitions, reply.session_id))
            else:
                self._caller.on_event(FetchFailed(*self._key, effect.fetch_id))

        timeout_ms = effect.max_wait_ms + ANSWER_GRACE_MS
        connection.call_written(partial(follower_fetches.request, effect), answered, timeout_ms=timeout_ms)

    def close(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
        if self._connection is not None:
            self._connection.close()
