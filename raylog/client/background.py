"""The one event loop that all synchronous handles of a process share, in a daemon thread of its own.

Started when first needed; uvloop's where it is installed. Callers hand coroutines over with ``run`` and block until
they end. The loop does not survive a fork (threads don't): in a child the next handle starts another one, and handles
made before the fork open their connections anew, with a notice; what the parent had buffered is the parent's to send.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from raylog.errors import ClientTimeoutError, ClosedError

logger = logging.getLogger("raylog.client")

T = TypeVar("T")


class BackgroundLoop:
    """A running loop in its thread, which has that name."""

    def __init__(self, name: str) -> None:
        self.loop = _new_loop()
        self.thread = threading.Thread(target=self._main, name=name, daemon=True)
        self.thread.start()

    def _main(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """The coroutine's result, waited for by this thread. Not to be called on the loop's own thread."""
        if threading.current_thread() is self.thread:
            work.close()
            raise ClosedError(
                "a blocking call inside a callback would wait for itself: hand the work to another thread, or use the async client"
            )
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result(timeout_s)
        except TimeoutError:
            if future.done():
                raise  # the work's own
            future.cancel()
            raise ClientTimeoutError(f"not done within {timeout_s:g} s") from None
        except BaseException:
            future.cancel()
            raise

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.loop.call_soon_threadsafe(callback)


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


_lock = threading.Lock()
_current: BackgroundLoop | None = None
generation = 0
"""Counts forks: a handle that remembers another number was opened in a parent process."""


def background() -> BackgroundLoop:
    """This process's loop."""
    global _current
    if _current is None:
        with _lock:
            if _current is None:
                _current = BackgroundLoop("raylog-client")
    return _current


def _forget_after_fork() -> None:
    global _current, _lock, generation
    if _current is not None:
        generation += 1
    _current = None
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_after_fork)


def notice_fork(what: str) -> None:
    """Say once per handle that it starts afresh in a forked child."""
    logger.warning(
        "%s was opened before this process was forked: it connects anew here; records buffered then are the parent's",
        what,
    )
