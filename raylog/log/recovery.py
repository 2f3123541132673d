"""What a log does with the files that it finds when it is opened [L19]: tidy up, scan, cut,
rebuild, and judge.

After a clean stop the files are taken as they are. Otherwise every segment from the one that holds
the recovery point on is scanned: each batch must be whole, of format 2 (older ones were converted
before, see ``old_formats``), with the right CRC, offsets that ascend from where the last batch
ended, and a leader epoch that does not go back. At the first that is not, the log ends; a torn tail
and appended garbage look alike and are cut alike, and later segments go. So does a segment that
does not begin where the one before ends: a loss of power took the end of that one. Only compaction
leaves such gaps, below the cleaner point, and in a folder that Kafka wrote. Indexes of scanned
segments are built anew, those below are rebuilt only where they are missing or cannot be right.

Of the segments below the recovery point, and of all after a clean stop, only the last few kilobytes
are looked at: each has to end where the next one begins. One that was cut at rest, or ends in a
page of zeros, is scanned, with all that follow.

Leftovers of a crash: ``.deleted`` files and ``.cleaned`` files (a cleaner's unfinished work) are
removed; a ``.swap`` file is the finished work and takes the place of the segments that it covers;
an index without its log is removed.

The verdict (DESIGN §6, "Who may lead")::

    missing   no segment was there
    clean     closed by a clean stop, and the log still ends where it ended then
    whole     the page cache cannot have been lost (same boot), or every append was flushed; and the scan cut at most one incomplete batch
              at the very end, nothing below the checkpointed high watermark or recovery point
    suspect   everything else; and whatever was suspect or missing at an earlier opening, until ``Log.trust``; and after a failed flush

A failed flush leaves bytes in the page cache that count as written and are on no disk. The log that
met it says so in its checkpoint. The next opening scans from the recovery point, which no failed
flush has moved, and writes what is whole again, so that the next flush puts it on the disk.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

from raylog.errors import DiskError
from raylog.log.checkpoint import ReplicaCheckpoint
from raylog.log.config import LogConfig
from raylog.log.files import Files
from raylog.log.leader_epochs import EpochEntry, LeaderEpochs
from raylog.log.offset_index import MAX_RELATIVE_OFFSET
from raylog.log.segment import SUFFIXES, Segment
from raylog.records.batch import CURRENT_MAGIC, HEADER_SIZE, LOG_OVERHEAD, MAGIC_POSITION, BatchView
from raylog.records.corrupt import CorruptBatch, UnsupportedMagic
from raylog.types import Condition

_ZEROS = bytes(1 << 16)
_LEGACY_OVERHEAD = 14
_OFFSET_MAX = (1 << 63) - 1
_GAP_MAX = 1 << 30  # a wider one can be a follower's roll: the offset would not have fitted into the segment before


@dataclass(slots=True)
class RecoveryReport:
    """What opening a log found and did, for status pages and tests."""

    condition: Condition = Condition.SUSPECT
    scanned_from: int | None = None  # base offset of the first segment that was scanned; None after a clean stop
    scanned_markers: bool = False  # ends of transactions were among what was scanned
    scanned_segments: int = 0
    scanned_bytes: int = 0
    cut_bytes: int = 0
    cut_reason: str | None = None
    cut_is_one_incomplete_batch: bool = True
    converted: list[str] = field(default_factory=list)  # segments with messages of format 0 or 1
    removed: list[str] = field(default_factory=list)
    rebuilt_indexes: list[str] = field(default_factory=list)
    set_aside: str | None = None


def tidy(files: Files, directory: str, report: RecoveryReport) -> list[int]:
    """Deal with the leftovers of a crash; returns the base offsets of the segments, ascending."""

    def remove(name: str) -> None:
        files.remove(f"{directory}/{name}")
        report.removed.append(name)

    names = files.list_directory(directory)
    cleaned = [int(name[:20]) for name in names if name.endswith(".log.cleaned")]
    swapped: list[int] = []
    for name in names:
        if name.endswith((".deleted", ".cleaned", ".tmp")):
            remove(name)
        elif name.endswith(".swap"):
            # A swap beside an unfinished cleaning at or below it is part of a split that was not
            # finished either.
            if cleaned and int(name[:20]) >= min(cleaned):
                remove(name)
            elif name.endswith(".log.swap"):
                swapped.append(int(name[:20]))
            elif f"{name[:20]}.log.swap" not in names:
                remove(name)  # of an index whose log has its own name already
    for base_offset in swapped:
        _finish_swap(files, directory, base_offset, remove)
    names = files.list_directory(directory)
    logs = {name[:20] for name in names if name.endswith(".log") and name[:20].isdigit()}
    for name in names:
        if name.endswith((".index", ".timeindex", ".txnindex")) and name[:20] not in logs:
            remove(name)
    return sorted(int(base) for base in logs)


def _finish_swap(files: Files, directory: str, base_offset: int, remove: Callable[[str], None]) -> None:
    stem = f"{base_offset:020d}"
    last_offset = _last_offset_of_swap(files, f"{directory}/{stem}.log.swap", base_offset)
    for name in files.list_directory(directory):
        if (
            name.endswith(SUFFIXES)
            and name[:20].isdigit()
            and base_offset <= int(name[:20]) <= max(last_offset, base_offset)
        ):
            remove(name)
    for suffix in reversed(SUFFIXES):  # the log last: as long as its swap is there the rest can be done again
        if files.exists(f"{directory}/{stem}{suffix}.swap"):
            files.replace(f"{directory}/{stem}{suffix}.swap", f"{directory}/{stem}{suffix}")


def _last_offset_of_swap(files: Files, path: str, base_offset: int) -> int:
    """The last offset of its whole batches: a tail that recovery will cut covers nothing."""
    file = files.open(path)
    try:
        last_offset, position, size = base_offset - 1, 0, file.size()
        while position + HEADER_SIZE <= size:
            head = file.read_at(position, 27)
            start, length = struct.unpack_from(">qi", head)
            is_batch = head[MAGIC_POSITION] == CURRENT_MAGIC and length >= HEADER_SIZE - LOG_OVERHEAD
            if not is_batch or position + LOG_OVERHEAD + length > size or start <= last_offset:
                break
            last_offset = start + int.from_bytes(head[23:27], "big")
            position += LOG_OVERHEAD + length
        return last_offset
    finally:
        file.close()


def recover_segments(
    segments: list[Segment],
    files: Files,
    *,
    config: LogConfig,
    checkpoint: ReplicaCheckpoint | None,
    may_have_gaps: bool,
    boot_id: str,
    epochs: LeaderEpochs,
    report: RecoveryReport,
) -> int:
    """Leave the segments that are usable in the list, sealed, with right indexes; returns the log's
    end offset. Cuts what is not.

    ``may_have_gaps``: anywhere between two segments, not only where the checkpoint says that all is
    flushed or cleaned. The segments may hold files open afterwards, also where this raises: closing
    them is up to the caller.
    """
    clean = checkpoint is not None and checkpoint.clean
    is_as_left = clean and (end_offset := _clean_end(segments, report, config, checkpoint)) == _recovery_point(
        checkpoint
    )
    if is_as_left and not _has_other_epochs(segments, epochs, config):
        report.condition = Condition.CLEAN
        return end_offset
    if clean:
        report.cut_reason = "the log, or its leader epochs, are not what the clean stop left"
        report.cut_is_one_incomplete_batch = False
    recovery_point = 0 if checkpoint is None or clean else checkpoint.recovery_point
    # After a loss of power the indexes of a segment that was sealed just at the recovery point may
    # not have reached the disk.
    same_boot = checkpoint is not None and checkpoint.boot_id == boot_id
    reach = recovery_point if same_boot else recovery_point - 1
    first = max((number for number, s in enumerate(segments) if s.base_offset <= reach), default=0)
    for segment in segments[:first]:
        _trust_indexes(segment, config, report)
    cleaner_point = 0 if checkpoint is None else checkpoint.cleaner_point
    sound_end = max(recovery_point, cleaner_point)
    cut = _first_cut(segments[: first + 1], config, cleaner_point)
    if cut is not None:
        first = cut
        sound_end = sound_end if config.compacts else cleaner_point
    noted = epochs.entries
    if not noted or _has_other_epochs(segments[: first + 1], epochs, config):
        first, noted = 0, ()  # the epochs are read from the batches then
    named = frozenset(entry.epoch for entry in noted)
    epochs.truncate_from_end(segments[first].base_offset)  # the batches know better than a file that was not flushed
    gapless_from = cleaner_point if same_boot and not clean and not config.compacts else None
    scan = partial(_scan, config=config, epochs=epochs, named=named, gapless_from=gapless_from, report=report)
    end_offset = _scan_from(
        first, segments, files, scan, sound_end=_OFFSET_MAX if may_have_gaps else sound_end, report=report
    )
    if checkpoint is not None and checkpoint.flush_failed:
        for segment in segments[first:]:
            segment.rewrite_from(recovery_point)
    report.condition = Condition.SUSPECT if clean else _verdict(checkpoint, end_offset, report, boot_id)
    if same_boot and noted and not config.compacts and not _are_named(epochs.entries[1:], noted):
        report.condition = Condition.SUSPECT  # the file names each epoch before the log has a batch of it
    return end_offset


def _scan_from(
    first: int,
    segments: list[Segment],
    files: Files,
    scan: Callable[[Segment, int, int | None], tuple[int, bool]],
    *,
    sound_end: int,
    report: RecoveryReport,
) -> int:
    """Scan the segments from number ``first`` on, and remove those behind the first fault; returns
    the offset where the log ends.

    A segment above ``sound_end`` has to begin where the one before it ends.
    """
    end_offset = report.scanned_from = segments[first].base_offset
    for number in range(first, len(segments)):
        segment = segments[number]
        gap = segment.base_offset - end_offset
        whole = number == first or segment.base_offset <= sound_end or not 0 < gap <= _GAP_MAX
        if whole:
            end_offset = max(end_offset, segment.base_offset)
            number += 1
            next_base = segments[number].base_offset if number < len(segments) else None
            end_offset, whole = scan(segment, end_offset, next_base)
        else:
            report.cut_reason = f"{segment.path}.log does not begin where the segment before it ends, at {end_offset}"
        if not whole:
            for lost in segments[number:]:
                _lose(files, lost, report)
            del segments[number:]
            break
    return end_offset


def _are_named(found: Sequence[EpochEntry], noted: Sequence[EpochEntry]) -> bool:
    """Whether the file has these epochs. Of those below its first entry, which starts where the log
    did, it knows the latest only.
    """
    first = noted[0]
    return all(
        entry in noted or (entry.start_offset <= first.start_offset and entry.epoch <= first.epoch) for entry in found
    )


def _recovery_point(checkpoint: ReplicaCheckpoint | None) -> int:
    assert checkpoint is not None
    return checkpoint.recovery_point


def _has_other_epochs(segments: Sequence[Segment], epochs: LeaderEpochs, config: LogConfig) -> bool:
    """Whether an epoch does not begin in these segments, but the last, where the file says it does.

    The file has no checksum, and followers cut their logs by it. Its first entry is left out, for
    it moves with the log's start.
    """
    if config.compacts:
        return False
    for before, (epoch, start_offset) in pairwise(epochs.entries):
        if not segments[0].base_offset < start_offset < segments[-1].base_offset:
            continue
        last, first = _place_of(segments, start_offset - 1), _place_of(segments, start_offset)
        if last is None or last[1] != before.epoch or first != (start_offset, epoch):
            return True
    return False


def _place_of(segments: Sequence[Segment], offset: int) -> tuple[int, int] | None:
    """Base offset and leader epoch of the batch that holds ``offset``; None if there is none that
    can be read.
    """
    segment = next(each for each in reversed(segments) if each.base_offset <= offset)
    try:
        for _, batch in segment.scan(segment.offset_index.lookup(offset)[1]):
            if batch.last_offset >= offset:
                return batch.base_offset, batch.partition_leader_epoch
        return None
    except (CorruptBatch, UnsupportedMagic):
        return None
    finally:
        segment.rest()


def _first_cut(segments: Sequence[Segment], config: LogConfig, cleaner_point: int) -> int | None:
    """The number of the first of these, but the last, that no longer ends where the next one
    begins; None if all do.

    Reads what lies behind each one's last index entry. Compaction may have left a gap in front of
    the next segment.
    """
    for number, segment in enumerate(segments[:-1]):
        next_base = segments[number + 1].base_offset
        _, position = segment.offset_index.lookup(segment.base_offset + MAX_RELATIVE_OFFSET)
        end_offset = segment.base_offset
        try:
            for _, batch in segment.scan(position):
                end_offset = batch.next_offset
        except (CorruptBatch, UnsupportedMagic):
            return number
        finally:
            segment.rest()
        may_have_gap = config.compacts or segment.base_offset < cleaner_point
        if end_offset > next_base or (end_offset < next_base and not may_have_gap):
            return number
    return None


def _clean_end(
    segments: Sequence[Segment], report: RecoveryReport, config: LogConfig, checkpoint: ReplicaCheckpoint | None
) -> int:
    """Where a cleanly stopped log ends; −1 if its segments are not what a clean stop leaves."""
    for segment in segments:
        _trust_indexes(segment, config, report)
    assert checkpoint is not None
    if _first_cut(segments, config, checkpoint.cleaner_point) is not None:
        return -1
    last = segments[-1]
    _, position = last.offset_index.lookup(last.base_offset + MAX_RELATIVE_OFFSET)
    end_offset = last.base_offset if not last.size else -1
    try:
        for _, batch in last.scan(position):
            if batch.base_offset < end_offset:
                return -1
            end_offset = batch.next_offset
    except (CorruptBatch, UnsupportedMagic):
        return -1
    return end_offset


def _trust_indexes(segment: Segment, config: LogConfig, report: RecoveryReport) -> None:
    """Load the indexes, or build them from the log where they cannot be right."""
    fault = segment.load_indexes()
    if fault is None:
        return
    report.rebuilt_indexes.append(fault)
    _build_indexes(segment, config)
    _finish_indexes(segment)


def _build_indexes(segment: Segment, config: LogConfig) -> None:
    segment.start_indexes(_room_for_indexes(segment, config))
    try:
        for position, batch in segment.scan():
            segment.index_batch(
                position, batch.last_offset, batch.size, batch.max_timestamp, interval_bytes=config.index_interval_bytes
            )
    except (CorruptBatch, UnsupportedMagic):
        pass  # what lies there is found, and refused, by whoever reads it


def _room_for_indexes(segment: Segment, config: LogConfig) -> int:
    return max(config.segment_index_bytes, 12 * (segment.size // max(config.index_interval_bytes, 1) + 2))


def _finish_indexes(segment: Segment) -> None:
    segment.sealed = False
    segment.seal()


def _scan(
    segment: Segment,
    expected: int,
    next_base: int | None,
    *,
    config: LogConfig,
    epochs: LeaderEpochs,
    named: frozenset[int],
    gapless_from: int | None,
    report: RecoveryReport,
) -> tuple[int, bool]:
    """Check every batch of a segment, build its indexes, cut at the first bad one: (end offset, the log goes on behind it).

    From the offset ``gapless_from`` on each batch has to follow the one before without a gap; None: nowhere. Where epochs go
    back, the batches before are the bad ones if ``named``, the epochs that the file names, has not theirs.

    What reaches the next segment's base was cut off before that one was made; a loss of power has brought it back.

    Zeros at the end of a segment are trimmed. The log goes on behind them only if no offset is missing before the next
    segment: then preallocation left them. Otherwise they are pages that the disk has lost. A cleaner leaves no zeros.
    """
    segment.start_indexes(_room_for_indexes(segment, config))
    end, last_epoch, reason, is_back = 0, -1, None, False
    rise: tuple[int, int] | None = None  # position and offset at which the last epoch began, in this segment
    try:
        for position, batch in segment.scan():
            reason = _fault_of(batch, segment, expected, gapless_from)
            if reason is not None:
                break
            if next_base is not None and batch.last_offset >= next_base:
                reason, is_back = f"offset {batch.last_offset} belongs to the next segment", True
            elif 0 <= batch.partition_leader_epoch < last_epoch or batch.partition_leader_epoch < -1:
                reason = f"leader epoch {batch.partition_leader_epoch} after {last_epoch}"
                if rise is not None and named and last_epoch not in named:
                    end, expected = rise
                    reason = f"leader epoch {last_epoch}, which there has not been"
            if reason is not None:
                break
            if batch.partition_leader_epoch > last_epoch:
                rise = position, expected
            if batch.partition_leader_epoch > epochs.latest_epoch:
                epochs.assign(batch.partition_leader_epoch, batch.base_offset)
            report.scanned_markers = report.scanned_markers or batch.is_control
            segment.index_batch(
                position, batch.last_offset, batch.size, batch.max_timestamp, interval_bytes=config.index_interval_bytes
            )
            end, expected, last_epoch = position + batch.size, batch.next_offset, batch.partition_leader_epoch
    except (CorruptBatch, UnsupportedMagic) as error:
        reason = getattr(error, "reason", None) or str(error)
        if isinstance(error, UnsupportedMagic):
            _refuse_legacy(segment, end)
    report.scanned_segments += 1
    report.scanned_bytes += end
    if reason is not None:
        reason = _cut(segment, end, expected, next_base, reason, report)
        if (end, expected) == rise:
            epochs.truncate_from_end(expected)
            _build_indexes(segment, config)
    _finish_indexes(segment)
    return expected, reason is None or is_back


def _fault_of(batch: BatchView, segment: Segment, expected: int, gapless_from: int | None) -> str | None:
    """What is wrong with a batch where the offset ``expected`` is next; None if nothing is."""
    if not batch.has_valid_crc():
        return "a CRC does not fit"
    if batch.base_offset < expected or batch.last_offset_delta < 0:
        return f"offset {batch.base_offset} comes again"
    if gapless_from is not None and batch.base_offset > expected >= gapless_from:
        return f"offset {batch.base_offset} where {expected} is next"
    if batch.last_offset - segment.base_offset > MAX_RELATIVE_OFFSET:
        return f"offset {batch.last_offset} is too far from the segment's base"
    return None


def _cut(
    segment: Segment, end: int, expected: int, next_base: int | None, reason: str, report: RecoveryReport
) -> str | None:
    """Cut the segment at byte ``end``, where the offset ``expected`` is next; returns why the log
    ends here, None if it does not.

    Zeros alone are no reason, unless records are missing before the next segment.
    """
    tail = _bytes_before_zeros(segment, end)
    if tail:
        report.cut_bytes += segment.size - end
        report.cut_reason = f"{segment.path}.log at byte {end}: {reason}"
        report.cut_is_one_incomplete_batch &= _is_one_incomplete_batch(segment, end, tail, expected)
    segment.file.truncate(end)
    segment.size = end
    if tail:
        return reason
    if next_base is None or not 0 < next_base - expected <= _GAP_MAX:
        return None
    missing = f"zeros where the records {expected}-{next_base - 1} should be"
    report.cut_reason = f"{segment.path}.log at byte {end}: {missing}"
    return missing


def _bytes_before_zeros(segment: Segment, start: int) -> int:
    """How many bytes lie behind ``start`` without the zeros at the very end: preallocated, or never
    flushed.
    """
    end = segment.size
    while end > start:
        size = min(len(_ZEROS), end - start)
        piece = segment.file.read_at(end - size, size)
        used = piece.rstrip(b"\x00")
        if used:
            return end - size + len(used) - start
        end -= size
    return 0


def _is_one_incomplete_batch(segment: Segment, position: int, tail: int, expected: int) -> bool:
    """Whether the bytes behind ``position`` can be the start of one batch, the next one, and no
    more.
    """
    head = segment.file.read_at(position, min(LOG_OVERHEAD, tail))
    if len(head) < LOG_OVERHEAD:
        return True
    base_offset, length = struct.unpack(">qi", head)
    return bool(base_offset == expected and length + LOG_OVERHEAD >= max(tail, HEADER_SIZE))


def _refuse_legacy(segment: Segment, position: int) -> None:
    """DiskError if what lies at ``position`` is a message of format 0 or 1 rather than garbage."""
    head = segment.file.read_at(position, LOG_OVERHEAD + 4)
    if len(head) < LOG_OVERHEAD + 4:
        return
    _, size, crc = struct.unpack(">qiI", head)
    if _LEGACY_OVERHEAD <= size <= segment.size - position - LOG_OVERHEAD:
        message = segment.file.read_at(position + LOG_OVERHEAD + 4, size - 4)
        if zlib.crc32(message) == crc:
            raise DiskError(
                f"{segment.path}.log holds messages of format {message[0]} at byte {position}. They are converted when a folder is "
                "opened for the first time; this one was opened before. Remove its replica.checkpoint to have it looked through again."
            )


def _lose(files: Files, segment: Segment, report: RecoveryReport) -> None:
    """Remove a segment that lies behind the cut."""
    report.cut_bytes += segment.size
    report.cut_is_one_incomplete_batch &= segment.size == 0
    segment.rest()
    for path in segment.file_names():
        files.remove(path)
        report.removed.append(path.rsplit("/", 1)[1])


def _verdict(checkpoint: ReplicaCheckpoint | None, end_offset: int, report: RecoveryReport, boot_id: str) -> Condition:
    if checkpoint is None or checkpoint.flush_failed:
        return Condition.SUSPECT
    if checkpoint.boot_id != boot_id and not checkpoint.flushed_always:
        return Condition.SUSPECT
    if not report.cut_is_one_incomplete_batch or end_offset < max(checkpoint.high_watermark, checkpoint.recovery_point):
        return Condition.SUSPECT
    return Condition.WHOLE
