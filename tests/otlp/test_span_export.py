"""Spans on their way to a collector: what it decodes, and what is counted of those that it does not take."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from raylog.otlp.spans import SpanKind, TraceSpan
from raylog.server import span_export
from raylog.server.span_counts import SpanCounts
from raylog.server.span_export import SpanExport
from raylog.version import VERSION

pytestmark = pytest.mark.core

WITHIN_S = 60


def span(number: int = 1, error: str = "") -> TraceSpan:
    attributes = (("messaging.kafka.offset", 300), ("messaging.system", "kafka"))
    ids = number.to_bytes(16, "big"), number.to_bytes(8, "big"), (number + 1).to_bytes(8, "big")
    return TraceSpan(*ids, "append", SpanKind.SERVER, 11, 22, attributes, error)


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    from otlp_receiver import otlp_receiver

    monkeypatch.setattr(span_export, "INTERVAL_MS", 5)
    with otlp_receiver() as receiver:
        yield receiver


def exported(
    collector: Any,
    work: Callable[[SpanExport, SpanCounts], Awaitable[None]],
    environment: dict[str, str] | None = None,
) -> SpanCounts:
    """What was counted, after this work on a running loop."""
    counts = SpanCounts()

    async def run() -> None:
        own = {"service.instance.id": "one", "raylog.broker.id": "1"}
        export = SpanExport(f"{collector.endpoint}/v1/traces", environment or {}, own, counts)
        try:
            await work(export, counts)
        finally:
            export.stop()

    asyncio.run(asyncio.wait_for(run(), WITHIN_S))
    return counts


def said(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(each.levelname, each.getMessage()) for each in caplog.records if each.name == "raylog.traces"]


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


def test_a_span_is_what_protobuf_reads(collector: Any) -> None:
    async def work(export: SpanExport, counts: SpanCounts) -> None:
        export.add(span())
        export.add(replace(span(2, error="NOT_LEADER_OR_FOLLOWER"), kind=SpanKind.INTERNAL))
        await until(lambda: counts.sent == 2)

    exported(collector, work, {"OTEL_RESOURCE_ATTRIBUTES": "service.instance.id=named,region=north"})
    (push,) = collector.pushes
    assert push.path == "/v1/traces"
    assert push.resource == {
        "service.name": "raylog",
        "service.instance.id": "named",
        "raylog.broker.id": "1",
        "region": "north",
    }
    scope = push.message.resource_spans[0].scope_spans[0].scope
    assert (scope.name, scope.version) == ("raylog", VERSION)
    first, second = push.spans
    assert (first.trace_id, first.span_id, first.parent_span_id) == (
        (1).to_bytes(16, "big"), (1).to_bytes(8, "big"), (2).to_bytes(8, "big"),
    )  # fmt: skip
    assert (first.name, first.kind, first.start_time_unix_nano, first.end_time_unix_nano) == ("append", 2, 11, 22)
    assert [(each.key, each.value.int_value, each.value.string_value) for each in first.attributes] == [
        ("messaging.kafka.offset", 300, ""),
        ("messaging.system", 0, "kafka"),
    ]
    assert not first.HasField("status")
    assert (second.kind, second.status.code, second.status.message) == (1, 2, "NOT_LEADER_OR_FOLLOWER")


def test_no_request_has_more_spans_than_the_bound(collector: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(span_export, "REQUEST_SPANS_MAX", 2)

    async def work(export: SpanExport, counts: SpanCounts) -> None:
        for number in range(1, 6):
            export.add(span(number))
        await until(lambda: counts.sent == 5)

    exported(collector, work)
    assert [len(each.spans) for each in collector.pushes] == [2, 2, 1]


def test_what_waits_is_sent_as_a_whole_when_an_interval_is_over(
    collector: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(span_export, "INTERVAL_MS", 500)
    monkeypatch.setattr(span_export, "REQUEST_SPANS_MAX", 1)
    begun, took_s = time.monotonic(), []

    async def work(export: SpanExport, counts: SpanCounts) -> None:
        for number in range(1, 31):
            export.add(span(number))
        for count in (1, 30):
            await until(lambda count=count: counts.sent >= count)
            took_s.append(time.monotonic() - begun)

    exported(collector, work)
    assert 0.5 <= took_s[0] <= took_s[1] < 10, "an interval was waited for, and not one for each request"


def refusal(rejected: int, reason: str) -> bytes:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

    answer = ExportTraceServiceResponse()
    answer.partial_success.rejected_spans = rejected
    answer.partial_success.error_message = reason
    return answer.SerializeToString()


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ((503, b""), "it answers 503 Service Unavailable"),
        ((200, b"<html>"), "bytes with a field of wire type 4"),
        ((200, refusal(2, "too old")), "it has refused 2 spans: too old"),
        ((99, b""), "HTTP/1.0 99 \r\n"),
    ],
)
def test_a_collector_that_fails_is_named_once_until_it_takes_spans_again(
    collector: Any, caplog: pytest.LogCaptureFixture, answer: tuple[int, bytes], reason: str
) -> None:
    caplog.set_level("INFO", "raylog.traces")

    async def work(export: SpanExport, counts: SpanCounts) -> None:
        for round in range(2):
            collector.answer = answer
            for number in (1, 2):
                export.add(span())
                export.add(span())
                await until(lambda wanted=4 * round + 2 * number: counts.unsent >= wanted)
            collector.answer = (200, b"")
            for number in (1, 2):
                export.add(span())
                await until(lambda wanted=2 * round + number: counts.sent >= wanted)

    counts = exported(collector, work)
    assert (counts.sent, counts.unsent, counts.queue_full) == (4, 8, 0)
    at = f"{collector.endpoint}/v1/traces"
    named = ("WARNING", f"spans cannot be sent to {at}: {reason}"), ("INFO", f"spans are sent to {at} again")
    assert said(caplog) == [*named, *named]


def test_a_collector_that_does_not_answer_in_time_is_named_with_that_time(
    collector: Any, caplog: pytest.LogCaptureFixture
) -> None:
    collector.free.clear()

    async def work(export: SpanExport, counts: SpanCounts) -> None:
        export.add(span())
        await until(lambda: bool(counts.unsent))

    exported(collector, work, {"OTEL_EXPORTER_OTLP_TRACES_TIMEOUT": "200"})
    assert [text.endswith("/v1/traces: no answer within 0.2 s") for _, text in said(caplog)] == [True]


def test_where_nobody_listens_spans_are_lost_and_counted(caplog: pytest.LogCaptureFixture, collector: Any) -> None:
    async def work(export: SpanExport, counts: SpanCounts) -> None:
        for number in (1, 2):
            export.add(span())
            await until(lambda number=number: counts.unsent == number)

    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    assert exported(SimpleNamespace(endpoint=f"http://127.0.0.1:{port}"), work).sent == 0
    assert [text.endswith(": [Errno 111] Connection refused") for _, text in said(caplog)] == [True]


@pytest.mark.parametrize(("rejected", "lost"), [(1, 1), (3, 3), (300, 3), (-1, 3)])
def test_of_a_request_the_spans_that_a_collector_rejects_are_lost_and_no_others(
    collector: Any, rejected: int, lost: int
) -> None:
    """A collector that has rejected more than it got has taken none."""
    collector.answer = (200, refusal(rejected, "too old"))

    async def work(export: SpanExport, counts: SpanCounts) -> None:
        for number in range(1, 4):
            export.add(span(number))
        await until(lambda: bool(counts.sent + counts.unsent))

    counts = exported(collector, work)
    assert (counts.sent, counts.unsent) == (3 - lost, lost)


def test_a_collector_that_rejects_nothing_may_have_something_to_say(
    collector: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """OpenTelemetry's specification: a warning, where all was taken."""
    caplog.set_level("INFO", "raylog.traces")
    collector.answer = (200, refusal(0, "use gzip"))

    async def work(export: SpanExport, counts: SpanCounts) -> None:
        export.add(span())
        await until(lambda: bool(counts.sent))

    assert exported(collector, work).unsent == 0
    assert said(caplog) == []


def test_a_collector_that_does_not_answer_delays_nobody_and_what_waits_is_counted(
    collector: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(span_export, "QUEUE_MAX", 3)
    collector.free.clear()
    freed = threading.Timer(0.5, collector.free.set)  # the thread of the request has to end

    async def work(export: SpanExport, counts: SpanCounts) -> None:
        for number in range(1, 3):
            export.add(span(number))
        await until(lambda: bool(collector.pushes))
        assert counts.unsent == 0, "nobody waits until it has failed"
        for number in range(3, 8):
            export.add(span(number))
        assert counts.queue_full == 2 and not counts.sent
        export.stop()
        assert counts.unsent == 3
        async with asyncio.timeout(5):  # sooner than the request would be given up
            await until(lambda: counts.unsent >= 5)
            await until(export._sending.done)  # or a server that ends would leave a task
        freed.start()

    counts = exported(collector, work)
    freed.join()
    assert (counts.sent, counts.unsent, counts.queue_full) == (0, 5, 2)
