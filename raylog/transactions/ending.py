"""How transactions end: by their clients, by their timeouts, by whoever fences the producer; and
what follows the decision.

Once Prepare is replicated, the leaders of the transaction's partitions are asked to write its
markers, again and again until each of them has. Partitions whose topic was deleted are left out.
Then Complete is written. A marker may be written twice: the partition's leader knows it by producer
id, epoch and coordinator epoch. A new leader of ``__transaction_state`` begins anew with whatever
it finds prepared.

Owns the deadlines TIMEOUT (of a transaction that is under way) and MARKERS (the next attempt).

Invariants, while this process leads: what is prepared is in ``_endings`` as soon as that is
replicated; what is under way has a deadline.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from kio.schema.errors import ErrorCode

from raylog.coordination.events import OutsideAnswer
from raylog.transactions import transaction
from raylog.transactions.context import TransactionContext
from raylog.transactions.participants import joined
from raylog.transactions.records import TransactionKey, TransactionRecord, TransactionState, TransactionValue
from raylog.transactions.requests import MarkersWritten, WriteMarkers
from raylog.transactions.transaction import PREPARED
from raylog.types import TopicPartition

logger = logging.getLogger("raylog.transactions")

TIMEOUT, MARKERS = "timeout", "markers"
RETRY_MS_MIN, RETRY_MS_MAX = 20, 1_000
_NEEDS_NO_MARKER = frozenset(
    (
        0,
        # The partition has seen a later epoch of this producer: the transaction has ended there.
        ErrorCode.invalid_producer_epoch.value,
        ErrorCode.unsupported_for_message_format.value,
    )
)


@dataclass(slots=True)
class _Ending:
    """``missing``: the partitions that have not confirmed their marker."""

    missing: set[TopicPartition]
    attempts: int = 0
    is_asking: bool = False


class Endings:
    """``on_complete`` is called with each transactional id whose transaction has ended."""

    __slots__ = ("_context", "_endings", "_on_complete")

    def __init__(self, context: TransactionContext, on_complete: Callable[[str], None]) -> None:
        self._context = context
        self._on_complete = on_complete
        self._endings: dict[str, _Ending] = {}

    # -------------------------------------------------------------- a leadership

    def began(self) -> None:
        """Go on with all that is prepared, and watch over all that is under way."""
        for transactional_id, value in self._context.image.items():
            if value.state in PREPARED:
                self._end(transactional_id, value)
            elif value.state is TransactionState.ONGOING:
                self.watch(transactional_id)

    def ended(self) -> None:
        self._endings.clear()

    # -------------------------------------------------------------- timeouts

    def watch(self, transactional_id: str) -> None:
        """The transaction that is under way has the time that its producer asked for. If several
        write in it, that is the time in which its owner has to be heard of (``keep``).
        """
        context = self._context
        value = context.image[transactional_id]
        left_ms = max(0, min(value.timeout_ms, value.start_timestamp + value.timeout_ms - context.wall_ms))
        if value.participants:
            left_ms = value.timeout_ms
        if (TIMEOUT, transactional_id) not in context.timers:
            context.timers.set((TIMEOUT, transactional_id), context.now_ms + left_ms)

    def keep(self, transactional_id: str, value: TransactionValue) -> None:
        """The owner of a transaction of several producers has been heard of."""
        if value.participants and (TIMEOUT, transactional_id) in self._context.timers:
            self._context.timers.set((TIMEOUT, transactional_id), self._context.now_ms + value.timeout_ms)

    def _timed_out(self, transactional_id: str) -> None:
        context = self._context
        value = context.image.get(transactional_id)
        if value is None or value.state is not TransactionState.ONGOING:
            return
        if context.is_changing(transactional_id):
            context.timers.set((TIMEOUT, transactional_id), context.now_ms + RETRY_MS_MAX)
            return
        logger.info("transaction %r is aborted: its %d ms are over", transactional_id, value.timeout_ms)
        record = self.fencing(transactional_id, value)
        context.write((record,), settled=partial(self._expired, transactional_id))

    def _expired(self, transactional_id: str, error: int) -> None:
        self._context.counts.timed_out += not error
        self.fenced(transactional_id, error)

    def fencing(self, transactional_id: str, value: TransactionValue) -> TransactionRecord:
        """The record that aborts what is under way, and fences its producer."""
        decision = transaction.prepared(
            value, commits=False, raises_epoch=True, version=value.client_version, wall_ms=self._context.wall_ms
        )
        return TransactionRecord(TransactionKey(transactional_id), decision)

    def fenced(self, transactional_id: str, error: int) -> None:
        """The fate of such a record is known. Where it was not written, the next look comes soon."""
        if error:
            self._context.timers.set((TIMEOUT, transactional_id), self._context.now_ms + RETRY_MS_MAX)
            return
        self._context.last_epochs.pop(transactional_id, None)
        self.decided(transactional_id, 0)

    # -------------------------------------------------------------- markers

    def decided(self, transactional_id: str, error: int) -> None:
        """The fate of a Prepare record is known."""
        value = self._context.image.get(transactional_id)
        if error or value is None or value.state not in PREPARED:
            return
        self._context.timers.cancel((TIMEOUT, transactional_id))
        commits = value.state is TransactionState.PREPARE_COMMIT
        self._context.counts.committed += commits
        self._context.counts.aborted += not commits
        self._end(transactional_id, value)

    def _end(self, transactional_id: str, value: TransactionValue) -> None:
        self._endings[transactional_id] = _Ending(set(value.partitions))
        self._go_on(transactional_id)

    def _go_on(self, transactional_id: str) -> None:
        ending = self._endings.get(transactional_id)
        if ending is None or ending.is_asking or self._context.is_changing(transactional_id):
            return
        topics = self._context.topics
        if topics is not None:
            ending.missing = {each for each in ending.missing if each.topic in topics}
        value = self._context.image[transactional_id]
        if not ending.missing:
            self._complete(transactional_id, value)
            return
        ending.attempts += 1
        ending.is_asking = True
        question = WriteMarkers(
            value.producer_id,
            value.producer_epoch,
            value.state is TransactionState.PREPARE_COMMIT,
            self._context.leader_epoch,
            value.client_version,
            tuple(sorted(ending.missing)),
            joined(value),
        )
        self._context.ask(question, partial(self._answered, transactional_id))

    def _answered(self, transactional_id: str, answer: OutsideAnswer) -> None:
        assert isinstance(answer, MarkersWritten), answer
        ending = self._endings[transactional_id]
        ending.is_asking = False
        failed = {partition for partition, error in answer.errors if error not in _NEEDS_NO_MARKER}
        ending.missing -= {partition for partition, _ in answer.errors} - failed
        if ending.missing:
            self._later(transactional_id, ending)
        else:
            self._go_on(transactional_id)

    def _later(self, transactional_id: str, ending: _Ending) -> None:
        pause_ms = min(RETRY_MS_MAX, RETRY_MS_MIN << min(ending.attempts - 1, 10))
        self._context.timers.set((MARKERS, transactional_id), self._context.now_ms + pause_ms)

    def _complete(self, transactional_id: str, value: TransactionValue) -> None:
        record = TransactionRecord(
            TransactionKey(transactional_id), transaction.completed(value, self._context.wall_ms)
        )
        self._context.write((record,), settled=partial(self._completed, transactional_id))

    def _completed(self, transactional_id: str, error: int) -> None:
        ending = self._endings.get(transactional_id)
        if ending is None:
            return
        if error:
            ending.attempts += 1
            self._later(transactional_id, ending)
        else:
            del self._endings[transactional_id]
            self._on_complete(transactional_id)

    # -------------------------------------------------------------- time

    def timer_fired(self, name: tuple[object, ...]) -> None:
        kind, transactional_id = name
        assert isinstance(transactional_id, str), name
        if kind == TIMEOUT:
            self._timed_out(transactional_id)
        else:
            assert kind == MARKERS, name
            self._go_on(transactional_id)

    def check(self, *, leads: bool) -> None:
        """Raise AssertionError where an invariant is broken."""
        context = self._context
        if not leads:
            assert not self._endings, f"{list(self._endings)} end without a leader"
            return
        for transactional_id, value in context.image.items():
            ending = self._endings.get(transactional_id)
            assert (ending is not None) == (value.state in PREPARED), f"{transactional_id}: {value} and {ending}"
            is_waiting = (MARKERS, transactional_id) in context.timers or context.is_changing(transactional_id)
            assert ending is None or ending.is_asking or is_waiting, f"{transactional_id} could stay prepared for ever"
            if value.state is TransactionState.ONGOING:
                is_timed = (TIMEOUT, transactional_id) in context.timers or context.is_changing(transactional_id)
                assert is_timed, f"{transactional_id} could be under way for ever"
