"""What the processes of a broker say becomes one: totals do not fall, and series are bounded."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from raylog.metrics import table
from raylog.metrics.joined import JoinedMetrics, Process
from raylog.metrics.registry import Samples
from raylog.metrics.table import OTHER_TOPICS
from raylog.time_counts import TimeCounts

A: Process = (2, 1)
A_AGAIN: Process = (2, 2)
B: Process = (3, 1)


def samples(*, leaders: int = 0, **bytes_in: int) -> Samples:
    found = Samples()
    found.add(table.LEADERS, leaders)
    for topic, count in bytes_in.items():
        found.add(table.BYTES_IN, count, topic)
    return found


def joined(
    metrics: JoinedMetrics,
    told: Mapping[Process, Samples],
    *,
    silent: set[Process] = frozenset(),  # type: ignore[assignment]
    series_max: int = 10,
    has_topic: Callable[[str], bool] = lambda topic: True,
) -> Samples:
    return metrics.join(told, living={*told, *silent}, series_max=series_max, has_topic=has_topic)


def bytes_in(found: Samples) -> dict[str, float]:
    return {topic: value for (topic,), value in found.of(table.BYTES_IN).items()}


def test_counters_are_added_up_and_gauges_summed() -> None:
    metrics = JoinedMetrics()
    found = joined(metrics, {A: samples(t=3, leaders=1), B: samples(t=4, u=5, leaders=2)})
    assert bytes_in(found) == {"t": 7, "u": 5} and found.of(table.LEADERS) == {(): 3}
    found = joined(metrics, {A: samples(t=3, leaders=2), B: samples(t=5, u=5)})
    assert bytes_in(found) == {"t": 8, "u": 5} and found.of(table.LEADERS) == {(): 2}


def test_a_process_that_ends_leaves_its_counts_and_a_new_one_adds_to_them() -> None:
    metrics = JoinedMetrics()
    joined(metrics, {A: samples(t=100), B: samples(t=10)})
    assert bytes_in(joined(metrics, {B: samples(t=11)})) == {"t": 111}
    assert bytes_in(joined(metrics, {A_AGAIN: samples(t=7), B: samples(t=11)})) == {"t": 118}


def test_a_process_that_is_silent_once_is_not_counted_twice() -> None:
    metrics = JoinedMetrics()
    joined(metrics, {A: samples(t=100), B: samples(t=10)})
    assert bytes_in(joined(metrics, {B: samples(t=10)}, silent={A})) == {"t": 110}
    assert bytes_in(joined(metrics, {A: samples(t=101), B: samples(t=10)})) == {"t": 111}


def test_a_count_that_began_anew_is_added() -> None:
    metrics = JoinedMetrics()
    joined(metrics, {A: samples(t=100)})
    assert bytes_in(joined(metrics, {A: samples()})) == {"t": 100}
    assert bytes_in(joined(metrics, {A: samples(t=4)})) == {"t": 104}


def test_topics_beyond_the_bound_are_counted_together_and_the_sum_holds() -> None:
    metrics = JoinedMetrics()
    found = joined(metrics, {A: samples(t=1, u=2, v=4, w=8)}, series_max=2)
    assert bytes_in(found) == {"t": 1, "u": 2, OTHER_TOPICS: 12}
    assert found.of(table.SERIES_LEFT_OUT) == {(table.BYTES_IN.name,): 2}
    found = joined(metrics, {A: samples(a=16, t=1, u=3, v=5, w=8)}, series_max=2)
    assert bytes_in(found) == {"t": 1, "u": 3, OTHER_TOPICS: 29}, "who has a series keeps it"


def test_series_of_gauges_beyond_the_bound_are_left_out_and_counted() -> None:
    told = Samples()
    for partition in range(5):
        told.add(table.LOG_SIZE, 1, "t", str(partition))
    found = joined(JoinedMetrics(), {A: told}, series_max=3)
    assert sorted(found.of(table.LOG_SIZE)) == [("t", "0"), ("t", "1"), ("t", "2")]
    assert found.of(table.SERIES_LEFT_OUT) == {(table.LOG_SIZE.name,): 2}


def test_a_topic_takes_its_series_along_and_one_of_that_name_begins_at_zero() -> None:
    metrics = JoinedMetrics()
    joined(metrics, {A: samples(t=100, u=1)})
    assert bytes_in(joined(metrics, {A: samples(t=100, u=1)}, has_topic=lambda topic: topic != "t")) == {"u": 1}
    assert bytes_in(joined(metrics, {A: samples(t=130, u=1)})) == {"t": 30, "u": 1}


def test_histograms_are_added_up_and_whole_whatever_the_bound() -> None:
    def told(*lengths_ms: int) -> Samples:
        found, times = Samples(), TimeCounts()
        for length_ms in lengths_ms:
            times.add(length_ms * 1_000_000)
        found.add_times(table.TOTAL_TIME, times, "Fetch")
        return found

    metrics = JoinedMetrics()
    joined(metrics, {A: told(1, 20, 20), B: told(300)}, series_max=1)
    found = joined(metrics, {A_AGAIN: told(3), B: told(300, 20)}, series_max=1)
    assert found.of(table.TOTAL_TIME) == {
        ("Fetch", "1.0"): 1, ("Fetch", "5.0"): 1, ("Fetch", "25.0"): 3, ("Fetch", "500.0"): 1, ("Fetch", "sum"): 364
    }  # fmt: skip
    assert found.of(table.SERIES_LEFT_OUT) == {}
