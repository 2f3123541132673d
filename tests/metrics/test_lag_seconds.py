"""Lag in seconds, from when a partition was seen to end where."""

from __future__ import annotations

from raylog.metrics.lag_seconds import KEPT_S, NOTES_MAX, EndTimes
from raylog.types import TopicPartition

PLACE, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)


def seen(*notes: tuple[float, int]) -> EndTimes:
    times = EndTimes()
    for now_s, end in notes:
        times.note(PLACE, end, now_s)
    return times


def test_who_has_committed_all_is_not_behind() -> None:
    times = seen((0.0, 10), (10.0, 20))
    assert times.lag_s(PLACE, 20, 15.0) == times.lag_s(PLACE, 25, 15.0) == 0
    assert times.lag_s(OTHER, 0, 15.0) == 0, "of which nothing is known"


def test_records_between_two_notes_are_taken_to_have_come_evenly() -> None:
    times = seen((0.0, 10), (10.0, 20), (20.0, 20), (30.0, 30))
    assert times.lag_s(PLACE, 19, 40.0) == 30
    assert times.lag_s(PLACE, 14, 40.0) == 35
    assert times.lag_s(PLACE, 20, 40.0) == 19, "nothing came before second 20"


def test_a_silent_partition_ages_and_keeps_two_notes() -> None:
    times = seen((0.0, 10), *((float(second), 20) for second in range(10, 1_000)))
    assert times.lag_s(PLACE, 19, 1_000.0) == 990
    times.note(PLACE, 30, 1_009.0)
    assert times.lag_s(PLACE, 29, 1_009.0) == 0 and times.lag_s(PLACE, 20, 1_009.0) == 9


def test_what_came_before_the_first_note_has_at_least_its_age() -> None:
    assert seen((5.0, 10)).lag_s(PLACE, 3, 25.0) == 20
    assert seen((5.0, 10), (5.0 + KEPT_S + 1, 11)).lag_s(PLACE, 3, 5.0 + KEPT_S + 1) == 0, "an old note is forgotten"


def test_a_partition_that_was_cut_begins_anew_there() -> None:
    times = seen((0.0, 10), (10.0, 20), (20.0, 15))
    assert times.lag_s(PLACE, 15, 30.0) == 0
    assert times.lag_s(PLACE, 14, 30.0) == 10


def test_notes_are_bounded_and_go_with_their_partition() -> None:
    times = seen(*((float(second), second) for second in range(10 * NOTES_MAX)))
    assert len(times._notes[PLACE]) <= NOTES_MAX
    assert times.lag_s(PLACE, 10 * NOTES_MAX - 11, 10.0 * NOTES_MAX) == 10
    times.keep([OTHER])
    assert times.lag_s(PLACE, 0, 1.0) == 0
