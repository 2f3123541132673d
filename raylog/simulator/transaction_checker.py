"""What must hold of transactions in a simulated cluster, whatever happened to it.

Owns what clients began and what the coordinator decided (``KnownTransaction``), and for each
partition the transactions as they stand in it, read once, batch by batch, when a batch is first seen
below a high watermark (``PartitionTransactions``). It is fed by the observer after each event, by
producers and by who reads committed records only, and raises ``Violation``. It draws nothing and
changes no production object.

What is checked, per partition, of its first history (an unclean election forgives the rest)::

    a batch of a transaction is there only if the coordinator had taken the partition in, and not behind the end of it
    the batches of one transaction are there in order, none twice, and none of another in between
    a marker says what the coordinator decided; of a commit all that was acknowledged stands before it
    a marker is not repeated, and none of an older coordinator follows that of a newer one
    a replica's last stable offset is where the first transaction begins that has not ended below its high watermark
    who reads committed records only is shown those of committed transactions and of no other, by leaders and by followers
    at the end no transaction is open
    what copiers copy within transactions is there once and in order (``copy_checker``)
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from raylog.log.log import Log
from raylog.records.batch import BatchView
from raylog.records.codec import light_records
from raylog.records.control import ControlRecord, Marker, read_control_batch
from raylog.simulator import damaged_logs
from raylog.simulator.checkers import History, read_batches
from raylog.simulator.copy_checker import Chain
from raylog.types import TopicIdPartition

if TYPE_CHECKING:
    from raylog.simulator.checkers import Checkers


class TransactionName(NamedTuple):
    transactional_id: str
    number: int


@dataclass(slots=True)
class KnownTransaction:
    """``partitions`` are those that the coordinator took in, ``marked`` those of them whose marker was
    acknowledged; ``commits`` is what it decided. ``acknowledged``: how many batches of each partition.
    ``participants``: where several producers write in it, each has a transaction of its own here, with the
    same partitions.
    """

    name: TransactionName
    producer_id: int
    producer_epoch: int
    partitions: set[TopicIdPartition] = field(default_factory=set)
    marked: set[TopicIdPartition] = field(default_factory=set)
    commits: bool | None = None
    acknowledged: dict[TopicIdPartition, int] = field(default_factory=dict)
    participants: list[KnownTransaction] = field(default_factory=list)


@dataclass(slots=True)
class Span:
    """A transaction in one partition. ``end``: its marker's offset. ``contents``: the values behind the
    first of each batch, which names the transaction.
    """

    transaction: KnownTransaction
    offsets: list[int] = field(default_factory=list)
    contents: list[bytes] = field(default_factory=list)
    end: int | None = None

    @property
    def batches(self) -> int:
        return len(self.offsets)

    def first_offset(self, start: int) -> int | None:
        """Of its batches from ``start`` on."""
        return next((offset for offset in self.offsets if offset >= start), None)


@dataclass(slots=True)
class PartitionTransactions:
    """``read_end``: all below is taken in. ``open`` by producer id; ``last_marker`` is there while the
    producer has written nothing behind it. ``is_late``: a damaged replica was passed over, so what is
    below a high watermark may be taken in later than clients hear of it.
    """

    read_end: int = 0
    is_late: bool = False
    spans: list[Span] = field(default_factory=list)
    at: dict[int, Span] = field(default_factory=dict)  # of each batch, by base offset
    open: dict[int, Span] = field(default_factory=dict)
    last_marker: dict[int, tuple[int, int]] = field(default_factory=dict)  # producer and coordinator epoch
    coordinator_epochs: dict[int, int] = field(default_factory=dict)


def value_of(name: TransactionName, number: int) -> bytes:
    """That of the records of the transaction's batch ``number`` in a partition."""
    return f"{name.transactional_id}/{name.number}/{number}".encode()


def _read_value(value: bytes | None) -> tuple[TransactionName, int]:
    assert value is not None
    transactional_id, number, batch = value.decode().split("/")
    return TransactionName(transactional_id, int(number)), int(batch)


class TransactionChecker:
    def __init__(self, checkers: Checkers) -> None:
        self._checkers = checkers
        self.coordinator_has_lost: Callable[[], bool] = lambda: False  # decisions: then nothing is known any more
        self._known: dict[TransactionName, KnownTransaction] = {}
        self._newest: dict[tuple[str, int], KnownTransaction] = {}  # by transactional id and epoch
        self._chains: list[Chain] = []
        self._partitions: dict[TopicIdPartition, PartitionTransactions] = {}

    def begun(self, name: TransactionName, producer_id: int, producer_epoch: int) -> KnownTransaction:
        assert name not in self._known, name
        transaction = self._known[name] = KnownTransaction(name, producer_id, producer_epoch)
        self._newest[name.transactional_id, producer_epoch] = transaction
        return transaction

    def joined(
        self, name: TransactionName, owner: KnownTransaction, producer_id: int, producer_epoch: int
    ) -> KnownTransaction:
        """What a participant writes in the owner's transaction. If that is decided, nobody counts it."""
        transaction = self.begun(name, producer_id, producer_epoch)
        transaction.partitions, transaction.marked = owner.partitions, owner.marked
        transaction.commits = None if owner.commits is None else False
        owner.participants.append(transaction)
        return transaction

    def newest(self, transactional_id: str, producer_epoch: int) -> KnownTransaction:
        """The last one that was begun under that id, in that epoch."""
        return self._newest[transactional_id, producer_epoch]

    def holds(self, id: TopicIdPartition) -> bool:
        """Whether what is said here holds for that partition."""
        history = self._checkers.histories.get(id)
        is_whole = history is not None and not history.compacts and not history.generation
        return is_whole and not self.coordinator_has_lost()

    def still_open(self, transaction: KnownTransaction) -> list[TopicIdPartition]:
        """Where it has begun and not ended, of the partitions of which all was seen that is below a high
        watermark.
        """
        return [
            id
            for id, known in self._partitions.items()
            if any(span.transaction is transaction for span in known.open.values())
            and self.holds(id)
            and self.has_seen(id)
        ]

    def has_seen(self, id: TopicIdPartition) -> bool:
        """Whether all is taken in that is below a high watermark. Damage may delay that."""
        known = self._partitions.get(id)
        return known is not None and known.read_end == self._checkers.history(id).end

    # ---------------------------------------------------------------- chains

    def begin_chain(
        self,
        transactional_id: str,
        source: TopicIdPartition,
        target: TopicIdPartition,
        positions: TopicIdPartition | None,
        *,
        offsets: TopicIdPartition | None = None,
    ) -> Chain:
        """From where the source's log ends now. Either some partition has positions, or offsets."""
        assert (positions is None) is not (offsets is None), (positions, offsets)
        start = self._partitions.setdefault(source, PartitionTransactions()).read_end
        chain = Chain(len(self._chains), transactional_id, source, target, positions, start, offsets)
        for id in chain.ids:
            self._partitions.setdefault(id, PartitionTransactions())
        self._chains.append(chain)
        return chain

    def has_lost_offsets(self, chain: Chain) -> bool:
        return chain.offsets is not None and bool(self._checkers.history(chain.offsets).generation)

    def _holds_all(self, chain: Chain) -> bool:
        return all(map(self.holds, chain.ids)) and not self.has_lost_offsets(chain)

    def is_whole(self, chain: Chain) -> bool:
        """Whether what is said of chains holds for it, and all was seen that is below a high watermark."""
        return self._holds_all(chain) and all(map(self.has_seen, chain.ids))

    # ---------------------------------------------------------------- replicas

    def replica(self, id: TopicIdPartition, log: Log, who: str) -> None:
        """A replica after an event; the checkers of the log have seen it."""
        if not self.holds(id):
            return
        history = self._checkers.history(id)
        known = self._partitions.setdefault(id, PartitionTransactions())
        if damaged_logs.was_corrupted(log):
            known.is_late = True
            return
        end = min(log.high_watermark, history.end)
        if log.log_start_offset <= known.read_end < end:
            for view in read_batches(log, known.read_end, end):
                self._read(history, known, view)
                known.read_end = view.next_offset
        for chain in self._chains:
            if chain.source == id:
                chain.source_start = max(chain.source_start, log.log_start_offset)
        if log.high_watermark <= known.read_end and known.spans:
            # Of what was deleted before it was copied a follower knows nothing.
            start, high_watermark = log.log_start_offset, log.high_watermark
            least, greatest = (max(start, _stable_end(known, since, high_watermark)) for since in (0, start))
            if not least <= log.stable_end_offset <= greatest:
                raise history.fail(
                    f"{who} is stable up to {log.stable_end_offset}, high watermark {high_watermark}; it is {greatest}"
                )

    def _read(self, history: History, known: PartitionTransactions, view: BatchView) -> None:
        if view.is_control:
            self._ends(history, known, view.base_offset, read_control_batch(view))
            return
        if view.is_transactional:
            self._writes(history, known, view)
        for chain in self._chains:
            if chain.source == history.id:
                span = known.at.get(view.base_offset)
                chain.values |= {record.offset: (record.value or b"", span) for record in light_records(view)}

    def _writes(self, history: History, known: PartitionTransactions, view: BatchView) -> None:
        first, *others = light_records(view)
        name, number = _read_value(first.value)
        transaction = self._known[name]
        where = f"batch {number} of {name} at {view.base_offset}"
        if history.id not in transaction.partitions:
            raise history.fail(f"{where}: its coordinator had not taken the partition in")
        if history.id in transaction.marked and not known.is_late:
            raise history.fail(f"{where}: the transaction has ended here")
        span = known.open.get(view.producer_id)
        if span is None:
            span = known.open[view.producer_id] = Span(transaction)
            known.spans.append(span)
        elif span.transaction is not transaction:
            raise history.fail(f"{where}: {span.transaction.name} is open")
        if number != span.batches:
            raise history.fail(f"{where}: batch {span.batches} was next")
        span.offsets.append(view.base_offset)
        span.contents += [record.value or b"" for record in others]
        known.at[view.base_offset] = span
        known.last_marker.pop(view.producer_id, None)

    def _ends(self, history: History, known: PartitionTransactions, offset: int, record: ControlRecord) -> None:
        producer_id, epochs = record.producer_id, (record.producer_epoch, record.coordinator_epoch)
        if known.last_marker.get(producer_id) == epochs and not history.clocks_are_set:
            raise history.fail(f"the marker at {offset} repeats the last one of producer {producer_id}: {epochs}")
        if record.coordinator_epoch < known.coordinator_epochs.get(producer_id, -1):
            raise history.fail(
                f"the marker at {offset} is of coordinator epoch {record.coordinator_epoch}, which is over"
            )
        known.last_marker[producer_id] = epochs
        known.coordinator_epochs[producer_id] = record.coordinator_epoch
        span = known.open.pop(producer_id, None)
        if span is None:
            return
        span.end = offset
        transaction = span.transaction
        if transaction.commits is None or transaction.commits != (record.marker is Marker.COMMIT):
            raise history.fail(f"the marker at {offset} is of {transaction.name}: commits is {transaction.commits}")
        acknowledged = transaction.acknowledged.get(history.id, 0)
        if transaction.commits and acknowledged > span.batches:
            raise history.fail(f"{transaction.name} has {span.batches} batches here; {acknowledged} were acknowledged")
        for chain in self._chains:
            is_its_own = transaction.commits and chain.is_written_by(transaction.name.transactional_id)
            if is_its_own and history.id != chain.source and history.id in chain.ids and self._holds_all(chain):
                chain.committed(history, span.contents)
                chain.check(history, self._partitions[chain.source].read_end)

    def at_end_of_chain(self, chain: Chain) -> None:
        target = self._checkers.history(chain.target)
        chain.check(target, self._partitions[chain.source].read_end)
        chain.at_end(target)

    # ---------------------------------------------------------------- reading

    def was_read(
        self, id: TopicIdPartition, views: Sequence[BatchView], aborted: Sequence[tuple[int, int]], who: str
    ) -> int:
        """Somebody who reads committed records only was given these batches and the list of aborted
        transactions. How many batches of transactions were shown.
        """
        if not self.holds(id):
            return 0
        history = self._checkers.history(id)
        known = self._partitions.get(id, PartitionTransactions())
        visible = _visible(views, aborted)
        for view in views:
            if view.next_offset > known.read_end or not view.is_transactional or view.is_control:
                continue
            span = known.at.get(view.base_offset)
            # Behind what was read there may be a marker that only a replica with damage has.
            if span is None or (span.end is None and known.read_end == history.end):
                raise history.fail(f"{who} was given {view.base_offset}, of a transaction that has not ended")
            if span.transaction.commits != (view.base_offset in visible):
                shown = "was" if view.base_offset in visible else "was not"
                raise history.fail(f"{who} {shown} shown {view.base_offset} of {span.transaction.name}: {aborted}")
        return len(visible)

    # ---------------------------------------------------------------- the end

    def at_end(self, id: TopicIdPartition, log: Log) -> None:
        """Nothing is open, and who reads committed records only gets those of each committed
        transaction.
        """
        history = self._checkers.history(id)
        if self.coordinator_has_lost():
            return
        is_open = log.stable_end_offset != log.high_watermark or log.producers.first_open_transaction_offset is not None
        # An unclean election takes markers, too. Nobody writes them again, as in Kafka; people end what hangs.
        if is_open and not history.generation:
            raise history.fail(
                f"a transaction is open at the end, from {log.producers.first_open_transaction_offset} on"
            )
        known = self._partitions.get(id)
        if known is None or not self.holds(id) or damaged_logs.was_corrupted(log):
            return
        start = log.log_start_offset
        views = [view for view in read_batches(log, start, log.high_watermark) if view.base_offset >= start]
        self.was_read(id, views, log.transactions.aborted(start, log.high_watermark), "who reads at the end")
        for transaction in self._known.values():
            acknowledged = transaction.acknowledged.get(id, 0)
            found = sum(span.batches for span in known.spans if span.transaction is transaction)
            if transaction.commits and found != acknowledged:
                raise history.fail(f"{transaction.name}: {found} batches are here, {acknowledged} were acknowledged")


def _stable_end(known: PartitionTransactions, start: int, high_watermark: int) -> int:
    """Of a log that has the batches from ``start`` on."""
    lasting = (span for span in known.spans if span.end is None or span.end >= high_watermark)
    firsts = (first for span in lasting if (first := span.first_offset(start)) is not None)
    return min((first for first in firsts if first < high_watermark), default=high_watermark)


def _visible(views: Sequence[BatchView], aborted: Sequence[tuple[int, int]]) -> set[int]:
    """The base offsets of batches of transactions that a client shows, as Kafka's do."""
    ahead = [(first_offset, producer_id) for producer_id, first_offset in aborted]
    if ahead != sorted(ahead, key=lambda each: each[0]):
        raise AssertionError(f"the list of aborted transactions is not in order: {aborted}")
    hidden: set[int] = set()
    visible: set[int] = set()
    for view in views:
        while ahead and ahead[0][0] < view.next_offset:
            hidden.add(heapq.heappop(ahead)[1])
        if view.is_control:
            if read_control_batch(view).marker is Marker.ABORT:
                hidden.discard(view.producer_id)
        elif view.is_transactional and view.producer_id not in hidden:
            visible.add(view.base_offset)
    return visible
