"""What a coordinator and its machine share: the moment, the timers, the replies, and the records
that are not replicated yet.

``write`` gives records to the log. The writer says what happens next: ``answered(error)`` is called
exactly once, when the records are replicated (0), when it is certain that they never will be, or
when the write has timed out (they may still be replicated then). ``settled(error)`` is called
exactly once when their fate is known, behind ``answered`` if both fall together: what a change sets
going comes after the answer to whoever asked for it. Replicated records are applied to the machine
before either. Errors are those of the log.

``ask`` puts a question to other processes. The answer goes to whoever asked, unless the leadership
has ended by then.

A marker that ends a transaction in the log stands among the pending writes, so that it is applied in
its place. Replicated records of a transaction are applied as such, and count when it is committed.

Invariants: pending writes are in log order, and so are their ends.
"""

from __future__ import annotations

import uuid
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any, Generic, Protocol, TypeVar

from kio.schema.errors import ErrorCode

from raylog.coordination.events import (
    Append,
    Applicable,
    AskOthers,
    Effect,
    EndOfTransaction,
    OfTransaction,
    OutsideAnswer,
    OutsideQuestion,
    ReplyT,
    SendCoordinatorReply,
    Transactional,
)
from raylog.timers import Timers

REQUEST_TIMED_OUT = ErrorCode.request_timed_out.value
NOT_LEADER_OR_FOLLOWER = ErrorCode.not_leader_or_follower.value
WRITE = "write"
WRITE_TIMEOUT_MS = 5_000
Outcome = Callable[[int], None]


class Keyed(Protocol):
    """A record of a compacted topic: the last one of a key is what holds."""

    @property
    def key(self) -> Hashable: ...


KeyedT = TypeVar("KeyedT", bound=Keyed)


class _PendingAppend(Generic[KeyedT]):
    """``sequence`` 0: a marker, ``end``."""

    __slots__ = ("answered", "end", "end_offset", "records", "sequence", "settled", "transactional")

    def __init__(
        self,
        sequence: int,
        records: tuple[KeyedT, ...],
        answered: Outcome | None,
        settled: Outcome,
        transactional: Transactional | None = None,
    ) -> None:
        self.sequence = sequence
        self.records = records
        self.transactional = transactional
        self.end: EndOfTransaction | None = None
        self.answered = answered
        self.settled = settled
        self.end_offset = -1

    def applied(self) -> Iterator[Applicable[KeyedT]]:
        """What is applied when it is replicated."""
        if self.end is not None:
            yield self.end
        for record in self.records:
            yield record if self.transactional is None else OfTransaction(self.transactional.producer_id, record)


def ignore(error: int) -> None:
    """For outcomes that change nothing."""


class CoordinatorContext(Generic[ReplyT, KeyedT]):
    """``position``: everything below it is applied. ``topics``: those that exist; None until the
    controller has named them.
    """

    __slots__ = (
        "_high_watermark",
        "_last_sequence",
        "_pending",
        "_pending_keys",
        "_questions",
        "effects",
        "leader_epoch",
        "now_ms",
        "position",
        "timers",
        "topics",
        "wall_ms",
    )

    def __init__(self, position: int) -> None:
        self.timers = Timers()
        self.effects: list[Effect[ReplyT, KeyedT]] = []
        self.now_ms = 0
        self.wall_ms = 0
        self.leader_epoch = -1
        self.topics: Mapping[str, uuid.UUID] | None = None
        self.position = position
        self._pending: deque[_PendingAppend[KeyedT]] = deque()
        self._pending_keys: Counter[Hashable] = Counter()
        self._questions: dict[int, Callable[[OutsideAnswer], None]] = {}
        self._last_sequence = 0
        self._high_watermark = position

    @property
    def write_timeout_ms(self) -> int:
        """How long a write may take until whoever wrote it is answered."""
        return WRITE_TIMEOUT_MS

    def reply(self, token: int, reply: ReplyT) -> None:
        self.effects.append(SendCoordinatorReply(token, reply))

    def write(
        self,
        records: tuple[KeyedT, ...],
        answered: Outcome = ignore,
        *,
        settled: Outcome = ignore,
        transactional: Transactional | None = None,
    ) -> None:
        """Put records into the log, as one batch."""
        assert records
        self._last_sequence += 1
        pending = _PendingAppend(self._last_sequence, records, answered, settled, transactional)
        self._pending.append(pending)
        self._pending_keys.update(record.key for record in records)
        self.timers.set((WRITE, pending.sequence), self.now_ms + self.write_timeout_ms)
        self.effects.append(Append(pending.sequence, self.leader_epoch, records, transactional))

    def ask(self, question: OutsideQuestion, then: Callable[[OutsideAnswer], None]) -> None:
        """Ask other processes; ``then`` takes the answer, while this leadership lasts."""
        self._last_sequence += 1
        self._questions[self._last_sequence] = then
        self.effects.append(AskOthers(self._last_sequence, question))

    def is_pending(self, key: Hashable) -> bool:
        """Whether a record of that key is on its way."""
        return key in self._pending_keys

    def pending_keys(self) -> Iterator[Any]:
        """The keys of all records on their way, each once."""
        return iter(self._pending_keys)

    def pending_records(self) -> Iterator[KeyedT]:
        """All records on their way, in the order of the log, but for those of transactions."""
        return (record for pending in self._pending if pending.transactional is None for record in pending.records)

    def pending_in_transactions(self) -> Iterator[KeyedT]:
        """Those of transactions."""
        return (record for pending in self._pending if pending.transactional is not None for record in pending.records)

    # -------------------------------------------------------------- the coordinator's side

    def appended(self, sequence: int, end_offset: int, error: int) -> None:
        """Note the result of a write. The result of one that was given up is dropped."""
        pending = next((each for each in self._pending if each.sequence == sequence), None)
        if pending is None:
            return
        if error:
            self._pending.remove(pending)
            self._settle(pending, error)
            return
        pending.end_offset = end_offset

    def marker_appended(self, end_offset: int, end: EndOfTransaction) -> None:
        """Put a marker among the writes: behind those that are appended, before the others."""
        if end_offset <= self.position:
            return
        marker: _PendingAppend[KeyedT] = _PendingAppend(0, (), None, ignore)
        marker.end, marker.end_offset = end, end_offset
        at = next((index for index, each in enumerate(self._pending) if each.end_offset < 0), len(self._pending))
        self._pending.insert(at, marker)

    def drop_replayed(self) -> None:
        """Markers below ``position`` have been applied from the log."""
        while self._pending and 0 <= self._pending[0].end_offset <= self.position:
            assert self._pending.popleft().end is not None, "a record was written before everything was applied"

    def high_watermark_rose(self, offset: int) -> None:
        self._high_watermark = max(self._high_watermark, offset)

    def complete(self, apply: Callable[[Applicable[KeyedT]], None]) -> None:
        """Apply what is replicated by now, in order, and settle it."""
        while self._pending and 0 <= self._pending[0].end_offset <= self._high_watermark:
            pending = self._pending.popleft()
            for each in pending.applied():
                apply(each)
            self.position = pending.end_offset
            self._settle(pending, 0)

    def write_timed_out(self, sequence: int) -> None:
        for pending in self._pending:
            if pending.sequence == sequence and pending.answered is not None:
                answered, pending.answered = pending.answered, None
                answered(REQUEST_TIMED_OUT)
                return

    def others_answered(self, number: int, answer: OutsideAnswer) -> None:
        then = self._questions.pop(number, None)
        if then is not None:
            then(answer)

    def give_up(self) -> None:
        """The leadership is lost: what is pending may be replicated one day or never, and this
        process will not know.
        """
        self._questions.clear()
        while self._pending:
            self._settle(self._pending.popleft(), NOT_LEADER_OR_FOLLOWER)

    def _settle(self, pending: _PendingAppend[KeyedT], error: int) -> None:
        self.timers.cancel((WRITE, pending.sequence))
        for record in pending.records:
            self._pending_keys[record.key] -= 1
            if not self._pending_keys[record.key]:
                del self._pending_keys[record.key]
        if pending.answered is not None:
            pending.answered(error)
        pending.settled(error)

    def check(self) -> None:
        """Raise AssertionError where an invariant is broken."""
        self.timers.check()
        sequences = [pending.sequence for pending in self._pending if pending.end is None]
        assert sequences == sorted(sequences), f"{sequences}"
        ends = [pending.end_offset for pending in self._pending if pending.end_offset >= 0]
        assert ends == sorted(ends) and all(end > self.position for end in ends), f"{ends} from {self.position}"
        for pending in self._pending:
            if pending.answered is not None:
                assert (WRITE, pending.sequence) in self.timers, f"write {pending.sequence} could wait for ever"
