"""What a shell does for its machine, whatever the machine is: takes its steps, keeps its timer.

A machine decides, its shell obeys: each event is a step of the machine and gives effects, which the
shell carries out in their order. An event that comes while they are carried out, because one of
them caused it, waits until all of them are: no effect is older than the state that it belongs to.
What a thread has done comes back as an event like any other.

If a step or an effect raises, the caller gets the exception. The further effects of that step are
dropped; events that wait are taken in the next turn of the loop.

There is one timer. It may go off early: most deadlines are cancelled before they come, and setting
the timer anew for each of them costs more than a look at the machine. When a deadline has come,
everything that has arrived is handled first: the callback asks for another turn of the loop, and
looks at the deadline again. So a process that stood still takes nobody for silent whose word lies
in its sockets.

Time comes from a ``Clock``, so the simulator drives its machines by the same code.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from raylog.coordination.runtime import Clock

EventT = TypeVar("EventT")
EffectT = TypeVar("EffectT")


class LoopClock:
    """The running event loop's."""

    def now_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def call_later(self, delay_ms: int, work: Callable[[], Any]) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(delay_ms / 1_000, work)


def _nothing() -> None:
    pass


class Driver(Generic[EventT, EffectT]):
    """Of one machine, all of whose steps go through it."""

    __slots__ = (
        "_cancel_timer",
        "_carry_out",
        "_clock",
        "_is_over",
        "_next_deadline_ms",
        "_now_ms",
        "_settled",
        "_step",
        "_tick",
        "_timer_due_ms",
        "_waiting",
        "_wall_ms",
        "is_free",
    )

    def __init__(
        self,
        clock: Clock,
        *,
        step: Callable[[EventT, int, int], list[EffectT]],
        tick: Callable[[int, int], list[EffectT]],
        next_deadline_ms: Callable[[], int | None],
        carry_out: Callable[[list[EffectT]], None],
        settled: Callable[[], None] = _nothing,
    ) -> None:
        """``step`` is the machine's on an event, ``tick`` the one on a deadline; both get the time
        and the time of day in ms.

        ``carry_out`` does what a step's effects order. ``settled`` is called when nothing is left
        to be carried out.
        """
        self._clock = clock
        self._now_ms = clock.now_ms
        self._wall_ms = clock.wall_ms
        self._step = step
        self._tick = tick
        self._next_deadline_ms = next_deadline_ms
        self._carry_out = carry_out
        self._settled = settled
        self._waiting: deque[EventT] = deque()
        self._is_over = False
        self._cancel_timer: Callable[[], object] = _nothing
        self._timer_due_ms: int | None = None
        self.is_free = True
        """Whether a step may be taken now: no other one is under way, and it is not over."""

    def handle(self, event: EventT) -> None:
        """Take the machine's step on that event: now, or behind the present one, or never if it is
        over.
        """
        if not self.is_free:
            if not self._is_over:
                self._waiting.append(event)
            return
        self.is_free = False
        try:
            self._carry_out(self._step(event, self._now_ms(), self._wall_ms()))
            if self._waiting:
                self._take_waiting()
        finally:
            self.rest()

    def carry_out(self, effects: list[EffectT]) -> None:
        """Carry out the effects of a step that the caller has taken himself, while the driver was
        free.
        """
        assert self.is_free, "another step is under way, or the driver is over"
        self.is_free = False
        try:
            self._carry_out(effects)
            if self._waiting:
                self._take_waiting()
        finally:
            self.rest()

    def rest(self) -> None:
        """After every step. Called from outside behind one that the caller has taken himself and
        that orders nothing.
        """
        if self._is_over:
            return
        if self._waiting:  # something has raised
            self._clock.call_later(0, self._go_on)
            return
        self.is_free = True
        self._settled()
        due_ms = self._next_deadline_ms()
        if due_ms is not None and (self._timer_due_ms is None or due_ms < self._timer_due_ms):
            self._set_timer(due_ms)

    def stop(self) -> None:
        """Take no steps any more. The effects of the present one are still carried out."""
        self._is_over = True
        self.is_free = False
        self._waiting.clear()
        self._cancel_timer()

    def _take_waiting(self) -> None:
        waiting = self._waiting
        while waiting:
            self._carry_out(self._step(waiting.popleft(), self._now_ms(), self._wall_ms()))

    def _go_on(self) -> None:
        try:
            self._take_waiting()
        finally:
            self.rest()

    def _set_timer(self, due_ms: int) -> None:
        self._cancel_timer()
        self._timer_due_ms = due_ms
        self._cancel_timer = self._clock.call_later(max(0, due_ms - self._now_ms()), self._went_off).cancel

    def _went_off(self) -> None:
        if self._look():
            self._cancel_timer = self._clock.call_later(0, self._judge).cancel

    def _judge(self) -> None:
        """The other turn of the loop: what had arrived has been handled."""
        if not self._look():
            return
        self._timer_due_ms = None
        self.is_free = False
        try:
            self._carry_out(self._tick(self._now_ms(), self._wall_ms()))
            self._take_waiting()
        finally:
            self.rest()

    def _look(self) -> bool:
        """Whether a deadline has come; if not, the timer is set for the next one."""
        due_ms = self._next_deadline_ms()
        if due_ms is not None and due_ms <= self._now_ms():
            return True
        self._timer_due_ms = None
        if due_ms is not None:
            self._set_timer(due_ms)
        return False
