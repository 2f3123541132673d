"""Faults to be patched into the driver of all machines, by name, as in ``mutations``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from raylog.server.driver import Driver

Mutation = Callable[[pytest.MonkeyPatch], None]


def take_a_step_amid_the_effects_of_another(patch: pytest.MonkeyPatch) -> None:
    """What an effect causes is not left for later."""

    def nested(self: Driver[Any, Any], event: Any) -> None:
        self._carry_out(self._step(event, self._now_ms(), self._wall_ms()))
        self.is_free = True
        self.rest()

    patch.setattr(Driver, "handle", nested)


def drop_the_events_that_wait(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Driver, "_take_waiting", lambda self: self._waiting.clear())


def take_the_events_that_wait_last_first(patch: pytest.MonkeyPatch) -> None:
    def backwards(self: Driver[Any, Any]) -> None:
        while self._waiting:
            self._carry_out(self._step(self._waiting.pop(), self._now_ms(), self._wall_ms()))

    patch.setattr(Driver, "_take_waiting", backwards)


def forget_the_timer_that_went_off_early(patch: pytest.MonkeyPatch) -> None:
    """Its machine's next deadlines are later, and each is believed to have a timer."""

    def forgetful(self: Driver[Any, Any]) -> bool:
        due_ms = self._next_deadline_ms()
        return due_ms is not None and due_ms <= self._now_ms()

    patch.setattr(Driver, "_look", forgetful)


def leave_the_timer_for_an_earlier_deadline(patch: pytest.MonkeyPatch) -> None:
    set_timer = Driver._set_timer

    def lazy(self: Driver[Any, Any], due_ms: int) -> None:
        if self._timer_due_ms is None:
            set_timer(self, due_ms)

    patch.setattr(Driver, "_set_timer", lazy)


def judge_a_deadline_at_once(patch: pytest.MonkeyPatch) -> None:
    """Before what has arrived is handled."""
    patch.setattr(Driver, "_went_off", lambda self: self._judge())


DRIVER_MUTATIONS: dict[str, Mutation] = {
    mutation.__name__: mutation
    for mutation in (
        take_a_step_amid_the_effects_of_another,
        drop_the_events_that_wait,
        take_the_events_that_wait_last_first,
        forget_the_timer_that_went_off_early,
        leave_the_timer_for_an_earlier_deadline,
        judge_a_deadline_at_once,
    )
}
