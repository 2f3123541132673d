"""Reads just enough of a one-partition Produce or Fetch to forward its bytes unchanged.

Nearly all requests of librdkafka, and of any client that uses one partition at a time, are like
that. The bytes of the request go to the owner and those of the answer come back, both under other
correlation ids; neither is decoded. ``produced`` and ``fetched`` return None for a request that is
less simple or malformed: it is then decoded and checked in full. A malformed request must never
reach an owner from here, because it would end the connection that all clients share::

    Produce v3–8    transactional_id string?, acks int16, timeout int32, [name string, [index int32, records bytes?]]
    Produce v9–13   the same with compact lengths and tagged fields; from v13 with the topic's id for its name
    Fetch v4–18     replica_id int32 (to v14), max_wait int32, min_bytes int32, max_bytes int32, isolation int8, session id and epoch
                    2 int32 (from v7), [name or id, [partition int32, leader epoch int32 (from v9), offset int64, last epoch int32
                    (from v12), log start int64 (from v5), max bytes int32]], forgotten [...] (from v7), rack string (from v11)

A simple Produce has records and wants an answer. A simple Fetch comes from a client, not a
follower, and has no session and no rack. A request with tagged fields is not simple.

An answer about one partition without an error goes to the client unchanged (``is_good_news``).
Other answers are decoded: leaders are nodes inside and brokers outside, and a client that is to be
throttled is not read meanwhile.
"""

from __future__ import annotations

import struct
import uuid
from typing import Final, NamedTuple

from raylog.records.batch import ATTRIBUTES_LOW_POSITION, TRANSACTIONAL_MASK
from raylog.wire.framing import Buffer

PRODUCE_FLEXIBLE: Final = 9
FETCH_FLEXIBLE: Final = 12
IDS_FROM: Final = 13
SESSIONS_FROM: Final = 7
NO_SESSION: Final = 0
SESSIONLESS: Final = -1

_int16 = struct.Struct(">h").unpack_from
_int32 = struct.Struct(">i").unpack_from
_acks_and_timeout = struct.Struct(">hi").unpack_from
_index_and_error = struct.Struct(">ih").unpack_from
_session = struct.Struct(">ii").unpack_from
_waits = struct.Struct(">iii").unpack_from  # max wait, min bytes, max bytes


class OnePartition(NamedTuple):
    """``topic``: a name or an id. ``end``: where the request ends in its frame. ``waits_ms``: how
    long it lets its owner wait.
    """

    topic: str | uuid.UUID
    number: int
    end: int
    waits_ms: int
    found_at: int  # where an answer about this partition alone has the partition's number; its error follows
    throttle_at: int  # where such an answer has the throttle time, from its end if negative
    named: bytes  # the topic as both request and answer write it
    varies_at: int  # where requests like this one begin to differ: size and records, or the fetch offset
    error_at: int | None = None  # where the answer has its top-level error
    bytes_max: int = 0  # of a Fetch
    answer_bytes_max: int = 0  # the same, or less for its partition
    acks: int = 0  # of a Produce
    records_at: int = 0
    records_end: int = 0
    transactional_id: str = ""  # of a Produce; empty for none


class NotSimpleError(Exception):
    """The request is not simple and has to be decoded."""


def is_transactional(records: Buffer | None) -> bool:
    """Whether the batch that they are, or begin with, belongs to a transaction."""
    return (
        records is not None
        and len(records) > ATTRIBUTES_LOW_POSITION
        and bool(records[ATTRIBUTES_LOW_POSITION] & TRANSACTIONAL_MASK)
    )


def produced(frame: Buffer, version: int, position: int) -> OnePartition | None:
    """Read a Produce request whose header's fixed part ends at ``position``."""
    try:
        return _produced(frame, version, position)
    except (NotSimpleError, IndexError, ValueError, struct.error):
        return None


def _produced(frame: Buffer, version: int, position: int) -> OnePartition:
    is_flexible = version >= PRODUCE_FLEXIBLE
    if is_flexible:
        position = _no_tags(frame, position)
    transactional_id, position = _text(frame, position, is_flexible)
    acks, timeout_ms = _acks_and_timeout(frame, position)
    position = _one(frame, position + 6, is_flexible)
    start = position
    topic, position = _topic(frame, position, version, is_flexible)
    named = bytes(frame[start:position])
    position = _one(frame, position, is_flexible)
    (number,) = _int32(frame, position)
    varies_at = position + 4
    size, records_at = _size(frame, varies_at, is_flexible)
    position = records_at + size
    if is_flexible:
        position = _no_tags(frame, _no_tags(frame, _no_tags(frame, position)))
    if acks == 0 or timeout_ms < 0 or size <= 0 or position > len(frame):
        raise NotSimpleError
    # correlation id, tags of the header, length of topics, topic, length of partitions
    found_at = 4 + 1 + 1 + len(named) + 1 if is_flexible else 4 + 4 + len(named) + 4
    return OnePartition(
        topic,
        number,
        position,
        timeout_ms,
        found_at,
        -5 if is_flexible else -4,  # the throttle time, tags of the answer
        named,
        varies_at,
        acks=acks,
        records_at=records_at,
        records_end=records_at + size,
        transactional_id=transactional_id,
    )


def fetched(frame: Buffer, version: int, position: int) -> OnePartition | None:
    """Read a Fetch request whose header's fixed part ends at ``position``."""
    try:
        return _fetched(frame, version, position)
    except (NotSimpleError, IndexError, ValueError, struct.error):
        return None


def _fetched(frame: Buffer, version: int, position: int) -> OnePartition:
    is_flexible = version >= FETCH_FLEXIBLE
    if is_flexible:
        position = _no_tags(frame, position)
    if version < 15:
        (replica_id,) = _int32(frame, position)
        if replica_id >= 0:
            raise NotSimpleError
        position += 4
    max_wait_ms, _, max_bytes = _waits(frame, position)
    if max_wait_ms < 0 or max_bytes < 1:
        raise NotSimpleError
    position += 13  # and the isolation level
    if version >= SESSIONS_FROM:
        if _session(frame, position) != (NO_SESSION, SESSIONLESS):
            raise NotSimpleError
        position += 8
    position = _one(frame, position, is_flexible)
    start = position
    topic, position = _topic(frame, position, version, is_flexible)
    named = bytes(frame[start:position])
    position = _one(frame, position, is_flexible)
    (number,) = _int32(frame, position)
    varies_at = position + 4 + (4 if version >= 9 else 0)
    position = varies_at + 8 + (4 if version >= 12 else 0) + (8 if version >= 5 else 0)
    (partition_bytes_max,) = _int32(frame, position)
    position += 4
    if is_flexible:
        position = _no_tags(frame, _no_tags(frame, position))
    if version >= SESSIONS_FROM:
        forgotten, position = _count(frame, position, is_flexible)
        if forgotten != 0:
            raise NotSimpleError
    if version >= 11:
        rack, position = _text_size(frame, position, is_flexible)
        if rack != 0:
            raise NotSimpleError
    if is_flexible:
        position = _no_tags(frame, position)
    if position > len(frame):
        raise NotSimpleError
    # correlation id, tags of the header, throttle time, error and session, length of topics, topic,
    # length of partitions
    head = 4 + is_flexible + 4 + (6 if version >= SESSIONS_FROM else 0)
    found_at = head + 1 + len(named) + 1 if is_flexible else head + 4 + len(named) + 4
    throttle_at = 4 + is_flexible
    error_at = throttle_at + 4 if version >= SESSIONS_FROM else None
    return OnePartition(
        topic,
        number,
        position,
        max_wait_ms,
        found_at,
        throttle_at,
        named,
        varies_at,
        error_at,
        max_bytes,
        min(max_bytes, partition_bytes_max),
    )


def is_good_news(answer: Buffer, asked: OnePartition) -> bool:
    """Return whether an answer is about the requested partition, without an error or a throttle
    time.
    """
    size = len(answer)
    if size < asked.found_at + 11 or _index_and_error(answer, asked.found_at) != (asked.number, 0):
        return False
    throttle_at = asked.throttle_at if asked.throttle_at >= 0 else size + asked.throttle_at
    if _int32(answer, throttle_at)[0] != 0 or (asked.throttle_at == -5 and answer[-1] != 0):
        return False
    return asked.error_at is None or _int16(answer, asked.error_at)[0] == 0


def _no_tags(frame: Buffer, position: int) -> int:
    if frame[position] != 0:
        raise NotSimpleError
    return position + 1


def _one(frame: Buffer, position: int, is_flexible: bool) -> int:
    """Return the position after the length of an array that must have one element."""
    count, position = _count(frame, position, is_flexible)
    if count != 1:
        raise NotSimpleError
    return position


def _count(frame: Buffer, position: int, is_flexible: bool) -> tuple[int, int]:
    if not is_flexible:
        return _int32(frame, position)[0], position + 4
    if frame[position] > 127:
        raise NotSimpleError
    return frame[position] - 1, position + 1


def _topic(frame: Buffer, position: int, version: int, is_flexible: bool) -> tuple[str | uuid.UUID, int]:
    if version >= IDS_FROM:
        return uuid.UUID(bytes=bytes(frame[position : position + 16])), position + 16
    name, position = _text(frame, position, is_flexible)
    if not name:
        raise NotSimpleError
    return name, position


def _text(frame: Buffer, position: int, is_flexible: bool) -> tuple[str, int]:
    """Return a string, empty for null, and where it ends."""
    size, position = _text_size(frame, position, is_flexible)
    if size < -1:
        raise NotSimpleError
    end = position + max(size, 0)
    return str(frame[position:end], "utf-8"), end


def _text_size(frame: Buffer, position: int, is_flexible: bool) -> tuple[int, int]:
    if is_flexible:
        return _size(frame, position, True)
    return _int16(frame, position)[0], position + 2


def _size(frame: Buffer, position: int, is_flexible: bool) -> tuple[int, int]:
    """Return the length of a bytes field, −1 for null, and where its content starts."""
    return compact_size(frame, position) if is_flexible else (_int32(frame, position)[0], position + 4)


def compact_size(frame: Buffer, position: int) -> tuple[int, int]:
    """Return the same for flexible versions. Raises NotSimpleError or IndexError."""
    size = frame[position]
    position += 1
    if size > 127:
        size &= 127
        for shift in (7, 14, 21, 28):
            byte = frame[position]
            position += 1
            size |= (byte & 127) << shift
            if byte < 128:
                break
        else:
            raise NotSimpleError
    return size - 1, position
