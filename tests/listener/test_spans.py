"""Records with a `traceparent` header have four spans at a collector of OpenTelemetry, whatever way they came; others have none."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from outside import Client, fetch, produce
from raw_requests import ask, endpoint_of, eventually, nodes_of

from raylog.client.links import requests
from raylog.client.sync import AdminClient
from raylog.errors import InvalidConfigError, RaylogError
from raylog.listener.moves import PATIENCE
from raylog.metrics import table
from raylog.records import codec, traceparents
from raylog.records.compression import Compression
from raylog.replication import traced as traced_batches
from raylog.server import span_export, spans
from raylog.server.replica_server import ReplicaServer
from raylog.testing.in_process import InProcessCluster
from raylog.types import TopicPartition

pytestmark = pytest.mark.core

NewTopicOf = Callable[..., str]
ENDPOINT, RATE = "traces.otlp.endpoint", "traces.spans.per.second.max"
NAMES = {"produce", "append", "replicated", "fetched"}
_numbers = itertools.count(1)


class Trace:
    """A producer's, that it tells in a header."""

    def __init__(self, flags: str = "01") -> None:
        number = next(_numbers)
        self.id, self.span_id = f"{number:032x}", f"{number + (1 << 60):016x}"
        self.header = f"00-{self.id}-{self.span_id}-{flags}".encode()

    def batch(self, compression: int = Compression.NONE, value: bytes = b"v") -> bytes:
        return codec.encode([(1, None, value, [("traceparent", self.header)])], compression=compression)

    def spans(self, collector: Any) -> dict[str, Any]:
        found = [each for each in collector.spans if each.trace_id.hex() == self.id]
        assert len({each.name for each in found}) == len(found), "a span twice"
        return {each.name: each for each in found}

    def awaited(self, collector: Any, names: set[str] = NAMES) -> dict[str, Any]:
        return eventually(
            lambda: (found := self.spans(collector)).keys() == names and found, f"spans {names} of {self.id}"
        )


def attributes(span: Any) -> dict[str, Any]:
    found = {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes}
    assert len(found) == len(span.attributes)
    return found


@pytest.fixture
def collector() -> Iterator[Any]:
    from otlp_receiver import otlp_receiver

    with otlp_receiver() as receiver:
        yield receiver


@pytest.fixture
def admin(running: InProcessCluster) -> Iterator[AdminClient]:
    with AdminClient(running.address) as opened:
        yield opened


def hosts(running: InProcessCluster) -> list[ReplicaServer]:
    return [each for each in running.launcher.servers.values() if isinstance(each, ReplicaServer)]


@contextlib.contextmanager
def traces_to(running: InProcessCluster, admin: AdminClient, endpoint: str, rate: int = 100_000) -> Iterator[None]:
    """Every process of replicas sends its spans there."""
    admin.alter_configs(broker="all", set={ENDPOINT: endpoint, RATE: str(rate)})
    ready = lambda: all(each._spans.is_on and each._spans._allowance.spans_max == rate for each in hosts(running))  # noqa: E731
    eventually(ready, "all hosts make spans")
    yield
    admin.alter_configs(broker="all", delete=[ENDPOINT, RATE])
    eventually(lambda: not any(each._spans.is_on for each in hosts(running)), "no host makes spans")


@pytest.fixture
def on(
    running: InProcessCluster, admin: AdminClient, collector: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    monkeypatch.setattr(span_export, "INTERVAL_MS", 20)
    with traces_to(running, admin, collector.endpoint):
        yield


def leader(running: InProcessCluster, topic: str, broker: int = 0) -> ReplicaServer:
    found = running.launcher.servers[nodes_of(running, topic)[broker]]
    assert isinstance(found, ReplicaServer)
    return found


# ------------------------------------------------------------------ what a trace gets


def test_a_record_of_librdkafka_has_four_spans_in_its_producers_trace(
    running: InProcessCluster, on: None, collector: Any, new_topic: NewTopicOf
) -> None:
    from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
    from outside import listener

    topic, first, second = new_topic((0, 1, 2)), Trace(), Trace()
    at = listener(running, 0)
    known = {"bootstrap.servers": f"{at.host}:{at.port}", "log_level": 0}
    producer = Producer({**known, "client.id": "orders", "acks": "all", "linger.ms": 50})
    for trace in (None, first, None, second):
        headers = [("other", b"1")] + ([("traceparent", trace.header)] if trace is not None else [])
        producer.produce(topic, b"v", headers=headers)
    assert producer.flush(60) == 0
    before = {"produce", "append", "replicated"}
    assert first.awaited(collector, before) and second.awaited(collector, before)
    consumer = Consumer({**known, "group.id": "unused", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    try:
        found = []
        while len(found) < 4:
            message = consumer.poll(60)
            assert message is not None and message.error() is None
            found.append(message)
    finally:
        consumer.close()
    for trace, offset in ((first, 1), (second, 3)):
        four = trace.awaited(collector)
        assert four["produce"].parent_span_id.hex() == trace.span_id
        for name in NAMES - {"produce"}:
            assert four[name].parent_span_id == four["produce"].span_id
        assert len({each.span_id for each in four.values()}) == 4
        assert four["produce"].kind == 2 and four["fetched"].kind == 1
        times = {name: (each.start_time_unix_nano, each.end_time_unix_nano) for name, each in four.items()}
        assert times["produce"][0] <= times["append"][0] <= times["append"][1] == times["replicated"][0]
        assert times["replicated"][0] < times["replicated"][1] == times["fetched"][0] < times["fetched"][1]
        assert times["replicated"][1] <= times["produce"][1], "acks=all waits for the high watermark"
        for name, each in four.items():
            assert attributes(each) == {
                "messaging.system": "kafka",
                "messaging.operation.name": name,
                "messaging.destination.name": topic,
                "messaging.destination.partition.id": "0",
                "messaging.kafka.offset": offset,
                "messaging.client.id": "orders",
            }
            assert each.status.code == 0
    (push, *_) = [each for each in collector.pushes if each.spans]
    assert push.path == "/v1/traces"
    assert push.resource["service.name"] == "raylog" and push.resource["raylog.broker.id"] == "0"


@pytest.mark.parametrize("compression", Compression)
@pytest.mark.parametrize("acks", [0, 1, -1])
def test_a_trace_is_found_whatever_the_acks_and_the_compression(
    on: None, collector: Any, client: Callable[..., Client], new_topic: NewTopicOf, acks: int, compression: Compression
) -> None:
    topic, one, trace = new_topic((0, 1)), client(), Trace()
    sent = one.send(produce(topic, {0: trace.batch(compression, bytes(1_000))}, acks=acks))
    if acks:
        sent.result()
    trace.awaited(collector, NAMES - {"fetched"})
    one.ask(fetch(topic, {0: 0}, max_wait_ms=1_000))
    trace.awaited(collector)


def test_partitions_of_one_request_and_a_fetch_that_waited(
    on: None, collector: Any, client: Callable[..., Client], new_topic: NewTopicOf
) -> None:
    topic, one, waiting = new_topic((0, 1), (0, 2)), client(), client()
    first, second = Trace(), Trace()
    asked = waiting.send(fetch(topic, {0: 0, 1: 0}, max_wait_ms=60_000, min_bytes=2 * len(first.batch()) - 1))
    one.ask(produce(topic, {0: first.batch(), 1: second.batch()}))
    asked.result()
    for partition, trace in enumerate((first, second)):
        four = trace.awaited(collector)
        assert {attributes(each)["messaging.destination.partition.id"] for each in four.values()} == {str(partition)}


@pytest.mark.parametrize("acks", [1, -1])
def test_requests_of_a_connection_that_has_moved_to_the_host(
    running: InProcessCluster, on: None, collector: Any, client: Callable[..., Client], new_topic: NewTopicOf, acks: int
) -> None:
    topic, one, reader = new_topic((0, 1)), client(), client()
    host = leader(running, topic)
    many = [Trace() for _ in range(4 * PATIENCE)]
    for offset, trace in enumerate(many):
        one.ask(produce(topic, {0: trace.batch()}, acks=acks))
        reader.ask(fetch(topic, {0: offset}, max_wait_ms=10_000))
    assert len(host.door._guests) >= 2, "the connections have not moved"
    for trace in many:
        trace.awaited(collector)


def test_a_batch_that_is_refused_has_one_span_with_the_error(
    on: None, collector: Any, client: Callable[..., Client], new_topic: NewTopicOf
) -> None:
    topic, trace = new_topic((0,), min_insync_replicas="1", max_message_bytes="100"), Trace()
    refused = client().ask(produce(topic, {0: trace.batch(value=bytes(200))}))
    assert refused.responses[0].partition_responses[0].error_code.value == 10
    span = trace.awaited(collector, {"produce"})["produce"]
    assert span.status.code == 2 and span.status.message == "MESSAGE_TOO_LARGE"
    found = attributes(span)
    assert found["error.type"] == "MESSAGE_TOO_LARGE" and "messaging.kafka.offset" not in found


def test_spans_name_the_trace_id_of_the_logs(
    running: InProcessCluster,
    admin: AdminClient,
    on: None,
    collector: Any,
    client: Callable[..., Client],
    new_topic: NewTopicOf,
) -> None:
    topic, one, trace = new_topic((0, 1)), client(), Trace()
    admin.alter_configs(broker="all", set={"request.trace.enable": "true"})
    try:
        eventually(lambda: all(each.door.server.stages for each in hosts(running)), "requests are traced")
        one.ask(produce(topic, {0: trace.batch()}))
        three = trace.awaited(collector, NAMES - {"fetched"})
        (id,) = {attributes(each)["raylog.trace_id"] for each in three.values()}
        assert len(id) == 32 and id != trace.id
    finally:
        admin.alter_configs(broker="all", delete=["request.trace.enable"])
        eventually(lambda: not any(each.door.server.stages for each in hosts(running)), "requests are not traced")


def test_what_is_not_sampled_or_malformed_has_no_spans(
    on: None, collector: Any, client: Callable[..., Client], new_topic: NewTopicOf
) -> None:
    topic, one, silent, last = new_topic((0, 1)), client(), Trace(flags="00"), Trace()
    malformed = codec.encode([(1, None, b"v", [("traceparent", b"00-nonsense")])])
    for each in (silent.batch(), malformed, codec.encode([(1, None, b"traceparent", [])])):
        one.ask(produce(topic, {0: each}))
    one.ask(produce(topic, {0: last.batch()}))
    last.awaited(collector, NAMES - {"fetched"})
    assert {each.trace_id.hex() for each in collector.spans} == {last.id}


def test_a_fetch_has_the_spans_of_what_it_returns_and_the_next_one_has_none(
    running: InProcessCluster, on: None, collector: Any, client: Callable[..., Client], new_topic: NewTopicOf
) -> None:
    topic, one, many = new_topic((0, 1)), client(), [Trace() for _ in range(4)]
    for trace in many:
        one.ask(produce(topic, {0: trace.batch()}))
    one.ask(fetch(topic, {0: 1}, max_bytes=2 * len(many[0].batch())))
    one.ask(fetch(topic, {0: 1}, max_bytes=2 * len(many[0].batch())))
    for trace in many[1:3]:
        trace.awaited(collector)
    for trace in (many[0], many[3]):
        trace.awaited(collector, NAMES - {"fetched"})
    one.ask(fetch(topic, {0: 0}))
    for trace in many:
        trace.awaited(collector)
    assert not leader(running, topic)._spans._awaited


def test_a_span_ends_no_earlier_than_it_begins_whatever_the_clock_does(
    running: InProcessCluster,
    on: None,
    collector: Any,
    client: Callable[..., Client],
    new_topic: NewTopicOf,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic, one, trace = new_topic((0, 1)), client(), Trace()
    back = itertools.count(1_700_000_000_000_000_000, -1_000_000_000)
    monkeypatch.setattr(leader(running, topic)._spans, "_clock", lambda: next(back))
    one.ask(produce(topic, {0: trace.batch()}))
    one.ask(fetch(topic, {0: 0}))
    for span in trace.awaited(collector).values():
        assert 1_600_000_000_000_000_000 < span.start_time_unix_nano <= span.end_time_unix_nano


def test_a_producer_that_does_not_wait_for_the_replicas(
    running: InProcessCluster, on: None, collector: Any, client: Callable[..., Client], new_topic: NewTopicOf
) -> None:
    topic, late, gone = new_topic((0, 1)), Trace(), Trace()
    nodes, held = nodes_of(running, topic), leader(running, topic)._spans
    follower, before = running.launcher.servers[nodes[1]], held.counts.forgotten
    copying = follower._leaders.send
    follower._leaders.send = lambda order: None  # it copies nothing
    try:
        client().ask(produce(topic, {0: late.batch()}, timeout_ms=50))
        two = late.awaited(collector, {"append", "produce"})
        assert attributes(two["produce"])["error.type"] == "REQUEST_TIMED_OUT"
        assert attributes(two["produce"])["messaging.kafka.offset"] == 0
        body = requests.produce({TopicPartition(topic, 0): gone.batch()}, acks=-1, timeout_ms=60_000)
        with pytest.raises(RaylogError):
            ask(running, endpoint_of(running, nodes[0]), body, timeout_ms=500)
        gone.awaited(collector, {"append"})
        eventually(lambda: held.counts.forgotten == before + 1, "a request without a client to be forgotten")
        assert not held._asked
    finally:
        follower._leaders.send = copying
        running.run(follower.crash())


def test_the_environment_says_how_spans_are_sent(
    running: InProcessCluster,
    admin: AdminClient,
    collector: Any,
    client: Callable[..., Client],
    new_topic: NewTopicOf,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(span_export, "INTERVAL_MS", 20)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "api-key=secret")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", "gzip")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "the logs")
    topic, one, trace = new_topic((0,)), client(), Trace()
    with traces_to(running, admin, collector.endpoint):
        one.ask(produce(topic, {0: trace.batch()}))
        trace.awaited(collector, NAMES - {"fetched"})
    (push, *_) = collector.pushes
    assert (push.headers["api-key"], push.headers["content-encoding"]) == ("secret", "gzip")
    assert push.resource["service.name"] == "the logs"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "grpc")
    admin.alter_configs(broker="all", set={ENDPOINT: collector.endpoint})
    eventually(lambda: "there will be no spans" in caplog.text, "the error to be logged")
    one.ask(produce(topic, {0: Trace().batch()}))
    assert not any(each._spans.is_on for each in hosts(running))
    admin.alter_configs(broker="all", delete=[ENDPOINT])


def test_the_metrics_count_spans(
    running: InProcessCluster, on: None, collector: Any, client: Callable[..., Client], new_topic: NewTopicOf
) -> None:
    topic, one, trace = new_topic((0,)), client(), Trace()
    host = leader(running, topic)

    def counted() -> dict[str, float]:
        samples = host._metrics.registry.collect(None)
        sent, dropped = samples.of(table.SPANS_SENT), samples.of(table.SPANS_DROPPED)
        return {"sent": sent[()], **{labels[0]: count for labels, count in dropped.items()}}

    before = counted()
    assert before.keys() == {"sent", "queue full", "not sent", "no end"}
    one.ask(produce(topic, {0: trace.batch()}))
    eventually(lambda: counted() == {**before, "sent": before["sent"] + 3}, "three spans in the metrics")
    collector.answer = (503, b"")
    one.ask(fetch(topic, {0: 0}))
    eventually(lambda: counted()["not sent"] == before["not sent"] + 1, "a span that was not taken")


# ------------------------------------------------------------------ off


def test_when_it_is_off_nothing_of_a_record_is_read(
    running: InProcessCluster, client: Callable[..., Client], new_topic: NewTopicOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []
    for name in ("traceparents", "may_have", "is_compressed"):
        monkeypatch.setattr(traceparents, name, lambda *_, name=name: looked.append(name))
    topic, one, trace = new_topic((0, 1), (0, 1)), client(), Trace()
    one.ask(produce(topic, {0: trace.batch(), 1: trace.batch()}))
    for offset in range(4 * PATIENCE):
        one.ask(produce(topic, {0: trace.batch()}, acks=1))
        one.ask(fetch(topic, {0: offset}))
    assert looked == []
    found = leader(running, topic)._spans
    assert (found._asked, found._awaited, len(found._arrivals)) == ({}, {}, 0)


@pytest.mark.parametrize("value", ["localhost:4318", "ftp://a", "http://", "http://a:port", "http://me:secret@a"])
def test_an_endpoint_that_cannot_be_is_refused(admin: AdminClient, value: str) -> None:
    with pytest.raises(InvalidConfigError):
        admin.alter_configs(broker="all", set={ENDPOINT: value})


# ------------------------------------------------------------------ bounds


def test_a_hundred_thousand_records_keep_memory_bounded_while_the_collector_answers_nothing(
    running: InProcessCluster,
    admin: AdminClient,
    collector: Any,
    new_topic: NewTopicOf,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from confluent_kafka import Producer
    from outside import listener

    for module, name, bound in (
        (span_export, "QUEUE_MAX", 500),
        (span_export, "INTERVAL_MS", 20),
        (spans, "AWAITED_MAX", 200),
        (traced_batches, "TRACED_BATCHES_MAX", 100),
    ):
        monkeypatch.setattr(module, name, bound)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "600000")
    topic, trace = new_topic((0, 1, 2)), Trace()
    host = leader(running, topic)
    counts, before = host._spans.counts, host._spans.counts.sent
    collector.free.clear()
    at = listener(running, 0)
    with traces_to(running, admin, f"{collector.endpoint}/v1/traces", rate=1_000_000):
        export = host._spans._export
        assert export is not None
        producer = Producer({"bootstrap.servers": f"{at.host}:{at.port}", "log_level": 0, "batch.num.messages": 20})
        largest = 0
        for number in range(100_000):
            producer.produce(topic, b"v", headers=[("traceparent", trace.header)])
            if number % 1_000 == 999:
                assert producer.flush(60) == 0
                held = host._spans
                largest = max(largest, len(export._queue))
                assert len(export._queue) <= 500 and len(held._arrivals) <= 200
                assert sum(map(len, held._awaited.values())) <= 200 and len(held._asked) < 100
                assert host._host.context.traced_batches <= 100
        assert largest == 500 and counts.queue_full > 10_000 and counts.forgotten > 10_000
        collector.free.set()
        eventually(lambda: counts.sent >= before + 500, "what waited to be sent")
    assert counts.sent == before + len([each for each in collector.spans if each.trace_id.hex() == trace.id])


def test_only_so_many_spans_are_made_in_a_second(
    running: InProcessCluster,
    admin: AdminClient,
    collector: Any,
    client: Callable[..., Client],
    new_topic: NewTopicOf,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(span_export, "INTERVAL_MS", 20)
    topic, one, many = new_topic((0,)), client(), [Trace() for _ in range(6)]
    host = leader(running, topic)
    before = host._spans.counts.unsearched
    with traces_to(running, admin, collector.endpoint, rate=8):
        monkeypatch.setattr(host._spans, "_clock", lambda: 1_700_000_000_000_000_000)
        for trace in many[:5]:
            one.ask(produce(topic, {0: trace.batch()}))
        assert host._spans.counts.unsearched == before + 3
        monkeypatch.setattr(host._spans, "_clock", lambda: 1_700_000_001_000_000_000)
        one.ask(produce(topic, {0: many[5].batch()}))
        many[5].awaited(collector, NAMES - {"fetched"})
    assert [bool(trace.spans(collector)) for trace in many] == [True, True, False, False, False, True]


def test_only_so_many_batches_are_inflated_and_records_followed_in_a_second(
    running: InProcessCluster,
    admin: AdminClient,
    collector: Any,
    client: Callable[..., Client],
    new_topic: NewTopicOf,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(span_export, "INTERVAL_MS", 20)
    monkeypatch.setattr(spans, "COMPRESSED_PER_SECOND_MAX", 1)
    topic, one, many = new_topic((0,)), client(), [Trace() for _ in range(7)]
    three = codec.encode([(1, None, b"v", [("traceparent", trace.header)]) for trace in many[3:6]])
    with traces_to(running, admin, collector.endpoint, rate=12):
        monkeypatch.setattr(leader(running, topic)._spans, "_clock", lambda: 1_700_000_000_000_000_000)
        for trace in many[:2]:
            one.ask(produce(topic, {0: trace.batch(Compression.ZSTD, bytes(1_000))}))
        one.ask(produce(topic, {0: three}))
        monkeypatch.setattr(leader(running, topic)._spans, "_clock", lambda: 1_700_000_001_000_000_000)
        one.ask(produce(topic, {0: many[6].batch()}))
        many[6].awaited(collector, NAMES - {"fetched"})
    assert [bool(trace.spans(collector)) for trace in many] == [True, False, False, True, True, False, True]


def test_a_collector_that_is_gone_or_refuses_is_counted_and_named_once(
    running: InProcessCluster,
    on: None,
    collector: Any,
    client: Callable[..., Client],
    new_topic: NewTopicOf,
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic, one, last = new_topic((0,)), client(), Trace()
    counts = leader(running, topic)._spans.counts
    collector.answer = (503, b"")
    for _ in range(2):
        before = counts.unsent
        one.ask(produce(topic, {0: Trace().batch()}))
        eventually(lambda before=before: counts.unsent > before, "spans to be refused")
    collector.answer = (200, b"")
    one.ask(produce(topic, {0: last.batch()}))
    last.awaited(collector, NAMES - {"fetched"})
    said = [each.message for each in caplog.records if each.name == "raylog.traces"]
    assert len([each for each in said if "503" in each]) == 1, said
