"""Reads OpenTelemetry's MetricsData (opentelemetry-proto 1.x), in which clients push their metrics.

Of the messages (``raylog.otlp.reading``) these fields are read, and all others skipped::

    MetricsData      1 ResourceMetrics…
    ResourceMetrics  1 Resource    2 ScopeMetrics…
    Resource         1 KeyValue…
    ScopeMetrics     2 Metric…
    Metric           1 name    5 Gauge    7 Sum
    Gauge            1 NumberDataPoint…
    Sum              1 NumberDataPoint…    2 temporality (1 delta, 2 cumulative)    3 is monotonic
    NumberDataPoint  4 double    6 sfixed64    7 KeyValue…
    KeyValue         1 key    2 AnyValue (1 string, 2 bool, 3 varint, 4 double)

Histograms and summaries are skipped: Kafka's clients push none. Bytes of whatever kind cost time in
proportion to their length, and give at most ``points_max`` points; a message is never deeper than
the table.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from raylog.otlp.reading import fields, is_fixed64, messages, text_of

Attributes = tuple[tuple[str, str], ...]
_DELTA: Final = 1
_double, _integer = struct.Struct("<d"), struct.Struct("<q")


@dataclass(frozen=True, slots=True)
class Point:
    """One number. ``is_counter``: of a sum that only grows. ``is_delta``: how much has come since
    the client's last push. ``attributes``: the resource's, then the point's own.
    """

    name: str
    value: float
    is_counter: bool
    is_delta: bool
    attributes: Attributes


def points_of(data: bytes, points_max: int) -> tuple[list[Point], int]:
    """The points of a MetricsData, and how many there were beyond ``points_max``. Those whose value
    is no finite number are left out. Raises ProtocolError for bytes that are no such message.
    """
    points: list[Point] = []
    dropped = 0
    for point in _points(memoryview(data)):
        if len(points) < points_max:
            points.append(point)
        else:
            dropped += 1
    return points, dropped


def _points(data: memoryview) -> Iterator[Point]:
    for resource_metrics in messages(data, 1):
        of_resource: Attributes = ()
        for resource in messages(resource_metrics, 1):
            of_resource += tuple(_key_value(each) for each in messages(resource, 1))
        for scope_metrics in messages(resource_metrics, 2):
            for metric in messages(scope_metrics, 2):
                yield from _of_metric(metric, of_resource)


def _of_metric(metric: memoryview, of_resource: Attributes) -> Iterator[Point]:
    name = "".join(map(text_of, messages(metric, 1)))
    for gauge in messages(metric, 5):
        yield from _of_numbers(name, gauge, of_resource, is_counter=False, is_delta=False)
    for total in messages(metric, 7):
        temporality, is_monotonic = 0, 0
        for number, value in fields(total):
            if number == 2 and isinstance(value, int):
                temporality = value
            elif number == 3 and isinstance(value, int):
                is_monotonic = value
        is_delta = temporality == _DELTA
        yield from _of_numbers(name, total, of_resource, is_counter=bool(is_monotonic), is_delta=is_delta)


def _of_numbers(
    name: str, numbers: memoryview, of_resource: Attributes, *, is_counter: bool, is_delta: bool
) -> Iterator[Point]:
    for point in messages(numbers, 1):
        found = math.nan
        attributes = of_resource
        for number, value in fields(point):
            if number == 7 and not isinstance(value, int):
                attributes += (_key_value(value),)
            elif number == 4 and is_fixed64(value):
                found = _double.unpack(value)[0]
            elif number == 6 and is_fixed64(value):
                found = float(_integer.unpack(value)[0])
        if math.isfinite(found):
            yield Point(name, found, is_counter, is_delta, attributes)


def _key_value(data: memoryview) -> tuple[str, str]:
    key = "".join(map(text_of, messages(data, 1)))
    text = ""
    for held in messages(data, 2):
        for number, value in fields(held):
            if number == 1 and not isinstance(value, int):
                text = text_of(value)
            elif number == 2:
                text = "true" if value else "false"
            elif number == 3 and isinstance(value, int):
                text = str(value - (1 << 64) if value >> 63 else value)
            elif number == 4 and is_fixed64(value):
                text = repr(_double.unpack(value)[0])
    return key, text
