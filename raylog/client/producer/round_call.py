"""Who wants a round of a sender asks for it here, from any thread; many calls before the round make
one.

A thread that encodes batch after batch holds the interpreter's lock, and the thread of the sender's
loop gets it only when the switch interval is over (``sys.getswitchinterval``, five milliseconds):
anew after each wait for a socket. So the first batches of a burst lay idle until
``buffer.memory`` was full. Therefore whoever has added a batch lets an overdue round in
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
