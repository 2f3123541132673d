"""The registry of one process, and what it says when it is asked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from raylog.metrics.client_series import PushedMetric
from raylog.metrics.metric import SUM, Metric, MetricType
from raylog.metrics.table import METRICS, SERIES_LEFT_OUT
from raylog.time_counts import BOUNDS_MS, TimeCounts

NS_PER_MS: Final = 1_000_000
BOUND_TEXTS: Final = (*map(repr, BOUNDS_MS), "+Inf")
Labels = tuple[str, ...]
"""The values of a metric's ``keys``, in their order."""
Plain = tuple[tuple[str, Labels, float], ...]
"""Samples on the wire: the metric's name, labels, value."""


class Samples:
    """Values of metrics at one moment. A gauge has at most ``series_max`` series: what comes later
    is left out, and counted by ``SERIES_LEFT_OUT``. Counters have all of theirs.

    Invariant: each series has as many labels as its metric has keys.
    """

    __slots__ = ("_series", "_series_max", "pushed")

    def __init__(self, series_max: int | None = None) -> None:
        """``series_max`` None: no bound."""
        self._series: dict[str, dict[Labels, float]] = {}
        self._series_max = series_max
        self.pushed: tuple[PushedMetric, ...] = ()  # by clients; they never travel between processes

    def add(self, metric: Metric, value: float, *labels: str) -> None:
        """Add to the value that the series has, 0 if it is new."""
        assert len(labels) == len(metric.keys), f"{metric.name} has the labels {metric.keys}, not {labels}"
        series = self._series.setdefault(metric.name, {})
        if labels not in series and self.is_full(metric):
            self.leave_out(metric, 1)
            return
        series[labels] = series.get(labels, 0) + value

    def add_times(self, metric: Metric, times: TimeCounts, *labels: str) -> None:
        """Add to what a histogram has counted."""
        for bound, count in zip(BOUND_TEXTS, times.counts, strict=True):
            if count:
                self.add(metric, count, *labels, bound)
        self.add(metric, times.sum_ns / NS_PER_MS, *labels, SUM)

    def is_full(self, metric: Metric) -> bool:
        """Whether a further series of it would be left out."""
        if self._series_max is None or metric.type is not MetricType.GAUGE or metric is SERIES_LEFT_OUT:
            return False
        return len(self.of(metric)) >= self._series_max

    def leave_out(self, metric: Metric, count: int) -> None:
        """So many series of a metric are not here."""
        self.add(SERIES_LEFT_OUT, count, metric.name)

    def of(self, metric: Metric) -> dict[Labels, float]:
        """The series of a metric."""
        return self._series.get(metric.name, {})

    def __iter__(self) -> Iterator[tuple[Metric, Labels, float]]:
        for name, series in list(self._series.items()):
            for labels, value in series.items():
                yield METRICS[name], labels, value

    def plain(self) -> Plain:
        return tuple((metric.name, labels, float(value)) for metric, labels, value in self)

    @classmethod
    def of_plain(cls, plain: Iterable[tuple[str, Labels, float]]) -> Samples:
        """What another process says. Metrics that only its version knows are left out."""
        samples = cls()
        for name, labels, value in plain:
            metric = METRICS.get(name)
            if metric is not None and len(labels) == len(metric.keys):
                samples.add(metric, value, *labels)
        return samples


Collector = Callable[[Samples], None]
"""Reads some counts of its process and adds what they come to. Called on the loop; must not block."""


class Registry:
    """Of one server process. It keeps no values: every ``collect`` reads them."""

    def __init__(self, *collectors: Collector) -> None:
        self._collectors = list(collectors)

    def add(self, collector: Collector) -> None:
        self._collectors.append(collector)

    def collect(self, series_max: int | None = None) -> Samples:
        """``series_max``: of a gauge."""
        samples = Samples(series_max)
        for collector in self._collectors:
            collector(samples)
        return samples
