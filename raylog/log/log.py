"""One replica's log: Apache Kafka's files in one directory, written by one process.

Owns the segments, the offsets (start, end, high watermark, recovery point), the leader epochs and the producers' states, and keeps
them in step: an append is validated and judged first, then written, and only then counted, so whatever raises leaves the log as it
was. Offsets and leader epoch are stamped into 16 bytes before each batch; the rest of a batch goes from the request's buffer to the
page cache untouched. Knows nothing of replication, clocks or networks: times come in as arguments, the high watermark is what the
replica says.

Directory (beside each segment's ``.log``, ``.index``, ``.timeindex``)::

    <offset>.snapshot         producers' states                  raylog/log/producers.py
    leader-epoch-checkpoint   where each leader epoch starts     raylog/log/leader_epochs.py
    partition.metadata        topic id                           raylog/log/partition_metadata.py
    replica.checkpoint        raylog's own facts                 raylog/log/checkpoint.py
    compaction.checkpoint     what may have been compacted       raylog/log/compaction.py
    replica.lock              held for the log's life

Threads: everything in one, except ``flush``, ``flush_rolled``, ``checkpoint_in_thread``, ``delete_renamed_files`` and the steps of a
cleaning that say so, which may run in others while the log is written.

Invariants (``check``): log_start_offset ≤ high_watermark ≤ log_end_offset; recovery_point ≤ log_end_offset; no leader epoch starts
behind the end; the producers' states are as of the end.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Container, Sequence

from raylog.errors import KafkaError
from raylog.log import cutting
from raylog.log.checkpoint_file import CheckpointFile
from raylog.log.compaction import Compaction
from raylog.log.config import LogConfig
from raylog.log.files import Buffer, Files, Lock
from raylog.log.flushes import Flushes
from raylog.log.offset_index import MAX_RELATIVE_OFFSET
from raylog.log.open_files import OpenFiles
from raylog.log.opening import Opened, note, opened
from raylog.log.recent_appends import RecentAppends
from raylog.log.record_validation import CheckedRecords, own_batch, sound_batch, storable
from raylog.log.removal import finish_removal, rename_for_removal
from raylog.log.results import AppendResult, Found, LogSlice, OffsetOutOfRange, RecordListTooLarge
from raylog.log.retention import delete_old_segments
from raylog.log.segments import Segments
from raylog.log.time_index import NO_TIMESTAMP
from raylog.log.time_search import first_at_or_after, latest_in_time
from raylog.log.validation import validated
from raylog.records.batch import (
    STAMP_SIZE,
    TRANSACTIONAL_MASK,
    BatchView,
    TimestampType,
    batches,
    stamped_batch,
    stamped_header,
)
from raylog.records.corrupt import CorruptBatch
from raylog.types import Condition

_OPEN_SEGMENTS_OF_ONE = 8  # of a log that shares its open files with no other


class Log:
    """See the module. Made by ``Log.open``."""

    __slots__ = (
        "_lock",
        "_open_files",
        "boot_id",
        "checkpoint_file",
        "compaction",
        "config",
        "directory",
        "files",
        "flushed_always",
        "flushes",
        "high_watermark",
        "is_proven",
        "is_suspect",
        "leader_epochs",
        "log_end_offset",
        "log_start_offset",
        "producers",
        "recent",
        "recovery",
        "segments",
        "snapshots",
        "topic_id",
        "transactions",
        "where",
    )

    @classmethod
    def open(
        cls,
        directory: str,
        *,
        files: Files,
        config: LogConfig,
        topic: str,
        partition: int,
        topic_id: uuid.UUID,
        now_ms: int,
        boot_id: str,
        roll_jitter: Callable[[int], int] | None = None,
        open_files: OpenFiles | None = None,
    ) -> Log:
        """Open a replica's folder: create, take as it is after a clean stop, or recover. ``now_ms`` is the wall clock.

        ``roll_jitter`` draws a number from 0 to its argument for each new segment (``segment.jitter.ms``); None: no jitter.
        A folder without ``replica.checkpoint``, such as Apache Kafka's, is recovered. A folder of another topic id is set aside as
        ``-stray``. ``open_files``: what all logs share that are written by the same thread; None: this one has its own.
        An open log holds no file but its lock until it is used.

        Raises DiskError for a folder that is locked, cannot be written or is of a newer version, TooManyLogs without a descriptor to spare.
        """
        directory = str(directory)
        open_files = open_files if open_files is not None else OpenFiles(_OPEN_SEGMENTS_OF_ONE)
        open_files.log_opened()
        try:
            found = opened(
                directory,
                files=files,
                config=config,
                topic_id=topic_id,
                wall_ms=now_ms,
                boot_id=boot_id,
            )
        except BaseException:
            open_files.log_closed()
            raise
        try:
            where = f"{topic}-{partition}"
            log = cls(found, files, directory, config, topic_id, boot_id, where, now_ms, roll_jitter, open_files)
            log._make_durable(found)
        except BaseException:
            found.lock.close()
            open_files.log_closed()
            raise
        return log

    def __init__(
        self,
        found: Opened,
        files: Files,
        directory: str,
        config: LogConfig,
        topic_id: uuid.UUID,
        boot_id: str,
        where: str,
        wall_ms: int,
        roll_jitter: Callable[[int], int] | None,
        open_files: OpenFiles,
    ) -> None:
        self.files = files
        self.directory = directory
        self.config = config
        self.topic_id = topic_id
        self.boot_id = boot_id
        self.where = where
        self._lock: Lock | None = found.lock
        self._open_files = open_files
        self.recovery = found.report
        self.segments = Segments(files, directory, found.segments, roll_jitter=roll_jitter, open_files=open_files)
        self.segments.active.roll_jitter_ms = self.segments.draw_jitter(config)
        self.leader_epochs = found.epochs
        self.producers = found.producers
        self.snapshots = found.snapshots
        self.transactions = found.transactions
        self.log_start_offset = found.log_start_offset
        self.log_end_offset = found.log_end_offset
        self.high_watermark = found.high_watermark
        self.flushes = Flushes(
            self,
            recovery_point=found.recovery_point,
            cut_is_unflushed=found.report.cut_bytes > 0,
            wall_ms=wall_ms,
        )
        self.compaction = Compaction(self, found.cleaner_point, found.compacted_end)
        self.checkpoint_file = CheckpointFile(self)
        self.is_suspect = found.report.condition in (Condition.SUSPECT, Condition.MISSING)
        self.is_proven = found.report.condition is Condition.CLEAN  # else a clean close would hide what may be lost
        self.flushed_always = config.flush_messages == 1
        self.recent = RecentAppends()

    def _make_durable(self, found: Opened) -> None:
        """End an opening: what it found and made survives a loss of power.

        The first checkpoint of an empty log is not flushed: without one, the next opening trusts the log no more than with this one.
        The folder's own name comes last, when its journal is most likely written already: many logs are made at once, and a disk
        that others use is slow to flush.
        """
        is_empty = found.report.condition is Condition.MISSING
        self.checkpoint(flush=not is_empty)
        if is_empty:
            self.files.sync_directory(self.directory)
        if found.is_new_folder:
            self.files.sync_directory(os.path.dirname(self.directory))

    # ------------------------------------------------------------------ facts

    @property
    def condition(self) -> Condition:
        """What was found when the log was opened; it does not change afterwards."""
        return self.recovery.condition

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self.segments)

    @property
    def unflushed_messages(self) -> int:
        return self.log_end_offset - self.recovery_point

    @property
    def recovery_point(self) -> int:
        """Everything below survives a loss of power."""
        return self.flushes.recovery_point

    @property
    def stable_end_offset(self) -> int:
        """Everything below is final: committed, and of no transaction that is open. Never below the log's start."""
        return max(self.log_start_offset, self.transactions.stable_end(self.high_watermark))

    @property
    def has_rolled_unflushed(self) -> bool:
        """Whether a sealed segment waits for ``flush_rolled``."""
        return self.segments.active.base_offset > self.recovery_point

    # ------------------------------------------------------------------ appending

    def append_as_leader(
        self,
        records: Buffer,
        *,
        leader_epoch: int,
        wall_ms: int,
        from_coordinator: bool = False,
        confirmed: Container[int] = (),
        is_followed: bool = False,
        checked: CheckedRecords | None = None,
    ) -> AppendResult:
        """Append a producer's batches, all or none. Raises the KafkaError that the producer shall get, or OSError.

        ``from_coordinator``: this process's own, whose sequences don't count. ``confirmed``: producers whose transactions begin here
        by leave of their coordinator.
        ``checked`` is what a thread found of these records; it counts unless the configuration has changed since.
        ``is_followed``: other replicas will fetch it soon, so it is kept in memory until the high watermark has passed it.
        """
        config = self.config
        stamps_time = config.timestamp_type == TimestampType.LOG_APPEND_TIME
        if checked is None:
            sound = own_batch(records, config) if from_coordinator else sound_batch(records, config, wall_ms)
            if sound is not None:
                return self.append_sound(sound, leader_epoch, wall_ms, is_followed)
        try:
            views = validated(records, config=config, where=self.where, from_coordinator=from_coordinator)
            earlier = self.producers.judge(views, where=self.where, confirmed=confirmed, is_own=from_coordinator)
        except KafkaError:  # it may have been appended under other limits
            earlier = None if from_coordinator else self.producers.repeated_by(records)
            if earlier is None:
                raise
        if earlier is not None:
            time_ms = earlier.timestamp if stamps_time else -1
            return AppendResult(earlier.base_offset, earlier.last_offset, time_ms, self.log_start_offset, True)
        views = storable(views, checked, config=config, wall_ms=wall_ms, where=self.where)
        base_offset = next_offset = self.log_end_offset
        buffers: list[Buffer] = []
        incoming = 0
        for view in views:
            buffers.append(stamped_header(view, next_offset, leader_epoch))
            buffers.append(view.data[STAMP_SIZE:])
            view.base_offset, view.partition_leader_epoch = next_offset, leader_epoch
            next_offset += view.last_offset_delta + 1
            incoming += view.size
        if incoming > config.segment_bytes:
            raise self._too_large(incoming)
        self._enter(leader_epoch, base_offset)
        self.recent.drop_below(self.high_watermark)
        if is_followed:
            stamped = b"".join(buffers)
            self._append([stamped], views, wall_ms)
            self.recent.add(base_offset, next_offset, stamped, is_one_batch=len(views) == 1)
        else:
            self.recent.clear()
            self._append(buffers, views, wall_ms)
        return AppendResult(base_offset, next_offset - 1, wall_ms if stamps_time else -1, self.log_start_offset)

    def append_sound(self, batch: BatchView, leader_epoch: int, wall_ms: int, is_followed: bool) -> AppendResult:
        """Append the batch that ``sound_batch`` or ``own_batch`` has just found: what ``append_as_leader`` does, in a third of the steps.

        Most requests of a busy leader bring one small batch, and its time goes into these steps. Raises as ``append_as_leader``.
        """
        producers, segments, config = self.producers, self.segments, self.config
        if batch.producer_id >= 0 and (earlier := producers.judge((batch,), where=self.where)) is not None:
            return AppendResult(earlier.base_offset, earlier.last_offset, -1, self.log_start_offset, True)
        base_offset = self.log_end_offset
        last_offset, size, newest = base_offset + batch.last_offset_delta, batch.size, batch.max_timestamp
        if size > config.segment_bytes:
            raise self._too_large(size)
        self._enter(leader_epoch, base_offset)
        if segments.active.should_roll(config, size, last_offset, newest, wall_ms):
            self.roll(wall_ms)
        active = segments.active
        segments.warm(active)
        stamped = stamped_batch(batch, base_offset, leader_epoch)
        placed = ((base_offset, last_offset, size, newest),)
        active.append((stamped,), placed, interval_bytes=config.index_interval_bytes)
        self.log_end_offset = next_offset = last_offset + 1
        self.flushes.appended(wall_ms)
        batch.base_offset, batch.partition_leader_epoch = base_offset, leader_epoch
        producers.note(batch, wall_ms=wall_ms)
        high_watermark = self.high_watermark
        producers.settle_below(high_watermark)
        recent = self.recent
        if is_followed:
            recent.drop_below(high_watermark)
            recent.add(base_offset, next_offset, stamped, is_one_batch=True)
        else:
            recent.clear()
        return AppendResult(base_offset, last_offset, -1, self.log_start_offset)

    def append_as_follower(self, records: Buffer, *, wall_ms: int = -1) -> AppendResult:
        """Append what the leader sent, as it is. Offsets go on at, or (compacted) behind, the log's end; CRCs are checked.

        The first batch may start before the end only where the log is empty and starts inside that batch (DeleteRecords).
        """
        views = list(batches(records))
        if not views:
            return AppendResult(self.log_end_offset, self.log_end_offset - 1, -1, self.log_start_offset)
        first = views[0]
        expected = self.log_end_offset
        starts_inside = first.base_offset < expected <= first.last_offset and not self.size_bytes
        if starts_inside:
            expected = first.base_offset
        for view in views:
            if not view.has_valid_crc():
                raise CorruptBatch(f"{self.where}: the CRC does not fit the bytes from the leader", view.position)
            if view.base_offset < expected or view.last_offset_delta < 0:
                raise CorruptBatch(f"{self.where}: offset {view.base_offset} where {expected} is next", view.position)
            expected = view.next_offset
        if starts_inside:
            cutting.empty_at(self, first.base_offset, wall_ms)
        epochs = self.leader_epochs
        for view in views:
            if view.partition_leader_epoch > epochs.latest_epoch:
                epochs.assign(view.partition_leader_epoch, view.base_offset)
        self.recent.clear()
        try:
            self._append([records], views, wall_ms)
        except OSError:
            if starts_inside:
                cutting.empty_at(self, self.log_start_offset, wall_ms)
            epochs.truncate_from_end(self.log_end_offset)
            raise
        return AppendResult(first.base_offset, expected - 1, -1, self.log_start_offset)

    def _append(self, buffers: list[Buffer], views: Sequence[BatchView], wall_ms: int) -> None:
        placed: list[tuple[int, int, int, int]] = []
        newest, attributes, last_offset = NO_TIMESTAMP, 0, 0
        for view in views:
            max_timestamp, last_offset = view.max_timestamp, view.last_offset
            placed.append((view.base_offset, last_offset, view.size, max_timestamp))
            attributes |= view.attributes
            newest = max(newest, max_timestamp)
        config, segments = self.config, self.segments
        if segments.active.should_roll(config, sum(map(len, buffers)), last_offset, newest, wall_ms):
            fits = last_offset - self.log_end_offset <= MAX_RELATIVE_OFFSET
            self.roll(wall_ms, at_offset=0 if fits else views[0].base_offset)
        active = segments.active
        is_transactional = attributes & TRANSACTIONAL_MASK
        if is_transactional:
            self.transactions.write(views, active)
        segments.warm(active)
        active.append(buffers, placed, interval_bytes=config.index_interval_bytes)
        self.log_end_offset = last_offset + 1
        self.flushes.appended(wall_ms)
        for view in views:
            note(self.producers, view, wall_ms)
        self.producers.settle_below(self.high_watermark)
        if is_transactional:
            self.transactions.note(views)

    def _too_large(self, incoming: int) -> KafkaError:
        return RecordListTooLarge(f"{self.where}: {incoming} bytes where segment.bytes is {self.config.segment_bytes}.")

    def _enter(self, leader_epoch: int, base_offset: int) -> None:
        """The leader of this epoch appends from ``base_offset`` on."""
        latest_epoch = self.leader_epochs.latest_epoch
        if leader_epoch != latest_epoch:
            assert leader_epoch > latest_epoch, (self.where, leader_epoch, latest_epoch)
            self.leader_epochs.assign(leader_epoch, base_offset)

    def roll(self, wall_ms: int, *, at_offset: int = 0) -> None:
        """Start a new segment at the log's end, or at ``at_offset`` behind it. Nothing happens if an empty one starts there."""
        base_offset = max(at_offset, self.log_end_offset)
        if base_offset > self.segments.active.base_offset:
            if self.flushes.cut_is_unflushed:
                # Or what was cut could be back in front of the new segment, with nothing to tell that it does not belong there.
                self.flushes.flush_active()
            if self.checkpoint_file.is_behind:
                self.checkpoint(flush=True)
            self.producers.end_offset = base_offset
            self.snapshots.write(self.producers)
            self.segments.roll(base_offset, config=self.config, wall_ms=wall_ms)

    # ------------------------------------------------------------------ reading

    def read(
        self,
        offset: int,
        max_bytes: int,
        *,
        end_offset: int | None = None,
        at_least_one: bool = True,
        in_memory: bool = False,
    ) -> LogSlice:
        """Whole batches from the one that holds ``offset``, of one segment, at most ``max_bytes`` (the first may be larger [L16]).

        None starts at or after ``end_offset`` (default: the log's end). Empty where there is nothing. Raises OFFSET_OUT_OF_RANGE
        outside ``[log_start_offset, log_end_offset]``; with ``in_memory`` NotInMemory where the disk would be waited for.
        """
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise OffsetOutOfRange(
                f"{self.where}: offset {offset} is not in [{self.log_start_offset}, {self.log_end_offset}]."
            )
        end = self.log_end_offset if end_offset is None else end_offset
        if offset < end:
            recent = self.recent.read(offset, max_bytes, end, at_least_one=at_least_one)
            if recent is not None:
                return LogSlice(recent[0], offset, recent[1])
            for segment in self.segments.reaching(offset):
                if segment.base_offset >= end:
                    break
                self.segments.warm(segment)
                found = segment.read(offset, max_bytes, end, at_least_one=at_least_one, in_memory=in_memory)
                if found is not None:
                    return LogSlice(*found)
                if segment.locate(offset, in_memory=in_memory) is not None:
                    break  # it is here, but may not be returned; otherwise compaction left a gap up to the next segment
        return LogSlice(b"", offset, offset)

    def offset_for_timestamp(
        self, timestamp: int, end_offset: int | None = None, *, in_memory: bool = False
    ) -> Found | None:
        """The first record below ``end_offset`` whose timestamp is at least this; None if none is. ``in_memory`` as for ``read``."""
        return first_at_or_after(
            self.segments,
            timestamp,
            start_offset=self.log_start_offset,
            end_offset=self.log_end_offset if end_offset is None else end_offset,
            in_memory=in_memory,
        )

    def largest_timestamp(self, end_offset: int | None = None, *, in_memory: bool = False) -> Found | None:
        """The first record that has the largest timestamp (KIP-734); None without timestamps."""
        end = self.log_end_offset if end_offset is None else end_offset
        return latest_in_time(self.segments, start_offset=self.log_start_offset, end_offset=end, in_memory=in_memory)

    # ------------------------------------------------------------------ cutting

    def truncate_to(self, offset: int, *, position: int | None = None) -> bool:
        """Remove every batch that reaches ``offset``; says whether something went. The high watermark follows down.

        A batch that begins before ``offset`` and reaches it goes as a whole: then the log ends where it began. ``position`` says
        where in its segment the first to go begins, for a batch that cannot be found by its offset because it is damaged.
        """
        return cutting.truncate_to(self, offset, position=position)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Forget every record; the log is empty and starts and ends at ``offset``."""
        cutting.truncate_fully_and_start_at(self, offset)

    # ------------------------------------------------------------------ retention

    def advance_log_start(self, offset: int) -> bool:
        """DeleteRecords, or what the leader's log start says: nothing below ``offset`` may be read. At most the high watermark."""
        if offset <= self.log_start_offset:
            return False
        if offset > self.high_watermark:
            raise OffsetOutOfRange(f"{self.where}: offset {offset} is above the high watermark {self.high_watermark}.")
        self.log_start_offset = offset
        self.leader_epochs.truncate_from_start(offset)
        self.checkpoint()
        return True

    def delete_old_segments(self, wall_ms: int) -> list[int]:
        """Apply retention now: rename the files of old segments to ``.deleted``; returns their base offsets."""
        return delete_old_segments(self, wall_ms)

    def delete_renamed_files(self, wall_ms: int) -> int:
        """Unlink the ``.deleted`` files that waited for file.delete.delay.ms; returns how many."""
        return self.segments.remove_renamed(wall_ms, self.config.file_delete_delay_ms)

    def expire_producers(self, wall_ms: int) -> int:
        """Forget producers that have been silent for producer.id.expiration.ms; returns how many."""
        return self.producers.expire(wall_ms, self.config.producer_id_expiration_ms)

    # ------------------------------------------------------------------ durability

    def flush(self) -> int:
        """Return when everything appended before the call survives a loss of power; returns the offset below which it does."""
        return self.flushes.flush(sealed_only=False)

    def flush_rolled(self) -> int:
        """The same for the sealed segments only, as Kafka does after each roll: it bounds what recovery has to scan."""
        return self.flushes.flush(sealed_only=True)

    def checkpoint(self, *, clean: bool = False, flush: bool = False) -> None:
        """Write ``replica.checkpoint``; flushed too where every append is, so that the log stays whole when power is lost."""
        self.forget_committed()
        self.checkpoint_file.write(clean=clean, flush=flush)

    def checkpoint_in_thread(self) -> None:
        """The file alone, in any thread, for a checkpoint that nothing waits for. Not written once the log is closed or deleted."""
        self.flushes.unless_over(self.checkpoint_file.write)

    def forget_committed(self) -> None:
        """Free the memory of the appends that every replica in sync has."""
        self.recent.drop_below(self.high_watermark)

    def trust(self) -> None:
        """A leader's log has been copied up to its end, or this log leads: what was lost is here again, or lost for everybody.

        Until then each opening finds the log suspect, so that a process that dies before the controller has heard of the loss
        cannot make it forgotten. ``condition`` stays what was found at this opening.
        """
        if self.flushes.has_failed:
            return
        self.is_proven = True
        if self.is_suspect:
            self.is_suspect = False
            self.checkpoint()

    def update_config(self, config: LogConfig) -> None:
        """From here on; segments that exist keep their indexes' size."""
        self.config = config
        if not config.compacts:
            self.compaction.stop()
        if self.flushed_always and config.flush_messages != 1:
            self.flushed_always = False
            self.checkpoint(flush=True)  # before an append that no flush covers

    def close(self, *, clean: bool = True) -> None:
        """Close the files and release the lock. ``clean``: flush and say so on the disk, so that no recovery is needed.

        A log that nobody has confirmed since an unclean stop (``trust``) is flushed, but not called clean: it may lack its
        end, and a clean log leads without a look at the others.
        """
        try:
            self.segments.leave()
            self.compaction.stop(waits=True)
            if clean:
                self.segments.active.seal()
                self.flush()
                self.snapshots.write(self.producers)
                self.files.sync_directory(self.directory)
                self.flushes.end()  # or a thread's checkpoint would take back what this one says
                self.checkpoint(clean=self.is_proven, flush=True)
        finally:
            self._release()

    def delete(self) -> None:
        """Close, and remove the folder as ``raylog.log.removal`` says."""
        try:
            self.segments.leave()
            self.compaction.stop(waits=True)
            self.flushes.end()
            rename_for_removal(self.files, self.directory, self.topic_id)
        finally:
            self._release()
        finish_removal(self.files, self.directory, self.topic_id)

    def _release(self) -> None:
        """Let others open the folder. From here on no thread of this log touches a file there."""
        self.flushes.end()
        self.segments.close()
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.close()
            self._open_files.log_closed()

    def check(self) -> None:
        """Assert the invariants of the module's docstring."""
        start, end = self.log_start_offset, self.log_end_offset
        assert 0 <= start <= self.high_watermark <= end, (start, self.high_watermark, end)
        assert self.recovery_point <= end, (self.recovery_point, end)
        self.segments.check()
        self.compaction.check()
        assert self.segments.base_offsets[0] <= start and self.segments.active.base_offset <= end, (start, end)
        assert all(entry.start_offset <= end for entry in self.leader_epochs.entries), (self.leader_epochs.entries, end)
        assert self.producers.end_offset == end, (self.producers.end_offset, end)
        self.producers.check()
        self.transactions.check()
        self.recent.check(end)
