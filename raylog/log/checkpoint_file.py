"""The checkpoint file of one log as it is written: what the file says by now, and whether that
survives a loss of power.

``Log`` decides when; the format is ``checkpoint``'s. Threads: ``write`` may run in any, the rest
where the log is written.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from raylog.log import checkpoint as checkpoints
from raylog.log.checkpoint import ReplicaCheckpoint

if TYPE_CHECKING:
    from raylog.log.log import Log


class CheckpointFile:
    __slots__ = ("_log", "_one", "_written_is_flushed", "is_behind", "written")

    def __init__(self, log: Log) -> None:
        self._log = log
        self._one = threading.Lock()  # they share a temporary file; a flush that fails writes one, too
        self.written: ReplicaCheckpoint | None = None  # what the file says, as far as this log knows
        self._written_is_flushed = False
        self.is_behind = False  # the recovery point on the disk may be above the real one

    def claims_at_most(self, offset: int) -> bool:
        """Whether what the file says stays true of a log that ends at ``offset``."""
        with self._one:
            return self.written is not None and self.written.claims_at_most(offset)

    def write(self, *, clean: bool = False, flush: bool = False) -> None:
        """Unless it says the same already. Thread safe, but for the end of the log
        (``Log.checkpoint_in_thread``).

        In another thread the facts may move while they are read, one after the other. Each was true
        when it was read, and stays so but for a cut, which lowers the offsets, then takes the lock,
        and writes again what claims too much before it touches a record: until then the log is
        whole, and holds whatever was true of it. Of offsets that rise the log's start is read
        before the high watermark, which it never passes. The facts that are no offsets
        (``is_suspect``, ``has_failed``, ``flushed_always``) are followed by a checkpoint of their
        own, too, by whoever changes them.
        """
        log = self._log
        flush = flush or log.flushed_always
        with self._one:
            log_start_offset = log.log_start_offset
            checkpoint = ReplicaCheckpoint(
                recovery_point=log.recovery_point,
                high_watermark=log.high_watermark,
                log_start_offset=log_start_offset,
                cleaner_point=log.compaction.point,
                boot_id=log.boot_id,
                flushed_always=log.flushed_always,
                clean=clean,
                suspect=log.is_suspect,
                flush_failed=log.flushes.has_failed,
            )
            if checkpoint != self.written or flush > self._written_is_flushed:
                self.written = None
                checkpoints.write(log.files, log.directory, checkpoint, flush=flush)
                self.written, self._written_is_flushed = checkpoint, flush
            if flush:
                self.is_behind = False
