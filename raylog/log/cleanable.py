"""Which part of a log is due for compaction [L22, L24]: rules over facts, without a file in sight,
as Kafka's ``LogCleanerManager``.

::

    log start ─── cleaned ─── first dirty ─── dirty, cleanable ─── uncleanable ─── not cleanable ─── log end

*First dirty* is where the last cleaning ended. *Uncleanable* begins with the first of: the segment
that reaches the high watermark or a transaction that has not ended, the active segment, and the
first segment with a record younger than ``min.compaction.lag.ms``. A log is cleaned where the dirty
part's share of the bytes is above ``min.cleanable.dirty.ratio``, or where a dirty record is older
than ``max.compaction.lag.ms``. Unlike Kafka's, a cleaner here never rewrites a segment that is
stable in part: what may still be cut is not touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from raylog.log.config import NEVER, LogConfig


@dataclass(frozen=True, slots=True)
class SegmentAge:
    """What the rules need of one segment, the oldest first; the last one is active. Times are −1
    where no rule asks for them.
    """

    base_offset: int
    size: int
    first_timestamp: int  # or −1 where there is none
    largest_timestamp: int  # or the modification time where there is none


@dataclass(frozen=True, slots=True)
class Cleanable:
    """The dirty part that may be cleaned now. ``dirty_ratio`` is its share of the bytes below its
    end.
    """

    first_dirty_offset: int
    first_uncleanable_offset: int
    dirty_ratio: float
    is_overdue: bool  # max.compaction.lag.ms has passed

    def is_due(self, config: LogConfig) -> bool:
        return self.is_overdue or self.dirty_ratio > config.min_cleanable_dirty_ratio


def cleanable(
    segments: Sequence[SegmentAge],
    *,
    config: LogConfig,
    cleaner_point: int,
    log_start_offset: int,
    stable_end_offset: int,
    wall_ms: int,
) -> Cleanable | None:
    """None where nothing dirty may be cleaned: else whole segments are. ``stable_end_offset``:
    nothing at or above it is final.
    """
    first_dirty = max(cleaner_point, log_start_offset)
    first_uncleanable = first_dirty
    clean_bytes = 0
    dirty: list[SegmentAge] = []
    for segment, following in pairwise(segments):
        if following.base_offset <= first_dirty:
            clean_bytes += segment.size
            continue
        is_young = (
            config.min_compaction_lag_ms > 0 and wall_ms - segment.largest_timestamp < config.min_compaction_lag_ms
        )
        if following.base_offset > stable_end_offset or is_young:
            break
        dirty.append(segment)
        first_uncleanable = following.base_offset
    dirty_bytes = sum(segment.size for segment in dirty)
    if not dirty_bytes:
        return None
    is_overdue = False
    if config.max_compaction_lag_ms < NEVER:
        oldest = min((s.first_timestamp for s in dirty if s.first_timestamp > 0), default=NEVER)
        is_overdue = oldest < wall_ms - config.max_compaction_lag_ms
    return Cleanable(first_dirty, first_uncleanable, dirty_bytes / (clean_bytes + dirty_bytes), is_overdue)
