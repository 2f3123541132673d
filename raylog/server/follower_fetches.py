"""Followers' fetches, from the machine's events to bytes and back, without an entity between.

Each record of a replicated partition costs every follower a Fetch and an answer, and with acks=all
the producer waits for both. The bytes are those of Kafka's Fetch, version 17, as kio would write
them. Whatever is rare in them (errors, hints, diverging epochs, unknown tagged fields) kio reads
and writes::

    request   max wait int32, min bytes int32, max bytes int32, isolation int8, session id and epoch 2 int32,
              [topic id, [partition int32, leader epoch int32, offset int64, last epoch int32, log start int64, max bytes int32]],
              nothing forgotten, no rack, tag 1: broker id int32, incarnation int64
              (sessions: ``replication.follower_sessions``)
    answer    throttle time int32, error int16, session id int32,
              [topic id, [partition int32, error int16, high watermark int64, stable end int64, log start int64,
              no aborted transactions, no preferred replica, records]]
"""

from __future__ import annotations

import struct
import uuid
from functools import lru_cache
from itertools import groupby
from typing import Final

from kio.schema.errors import ErrorCode

from raylog.errors import ProtocolError
from raylog.kafka.table import FETCH
from raylog.listener.raw_forward import SESSIONLESS
from raylog.replication.events import FetchPartition, FetchPartitionResult, FetchReceived, FetchReply, SendFetch, Token
from raylog.server.apis import fetch
from raylog.server.apis.fetch import FOLLOWER_VERSION, WANTS_ALL
from raylog.types import TopicIdPartition
from raylog.wire.bounds import read_varint
from raylog.wire.encoding import varint
from raylog.wire.frames import BORROWED_BYTES_MIN, decode_response, joined
from raylog.wire.framing import LARGE_FRAME_BYTES, Buffer

READ_UNCOMMITTED: Final = 0
TOPIC_ID_BYTES: Final = 16
NONE_FORGOTTEN_AND_NO_RACK: Final = b"\x01\x01"
FOLLOWER_TAG: Final = (1, 1, 13)  # one tagged field, number 1, of so many bytes

_size_and_header = struct.Struct(">ihhi")
_terms = struct.Struct(">iiibii")
_asked = struct.Struct(">iiqiqiB")  # and no tagged fields
_follower = struct.Struct(">BBBiqB")  # its tag's, and no tagged fields in it
_size_and_answer = struct.Struct(">iiBihi")  # size, correlation id, no tagged fields
_answer = struct.Struct(">iBihi")
_found = struct.Struct(">ihqqqBi")
_NO_ABORTED: Final = 0
_NO_REPLICA: Final = -1


@lru_cache(maxsize=4_096)
def _topic_id(data: bytes) -> uuid.UUID:
    return uuid.UUID(bytes=data)


def _topic(frame: bytes | memoryview, position: int) -> tuple[uuid.UUID, int, int]:
    """The topic's id, the count of its partitions, and where they begin."""
    end = position + TOPIC_ID_BYTES
    length, start = read_varint(frame, end)
    return _topic_id(bytes(frame[position:end])), length - 1, start


def request(order: SendFetch, correlation_id: int, client_id: bytes) -> list[Buffer]:
    """The frame of a follower's fetch; ``client_id`` as the header holds it."""
    topics: dict[uuid.UUID, list[bytes]] = {}
    for part in order.partitions:
        topic_id, number = part.id
        epochs_and_offsets = (
            part.current_leader_epoch,
            part.fetch_offset,
            part.last_fetched_epoch,
            part.log_start_offset,
        )
        topics.setdefault(topic_id, []).append(_asked.pack(number, *epochs_and_offsets, part.max_bytes, 0))
    session_epoch = order.session_epoch or (WANTS_ALL if order.wants_all else SESSIONLESS)
    limits = order.max_wait_ms, order.min_bytes, order.max_bytes
    parts = [
        client_id,
        b"\x00",
        _terms.pack(*limits, READ_UNCOMMITTED, order.session_id, session_epoch),
        varint(len(topics) + 1),
    ]
    for topic_id, asked in topics.items():
        parts += (topic_id.bytes, varint(len(asked) + 1), *asked, b"\x00")
    parts.append(NONE_FORGOTTEN_AND_NO_RACK)
    parts.append(_follower.pack(*FOLLOWER_TAG, order.replica_id, order.replica_incarnation, 0))
    body = b"".join(parts)
    return [_size_and_header.pack(len(body) + 8, FETCH.key, FOLLOWER_VERSION, correlation_id) + body]


def event(frame: bytes | memoryview, position: int, token: Token) -> FetchReceived | None:
    """The follower's fetch of that version whose header's fixed part ends at ``position``; None for
    what kio has to read.
    """
    try:
        return _event(frame, position, token)
    except (IndexError, ValueError, struct.error, ProtocolError):
        return None


def _event(frame: bytes | memoryview, position: int, token: Token) -> FetchReceived | None:
    end = len(frame) - _follower.size
    *tag, replica_id, incarnation, tags = _follower.unpack_from(frame, end)
    if (*tag, tags) != (*FOLLOWER_TAG, 0) or frame[position] != 0:
        return None  # most of these are consumers'
    wait_ms, bytes_min, total_bytes_max, isolation, session_id, epoch = _terms.unpack_from(frame, position + 1)
    topics, position = read_varint(frame, position + 1 + _terms.size)
    partitions = []
    for _ in range(topics - 1):
        topic_id, count, position = _topic(frame, position)
        for _ in range(count):
            number, leader_epoch, offset, last_epoch, start, bytes_max, tags = _asked.unpack_from(frame, position)
            position += _asked.size
            if tags:
                return None
            id = TopicIdPartition(topic_id, number)
            partitions.append(FetchPartition(id, offset, bytes_max, leader_epoch, last_epoch, start))
        if frame[position] != 0:
            return None
        position += 1
    if frame[position:end] != NONE_FORGOTTEN_AND_NO_RACK:
        return None
    limits = wait_ms, bytes_min, total_bytes_max, isolation
    session = epoch == WANTS_ALL, session_id, max(0, epoch)
    return FetchReceived(token, replica_id, incarnation, *limits, tuple(partitions), *session)


def answer(correlation_id: int, reply: FetchReply) -> list[Buffer] | None:
    """The frame of an answer to a follower; None for what kio has to write."""
    if reply.error:
        return None
    parts: list[Buffer] = [b""]
    topics = 0
    for topic_id, found in groupby(reply.partitions, key=lambda result: result.id.topic_id):
        results = tuple(found)
        topics += 1
        parts += (topic_id.bytes, varint(len(results) + 1))
        for result in results:
            if result.error or result.diverging_epoch is not None or result.aborted is not None:
                return None
            offsets = result.high_watermark, result.last_stable_offset, result.log_start_offset
            head = _found.pack(result.id.partition, 0, *offsets, _NO_ABORTED, _NO_REPLICA)
            parts += (head + varint(len(result.records) + 1), result.records, b"\x00")
        parts.append(b"\x00")
    parts.append(b"\x00")
    topics_field = varint(topics + 1)
    size = sum(map(len, parts)) + len(topics_field) + _answer.size
    parts[0] = _size_and_answer.pack(size, correlation_id, 0, 0, 0, reply.session_id) + topics_field
    return joined(parts, size)


def results(frame: bytes | memoryview) -> FetchReply | None:
    """What a leader's answer says; None if it is an error as a whole. Raises ProtocolError.

    ``frame`` may be used again when it is taken in, but for a large one (``framing``), of which
    large records are views.
    """
    try:
        found = _results(frame)
    except (IndexError, ValueError, struct.error, ProtocolError):
        found = None
    if found is not None:
        return found
    reply = decode_response(FETCH.key, FOLLOWER_VERSION, frame, borrow=len(frame) > LARGE_FRAME_BYTES)
    return fetch.follower_reply(reply) if reply.error_code == ErrorCode.none else None


def _results(frame: bytes | memoryview) -> FetchReply | None:
    _, tags, _, error, session_id = _answer.unpack_from(frame)
    if tags or error:
        return None
    topics, position = read_varint(frame, _answer.size)
    found = []
    for _ in range(topics - 1):
        topic_id, count, position = _topic(frame, position)
        for _ in range(count):
            number, error, high_watermark, stable_end, start, aborted, _ = _found.unpack_from(frame, position)
            size, position = read_varint(frame, position + _found.size)
            end = position + max(0, size - 1)
            if error or aborted != _NO_ABORTED or frame[end] != 0:
                return None
            records = frame[position:end]
            is_view = len(frame) > LARGE_FRAME_BYTES and end - position >= BORROWED_BYTES_MIN
            id = TopicIdPartition(topic_id, number)
            kept = records if is_view else bytes(records)
            found.append(FetchPartitionResult(id, 0, high_watermark, stable_end, start, None, kept))
            position = end + 1
        if frame[position] != 0:
            return None
        position += 1
    is_whole = frame[position] == 0 and position + 1 == len(frame)
    return FetchReply(tuple(found), session_id) if is_whole else None
