"""Metrics on their way to a collector of OpenTelemetry: what it decodes, how the environment says where, and what can go wrong."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from outside import Client, produce
from raw_requests import batch, eventually
from scraping import scraped

from raylog.errors import ConfigError, ProtocolError, RaylogError
from raylog.listener.otlp_push import OtlpSender, otlp_push, settings_of
from raylog.metrics import table
from raylog.metrics.client_series import ClientSeries
from raylog.metrics.exposition import PUSHED_MEANING
from raylog.metrics.otlp import Point, points_of
from raylog.metrics.otlp_writing import export_request
from raylog.metrics.registry import Samples
from raylog.otlp.reading import rejected_of
from raylog.server.broker_server import BrokerServer
from raylog.server.spec import ServerSpec
from raylog.testing.in_process import InProcessCluster
from raylog.time_counts import BOUNDS_MS, TimeCounts
from raylog.types import BROKER_SLOT, Endpoint, node_id
from raylog.version import VERSION

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
core = pytest.mark.core


def some() -> Samples:
    samples, times = Samples(), TimeCounts()
    samples.add(table.LEADERS, 3)
    samples.add(table.BYTES_IN, 2**50, "ü")
    samples.add(table.BYTES_IN, 7, "a")
    samples.add(table.LOOP_DELAY, 0.25, "2")
    for length_ns in (1_000_000, 2_000_000, 60_000_000_000):
        times.add(length_ns)
    samples.add_times(table.TOTAL_TIME, times, "Fetch")
    times.add(5_000_000)
    samples.add_times(table.TOTAL_TIME, times, "Produce")
    clients = ClientSeries()
    sent = Point("org.apache.kafka.producer.record.send.total", 5, is_counter=True, is_delta=True, attributes=())
    clients.take("instance", "me", [sent], now_ms=0, expires_ms=1_000)
    samples.pushed, _ = clients.pushed(10, 0)
    return samples


def written(samples: Samples) -> bytes:
    return export_request(samples, {"service.name": "raylog"}, version="1.2", start_time_ns=11, time_ns=22)


@pytest.fixture
def collector() -> Iterator[Any]:
    from otlp_receiver import otlp_receiver

    with otlp_receiver() as receiver:
        yield receiver


def sender(endpoint: str, **environment: str) -> OtlpSender:
    settings = settings_of({ENDPOINT: endpoint, **environment})
    assert settings is not None
    return OtlpSender(settings, {"raylog.broker.id": "1"})


# ------------------------------------------------------------------ what is written


def test_what_is_written_is_what_the_own_reader_reads() -> None:
    points, dropped = points_of(written(some()), 100)
    assert dropped == 0
    found = {(each.name, each.attributes): (each.value, each.is_counter, each.is_delta) for each in points}
    of = (("service.name", "raylog"),)
    assert found[table.BYTES_IN.name, (*of, ("topic", "ü"))] == (2**50, True, False)
    assert found[table.LEADERS.name, of] == (3, False, False)
    assert found[table.LOOP_DELAY.name, (*of, ("node_id", "2"))] == (0.25, False, False)


@core
def test_what_is_written_is_what_protobuf_reads() -> None:
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
    from otlp_receiver import Push

    message = ExportMetricsServiceRequest.FromString(written(some()))
    push = Push("", {}, message)
    assert push.resource == {"service.name": "raylog"}
    scope = message.resource_metrics[0].scope_metrics[0].scope
    assert (scope.name, scope.version) == ("raylog", "1.2")
    counter = push.metrics[table.BYTES_IN.name]
    assert counter.description == table.BYTES_IN.meaning
    assert (counter.sum.is_monotonic, counter.sum.aggregation_temporality) == (True, 2)
    assert push.metrics[table.LEADERS.name].WhichOneof("data") == "gauge"
    assert push.value(table.BYTES_IN.name, topic="ü") == 2**50
    assert push.value("kafka_client_producer_record_send_total", client_id="me", client_instance_id="instance") == 5
    of_client = push.metrics["kafka_client_producer_record_send_total"]
    assert of_client.description == PUSHED_MEANING
    assert (of_client.sum.is_monotonic, of_client.sum.aggregation_temporality) == (True, 2)
    assert {(each.start_time_unix_nano, each.time_unix_nano) for each in push.series.values()} == {(11, 22)}
    histogram = push.metrics[table.TOTAL_TIME.name].histogram
    point, other = histogram.data_points
    assert histogram.aggregation_temporality == 2
    assert (point.count, point.sum, list(point.explicit_bounds)) == (3, 60_003, list(BOUNDS_MS))
    counts = dict(zip((*BOUNDS_MS, None), point.bucket_counts, strict=True))
    assert {bound: count for bound, count in counts.items() if count} == {1.0: 1, 2.5: 1, None: 1}
    assert [(each.key, each.value.string_value) for each in point.attributes] == [("request", "Fetch")]
    assert [(each.key, each.value.string_value) for each in other.attributes] == [("request", "Produce")]
    assert (other.count, other.sum, sum(other.bucket_counts)) == (4, 60_008, 4)


# ------------------------------------------------------------------ how it is sent


@core
def test_a_collector_gets_a_push(collector: Any) -> None:
    sender(
        collector.endpoint,
        OTEL_EXPORTER_OTLP_HEADERS="api-key=a%20secret, other=1",
        OTEL_RESOURCE_ATTRIBUTES="deployment.environment=test,service.name=the logs",
    ).send(some())
    (push,) = collector.pushes
    assert push.path == "/v1/metrics" and push.headers["content-type"] == "application/x-protobuf"
    assert (push.headers["api-key"], push.headers["other"]) == ("a secret", "1")
    assert "content-encoding" not in push.headers
    assert push.resource == {"raylog.broker.id": "1", "deployment.environment": "test", "service.name": "the logs"}
    assert push.value(table.LEADERS.name) == 3


@core
def test_counters_have_counted_since_the_sender_began(collector: Any) -> None:
    before_ns = time.time_ns()
    one = sender(collector.endpoint)
    begun_ns = time.time_ns()
    for number in range(2):
        sent_ns = time.time_ns()
        one.send(some())
        for point in collector.pushes[number].series.values():
            assert before_ns <= point.start_time_unix_nano <= begun_ns
            assert sent_ns <= point.time_unix_nano <= time.time_ns()


@core
def test_a_push_says_what_has_sent_it_and_the_environment_counts_more(collector: Any) -> None:
    sender(collector.endpoint, OTEL_RESOURCE_ATTRIBUTES="raylog.broker.id=7").send(some())
    (push,) = collector.pushes
    assert push.resource == {"raylog.broker.id": "7", "service.name": "raylog"}
    assert push.headers["user-agent"] == f"raylog/{VERSION}"
    assert push.message.resource_metrics[0].scope_metrics[0].scope.version == VERSION


@core
def test_metrics_without_series_are_not_written(collector: Any) -> None:
    sender(collector.endpoint).send(some())
    assert all(getattr(each, each.WhichOneof("data")).data_points for each in collector.pushes[0].metrics.values())


@core
def test_a_push_is_compressed_if_that_is_wanted(collector: Any) -> None:
    sender(f"{collector.endpoint}/", OTEL_EXPORTER_OTLP_METRICS_COMPRESSION="gzip").send(some())
    (push,) = collector.pushes
    assert (push.path, push.headers["content-encoding"]) == ("/v1/metrics", "gzip")
    assert push.value(table.BYTES_IN.name, topic="a") == 7


@core
def test_what_a_collector_refuses_is_an_error(collector: Any) -> None:
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse

    one = sender(collector.endpoint)
    collector.answer = (503, b"later")
    with pytest.raises(RaylogError, match="answers 503"):
        one.send(some())
    refusal = ExportMetricsServiceResponse()
    refusal.partial_success.rejected_data_points = 300
    refusal.partial_success.error_message = "too many"
    assert rejected_of(refusal.SerializeToString()) == (300, "too many")
    collector.answer = (200, refusal.SerializeToString())
    with pytest.raises(RaylogError, match="refused 300 values: too many"):
        one.send(some())
    collector.answer = (200, b"<html>")
    with pytest.raises(ProtocolError):
        one.send(some())


@core
def test_a_collector_with_tls_is_known_by_its_authority(tmp_path: Path) -> None:
    from certificates import Authority
    from otlp_receiver import otlp_receiver

    authority = Authority(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(authority.signed("collector"))
    tls.load_verify_locations(authority.certificate)
    tls.verify_mode = ssl.CERT_REQUIRED
    own, ca = str(authority.signed("broker")), str(authority.certificate)
    both = (tmp_path / "broker.pem").read_text()
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    at = both.index("-----BEGIN CERTIFICATE")
    key.write_text(both[:at])
    certificate.write_text(both[at:])
    apart = {"OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE": str(certificate), "OTEL_EXPORTER_OTLP_CLIENT_KEY": str(key)}
    with otlp_receiver(tls) as receiver:
        known = {"OTEL_EXPORTER_OTLP_CERTIFICATE": ca, "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE": own}
        sender(receiver.endpoint, **known).send(some())
        sender(receiver.endpoint, **(known | apart)).send(some())
        assert len(receiver.pushes) == 2
        with pytest.raises(ssl.SSLCertVerificationError):
            sender(receiver.endpoint).send(some())
    with pytest.raises(ConfigError, match="cannot be used"):
        sender("https://localhost", OTEL_EXPORTER_OTLP_CERTIFICATE=str(tmp_path / "none.pem"))
    locked = str(authority.signed("locked", password="secret"))
    with pytest.raises(ConfigError, match="is encrypted"):
        sender("https://localhost", OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE=locked)


@core
def test_a_broker_pushes_what_it_counts(
    running: InProcessCluster,
    at: dict[int, Endpoint],
    client: Callable[..., Client],
    new_topic: Callable[..., str],
    collector: Any,
) -> None:
    environment = {ENDPOINT: collector.endpoint, "OTEL_METRIC_EXPORT_INTERVAL": "50"}
    target = otlp_push(environment, cluster_id="a cluster", broker_id=1)
    assert target is not None
    launcher, node = running.launcher, node_id(1, BROKER_SLOT)

    def with_a_push(spec: ServerSpec) -> BrokerServer:
        pushes = [target] if spec.node_id == node else []
        return BrokerServer(spec, listeners=launcher._bound.get(spec.node_id), metrics_pushes=pushes)

    build = launcher.build["broker"]
    launcher.build["broker"] = with_a_push
    try:
        running.crash(node)
        eventually(lambda: collector.pushes, "a push of the new process")
        topic = new_topic((1, 0))
        client(1).ask(produce(topic, {0: batch(*[b"v"] * 23)}))
        name = table.MESSAGES_IN.name
        eventually(lambda: collector.pushes[-1].value(name, topic=topic) == 23, "what was produced to be pushed")
        last = collector.pushes[-1]
        assert last.resource == {
            "raylog.cluster.id": "a cluster",
            "raylog.broker.id": "1",
            "service.instance.id": "a cluster-broker-1",
            "service.name": "raylog",
        }
        at[1] = eventually(lambda: launcher.servers[node].metrics.endpoint, "its port for scrapes")
        assert scraped(at[1])[name][(topic,)] == 23
    finally:
        launcher.build["broker"] = build
        running.crash(node)
        at[1] = eventually(lambda: node in launcher.servers and launcher.servers[node].metrics.endpoint, "the port")


# ------------------------------------------------------------------ what the environment says


def test_without_an_endpoint_nothing_is_pushed() -> None:
    assert settings_of({}) is None
    assert otlp_push({ENDPOINT: " "}, cluster_id="c", broker_id=0) is None
    assert settings_of({ENDPOINT: "http://a", "OTEL_SDK_DISABLED": "TRUE"}) is None
    assert settings_of({ENDPOINT: "http://a", "OTEL_METRICS_EXPORTER": "none"}) is None
    assert settings_of({ENDPOINT: "http://a", "OTEL_METRICS_EXPORTER": "prometheus, otlp"}) is not None


@pytest.mark.parametrize(
    ("environment", "endpoint"),
    [
        ({ENDPOINT: "http://a:4318"}, "http://a:4318/v1/metrics"),
        ({ENDPOINT: "https://a/base/"}, "https://a/base/v1/metrics"),
        ({ENDPOINT: "http://a", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://b/as/it/is"}, "http://b/as/it/is"),
        ({"OTEL_METRICS_EXPORTER": "otlp"}, "http://localhost:4318/v1/metrics"),
    ],
)
def test_an_endpoint_of_metrics_is_taken_as_it_is_and_one_of_all_signals_is_a_base(
    environment: dict[str, str], endpoint: str
) -> None:
    found = settings_of(environment)
    assert found is not None and found.endpoint == endpoint
    assert (found.interval_ms, found.timeout_s, found.is_compressed, found.headers) == (60_000, 10.0, False, {})


def test_what_is_said_of_metrics_counts_more_than_what_is_said_of_all_signals() -> None:
    found = settings_of(
        {
            ENDPOINT: "http://a",
            "OTEL_EXPORTER_OTLP_TIMEOUT": "1",
            "OTEL_EXPORTER_OTLP_METRICS_TIMEOUT": "2500",
            "OTEL_EXPORTER_OTLP_HEADERS": "a=1",
            "OTEL_EXPORTER_OTLP_METRICS_HEADERS": "b=2",
            "OTEL_SERVICE_NAME": "named",
            "OTEL_RESOURCE_ATTRIBUTES": "service.name=other",
            "OTEL_METRIC_EXPORT_INTERVAL": "7",
        }
    )
    assert found is not None
    assert (found.timeout_s, found.headers, found.resource, found.interval_ms) == (
        2.5, {"b": "2"}, {"service.name": "named"}, 7,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "Cumulative"),
        ("OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION", "explicit_bucket_histogram"),
        ("OTEL_METRIC_EXPORT_INTERVAL", " 60000 "),
        ("OTEL_METRIC_EXPORT_INTERVAL", " "),
    ],
)
def test_what_is_so_anyway_may_be_said(name: str, value: str) -> None:
    assert settings_of({ENDPOINT: "http://a", name: value}) == settings_of({ENDPOINT: "http://a"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (ENDPOINT, "collector:4317"),
        (ENDPOINT, "grpc://a"),
        (ENDPOINT, "http://"),
        (ENDPOINT, "http://a:many"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "http/json"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "zstd"),
        ("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "delta"),
        ("OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION", "base2_exponential_bucket_histogram"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "10s"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "9" * 5_000),
        ("OTEL_METRIC_EXPORT_INTERVAL", "0"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "no pair"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "a=b%0d%0aHost: c"),
    ],
)
def test_what_cannot_be_honoured_is_refused(name: str, value: str) -> None:
    with pytest.raises(ConfigError):
        settings_of({ENDPOINT: "http://a", name: value})


@core
def test_a_broker_on_ray_goes_on_without_a_collector_that_cannot_be(caplog: pytest.LogCaptureFixture) -> None:
    from raylog.actors.ray_metrics import metrics_pushes

    assert [each.name for each in metrics_pushes(0, "c", {ENDPOINT: "http://a"})] == ["Ray", "http://a/v1/metrics"]
    assert [each.name for each in metrics_pushes(0, "c", {})] == ["Ray"]
    assert caplog.messages == []
    assert [each.name for each in metrics_pushes(0, "c", {ENDPOINT: "a:4317"})] == ["Ray"]
    assert "'a:4317/v1/metrics' is no http://" in caplog.text
