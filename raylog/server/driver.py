"""What a shell does for its machine, whatever the machine is: takes its steps, keeps its timer.

A machine decides, its shell obeys: each step of the machine gives effects, which the shell carries
out in their order. What carrying them out causes is a step of its own, and waits until they are all
carried out: no effect is older than the state that it belongs to. Time comes from a ``Clock``, so
the simulator drives its machines by the same code.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from raylog.coordination.runtime import Clock

EffectT = TypeVar("EffectT")


class Driven(Protocol[EffectT]):
    """What a driver wants of a machine. Other steps are the business of its shell."""

    def next_deadline_ms(self) -> int | None: ...

    def tick(self, now_ms: int) -> list[EffectT]: ...


class LoopClock:
    """The running event loop's."""

    def now_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def call_later(self, delay_ms: int, work: Callable[[], Any]) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(delay_ms / 1_000, work)


class Driver(Generic[EffectT]):
    """Of one machine. ``carry_out`` does what one effect orders."""

    def __init__(self, machine: Driven[EffectT], clock: Clock, carry_out: Callable[[EffectT], None]) -> None:
        self._machine = machine
        self._clock = clock
        self._carry_out = carry_out
        self._steps: deque[Callable[[int], list[EffectT]]] = deque()  # those that wait for the present one
        self._is_busy = False
        self._is_over = False
        self._cancel_timer: Callable[[], object] = lambda: None
        self._timer_due_ms: int | None = None

    def take(self, step: Callable[[int], list[EffectT]]) -> None:
        """Take a step of the machine, now or behind the present one; ``step`` gets the time in ms.

        If a step or an effect raises, the caller gets the exception, and the step's further effects
        are dropped.
        """
        if self._is_over:
            return
        self._steps.append(step)
        if self._is_busy:
            return
        self._is_busy = True
        try:
            while self._steps and not self._is_over:
                for effect in self._steps.popleft()(self._clock.now_ms()):
                    self._carry_out(effect)
        finally:
            self._is_busy = False
            self._set_timer()

    def stop(self) -> None:
        """Take no steps any more."""
        self._is_over = True
        self._set_timer()

    def _set_timer(self) -> None:
        due_ms = self._machine.next_deadline_ms() if not self._is_over else None
        if due_ms == self._timer_due_ms:
            return
        self._cancel_timer()
        self._timer_due_ms = due_ms
        if due_ms is not None:
            timer = self._clock.call_later(max(0, due_ms - self._clock.now_ms()), self._tick)
            self._cancel_timer = timer.cancel

    def _tick(self) -> None:
        self._timer_due_ms = None
        self.take(self._machine.tick)
