"""The record batch, format 2, seen through its header: what a server knows of records.

Byte layout, big-endian (Kafka's ``DefaultRecordBatch``, KIP-98)::

    0   base_offset             i64   stamped by the leader, outside the CRC
    8   batch_length            i32   bytes that follow this field: size − 12
    12  partition_leader_epoch  i32   stamped by the leader, outside the CRC
    16  magic                   i8    2
    17  crc                     u32   CRC-32C of everything from byte 21 to the end
    21  attributes              i16   bits 0–2 compression, 3 timestamp type, 4 transactional, 5 control, 6 delete horizon
    23  last_offset_delta       i32   also the last sequence's delta
    27  base_timestamp          i64   of the first record; with bit 6 the delete horizon; the records' deltas count from it
    35  max_timestamp           i64   with timestamp type 1 (LogAppendTime) the timestamp of every record
    43  producer_id             i64   −1 without idempotence
    51  producer_epoch          i16
    53  base_sequence           i32   wraps from 2**31 − 1 to 0
    57  record_count            i32
    61  records                       compressed as one block if the attributes say so

A server never looks behind byte 61: ``BatchView`` reads the header in place, once, and hands out
memoryviews. Base offset and leader epoch are outside the CRC so that a leader can stamp a batch
without touching the rest (``stamped_header``). Knows nothing of records, compression, files or
logs.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum

from crc32c import crc32c

from raylog.records.corrupt import CorruptBatch, UnsupportedMagic

Buffer = bytes | bytearray | memoryview

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_SIZE = 61
LOG_OVERHEAD = 12  # base_offset and batch_length
MAGIC_POSITION = 16
ATTRIBUTES_LOW_POSITION = 22
CRC_POSITION = 17
CRC_START = 21  # the first byte that the CRC covers
CURRENT_MAGIC = 2

COMPRESSION_MASK = 0x07
TIMESTAMP_TYPE_MASK = 0x08
TRANSACTIONAL_MASK = 0x10
CONTROL_MASK = 0x20
DELETE_HORIZON_MASK = 0x40

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_LEADER_EPOCH = -1
NO_TIMESTAMP = -1
SEQUENCE_MASK = (1 << 31) - 1

_SIZE = struct.Struct(">i")
_STAMP = struct.Struct(">qii")
_CRC = struct.Struct(">I")
_ATTRIBUTES = struct.Struct(">h")
_TIMESTAMP = struct.Struct(">q")

assert HEADER.size == HEADER_SIZE


class TimestampType(IntEnum):
    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class BatchView:
    """One whole record batch inside a buffer, which has to outlive the view and stay unchanged
    under it.

    Raises ``CorruptBatch`` where the buffer ends before the batch does or the length field is
    impossible, ``UnsupportedMagic`` for formats 0 and 1. The CRC is checked by ``has_valid_crc``
    only. Offsets and timestamps are as the header says: a batch fresh from a producer has base
    offset 0.
    """

    __slots__ = (
        "attributes",
        "base_offset",
        "base_sequence",
        "base_timestamp",
        "batch_length",
        "buffer",
        "crc",
        "last_offset_delta",
        "magic",
        "max_timestamp",
        "partition_leader_epoch",
        "position",
        "producer_epoch",
        "producer_id",
        "record_count",
    )

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    def __init__(self, buffer: Buffer, position: int = 0) -> None:
        available = len(buffer) - position
        if available > MAGIC_POSITION and (magic := buffer[position + MAGIC_POSITION]) != CURRENT_MAGIC:
            if magic < CURRENT_MAGIC:
                raise UnsupportedMagic(magic, position)
            raise CorruptBatch(f"unknown magic byte {magic}", position)
        if available < HEADER_SIZE:
            raise CorruptBatch(f"only {available} of the header's {HEADER_SIZE} bytes", position)
        self.buffer = buffer
        self.position = position
        (
            self.base_offset,
            self.batch_length,
            self.partition_leader_epoch,
            self.magic,
            self.crc,
            self.attributes,
            self.last_offset_delta,
            self.base_timestamp,
            self.max_timestamp,
            self.producer_id,
            self.producer_epoch,
            self.base_sequence,
            self.record_count,
        ) = HEADER.unpack_from(buffer, position)
        size = LOG_OVERHEAD + self.batch_length
        if not HEADER_SIZE <= size <= available:
            raise CorruptBatch(f"a batch of {size} bytes where {available} are", position)

    @property
    def size(self) -> int:
        """Bytes of the whole batch."""
        return LOG_OVERHEAD + self.batch_length

    @property
    def end(self) -> int:
        """The position in the buffer just behind the batch."""
        return self.position + LOG_OVERHEAD + self.batch_length

    @property
    def compression(self) -> int:
        """0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd; 5–7 mean nothing."""
        return self.attributes & COMPRESSION_MASK

    @property
    def timestamp_type(self) -> int:
        """0 CreateTime, 1 LogAppendTime."""
        return (self.attributes & TIMESTAMP_TYPE_MASK) >> 3

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_MASK)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_MASK)

    @property
    def has_delete_horizon(self) -> bool:
        """``base_timestamp`` says until when the batch's tombstones are kept."""
        return bool(self.attributes & DELETE_HORIZON_MASK)

    @property
    def has_producer_id(self) -> bool:
        return self.producer_id >= 0

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return self.base_sequence + self.last_offset_delta & SEQUENCE_MASK

    @property
    def data(self) -> memoryview:
        """The whole batch, uncopied."""
        return memoryview(self.buffer)[self.position : self.end]

    @property
    def records(self) -> memoryview:
        """What follows the header, uncopied, still compressed."""
        return memoryview(self.buffer)[self.position + HEADER_SIZE : self.end]

    def has_valid_crc(self) -> bool:
        return self.crc == crc32c(memoryview(self.buffer)[self.position + CRC_START : self.end])

    def __repr__(self) -> str:
        return (
            f"BatchView(base_offset={self.base_offset}, last_offset={self.last_offset}, records={self.record_count}, "
            f"size={self.size}, leader_epoch={self.partition_leader_epoch}, attributes={self.attributes:#04x}, "
            f"producer={self.producer_id}/{self.producer_epoch}/{self.base_sequence})"
        )


def peek_size(buffer: Buffer, position: int = 0) -> int | None:
    """Bytes of the batch that starts here, by its length field alone; None where even that is cut
    off.

    The field is not judged: a hostile one can give any number, also a negative one.
    """
    if len(buffer) - position < LOG_OVERHEAD:
        return None
    return LOG_OVERHEAD + int(_SIZE.unpack_from(buffer, position + 8)[0])


def is_plain_batch(buffer: Buffer) -> bool:
    """Whether the buffer is one batch of today's format, by its length field, whose records are not
    compressed.
    """
    return (
        len(buffer) >= HEADER_SIZE
        and buffer[MAGIC_POSITION] == CURRENT_MAGIC
        and not buffer[ATTRIBUTES_LOW_POSITION] & COMPRESSION_MASK
        and peek_size(buffer) == len(buffer)
    )


def batches(buffer: Buffer, position: int = 0, *, allow_partial_tail: bool = False) -> Iterator[BatchView]:
    """The batches of a buffer, from a position to its end.

    Raises ``CorruptBatch`` or ``UnsupportedMagic`` at the first that is not whole.
    ``allow_partial_tail`` ends quietly where the buffer was cut inside a batch, as Apache Kafka
    cuts the answer of a fetch.
    """
    buffer_end = len(buffer)
    while position < buffer_end:
        if allow_partial_tail and ((size := peek_size(buffer, position)) is None or size > buffer_end - position):
            return
        view = BatchView(buffer, position)
        yield view
        position = view.end


def stamped_header(view: BatchView, base_offset: int, leader_epoch: int) -> bytes:
    """The first 16 bytes of the batch with another base offset and leader epoch; the rest follows
    unchanged from byte 16.
    """
    return _STAMP.pack(base_offset, view.batch_length, leader_epoch)


STAMP_SIZE = _STAMP.size


def stamped_batch(view: BatchView, base_offset: int, leader_epoch: int) -> bytes:
    """A copy of the batch, which is all of its buffer, with another base offset and leader epoch."""
    return _STAMP.pack(base_offset, view.batch_length, leader_epoch) + view.buffer[STAMP_SIZE:]


def stamp(batch: bytearray | memoryview, base_offset: int, leader_epoch: int, position: int = 0) -> None:
    """Write base offset and leader epoch into a batch in place."""
    struct.pack_into(">q", batch, position, base_offset)
    struct.pack_into(">i", batch, position + 12, leader_epoch)


def set_log_append_time(batch: bytearray | memoryview, log_append_time_ms: int, position: int = 0) -> None:
    """Give every record of the batch this timestamp, as topics with LogAppendTime do, and mend the
    CRC.

    The records and the base timestamp stay as they are: with the timestamp type bit set a reader
    takes ``max_timestamp``.
    """
    end = BatchView(batch, position).end
    attributes: int = _ATTRIBUTES.unpack_from(batch, position + CRC_START)[0]
    _ATTRIBUTES.pack_into(batch, position + CRC_START, attributes | TIMESTAMP_TYPE_MASK)
    _TIMESTAMP.pack_into(batch, position + 35, log_append_time_ms)
    with memoryview(batch) as view, view[position + CRC_START : end] as covered:
        _CRC.pack_into(batch, position + CRC_POSITION, crc32c(covered))


def with_max_timestamp(view: BatchView, max_timestamp: int) -> BatchView:
    """A copy of the batch, alone in its buffer, whose header names another greatest timestamp."""
    changed = bytearray(view.data)
    _TIMESTAMP.pack_into(changed, 35, max_timestamp)
    _CRC.pack_into(changed, CRC_POSITION, crc32c(memoryview(changed)[CRC_START:]))
    return BatchView(changed)


def with_log_append_time(view: BatchView, log_append_time_ms: int) -> BatchView:
    """A copy of the batch, alone in its buffer, with ``set_log_append_time``."""
    stamped = bytearray(view.data)
    set_log_append_time(stamped, log_append_time_ms)
    return BatchView(stamped)


def header_of(
    records_size: int,
    *,
    record_count: int,
    last_offset_delta: int,
    base_timestamp: int,
    max_timestamp: int,
    attributes: int = 0,
    base_offset: int = 0,
    leader_epoch: int = NO_LEADER_EPOCH,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
) -> bytearray:
    """The header of a batch with so many bytes of records; its CRC is still 0."""
    header = bytearray(HEADER_SIZE)
    HEADER.pack_into(
        header,
        0,
        base_offset,
        HEADER_SIZE - LOG_OVERHEAD + records_size,
        leader_epoch,
        CURRENT_MAGIC,
        0,
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        record_count,
    )
    return header


def assemble(
    records: Buffer,
    *,
    record_count: int,
    last_offset_delta: int,
    base_timestamp: int,
    max_timestamp: int,
    attributes: int = 0,
    base_offset: int = 0,
    leader_epoch: int = NO_LEADER_EPOCH,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
) -> bytes:
    """A whole batch around the encoded (and, if the attributes say so, compressed) records."""
    header = header_of(
        len(records),
        record_count=record_count,
        last_offset_delta=last_offset_delta,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        attributes=attributes,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
    )
    _CRC.pack_into(header, CRC_POSITION, crc32c(records, crc32c(bytes(header[CRC_START:]))))
    return b"".join((header, records))


def write_crc(batch: bytearray) -> None:
    """Compute the CRC of a batch that is alone in its buffer."""
    with memoryview(batch) as view, view[CRC_START:] as covered:
        _CRC.pack_into(batch, CRC_POSITION, crc32c(covered))
