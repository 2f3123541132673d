"""What a replica's server does in threads: it opens, closes, flushes, loads, tidies, compacts and
removes logs, and checks records. Each reports an event, or what became of it.

Knows nothing of the server; ``LogCleaner`` has a thread of its own, and as much of its time as it
leaves to the others: a cleaning is Python at work, so after each step the thread rests as long as
that took, for the loop's sake, or longer where ``log.cleaner.io.max.bytes.per.second`` asks for it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from raylog.control.session import Assignment, Removal
from raylog.errors import DiskLockedError, RaylogError, code_of, error_for
from raylog.log.cleaning import Turn
from raylog.log.config import LogConfig
from raylog.log.files import Files
from raylog.log.log import Log
from raylog.log.open_files import OpenFiles
from raylog.log.record_validation import CheckedRecords, checked
from raylog.log.recovery import RecoveryReport
from raylog.log.removal import remove_folder
from raylog.replication.cleaning_rounds import ended
from raylog.replication.events import (
    CheckRecords,
    Clean,
    CleaningEnded,
    CloseLog,
    Flush,
    FlushCompleted,
    FolderRemoved,
    Load,
    Loaded,
    LogClosed,
    LogFailed,
    LogOpened,
    RecordsChecked,
    RunHousekeeping,
)
from raylog.types import TopicIdPartition

logger = logging.getLogger("raylog.replica")
_chance = random.SystemRandom()


def open_log(
    files: Files, disk: str, assignment: Assignment, *, boot_id: str, open_files: OpenFiles | None = None
) -> LogOpened:
    """Open, make or recover the log of a replica that was assigned, in its folder of a disk."""
    directory = os.path.join(disk, f"{assignment.topic}-{assignment.partition}")
    try:
        log = Log.open(
            directory,
            files=files,
            config=LogConfig.from_topic_configs(dict(assignment.config)),
            topic=assignment.topic,
            partition=assignment.partition,
            topic_id=assignment.topic_id,
            now_ms=time.time_ns() // 1_000_000,
            boot_id=boot_id,
            roll_jitter=lambda most: _chance.randint(0, most),
            open_files=open_files,
        )
    except DiskLockedError as error:
        return LogOpened(assignment.id, None, str(error), locked=True)
    except (OSError, RaylogError) as error:
        logger.error("cannot open %s: %s", directory, error)
        return LogOpened(assignment.id, None, str(error))
    except Exception as error:  # a bug of ours: said to the controller, not lost in a thread
        logger.exception("cannot open %s", directory)
        return LogOpened(assignment.id, None, f"{type(error).__name__}: {error}")
    _tell_recovery(directory, log.recovery)
    return LogOpened(assignment.id, log)


def _tell_recovery(directory: str, report: RecoveryReport) -> None:
    if report.converted:
        logger.info("%s: %d segments held messages of old formats and were converted", directory, len(report.converted))
    if report.cut_bytes or report.rebuilt_indexes or report.set_aside:
        logger.info(
            "%s is %s: cut %d bytes (%s), rebuilt %d indexes%s",
            directory,
            report.condition.value,
            report.cut_bytes,
            report.cut_reason,
            len(report.rebuilt_indexes),
            f", set aside {report.set_aside}" if report.set_aside else "",
        )


def remove(files: Files, disk: str, removal: Removal) -> FolderRemoved:
    """Delete the folder of a replica that has no log open here."""
    directory = os.path.join(disk, f"{removal.topic}-{removal.partition}")
    id = TopicIdPartition(removal.topic_id, removal.partition)
    try:
        remove_folder(files, directory, removal.topic_id)
    except DiskLockedError as error:
        return FolderRemoved(id, str(error), locked=True)
    except OSError as error:
        logger.error("cannot delete %s, which is tried again later: %s", directory, error)
        return FolderRemoved(id, str(error))
    return FolderRemoved(id)


def close(effect: CloseLog) -> FolderRemoved | LogClosed | None:
    """Close a log, and delete it if that is wanted."""
    if not effect.delete:
        close_log(effect.log, clean=effect.clean)
        return LogClosed(effect.id) if effect.reports else None
    try:
        effect.log.delete()
    except OSError as error:
        logger.error("cannot delete the folder of %s, which is tried again later: %s", effect.id, error)
        return FolderRemoved(effect.id, str(error))
    return FolderRemoved(effect.id)


def close_cleanly(log: Log) -> None:
    close_log(log, clean=True)


def close_log(log: Log, *, clean: bool) -> None:
    try:
        log.close(clean=clean)
    except OSError as error:
        logger.error("cannot close a log, its next opening will recover it: %s", error)


def flush(effect: Flush) -> FlushCompleted:
    began_ns = time.perf_counter_ns()
    try:
        effect.log.flush()
    except OSError as error:
        return FlushCompleted(effect.id, effect.log_end_offset, str(error), log=effect.log)
    took_ns = time.perf_counter_ns() - began_ns
    return FlushCompleted(effect.id, effect.log_end_offset, log=effect.log, took_ns=took_ns)


def check_records(effect: CheckRecords) -> RecordsChecked:
    try:
        verdict = checked(effect.records, config=effect.config, wall_ms=effect.wall_ms, where=effect.where)
    except Exception as error:  # memory, or a bug of ours: the request behind it must not wait for ever
        logger.exception("cannot check a batch for %s", effect.where)
        verdict = CheckedRecords((), error_for(code_of(error), f"{type(error).__name__}: {error}"), effect.config)
    return RecordsChecked(effect.token, effect.index, verdict)


def load(files: Files, effect: Load) -> Loaded:
    error = None
    try:
        files.load(effect.path, effect.position, effect.size)
    except OSError as broken:
        error = str(broken)
    return Loaded(effect.id, effect.path, effect.position, effect.size, error)


def tidy(effect: RunHousekeeping, wall_ms: int) -> LogFailed | None:
    """What of housekeeping touches the disk much: write the checkpoint, flush rolled segments
    (recovery need not scan them then), unlink deleted ones.
    """
    try:
        effect.log.checkpoint_in_thread()
        if effect.log.has_rolled_unflushed:
            effect.log.flush_rolled()
        effect.log.delete_renamed_files(wall_ms)
    except OSError as error:
        return LogFailed(effect.id, str(error))
    return None


class LogCleaner:
    """Carries out ``Clean``, one at a time, and gives ``report`` its end, on the loop."""

    def __init__(self, report: Callable[[CleaningEnded], None]) -> None:
        self._report = report
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="raylog-clean")
        self._is_over = threading.Event()

    def start(self, order: Clean) -> None:
        """Called on the loop, like all but what runs in the thread."""
        future = asyncio.get_running_loop().run_in_executor(self._thread, self._work, order)
        future.add_done_callback(lambda done: None if done.cancelled() else self._go_on(order, done.result()))

    def _go_on(self, order: Clean, outcome: CleaningEnded | None) -> None:
        while outcome is None and not self._is_over.is_set():  # the thread says: on the loop
            step = _step(order)
            if step is Turn.THREAD:
                self.start(order)
                return
            outcome = step if isinstance(step, CleaningEnded) else None
        if outcome is not None:
            _tell(outcome)
            self._report(outcome)

    def _work(self, order: Clean) -> CleaningEnded | None:
        cleaning, rate = order.cleaning, order.log.config.cleaner_bytes_per_second
        while not self._is_over.is_set():
            before, done = time.perf_counter(), cleaning.bytes_done
            step = _step(order)
            if step is not Turn.THREAD:
                return step if isinstance(step, CleaningEnded) else None
            spent_s = time.perf_counter() - before
            self._is_over.wait(max(spent_s, (cleaning.bytes_done - done) / rate - spent_s))
        return None

    def stop(self) -> None:
        """Leave what is under way as it is; returns when the thread has ended. The logs need not be
        closed before.
        """
        self._is_over.set()
        self._thread.shutdown(wait=True, cancel_futures=True)


def _step(order: Clean) -> Turn | CleaningEnded:
    try:
        turn = order.cleaning.step()
    except OSError as error:
        return ended(order, error)
    except Exception as error:  # a damaged batch, or a bug of ours: the log stays as it is, and that is said
        return ended(order, error)
    return ended(order) if turn is None else turn


def _tell(outcome: CleaningEnded) -> None:
    where, report = outcome.log.where, outcome.cleaning.report
    if outcome.fault is not None:
        logger.error("%s cannot be compacted any further: %s", where, outcome.fault)
    elif report.end_offset >= 0:
        logger.info(
            "compacted %s up to offset %d: %d of %d records left in %d of %d bytes",
            where,
            report.end_offset,
            report.records_after,
            report.records_before,
            report.bytes_after,
            report.bytes_before,
        )
    elif outcome.error is None:
        logger.info("the compaction of %s ended before it was done; it is tried again later", where)
