"""Opens the folder of a log: lock, identity, leftovers, recovery, and the states that come with the
segments.

The order matters. The lock comes first, so that no other process looks at half-done work; then the
topic id, so that a stranger's folder is set aside before anything in it is touched; then the
checkpoint; where there is none of our own, messages of old formats; then the files. The result is
everything that ``Log`` needs to go on. See ``raylog.log.recovery`` for what is scanned and how it
is judged.
"""

from __future__ import annotations

import errno
import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

from raylog.errors import DiskError, DiskLockedError
from raylog.log import checkpoint as checkpoints
from raylog.log.checkpoint import ReplicaCheckpoint
from raylog.log.compaction import FILE_NAME as COMPACTION_FILE_NAME
from raylog.log.compaction import read_compacted_end
from raylog.log.config import LogConfig
from raylog.log.files import Files, Lock
from raylog.log.leader_epochs import LeaderEpochs
from raylog.log.old_formats import converts
from raylog.log.partition_metadata import LOCK_NAME, read_topic_id, write_topic_id
from raylog.log.producers import ProducerSnapshots, ProducerStates
from raylog.log.recovery import RecoveryReport, recover_segments, tidy
from raylog.log.removal import stray_directory
from raylog.log.segment import Segment
from raylog.log.transactions import Transactions
from raylog.records.batch import BatchView
from raylog.records.control import read_control_batch
from raylog.records.corrupt import CorruptBatch, UnsupportedMagic
from raylog.types import Condition

_TAIL_BYTES = 4 << 20
_VANISHINGS_MAX = 100


@dataclass(slots=True)
class Opened:
    """``segments`` are ready: all sealed but the last, which is active. None holds a file open."""

    lock: Lock
    segments: list[Segment]
    epochs: LeaderEpochs
    producers: ProducerStates
    snapshots: ProducerSnapshots
    transactions: Transactions
    report: RecoveryReport
    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    recovery_point: int
    cleaner_point: int = 0
    compacted_end: int = 0
    is_new_folder: bool = False
    """It had no topic id: its own name may not be on the disk yet."""


def opened(
    directory: str,
    *,
    files: Files,
    config: LogConfig,
    topic_id: uuid.UUID,
    wall_ms: int,
    boot_id: str,
) -> Opened:
    """Raises DiskError for what a person has to mend, OSError for what the disk refuses: then no
    file is left open, and no lock held.
    """
    report = RecoveryReport()
    segments: list[Segment] = []
    is_kafkas = not files.exists(f"{directory}/{LOCK_NAME}")
    lock = _locked(files, directory)
    try:
        other = read_topic_id(files, directory)
        if other is not None and other != topic_id:
            report.set_aside = stray_directory(directory, other)
            files.replace(directory, report.set_aside)
            lock.close()
            lock = _locked(files, directory)
            other = None
        if other is None:
            write_topic_id(files, directory, topic_id)
        found = _opened(
            directory,
            lock,
            report,
            segments,
            files=files,
            config=config,
            wall_ms=wall_ms,
            boot_id=boot_id,
            is_kafkas=is_kafkas,
        )
        found.is_new_folder = other is None
        return found
    except OSError as error:
        lock.close()
        raise _unusable(error, directory) from error
    except BaseException:
        lock.close()
        raise
    finally:
        for segment in segments:
            segment.rest()


def _locked(files: Files, directory: str) -> Lock:
    """The lock of the folder, which is made if it is missing.

    The folder can vanish while this opens it: a process that deletes a topic of the same name
    renames it, holding the lock. That is no fault of the disk. The name is free then, and the
    folder is made again.
    """
    for _ in range(_VANISHINGS_MAX):
        try:
            files.make_directory(directory)
            return files.lock(f"{directory}/{LOCK_NAME}")
        except FileNotFoundError:
            continue
        except OSError as error:
            raise _unusable(error, directory) from error
    raise DiskLockedError(f"{directory} is deleted by another process again and again. Stop it.")


def _unusable(error: OSError, directory: str) -> Exception:
    """DiskError where a person has to change something about the folder; else the error itself."""
    if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR):
        return error
    return DiskError(
        f"cannot use {error.filename or directory}: {os.strerror(error.errno)}. Give a folder that this user may read and write."
    )


def _opened(
    directory: str,
    lock: Lock,
    report: RecoveryReport,
    segments: list[Segment],
    *,
    files: Files,
    config: LogConfig,
    wall_ms: int,
    boot_id: str,
    is_kafkas: bool,
) -> Opened:
    """Puts the segments into the caller's list before any of them opens a file: the caller closes
    the files in any case.
    """
    checkpoint = checkpoints.read(files, directory)
    epochs = LeaderEpochs(files, directory)
    producers = ProducerStates()
    snapshots = ProducerSnapshots(files, directory)
    found = Opened(lock, segments, epochs, producers, snapshots, Transactions(files, producers), report, 0, 0, 0, 0)
    base_offsets = _tidied(files, directory, report, may_be_old=checkpoint is None)
    if not base_offsets:
        report.condition = Condition.MISSING
        _remove_facts(files, directory, snapshots, epochs)
        # Its names reach the disk with the checkpoint that ends every opening.
        segments.append(Segment.create(files, directory, 0, config=config, wall_ms=wall_ms))
        return found
    try:
        epochs.load()
    except ValueError:
        epochs.clear()
    segments += [Segment.load(files, directory, base_offset) for base_offset in base_offsets]
    found.log_end_offset = recover_segments(
        segments,
        files,
        config=config,
        checkpoint=checkpoint,
        may_have_gaps=is_kafkas and config.compacts,
        boot_id=boot_id,
        epochs=epochs,
        report=report,
    )
    known = checkpoint or ReplicaCheckpoint()
    found.compacted_end = max(known.cleaner_point, read_compacted_end(files, directory))
    _restore(found, known, config, wall_ms=wall_ms, same_boot=known.boot_id == boot_id)
    return found


def _restore(found: Opened, known: ReplicaCheckpoint, config: LogConfig, *, wall_ms: int, same_boot: bool) -> None:
    """After recovery has found the end of the log: its other offsets, epochs and producers, from
    the checkpoint and the files.
    """
    segments, report, end_offset = found.segments, found.report, found.log_end_offset
    if known.suspect:
        report.condition = Condition.SUSPECT
    start_offset = max(known.log_start_offset, segments[0].base_offset)
    if start_offset > end_offset:
        start_offset = segments[0].base_offset  # the log was cut below its start: nothing else is left to go by
    _fit_epochs(found.epochs, segments, start_offset, end_offset, is_clean=report.condition is Condition.CLEAN)
    segments[-1].activate(config, roll_jitter_ms=0)
    found.snapshots.remove_above(end_offset)
    if report.scanned_from is not None and not same_boot:
        # A loss of power may have brought back one that a cut had removed: it knows of records that
        # were cut off, and lies where others are by now. Up to where the scan began, each cut was
        # synced before anything was built on it.
        found.snapshots.remove_above(report.scanned_from)
    load_producers(
        found.producers,
        found.snapshots,
        segments,
        end_offset,
        wall_ms=wall_ms,
        expiration_ms=config.producer_id_expiration_ms,
    )
    # Without the page cache, what lies below the high watermark may not be what lay there when it
    # was noted: the leader says it anew.
    cache_is_lost = report.condition is Condition.SUSPECT and not same_boot
    high_watermark = max(start_offset, min(0 if cache_is_lost else known.high_watermark, end_offset))
    found.producers.settle_below(high_watermark)
    found.transactions.load(
        segments,
        scanned_from=report.scanned_from,
        has_markers=report.scanned_markers,
        high_watermark=high_watermark,
    )
    found.log_start_offset, found.high_watermark = start_offset, high_watermark
    found.recovery_point = min(known.recovery_point, end_offset)
    found.cleaner_point = min(known.cleaner_point, end_offset)


def _tidied(files: Files, directory: str, report: RecoveryReport, *, may_be_old: bool) -> list[int]:
    """The base offsets of the segments, ascending, without leftovers and, if the folder
    ``may_be_old``, in the format of today.
    """
    base_offsets = tidy(files, directory, report)
    if not may_be_old:
        return base_offsets
    for base_offset in base_offsets:  # one after the other: only one of them needs twice its room
        if converts(files, directory, base_offset):
            report.converted.append(f"{base_offset:020d}.log")
            tidy(files, directory, report)
    return tidy(files, directory, report)


def _remove_facts(files: Files, directory: str, snapshots: ProducerSnapshots, epochs: LeaderEpochs) -> None:
    """Remove what is known of records that are all gone."""
    for offset in snapshots.offsets():
        files.remove(snapshots.path(offset))
    epochs.clear()
    files.remove(f"{directory}/{COMPACTION_FILE_NAME}")


def _fit_epochs(
    epochs: LeaderEpochs, segments: list[Segment], start_offset: int, end_offset: int, *, is_clean: bool
) -> None:
    """Make the epochs those of the records. A clean log's are read from its batches if no file has
    them; a scan has found the others.
    """
    if is_clean and not epochs.entries:
        for batch in _batches(segments, segments[0].base_offset):
            if batch.partition_leader_epoch > epochs.latest_epoch:
                epochs.assign(batch.partition_leader_epoch, batch.base_offset)
    epochs.truncate_from_end(end_offset)
    epochs.truncate_from_start(start_offset)


def reload_producers(
    producers: ProducerStates,
    snapshots: ProducerSnapshots,
    segments: list[Segment],
    end_offset: int,
    *,
    expiration_ms: int,
) -> None:
    """After the log was cut to ``end_offset``, further back than the producers' history reaches.
    When they were seen last is known.
    """
    known = producers.last_seen()
    latest_ms = max(known.values(), default=0)
    load_producers(producers, snapshots, segments, end_offset, wall_ms=latest_ms, expiration_ms=expiration_ms)
    for state in producers:
        state.seen_ms = known.get(state.producer_id, state.seen_ms)


def load_producers(
    producers: ProducerStates,
    snapshots: ProducerSnapshots,
    segments: list[Segment],
    end_offset: int,
    *,
    wall_ms: int,
    expiration_ms: int,
) -> None:
    """As of ``end_offset``: the latest snapshot, what was written since, and the few batches before
    that a snapshot leaves out.

    A snapshot that is missing where a segment begins is written again: it is all that remains when
    the segments before it go. The batches do not say when they were appended; ``wall_ms`` is the
    latest that it can have been.
    """
    start = snapshots.load_latest(producers, log_start_offset=segments[0].base_offset, end_offset=end_offset)
    if len(producers):
        producers.doubt_times(wall_ms, expiration_ms)
        producers.remember_older(_tail(segments, start))
    known = set(snapshots.offsets())
    bases = (segment.base_offset for segment in segments[1:])
    lacking = [base_offset for base_offset in bases if base_offset > start and base_offset not in known]
    for batch in _batches(segments, start):
        while lacking and lacking[0] <= batch.base_offset:
            _write_snapshot(producers, snapshots, lacking.pop(0))
        if batch.has_valid_crc():  # else whoever reads it finds that out; here it would mislead
            note(producers, batch, wall_ms)
    for base_offset in lacking:
        _write_snapshot(producers, snapshots, base_offset)
    producers.end_offset = end_offset


def _write_snapshot(producers: ProducerStates, snapshots: ProducerSnapshots, offset: int) -> None:
    if len(producers):
        producers.end_offset = offset
        snapshots.write(producers)


def note(producers: ProducerStates, batch: BatchView, wall_ms: int) -> None:
    """The batch is in the log, appended at ``wall_ms``.

    Raises CorruptBatch for a marker that is none; one that a cleaner has emptied says nothing.
    """
    coordinator_epoch = None
    if batch.is_control and batch.producer_id >= 0 and batch.record_count:
        coordinator_epoch = read_control_batch(batch).coordinator_epoch
    producers.note(batch, wall_ms=wall_ms, coordinator_epoch=coordinator_epoch)


def _batches(segments: list[Segment], offset: int) -> Iterator[BatchView]:
    for number, segment in enumerate(segments):
        if number + 1 < len(segments) and segments[number + 1].base_offset <= offset:
            continue
        try:
            place = segment.locate(offset)
            position = segment.size if place is None else place[0]
        except (CorruptBatch, UnsupportedMagic):
            position = segment.offset_index.lookup(offset)[1]
        yield from (batch for batch in _readable(segment, position, segment.size) if batch.base_offset >= offset)


def _readable(segment: Segment, position: int, end: int) -> Iterator[BatchView]:
    """The batches from a batch's position on. Damage does not keep the log from being opened: it
    goes on where the index knows a batch.
    """
    index = segment.offset_index.file
    while position < end:
        try:
            for found, batch in segment.scan(position, end):
                position = found + batch.size
                yield batch
        except (CorruptBatch, UnsupportedMagic):
            number = index.floor(1, position) + 1
            position = index.get(number)[1] if number < index.count else end


def _tail(segments: list[Segment], end_offset: int) -> Iterator[BatchView]:
    """The last few megabytes of batches below ``end_offset``."""
    wanted, parts = _TAIL_BYTES, []
    for segment in reversed([segment for segment in segments if segment.base_offset < end_offset]):
        try:
            place = segment.locate(end_offset)
            end = segment.size if place is None else place[0]
        except (CorruptBatch, UnsupportedMagic):
            end = segment.offset_index.lookup(end_offset)[1]
        index = segment.offset_index.file
        number = index.floor(1, end - wanted)
        start = index.get(number)[1] if number >= 0 else 0
        parts.append((segment, start, end))
        wanted -= end - start
        if wanted <= 0:
            break
    for segment, start, end in reversed(parts):
        yield from (batch for batch in _readable(segment, start, end) if batch.has_valid_crc())
