"""Writes samples as OpenTelemetry's ExportMetricsServiceRequest (opentelemetry-proto 1.x), in protobuf.

``otlp`` shows how a message is made up. These fields are written::

    ExportMetricsServiceRequest  1 ResourceMetrics
    ResourceMetrics      1 Resource    2 ScopeMetrics
    ScopeMetrics         1 Scope    2 Metric…
    Metric               1 name    2 description    5 Gauge    7 Sum    9 Histogram
    Gauge                1 NumberDataPoint…
    Sum                  1 NumberDataPoint…    2 temporality (2 cumulative)    3 is monotonic
    Histogram            1 HistogramDataPoint…    2 temporality
    NumberDataPoint      2 start time    3 time    4 double    7 KeyValue…
    HistogramDataPoint   2 start time    3 time    4 count    5 sum    6 counts    7 bounds    9 KeyValue…

``raylog.otlp.fields`` has the rest. Names are those of ``/metrics``, and no unit is given: a receiver that
stores into Prometheus would append it to the name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from raylog.metrics.distributions import Distribution, distributions
from raylog.metrics.exposition import PUSHED_MEANING
from raylog.metrics.metric import MetricType
from raylog.metrics.registry import Samples
from raylog.metrics.table import METRICS
from raylog.otlp.fields import (
    attributes,
    double,
    fixed,
    nested,
    number,
    packed_doubles,
    packed_fixed,
    signal_request,
    text,
)
from raylog.time_counts import BOUNDS_MS

_CUMULATIVE: Final = 2
_Pairs = Iterable[tuple[str, str]]


def export_request(
    samples: Samples, resource: Mapping[str, str], *, version: str, start_time_ns: int, time_ns: int
) -> bytes:
    """The samples as they are at ``time_ns``, what clients have pushed among them. Counters have counted
    since ``start_time_ns``; both are nanoseconds since 1970. ``resource``: whose samples these are.
    """
    times = fixed(2, start_time_ns) + fixed(3, time_ns)
    metrics = b"".join(nested(2, each) for each in _metrics(samples, times))
    return signal_request(resource.items(), version, metrics)


def _metrics(samples: Samples, times: bytes) -> Iterator[bytes]:
    for metric in METRICS.values():
        series = samples.of(metric)
        if not series:
            continue
        named = text(1, metric.name) + text(2, metric.meaning)
        if metric.type is MetricType.HISTOGRAM:
            points = (_histogram_point(metric.labels, each, times) for each in distributions(series))
            yield named + nested(9, b"".join(nested(1, each) for each in points) + number(2, _CUMULATIVE))
            continue
        values = ((zip(metric.labels, labels, strict=True), value) for labels, value in sorted(series.items()))
        yield named + _numbers(metric.type, values, times)
    for pushed in samples.pushed:
        named = text(1, pushed.name) + text(2, PUSHED_MEANING)
        yield named + _numbers(pushed.type, sorted(pushed.series.items()), times)


def _numbers(type: MetricType, values: Iterable[tuple[_Pairs, float]], times: bytes) -> bytes:
    """A Gauge or a Sum, as a field of Metric."""
    points = b"".join(nested(1, times + double(4, value) + attributes(7, labels)) for labels, value in values)
    if type is MetricType.GAUGE:
        return nested(5, points)
    return nested(7, points + number(2, _CUMULATIVE) + number(3, 1))


def _histogram_point(names: Iterable[str], each: Distribution, times: bytes) -> bytes:
    return (
        times
        + fixed(4, int(each.count))
        + double(5, each.sum_ms)
        + packed_fixed(6, map(int, each.counts))
        + packed_doubles(7, BOUNDS_MS)
        + attributes(9, zip(names, each.labels, strict=True))
    )
