"""Reads OpenTelemetry's MetricsData (opentelemetry-proto 1.x), in which clients push their metrics.

A protobuf message is a sequence of fields: a varint with the field's number and wire type, and the
value. Of the messages these fields are read, and all others skipped::

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
from typing import Final, TypeGuard

from raylog.errors import ProtocolError

Attributes = tuple[tuple[str, str], ...]
Value = int | memoryview
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_DELTA: Final = 1
_VARINT_BYTES_MAX: Final = 10
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


def rejected_of(data: bytes) -> tuple[int, str]:
    """How many points the receiver of a push has rejected, and why, as it says in its
    ExportMetricsServiceResponse. Raises ProtocolError for bytes that are no such message.
    """
    rejected, reason = 0, ""
    for partial_success in _messages(memoryview(data), 1):
        for number, value in _fields(partial_success):
            if number == 1 and isinstance(value, int):
                rejected = value
            elif number == 2 and not isinstance(value, int):
                reason = _text(value)
    return rejected, reason


def _points(data: memoryview) -> Iterator[Point]:
    for resource_metrics in _messages(data, 1):
        of_resource: Attributes = ()
        for resource in _messages(resource_metrics, 1):
            of_resource += tuple(_key_value(each) for each in _messages(resource, 1))
        for scope_metrics in _messages(resource_metrics, 2):
            for metric in _messages(scope_metrics, 2):
                yield from _of_metric(metric, of_resource)


def _of_metric(metric: memoryview, of_resource: Attributes) -> Iterator[Point]:
    name = "".join(map(_text, _messages(metric, 1)))
    for gauge in _messages(metric, 5):
        yield from _of_numbers(name, gauge, of_resource, is_counter=False, is_delta=False)
    for total in _messages(metric, 7):
        temporality, is_monotonic = 0, 0
        for number, value in _fields(total):
            if number == 2 and isinstance(value, int):
                temporality = value
            elif number == 3 and isinstance(value, int):
                is_monotonic = value
        is_delta = temporality == _DELTA
        yield from _of_numbers(name, total, of_resource, is_counter=bool(is_monotonic), is_delta=is_delta)


def _of_numbers(
    name: str, numbers: memoryview, of_resource: Attributes, *, is_counter: bool, is_delta: bool
) -> Iterator[Point]:
    for point in _messages(numbers, 1):
        found = math.nan
        attributes = of_resource
        for number, value in _fields(point):
            if number == 7 and not isinstance(value, int):
                attributes += (_key_value(value),)
            elif number == 4 and _is_fixed64(value):
                found = _double.unpack(value)[0]
            elif number == 6 and _is_fixed64(value):
                found = float(_integer.unpack(value)[0])
        if math.isfinite(found):
            yield Point(name, found, is_counter, is_delta, attributes)


def _is_fixed64(value: Value) -> TypeGuard[memoryview]:
    return not isinstance(value, int) and len(value) == 8


def _key_value(data: memoryview) -> tuple[str, str]:
    key = "".join(map(_text, _messages(data, 1)))
    text = ""
    for held in _messages(data, 2):
        for number, value in _fields(held):
            if number == 1 and not isinstance(value, int):
                text = _text(value)
            elif number == 2:
                text = "true" if value else "false"
            elif number == 3 and isinstance(value, int):
                text = str(value - (1 << 64) if value >> 63 else value)
            elif number == 4 and _is_fixed64(value):
                text = repr(_double.unpack(value)[0])
    return key, text


def _text(data: memoryview) -> str:
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise ProtocolError(f"a text of metrics is not UTF-8: {error}") from None


def _messages(data: memoryview, wanted: int) -> Iterator[memoryview]:
    """The values of all fields of that number that have a length."""
    for number, value in _fields(data):
        if number == wanted and not isinstance(value, int):
            yield value


def _fields(data: memoryview) -> Iterator[tuple[int, Value]]:
    """Each field's number and value: varints as numbers of 64 bits, all others as their bytes."""
    position, end = 0, len(data)
    while position < end:
        tag, position = _varint(data, position)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == _VARINT:
            value, position = _varint(data, position)
            yield number, value
            continue
        if wire_type == _BYTES:
            size, position = _varint(data, position)
        elif wire_type in (_FIXED64, _FIXED32):
            size = 8 if wire_type == _FIXED64 else 4
        else:
            raise ProtocolError(f"metrics with a field of wire type {wire_type}")
        if size > end - position:
            raise ProtocolError(f"metrics that end inside a field of {size} bytes")
        yield number, data[position : position + size]
        position += size


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    found = shift = 0
    for each in data[position : position + _VARINT_BYTES_MAX]:
        position += 1
        found |= (each & 0x7F) << shift
        if each < 0x80:
            return found & (1 << 64) - 1, position
        shift += 7
    raise ProtocolError("metrics with a varint that has no end")
