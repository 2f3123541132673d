"""The record codec once more, in plain Python: slow, obvious, and independent of the C codec.

The tests hold ``raylog.records.codec`` against it, in both directions; it is also the place to look
up what the bytes mean. Layout of one record inside a batch (lengths and numbers are zigzag
varints)::

    length            of everything behind it
    attributes        i8, unused: 0 (the C codec reads it as a varint, which is the same below 0x80, so this does too)
    timestamp_delta   to the batch's base timestamp
    offset_delta      to the batch's base offset
    key_length, key   −1: null
    value_length, value
    header_count, then per header: key_length, key (UTF-8), value_length, value (−1: null)

Numbers are 64 bits wide and wrap, as in Java.
"""

from __future__ import annotations

from collections.abc import Sequence

from raylog.records.batch import TIMESTAMP_TYPE_MASK, TRANSACTIONAL_MASK, BatchView, assemble
from raylog.records.compression import INFLATED_BYTES_MAX, Compression, compress, decompress
from raylog.records.corrupt import CorruptBatch
from raylog.records.record import Header, Record
from raylog.records.varint import decode_varint, encode_varint

KeyValue = tuple[int, bytes | None, bytes | None, Sequence[Header]]


def _wrap(number: int) -> int:
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def _encode_nullable(content: bytes | None) -> bytes:
    return encode_varint(-1) if content is None else encode_varint(len(content)) + bytes(content)


def encode_record(
    timestamp_delta: int, offset_delta: int, key: bytes | None, value: bytes | None, headers: Sequence[Header]
) -> bytes:
    body = b"\x00" + encode_varint(_wrap(timestamp_delta)) + encode_varint(offset_delta)
    body += _encode_nullable(key) + _encode_nullable(value) + encode_varint(len(headers))
    for name, content in headers:
        body += _encode_nullable(name.encode()) + _encode_nullable(content)
    return encode_varint(len(body)) + body


def encode(
    records: Sequence[KeyValue],
    *,
    compression: int = Compression.NONE,
    base_offset: int = 0,
    leader_epoch: int = -1,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    is_transactional: bool = False,
    log_append_time_ms: int | None = None,
) -> bytes:
    """One batch of (timestamp in ms, key, value, headers). The codec is used only where it makes
    the batch smaller.
    """
    assert records, "a batch of no records"
    base_timestamp = records[0][0]
    plain = b"".join(
        encode_record(timestamp - base_timestamp, offset_delta, key, value, headers)
        for offset_delta, (timestamp, key, value, headers) in enumerate(records)
    )
    compressed = compress(compression, plain)
    shrinks = len(compressed) < len(plain)
    attributes = compression if shrinks else 0
    if is_transactional:
        attributes |= TRANSACTIONAL_MASK
    if log_append_time_ms is not None:
        attributes |= TIMESTAMP_TYPE_MASK
    return assemble(
        compressed if shrinks else plain,
        record_count=len(records),
        last_offset_delta=len(records) - 1,
        base_timestamp=base_timestamp,
        max_timestamp=max(record[0] for record in records) if log_append_time_ms is None else log_append_time_ms,
        attributes=attributes,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
    )


class _RecordsReader:
    """Reads forward through bytes and refuses to pass their end."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.position = 0

    def varint(self) -> int:
        value, self.position = decode_varint(self.content, self.position)
        return value

    def take(self, count: int) -> bytes:
        if count > len(self.content) - self.position:
            raise CorruptBatch(f"{count} bytes wanted at {self.position} of {len(self.content)}")
        self.position += count
        return self.content[self.position - count : self.position]

    def nullable(self) -> bytes | None:
        length = self.varint()
        return None if length < 0 else self.take(length)

    def header(self) -> Header:
        length = self.varint()
        if length < 0:
            raise CorruptBatch(f"a header's key of {length} bytes")
        try:
            return self.take(length).decode(), self.nullable()
        except UnicodeDecodeError as error:
            raise CorruptBatch(f"a header's key: {error}") from None


def decode(
    view: BatchView, *, topic: str = "", partition: int = -1, max_inflated_bytes: int = INFLATED_BYTES_MAX
) -> list[Record]:
    """As ``raylog.records.codec.decode``."""
    reader = _RecordsReader(decompress(view.compression, view.records, max_bytes=max_inflated_bytes))
    records: list[Record] = []
    for _ in range(view.record_count):
        length = reader.varint()
        start = reader.position
        reader.varint()
        timestamp_delta, offset_delta = reader.varint(), reader.varint()
        key, value = reader.nullable(), reader.nullable()
        header_count = reader.varint()
        if header_count < 0:
            raise CorruptBatch(f"{header_count} headers")
        headers = [reader.header() for _ in range(header_count)]
        if reader.position - start != length:
            raise CorruptBatch(f"a record of {length} bytes takes {reader.position - start}")
        timestamp = view.max_timestamp if view.timestamp_type else _wrap(view.base_timestamp + timestamp_delta)
        offset = _wrap(view.base_offset + offset_delta)
        records.append(
            Record(
                topic,
                partition,
                offset,
                timestamp,
                view.timestamp_type,
                key,
                value,
                headers,
                view.partition_leader_epoch,
            )
        )
    if reader.position != len(reader.content):
        raise CorruptBatch(f"{len(reader.content) - reader.position} bytes behind the last record")
    return records
