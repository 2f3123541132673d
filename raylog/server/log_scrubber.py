"""Carries out ``Scrub`` for a replica's server: reads logs through for damage, in threads.

One thread reads at leisure, at most so fast as ``log.scrub.io.max.bytes.per.second`` says; another
one does what is urgent. What either finds is judged by the machine
(``raylog.replication.scrubbing``), on the loop.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from raylog.replication.events import Scrub, ScrubEnded

logger = logging.getLogger("raylog.replica")


class LogScrubber:
    """Gives ``report`` the end of each order, on the loop."""

    def __init__(self, report: Callable[[ScrubEnded], None]) -> None:
        self._report = report
        self._leisure = ThreadPoolExecutor(1, thread_name_prefix="raylog-scrub")
        self._urgent = ThreadPoolExecutor(1, thread_name_prefix="raylog-verify")
        self._is_over = threading.Event()

    def start(self, order: Scrub) -> None:
        """Called on the loop."""
        threads = self._urgent if order.scrubbing.is_urgent else self._leisure
        future = asyncio.get_running_loop().run_in_executor(threads, self._work, order)
        future.add_done_callback(lambda done: None if done.cancelled() else self._end(done.result()))

    def _work(self, order: Scrub) -> ScrubEnded | None:
        """None if the process stops meanwhile."""
        scrubbing = order.scrubbing
        while not self._is_over.is_set():
            before, began = scrubbing.bytes_done, time.perf_counter()
            try:
                if not scrubbing.step():
                    return ScrubEnded(order.id, order.log, scrubbing)
            except OSError as error:
                return ScrubEnded(order.id, order.log, scrubbing, str(error))
            if not scrubbing.is_urgent:
                due_s = (scrubbing.bytes_done - before) / order.log.config.scrub_bytes_per_second
                self._is_over.wait(max(0.0, due_s - (time.perf_counter() - began)))
        scrubbing.close()
        return None

    def _end(self, outcome: ScrubEnded | None) -> None:
        if outcome is None:
            return
        if outcome.scrubbing.damage is not None:
            logger.error("%s is damaged: %s", outcome.log.where, outcome.scrubbing.damage.words())
        self._report(outcome)

    def stop(self) -> None:
        """Leave what is under way as it is; returns when the threads have ended."""
        self._is_over.set()
        for threads in (self._leisure, self._urgent):
            threads.shutdown(wait=True, cancel_futures=True)
