"""What Ray is told of a Broker's metrics, and that it never gets more series than it may."""

from __future__ import annotations

from typing import Any

import pytest

from raylog.metrics import table
from raylog.metrics.registry import Samples
from raylog.time_counts import TimeCounts

pytestmark = pytest.mark.core  # imports Ray

RAY_REPORTS_EVERY_MS = 10_000
Told = dict[tuple[str, tuple[str, ...]], float]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    """What Ray shows, by name and the values of labels: gauges as they were set last, counters as they add up."""
    from raylog.actors import ray_metrics

    shown: Told = {}

    def series(metric: Any, tags: dict[str, str]) -> tuple[str, tuple[str, ...]]:
        assert set(tags) == set(metric.info["tag_keys"])
        return metric.info["name"], tuple(tags[key] for key in metric.info["tag_keys"])

    class ToldGauge(ray_metrics.Gauge):
        def set(self, value: float, tags: dict[str, str]) -> None:
            super().set(value, tags)
            shown[series(self, tags)] = value

    class ToldCounter(ray_metrics.Counter):
        def inc(self, value: float, tags: dict[str, str]) -> None:
            super().inc(value, tags)
            shown[series(self, tags)] = shown.get(series(self, tags), 0) + value

    monkeypatch.setattr(ray_metrics, "Gauge", ToldGauge)
    monkeypatch.setattr(ray_metrics, "Counter", ToldCounter)
    return shown


def metrics_of(broker: int, series_max: int = 1_000) -> Any:
    from raylog.actors.ray_metrics import RayMetrics

    return RayMetrics(broker, series_max)


def samples(*values: tuple[Any, ...]) -> Samples:
    found = Samples()
    for metric, value, *labels in values:
        found.add(metric, value, *labels)
    return found


BYTES = table.BYTES_IN.name.removesuffix("_total")


def test_counters_grow_by_what_has_come_and_gauges_are_as_they_are(told: Told) -> None:
    ray = metrics_of(7)
    ray.send(samples((table.BYTES_IN, 10, "a"), (table.LEADERS, 3)))
    ray.send(samples((table.BYTES_IN, 15, "a"), (table.LEADERS, 2)))
    assert told == {(BYTES, ("a", "7")): 15, (table.LEADERS.name, ("7",)): 2}
    ray.send(samples((table.BYTES_IN, 4, "a"), (table.LEADERS, 2)))  # the topic was deleted and created anew
    assert told[BYTES, ("a", "7")] == 19


def test_a_gauge_that_does_not_change_is_told_each_time_because_ray_reports_it_once(told: Told) -> None:
    ray = metrics_of(0)
    ray.send(samples((table.BYTES_IN, 10, "a"), (table.LEADERS, 3)))
    told.clear()
    ray.send(samples((table.BYTES_IN, 10, "a"), (table.LEADERS, 3)))
    assert told == {(table.LEADERS.name, ("0",)): 3}


def test_a_metric_is_registered_with_ray_once(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    from raylog.actors import ray_metrics

    made: list[str] = []

    class NotedGauge(ray_metrics.Gauge):
        def __init__(self, name: str, *rest: Any) -> None:
            made.append(name)
            super().__init__(name, *rest)

    monkeypatch.setattr(ray_metrics, "Gauge", NotedGauge)
    ray = metrics_of(0)
    for value in (3, 2, 1):
        ray.send(samples((table.LEADERS, value)))
    assert made == [table.LEADERS.name] and told[table.LEADERS.name, ("0",)] == 1


def test_ray_gets_them_more_often_than_it_reports_and_a_config_says_how_often() -> None:
    target = metrics_of(0).target()
    assert (target.name, target.interval_config) == ("Ray", "metrics.ray.interval.ms")
    assert 0 < target.interval_ms < RAY_REPORTS_EVERY_MS


def test_a_gauge_whose_series_has_ended_is_zero(told: Told) -> None:
    ray = metrics_of(0)
    ray.send(samples((table.LOG_SIZE, 100, "t", "0"), (table.LOG_SIZE, 200, "u", "0")))
    ray.send(samples((table.LOG_SIZE, 100, "t", "0")))
    name = table.LOG_SIZE.name
    assert told == {(name, ("t", "0", "0")): 100, (name, ("u", "0", "0")): 0}
    ray.send(samples((table.LOG_SIZE, 100, "t", "0"), (table.LOG_SIZE, 9, "u", "0")))
    assert told[name, ("u", "0", "0")] == 9


def test_a_histogram_is_what_prometheus_makes_of_one(told: Told) -> None:
    times, found = TimeCounts(), Samples()
    for length_ns in (1_000_000, 2_000_000, 60_000_000_000):
        times.add(length_ns)
    found.add_times(table.TOTAL_TIME, times, "Fetch")
    metrics_of(1, series_max=2).send(found)  # its buckets are all there, whatever the bound on series
    name = table.TOTAL_TIME.name
    buckets = {labels[1]: value for (named, labels), value in told.items() if named == f"{name}_bucket"}
    assert (buckets["0.5"], buckets["1.0"], buckets["2.5"], buckets["30000.0"], buckets["+Inf"]) == (0, 1, 2, 2, 3)
    assert told[f"{name}_count", ("Fetch", "1")] == 3
    assert told[f"{name}_sum", ("Fetch", "1")] == 60_003


def test_ray_gets_no_more_series_than_it_may_in_all_the_process_s_life(told: Told) -> None:
    ray = metrics_of(0, series_max=2)
    for number in range(5):  # one topic at a time
        topic = f"t{number}"
        ray.send(samples((table.BYTES_IN, 10, topic), (table.LOG_SIZE, 1, topic, "0"), (table.REQUESTS, 1, topic, "0")))
    assert {labels[0] for name, labels in told if name == BYTES} == {"t0", "t1", table.OTHER_TOPICS}
    assert told[BYTES, (table.OTHER_TOPICS, "0")] == 30
    assert {labels[0] for name, labels in told if name == table.LOG_SIZE.name} == {"t0", "t1"}
    left_out = table.SERIES_LEFT_OUT.name
    assert told[left_out, (table.LOG_SIZE.name, "0")] == told[left_out, (table.REQUESTS.name, "0")] == 1


def test_what_a_broker_leaves_out_itself_is_counted_with_it(told: Told) -> None:
    found = samples((table.LOG_SIZE, 1, "a", "0"), (table.LOG_SIZE, 1, "b", "0"))
    found.leave_out(table.LOG_SIZE, 40)
    metrics_of(0, series_max=1).send(found)
    assert told[table.SERIES_LEFT_OUT.name, (table.LOG_SIZE.name, "0")] == 41
