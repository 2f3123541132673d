"""Whoever waits for the Broker's copy of the image to say something: that a leader's process is there, that a topic has leaders.

Nothing is polled: the Broker calls ``image_changed`` with each decision that it has folded in, and the waiters are asked in
the order in which they came. Each wait has an end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

Condition = Callable[[], bool]


class _Waiter:
    __slots__ = ("condition", "then", "timer")

    def __init__(self, condition: Condition, then: Callable[[], None]) -> None:
        self.condition = condition
        self.then = then
        self.timer: asyncio.TimerHandle | None = None


class Arrivals:
    def __init__(self) -> None:
        self._waiters: dict[_Waiter, None] = {}

    def __len__(self) -> int:
        return len(self._waiters)

    def wait(self, condition: Condition, timeout_ms: float, then: Callable[[], None]) -> Callable[[], None]:
        """Call ``then`` when the condition holds, or after ``timeout_ms``; at once where it holds already. Returns how to give up."""
        if condition() or timeout_ms <= 0:
            then()
            return lambda: None
        waiter = _Waiter(condition, then)
        self._waiters[waiter] = None
        waiter.timer = asyncio.get_running_loop().call_later(timeout_ms / 1_000, self._end, waiter)
        return lambda: self._forget(waiter)

    async def until(self, condition: Condition, timeout_ms: float) -> bool:
        """Wait until the condition holds, at most so long; whether it does."""
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        forget = self.wait(condition, timeout_ms, lambda: None if over.done() else over.set_result(None))
        try:
            await over
        finally:
            forget()
        return condition()

    def image_changed(self) -> None:
        """Let those go on for whom the image now says what they wait for."""
        for waiter in list(self._waiters):
            if waiter in self._waiters and waiter.condition():
                self._end(waiter)

    def close(self) -> None:
        """Nobody is called any more."""
        for waiter in list(self._waiters):
            self._forget(waiter)

    def _end(self, waiter: _Waiter) -> None:
        self._forget(waiter)
        waiter.then()

    def _forget(self, waiter: _Waiter) -> None:
        self._waiters.pop(waiter, None)
        if waiter.timer is not None:
            waiter.timer.cancel()
