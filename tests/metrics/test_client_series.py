"""What clients push, read from OpenTelemetry's protobuf and kept as series."""

from __future__ import annotations

import math
import random

import pytest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from raylog.errors import ProtocolError
from raylog.metrics import client_series
from raylog.metrics.client_series import PREFIX, ClientSeries
from raylog.metrics.exposition import OPENMETRICS, exposition
from raylog.metrics.otlp import Point, points_of
from raylog.metrics.registry import Samples
from raylog.metrics.table import METRICS

SENT = "org.apache.kafka.producer.record.send.total"


def attribute(key: str, **value: object) -> KeyValue:
    return KeyValue(key=key, value=AnyValue(**value))


def written() -> MetricsData:
    """Everything that is read, and some of what is skipped."""
    delta = Sum(
        aggregation_temporality=1,
        is_monotonic=True,
        data_points=[NumberDataPoint(as_int=-7, attributes=[attribute("topic", string_value="t")], time_unix_nano=9)],
    )
    cumulative = Sum(aggregation_temporality=2, data_points=[NumberDataPoint(as_double=1.5)])
    point = NumberDataPoint(
        as_double=2.5,
        attributes=[
            attribute("b", bool_value=True),
            attribute("i", int_value=-3),
            attribute("d", double_value=0.5),
            attribute("s", string_value="é"),
        ],
    )
    unknown = Gauge(data_points=[NumberDataPoint(as_double=math.nan), NumberDataPoint(as_double=math.inf)])
    metrics = [
        Metric(name=SENT, unit="1", description="text", sum=delta),
        Metric(name="c", sum=cumulative),
        Metric(name="g", gauge=Gauge(data_points=[point, NumberDataPoint()])),
        Metric(name="u", gauge=unknown),
        Metric(name="h", histogram=Histogram(data_points=[HistogramDataPoint(count=1)])),
    ]
    resource = Resource(attributes=[attribute("group_id", string_value="g")], dropped_attributes_count=1)
    return MetricsData(
        resource_metrics=[ResourceMetrics(resource=resource, scope_metrics=[ScopeMetrics(metrics=metrics)])]
    )


def test_what_opentelemetry_has_written_is_read() -> None:
    of_group = (("group_id", "g"),)
    points = [
        Point(SENT, -7, True, True, (*of_group, ("topic", "t"))),
        Point("c", 1.5, False, False, of_group),
        Point("g", 2.5, False, False, (*of_group, ("b", "true"), ("i", "-3"), ("d", "0.5"), ("s", "é"))),
    ]
    data = written().SerializeToString()
    assert points_of(data, 3) == (points, 0)
    assert points_of(data, 1) == (points[:1], 2)
    assert points_of(b"", 1) == ([], 0)


def test_bytes_that_are_no_metrics_are_refused_or_say_nothing() -> None:
    """Never anything but points or ProtocolError, whatever the bytes."""
    data, chance = written().SerializeToString(), random.Random(7)
    refused = 0
    for _ in range(3_000):
        damaged = bytearray(data)
        for _ in range(chance.randrange(1, 4)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        try:
            points, _ = points_of(bytes(damaged[: chance.randrange(len(damaged) + 1)]), 100)
        except ProtocolError:
            refused += 1
        else:
            assert all(math.isfinite(each.value) for each in points)
    assert refused > 100
    for each in (b"\x0a\xff", b"\x0b", b"\x80" * 11, b"\x0a\x7f\x00"):
        with pytest.raises(ProtocolError):
            points_of(each, 1)


def test_a_field_that_claims_more_than_there_is_is_refused() -> None:
    with pytest.raises(ProtocolError, match="end inside"):
        points_of(b"\x0a" + b"\xff" * 9 + b"\x01", 10)


def shown(series: ClientSeries, now_ms: int = 0, series_max: int = 100) -> dict[str, dict[tuple[str, ...], float]]:
    series.check()
    return {
        metric.name: {tuple(value for _, value in labels): number for labels, number in metric.series.items()}
        for metric in series.pushed(series_max, now_ms)[0]
    }


def counted(value: float, name: str = SENT, *, is_delta: bool = True, **attributes: str) -> Point:
    return Point(name, value, True, is_delta, tuple(attributes.items()))


def gauge(value: float, name: str, **attributes: str) -> Point:
    return Point(name, value, False, False, tuple(attributes.items()))


def test_deltas_add_up_and_gauges_and_cumulative_sums_replace() -> None:
    series = ClientSeries()
    for value in (3, 4):
        points = [counted(value), counted(value, "c", is_delta=False), gauge(value, "g")]
        series.take("id", "app", points, now_ms=0, expires_ms=10)
    assert shown(series) == {
        "kafka_client_producer_record_send_total": {("app", "id"): 7},
        "kafka_client_c_total": {("app", "id"): 4},
        "kafka_client_g": {("app", "id"): 4},
    }


def test_instances_of_one_client_id_have_series_of_their_own_and_end_when_they_are_silent() -> None:
    series = ClientSeries()
    series.take("a", "app", [gauge(1, "g")], now_ms=0, expires_ms=10)
    series.take("b", "app", [gauge(2, "g")], now_ms=5, expires_ms=15)
    assert shown(series, 9) == {"kafka_client_g": {("app", "a"): 1, ("app", "b"): 2}}
    assert shown(series, 10) == {"kafka_client_g": {("app", "b"): 2}}
    series.take("c", "app", [], now_ms=15, expires_ms=30)
    assert series.series_count == 0


def test_names_and_labels_are_prometheuss_whatever_a_client_says() -> None:
    series = ClientSeries()
    hostile = gauge(
        1, 'x"}\n-é', **{"__name__": "kafka_consumergroup_lag", "1a-b": 'q"\\\n', "client_id": "me", "é": "v"}
    )
    series.take(
        "id", "app", [hostile, gauge(2, "y", **{f"l{n}": "v" * 999 for n in range(99)})], now_ms=0, expires_ms=9
    )
    metrics, _ = series.pushed(100, 0)
    samples = Samples()
    samples.pushed = metrics
    first, *_ = (line for line in exposition(samples).splitlines() if line.startswith("kafka_client_x"))
    assert first == (
        'kafka_client_x_____{a_b="q\\"\\\\\\n",client_id="app",client_instance_id="id",name__="kafka_consumergroup_lag"} 1'
    )
    (labels,) = metrics[1].series
    assert len(labels) == client_series.LABELS_MAX + 2 and max(len(value) for _, value in labels) == 256
    assert not [name for name in METRICS if name.startswith(PREFIX)], "a client could speak for a broker"


def test_series_are_bounded_by_instance_together_and_where_they_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_series, "SERIES_OF_INSTANCE_MAX", 3)
    monkeypatch.setattr(client_series, "SERIES_MAX", 5)
    series = ClientSeries()
    many = [gauge(number, "g", n=str(number)) for number in range(4)]
    series.take("a", "app", many, now_ms=0, expires_ms=10)
    assert (series.series_count, series.dropped_points) == (3, 1)
    series.take("b", "app", many, now_ms=0, expires_ms=20)
    assert (series.series_count, series.dropped_points) == (5, 3)
    metrics, left_out = series.pushed(2, 0)
    assert (len(metrics[0].series), left_out) == (2, 3)
    series.take("b", "app", many, now_ms=10, expires_ms=20)  # those of the first are gone
    assert series.series_count == 3


def test_a_gauge_and_a_counter_never_share_a_family() -> None:
    series = ClientSeries()
    series.take("a", "app", [gauge(1, "x"), counted(2, "x.total"), gauge(3, "y.total")], now_ms=0, expires_ms=9)
    metrics, left_out = series.pushed(10, 0)
    assert ([each.name for each in metrics], left_out) == (["kafka_client_x_total", "kafka_client_y"], 1)
    samples = Samples()
    samples.pushed = metrics
    assert exposition(samples, OPENMETRICS).splitlines() == [
        "# HELP kafka_client_x pushed by clients",
        "# TYPE kafka_client_x counter",
        'kafka_client_x_total{client_id="app",client_instance_id="a"} 2',
        "# HELP kafka_client_y pushed by clients",
        "# TYPE kafka_client_y gauge",
        'kafka_client_y{client_id="app",client_instance_id="a"} 3',
        "# EOF",
    ]
