"""An event loop in a daemon thread of its own, uvloop's where it is installed, to which other
threads hand coroutines over.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from raylog.errors import ClientTimeoutError, ClosedError

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
        """The coroutine's result, waited for by this thread. Not to be called on the loop's own
        thread.
        """
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
