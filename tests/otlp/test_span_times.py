"""The spans of a batch at its leader: whose children they are, when they begin and end, and what is counted of those that have no end."""

from __future__ import annotations

import uuid
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from raylog.otlp.spans import SpanKind, TraceSpan
from raylog.records import codec
from raylog.replication.events import (
    FetchPartitionResult,
    FetchReceived,
    FetchReply,
    ProducePartition,
    ProducePartitionResult,
    ProduceReceived,
    ProduceReply,
)
from raylog.replication.traced import TraceReached, TraceStage
from raylog.server import spans
from raylog.server.spans import SPANS_OF_RECORD, Spans, TracedBatch
from raylog.types import ActorIdentity, TopicIdPartition

ID = TopicIdPartition(uuid.UUID(int=1), 3)
TRACE, PRODUCER = bytes(range(16)), bytes(range(1, 9))
HEADER = f"00-{TRACE.hex()}-{PRODUCER.hex()}-01".encode()
RECEIVED_NS, GIVEN_NS = 1_000_000_000_000, 1_000_000_007_000
IDENTITY = ActorIdentity("a cluster", 5 << 16 | 2, uuid.UUID(int=9), 1)


class Leader:
    """``Spans`` whose clock and export the test has in its hand. ``now_ns`` goes on by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ns = GIVEN_NS
        self.made: list[TraceSpan] = []
        self.drawn = iter(range(1, 100))
        self.spans = Spans(IDENTITY, lambda id: "t", clock=lambda: self.now_ns, draw=lambda bits: next(self.drawn))
        self.spans._export = SimpleNamespace(add=self.made.append)  # type: ignore[assignment]
        self.spans._allowance.spans_max = 1_000
        self.spans.is_on = True
        monkeypatch.setattr(spans, "time", SimpleNamespace(perf_counter_ns=lambda: 50_000))

    def produce(self, *, acks: int = -1, client_id: str = "me", trace_id: str | None = None) -> TracedBatch:
        """A Produce of two records, of which the second belongs to a trace, has waited for 7,000 ns."""
        records = codec.encode([(1, None, b"v", []), (1, None, b"v", [("traceparent", HEADER)])])
        context = SimpleNamespace(client_id=client_id, trace_id=trace_id)
        request: Any = SimpleNamespace(arrived_ns=43_000, context=context)
        event = self.spans.followed(ProduceReceived(1, acks, 1_000, (ProducePartition(ID, records),)), request)
        batch = event.partitions[0].trace
        assert isinstance(batch, TracedBatch)
        return batch

    def reach(self, batch: TracedBatch, stage: TraceStage, at_ns: int) -> None:
        self.now_ns = at_ns
        self.spans.reached(TraceReached(batch, stage, 10))

    def fetch(self, at_ns: int, replica_id: int = -1) -> None:
        """Answered with the batch."""
        self.now_ns = at_ns
        header = (10).to_bytes(8, "big") + (4).to_bytes(4, "big") + bytes(4)
        event = FetchReceived(2, replica_id, -1, 0, 1, 1_000, 0, ())
        self.spans.sent(event, FetchReply((FetchPartitionResult(ID, 0, records=header),)))


@pytest.fixture
def leader(monkeypatch: pytest.MonkeyPatch) -> Leader:
    return Leader(monkeypatch)


def test_each_span_begins_where_the_stage_before_has_ended(leader: Leader) -> None:
    batch = leader.produce()
    leader.reach(batch, TraceStage.APPENDED, GIVEN_NS + 100)
    leader.reach(batch, TraceStage.REPLICATED, GIVEN_NS + 300)
    leader.now_ns = GIVEN_NS + 400
    leader.spans.answered(1, ProduceReply((ProducePartitionResult(ID, 0, 10),)))
    leader.fetch(GIVEN_NS + 1_000)
    found = {each.name: (each.start_ns, each.end_ns) for each in leader.made}
    assert found == {
        "append": (GIVEN_NS, GIVEN_NS + 100),
        "replicated": (GIVEN_NS + 100, GIVEN_NS + 300),
        "produce": (RECEIVED_NS, GIVEN_NS + 400),
        "fetched": (GIVEN_NS + 300, GIVEN_NS + 1_000),
    }


def test_the_span_of_the_produce_is_the_producers_child_and_the_others_are_its_children(leader: Leader) -> None:
    batch = leader.produce(acks=0)
    leader.reach(batch, TraceStage.APPENDED, GIVEN_NS)
    leader.reach(batch, TraceStage.REPLICATED, GIVEN_NS)
    by_name = {each.name: each for each in leader.made}
    own = by_name["produce"].span_id
    assert {name: (each.parent_id, each.kind) for name, each in by_name.items()} == {
        "append": (own, SpanKind.INTERNAL),
        "produce": (PRODUCER, SpanKind.SERVER),
        "replicated": (own, SpanKind.INTERNAL),
    }
    assert {each.trace_id for each in leader.made} == {TRACE} and len({each.span_id for each in leader.made}) == 3


def test_no_span_has_an_id_of_zeros(leader: Leader) -> None:
    """W3C calls that one invalid."""
    leader.drawn = iter((0, 0))
    leader.reach(leader.produce(), TraceStage.APPENDED, GIVEN_NS)
    assert leader.made[0].span_id == leader.made[0].parent_id == (1).to_bytes(8, "big")


def test_a_followers_fetch_is_no_consumers(leader: Leader) -> None:
    batch = leader.produce()
    leader.reach(batch, TraceStage.APPENDED, GIVEN_NS)
    leader.reach(batch, TraceStage.REPLICATED, GIVEN_NS)
    leader.fetch(GIVEN_NS, replica_id=2)
    assert "fetched" not in {each.name for each in leader.made}
    leader.fetch(GIVEN_NS)
    assert leader.made[-1].name == "fetched"


def test_a_span_has_the_offset_of_its_record_and_no_client_id_where_there_is_none(leader: Leader) -> None:
    leader.reach(leader.produce(client_id=""), TraceStage.APPENDED, GIVEN_NS)
    assert dict(leader.made[0].attributes) == {
        "messaging.system": "kafka",
        "messaging.operation.name": "append",
        "messaging.destination.name": "t",
        "messaging.destination.partition.id": "3",
        "messaging.kafka.offset": 11,
    }


def test_a_refused_batch_has_one_span_with_the_error_and_no_offset(leader: Leader) -> None:
    leader.produce(trace_id="of the logs")
    leader.spans.answered(1, ProduceReply((ProducePartitionResult(ID, ErrorCode.message_too_large.value),)))
    (only,) = leader.made
    assert (only.name, only.error) == ("produce", "MESSAGE_TOO_LARGE")
    found = dict(only.attributes)
    assert (found["error.type"], found["raylog.trace_id"]) == ("MESSAGE_TOO_LARGE", "of the logs")
    assert "messaging.kafka.offset" not in found


def test_a_batch_that_is_lost_has_two_spans_without_an_end(leader: Leader) -> None:
    batch = leader.produce()
    leader.reach(batch, TraceStage.APPENDED, GIVEN_NS)
    leader.reach(batch, TraceStage.LOST, GIVEN_NS)
    assert leader.spans.counts.forgotten == 2


def test_no_time_runs_backwards(leader: Leader) -> None:
    batch = leader.produce()
    leader.reach(batch, TraceStage.APPENDED, GIVEN_NS - 1)
    leader.now_ns = RECEIVED_NS - 1
    leader.spans.answered(1, ProduceReply((ProducePartitionResult(ID, 0, 10),)))
    assert [(each.start_ns, each.end_ns) for each in leader.made] == [(GIVEN_NS, GIVEN_NS), (RECEIVED_NS, RECEIVED_NS)]


def test_the_spans_of_one_second_are_bounded(leader: Leader) -> None:
    leader.spans._allowance.spans_max = SPANS_OF_RECORD
    leader.produce()
    event = ProduceReceived(2, -1, 1_000, (replace(ProducePartition(ID, b""), records=b""),))
    assert leader.spans.followed(event, SimpleNamespace()) is event  # type: ignore[arg-type]
    assert leader.spans.counts.unsearched == 1


def test_spans_say_which_process_of_which_broker_they_are_of() -> None:
    assert spans._resource(IDENTITY) == {
        "raylog.cluster.id": "a cluster",
        "raylog.broker.id": "5",
        "service.instance.id": f"a cluster-{5 << 16 | 2}",
    }
