"""The threads in which a replica's server works on its logs, and what it has done in each.

Opening, flushing, closing and removing logs share a few threads. Reads of what is not in the page
cache have two of their own: no flush waits for them. Produced records that take long to check have
two more. One thread does the housekeeping: checkpoints of many logs that several threads wrote at
once would keep the interpreter's lock from the loop. The cleaner and the scrubber bring their own.

Everything here is called on the loop and returns at once, and what becomes of the work is reported
there. The work itself is ``log_work``'s.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from raylog.control.session import Assignment, Removal
from raylog.log.files import Files, NotInMemory
from raylog.log.log import Log
from raylog.log.open_files import OpenFiles
from raylog.replication.events import (
    CheckRecords,
    Clean,
    CloseLog,
    Event,
    Flush,
    Load,
    LogFailed,
    RunHousekeeping,
    Scrub,
)
from raylog.server import log_work
from raylog.server.log_scrubber import LogScrubber

logger = logging.getLogger("raylog.replica")

THREADS = 4
LOADING_THREADS = 2
CHECKING_THREADS = 2


class LogThreads:
    """All threads of one process that holds replicas: a ``LogShell``. ``report`` gets each event
    that the work ends with.
    """

    def __init__(
        self, files: Files, disk: str, report: Callable[[Event], None], *, boot_id: str, open_files: OpenFiles
    ):
        self._files = files
        self._disk = disk
        self._report = report
        self._boot_id = boot_id
        self._open_files = open_files
        self._logs = ThreadPoolExecutor(THREADS, thread_name_prefix="raylog-log")
        self._loading = ThreadPoolExecutor(LOADING_THREADS, thread_name_prefix="raylog-load")
        self._checking = ThreadPoolExecutor(CHECKING_THREADS, thread_name_prefix="raylog-check")
        self._tidying = ThreadPoolExecutor(1, thread_name_prefix="raylog-tidy")
        self._cleaner = log_work.LogCleaner(report)
        self._scrubber = LogScrubber(report)

    def open_log(self, assignment: Assignment) -> None:
        work = partial(
            log_work.open_log,
            self._files,
            self._disk,
            assignment,
            boot_id=self._boot_id,
            open_files=self._open_files,
        )
        self._start(self._logs, work)

    def close_log(self, order: CloseLog) -> None:
        self._start(self._logs, partial(log_work.close, order))

    def remove_folder(self, removal: Removal) -> None:
        self._start(self._logs, partial(log_work.remove, self._files, self._disk, removal))

    def flush_log(self, order: Flush) -> None:
        self._start(self._logs, partial(log_work.flush, order))

    def check_records(self, order: CheckRecords) -> None:
        self._start(self._checking, partial(log_work.check_records, order))

    def load_range(self, order: Load) -> None:
        self._start(self._loading, partial(log_work.load, self._files, order))

    def clean_log(self, order: Clean) -> None:
        self._cleaner.start(order)

    def scrub_log(self, order: Scrub) -> None:
        self._scrubber.start(order)

    def _start(self, threads: ThreadPoolExecutor, work: Callable[[], Event | None]) -> None:
        asyncio.get_running_loop().run_in_executor(threads, work).add_done_callback(self._done)

    def _done(self, work: asyncio.Future[Any]) -> None:
        event = None if work.cancelled() else work.result()
        if event is not None:
            self._report(event)

    def keep_house(self, order: RunHousekeeping) -> None:
        wall_ms = time.time_ns() // 1_000_000
        order.log.forget_committed()
        if order.retention:
            try:
                order.log.delete_old_segments(wall_ms)
            except OSError as error:
                self._report(LogFailed(order.id, str(error)))
                return
            order.log.expire_producers(wall_ms)
        self._start(self._tidying, partial(log_work.tidy, order, wall_ms))

    def load(self, missing: NotInMemory, then: Callable[[], None]) -> None:
        """Bring bytes into memory; then call ``then``. A disk that fails is found out by the next
        read.
        """

        def loaded() -> None:
            try:
                self._files.load(missing.path, missing.position, missing.size)
            except OSError as error:
                logger.error("cannot load %s: %s", missing.path, error)

        future = asyncio.get_running_loop().run_in_executor(self._loading, loaded)
        future.add_done_callback(lambda done: None if done.cancelled() else then())

    async def close_cleanly(self, logs: Iterable[Log]) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.gather(*[loop.run_in_executor(self._logs, log_work.close_cleanly, log) for log in logs])

    def stop(self) -> None:
        """Return when no thread works any more. What the logs were to have done has been done by
        then; other work may be dropped.
        """
        self._cleaner.stop()
        self._scrubber.stop()
        self._logs.shutdown(wait=True)
        for threads in (self._loading, self._checking, self._tidying):
            threads.shutdown(wait=True, cancel_futures=True)
