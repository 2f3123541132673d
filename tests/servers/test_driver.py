"""What a driver does with the steps of a machine: their order, their effects, the timer."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from raylog.server.driver import Driver


class Bell:
    """A machine that orders what an event says, is due at a time that the test sets, and rings then."""

    def __init__(self) -> None:
        self.due_ms: int | None = None
        self.decided: list[str] = []

    def next_deadline_ms(self) -> int | None:
        return self.due_ms

    def handle(self, event: str, now_ms: int, wall_ms: int) -> list[str]:
        self.decided.append(event)
        return event.split()

    def tick(self, now_ms: int, wall_ms: int) -> list[str]:
        self.due_ms = None
        return [f"rings-at-{now_ms}", *["x"] * (wall_ms - now_ms - 1_000)]


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
        return self.ms + 1_000

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
        self.settled: list[int] = []
        """How much was done each time that nothing was left to do."""
        self.driver: Driver[str, str] = Driver(
            self.clock,
            step=self.machine.handle,
            tick=self.machine.tick,
            next_deadline_ms=self.machine.next_deadline_ms,
            carry_out=self.carry_out,
            settled=lambda: self.settled.append(len(self.done)),
        )

    def carry_out(self, effects: list[str]) -> None:
        for effect in effects:
            self.done.append(effect)
            self.causes.get(effect, lambda: None)()

    def takes(self, event: str) -> None:
        self.driver.handle(event)


def test_an_event_that_an_effect_causes_waits_for_the_effects_behind_it() -> None:
    shell = Shell()
    shell.causes["a"] = lambda: shell.takes("c d")
    shell.causes["c"] = lambda: shell.takes("e")
    shell.takes("a b")
    assert shell.done == ["a", "b", "c", "d", "e"]
    assert shell.settled == [5], "the driver rests once"


def test_a_step_is_decided_when_its_turn_has_come() -> None:
    shell = Shell()
    shell.causes["a"] = lambda: shell.takes("c")
    shell.causes["b"] = lambda: (shell.takes("d"), shell.done.append(f"decided {shell.machine.decided}"))[0]
    shell.takes("a b")
    assert shell.done == ["a", "b", "decided ['a b']", "c", "d"], "first come, first taken"


def test_a_step_that_the_caller_takes_is_like_any_other() -> None:
    shell = Shell()
    free = []
    shell.causes["a"] = lambda: (shell.takes("c"), free.append(shell.driver.is_free))[0]
    shell.machine.due_ms = 500
    assert shell.driver.is_free
    shell.driver.carry_out(["a", "b"])
    assert shell.done == ["a", "b", "c"] and free == [False] and shell.driver.is_free
    assert shell.clock.set_for() == [500] and shell.settled == [3]
    shell.machine.due_ms = 400
    shell.driver.rest()
    assert shell.settled == [3, 3] and shell.clock.set_for() == [400]


def test_an_exception_is_the_callers_and_ends_only_its_own_step() -> None:
    shell = Shell()

    def breaks() -> None:
        shell.takes("b")
        raise ValueError("a broken effect")

    shell.causes["a"] = breaks
    with pytest.raises(ValueError, match="a broken effect"):
        shell.takes("a never")
    shell.takes("c")
    assert shell.done == ["a"] and shell.clock.set_for() == [100], "what waits is taken in the next turn of the loop"
    shell.machine.due_ms = 500
    shell.clock.goes_off(100)
    assert shell.done == ["a", "b", "c"] and shell.clock.set_for() == [500] and shell.driver.is_free


def test_a_driver_that_is_stopped_after_an_exception_takes_nothing_that_waits() -> None:
    shell = Shell()

    def breaks() -> None:
        shell.takes("b")
        raise ValueError("a broken effect")

    shell.causes["a"] = breaks
    with pytest.raises(ValueError, match="a broken effect"):
        shell.takes("a")
    shell.driver.stop()
    shell.clock.goes_off(100)
    assert shell.done == ["a"] and shell.clock.set_for() == []


def test_the_timer_is_set_for_an_earlier_deadline_and_left_for_a_later_one() -> None:
    shell = Shell()
    shell.takes("a")
    assert shell.clock.set_for() == []
    for due_ms, at_ms in ((500, 500), (500, 500), (300, 300), (700, 300), (None, 300), (400, 300)):
        shell.machine.due_ms = due_ms
        shell.takes("b")
        assert shell.clock.set_for() == [at_ms]
    assert len(shell.clock.alarms) == 2


def test_a_timer_that_goes_off_early_is_set_again() -> None:
    shell = Shell()
    shell.machine.due_ms = 300
    shell.takes("a")
    shell.machine.due_ms = 500
    shell.clock.goes_off(300)
    assert shell.done == ["a"] and shell.clock.set_for() == [500]
    shell.machine.due_ms = None
    shell.clock.goes_off(500)
    assert shell.done == ["a"] and shell.clock.set_for() == []
    shell.machine.due_ms = 900
    shell.takes("b")
    assert shell.clock.set_for() == [900]


def test_a_deadline_is_judged_in_the_next_turn_of_the_loop() -> None:
    shell = Shell()
    shell.machine.due_ms = 500
    shell.takes("a")
    shell.clock.goes_off(510)
    assert shell.done == ["a"] and shell.clock.set_for() == [510], "what has arrived is handled first"
    shell.causes["rings-at-510"] = lambda: shell.takes("b")
    shell.clock.goes_off(510)
    assert shell.done == ["a", "rings-at-510", "b"] and shell.clock.set_for() == []


def test_a_deadline_that_moves_in_the_last_turn_is_not_judged() -> None:
    shell = Shell()
    shell.machine.due_ms = 500
    shell.takes("a")
    shell.clock.goes_off(510)
    shell.machine.due_ms = 800
    shell.takes("b")
    assert shell.clock.set_for() == [510]
    shell.clock.goes_off(510)
    assert shell.done == ["a", "b"] and shell.clock.set_for() == [800]


def test_a_tick_that_raises_leaves_a_timer() -> None:
    shell = Shell()
    shell.machine.due_ms = 500
    shell.takes("a")
    shell.clock.goes_off(500)

    def breaks() -> None:
        shell.machine.due_ms = 600
        raise ValueError("a broken effect")

    shell.causes["rings-at-500"] = breaks
    with pytest.raises(ValueError, match="a broken effect"):
        shell.clock.goes_off(500)
    assert shell.clock.set_for() == [600] and shell.driver.is_free


def test_a_deadline_that_has_passed_is_due_at_once() -> None:
    shell = Shell()
    shell.machine.due_ms = 50
    shell.takes("a")
    assert shell.clock.set_for() == [100]


def test_a_driver_that_was_stopped_takes_no_step() -> None:
    shell = Shell()
    shell.machine.due_ms = 500
    shell.takes("a")
    shell.causes["b"] = lambda: (shell.takes("never"), shell.driver.stop())[0]
    shell.takes("b c")
    shell.takes("d")
    assert shell.done == ["a", "b", "c"], "effects belong to a step that was taken"
    assert shell.clock.set_for() == [] and not shell.driver.is_free


def test_a_driver_that_is_stopped_between_a_deadline_and_its_turn_never_ticks() -> None:
    shell = Shell()
    shell.machine.due_ms = 500
    shell.takes("a")
    shell.clock.goes_off(500)
    shell.driver.stop()
    assert shell.done == ["a"] and shell.clock.set_for() == []
