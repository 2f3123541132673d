"""Which old segments may go [L20]: rules over facts, and their end (``delete_old_segments``).

A segment is deletable by the first rule that takes it, always a run from the oldest on, and never a
record at or above the high watermark::

    log start   the next segment's base offset is at or below the log start offset (TV-7)
    size        total − retention.bytes is still at least the segment's size (TV-6)
    time        now − largest timestamp in it > retention.ms (file's modification time where no record has one)

The active segment goes only with all others; the log rolls first, so that there is always one. An
empty active segment stays. A topic that only compacts keeps its segments except those below the log
start offset.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from raylog.log.config import LogConfig
from raylog.log.files import Files
from raylog.log.segment import Segment
from raylog.log.segments import Segments

if TYPE_CHECKING:
    from raylog.log.log import Log


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """``end_offset`` is the next segment's base offset, or the log's end for the active one."""

    base_offset: int
    end_offset: int
    size: int
    largest_timestamp: int  # or the modification time where there is none
    is_active: bool


def facts_of(segments: Segments, log_end_offset: int, files: Files) -> list[SegmentFacts]:
    """The segments of a log, the oldest first."""
    ends = [*segments.base_offsets[1:], log_end_offset]
    return [
        SegmentFacts(
            base_offset=segment.base_offset,
            end_offset=end_offset,
            size=segment.size,
            largest_timestamp=newest_ms(segment, files),
            is_active=segment is segments.active,
        )
        for segment, end_offset in zip(segments, ends, strict=True)
    ]


def newest_ms(segment: Segment, files: Files) -> int:
    """The largest timestamp in a segment, or when its file was last written where no record has
    one.
    """
    if segment.largest_timestamp >= 0:
        return segment.largest_timestamp
    return files.modified_ms(segment.path + ".log" + segment.suffix)


def deletable(
    segments: Sequence[SegmentFacts], *, config: LogConfig, high_watermark: int, log_start_offset: int, wall_ms: int
) -> int:
    """How many segments, counted from the oldest, are to be deleted now."""
    rules: list[Callable[[SegmentFacts], bool]] = [lambda s: not s.is_active and s.end_offset <= log_start_offset]
    if config.deletes:
        if config.retention_ms >= 0:
            rules.append(lambda s: wall_ms - s.largest_timestamp > config.retention_ms)
        if config.retention_bytes >= 0:
            rules.append(_size_rule(sum(s.size for s in segments) - config.retention_bytes))
    return max(_leading(segments, rule, high_watermark) for rule in rules)


def _leading(segments: Sequence[SegmentFacts], rule: Callable[[SegmentFacts], bool], high_watermark: int) -> int:
    count = 0
    for segment in segments:
        is_empty_end = segment.is_active and not segment.size
        if is_empty_end or segment.end_offset > high_watermark or not rule(segment):
            break
        count += 1
    return count


def _size_rule(excess: int) -> Callable[[SegmentFacts], bool]:
    remaining = excess

    def rule(segment: SegmentFacts) -> bool:
        nonlocal remaining
        if remaining < segment.size:
            return False
        remaining -= segment.size
        return True

    return rule


def delete_old_segments(log: Log, wall_ms: int) -> list[int]:
    """See ``Log.delete_old_segments``."""
    if log.compaction.current is not None:
        return []  # its turn comes when the cleaning is over
    segments = log.segments
    facts = facts_of(segments, log.log_end_offset, log.files)
    high_watermark, start = log.high_watermark, log.log_start_offset
    count = deletable(facts, config=log.config, high_watermark=high_watermark, log_start_offset=start, wall_ms=wall_ms)
    if not count:
        return []
    if count == len(segments):
        log.roll(wall_ms)
    if segments.names_changed or not log.snapshots.are_flushed:
        # Only the snapshot where the log begins then tells of the producers before it, and no flush
        # has come by since the roll.
        log.flushes.flush_snapshots()
    new_start = max(log.log_start_offset, segments.base_offsets[count])
    if new_start > log.log_start_offset:
        log.log_start_offset = new_start
        log.leader_epochs.truncate_from_start(new_start)
        log.checkpoint()
    gone = segments.rename_oldest(count, wall_ms)
    log.transactions.keep(0, segments.base_offsets[0], ())
    log.snapshots.keep_only(set(segments.base_offsets))
    return gone
