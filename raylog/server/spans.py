"""Spans of the records that belong to their producer's trace, as their leader sees them
(``traces.otlp.endpoint``).

A record with a sampled ``traceparent`` header (``raylog.records.traceparents``) has four, in the trace that
the header names::

    produce      the Produce came to this process → it is answered; with acks 0: the record is appended
      append       the machine was given the batch → it is in the leader's log, checks and waits included
      replicated   the batch is appended → the high watermark has passed it
      fetched      … → a consumer's fetch from the leader was first answered with it

``produce`` is a child of the producer's span, the others are children of ``produce``. A batch that is refused
has ``produce`` only, with the error.

Machines know no clock and no trace: a batch's ``TracedBatch`` travels through the machine as
``ProducePartition.trace`` and comes back with ``TraceReached``, and what the clock says then is the span's
time. Times of one span don't run backwards, whatever the clock does.

Bounds. Records are looked at until the process has begun as many spans in this second as
``traces.spans.per.second.max`` says; compressed batches are, ``COMPRESSED_PER_SECOND_MAX`` times. At most
``AWAITED_MAX`` batches wait for a fetch; then the oldest are forgotten. The machine and the queue of what is
sent (``span_export``) have bounds of their own.

While it is off no byte of a record is read, and nothing is remembered.
"""

from __future__ import annotations

import logging
import os
import random
import struct
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, assert_never

from kio.schema.errors import ErrorCode

from raylog.errors import ConfigError
from raylog.otlp.endpoints import traces_endpoint
from raylog.otlp.spans import SpanKind, TraceSpan
from raylog.records import traceparents
from raylog.records.batch import LOG_OVERHEAD
from raylog.replication.context import HostConfig
from raylog.replication.events import (
    FetchPartitionResult,
    FetchReceived,
    FetchReply,
    ProducePartition,
    ProduceReceived,
    ProduceReply,
    Token,
)
from raylog.replication.traced import TraceReached, TraceStage
from raylog.server.span_counts import SpanCounts
from raylog.types import ActorIdentity, TopicIdPartition, broker_of
from raylog.wire.framing import Buffer
from raylog.wire.request import Request

if TYPE_CHECKING:
    from raylog.server.span_export import SpanExport

logger = logging.getLogger("raylog.traces")

SPANS_OF_RECORD: Final = 4
AWAITED_MAX: Final = 4_096
COMPRESSED_PER_SECOND_MAX: Final = 50
NS_PER_S: Final = 1_000_000_000
SPAN_BITS: Final = 64
PRODUCE: Final = "produce"
_chance = random.SystemRandom()
_offset_and_length = struct.Struct(">qi")


@dataclass(slots=True)
class TracedRecord:
    """``produce_id``: of its span named produce."""

    trace_id: bytes
    parent_id: bytes
    produce_id: bytes
    offset_delta: int


@dataclass(slots=True)
class TracedBatch:
    """Times are nanoseconds since 1970; 0: not yet."""

    id: TopicIdPartition
    topic: str
    client_id: str | None
    request_trace_id: str | None
    acks: int
    records: tuple[TracedRecord, ...]
    received_ns: int
    given_ns: int
    appended_ns: int = 0
    replicated_ns: int = 0
    base_offset: int = -1


class Spans:
    """Those of one process. ``name_of`` names a topic by its id. ``is_on``: they are made."""

    def __init__(
        self,
        identity: ActorIdentity,
        name_of: Callable[[uuid.UUID], str],
        *,
        clock: Callable[[], int] = time.time_ns,
        draw: Callable[[int], int] = _chance.getrandbits,
    ) -> None:
        self._identity = identity
        self._name_of = name_of
        self._clock = clock
        self._draw = draw
        self.is_on = False
        self._endpoint = ""  # as the config says
        self._export: SpanExport | None = None
        self._allowance = _Allowance()
        self._asked: dict[Token, list[tuple[int, TracedBatch]]] = {}  # batches of requests that are not answered
        self._awaited: dict[TopicIdPartition, dict[int, TracedBatch]] = {}  # by base offset, until they are fetched
        self._arrivals: deque[TracedBatch] = deque()  # the awaited ones, the oldest first, and some that were fetched
        self.counts = SpanCounts()

    # -------------------------------------------------------------- on and off

    def configure(self, config: HostConfig) -> None:
        """Go by what the configs say now. In the running loop."""
        self._allowance.spans_max = config.traces_spans_per_second_max
        wanted = config.traces_otlp_endpoint
        if wanted == self._endpoint:
            return
        self.stop()
        self._endpoint = wanted
        if wanted:
            from raylog.server.span_export import SpanExport

            try:
                endpoint = traces_endpoint(wanted)
                self._export = SpanExport(endpoint, os.environ, _resource(self._identity), self.counts)
                self.is_on = True
            except ConfigError as error:
                logger.error("there will be no spans: %s", error)

    def stop(self) -> None:
        """Forget what is under way."""
        if self._export is not None:
            self._export.stop()
        self._export = None
        self.is_on = False
        self._endpoint = ""
        self._asked.clear()
        self._awaited.clear()
        self._arrivals.clear()

    # -------------------------------------------------------------- a Produce

    def wants(self, records: Buffer) -> bool:
        """Whether a batch may have traces, so that it needs a request that is kept."""
        return traceparents.is_compressed(records) or traceparents.may_have(records)

    def followed(self, event: ProduceReceived, request: Request) -> ProduceReceived:
        """The same event, in which batches of traced records have a ``trace``."""
        if not self.is_on:
            return event
        parts: list[ProducePartition] = []
        traced: list[tuple[int, TracedBatch]] = []
        for part in event.partitions:
            batch = self._batch_of(part, event.acks, request)
            if batch is not None:
                traced.append((len(parts), batch))
                part = replace(part, trace=batch)
            parts.append(part)
        if not traced:
            return event
        if event.acks:
            self._asked[event.token] = traced
        return replace(event, partitions=tuple(parts))

    def _batch_of(self, part: ProducePartition, acks: int, request: Request) -> TracedBatch | None:
        now_ns = self._clock()
        if not self._allowance.may_search(now_ns, is_compressed=traceparents.is_compressed(part.records)):
            self.counts.unsearched += 1
            return None
        found = traceparents.traceparents(part.records)[: self._allowance.records_left]
        if not found:
            return None
        self._allowance.spend(len(found))
        records = tuple(TracedRecord(each.trace_id, each.span_id, self._new_id(), each.offset_delta) for each in found)
        waited_ns = time.perf_counter_ns() - request.arrived_ns
        context = request.context
        return TracedBatch(
            part.id,
            self._name_of(part.id.topic_id),
            context.client_id,
            context.trace_id,
            acks,
            records,
            received_ns=now_ns - waited_ns,
            given_ns=now_ns,
        )

    def answered(self, token: Token, reply: object) -> None:
        """A request is answered, if it is a Produce with traces."""
        traced = self._asked.pop(token, None) if self._asked else None
        if traced is not None and isinstance(reply, ProduceReply):
            for index, batch in traced:
                self._produced(batch, reply.partitions[index].error)

    def abandoned(self, token: Token) -> None:
        """Its client is gone."""
        for _, batch in self._asked.pop(token, ()):
            self.counts.forgotten += len(batch.records)

    # -------------------------------------------------------------- what becomes of a batch

    def reached(self, reached: TraceReached) -> None:
        """The machine says that a batch has come so far."""
        batch = reached.trace
        assert isinstance(batch, TracedBatch), f"{batch} is no trace of this process"
        match reached.stage:
            case TraceStage.APPENDED:
                batch.base_offset = reached.base_offset
                batch.appended_ns = self._span_of_each(batch, "append", batch.given_ns)
                if not batch.acks:
                    self._produced(batch, 0)
            case TraceStage.REPLICATED:
                batch.replicated_ns = self._span_of_each(batch, "replicated", batch.appended_ns)
                self._await(batch)
            case TraceStage.LOST:
                self.counts.forgotten += 2 * len(batch.records)
            case _:
                assert_never(reached.stage)

    def sent(self, event: FetchReceived, reply: FetchReply) -> FetchReply:
        """The reply to that fetch of a consumer or a follower, which is about to be sent."""
        if event.replica_id < 0:
            self.fetched(reply.partitions)
        return reply

    def fetched(self, results: Iterable[FetchPartitionResult]) -> None:
        """A consumer is answered with these."""
        if not self._awaited:
            return
        for result in results:
            awaited = self._awaited.get(result.id)
            if awaited and len(result.records):
                for base_offset in _base_offsets(result.records, max(awaited)):
                    batch = awaited.pop(base_offset, None)
                    if batch is not None:
                        self._span_of_each(batch, "fetched", batch.replicated_ns)
                if not awaited:
                    del self._awaited[result.id]

    def _await(self, batch: TracedBatch) -> None:
        if self._export is None:
            return
        self._awaited.setdefault(batch.id, {})[batch.base_offset] = batch
        self._arrivals.append(batch)
        if len(self._arrivals) > AWAITED_MAX:
            oldest = self._arrivals.popleft()
            awaited = self._awaited.get(oldest.id, {})
            if awaited.get(oldest.base_offset) is oldest:
                del awaited[oldest.base_offset]
                self.counts.forgotten += len(oldest.records)
                if not awaited:
                    del self._awaited[oldest.id]

    # -------------------------------------------------------------- spans

    def _produced(self, batch: TracedBatch, error: int) -> None:
        end_ns = max(self._clock(), batch.received_ns)
        for record in batch.records:
            self._add(batch, record, PRODUCE, record.produce_id, batch.received_ns, end_ns, error)

    def _span_of_each(self, batch: TracedBatch, name: str, start_ns: int) -> int:
        """A span until now for each record; returns the time."""
        end_ns = max(self._clock(), start_ns)
        for record in batch.records:
            self._add(batch, record, name, self._new_id(), start_ns, end_ns)
        return end_ns

    def _add(
        self,
        batch: TracedBatch,
        record: TracedRecord,
        name: str,
        span_id: bytes,
        start_ns: int,
        end_ns: int,
        error: int = 0,
    ) -> None:
        if self._export is None:
            return
        failed = ErrorCode(error).name.upper() if error else ""
        kind, parent_id = (
            (SpanKind.SERVER, record.parent_id) if name == PRODUCE else (SpanKind.INTERNAL, record.produce_id)
        )
        attributes = _attributes(batch, record, name, failed)
        self._export.add(
            TraceSpan(record.trace_id, span_id, parent_id, name, kind, start_ns, end_ns, attributes, failed)
        )

    def _new_id(self) -> bytes:
        return (self._draw(SPAN_BITS) or 1).to_bytes(SPAN_BITS // 8, "big")


def _resource(identity: ActorIdentity) -> dict[str, str]:
    broker = str(broker_of(identity.node_id))
    return {
        "raylog.cluster.id": identity.cluster_id,
        "raylog.broker.id": broker,
        "service.instance.id": f"{identity.cluster_id}-{identity.node_id}",
    }


def _attributes(batch: TracedBatch, record: TracedRecord, name: str, failed: str) -> tuple[tuple[str, str | int], ...]:
    """By OpenTelemetry's conventions for messaging, and ``raylog.trace_id``: the request's in the logs."""
    found: dict[str, str | int | None] = {
        "messaging.system": "kafka",
        "messaging.operation.name": name,
        "messaging.destination.name": batch.topic,
        "messaging.destination.partition.id": str(batch.id.partition),
        "messaging.kafka.offset": batch.base_offset + record.offset_delta if batch.base_offset >= 0 else None,
        "messaging.client.id": batch.client_id or None,
        "raylog.trace_id": batch.request_trace_id,
        "error.type": failed or None,
    }
    return tuple((key, value) for key, value in found.items() if value is not None)


def _base_offsets(records: Buffer, last: int) -> Iterator[int]:
    """Of the batches in the answer to a fetch, up to ``last``."""
    position = 0
    while position + LOG_OVERHEAD <= len(records):
        base_offset, length = _offset_and_length.unpack_from(records, position)
        if base_offset > last or length < 0:
            return
        yield base_offset
        position += LOG_OVERHEAD + length


class _Allowance:
    """How many spans may be begun in the present second, and how many batches inflated."""

    __slots__ = ("_inflated", "_second", "_spans", "spans_max")

    def __init__(self) -> None:
        self.spans_max = 0
        self._second = 0
        self._spans = 0
        self._inflated = 0

    def may_search(self, now_ns: int, *, is_compressed: bool) -> bool:
        second = now_ns // NS_PER_S
        if second != self._second:
            self._second, self._spans, self._inflated = second, 0, 0
        if self.records_left <= 0 or (is_compressed and self._inflated >= COMPRESSED_PER_SECOND_MAX):
            return False
        self._inflated += is_compressed
        return True

    @property
    def records_left(self) -> int:
        return (self.spans_max - self._spans) // SPANS_OF_RECORD

    def spend(self, records: int) -> None:
        self._spans += records * SPANS_OF_RECORD
