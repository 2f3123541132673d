"""How far one log is on the disk, and the flushes that bring it further.

``recovery_point`` is the offset below which everything survives a loss of power: recovery starts
there. Only a flush that has returned raises it, and only as far as the log reached when the flush
began. A cut lowers it, and a flush that a cut has overtaken proves nothing: what it flushed may be
gone, and other records may have taken its place.

A failed flush is never made good by the next one. The operating system keeps the bytes in the page
cache and takes them for written, so a second flush finds nothing to write and succeeds. So a log
whose flush has failed flushes no more, its recovery point stays, and its checkpoint says why. The
next opening, of the same boot too, finds the log suspect and writes again what lies above the
recovery point (``recovery``).

``end`` lets go of the folder, which another process may open from then on: it waits for what
threads are doing there (a flush, ``unless_over``), and what comes later is not done.

Threads: ``flush``, ``flush_sealed``, ``unless_over`` and ``end`` may run in any, the rest where the
log is written.

Invariants: recovery_point ≤ log end offset; nothing raises it after a failed flush.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from raylog.log import checkpoint as checkpoints
from raylog.log.open_files import TABLE_IS_FULL

if TYPE_CHECKING:
    from raylog.log.log import Log
    from raylog.log.segment import Segment


class Flushes:
    __slots__ = (
        "_appended_since_ms",
        "_guard",
        "_is_over",
        "_leaving",
        "_log",
        "_one",
        "_unflushed_since_ms",
        "cut_is_unflushed",
        "generation",
        "has_failed",
        "recovery_point",
    )

    def __init__(self, log: Log, *, recovery_point: int, cut_is_unflushed: bool, wall_ms: int) -> None:
        self._log = log
        self.recovery_point = recovery_point
        self.cut_is_unflushed = cut_is_unflushed  # a loss of power may bring back what the active segment lost
        self.has_failed = False
        self._is_over = False
        self.generation = 0  # raised by every cut: a flush that began before it proves nothing
        self._guard = threading.Lock()  # recovery_point and generation against a flush in another thread
        self._one = threading.Lock()  # a second flush must not return before what the first one took over is done
        self._leaving = threading.Lock()  # ``end`` against what is done ``unless_over``, which waits for no flush
        self._appended_since_ms: int | None = None
        self._unflushed_since_ms = wall_ms if log.log_end_offset > recovery_point else None

    @property
    def oldest_unflushed_ms(self) -> int | None:
        """The wall time of the oldest append that no flush covers; None if all is flushed."""
        return self._unflushed_since_ms if self._log.log_end_offset > self.recovery_point else None

    def appended(self, wall_ms: int) -> None:
        if self._unflushed_since_ms is None:
            self._unflushed_since_ms = wall_ms
        if self._appended_since_ms is None:
            self._appended_since_ms = wall_ms

    def cut(self, offset: int) -> None:
        """The log ends at ``offset`` now."""
        with self._guard:
            self.generation += 1
            self._log.log_end_offset = offset
            self.recovery_point = min(self.recovery_point, offset)

    def flush(self, *, sealed_only: bool) -> int:
        """Returns the offset below which all is flushed, as far as this flush knows. OSError if it
        fails, or one before it did.
        """
        with self._one:
            return self.recovery_point if self._is_over else self._flush(sealed_only)

    def _flush(self, sealed_only: bool) -> int:
        if self.has_failed:
            raise OSError(errno.EIO, "an earlier flush failed", self._log.directory)
        log, segments = self._log, self._log.segments
        with self._guard:
            generation = self.generation
            # The end first: whatever is appended or rolled after this line may be flushed too, but
            # is not counted.
            end_offset = log.log_end_offset
            if sealed_only:  # the active segment may be one that a truncation is about to remove
                end_offset = min(end_offset, segments.active.base_offset)
            waiting = segments.not_below(self.recovery_point)
            self._appended_since_ms = None
            names_changed, segments.names_changed = segments.names_changed, False
        with self._noting_failure():
            for segment in waiting:
                if not sealed_only or segment.base_offset < end_offset:
                    segment.flush()
            if log.snapshots.flush() or names_changed:
                log.files.sync_directory(log.directory)
            log.leader_epochs.flush()
        with self._guard:
            if self.generation == generation and not sealed_only:
                self.cut_is_unflushed = False
            if self.generation == generation and end_offset > self.recovery_point:
                self.recovery_point = end_offset
                self._unflushed_since_ms = self._appended_since_ms if end_offset < log.log_end_offset else None
        return end_offset

    def flush_sealed(self, segment: Segment) -> None:
        """Only that segment, for a cleaning in its thread."""
        with self._noting_failure():
            segment.flush()

    def flush_active(self) -> None:
        """Only the active segment, where the log is written, before anything goes on."""
        with self._noting_failure():
            self._log.segments.active.flush()
        self.cut_is_unflushed = False

    def flush_snapshots(self) -> None:
        """Only the producers' snapshots, where the log is written."""
        with self._noting_failure():
            self._log.snapshots.flush()
            self._log.files.sync_directory(self._log.directory)

    @contextmanager
    def _noting_failure(self) -> Iterator[None]:
        """Where the disk refuses to take the note, too, the checkpoint is removed: without one,
        nothing is trusted.

        A flush for which no file could be opened has not begun, and is no failed one.
        """
        log = self._log
        try:
            yield
        except OSError as error:
            if error.errno in TABLE_IS_FULL:
                raise
            self.has_failed = log.is_suspect = True
            try:
                log.checkpoint_file.write(flush=True)
            except OSError:
                with suppress(OSError):
                    checkpoints.remove(log.files, log.directory)
            raise

    def unless_over(self, work: Callable[[], None]) -> None:
        """Do it to the folder, or nothing once that was let go of. Raises what ``work`` raises."""
        with self._leaving:
            if not self._is_over:
                work()

    def end(self) -> None:
        """Wait for the flush that is under way, and for what is done ``unless_over``; nothing of
        either is done later.
        """
        with self._one, self._leaving:
            self._is_over = True
