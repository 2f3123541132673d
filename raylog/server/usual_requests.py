"""Produce and Fetch requests of one partition, from their bytes to the machine's events and back,
without an entity between.

Nearly all requests of small clients are like that (``raw_forward``), and a client's requests begin
with the same bytes: only the correlation id, and what lies behind the partition's number, differ.
So a request is recognised by comparing its start with that of the one before, and only what varies
is read::

    Produce   start | size and records | tags
    Fetch     start | fetch offset int64 | rest, the same again

``usual_produce`` and ``usual_fetch`` return what a connection's further requests are compared with,
or None for a request that is not usual. ``answer`` writes the bytes that kio would write. It
returns None for an answer that is not usual: an error, or records of aborted transactions.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from typing import Final

from raylog.kafka.table import FETCH, PRODUCE
from raylog.listener import raw_forward
from raylog.listener.raw_forward import FETCH_FLEXIBLE, PRODUCE_FLEXIBLE, SESSIONS_FROM, OnePartition
from raylog.replication.events import (
    FetchPartition,
    FetchPartitionResult,
    FetchReceived,
    ProducePartition,
    ProducePartitionResult,
    ProduceReceived,
    Token,
)
from raylog.server.apis import produce
from raylog.types import TopicIdPartition
from raylog.wire.encoding import varint
from raylog.wire.frames import RequestHeader
from raylog.wire.framing import JOIN_BYTES_MAX, Buffer
from raylog.wire.moved_connections import Grant
from raylog.wire.server_counts import api_number

NO_EPOCH: Final = -1
NO_OFFSET: Final = -1
CONSUMER: Final = -1  # the replica id, and the incarnation, of one who is no follower
API_BYTES: Final = 4  # key and version; the correlation id follows
HEADER_BYTES: Final = 8

_int32 = struct.Struct(">i")
_int64 = struct.Struct(">q")
_size_and_correlation = struct.Struct(">ii")
_index_and_error = struct.Struct(">ih")
_waits = struct.Struct(">iiib")  # max wait, min bytes, max bytes, isolation level
_fetched_offsets = struct.Struct(">qqq")  # high watermark, last stable offset, log start
_produced_offsets = struct.Struct(">qqq")  # base offset, append time, log start
_two_int64 = struct.Struct(">qq")

Charge = Callable[[int], None]
Led = Callable[[str | uuid.UUID, int], TopicIdPartition | None]
"""The partition of a topic, by name or id, and a number, if this process leads it."""


class UsualProduce:
    """A Produce of one partition, and all that begin with the same bytes. ``header_end``: of the
    header's fixed part. ``grant``: what it needs where there is an authorizer. ``charge``: counts the
    bytes of a frame where the client has a quota.
    """

    __slots__ = (
        "_api",
        "_head",
        "_is_flexible",
        "_membership",
        "_tail",
        "_timeout_ms",
        "_varies_at",
        "acks",
        "api_number",
        "charge",
        "client_id",
        "grant",
        "header_end",
        "id",
        "start",
        "version",
    )
    key: Final = PRODUCE.key
    answer_bytes_max: Final = 0  # of records

    def __init__(
        self, frame: Buffer, header: RequestHeader, header_end: int, parsed: OnePartition, id: TopicIdPartition
    ) -> None:
        self.client_id = header.client_id
        self.header_end = header_end
        self.id = id
        version = self.version = header.version
        self.api_number = api_number(self.key, version)
        self.acks = parsed.acks
        self.charge: Charge | None = None
        self.grant: Grant = (self.key, parsed.named, parsed.transactional_id)
        self._timeout_ms = parsed.waits_ms
        self._membership = produce.membership(parsed.transactional_id, version)
        self._varies_at = parsed.varies_at
        self._api = bytes(frame[:API_BYTES])
        self.start = bytes(frame[HEADER_BYTES : parsed.varies_at])
        self._is_flexible = version >= PRODUCE_FLEXIBLE
        partition = _index_and_error.pack(parsed.number, 0)
        if self._is_flexible:
            self._head = b"\x00\x02" + parsed.named + b"\x02" + partition
            self._tail = b"\x01\x00\x00\x00" + bytes(5)  # no record errors, no message; tags; no throttling, tags
        else:
            self._head = _int32.pack(1) + parsed.named + _int32.pack(1) + partition
            self._tail = (_int32.pack(0) + b"\xff\xff" if version >= 8 else b"") + _int32.pack(0)

    def records_of(self, frame: Buffer) -> Buffer | None:
        """The records of a request that begins as this one did and is as sound; None for any other."""
        at = self._varies_at
        if frame[:API_BYTES] != self._api or frame[HEADER_BYTES:at] != self.start:
            return None
        try:
            if self._is_flexible:
                size, at = raw_forward.compact_size(frame, at)
                end = at + size
                if size <= 0 or frame[end : end + 3] != b"\x00\x00\x00":
                    return None
            else:
                size = _int32.unpack_from(frame, at)[0]
                at += 4
                end = at + size
                if size <= 0 or end > len(frame):
                    return None
        except (IndexError, struct.error, raw_forward.NotSimpleError):
            return None
        return frame[at:end]

    def event(self, token: Token, records: Buffer) -> ProduceReceived:
        part = ProducePartition(self.id, records, self._membership)
        return ProduceReceived(token, self.acks, self._timeout_ms, (part,))

    def answer(self, correlation_id: int, result: ProducePartitionResult) -> list[Buffer] | None:
        if result.error:
            return None
        if self.version >= 5:
            offsets = _produced_offsets.pack(result.base_offset, result.log_append_time_ms, result.log_start_offset)
        else:
            offsets = _two_int64.pack(result.base_offset, result.log_append_time_ms)
        body = b"".join((self._head, offsets, self._tail))
        return [_size_and_correlation.pack(len(body) + 4, correlation_id) + body]


class UsualFetch:
    """A Fetch of one partition by a consumer, in no session, and all that differ from it by their
    offset only.

    ``terms``: as an event, but for token and partition. ``charge``: counts the bytes of an answer's
    records where the client has a quota.
    """

    __slots__ = (
        "_api",
        "_epoch",
        "_head",
        "_is_flexible",
        "_last_epoch",
        "_log_start",
        "_partition_bytes_max",
        "_rest",
        "_tail",
        "_varies_at",
        "answer_bytes_max",
        "api_number",
        "bytes_max",
        "charge",
        "client_id",
        "grant",
        "header_end",
        "id",
        "start",
        "terms",
        "version",
    )
    key: Final = FETCH.key

    def __init__(
        self, frame: Buffer, header: RequestHeader, header_end: int, parsed: OnePartition, id: TopicIdPartition
    ) -> None:
        self.client_id = header.client_id
        self.header_end = header_end
        self.id = id
        self.charge: Charge | None = None
        self.bytes_max = parsed.bytes_max
        self.answer_bytes_max = parsed.answer_bytes_max
        self.grant: Grant = (self.key, parsed.named, "")
        version = self.version = header.version
        self.api_number = api_number(self.key, version)
        at = self._varies_at = parsed.varies_at
        self._api = bytes(frame[:API_BYTES])
        self.start = bytes(frame[HEADER_BYTES:at])
        self._rest = bytes(frame[at + 8 : parsed.end])
        self._is_flexible = version >= FETCH_FLEXIBLE
        limits = _waits.unpack_from(frame, header_end + self._is_flexible + (4 if version < 15 else 0))
        wait_ms, min_bytes, bytes_max, isolation = limits
        self.terms = FetchReceived(0, CONSUMER, CONSUMER, wait_ms, min_bytes, bytes_max, isolation, ())
        self._epoch = _int32.unpack_from(frame, at - 4)[0] if version >= 9 else NO_EPOCH
        at += 8
        self._last_epoch = NO_EPOCH
        if version >= 12:
            self._last_epoch = _int32.unpack_from(frame, at)[0]
            at += 4
        self._log_start = NO_OFFSET
        if version >= 5:
            self._log_start = _int64.unpack_from(frame, at)[0]
            at += 8
        self._partition_bytes_max = _int32.unpack_from(frame, at)[0]
        no_error = _int32.pack(0) + (bytes(6) if version >= SESSIONS_FROM else b"")  # throttling; error and session
        partition = _index_and_error.pack(parsed.number, 0)
        if self._is_flexible:
            self._head = b"\x00" + no_error + b"\x02" + parsed.named + b"\x02" + partition
            self._tail = b"\x00\x00\x00"
        else:
            self._head = no_error + _int32.pack(1) + parsed.named + _int32.pack(1) + partition
            self._tail = b""

    def offset_of(self, frame: Buffer) -> int | None:
        """The fetch offset of a request that is this one but for its offset; None for any other."""
        at = self._varies_at
        if (
            frame[:API_BYTES] != self._api
            or frame[HEADER_BYTES:at] != self.start
            or frame[at + 8 : at + 8 + len(self._rest)] != self._rest
        ):
            return None
        return int(_int64.unpack_from(frame, at)[0])

    def partition(self, offset: int) -> FetchPartition:
        return FetchPartition(
            self.id, offset, self._partition_bytes_max, self._epoch, self._last_epoch, self._log_start
        )

    def event(self, token: Token, offset: int) -> FetchReceived:
        terms = self.terms
        waits = terms.max_wait_ms, terms.min_bytes, terms.max_bytes
        return FetchReceived(token, CONSUMER, CONSUMER, *waits, terms.isolation_level, (self.partition(offset),))

    def answer(self, correlation_id: int, result: FetchPartitionResult) -> list[Buffer] | None:
        if result.error or result.diverging_epoch is not None or result.aborted:
            return None
        records = result.records
        size = len(records)
        if self.version >= 5:
            offsets = _fetched_offsets.pack(result.high_watermark, result.last_stable_offset, result.log_start_offset)
        else:
            offsets = _two_int64.pack(result.high_watermark, result.last_stable_offset)
        is_committed = result.aborted is not None
        if self._is_flexible:
            between = (b"\x01" if is_committed else b"\x00") + b"\xff\xff\xff\xff" + varint(size + 1)
        else:
            between = _int32.pack(0 if is_committed else -1)
            between += (b"\xff\xff\xff\xff" if self.version >= 11 else b"") + _int32.pack(size)
        head = b"".join((self._head, offsets, between))
        total = 4 + len(head) + size + len(self._tail)
        start = _size_and_correlation.pack(total, correlation_id) + head
        if total <= JOIN_BYTES_MAX:
            return [b"".join((start, records, self._tail))]
        return [start, records, self._tail] if self._tail else [start, records]


def usual_produce(frame: Buffer, header: RequestHeader, header_end: int, led: Led) -> UsualProduce | None:
    """What a Produce request is compared with from now on; None if it is not usual, or its
    partition is not ``led``.
    """
    parsed = raw_forward.produced(frame, header.version, header_end)
    id = led(parsed.topic, parsed.number) if parsed is not None else None
    return UsualProduce(frame, header, header_end, parsed, id) if parsed is not None and id is not None else None


def usual_fetch(frame: Buffer, header: RequestHeader, header_end: int, led: Led) -> UsualFetch | None:
    """The same of a Fetch."""
    parsed = raw_forward.fetched(frame, header.version, header_end)
    id = led(parsed.topic, parsed.number) if parsed is not None else None
    return UsualFetch(frame, header, header_end, parsed, id) if parsed is not None and id is not None else None
