"""The time and the chance that clients and Brokers go by: those of the event loop that they live
in.

A loop that simulates time (``raylog.simulator``) has a ``clock`` of its own. Everywhere else it is
the machine's, which any thread may read; the loop's own ``time`` may lag behind that of the threads
that hand records over.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import Final


class MachineClock:
    """The machine's."""

    chance: random.Random = random.SystemRandom()  # not the common one: a program may have seeded it

    def monotonic_s(self) -> float:
        """Never goes back; counts from no particular moment."""
        return time.monotonic()

    def monotonic_ms(self) -> int:
        return int(self.monotonic_s() * 1_000)

    def wall_ms(self) -> int:
        """Since 1970."""
        return time.time_ns() // 1_000_000


_MACHINE: Final = MachineClock()


def clock_of(loop: asyncio.AbstractEventLoop) -> MachineClock:
    """The clock by which whatever lives in that loop goes."""
    clock = getattr(loop, "clock", _MACHINE)
    assert isinstance(clock, MachineClock), clock
    return clock
