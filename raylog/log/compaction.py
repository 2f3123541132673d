"""What one log knows of its compaction: how far it has got, which cleaning is under way, and why
there will be no other.

Owns no file and no rule: what is due says ``cleanable``, the work is ``cleaning``'s. Everything
here happens where the log is written.

``point`` decides what is cleaned next, so it may not be too high. A loss of power may bring back a
lower one: then clean segments are cleaned again, which changes nothing. It never brings back a
higher one, because the log is emptied where it is cut below the point, and that syncs the directory
after the checkpoint was written: the older checkpoint does not come back, the newer one may be
damaged.

``compacted_end`` decides whether the log can be cut: where the records go that took the place of
older ones, the older ones are missing, and another replica may still have them. It may not be too
low, or such a log is cut and lacks them for good; nor may it lie above what is committed, or a
replica in sync drops its log where it only has to drop its end. So it has a file of its own,
``compaction.checkpoint``, one number in text: flushed before the first new segment of a cleaning is
in its place, removed when the log is emptied.

Invariants: ``0 <= point <= log_end_offset``; at most one cleaning is under way; one that ends
cleanly raises ``point`` to its end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raylog.log.cleanable import Cleanable, SegmentAge, cleanable
from raylog.log.cleaning import Cleaning
from raylog.log.config import NEVER
from raylog.log.files import Files
from raylog.log.retention import newest_ms
from raylog.log.segment import Segment

if TYPE_CHECKING:
    from raylog.log.log import Log


FILE_NAME = "compaction.checkpoint"


class Compaction:
    __slots__ = ("_log", "compacted_end", "current", "fault", "point")

    def __init__(self, log: Log, point: int, compacted_end: int) -> None:
        self._log = log
        self.point = point  # everything below is clean; may lie below the log start offset
        self.compacted_end = compacted_end  # nothing at or above it has taken the place of an older record
        self.current: Cleaning | None = None
        self.fault: str | None = None  # a batch that cannot be read: the log stays as it is from there on

    def cleanable(self, wall_ms: int) -> Cleanable | None:
        """What a cleaning could work on now; None where the topic is not compacted, or nothing is
        dirty, or one is under way.
        """
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
        """Compact it, step by step (``Cleaning.step``). ``end`` has to be called when it is over,
        whatever became of it.
        """
        assert self.current is None, self._log.where
        self.current = Cleaning(self._log, part, wall_ms)
        self.compacted_end = max(self.compacted_end, self.current.end_offset)
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

    def note_compacted(self) -> None:
        """Return when ``compacted_end`` is on the disk. Thread safe."""
        log = self._log
        end = 0
        while end < self.compacted_end:
            end = self.compacted_end
            log.files.write_file(_path(log.directory), b"%d\n" % end)
        if not self.compacted_end:  # the log was emptied meanwhile
            log.files.remove(_path(log.directory))

    def emptied(self) -> None:
        """The log is about to be emptied; its directory is synced before it holds anything again."""
        self.stop()
        self.compacted_end = 0
        self._log.files.remove(_path(self._log.directory))

    def stop(self, *, waits: bool = False) -> None:
        """End the cleaning that is under way; ``waits`` for its thread, from any thread."""
        if self.current is not None:
            self.current.stop(waits=waits)

    def check(self) -> None:
        """Assert the invariants of the module's docstring."""
        assert 0 <= self.point <= self._log.log_end_offset, (self.point, self._log.log_end_offset)


def read_compacted_end(files: Files, directory: str) -> int:
    """What ``note_compacted`` has noted; 0 where nothing was compacted."""
    try:
        return int(files.read_file(_path(directory)))
    except (FileNotFoundError, ValueError):
        return 0


def _path(directory: str) -> str:
    return f"{directory}/{FILE_NAME}"


def _first_timestamp(segment: Segment) -> int:
    """It is read once; a segment whose files were closed has them closed again."""
    was_resting = segment.is_resting
    timestamp = segment.first_batch_timestamp()
    if was_resting:
        segment.rest()
    return timestamp
