"""When a sender's rounds run: at the earliest moment that was asked for (``RoundTimer``), and as soon
as anybody calls for one, from any thread (``RoundCall``). Many calls before the round make one.

A thread that encodes batch after batch holds the interpreter's lock, and the thread of the sender's
loop gets it only when the switch interval is over (``sys.getswitchinterval``, five milliseconds):
anew after each wait for a socket. The first batches of a burst would lie idle until
``buffer.memory`` is full. Therefore whoever has added a batch lets an overdue round in
(``let_in``): it waits until that has run, which gives the lock away, and only then encodes the next
batch. A round is overdue when ``OVERDUE_MS`` have passed since it was asked for. So a caller whose
batches are small waits once in so many milliseconds, and one beside an idle loop hardly ever.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Final

from raylog.clock import clock_of

OVERDUE_MS: Final = 1.0
PATIENCE_S: Final = 0.005
"""How long a caller waits for an overdue round at most: a loop that is busy otherwise keeps nobody
from encoding.
"""


class RoundCall:
    """Made in the loop's thread, in which ``run`` is called."""

    def __init__(self, loop: asyncio.AbstractEventLoop, run: Callable[[], None]) -> None:
        self._loop = loop
        self._clock = clock_of(loop)
        self._run = run
        self._thread = threading.get_ident()
        self._is_asked = False
        self._asked_at_s = 0.0
        self._has_run = threading.Event()

    def ask(self) -> bool:
        """Have a round run in a turn of the loop to come. False if the loop is closed: at the
        interpreter's end.
        """
        if self._is_asked:
            return True
        self._asked_at_s = self._clock.monotonic_s()
        self._is_asked = True
        try:
            if threading.get_ident() == self._thread:
                self._loop.call_soon(self._called)
            else:
                self._loop.call_soon_threadsafe(self._called)
        except RuntimeError:
            return False
        return True

    def let_in(self) -> None:
        """Wait until an overdue round has run, for ``PATIENCE_S`` at most. In the loop's own thread
        nobody waits.
        """
        if not self._is_asked or threading.get_ident() == self._thread:
            return
        if (self._clock.monotonic_s() - self._asked_at_s) * 1_000 < OVERDUE_MS:
            return
        self._has_run.clear()
        if self._is_asked:
            self._has_run.wait(PATIENCE_S)

    def _called(self) -> None:
        self._is_asked = False
        try:
            self._run()
        finally:
            self._has_run.set()


class RoundTimer:
    """Calls ``fire`` at the earliest moment named since it last did, or a little later."""

    def __init__(self, loop: asyncio.AbstractEventLoop, fire: Callable[[], None]) -> None:
        self._loop = loop
        self._clock = clock_of(loop)
        self._fire = fire
        self._handle: asyncio.TimerHandle | None = None
        self._at_ms = float("inf")

    def at(self, at_ms: float) -> None:
        """Fire then at the latest. Infinity is never."""
        if self._handle is not None:
            if self._at_ms <= at_ms:
                return  # it comes early and is set again
            self._handle.cancel()
            self._handle = None
        self._at_ms = at_ms
        if at_ms != float("inf"):
            now_ms = self._clock.monotonic_s() * 1000
            self._handle = self._loop.call_later(max(0.0, at_ms - now_ms) / 1000 + 0.0005, self._fired)

    def _fired(self) -> None:
        self._handle = None
        self._at_ms = float("inf")
        self._fire()

    def cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
