"""One cleaning of one log: keep the last record of each key, as Apache Kafka's log cleaner does
[L22–L26].

It goes over the log in small steps, some of which belong into a thread and some onto the thread
that owns the log (the loop); ``step`` does one and says where the next belongs, so that whoever
drives it decides how fast it goes, and nobody waits for it::

    thread  read the dirty segments, note each key's last offset in a bounded map (``offset_map``); a full map ends the range early
    thread  flush the dirty segments: what takes the place of a record is on the disk before that goes; note how far this goes
    then for each group of segments that fit into one:
    thread  copy what stays into one new segment, its files called ``.cleaned``; flush them
    loop    rename them to ``.swap``
    thread  sync the directory: from here on a crash ends with the new segment, before it with the old ones (``recovery.tidy``)
    loop    put the new segment into the log's list, rename the old files to ``.deleted``
    thread  sync the directory: a loss of power must not bring an old one back beside the new one
    loop    rename ``.swap`` to the files' own names
    thread  remove the old files
    at last, on the loop, the cleaner point moves to the end of the range

What stays of a batch is Kafka's rule: its records that are the last of their key (tombstones until
their delete horizon) or lie above the range; its shell, empty, if it holds sequence numbers of a
producer that are remembered: Kafka keeps a producer's last batch, here the last five stay, so that
a repeat of any of them is known after a restart, too. Two more shells stay, so that nothing else
has to know of compaction: the first batch of each leader epoch, so that where an epoch starts can
always be told from the batches, by recovery and by followers; and the last batch of each new
segment, so that each segment ends where the next one begins.

Whatever cuts the log below the end of the range, or closes it, ends the cleaning (``stop``):
unfinished files go, finished ones stay. A batch that is damaged ends it with CorruptBatch. Knows no
clock: the wall time of the beginning counts throughout.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

from raylog.log.batch_cleaning import ShellDecision, cleaned
from raylog.log.cleanable import Cleanable
from raylog.log.cleaned_transactions import AbortedTransaction, AbortedTransactionSearch, CleanedTransactions
from raylog.log.config import LogConfig
from raylog.log.offset_index import ENTRY as OFFSET_ENTRY
from raylog.log.offset_index import MAX_RELATIVE_OFFSET
from raylog.log.offset_map import OffsetMap
from raylog.log.producers import ProducerStates
from raylog.log.segment import Segment
from raylog.log.time_index import ENTRY as TIME_ENTRY
from raylog.log.transactions import SUFFIX as ABORTED_SUFFIX
from raylog.records.batch import BatchView
from raylog.records.codec import LightRecord, light_records
from raylog.records.corrupt import CorruptBatch

if TYPE_CHECKING:
    from raylog.log.log import Log

STEP_BYTES = 64 << 10
"""Of batches that one step looks at: a few milliseconds of work."""


class Turn(Enum):
    """Where the next step belongs."""

    THREAD = "thread"
    LOOP = "loop"


@dataclass(slots=True)
class CleaningReport:
    """What a cleaning did, for log lines and tests. ``end_offset``: everything below is clean now."""

    end_offset: int = -1
    bytes_before: int = 0
    bytes_after: int = 0
    records_before: int = 0
    records_after: int = 0
    segments_before: int = 0
    segments_after: int = 0


@dataclass(frozen=True, slots=True)
class _Remembered:
    """Of one producer: its epoch, and the last offsets of its last batches (none: only markers are
    left of it).
    """

    epoch: int
    last_offsets: frozenset[int]


class Cleaning:
    """See the module. Made by ``Compaction.begin``. ``bytes_done`` counts what was read, for a
    limit on the rate.
    """

    def __init__(self, log: Log, part: Cleanable, wall_ms: int) -> None:
        self.report = CleaningReport()
        self.bytes_done = 0
        self.end_offset = part.first_uncleanable_offset
        self._first_dirty_offset = part.first_dirty_offset
        self._log = log
        self._files = log.files
        self._directory = log.directory
        self._config: LogConfig = replace(log.config, preallocate=False)
        self._wall_ms = wall_ms
        self._stable_end_offset = log.stable_end_offset
        self._all = [(segment, segment.size) for segment in log.segments]
        self._sources = [segment for segment in log.segments if segment.base_offset < self.end_offset]
        self._producers = _remembered(log.producers)
        self._aborted: list[AbortedTransaction] | None = None  # None: no transactional batch was met yet
        self._markers_left: tuple[int, int, set[int]] = 0, 0, set()  # of the segment that is written: from, to, where
        self._is_stopped = False
        self._guard = threading.Lock()  # held for a step: who closes the log waits for the one that is under way
        self._new: Segment | None = None  # its files are not called what they should be
        self._is_in_place = False  # the log knows the new segment
        self._old_files: list[str] = []
        self._unpaid_bytes = 0
        self._steps = self._run()

    # ------------------------------------------------------------------ the driver's side

    def step(self) -> Turn | None:
        """Do the next piece of work; None when there is none left. The first one belongs into a
        thread.

        Raises CorruptBatch where the log is damaged, OSError where the disk is; then the cleaning
        is over, and nothing is lost.
        """
        with self._guard:
            try:
                turn = None if self._is_stopped else next(self._steps, None)
            except (OSError, CorruptBatch):
                turn = None
                if not self._is_stopped:  # else what it read was cut away under it
                    self._is_stopped = True
                    raise
            finally:
                if self._is_stopped:
                    self._abandon()
            return turn

    def stop(self, *, waits: bool = False) -> None:
        """End it before it is done. On the loop; with ``waits`` in any thread, returning when no
        step is under way any more.
        """
        self._is_stopped = True
        if waits:
            with self._guard:
                self._settle()
                self._abandon()
        else:
            self._settle()

    def _settle(self) -> None:
        """Leave no new segment between two names: with the log, or not at all. The next steps in a
        thread touch none of it.
        """
        if self._new is None:
            return
        if self._is_in_place:
            self._files.sync_directory(self._directory)
            self._new.rename("")
            self._new = None
        elif self._new.suffix == ".swap":
            for path in self._new.file_names():
                self._files.remove(path)
            self._files.sync_directory(self._directory)
            self._new = None

    def _abandon(self) -> None:
        """Remove what was not finished, and what was replaced."""
        new, self._new = self._new, None
        with suppress(OSError):
            if new is not None and not self._is_in_place:
                new.rest()
                for path in new.file_names():
                    self._files.remove(path)
            self._remove_old_files()

    def _remove_old_files(self) -> None:
        for path in self._old_files:
            self._files.remove(path)
        self._old_files = []

    # ------------------------------------------------------------------ the work

    def _run(self) -> Iterator[Turn]:
        offsets = OffsetMap(
            bytes_max=self._config.cleaner_dedupe_buffer_bytes,
            keys_max=self.end_offset - self._first_dirty_offset,
            load_factor=self._config.cleaner_load_factor,
        )
        yield from self._read_dirty(offsets)
        end_offset = offsets.latest_offset + 1
        sources = [segment for segment in self._sources if segment.base_offset < end_offset]
        for segment in sources:
            if not segment.flushed:
                self._log.flushes.flush_sealed(segment)
                yield Turn.THREAD
        self._log.compaction.note_compacted()
        yield Turn.THREAD
        transactions = CleanedTransactions(self._aborted or ())
        latest_epoch = -1
        for group in self._groups(sources):
            latest_epoch = yield from self._copy(group, offsets, transactions, latest_epoch)
            yield from self._put_in_place(group)
        yield Turn.LOOP
        self.report.end_offset = end_offset
        self._log.compaction.reached(end_offset)

    def _batches(self, segment: Segment, size: int) -> Iterator[tuple[int, BatchView]]:
        """Every batch of a segment, its CRC checked, through a handle of this thread's own."""
        reader = Segment.load(self._files, self._directory, segment.base_offset)
        try:
            for position, batch in reader.scan(0, size):
                if not batch.has_valid_crc():
                    raise CorruptBatch(f"{segment.path}.log at byte {position}: a CRC does not fit", position)
                yield position, batch
        finally:
            reader.rest()

    def _is_step_done(self, size: int) -> bool:
        self.bytes_done += size
        self._unpaid_bytes += size
        if self._unpaid_bytes < STEP_BYTES:
            return False
        self._unpaid_bytes = 0
        return True

    def _read_dirty(self, offsets: OffsetMap) -> Iterator[Turn]:
        """Note the last offset of each key in the dirty part, as far as the map goes."""
        transactions: CleanedTransactions | None = None
        ends = [*(segment.base_offset for segment in self._sources[1:]), self.end_offset]
        for segment, end_offset in zip(self._sources, ends, strict=True):
            if end_offset <= self._first_dirty_offset:
                continue
            for _, batch in self._batches(segment, segment.size):
                if batch.last_offset >= self._first_dirty_offset:
                    if batch.is_transactional:
                        if transactions is None:
                            self._aborted = yield from self._find_aborted(segment)
                            transactions = CleanedTransactions(self._aborted)
                        is_passed_over = transactions.discards(batch) or batch.is_control
                    else:
                        is_passed_over = batch.is_control
                    if not is_passed_over and not self._note_keys(batch, offsets):
                        return
                    offsets.latest_offset = batch.last_offset
                if self._is_step_done(batch.size):
                    yield Turn.THREAD
            offsets.latest_offset = end_offset - 1

    def _note_keys(self, batch: BatchView, offsets: OffsetMap) -> bool:
        """False where the map is full: the records up to ``offsets.latest_offset`` are in it."""
        for record in light_records(batch):
            if record.offset >= self._first_dirty_offset:
                if record.key is not None:
                    if offsets.is_full:
                        return False
                    offsets.put(record.key, record.offset)
                offsets.latest_offset = record.offset
        return True

    def _find_aborted(self, first: Segment) -> Generator[Turn, None, list[AbortedTransaction]]:
        """The aborted transactions from that segment on up to the stable end. Their markers may lie
        behind the range.
        """
        search = AbortedTransactionSearch()
        for segment, size in self._all:
            if segment.base_offset < first.base_offset:
                continue
            for _, batch in self._batches(segment, size):
                if batch.base_offset >= self._stable_end_offset:
                    return search.found
                search.see(batch)
                if self._is_step_done(batch.size):
                    yield Turn.THREAD
        return search.found

    def _groups(self, sources: Sequence[Segment]) -> Iterator[list[Segment]]:
        """Runs of segments that fit into one, together with their indexes."""
        config = self._config
        group: list[Segment] = []
        size = offset_bytes = time_bytes = 0
        ends = [*(segment.base_offset for segment in self._sources[1:]), self.end_offset]
        for segment, end_offset in zip(sources, ends, strict=False):
            offset_index = segment.offset_index.file.count * OFFSET_ENTRY.size
            time_index = segment.time_index.file.count * TIME_ENTRY.size
            if group and (
                size + segment.size > config.segment_bytes
                or offset_bytes + offset_index > config.segment_index_bytes
                or time_bytes + time_index > config.segment_index_bytes
                or end_offset - 1 - group[0].base_offset > MAX_RELATIVE_OFFSET
            ):
                yield group
                group, size, offset_bytes, time_bytes = [], 0, 0, 0
            group.append(segment)
            size, offset_bytes, time_bytes = size + segment.size, offset_bytes + offset_index, time_bytes + time_index
        yield group

    def _copy(
        self, group: Sequence[Segment], offsets: OffsetMap, transactions: CleanedTransactions, latest_epoch: int
    ) -> Generator[Turn, None, int]:
        """Write what stays of a group into a new segment; returns the latest leader epoch seen."""
        size = sum(segment.size for segment in group)
        room = TIME_ENTRY.size * (size // max(self._config.index_interval_bytes, 1) + 2)
        new = self._new = Segment.create(
            self._files,
            self._directory,
            group[0].base_offset,
            config=replace(self._config, segment_index_bytes=room),
            wall_ms=group[-1].created_ms,
            suffix=".cleaned",
        )
        writer = _Writer(new, self._config.index_interval_bytes)
        markers, end_offset = set[int](), new.base_offset
        last = next((segment for segment in reversed(group) if segment.size), group[-1])
        for segment in group:
            for position, batch in self._batches(segment, segment.size):
                if batch.is_transactional and self._aborted is None:
                    self._aborted = yield from self._find_aborted(segment)
                    transactions = CleanedTransactions(self._aborted)
                ends_segment = segment is last and position + batch.size == segment.size
                starts_epoch = batch.partition_leader_epoch > latest_epoch
                latest_epoch = max(latest_epoch, batch.partition_leader_epoch)
                data, count = self._cleaned(
                    batch, offsets, transactions, keeps_shell=ends_segment or starts_epoch or self._is_remembered(batch)
                )
                self.report.records_before += batch.record_count
                self.report.records_after += count
                end_offset = batch.next_offset
                if data is not None:
                    writer.add(data)
                    if batch.is_control and count:
                        markers.add(batch.base_offset)
                if self._is_step_done(batch.size):
                    writer.write()
                    yield Turn.THREAD
        writer.write()
        self._keep_aborted(new, end_offset, markers)
        new.seal()
        new.flush()
        new.rest()
        report = self.report
        report.bytes_before, report.bytes_after = report.bytes_before + size, report.bytes_after + new.size
        report.segments_before, report.segments_after = report.segments_before + len(group), report.segments_after + 1
        return latest_epoch

    def _keep_aborted(self, new: Segment, end_offset: int, markers: set[int]) -> None:
        """Write the index of the aborted transactions whose markers stay."""
        self._markers_left = new.base_offset, end_offset, markers
        entries = self._log.transactions.between(new.base_offset, end_offset)
        data = b"".join(entry.encode() for entry in entries if entry.last_offset in markers)
        if data:
            self._files.write_file(new.path + ABORTED_SUFFIX + new.suffix, data, flush=False)

    def _is_remembered(self, batch: BatchView) -> bool:
        """Whether it holds what is remembered of its producer: sequence numbers that may come
        again, or at least the epoch.
        """
        known = self._producers.get(batch.producer_id)
        if known is None:
            return False
        if known.last_offsets:
            return batch.last_offset in known.last_offsets
        return batch.is_control and batch.producer_epoch == known.epoch

    def _cleaned(
        self, batch: BatchView, offsets: OffsetMap, transactions: CleanedTransactions, *, keeps_shell: bool
    ) -> tuple[bytes | memoryview | None, int]:
        if batch.base_offset > offsets.latest_offset:
            return batch.data, batch.record_count
        discards = transactions.discards(batch) if batch.is_transactional else False
        has_expired = batch.has_delete_horizon and self._wall_ms >= batch.base_timestamp
        decision = ShellDecision(
            discards_records=discards and (has_expired or not batch.is_control),
            keeps_shell=keeps_shell,
            horizon_ms=self._wall_ms + self._config.delete_retention_ms,
            ends_nothing=discards and batch.is_control,
        )
        latest, get = offsets.latest_offset, offsets.get

        def keeps(record: LightRecord) -> bool:
            if record.offset > latest:
                return True
            key = record.key
            if key is None or (record.value is None and has_expired):
                return False
            return record.offset >= get(key)

        return cleaned(batch, decision, keeps)

    def _put_in_place(self, group: Sequence[Segment]) -> Iterator[Turn]:
        new = self._new
        assert new is not None
        yield Turn.LOOP
        new.rename(".swap")
        yield Turn.THREAD
        self._files.sync_directory(self._directory)
        yield Turn.LOOP
        self._old_files = self._log.segments.exchange(group, new)
        self._log.transactions.keep(*self._markers_left)
        self._is_in_place = True
        yield Turn.THREAD
        self._files.sync_directory(self._directory)
        yield Turn.LOOP
        new.rename("")
        self._log.segments.names_changed = True
        self._new, self._is_in_place = None, False
        yield Turn.THREAD
        self._remove_old_files()


class _Writer:
    """Appends batches to a segment, some at a time."""

    def __init__(self, segment: Segment, interval_bytes: int) -> None:
        self._segment = segment
        self._interval_bytes = interval_bytes
        self._buffers: list[bytes | memoryview] = []
        self._batches: list[tuple[int, int, int, int]] = []

    def add(self, data: bytes | memoryview) -> None:
        view = BatchView(data)
        self._buffers.append(data)
        self._batches.append((view.base_offset, view.last_offset, view.size, view.max_timestamp))

    def write(self) -> None:
        if self._buffers:
            self._segment.append(self._buffers, self._batches, interval_bytes=self._interval_bytes)
            self._buffers, self._batches = [], []


def _remembered(producers: ProducerStates) -> dict[int, _Remembered]:
    return {
        state.producer_id: _Remembered(state.epoch, frozenset(batch.last_offset for batch in state.batches))
        for state in producers
    }
