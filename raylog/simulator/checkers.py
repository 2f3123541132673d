"""What must hold in a simulated cluster, whatever happened to it: the checkers of the simulator.

Owns the memory of all that was ever promised: who led which epoch, what was below any high
watermark, what was acknowledged. It is fed by the simulation after each event with what the event
touched, and raises ``Violation``. It reads the production objects but never changes them, and draws
nothing from the random generator: a run with and without it is the same run.

What is checked, per partition::

    one replica and one incarnation lead an epoch; the epochs a process is told never go back, nor those that were committed
    a replica's high watermark stays within its log and never goes back within an epoch (except below an unclean election's leader)
    it does not rise at a leader whose ISR is smaller than the minimum, as the controller said both
    what a leader counts a follower to have, that follower has
    what is below any high watermark (``History.batches``) is the same, batch by batch, wherever it is seen again: below every other high
        watermark, in the whole log of every later leader, in what consumers read
    who joins the ISR holds all that is below any high watermark
    what the controllers have recorded is not above every high watermark
    an acknowledgement of acks=all names a batch that is below a high watermark at that moment
    an idempotent producer's batches are there in the order of their sequence numbers, none missing, none twice
    what every leader has refused is nowhere
    a log starts where it did, unless somebody deleted records or retention did
    and what clients are told of deletions, times and records holds (``answer_checks``)
    in a compacted topic a batch may have lost records, or be gone, wherever it is seen again; what is left of it is what it was, and the
        latest record of each key is in the log of every later leader; of a deleted one, that or nothing

and of a process: it takes no controller's word after that of a newer one.

An unclean election, which the controller counts, ends a history: what came before is forgiven, what
the new leader has is the truth.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from raylog.log.log import Log
from raylog.records.batch import SEQUENCE_MASK, BatchView, batches
from raylog.records.codec import light_records
from raylog.records.corrupt import CorruptBatch, UnsupportedMagic
from raylog.simulator import answer_checks, damaged_logs, offset_checks
from raylog.simulator.keyed_values import is_tombstone, key_of
from raylog.types import TopicIdPartition

if TYPE_CHECKING:
    from raylog.simulator.workload import PromisedRecords


class Violation(AssertionError):
    """A promise was broken."""


class Seen(NamedTuple):
    """One batch below a high watermark."""

    base_offset: int
    next_offset: int
    leader_epoch: int
    crc: int
    producer_id: int
    is_control: bool = False


def seen(view: BatchView) -> Seen:
    offsets, epoch = (view.base_offset, view.next_offset), view.partition_leader_epoch
    return Seen(*offsets, epoch, view.crc, view.producer_id, view.is_control)


Content = tuple[bytes | None, bytes | None, int]  # key, value and timestamp of a record


def contents(view: BatchView) -> dict[int, Content]:
    """By offset."""
    try:
        return {record.offset: (record.key, record.value, record.timestamp) for record in light_records(view)}
    except (CorruptBatch, UnsupportedMagic) as error:
        raise Violation(f"a log holds a batch that nobody can read, at {view.base_offset}: {error}") from error


def keyed(views: Iterable[BatchView]) -> Iterator[tuple[int, Content]]:
    """The records of a table, by offset. A marker's key is none of its table's."""
    return (record for view in views if not view.is_control for record in contents(view).items())


def latest_of_each(records: Iterable[tuple[int, Content]]) -> dict[bytes | None, tuple[int, Content]]:
    """By key, of records in the order of their offsets."""
    return {content[0]: (offset, content) for offset, content in records}


def read_batches(log: Log, start: int, end: int) -> list[BatchView]:
    """The log's batches from ``start``, none that begins at ``end`` or later."""
    found: list[BatchView] = []
    while start < end:
        try:
            views = list(batches(log.read(start, 1 << 20, end_offset=end).records))
        except (CorruptBatch, UnsupportedMagic) as error:
            if not damaged_logs.was_corrupted(log):
                raise Violation(f"a log is damaged where no disk has failed: {error}") from error
            start += 1  # what lies behind it is looked at all the same
            continue
        if not all(view.has_valid_crc() for view in views) and damaged_logs.was_corrupted(log):
            views = [view for view in views if view.has_valid_crc()] or views[-1:]
        if not views and log.config.compacts:
            break  # compaction has left nothing in between
        if not views:
            raise Violation(f"the log ends at {log.log_end_offset} but has nothing at {start}")
        found.extend(views)
        start = views[-1].next_offset
    return found


@dataclass(slots=True)
class ReplicaMemory:
    """What was last seen of one replica in one process."""

    leader_epoch: int = -1
    high_watermark: int = -1
    log_end_offset: int = -1
    log_start_offset: int = -1
    is_leader: bool = False
    partition_epoch: int = -1
    log: Log | None = None
    counted: dict[int, tuple[int, int]] = field(
        default_factory=dict
    )  # a leader's followers: broker → (incarnation, end)
    verified_end: int = -1  # everything from the log start to here was compared with the history


class Stamp(NamedTuple):
    """The time of one batch below a high watermark: its records' timestamp, and when it was first
    seen there.
    """

    base_offset: int
    next_offset: int
    timestamp: int
    committed_ms: int


class Copied(NamedTuple):
    """What a broker's log took in at once: ``base_offset`` up to ``next_offset``, at ``time_ms``."""

    base_offset: int
    next_offset: int
    time_ms: int


@dataclass(slots=True)
class History:
    """One partition since its creation or its last unclean election.

    ``batches`` is what was below any high watermark, by base offset; ``end`` the largest of those
    high watermarks; ``first_epoch`` the epoch that this history began with: replicas of older
    epochs have yet to hear of it.
    """

    id: TopicIdPartition
    name: str
    generation: int = 0
    first_epoch: int = -1
    start: int = 0
    end: int = 0
    reached: int = 0  # the largest high watermark; above ``end`` where nobody can read what lies between
    batches: dict[int, Seen] = field(default_factory=dict)
    sequences: dict[int, tuple[int, int]] = field(default_factory=dict)  # producer id → (epoch, last sequence)
    leaders: dict[int, tuple[int, int]] = field(default_factory=dict)  # epoch → (broker, incarnation)
    decided_end: dict[int, int] = field(default_factory=dict)  # epoch → ``end`` when it was decided
    newest_epoch: int = -1
    newest_partition_epoch: int = -1
    in_sync: dict[int, tuple[int, int]] = field(default_factory=dict)  # partition epoch → (size of the ISR, minimum)
    deletable_end: int = 0  # records below may be gone: a deletion was asked for
    deleted_end: int = 0  # records below are gone: a deletion was acknowledged
    delete_retention_ms: int = 0  # less by how much clocks were set back: whose clock is behind sets an earlier horizon
    clocks_are_set: bool = False  # somebody sets wall clocks in this run
    stamps: list[Stamp] = field(default_factory=list)  # of ``batches``, in order
    retention: bool = False
    stamps_time: bool = False  # LogAppendTime: the leader changes what the CRC covers
    compacts: bool = False
    is_coordinated: bool = False  # a coordinator writes it, in transactions with sequence 0 always, as Kafka's
    records: dict[int, Content] = field(default_factory=dict)  # of a compacted topic, by offset, without markers
    aborted: set[int] = field(default_factory=set)  # offsets of those in transactions that were aborted
    buried: dict[bytes | None, int] = field(default_factory=dict)  # keys deleted in former histories → where
    copied: dict[int, list[Copied]] = field(default_factory=dict)  # by broker, in the order of time

    def committed_ms(self, offset: int) -> int:
        """When the record at that offset was first seen below a high watermark."""
        return self.stamps[self.place_of(offset)].committed_ms

    def place_of(self, offset: int) -> int:
        """The index in ``stamps`` of the batch that has that record."""
        return bisect_right(self.stamps, offset, key=lambda stamp: stamp.base_offset) - 1

    def may_be_deleted(self, crc: int) -> bool:
        """Whether a batch with that CRC is among what somebody asked to delete."""
        return any(each.crc == crc and each.base_offset < self.deletable_end for each in self.batches.values())

    def fail(self, claim: str) -> Violation:
        return Violation(f"{self.name} ({self.id.topic_id}): {claim}")


class Checkers:
    """All histories. ``unclean_elections`` counts what the controller reported."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._controller_epochs: dict[str, int] = {}  # process → the highest whose word it took
        self.histories: dict[TopicIdPartition, History] = {}
        self.first_sequences: dict[int, int] = {}  # of the producers that do not begin with 0
        self.unclean_elections = 0

    def history(self, id: TopicIdPartition, topic: str = "?") -> History:
        known = self.histories.get(id)
        if known is None:
            known = self.histories[id] = History(id, f"{topic}-{id.partition}")
        return known

    # ---------------------------------------------------------------- decisions

    def decided(
        self,
        id: TopicIdPartition,
        topic: str,
        *,
        leader: int,
        leader_incarnation: int,
        leader_epoch: int,
        partition_epoch: int,
        unclean_elections: int,
    ) -> None:
        """The committed metadata of a partition, seen in some controller."""
        history = self.history(id, topic)
        if leader_epoch < history.newest_epoch or partition_epoch < history.newest_partition_epoch:
            raise history.fail(
                f"the committed epochs went back to {leader_epoch}/{partition_epoch} from "
                f"{history.newest_epoch}/{history.newest_partition_epoch}"
            )
        history.newest_epoch = leader_epoch
        history.newest_partition_epoch = partition_epoch
        if unclean_elections > history.generation:
            self.unclean_elections += unclean_elections - history.generation
            history.generation = unclean_elections
            history.first_epoch = leader_epoch
            history.start = history.end = history.reached = -1
            history.batches.clear()
            last = answer_checks.last_of_keys(history).items()
            history.buried.update((content[0], offset) for offset, content in last if content[1] is None)
            history.records.clear()
            history.aborted.clear()
            history.stamps.clear()
            history.deleted_end = 0
            history.sequences.clear()
            history.decided_end.clear()
        history.decided_end.setdefault(leader_epoch, history.end)
        if leader >= 0:
            self._leads(history, leader_epoch, leader, leader_incarnation)

    def obeyed(self, process: str, controller_epoch: int) -> None:
        """A process takes a controller's word: never that of an older one than it has heard of."""
        known = self._controller_epochs.get(process, 0)
        if controller_epoch < known:
            raise Violation(f"{process} took the word of controller epoch {controller_epoch} after that of {known}")
        self._controller_epochs[process] = controller_epoch

    def assigned(
        self,
        id: TopicIdPartition,
        topic: str,
        *,
        leader: int,
        leader_incarnation: int,
        leader_epoch: int,
        partition_epoch: int,
        isr_size: int,
        min_isr: int,
    ) -> None:
        """What a controller tells a replica."""
        history = self.history(id, topic)
        history.in_sync[partition_epoch] = (isr_size, min_isr)
        if leader_epoch > history.newest_epoch:
            history.newest_epoch = leader_epoch
            history.decided_end.setdefault(leader_epoch, history.end)
        if leader >= 0 and leader_incarnation:
            self._leads(history, leader_epoch, leader, leader_incarnation)

    def joined(self, id: TopicIdPartition, topic: str, broker: int, log: Log) -> None:
        """A broker's log when the decision that it is in sync was committed."""
        history = self.history(id, topic)
        if log.log_end_offset < history.end:
            raise history.fail(
                f"broker {broker} joined the ISR with end {log.log_end_offset}: {history.end} was below a high watermark"
            )

    def noted(self, id: TopicIdPartition, offset: int) -> None:
        """A high watermark in the controllers' record."""
        history = self.history(id)
        if offset > max(history.end, history.reached):
            raise history.fail(f"{offset} is recorded, above every high watermark ({history.end})")

    def _leads(self, history: History, epoch: int, broker: int, incarnation: int) -> None:
        known = history.leaders.setdefault(epoch, (broker, incarnation))
        if known != (broker, incarnation):
            raise history.fail(f"epoch {epoch} belongs to {known} and now to {(broker, incarnation)}")

    # ---------------------------------------------------------------- replicas

    def replica(
        self,
        memory: ReplicaMemory,
        id: TopicIdPartition,
        topic: str,
        log: Log,
        *,
        broker: int,
        incarnation: int,
        is_leader: bool,
        leader_epoch: int,
        partition_epoch: int,
    ) -> None:
        """One replica after an event that may have touched it."""
        high_watermark, end, start = log.high_watermark, log.log_end_offset, log.log_start_offset
        if (
            memory.high_watermark == high_watermark
            and memory.log_end_offset == end
            and memory.leader_epoch == leader_epoch
            and memory.is_leader == is_leader
            and memory.partition_epoch == partition_epoch
            and memory.log_start_offset == start
        ):
            return
        history = self.history(id, topic)
        who = f"broker {broker} (incarnation {incarnation}, epoch {leader_epoch})"
        offset_checks.replica(
            history, memory, log, who, is_leader=is_leader, leader_epoch=leader_epoch, partition_epoch=partition_epoch
        )
        became_leader = is_leader and (not memory.is_leader or leader_epoch != memory.leader_epoch)
        if is_leader:
            self._leads(history, leader_epoch, broker, incarnation)
        if 0 <= memory.log_end_offset < end:
            history.copied.setdefault(broker, []).append(Copied(memory.log_end_offset, end, self._now_ms()))
        memory.verified_end = min(memory.verified_end, end)
        memory.log = log
        memory.leader_epoch = leader_epoch
        memory.partition_epoch = partition_epoch
        memory.high_watermark = high_watermark
        memory.log_end_offset = end
        memory.log_start_offset = start
        memory.is_leader = is_leader
        if leader_epoch < history.first_epoch or (history.generation and not is_leader):
            memory.verified_end = -1
            return
        if became_leader:
            self._holds_all(history, log, leader_epoch, who)
            memory.verified_end = min(high_watermark, max(history.end, start))
        self._verify(history, memory, log, who)

    def counts(self, memory: ReplicaMemory, id: TopicIdPartition, broker: int, end: int, follower: Log) -> None:
        """A leader counts the follower ``broker`` to have all below ``end`` in its process that
        lives.
        """
        if follower.log_end_offset < end:
            raise self.history(id).fail(
                f"the leader of epoch {memory.leader_epoch} counts broker {broker} to have {end}; its log ends at "
                f"{follower.log_end_offset}"
            )

    def _holds_all(self, history: History, log: Log, leader_epoch: int, who: str) -> None:
        """A leader's log has all that was ever below a high watermark.

        A process that was paused may hear late of an epoch that is over: it has what there was when
        that epoch was decided.
        """
        end = history.end if leader_epoch == history.newest_epoch else history.decided_end.get(leader_epoch, 0)
        if end > log.log_end_offset:
            raise history.fail(f"{who} leads with end {log.log_end_offset}: {end} was below a high watermark")
        start = max(log.log_start_offset, history.start)
        for view in read_batches(log, start, end):
            self._same(history, view, who)
        if history.compacts:
            self._holds_latest(history, log, start, end, who)

    def _holds_latest(self, history: History, log: Log, start: int, end: int, who: str) -> None:
        """The latest record of each key below ``end``, or a later one of that key."""
        held = keyed(read_batches(log, start, log.log_end_offset))
        latest = latest_of_each(each for each in held if each[0] not in history.aborted)
        known = (each for each in answer_checks.lasting(history) if each[0] >= start)
        hidden = damaged_logs.hidden(log)
        for key, (offset, content) in latest_of_each(known).items():
            if offset >= end:
                continue  # it was written again, or deleted for good, behind what this log must have
            if any(first <= offset < behind for first, behind in hidden):
                continue  # it may lie where damage keeps us, and anybody else, from reading
            found, left = latest.get(key, (-1, None))
            is_lost = content[1] is not None and found < offset
            if is_lost and not answer_checks.is_undead(history, offset):
                raise history.fail(f"{who} has lost {key!r}, written last at {offset}: it has {latest.get(key)}")
            is_back = content[1] is None and found < offset and left is not None and left[1] is not None
            if is_back and not answer_checks.is_forgotten(history, offset, self._now_ms()):
                raise history.fail(f"{who} has {key!r} back from {found}, which was deleted at {offset}")

    def _verify(self, history: History, memory: ReplicaMemory, log: Log, who: str) -> None:
        """What is newly below this high watermark is what it was elsewhere, or is new and joins the
        history.
        """
        if history.end < 0:  # after an unclean election: this leader's log is the truth
            history.start = history.end = log.log_start_offset
        start = max(memory.verified_end, log.log_start_offset)
        if start >= log.high_watermark:
            return
        views = damaged_logs.as_written(log, read_batches(log, start, log.high_watermark), start, log.high_watermark)
        for view in views:
            if view.next_offset > log.high_watermark:
                raise history.fail(f"{who}: the high watermark {log.high_watermark} cuts {seen(view)}")
            straddles_start = not history.batches and view.base_offset < history.end < view.next_offset
            if view.base_offset < history.end and not straddles_start:
                self._same(history, view, who)
                continue
            if view.base_offset > history.end and history.batches and not (history.compacts and history.generation):
                raise history.fail(f"{who}: a gap, {view.base_offset} follows {history.end}")
            self._extend(history, view, who)
        memory.verified_end = log.high_watermark
        history.reached = max(history.reached, log.high_watermark)

    def _same(self, history: History, view: BatchView, who: str) -> None:
        if view.base_offset < history.start:
            return
        known = history.batches.get(view.base_offset)
        if history.compacts:
            self._is_left_of(history, known, view, who)
        elif known != seen(view):
            raise history.fail(f"{who} has {seen(view)} where {known} was below a high watermark")

    def _is_left_of(self, history: History, known: Seen | None, view: BatchView, who: str) -> None:
        """What began with an unclean election is what its leader had, who may have compacted more
        than others.
        """
        if known is None:
            if not history.generation:
                raise history.fail(f"{who} has {seen(view)}, which was never below a high watermark")
            return
        if known._replace(crc=view.crc) != seen(view):
            raise history.fail(f"{who} has {seen(view)} where {known} was below a high watermark")
        if known.crc == view.crc:
            return
        for offset, content in keyed([view]):
            was = history.records.get(offset)
            if was != content and not (was is None and history.generation):
                raise history.fail(f"{who} has {content} at {offset}, where {was} was below a high watermark")

    def _extend(self, history: History, view: BatchView, who: str) -> None:
        if not history.batches:
            history.start = view.base_offset
        history.batches[view.base_offset] = seen(view)
        history.stamps.append(Stamp(view.base_offset, view.next_offset, view.max_timestamp, self._now_ms()))
        history.end = view.next_offset
        if history.compacts:
            history.records.update(keyed([view]))
            answer_checks.note_abort(history, view)
        if view.producer_id < 0 or view.is_control:
            return
        before = history.sequences.get(view.producer_id)
        history.sequences[view.producer_id] = (view.producer_epoch, view.last_sequence)
        if before is None:
            first = self.first_sequences.get(view.producer_id, 0)
            expected = view.base_sequence if history.generation or history.start else first
        elif before[0] == view.producer_epoch and not history.is_coordinated:
            expected = before[1] + 1 & SEQUENCE_MASK
        else:
            expected = 0
            if view.producer_epoch < before[0]:
                raise history.fail(f"{who}: producer {view.producer_id} went back to epoch {view.producer_epoch}")
        ahead = view.base_sequence - expected & SEQUENCE_MASK
        if history.generation and ahead < SEQUENCE_MASK // 2:
            return  # what is missing went with the unclean election, maybe together with all that a leader knew of the producer
        if view.base_sequence != expected:
            raise history.fail(
                f"{who}: producer {view.producer_id} wrote sequence {view.base_sequence} at {view.base_offset}, "
                f"expected {expected}"
            )

    # ---------------------------------------------------------------- clients

    def acknowledged(self, id: TopicIdPartition, generation: int, base_offset: int, crc: int) -> None:
        """A producer with acks=all heard that its batch is at ``base_offset``; it was sent in that
        ``generation``.
        """
        history = self.history(id)
        if history.generation != generation or base_offset < history.start:
            return
        known = history.batches.get(base_offset)
        if known is None:
            if base_offset >= history.deletable_end:
                raise history.fail(f"acknowledged {base_offset}, but the high watermark never passed {history.end}")
        elif known.crc != crc and not history.stamps_time and not (history.compacts and history.generation):
            # What an unclean leader had is known as its cleaner had left it, and a repeat names
            # what was sent.
            raise history.fail(f"acknowledged crc {crc} at {base_offset}, where {known} is")

    def consumed(self, id: TopicIdPartition, generation: int, views: Iterable[BatchView]) -> None:
        """A consumer read these; it had asked in that ``generation``."""
        history = self.history(id)
        if history.generation != generation:
            return
        for view in views:
            if view.next_offset > history.end:
                raise history.fail(f"a consumer read {seen(view)}, above every high watermark ({history.end})")
            self._same(history, view, "a consumer's answer")

    def listed(self, id: TopicIdPartition, generation: int, offset: int) -> None:
        """A leader told a client that offset; it is no further than the last one that is committed."""
        history = self.history(id)
        if history.generation == generation and offset > history.end:
            raise history.fail(f"offset {offset} was listed, above every high watermark ({history.end})")

    def deleting(self, id: TopicIdPartition, offset: int) -> None:
        """Somebody asks to delete the records below ``offset`` (−1: all that are committed)."""
        history = self.history(id)
        history.deletable_end = max(history.deletable_end, offset if offset >= 0 else 1 << 62)

    # ---------------------------------------------------------------- the end

    def kept(self, id: TopicIdPartition, ledger: PromisedRecords, log: Log) -> None:
        """Every value that was acknowledged to acks=all is where the acknowledgement said;
        idempotent values are there once, in order.

        This reads the records themselves and trusts nothing that was noted during the run.
        """
        history = self.history(id)
        if history.compacts:
            self._holds_latest(history, log, log.log_start_offset, history.end, "the last leader")
        found: dict[int, list[int]] = {}
        prefix = f"{ledger.producer}:".encode()
        for view in read_batches(log, log.log_start_offset, log.high_watermark):
            for record in light_records(view):
                assert record.value is not None or history.compacts
                if record.value is not None and record.value.startswith(prefix):
                    found.setdefault(int(record.value.split(b":")[1]), []).append(record.offset)
        for number, (generation, offset) in ledger.acknowledged.items():
            if generation != history.generation or offset < log.log_start_offset or offset in found.get(number, ()):
                continue
            if not history.compacts or not (is_tombstone(number) or _is_replaced(history, key_of(number), offset)):
                raise history.fail(
                    f"{ledger.producer}'s value {number} was acknowledged at {offset} and is at {found.get(number)}"
                )
        if not history.generation and (refused := sorted(ledger.refused & found.keys())):
            raise history.fail(f"{ledger.producer} was refused values that are there: {refused}")
        if ledger.idempotent and not history.generation:
            may_be = ledger.may_be_twice
            twice = {number: offsets for number, offsets in found.items() if len(offsets) > 1 and number not in may_be}
            if twice:
                raise history.fail(f"{ledger.producer} has values twice: {twice}")
        # Of a value that was written twice compaction may have taken the first one.
        is_in_order = ledger.idempotent or (ledger.acks != 0 and not history.compacts)
        if history.generation == 0 and is_in_order:
            firsts = [
                offsets[-1] if number in ledger.may_be_twice else offsets[0]
                for number, offsets in sorted(found.items())
            ]
            if firsts != sorted(firsts):
                raise history.fail(f"{ledger.producer}'s values are out of order: {firsts}")

    def identical(self, id: TopicIdPartition, logs: list[tuple[int, Log]]) -> None:
        """The replicas of one partition hold the same bytes below the high watermark; of a
        compacted one, the same table.
        """
        history = self.history(id)
        start = max(log.log_start_offset for _, log in logs)
        end = min(log.high_watermark for _, log in logs)
        forgotten = self.forgotten(history)
        found = [_table(log, start, end, forgotten) if history.compacts else _bytes(log, start, end) for _, log in logs]
        for (broker, _), content in zip(logs, found, strict=True):
            if content != found[0]:
                raise history.fail(f"brokers {logs[0][0]} and {broker} differ below the high watermark {end}")

    def forgotten(self, history: History) -> set[bytes | None]:
        """The keys whose deletion a replica may have missed that was away for long."""
        last = answer_checks.last_of_keys(history)
        now_ms = self._now_ms()
        lately = {
            content[0]
            for offset, content in last.items()
            if content[1] is None and answer_checks.is_forgotten(history, offset, now_ms)
        }
        newer = {content[0] for offset, content in last.items() if offset > history.buried.get(content[0], offset)}
        return lately | (history.buried.keys() - newer)


def _bytes(log: Log, start: int, end: int) -> object:
    return b"".join(bytes(view.data) for view in read_batches(log, start, end))


def _table(log: Log, start: int, end: int, forgotten: set[bytes | None]) -> object:
    latest = latest_of_each(keyed(read_batches(log, start, end))).items()
    return {k: found for k, found in latest if found[1][1] is not None and found[0] >= start and k not in forgotten}


def _is_replaced(history: History, key: bytes, offset: int) -> bool:
    """Whether a later record of that key was below a high watermark."""
    return any(later > offset and content[0] == key for later, content in history.records.items())
