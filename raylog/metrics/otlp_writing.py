"""Writes samples as OpenTelemetry's ExportMetricsServiceRequest (opentelemetry-proto 1.x), in protobuf.

``otlp`` shows how a message is made up. These fields are written::

    ExportMetricsServiceRequest  1 ResourceMetrics
    ResourceMetrics      1 Resource    2 ScopeMetrics
    Resource             1 KeyValue…
    ScopeMetrics         1 Scope (1 name, 2 version)    2 Metric…
    Metric               1 name    2 description    5 Gauge    7 Sum    9 Histogram
    Gauge                1 NumberDataPoint…
    Sum                  1 NumberDataPoint…    2 temporality (2 cumulative)    3 is monotonic
    Histogram            1 HistogramDataPoint…    2 temporality
    NumberDataPoint      2 start time    3 time    4 double    7 KeyValue…
    HistogramDataPoint   2 start time    3 time    4 count    5 sum    6 counts    7 bounds    9 KeyValue…
    KeyValue             1 key    2 AnyValue (1 string)

Names are those of ``/metrics``, and no unit is given: a receiver that stores into Prometheus would append
it to the name.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from raylog.metrics.distributions import Distribution, distributions
from raylog.metrics.exposition import PUSHED_MEANING
from raylog.metrics.metric import MetricType
from raylog.metrics.registry import Samples
from raylog.metrics.table import METRICS
from raylog.time_counts import BOUNDS_MS

SCOPE: Final = "raylog"
_VARINT, _FIXED64, _BYTES = 0, 1, 2
_CUMULATIVE: Final = 2
_fixed64, _double = struct.Struct("<Q"), struct.Struct("<d")
_Pairs = Iterable[tuple[str, str]]


def export_request(
    samples: Samples, resource: Mapping[str, str], *, version: str, start_time_ns: int, time_ns: int
) -> bytes:
    """The samples as they are at ``time_ns``, what clients have pushed among them. Counters have counted
    since ``start_time_ns``; both are nanoseconds since 1970. ``resource``: whose samples these are.
    """
    times = _fixed(2, start_time_ns) + _fixed(3, time_ns)
    metrics = b"".join(_bytes(2, each) for each in _metrics(samples, times))
    scope = _bytes(1, _text(1, SCOPE) + _text(2, version))
    return _bytes(1, _bytes(1, _attributes(1, resource.items())) + _bytes(2, scope + metrics))


def _metrics(samples: Samples, times: bytes) -> Iterator[bytes]:
    for metric in METRICS.values():
        series = samples.of(metric)
        if not series:
            continue
        named = _text(1, metric.name) + _text(2, metric.meaning)
        if metric.type is MetricType.HISTOGRAM:
            points = (_histogram_point(metric.labels, each, times) for each in distributions(series))
            yield named + _bytes(9, b"".join(_bytes(1, each) for each in points) + _number(2, _CUMULATIVE))
            continue
        values = ((zip(metric.labels, labels, strict=True), value) for labels, value in sorted(series.items()))
        yield named + _numbers(metric.type, values, times)
    for pushed in samples.pushed:
        named = _text(1, pushed.name) + _text(2, PUSHED_MEANING)
        yield named + _numbers(pushed.type, sorted(pushed.series.items()), times)


def _numbers(type: MetricType, values: Iterable[tuple[_Pairs, float]], times: bytes) -> bytes:
    """A Gauge or a Sum, as a field of Metric."""
    points = b"".join(
        _bytes(1, times + _tag(4, _FIXED64) + _double.pack(value) + _attributes(7, labels)) for labels, value in values
    )
    if type is MetricType.GAUGE:
        return _bytes(5, points)
    return _bytes(7, points + _number(2, _CUMULATIVE) + _number(3, 1))


def _histogram_point(names: Iterable[str], each: Distribution, times: bytes) -> bytes:
    counts = b"".join(_fixed64.pack(int(count)) for count in each.counts)
    bounds = b"".join(map(_double.pack, BOUNDS_MS))
    return (
        times
        + _fixed(4, int(each.count))
        + _tag(5, _FIXED64)
        + _double.pack(each.sum_ms)
        + _bytes(6, counts)
        + _bytes(7, bounds)
        + _attributes(9, zip(names, each.labels, strict=True))
    )


def _attributes(number: int, pairs: _Pairs) -> bytes:
    return b"".join(_bytes(number, _text(1, key) + _bytes(2, _text(1, value))) for key, value in pairs)


def _text(number: int, text: str) -> bytes:
    return _bytes(number, text.encode())


def _bytes(number: int, value: bytes) -> bytes:
    return _tag(number, _BYTES) + _varint(len(value)) + value


def _number(number: int, value: int) -> bytes:
    return _tag(number, _VARINT) + _varint(value)


def _fixed(number: int, value: int) -> bytes:
    return _tag(number, _FIXED64) + _fixed64.pack(value)


def _tag(number: int, wire_type: int) -> bytes:
    return _varint(number << 3 | wire_type)


def _varint(value: int) -> bytes:
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)
