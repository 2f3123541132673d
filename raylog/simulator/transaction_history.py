"""The history of a run's transactions, as its clients know it, for the checker of histories
(``raylog.histories``).

Owns what transactional producers sent and were told, and what readers of committed records polled.
It knows nothing of the coordinator's decisions or of any log: it is what a user's test can record.
So it finds what no other checker here was told to look for, and it tests the checker that users get.

Only records of transactions are in it. A topic that was deleted and created again is another one.
Not judged are partitions that an unclean election or damage took records from, those that are
compacted, and the loss of what was deleted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from raylog.histories import (
    Anomaly,
    AnomalyKind,
    Assign,
    EventType,
    HistoryRecorder,
    Poll,
    RecordedOperation,
    Send,
    check,
)
from raylog.log.log import Log
from raylog.records.aborted import AbortedTransaction, AbortedTransactions
from raylog.records.batch import BatchView
from raylog.records.codec import light_records
from raylog.simulator import damaged_logs
from raylog.simulator.checkers import Violation, read_batches
from raylog.types import TopicIdPartition, TopicPartition

_OF_LOSS = frozenset((AnomalyKind.LOST_WRITE, AnomalyKind.UNSEEN))
_SHOWN_MAX = 5
_EVERYTHING = 1 << 62

Polled = tuple[int, bytes]
"""Offset and value."""


def transactional_records(
    views: Iterable[BatchView], aborted: Iterable[AbortedTransaction], start: int
) -> list[Polled]:
    """The records of transactions, from ``start`` on, that a reader of committed records shows of an
    answer.
    """
    hidden = AbortedTransactions(aborted)
    shown = [view for view in views if not hidden.hides(view) and view.is_transactional and not view.is_control]
    records = (record for view in shown for record in light_records(view))
    return [(record.offset, record.value or b"") for record in records if record.offset >= start]


class TransactionHistory:
    """``holds`` says whether a partition has lost nothing but what was deleted."""

    def __init__(self, holds: Callable[[TopicIdPartition], bool]) -> None:
        self._holds = holds
        self._recorder = HistoryRecorder()
        self._names: Counter[str] = Counter()
        self._ids: dict[TopicPartition, TopicIdPartition] = {}
        self._starts: dict[TopicIdPartition, int] = {}  # of the logs, as of the end

    def process(self, name: str) -> str:
        """The name of a process that nobody else has: one after another may have the same name."""
        self._names[name] += 1
        return f"{name}.{self._names[name]}"

    def _partition(self, id: TopicIdPartition) -> TopicPartition:
        partition = TopicPartition(str(id.topic_id), id.partition)
        self._ids[partition] = id
        return partition

    # ---------------------------------------------------------------- producers

    def begun(self, process: str) -> RecordedOperation:
        """A transaction begins."""
        return self._recorder.begin(process, is_ending=False)

    def sending(
        self, transaction: RecordedOperation, id: TopicIdPartition, values: Sequence[bytes]
    ) -> Callable[[int], None]:
        """A batch is about to be sent. What is returned takes the offset of its first record, where
        it was acknowledged.
        """
        partition = self._partition(id)
        indexes = [self._recorder.add(transaction, Send(partition, value)) for value in values]

        def acknowledged(base_offset: int) -> None:
            for offset, index in enumerate(indexes, start=base_offset):
                self._recorder.locate(transaction, index, offset)

        return acknowledged

    def polled_within(
        self, transaction: RecordedOperation, id: TopicIdPartition, runs: Sequence[Sequence[Polled]]
    ) -> None:
        """The transaction is about these records, which its producer has read, without a jump in a run."""
        partition = self._partition(id)
        for records in filter(None, runs):
            self._recorder.add(transaction, Assign({partition: records[0][0]}))
            self._recorder.add(transaction, Poll({partition: records}))

    def ended(self, transaction: RecordedOperation, *, is_acknowledged: bool) -> None:
        """Its producer was answered, or goes on without it. If it never asked for a commit, there is
        none.
        """
        end = EventType.OK if is_acknowledged else EventType.INFO
        self._recorder.end(transaction, end if transaction.is_ending else EventType.FAIL)

    # ---------------------------------------------------------------- readers

    def moved(self, process: str, id: TopicIdPartition, offset: int) -> None:
        """A reader goes on from there, of its own accord."""
        moved = Assign({self._partition(id): offset})
        self._recorder.end(self._recorder.begin(process, [moved]), EventType.OK)

    def polled(self, process: str, id: TopicIdPartition, records: Sequence[Polled]) -> None:
        if records:
            poll = Poll({self._partition(id): records})
            self._recorder.end(self._recorder.begin(process, [poll]), EventType.OK)

    # ---------------------------------------------------------------- the end

    def read_at_end(self, id: TopicIdPartition, log: Log) -> None:
        """Somebody reads the whole partition, once everything is at rest."""
        if not self._holds(id) or damaged_logs.was_corrupted(log):
            return
        start, end = log.log_start_offset, log.high_watermark
        views = read_batches(log, start, end)  # the log may start amid the first
        self._starts[id] = start
        process = self.process("who reads at the end")
        self.moved(process, id, start)
        self.polled(process, id, transactional_records(views, log.transactions.aborted(start, end), start))

    def judge(self) -> Counter[str]:
        """Raises Violation for what is wrong. Returns what was checked."""
        verdict = check(self._recorder.history())
        found = [anomaly for anomaly in verdict.errors if self._counts(anomaly)]
        if found:
            more = f"\n  and {len(found) - _SHOWN_MAX} more" * (len(found) > _SHOWN_MAX)
            raise Violation("the history: " + "\n  ".join(map(str, found[:_SHOWN_MAX])) + more)
        return Counter({"operations in histories": verdict.operations, "records polled in histories": verdict.polled})

    def _counts(self, anomaly: Anomaly) -> bool:
        ids = [self._ids[record.partition] for record in anomaly.records]
        if not all(map(self._holds, ids)):
            return False
        is_deleted = (
            self._may_be_deleted(id, record.offset or 0) for id, record in zip(ids, anomaly.records, strict=True)
        )
        return anomaly.kind not in _OF_LOSS or not all(is_deleted)

    def _may_be_deleted(self, id: TopicIdPartition, offset: int) -> bool:
        return offset < self._starts.get(id, _EVERYTHING)
