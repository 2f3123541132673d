"""Spans on their way to a collector: what it decodes, and what is counted of those that it does not take."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
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


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


def test_a_span_is_what_protobuf_reads(collector: Any) -> None:
    async def work(export: SpanExport, counts: SpanCounts) -> None:
        export.add(span())
        export.add(span(2, error="NOT_LEADER_OR_FOLLOWER"))
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
    assert (second.status.code, second.status.message) == (2, "NOT_LEADER_OR_FOLLOWER")


def test_no_request_has_more_spans_than_the_bound(collector: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(span_export, "REQUEST_SPANS_MAX", 2)

    async def work(export: SpanExport, counts: SpanCounts) -> None:
        for number in range(1, 6):
            export.add(span(number))
        await until(lambda: counts.sent == 5)

    exported(collector, work)
    assert [len(each.spans) for each in collector.pushes] == [2, 2, 1]


def test_spans_that_a_collector_rejects_are_counted_and_named(collector: Any, caplog: pytest.LogCaptureFixture) -> None:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

    caplog.set_level("INFO", "raylog.traces")
    refusal = ExportTraceServiceResponse()
    refusal.partial_success.rejected_spans = 1
    refusal.partial_success.error_message = "too old"

    async def work(export: SpanExport, counts: SpanCounts) -> None:
        collector.answer = (200, refusal.SerializeToString())
        for number in (1, 2):
            export.add(span(number))
            await until(lambda number=number: counts.unsent == number)
        collector.answer = (200, b"")
        for number in (1, 2):
            export.add(span(number))
            await until(lambda number=number: counts.sent == number)

    counts = exported(collector, work)
    assert (counts.sent, counts.unsent, counts.queue_full) == (2, 2, 0)
    said = [each.getMessage() for each in caplog.records if each.name == "raylog.traces"]
    at = f"{collector.endpoint}/v1/traces"
    assert said == [
        f"spans cannot be sent to {at}: it has refused 1 spans: too old",
        f"spans are sent to {at} again",
    ]


def refusal(rejected: int, reason: str) -> bytes:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

    answer = ExportTraceServiceResponse()
    answer.partial_success.rejected_spans = rejected
    answer.partial_success.error_message = reason
    return answer.SerializeToString()


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


def test_a_collector_that_does_not_answer_delays_nobody_and_what_waits_is_counted(
    collector: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(span_export, "QUEUE_MAX", 3)
    collector.free.clear()
    freed = threading.Timer(0.5, collector.free.set)  # the thread of the request has to end

    async def work(export: SpanExport, counts: SpanCounts) -> None:
        export.add(span())
        await until(lambda: bool(collector.pushes))
        for number in range(2, 7):
            export.add(span(number))
        assert counts.queue_full == 2 and not counts.sent
        export.stop()
        await until(lambda: counts.unsent == 4)
        freed.start()

    counts = exported(collector, work)
    freed.join()
    assert (counts.sent, counts.unsent, counts.queue_full) == (0, 4, 2)
