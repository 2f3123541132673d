"""What one log knows of its compaction: how far it has got, which cleaning is under way, and why there will be no other.

Owns no file and no rule: what is due says ``cleanable``, the work is ``cleaning``'s. Everything here happens where the log is written.

Invariants: ``0 <= point <= log_end_offset``; at most one cleaning is under way; one that ends cleanly raises ``point`` to its end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raylog.log.cleanable import Cleanable, SegmentAge, cleanable
from raylog.log.cleaning import Cleaning
from raylog.log.config import NEVER
from raylog.log.retention import newest_ms
from raylog.log.segment import Segment

if TYPE_CHECKING:
    from raylog.log.log import Log


class Compaction:
    __slots__ = ("_log", "current", "fault", "point")

    def __init__(self, log: Log, point: int) -> None:
        self._log = log
        self.point = point  # everything below is clean; may lie below the log start offset
        self.current: Cleaning | None = None
        self.fault: str | None = None  # a batch that cannot be read: the log stays as it is from there on

    def cleanable(self, wall_ms: int) -> Cleanable | None:
        """What a cleaning could work on now; None where the topic is not compacted, or nothing is dirty, or one is under way."""
        log = self._log
        if not log.config.compacts or self.fault is not None or self.current is not None:
            return None
        asks_age = log.config.max_compaction_lag_ms < NEVER
        asks_youth = log.config.min_compaction_lag_ms > 0
        ages = [
            SegmentAge(
                segment.base_offset,
                segment.size,
                _first_timestamp(segment) if asks_age else -1,
                newest_ms(segment, log.files) if asks_youth else -1,
            )
            for segment in log.segments
        ]
        return cleanable(
            ages,
            config=log.config,
            cleaner_point=self.point,
            log_start_offset=log.log_start_offset,
            stable_end_offset=log.stable_end_offset,
            wall_ms=wall_ms,
        )

    def begin(self, part: Cleanable, wall_ms: int) -> Cleaning:
        """Compact it, step by step (``Cleaning.step``). ``end`` has to be called when it is over, whatever became of it."""
        assert self.current is None, self._log.where
        self.current = Cleaning(self._log, part, wall_ms)
        return self.current

    def end(self, cleaning: Cleaning, *, fault: str | None = None) -> None:
        """``fault``: it met something that no other attempt would get over."""
        if self.current is cleaning:
            self.current = None
            self.fault = fault

    def reached(self, offset: int) -> None:
        """The cleaning that is under way has done its work: every segment below is compacted."""
        log = self._log
        self.point = offset
        log.snapshots.keep_only(set(log.segments.base_offsets))
        log.checkpoint()

    def lose_above(self, offset: int) -> None:
        """The log is about to be cut there."""
        if self.current is not None and offset < self.current.end_offset:
            self.current.stop()
        self.point = min(self.point, offset)
        self.fault = None  # what could not be read may be gone

    def stop(self, *, waits: bool = False) -> None:
        """End the cleaning that is under way; ``waits`` for its thread, from any thread."""
        if self.current is not None:
            self.current.stop(waits=waits)

    def check(self) -> None:
        """Assert the invariants of the module's docstring."""
        assert 0 <= self.point <= self._log.log_end_offset, (self.point, self._log.log_end_offset)


def _first_timestamp(segment: Segment) -> int:
    """It is read once; a segment whose files were closed has them closed again."""
    was_resting = segment.is_resting
    timestamp = segment.first_batch_timestamp()
    if was_resting:
        segment.rest()
    return timestamp
