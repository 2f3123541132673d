"""Requests that came before their partition serves: they wait for it instead of being refused.

A partition is *awaited* at this process while it may come to lead it any moment:

- its Assignment has not arrived yet: the client, or its Broker, heard of the partition first. After
  a Removal it is not awaited;
- its log is being opened, or is open and nobody leads, and this replica is in the ISR or ELR: its
  election is under way.

Records with acks 0 and 1 also wait at a leader whose own copy arrives from another disk
(``arrival``), which will lead instead of it.

What asks for a leader there is held: requests without an effect as a whole (``Deferred``:
ListOffsets, OffsetForLeaderEpoch, DeleteRecords, and a consumer's Fetch of unknown partitions), a
Produce for those of its partitions that are awaited (``LateAppend``); its other records are
appended at once. A Fetch finds an awaited partition empty, and waits as it does for records.
Whoever waits is looked at again when the partition's Assignment arrives, its role is taken, its log
fails or it is removed: from then on the request is answered as if it came now.

A wait is bounded by the request's own timeout, or ``awaited_leader_wait_ms`` where it has none; and
by ``unknown_partition_wait_ms`` for as long as the Assignment has not come, since it may never
come. What is held counts against ``awaited_bytes_max`` and ``awaited_requests_max``; beyond them
requests are refused as if nobody waited.

Older versions of requests name a topic whose id is not known here yet. They carry an id that is
made from the name (``stand_in_id``); the Assignment tells which one was meant.

Invariants (``check``): every waiter has an armed deadline and is found by each partition that it
waits for, and each of those is awaited; ``held_bytes`` is the sum over the waiters.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from raylog.control.session import Assignment
from raylog.replication.context import Deadline, HostContext
from raylog.replication.events import (
    DeleteRecordsReceived,
    FetchReceived,
    ListOffsetsReceived,
    OffsetForLeaderEpochReceived,
    ProducePartition,
    Token,
)
from raylog.types import TopicIdPartition

if TYPE_CHECKING:
    from raylog.replication.parked import ParkedProduce
    from raylog.replication.replica import Replica

_NAMES = uuid.UUID(int=0)
GONE_MAX = 10_000  # removals that are remembered

Deferrable = FetchReceived | ListOffsetsReceived | OffsetForLeaderEpochReceived | DeleteRecordsReceived


def stand_in_id(topic: str) -> uuid.UUID:
    """What a request by name says for the id of a topic that this process does not know."""
    return uuid.uuid5(_NAMES, topic)


class Waiter:
    """``pending`` are the partitions that it waits for."""

    __slots__ = ("deadline", "pending", "size", "unknown_deadline")

    def __init__(self, pending: Iterable[TopicIdPartition], size: int) -> None:
        self.pending = dict.fromkeys(pending)
        self.size = size
        self.deadline: Deadline | None = None
        self.unknown_deadline: Deadline | None = None

    def rename(self, known: TopicIdPartition, id: TopicIdPartition) -> None:
        del self.pending[known]
        self.pending[id] = None


class Deferred(Waiter):
    """A whole request."""

    __slots__ = ("due_ms", "request")

    def __init__(self, request: Deferrable, pending: Iterable[TopicIdPartition], due_ms: int) -> None:
        super().__init__(pending, 0)
        self.request = request
        self.due_ms = due_ms

    def rename(self, known: TopicIdPartition, id: TopicIdPartition) -> None:
        super().rename(known, id)
        parts = tuple(replace(part, id=id) if part.id == known else part for part in self.request.partitions)
        self.request = replace(self.request, partitions=parts)  # type: ignore[arg-type]


class LateAppend(Waiter):
    """One partition of a Produce. ``produce`` waits for it, unless it is ``settled``."""

    __slots__ = ("index", "part", "produce", "settled")

    def __init__(self, produce: ParkedProduce, index: int, part: ProducePartition) -> None:
        super().__init__((part.id,), len(part.records))
        self.produce = produce
        self.index = index
        self.part = part
        self.settled = False

    def rename(self, known: TopicIdPartition, id: TopicIdPartition) -> None:
        super().rename(known, id)
        self.part = replace(self.part, id=id)


Ready = Callable[[Waiter, int, int], None]  # (waiter, now_ms, wall_ms)


class Awaited:
    """``ready`` is called once for each waiter that need not, or may not, wait any longer, unless
    it is forgotten before.
    """

    __slots__ = ("_by_token", "_context", "_gone", "_ready", "_replicas", "_waiters", "_waiting", "held_bytes")

    def __init__(self, context: HostContext, replicas: Mapping[TopicIdPartition, Replica], ready: Ready) -> None:
        self._context = context
        self._replicas = replicas
        self._ready = ready
        self._waiting: dict[TopicIdPartition, dict[Waiter, None]] = {}  # in order of arrival
        self._waiters: dict[Waiter, None] = {}
        self._by_token: dict[Token, Deferred] = {}
        self._gone: dict[TopicIdPartition, None] = {}  # removed from this process, the longest ago first
        self.held_bytes = 0

    # -------------------------------------------------------------- who is awaited

    def is_awaited(self, id: TopicIdPartition) -> bool:
        """Whether this process may lead that partition soon."""
        if id in self._gone:
            return False
        replica = self._replicas.get(id)
        return replica is None or replica.may_lead_soon

    def holds_appends(self, id: TopicIdPartition) -> bool:
        """Whether records may have to wait for that partition."""
        replica = self._replicas.get(id)
        return self.is_awaited(id) or (replica is not None and replica.holds_appends)

    def has_room(self, size: int = 0) -> bool:
        config = self._context.config
        within_bytes = self.held_bytes + size <= config.awaited_bytes_max
        return within_bytes and len(self._waiters) < config.awaited_requests_max

    def awaited_among(self, request: Deferrable) -> list[TopicIdPartition]:
        """The partitions for which this request has to wait; none where there is no room for it."""
        found = [part.id for part in request.partitions if self.is_awaited(part.id)]
        return found if found and self.has_room() else []

    def holds(self, token: Token) -> bool:
        """Whether somebody waits here by that token."""
        if token in self._by_token:
            return True
        return any(isinstance(waiter, LateAppend) and waiter.produce.token == token for waiter in self._waiters)

    # -------------------------------------------------------------- waiting

    def defer(self, request: Deferrable, ids: Iterable[TopicIdPartition], wait_ms: int, now_ms: int) -> None:
        deferred = Deferred(request, ids, now_ms + wait_ms)
        self._by_token[request.token] = deferred
        self.wait(deferred, wait_ms, now_ms)

    def wait(self, waiter: Waiter, wait_ms: int, now_ms: int) -> None:
        for id in waiter.pending:
            self._waiting.setdefault(id, {})[waiter] = None
        self._waiters[waiter] = None
        self.held_bytes += waiter.size
        wheel = self._context.wheel
        waiter.deadline = wheel.add(now_ms + wait_ms, lambda now_ms, wall_ms: self._end(waiter, now_ms, wall_ms))
        unknown_ms = self._context.config.unknown_partition_wait_ms
        if unknown_ms < wait_ms and any(id not in self._replicas for id in waiter.pending):
            waiter.unknown_deadline = wheel.add(
                now_ms + unknown_ms, lambda now_ms, wall_ms: self._end_if_unknown(waiter, now_ms, wall_ms)
            )

    def cancel(self, token: Token) -> None:
        """The client of a deferred request went away."""
        deferred = self._by_token.get(token)
        if deferred is not None:
            self.forget(deferred)

    def forget(self, waiter: Waiter) -> None:
        """Wait no longer, and do nothing about it. Idempotent."""
        if waiter not in self._waiters:
            return
        del self._waiters[waiter]
        self.held_bytes -= waiter.size
        for deadline in (waiter.deadline, waiter.unknown_deadline):
            if deadline is not None:
                deadline.cancel()
        for id in waiter.pending:
            waiters = self._waiting[id]
            del waiters[waiter]
            if not waiters:
                del self._waiting[id]
        if isinstance(waiter, Deferred):
            self._by_token.pop(waiter.request.token, None)

    def _end(self, waiter: Waiter, now_ms: int, wall_ms: int) -> None:
        self.forget(waiter)
        self._ready(waiter, now_ms, wall_ms)

    def _end_if_unknown(self, waiter: Waiter, now_ms: int, wall_ms: int) -> None:
        waiter.unknown_deadline = None
        if any(id not in self._replicas for id in waiter.pending):
            self._end(waiter, now_ms, wall_ms)

    # -------------------------------------------------------------- what happens to partitions

    def assigned(self, assignment: Assignment) -> None:
        """It is this process's, perhaps anew."""
        self._gone.pop(assignment.id, None)
        if not self._waiting:
            return
        known = TopicIdPartition(stand_in_id(assignment.topic), assignment.partition)
        for waiter in self._waiting.pop(known, ()):
            waiter.rename(known, assignment.id)
            self._waiting.setdefault(assignment.id, {})[waiter] = None

    def removed(self, id: TopicIdPartition) -> None:
        """It is this process's no longer: nobody waits for it."""
        self._gone.pop(id, None)
        self._gone[id] = None
        while len(self._gone) > GONE_MAX:
            del self._gone[next(iter(self._gone))]

    def changed(self, ids: Iterable[TopicIdPartition], now_ms: int, wall_ms: int) -> None:
        """Something happened to these partitions: let those go on who need not wait any longer."""
        for id in ids:
            if id not in self._replicas:
                self.removed(id)  # whatever took it away
            if id not in self._waiting or self.holds_appends(id):
                continue
            for waiter in self._waiting.pop(id):
                del waiter.pending[id]
                if not waiter.pending:
                    self._end(waiter, now_ms, wall_ms)

    # -------------------------------------------------------------- invariants

    def check(self) -> None:
        """Raise AssertionError where an invariant is broken."""
        assert self.held_bytes == sum(waiter.size for waiter in self._waiters), self.held_bytes
        for waiter in self._waiters:
            assert waiter.deadline is not None and waiter.deadline.bucket is not None, "somebody could wait for ever"
            assert waiter.pending, "somebody waits for nothing"
            for id in waiter.pending:
                assert waiter in self._waiting[id], f"a waiter for {id} does not hear of it"
                assert self.holds_appends(id), f"somebody waits for {id}, which is not awaited"
        for id, waiters in self._waiting.items():
            assert waiters and all(id in waiter.pending for waiter in waiters), id
        for token, deferred in self._by_token.items():
            assert deferred in self._waiters and deferred.request.token == token, token
