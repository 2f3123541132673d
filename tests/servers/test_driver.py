"""What a driver does with the steps of a machine: their order, their effects, the timer."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from raylog.server.driver import Driver


class Bell:
    """A machine that is due at a time that the test sets, and rings then."""

    def __init__(self) -> None:
        self.due_ms: int | None = None

    def next_deadline_ms(self) -> int | None:
        return self.due_ms

    def tick(self, now_ms: int) -> list[str]:
        if self.due_ms is None or now_ms < self.due_ms:
            return []
        self.due_ms = None
        return [f"rings at {now_ms}"]


class Alarm:
    def __init__(self, at_ms: int, work: Callable[[], object]) -> None:
        self.at_ms = at_ms
        self.work = work
        self.is_set = True

    def cancel(self) -> None:
        self.is_set = False


class HandClock:
    """A clock whose hands the test moves."""

    def __init__(self) -> None:
        self.ms = 100
        self.alarms: list[Alarm] = []

    def now_ms(self) -> int:
        return self.ms

    def wall_ms(self) -> int:
        return self.ms

    def call_later(self, delay_ms: int, work: Callable[[], object]) -> Alarm:
        self.alarms.append(Alarm(self.ms + delay_ms, work))
        return self.alarms[-1]

    def set_for(self) -> list[int]:
        return [alarm.at_ms for alarm in self.alarms if alarm.is_set]

    def goes_off(self, ms: int) -> None:
        self.ms = ms
        (alarm,) = [each for each in self.alarms if each.is_set]
        alarm.is_set = False
        alarm.work()


class Shell:
    """Notes what is carried out; ``causes`` says what an effect causes."""

    def __init__(self) -> None:
        self.machine = Bell()
        self.clock = HandClock()
        self.done: list[str] = []
        self.causes: dict[str, Callable[[], None]] = {}
        self.driver: Driver[str] = Driver(self.machine, self.clock, self.carry_out)

    def carry_out(self, effect: str) -> None:
        self.done.append(effect)
        self.causes.get(effect, lambda: None)()

    def takes(self, *effects: str) -> None:
        self.driver.take(lambda now_ms: list(effects))


def test_a_step_that_an_effect_causes_waits_for_the_effects_behind_it() -> None:
    shell = Shell()
    shell.causes["a"] = lambda: shell.takes("c", "d")
    shell.causes["c"] = lambda: shell.takes("e")
    shell.takes("a", "b")
    assert shell.done == ["a", "b", "c", "d", "e"]


def test_a_step_is_decided_when_its_turn_has_come() -> None:
    shell = Shell()
    shell.causes["a"] = lambda: shell.driver.take(lambda now_ms: [f"after {len(shell.done)} at {now_ms}"])
    shell.takes("a", "b")
    assert shell.done == ["a", "b", "after 2 at 100"]


def test_an_exception_is_the_callers_and_ends_only_its_own_step() -> None:
    shell = Shell()

    def breaks() -> None:
        shell.takes("b")
        raise ValueError("a broken effect")

    shell.causes["a"] = breaks
    with pytest.raises(ValueError, match="a broken effect"):
        shell.takes("a", "never")
    shell.takes("c")
    assert shell.done == ["a", "b", "c"]


def test_the_timer_follows_the_next_deadline() -> None:
    shell = Shell()
    shell.takes("a")
    assert shell.clock.set_for() == []
    for due_ms in (500, 500, 300, 700):
        shell.machine.due_ms = due_ms
        shell.takes("b")
        assert shell.clock.set_for() == [due_ms]
    assert len(shell.clock.alarms) == 3, "the same deadline needs no other timer"
    shell.clock.goes_off(700)
    assert shell.done[-1] == "rings at 700"
    assert shell.clock.set_for() == []


def test_a_timer_that_goes_off_early_is_set_again() -> None:
    shell = Shell()
    shell.machine.due_ms = 500
    shell.takes()
    shell.clock.goes_off(499)
    assert shell.done == [] and shell.clock.set_for() == [500]


def test_a_deadline_that_has_passed_is_due_at_once() -> None:
    shell = Shell()
    shell.machine.due_ms = 50
    shell.takes()
    assert shell.clock.set_for() == [100]


def test_a_driver_that_was_stopped_takes_no_step() -> None:
    shell = Shell()
    shell.machine.due_ms = 500
    shell.causes["a"] = shell.driver.stop
    shell.takes("a", "b")
    shell.takes("c")
    assert shell.done == ["a", "b"], "effects belong to a step that was taken"
    assert shell.clock.set_for() == []
