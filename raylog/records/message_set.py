"""Messages of the formats 0 and 1, as Apache Kafka wrote them before 0.11, and each of them as a
record batch (format 2).

Nothing writes them any more: they are read out of old folders and turned into batches. Layout of
one entry, big-endian::

     0  offset       i64   of the message; of a wrapper that of its last inner message
     8  size         i32   bytes that follow this field
    12  crc          u32   CRC-32 (not CRC-32C) of everything behind it
    16  magic        i8    0 or 1
    17  attributes   i8    bits 0–2 compression (none, gzip, snappy, lz4), bit 3 timestamp type (format 1)
    18  timestamp    i64   format 1 only; −1: none
        key length   i32   −1: null
        key
        value length i32   −1: null
        value

A message with a codec is a *wrapper*: its value, decompressed, is a set of entries without a codec
of their own, of the same format. Their offsets are absolute in format 0; in format 1 they count
within the wrapper, and the last of them stands for the wrapper's own. A wrapper with LogAppendTime
gives its timestamp to all of them. The lz4 frames of format 0 have a wrong header checksum, the
work of Kafka's first clients (KAFKA-3160); it is mended before the frame is read.

One entry becomes one batch, with the same offsets, timestamps, codec, keys and values, without
leader epoch and producer: batches begin and end where entries did, so replicas of one log stay
alike, whatever their segments. Pure.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from raylog.records import pure
from raylog.records.batch import (
    COMPRESSION_MASK,
    LOG_OVERHEAD,
    NO_LEADER_EPOCH,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_MASK,
    assemble,
    set_log_append_time,
    stamp,
)
from raylog.records.codec import RecordBatchBuilder
from raylog.records.compression import INFLATED_BYTES_MAX, Compression, compress, decompress
from raylog.records.corrupt import CorruptBatch

Buffer = bytes | bytearray | memoryview

CRC_END = 16  # where the bytes begin that the CRC covers
ENTRY_SIZE_MIN = LOG_OVERHEAD + 14
_HEAD = struct.Struct(">qiIbb")
_LONG = struct.Struct(">q")
_INT = struct.Struct(">i")
_CODECS = (Compression.NONE, Compression.GZIP, Compression.SNAPPY, Compression.LZ4)
_LZ4_MAGIC = b"\x04\x22\x4d\x18"
_OFFSET_DELTA_MAX = (1 << 31) - 1


class Message(NamedTuple):
    """One entry. ``timestamp`` −1 in format 0."""

    offset: int
    magic: int
    attributes: int
    timestamp: int
    key: bytes | None
    value: bytes | None

    @property
    def compression(self) -> int:
        return self.attributes & COMPRESSION_MASK

    @property
    def is_stamped_by_server(self) -> bool:
        return self.magic == 1 and bool(self.attributes & TIMESTAMP_TYPE_MASK)


def message_of(entry: Buffer, *, checks_crc: bool = True) -> Message:
    """The message of exactly these bytes. Raises CorruptBatch."""
    if len(entry) < ENTRY_SIZE_MIN:
        raise CorruptBatch(f"a message of {len(entry)} bytes")
    offset, size, crc, magic, attributes = _HEAD.unpack_from(entry)
    if magic not in (0, 1) or size != len(entry) - LOG_OVERHEAD:
        raise CorruptBatch(f"no message of format 0 or 1 (magic {magic}, size {size} in {len(entry)} bytes)")
    if checks_crc and zlib.crc32(memoryview(entry)[CRC_END:]) != crc:
        raise CorruptBatch("the CRC of a message does not fit")
    position, timestamp = _HEAD.size, NO_TIMESTAMP
    if magic == 1:
        timestamp, position = _number(_LONG, entry, position)
    key, position = _nullable(entry, position)
    value, position = _nullable(entry, position)
    if position != len(entry):
        raise CorruptBatch(f"{len(entry) - position} bytes behind a message's value")
    return Message(offset, magic, attributes, timestamp, key, value)


def _number(kind: struct.Struct, entry: Buffer, position: int) -> tuple[int, int]:
    if len(entry) - position < kind.size:
        raise CorruptBatch("a message ends inside a field")
    return int(kind.unpack_from(entry, position)[0]), position + kind.size


def _nullable(entry: Buffer, position: int) -> tuple[bytes | None, int]:
    length, position = _number(_INT, entry, position)
    if length == -1:
        return None, position
    if not 0 <= length <= len(entry) - position:
        raise CorruptBatch(f"{length} bytes where {len(entry) - position} are left of a message")
    return bytes(entry[position : position + length]), position + length


def records_of(message: Message, *, max_inflated_bytes: int = INFLATED_BYTES_MAX) -> list[Message]:
    """The message itself, or what a wrapper holds, with absolute offsets. Raises CorruptBatch for a
    wrapper that cannot be read.
    """
    if message.compression == Compression.NONE:
        return [message]
    if message.compression not in _CODECS or message.value is None:
        raise CorruptBatch(
            f"a wrapper of codec {message.compression} with {'no' if message.value is None else 'a'} value"
        )
    packed = message.value
    if message.magic == 0 and message.compression == Compression.LZ4:
        packed = with_right_lz4_checksum(packed)
    inner = list(_inner(decompress(message.compression, packed, max_bytes=max_inflated_bytes), message))
    if not inner:
        raise CorruptBatch("a wrapper of no messages")
    base = message.offset - inner[-1].offset if message.magic == 1 else 0
    found = [
        each._replace(
            offset=base + each.offset,
            timestamp=message.timestamp if message.is_stamped_by_server else each.timestamp,
        )
        for each in inner
    ]
    offsets = [each.offset for each in found]
    if offsets[0] < 0 or any(later <= earlier for earlier, later in pairwise(offsets)):
        raise CorruptBatch(f"a wrapper's offsets do not ascend: {offsets[:5]}")
    if offsets[-1] != message.offset or offsets[-1] - offsets[0] > _OFFSET_DELTA_MAX:
        raise CorruptBatch(f"a wrapper of offset {message.offset} holds {offsets[0]} to {offsets[-1]}")
    return found


def _inner(content: bytes, wrapper: Message) -> Iterator[Message]:
    position = 0
    while position < len(content):
        size = LOG_OVERHEAD + _number(_INT, content, position + 8)[0]
        if not ENTRY_SIZE_MIN <= size <= len(content) - position:
            raise CorruptBatch(f"an inner message of {size} bytes where {len(content) - position} are left")
        # The wrapper's CRC covers it; its own was not always right where a server had changed the
        # message.
        message = message_of(memoryview(content)[position : position + size], checks_crc=False)
        if message.magic != wrapper.magic or message.compression != Compression.NONE:
            raise CorruptBatch(
                f"a wrapper of format {wrapper.magic} holds one of format {message.magic}, or another wrapper"
            )
        yield message
        position += size


def batch_of(message: Message, *, max_inflated_bytes: int = INFLATED_BYTES_MAX) -> bytes:
    """The record batch that says the same. Raises CorruptBatch for a wrapper that cannot be read."""
    records = records_of(message, max_inflated_bytes=max_inflated_bytes)
    if any(each.timestamp == NO_TIMESTAMP for each in records):
        return _without_timestamps(message, records)
    base_offset = records[0].offset
    builder = RecordBatchBuilder(compression=message.compression)
    for each in records:
        builder.append(
            timestamp_ms=each.timestamp, key=each.key, value=each.value, offset_delta=each.offset - base_offset
        )
    batch = bytearray(builder.build())
    if message.is_stamped_by_server:
        set_log_append_time(batch, message.timestamp)
    stamp(batch, base_offset, NO_LEADER_EPOCH)
    return bytes(batch)


def _without_timestamps(message: Message, records: Sequence[Message]) -> bytes:
    """The same in plain Python: the C builder takes −1 for a timestamp that is still to come."""
    first = records[0]
    plain = b"".join(
        pure.encode_record(each.timestamp - first.timestamp, each.offset - first.offset, each.key, each.value, ())
        for each in records
    )
    content, attributes = plain, TIMESTAMP_TYPE_MASK if message.is_stamped_by_server else 0
    if message.compression != Compression.NONE:
        packed = compress(message.compression, plain)
        if len(packed) < len(plain):
            content, attributes = packed, attributes | message.compression
    return assemble(
        content,
        record_count=len(records),
        last_offset_delta=records[-1].offset - first.offset,
        base_timestamp=first.timestamp,
        max_timestamp=max(each.timestamp for each in records),
        attributes=attributes,
        base_offset=first.offset,
    )


# ------------------------------------------------------------------ lz4 frames of format 0


def with_right_lz4_checksum(frame: bytes) -> bytes:
    """The frame with the header checksum that belongs there. What is no lz4 frame comes back as it
    is.
    """
    if len(frame) < 7 or frame[:4] != _LZ4_MAGIC:
        return frame
    flags = frame[4]
    end = 6 + (8 if flags & 0x08 else 0) + (4 if flags & 0x01 else 0)  # the content's size and a dictionary's id
    if len(frame) <= end:
        return frame
    return frame[:end] + bytes([_xxh32(frame[4:end]) >> 8 & 0xFF]) + frame[end + 1 :]


_P1, _P2, _P3, _P4, _P5 = 2654435761, 2246822519, 3266489917, 668265263, 374761393
_MASK = 0xFFFFFFFF


def _xxh32(data: bytes) -> int:
    """xxHash-32 with seed 0 of less than 16 bytes."""
    assert len(data) < 16, len(data)
    value = _P5 + len(data)
    whole = len(data) // 4 * 4
    for (lane,) in struct.iter_unpack("<I", data[:whole]):
        value = _rotated(value + lane * _P3, 17) * _P4
    for byte in data[whole:]:
        value = _rotated(value + byte * _P5, 11) * _P1
    value &= _MASK
    value = (value ^ value >> 15) * _P2 & _MASK
    value = (value ^ value >> 13) * _P3 & _MASK
    return value ^ value >> 16


def _rotated(value: int, bits: int) -> int:
    value &= _MASK
    return (value << bits | value >> 32 - bits) & _MASK
