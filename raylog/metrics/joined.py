"""What the processes of one broker say, as one: gauges are summed, counters added up.

A process that ends takes its counts along, and a topic's replicas move from one process to another.
A sum over the living processes would fall then, and Prometheus takes a counter that falls for one
that began anew. So a Broker keeps totals of its own, and adds what each process has counted since
it was last asked. What a process counts between the last question and its death is lost.

Cardinality. A metric has at most ``series_max`` series. The topics of a counter that come later
than that are counted together, as topic ``(others)``; so the sum over all topics holds. All other
further series are left out and counted. Histograms, which are by API only, are whole.

Invariants: no total falls while its series exists; a series leaves with its topic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from raylog.metrics.metric import Metric, MetricType
from raylog.metrics.registry import Labels, Samples
from raylog.metrics.table import OTHER_TOPICS

Process = tuple[int, int]
"""Node id and incarnation."""
_Series = tuple[Metric, Labels]


class JoinedMetrics:
    def __init__(self) -> None:
        self._last: dict[Process, dict[_Series, float]] = {}
        self._totals: dict[Metric, dict[Labels, float]] = {}

    def join(
        self,
        told: Mapping[Process, Samples],
        *,
        living: set[Process],
        series_max: int,
        has_topic: Callable[[str], bool],
    ) -> Samples:
        """What all processes come to. ``living``: processes whose counts go on, though they may not
        have answered this time.
        """
        self._last = {process: last for process, last in self._last.items() if process in living}
        self._forget_topics(has_topic)
        gauges = Samples()
        shared: dict[Metric, set[Labels]] = {}
        for process, samples in told.items():
            last, now = self._last.get(process, {}), {}
            for metric, labels, value in samples:
                exists = _exists(metric, labels, has_topic)
                if metric.type is MetricType.GAUGE:
                    if exists:
                        gauges.add(metric, value, *labels)
                    continue
                series = metric, labels
                now[series] = value
                before = last.get(series, 0)
                if exists:
                    self._count(metric, labels, value - before if value >= before else value, series_max, shared)
            self._last[process] = now
        return self._bounded(gauges, series_max, shared)

    def _count(
        self, metric: Metric, labels: Labels, more: float, series_max: int, shared: dict[Metric, set[Labels]]
    ) -> None:
        totals = self._totals.setdefault(metric, {})
        is_bounded = metric.type is not MetricType.HISTOGRAM
        if is_bounded and labels not in totals and len(totals) >= series_max:
            shared.setdefault(metric, set()).add(labels)
            if metric.labels != ("topic",):
                return
            labels = (OTHER_TOPICS,)
        totals[labels] = totals.get(labels, 0) + more

    def _forget_topics(self, has_topic: Callable[[str], bool]) -> None:
        for metric, totals in self._totals.items():
            for labels in [labels for labels in totals if not _exists(metric, labels, has_topic)]:
                del totals[labels]

    def _bounded(self, gauges: Samples, series_max: int, shared: dict[Metric, set[Labels]]) -> Samples:
        samples = Samples(series_max)
        for metric, labels, value in sorted(gauges, key=lambda each: (each[0].name, each[1])):
            samples.add(metric, value, *labels)
        for metric, totals in self._totals.items():
            for labels, value in totals.items():
                samples.add(metric, value, *labels)
        for metric, each in shared.items():
            samples.leave_out(metric, len(each))
        return samples


def _exists(metric: Metric, labels: Labels, has_topic: Callable[[str], bool]) -> bool:
    """False for a series of a topic that has been deleted."""
    if "topic" not in metric.labels:
        return True
    topic = labels[metric.labels.index("topic")]
    return topic == OTHER_TOPICS or has_topic(topic)
