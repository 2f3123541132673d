"""The timing wheel against the worked examples of Kafka's purgatory and against a sorted list."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from raylog.replication.timing_wheel import TimingWheel


def wheel() -> TimingWheel[str]:
    return TimingWheel(tick_ms=1, size=20)


def level_and_slot(now_ms: int, delay_ms: int) -> tuple[int, int] | None:
    timers = wheel()
    timers.advance(now_ms)
    place = timers.place_of(timers.add(now_ms + delay_ms, "x"))
    return place and place[:2]


def test_tv_30_slots_and_levels() -> None:
    assert level_and_slot(0, 2) == (1, 2)
    assert level_and_slot(2, 8) == (1, 10)
    assert level_and_slot(2, 19) == (1, 1)
    timers = wheel()
    assert timers.place_of(timers.add(350, "x")) == (2, 17, 340)
    for deadline_ms in (450, 446, 455, 473):
        assert timers.place_of(timers.add(deadline_ms, "x")) == (3, 1, 400)
    timers.check()


def test_tv_30_boundaries() -> None:
    assert level_and_slot(0, 19) == (1, 19)
    assert level_and_slot(0, 20) == (2, 1)
    assert level_and_slot(0, 399) == (2, 19)
    assert level_and_slot(0, 400) == (3, 1)
    assert level_and_slot(0, 799) == (3, 1)
    assert level_and_slot(0, 800) == (3, 2)
    timers = wheel()
    at_once = timers.add(0, "now")
    assert timers.place_of(at_once) is None
    assert timers.next_due_ms() == 0
    assert timers.advance(0) == [at_once]


def test_tv_31_downgrade() -> None:
    timers = wheel()
    timer = timers.add(450, "x")
    assert timers.next_due_ms() == 400
    assert timers.advance(400) == []
    assert timers.place_of(timer) == (2, 2, 440)
    assert timers.advance(440) == []
    assert timers.place_of(timer) == (1, 10, 450)
    assert timers.advance(449) == []
    assert timers.advance(450) == [timer]
    assert timers.next_due_ms() is None


def test_a_cancelled_timer_neither_fires_nor_wakes_anybody() -> None:
    timers = wheel()
    timer = timers.add(7, "x")
    kept = timers.add(9, "y")
    timer.cancel()
    timer.cancel()
    assert timers.next_due_ms() == 9
    assert timers.advance(100) == [kept]
    kept.cancel()
    assert len(timers) == 0


def test_a_slot_emptied_by_cancelling_is_used_again() -> None:
    timers = wheel()
    timers.add(5, "x").cancel()
    again = timers.add(25, "y")
    timers.add(5, "z").cancel()
    assert timers.advance(24) == []
    assert timers.advance(25) == [again]


@settings(max_examples=150)
@given(
    size=st.sampled_from([2, 3, 20, 64]),
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.integers(0, 3000)),
            st.tuples(st.just("cancel"), st.integers(0, 50)),
            st.tuples(st.just("advance"), st.integers(0, 900)),
        ),
        max_size=60,
    ),
)
def test_it_fires_what_a_sorted_list_would(size: int, steps: list[tuple[str, int]]) -> None:
    timers: TimingWheel[int] = TimingWheel(tick_ms=1, size=size)
    now_ms, number = 0, 0
    armed = []
    for action, value in steps:
        if action == "add":
            armed.append(timers.add(now_ms + value, number))
            number += 1
        elif action == "cancel" and armed:
            armed.pop(value % len(armed)).cancel()
        elif action == "advance":
            now_ms += value
            due = timers.next_due_ms()
            fired = timers.advance(now_ms)
            expected = [timer for timer in armed if timer.deadline_ms <= now_ms]
            assert sorted(timer.payload for timer in fired) == sorted(timer.payload for timer in expected)
            assert [timer.deadline_ms for timer in fired] == sorted(timer.deadline_ms for timer in fired)
            assert not expected or (due is not None and due <= now_ms)
            armed = [timer for timer in armed if timer.deadline_ms > now_ms]
        timers.check()
        assert len(timers) == len(armed)
