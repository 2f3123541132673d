"""Leaving a leader that has fallen silent as soon as another one leads.

A leader whose process ends breaks its connections, and a client knows at once. One that is stopped,
or whose machine is cut off, says nothing at all; the request times out only after
``request.timeout.ms``, long after the cluster has put somebody else in its place. So a request that
has been unanswered for ``PATIENCE_MS`` (longer, where its answer may be held back on purpose) makes
the client ask the controller for a leader of a newer epoch (AWAIT_LEADER, which waits), again and
again until there is one or the answer comes. If there is one, the connection to the silent leader
is given up: what was in flight fails and is sent to the new leader, and sequence numbers see to it
that nothing is stored twice.

A leader that is only slow (its followers are) is left alone: nobody else leads. One question is
open per connection, about one of the partitions that wait; a leader that lost one of them has lost
its session, and most likely all.

Lives in one event loop. Knows neither what was asked nor what becomes of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from raylog.client.links.metadata import Metadata, PartitionLeader
from raylog.errors import DisconnectedError, RaylogError
from raylog.types import TopicPartition
from raylog.wire.connection import Connection

PATIENCE_MS = 1_000.0


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request without an answer. ``silent_at``: when its leader counts as silent, in the loop's
    time.
    """

    connection: Connection
    leaders: Sequence[tuple[TopicPartition, PartitionLeader]]
    silent_at: float


class SilentLeaders:
    """Told of each request to leaders and of its end."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self._loop = asyncio.get_running_loop()
        self._asked: dict[int, _Asked] = {}  # in the order in which they were sent
        self._number = 0
        self._timer: asyncio.TimerHandle | None = None
        self._questions: dict[Connection, asyncio.Task[None]] = {}

    def sent(
        self,
        connection: Connection,
        leaders: Sequence[tuple[TopicPartition, PartitionLeader]],
        *,
        held_back_ms: float = 0,
    ) -> int:
        """A request went to the leader of these partitions; ``held_back_ms``: how long it may wait
        there. Returns its number.
        """
        self._number += 1
        silent_at = self._loop.time() + (PATIENCE_MS + held_back_ms) / 1000
        self._asked[self._number] = _Asked(connection, leaders, silent_at)
        if self._timer is None:
            self._timer = self._loop.call_at(silent_at, self._look)
        return self._number

    def ended(self, number: int) -> None:
        """That request was answered, or failed."""
        self._asked.pop(number, None)

    def close(self) -> None:
        self._asked.clear()
        if self._timer is not None:
            self._timer.cancel()
        for question in list(self._questions.values()):
            question.cancel()

    def _look(self) -> None:
        """Ask about leaders that have been silent for too long; look again while anything is
        unanswered.
        """
        self._timer = None
        now = self._loop.time()
        for asked in self._asked.values():
            if asked.silent_at <= now and asked.leaders and asked.connection not in self._questions:
                self._questions[asked.connection] = self._loop.create_task(self._ask(asked.connection))
        if self._asked:
            self._timer = self._loop.call_later(PATIENCE_MS / 2000, self._look)

    async def _ask(self, connection: Connection) -> None:
        try:
            await self._ask_until_it_ends(connection)
        finally:
            del self._questions[connection]

    async def _ask_until_it_ends(self, connection: Connection) -> None:
        """Ask for another leader until the connection has no silent request any more, or is given
        up.
        """
        while (waiting := self._silent_on(connection)) is not None:
            key, leader = waiting
            try:
                newer = await self._metadata.await_newer(key, leader.epoch)
            except RaylogError:
                await asyncio.sleep(PATIENCE_MS / 1000)  # the controller is away too
                continue
            is_replaced = newer is not None and newer.epoch > leader.epoch
            if is_replaced and self._silent_on(connection) is not None:
                reason = f"{key.topic}-{key.partition} is led by another server, and this one has not answered"
                connection.abort(DisconnectedError(reason))
                return

    def _silent_on(self, connection: Connection) -> tuple[TopicPartition, PartitionLeader] | None:
        """A partition whose leader owes an answer there for too long."""
        now = self._loop.time()
        for asked in self._asked.values():
            if asked.connection is connection and asked.silent_at <= now and asked.leaders:
                return asked.leaders[0]
        return None
