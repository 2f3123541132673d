"""When a process reads which of its logs through for damage, and what follows from what it finds.

One log at a time is scrubbed at leisure, ``log.scrub.interval.ms`` after the last time (the first
time a tenth of that after it was opened), the one that has been due for longest first. How fast it
is read, ``log.scrub.io.max.bytes.per.second`` says to the shell. A read that met damaged bytes, and
a report from outside (``raylog verify --repair``), have the segment in question read at once.

Damage seldom comes alone. After a log was found damaged all of it is read at leisure, before other
logs, and once more if it was cut meanwhile. So an earlier damage is found soon, as a rule before
this replica may lead again; nothing holds it back until then.

The work is an order, ``Scrub``; its end comes back as ``ScrubEnded``. A replica with damage tells
the controller, and serves what is whole of its log until the controller has taken it out of the ISR
and has raised the leader epoch; then it cuts the damage off and copies from the leader
(``Replica``). Where no other replica is in sync nothing is cut: there is no other copy.

Reads that fail though every batch is whole are led astray by an index: that counts as damage of the
index.

Invariant (``check``): a log has one urgent order at most, and there is one at leisure in all.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from typing import TYPE_CHECKING

from raylog.log.scrubbing import Damage, Scrubbing
from raylog.records.corrupt import CorruptBatch, UnsupportedMagic
from raylog.replication.context import Deadline, HostContext
from raylog.replication.events import DamageReported, Scrub, ScrubEnded
from raylog.types import TopicIdPartition

if TYPE_CHECKING:
    from raylog.log.log import Log
    from raylog.replication.replica import Replica

_FIRST_SHARE = 10  # of the interval: when a log is read for the first time


class ScrubRounds:
    """See the module."""

    __slots__ = ("_context", "_current", "_current_plan", "_due", "_heap", "_replicas", "_timer", "_urgent")

    def __init__(self, context: HostContext, replicas: Mapping[TopicIdPartition, Replica]) -> None:
        self._context = context
        self._replicas = replicas
        self._current: Scrubbing | None = None
        self._current_plan: tuple[int, Log, int] | None = None  # what ``_due`` said when it began
        self._urgent: dict[TopicIdPartition, Scrubbing] = {}
        self._due: dict[TopicIdPartition, tuple[int, Log, int]] = {}  # when, which log, by which interval
        self._heap: list[tuple[int, TopicIdPartition]] = []
        self._timer: Deadline | None = None

    # -------------------------------------------------------------- at leisure

    def opened(self, id: TopicIdPartition, log: Log | None, now_ms: int) -> None:
        """A log was opened, or configured."""
        if log is None:
            return
        interval_ms = self._interval_ms(log)
        known = self._due.get(id)
        if known is None or known[1] is not log:
            self._plan(id, log, now_ms + interval_ms // _FIRST_SHARE, interval_ms)
        elif known[2] != interval_ms:
            self._plan(id, log, min(known[0], now_ms + interval_ms // _FIRST_SHARE), interval_ms)

    def _interval_ms(self, log: Log) -> int:
        configured = log.config.scrub_interval_ms
        return self._context.config.log_scrub_interval_ms if configured is None else configured

    def _plan(self, id: TopicIdPartition, log: Log, due_ms: int, interval_ms: int) -> None:
        self._due[id] = (due_ms, log, interval_ms)
        heapq.heappush(self._heap, (due_ms, id))
        self._arm()

    def _arm(self) -> None:
        if self._current is not None or not self._heap:
            return
        due_ms = self._heap[0][0]
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._context.wheel.add(due_ms, self._expired)

    def _expired(self, now_ms: int, wall_ms: int) -> None:
        self._timer = None
        while self._heap and self._current is None and self._heap[0][0] <= now_ms:
            due_ms, id = heapq.heappop(self._heap)
            planned = self._due.get(id)
            if planned is None or planned[0] != due_ms:
                continue  # planned anew since
            replica = self._replicas.get(id)
            if replica is None or replica.log is not planned[1]:
                del self._due[id]
                continue
            self._current_plan = planned
            self._current = Scrubbing(replica.log, replica.log.log_start_offset, is_urgent=False)
            self._context.effects.append(Scrub(id, replica.log, self._current))
        self._arm()

    def hurry(self, id: TopicIdPartition, now_ms: int) -> None:
        """That log is damaged, it seems: have it read through next."""
        planned = self._due.get(id)
        if planned is not None:
            self._plan(id, planned[1], now_ms, planned[2])

    # -------------------------------------------------------------- at once

    def suspected(self, replica: Replica, offset: int) -> None:
        """Reading at that offset met damaged bytes: have it looked into, unless that is known
        already.
        """
        log = replica.log
        if log is None or replica.damage is not None or replica.id in self._urgent:
            return
        scrubbing = self._urgent[replica.id] = Scrubbing(log, max(offset, log.log_start_offset), is_urgent=True)
        self._context.effects.append(Scrub(replica.id, log, scrubbing))

    def reported(self, event: DamageReported) -> None:
        """Somebody who has compared this replica with others says that it is wrong from that offset
        on.
        """
        replica = self._replicas.get(event.id)
        if replica is None or replica.log is None or not replica.log.log_start_offset <= event.offset:
            return
        if event.offset >= replica.log.log_end_offset:
            return
        try:
            segment = replica.log.segments.reaching(event.offset)[0]
            place = segment.locate(event.offset)
        except (CorruptBatch, UnsupportedMagic):
            self.suspected(replica, event.offset)
            return
        except OSError as error:
            replica.fail(f"read: {error}")
            return
        position, offset = place[:2] if place is not None else (segment.size, event.offset)
        replica.damaged(Damage(f"{segment.path}.log{segment.suffix}", position, offset, event.reason))

    # -------------------------------------------------------------- the end of an order

    def ended(self, event: ScrubEnded, now_ms: int) -> None:
        """The shell is done with it."""
        scrubbing, log = event.scrubbing, event.log
        if scrubbing is self._current:
            self._current = None
            interval_ms = self._interval_ms(log)
            if (planned := self._due.get(event.id)) is not None and planned is self._current_plan:
                self._plan(event.id, log, now_ms + interval_ms, interval_ms)
            self._arm()
        else:
            self._urgent.pop(event.id, None)
        replica = self._replicas.get(event.id)
        if replica is None or replica.log is not log:
            return
        if event.error is not None:
            replica.fail(f"scrub: {event.error}")
            return
        damage = scrubbing.found()
        if scrubbing.damage is not None and (damage is None or scrubbing.is_urgent):
            self.hurry(event.id, now_ms)
        if damage is None and scrubbing.is_urgent:
            damage = scrubbing.of_index()
        if damage is not None:
            replica.damaged(damage)

    def check(self) -> None:
        """Raise AssertionError where the invariant is broken."""
        assert self._current is None or not self._current.is_urgent
        assert all(each.is_urgent for each in self._urgent.values())
        assert self._timer is not None or self._current is not None or not self._heap, "nobody wakes the next scrub"
