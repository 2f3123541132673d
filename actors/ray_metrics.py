"""Gives a Broker's metrics to Ray, whose agent on the node shows them to Ray's own Prometheus.

A metric has its name of ``metrics.table``, with ``ray_`` in front, and one label more: ``broker``.
Counters are Ray's counters, which take what has come since the last time. Ray's histograms take
one value at a time, so a histogram of ours is shown as what Prometheus makes of one: the gauges
``…_bucket``, ``…_sum`` and ``…_count``, which ``histogram_quantile`` and ``rate`` read alike.

A process of Ray reports every ten seconds, a gauge only if it was set meanwhile. So gauges are set
at every push, and ``RAY_INTERVAL_MS`` is shorter than that. Ray forgets none of a process's counters,
and older Rays forget no gauge either. So a gauge whose series has ended is set to 0 once, and a
process gives each metric at most ``series_max`` series in all its life. Topics that come later are
counted together as ``(others)``, all other series are left out and counted by ``SERIES_LEFT_OUT``.
What clients have pushed is not given to Ray: clients make up its labels themselves.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any, assert_never

from ray.util.metrics import Counter, Gauge

from raylog.configs.metrics_configs import METRICS_RAY_INTERVAL, RAY_INTERVAL_MS, SERIES_MAX
from raylog.errors import ConfigError
from raylog.listener.metrics_pushes import PushTarget
from raylog.listener.otlp_push import otlp_push
from raylog.metrics.distributions import distributions
from raylog.metrics.metric import BOUND, Metric, MetricType
from raylog.metrics.registry import Labels, Samples
from raylog.metrics.table import METRICS, OTHER_TOPICS, SERIES_LEFT_OUT

logger = logging.getLogger("raylog.metrics")

BROKER = "broker"
_Series = Mapping[Labels, float]


class RayMetrics:
    """One broker's, in its Broker's process. Not for two threads at once.

    Invariant: Ray has at most ``series_max`` series of a metric that is no histogram, ``(others)``
    aside.
    """

    def __init__(self, broker_id: int, series_max: int = SERIES_MAX) -> None:
        self._broker_id = str(broker_id)
        self._series_max = series_max
        self._rays: dict[str, Any] = {}  # Ray's metrics, by name
        self._given: dict[str, set[Labels]] = {}  # the series that Ray has, by name
        self._last: dict[str, dict[Labels, float]] = {}  # the samples of the last time, by name

    def target(self) -> PushTarget:
        """For ``BrokerServer``."""
        return PushTarget("Ray", self.send, RAY_INTERVAL_MS, METRICS_RAY_INTERVAL)

    def send(self, samples: Samples) -> None:
        """Give Ray the values. Does not wait for Ray."""
        left_out = dict(samples.of(SERIES_LEFT_OUT))
        for metric in METRICS.values():
            if metric is SERIES_LEFT_OUT:
                continue
            more = self._tell(metric, samples.of(metric))
            if more:
                left_out[(metric.name,)] = left_out.get((metric.name,), 0) + more
        self._set(SERIES_LEFT_OUT, SERIES_LEFT_OUT.name, SERIES_LEFT_OUT.labels, left_out)

    def _tell(self, metric: Metric, series: _Series) -> int:
        """The number of series for which there was no room."""
        match metric.type:
            case MetricType.COUNTER:
                return self._count(metric, series)
            case MetricType.GAUGE:
                return self._set(metric, metric.name, metric.labels, series)
            case MetricType.HISTOGRAM:
                for name, keys, part in _parts(metric, series):
                    self._set(metric, name, keys, part)
                return 0
            case _:
                assert_never(metric.type)

    def _count(self, metric: Metric, series: _Series) -> int:
        left_out = 0
        for labels, more in self._growth(metric.name, series):
            if not self._has_room(metric, metric.name, labels):
                if metric.labels != ("topic",):
                    left_out += 1
                    continue
                labels = (OTHER_TOPICS,)
            # Ray appends `_total` to the names of its counters
            ray = self._ray(Counter, metric, metric.name.removesuffix("_total"), metric.labels)
            ray.inc(more, self._tags(metric.labels, labels))
        return left_out

    def _growth(self, name: str, series: _Series) -> Iterator[tuple[Labels, float]]:
        """What each series has counted since the last time; those that have not are missing."""
        last, self._last[name] = self._last.get(name, {}), dict(series)
        for labels, value in series.items():
            before = last.get(labels, 0.0)
            more = value - before if value >= before else value
            if more > 0:
                yield labels, more

    def _set(self, metric: Metric, name: str, keys: tuple[str, ...], series: _Series) -> int:
        last, self._last[name] = self._last.get(name, {}), dict(series)
        left_out = 0
        for labels, value in series.items():
            if not self._has_room(metric, name, labels):
                left_out += 1
            else:
                self._ray(Gauge, metric, name, keys).set(value, self._tags(keys, labels))
        for labels in last.keys() - series.keys():
            if labels in self._given[name]:
                self._ray(Gauge, metric, name, keys).set(0.0, self._tags(keys, labels))
        return left_out

    def _has_room(self, metric: Metric, name: str, labels: Labels) -> bool:
        """Whether Ray has the series, or may get it. Histograms are by API only, and always whole."""
        given = self._given.setdefault(name, set())
        if labels not in given and len(given) >= self._series_max and metric.type is not MetricType.HISTOGRAM:
            return False
        given.add(labels)
        return True

    def _ray(self, kind: Any, metric: Metric, name: str, keys: tuple[str, ...]) -> Any:
        """Ray's metric, which it gets at its first value."""
        found = self._rays.get(name)
        if found is None:
            found = self._rays[name] = kind(name, metric.meaning, (*keys, BROKER))
        return found

    def _tags(self, keys: tuple[str, ...], labels: Labels) -> dict[str, str]:
        return {**dict(zip(keys, labels, strict=True)), BROKER: self._broker_id}


def _parts(metric: Metric, series: _Series) -> Iterator[tuple[str, tuple[str, ...], dict[Labels, float]]]:
    """Name, names of labels and series of each of the three that Prometheus makes of a histogram."""
    found = list(distributions(series))
    buckets = {(*each.labels, bound): count for each in found for bound, count in each.cumulative()}
    yield f"{metric.name}_bucket", (*metric.labels, BOUND), buckets
    yield f"{metric.name}_sum", metric.labels, {each.labels: each.sum_ms for each in found}
    yield f"{metric.name}_count", metric.labels, {each.labels: each.count for each in found}


def metrics_pushes(broker_id: int, cluster_id: str, environment: Mapping[str, str]) -> list[PushTarget]:
    """Where a Broker on Ray pushes its metrics: to Ray, and to OpenTelemetry's collector if the
    environment names one. An environment that cannot be honoured is an error in the log.
    """
    targets = [RayMetrics(broker_id).target()]
    try:
        collector = otlp_push(environment, cluster_id=cluster_id, broker_id=broker_id)
    except ConfigError as error:
        logger.error("the metrics are not pushed to OpenTelemetry: %s", error)
        return targets
    return targets if collector is None else [*targets, collector]
