"""Day and night in a simulated cluster: how often clients, people and faults act.

By day they act as often as they like, which is hundreds of times a second, so that a run of some
thousand events is over after seconds of the cluster's time. What takes longer than that (sessions,
retention, expiry of producers and offsets, many heartbeats) needs the night: then everybody acts
hundreds of times more rarely, while every timer of the machines fires when it is due. A night of an
hour costs what an hour of heartbeats costs.

Whoever acts again and again asks for the next time here. Who sleeps when the day breaks is woken.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from raylog.simulator.scheduler import Scheduler, Timer

SLOWNESS = 400  # of the night


class Arm(Protocol):
    """``Scheduler.after_us`` or ``Process.later``."""

    def __call__(self, delay_us: int, work: Callable[[], None], label: str, /) -> Timer: ...


class Rhythm:
    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.is_night = False
        self._sleepers: dict[int, tuple[Timer, Arm, int, Callable[[], None], str]] = {}
        self._numbers = 0

    def later(self, arm: Arm, typical_us: int, work: Callable[[], None], label: str) -> None:
        """Do ``work`` after a while: mostly about ``typical_us`` by day."""
        if not self.is_night:
            arm(self._scheduler.skewed_us(typical_us), work, label)
            return
        self._numbers += 1
        number = self._numbers

        def awake() -> None:
            self._sleepers.pop(number, None)  # gone if day broke while its process was paused
            work()

        timer = arm(self._scheduler.skewed_us(typical_us) * SLOWNESS, awake, label)
        self._sleepers[number] = (timer, arm, typical_us, work, label)

    def fall_asleep(self) -> None:
        """Who has the next time already acts once more as by day."""
        self.is_night = True

    def wake_up(self) -> None:
        self.is_night = False
        sleepers, self._sleepers = self._sleepers, {}
        for timer, arm, typical_us, work, label in sleepers.values():
            if timer.call is not None:
                timer.cancel()
                self.later(arm, typical_us, work, label)
