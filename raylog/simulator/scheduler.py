"""Virtual time: every step of a simulation happens because this scheduler called it, in an order
that one seed decides.

Owns the clock and the queue of future calls; knows nothing of what they do. Time is counted in
microseconds so that messages of one millisecond still have an order; machines are told
milliseconds. Calls due at the same instant run in the order they were asked for. Randomness for
everybody comes from ``Scheduler.rng``, so the order of draws is part of the schedule: code under
simulation must not iterate over sets or draw from anywhere else.

Invariants: the clock never goes back; a cancelled call never runs.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable

Call = Callable[[], None]


class Timer:
    """A call that will happen unless it is cancelled."""

    __slots__ = ("call", "label")

    def __init__(self, call: Call, label: str) -> None:
        self.call: Call | None = call
        self.label = label

    def cancel(self) -> None:
        self.call = None


class Scheduler:
    """``run_next`` advances the clock to the next call and makes it. ``steps`` counts the calls
    made.
    """

    __slots__ = ("_order", "_queue", "now_us", "rng", "steps")

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now_us = 0
        self.steps = 0
        self._queue: list[tuple[int, int, Timer]] = []
        self._order = 0

    @property
    def now_ms(self) -> int:
        return self.now_us // 1000

    def after_us(self, delay_us: int, call: Call, label: str = "") -> Timer:
        assert delay_us >= 0, (delay_us, label)
        timer = Timer(call, label)
        self._order += 1
        heapq.heappush(self._queue, (self.now_us + delay_us, self._order, timer))
        return timer

    def after_ms(self, delay_ms: int, call: Call, label: str = "") -> Timer:
        return self.after_us(delay_ms * 1000, call, label)

    def at_us(self, time_us: int, call: Call, label: str = "") -> Timer:
        return self.after_us(max(0, time_us - self.now_us), call, label)

    def run_next(self) -> str | None:
        """Makes the next call and returns its label; None when nothing is left to do."""
        while self._queue:
            time_us, _, timer = heapq.heappop(self._queue)
            if timer.call is None:
                continue
            assert time_us >= self.now_us, (time_us, self.now_us)
            self.now_us = time_us
            self.steps += 1
            call, timer.call = timer.call, None
            call()
            return timer.label
        return None

    # Draws, so that every simulated part words its chances alike.

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def between(self, low: int, high: int) -> int:
        """A whole number, both ends included."""
        return low + int(self.rng.random() * (high - low + 1))

    def skewed_us(self, typical_us: int) -> int:
        """A delay: mostly near ``typical_us``, sometimes ten times that, rarely a hundred times."""
        draw = self.rng.random()
        factor = 1 if draw < 0.9 else 10 if draw < 0.99 else 100
        return 1 + int(self.rng.random() * 2 * typical_us * factor)
