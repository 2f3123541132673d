"""Waits for a change of the Broker's metadata image, such as a new process or a topic's leaders.

Nothing polls. The Broker calls ``image_changed`` after each decision that it applies, and waiters
are checked in the order in which they came. Every wait has a time limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

Condition = Callable[[], bool]


class _WaitForCondition:
    __slots__ = ("condition", "then", "timer")

    def __init__(self, condition: Condition, then: Callable[[], None]) -> None:
        self.condition = condition
        self.then = then
        self.timer: asyncio.TimerHandle | None = None


class Arrivals:
    def __init__(self) -> None:
        self._waiters: dict[_WaitForCondition, None] = {}

    def __len__(self) -> int:
        return len(self._waiters)

    def wait(self, condition: Condition, timeout_ms: float, then: Callable[[], None]) -> Callable[[], None]:
        """Call ``then`` when the condition holds or ``timeout_ms`` has passed; at once if it holds
        now.

        Returns a function that cancels the wait.
        """
        if condition() or timeout_ms <= 0:
            then()
            return lambda: None
        waiter = _WaitForCondition(condition, then)
        self._waiters[waiter] = None
        waiter.timer = asyncio.get_running_loop().call_later(timeout_ms / 1_000, self._end, waiter)
        return lambda: self._forget(waiter)

    async def until(self, condition: Condition, timeout_ms: float) -> bool:
        """Wait until the condition holds or the time is up, and return whether it holds."""
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        forget = self.wait(condition, timeout_ms, lambda: None if over.done() else over.set_result(None))
        try:
            await over
        finally:
            forget()
        return condition()

    def image_changed(self) -> None:
        """Resume the waiters whose condition the image now meets."""
        for waiter in list(self._waiters):
            if waiter in self._waiters and waiter.condition():
                self._end(waiter)

    def close(self) -> None:
        """Drop all waiters without calling them."""
        for waiter in list(self._waiters):
            self._forget(waiter)

    def _end(self, waiter: _WaitForCondition) -> None:
        self._forget(waiter)
        waiter.then()

    def _forget(self, waiter: _WaitForCondition) -> None:
        self._waiters.pop(waiter, None)
        if waiter.timer is not None:
            waiter.timer.cancel()
