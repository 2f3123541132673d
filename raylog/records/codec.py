"""Encoding and decoding of records, in C: the one place that knows aiokafka's codec.

Batches are built uncompressed by the C builder and compressed here, since aiokafka's own lz4 runs
at its slow level 9 and its gzip at 9; the smaller of the two forms is kept. ``encode_values`` is
the fast way for values without keys, headers and times of their own: all that surrounds a value
depends on its length and its place, so a batch is one ``join`` over precomputed pieces.

The C decoder checks lengths against the buffer but reads varints and the attributes byte unchecked,
up to some dozen bytes beyond it, and adds a hostile 63-bit length to a position. So each batch is
decoded from a copy that ends in zeros behind its official end (there every varint ends at once),
and whatever the decoder raises for such bytes becomes ``CorruptBatch``. ``raylog.records.pure`` is
the same in plain Python, as the oracle of the tests.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, chain
from typing import Protocol

from aiokafka.errors import CorruptRecordException
from aiokafka.record._crecords import DefaultRecordBatch, DefaultRecordBatchBuilder
from kio.schema.errors import ErrorCode

from raylog.errors import kafka_error
from raylog.records import pure
from raylog.records.batch import (
    COMPRESSION_MASK,
    CURRENT_MAGIC,
    HEADER,
    HEADER_SIZE,
    LOG_OVERHEAD,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    TRANSACTIONAL_MASK,
    BatchView,
    Buffer,
    assemble,
    header_of,
    write_crc,
)
from raylog.records.compression import INFLATED_BYTES_MAX, Compression, compress, decompress
from raylog.records.corrupt import CorruptBatch
from raylog.records.record import Header, Record
from raylog.records.varint import encode_varint

BATCH_BYTES_MAX = (1 << 31) - 1
NO_TIMESTAMP = -1
"""The C builder takes it for "not set yet" in a first record and gives that record the next one's
time: ``pure`` writes such a batch.
"""
RECORD_OVERHEAD_MAX = 21
"""Bytes around key, value and headers of one record, at most: 5 length, 1 attributes, 10 timestamp,
5 offset.
"""

_SLACK = bytes(64)
_NO_HEADERS: list[Header] = []


class LightRecord(Protocol):
    """A record as the C decoder makes it: no topic, no partition; half the price of a ``Record``."""

    @property
    def offset(self) -> int: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def timestamp_type(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> list[Header]: ...


# ------------------------------------------------------------------ writing


class RecordBatchBuilder:
    """Collects records into one batch of at most ``max_bytes`` before compression.

    A first record is taken whatever its size; the caller judges it by ``size``. Sequence numbers
    can be given as late as ``build``.
    """

    __slots__ = ("_builder", "_compression", "_last_offset_delta", "record_count")

    def __init__(
        self, *, compression: int = Compression.NONE, max_bytes: int = BATCH_BYTES_MAX, is_transactional: bool = False
    ) -> None:
        self._builder = DefaultRecordBatchBuilder(
            CURRENT_MAGIC, 0, is_transactional, NO_PRODUCER_ID, NO_PRODUCER_EPOCH, NO_SEQUENCE, max_bytes
        )
        self._compression = compression
        self._last_offset_delta = -1
        self.record_count = 0

    def append(
        self,
        *,
        timestamp_ms: int,
        key: bytes | None = None,
        value: bytes | None = None,
        headers: Sequence[Header] = (),
        offset_delta: int | None = None,
    ) -> bool:
        """False where the batch is full and the record was not taken. The first record needs a
        timestamp: INVALID_TIMESTAMP.

        ``offset_delta`` (a cleaner's; else one more than the last) has to grow.
        """
        if timestamp_ms == NO_TIMESTAMP and not self.record_count:
            raise kafka_error(ErrorCode.invalid_timestamp)("the first record of a batch has no timestamp: give it one")
        delta = self._last_offset_delta + 1 if offset_delta is None else offset_delta
        assert delta > self._last_offset_delta, (delta, self._last_offset_delta)
        listed = list(headers) if headers else _NO_HEADERS
        if self._builder.append(delta, timestamp_ms, key, value, listed) is None:
            return False
        self._last_offset_delta = delta
        self.record_count += 1
        return True

    @property
    def size(self) -> int:
        """Bytes so far, uncompressed, with the header."""
        size: int = self._builder.size()
        return size

    def build(
        self,
        *,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = NO_PRODUCER_EPOCH,
        base_sequence: int = NO_SEQUENCE,
    ) -> bytes:
        """The batch; nothing can be appended after it."""
        assert self.record_count > 0, "a batch of no records"
        self._builder.set_producer_state(producer_id, producer_epoch, base_sequence)
        plain = bytes(self._builder.build())
        return plain if self._compression == Compression.NONE else recompress(BatchView(plain), self._compression)


def encode(
    records: Iterable[tuple[int, bytes | None, bytes | None, Sequence[Header]]],
    *,
    compression: int = Compression.NONE,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    is_transactional: bool = False,
    max_bytes: int = BATCH_BYTES_MAX,
) -> bytes:
    """One batch of (timestamp in ms, key, value, headers), at least one.

    Raises MESSAGE_TOO_LARGE if the batch, compressed as asked, has more than ``max_bytes``.
    """
    items = iter(records)
    first = next(items, None)
    assert first is not None, "a batch of no records"
    if first[0] == NO_TIMESTAMP:
        batch = pure.encode(
            [first, *items],
            compression=compression,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            is_transactional=is_transactional,
        )
        if len(batch) > max_bytes:
            raise _too_large(len(batch), max_bytes)
        return batch
    builder = DefaultRecordBatchBuilder(
        CURRENT_MAGIC, 0, is_transactional, producer_id, producer_epoch, base_sequence, BATCH_BYTES_MAX
    )
    append = builder.append
    for count, (timestamp_ms, key, value, headers) in enumerate(chain((first,), items)):
        if append(count, timestamp_ms, key, value, list(headers) if headers else _NO_HEADERS) is None:
            raise _too_large(BATCH_BYTES_MAX + 1, BATCH_BYTES_MAX)
    batch = bytes(builder.build())
    if compression != Compression.NONE:
        batch = recompress(BatchView(batch), compression)
    if len(batch) > max_bytes:
        raise _too_large(len(batch), max_bytes)
    return batch


class _EncodedPieces(dict[int, bytes]):
    """What a record's value length decides, computed at first sight; forgets everything when it
    holds too much.
    """

    __slots__ = ("_make",)
    _LIMIT = 1 << 16

    def __init__(self, make: Callable[[int], bytes]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, length: int) -> bytes:
        if len(self) >= self._LIMIT:
            self.clear()
        piece = self[length] = self._make(length)
        return piece


_OFFSET_VARINT_SIZES_MAX = 5
_NULL_KEY = encode_varint(-1)
_HEADER_ROOM = bytes(HEADER_SIZE)


def _start_piece(offset_varint_size: int) -> Callable[[int], bytes]:
    """The end of the record before (no headers), then length, attributes and timestamp delta 0 of
    this one.
    """

    def make(length: int) -> bytes:
        value_varint = encode_varint(length)
        record_length = 2 + offset_varint_size + len(_NULL_KEY) + len(value_varint) + length + 1
        return b"\x00" + encode_varint(record_length) + b"\x00\x00"

    return make


_starts = tuple(_EncodedPieces(_start_piece(size)) for size in range(_OFFSET_VARINT_SIZES_MAX + 1))
_value_lengths = _EncodedPieces(lambda length: _NULL_KEY + encode_varint(length))
_offsets: list[bytes] = [encode_varint(delta) for delta in range(1 << 13)]
# The first delta of which the varint has that many bytes: 0..63 one, 64..8191 two, …
_OFFSET_RUNS = tuple((1 << (7 * size - 8) if size > 1 else 0, 1 << (7 * size - 1), size) for size in range(1, 6))


class _Frames(dict[int, list[bytes]]):
    """All that stands before each value of a batch whose values have one length, by that length; a
    few lengths are kept.
    """

    _LENGTHS_MAX = 8
    _COUNT_MAX = 1 << 16  # of values; larger batches make theirs anew
    _STEP = 1 << 10

    def before(self, length: int, count: int) -> list[bytes]:
        """One piece for each value: the end of the record before it and its own beginning. Shared:
        not to be changed.
        """
        known = self.get(length)
        if known is None or len(known) < count:
            known = _frames(length, -(-count // self._STEP) * self._STEP)
            if count > self._COUNT_MAX:
                return known
            if len(self) >= self._LENGTHS_MAX:
                self.clear()
            self[length] = known
        return known


def _frames(length: int, count: int) -> list[bytes]:
    while len(_offsets) < count:
        _offsets.append(encode_varint(len(_offsets)))
    end = _value_lengths[length]
    pieces: list[bytes] = []
    for run_start, run_end, offset_varint_size in _OFFSET_RUNS:
        start = _starts[offset_varint_size][length]
        pieces += [start + offset + end for offset in _offsets[run_start : min(run_end, count)]]
    return pieces


_frames_of = _Frames()


def encode_values(
    values: Sequence[bytes],
    *,
    timestamp_ms: int,
    compression: int = Compression.NONE,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    is_transactional: bool = False,
    max_bytes: int = BATCH_BYTES_MAX,
    length: int | None = None,
    with_crc: bool = True,
) -> bytearray:
    """One batch of values of one timestamp, without keys and headers: the same bytes that
    ``encode`` gives, in a fraction of its time.

    They are copied once, into a bytearray of the caller's own, which may be given another header in
    place. Values are bytes-like and not None; ``length`` is that of each of them, where the caller
    knows that all have the same. Without ``with_crc`` the CRC is 0: for who will write another
    producer stamp into the header anyway. Raises MESSAGE_TOO_LARGE if the batch, compressed as
    asked, has more than ``max_bytes``.
    """
    count = len(values)
    assert count > 0, "a batch of no records"
    if length is None and len(lengths := set(map(len, values))) == 1:
        (length,) = lengths
    parts = _varied_parts(values) if length is None else _uniform_parts(values, length)
    parts[0] = _HEADER_ROOM + parts[0][1:]  # no record comes before the first
    batch = bytearray().join(parts)
    if len(batch) > BATCH_BYTES_MAX:
        raise _too_large(len(batch), max_bytes)
    attributes = TRANSACTIONAL_MASK if is_transactional else 0
    if compression != Compression.NONE:
        with memoryview(batch) as view, view[HEADER_SIZE:] as records:
            compressed = compress(compression, records)
        if len(compressed) < len(batch) - HEADER_SIZE:
            batch[HEADER_SIZE:] = compressed
            attributes |= compression
    if len(batch) > max_bytes:
        raise _too_large(len(batch), max_bytes)
    batch[:HEADER_SIZE] = header_of(
        len(batch) - HEADER_SIZE,
        record_count=count,
        last_offset_delta=count - 1,
        base_timestamp=timestamp_ms,
        max_timestamp=timestamp_ms,
        attributes=attributes,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
    )
    if with_crc:
        write_crc(batch)
    return batch


def _uniform_parts(values: Sequence[bytes], length: int) -> list[bytes]:
    """What the records consist of, in turn what stands before a value and the value; all have that
    length.
    """
    count = len(values)
    parts: list[bytes] = [b"\x00"] * (2 * count + 1)
    parts[0:-1:2] = _frames_of.before(length, count)[:count]
    parts[1::2] = values
    return parts


def _varied_parts(values: Sequence[bytes]) -> list[bytes]:
    """The same for values of different lengths."""
    count = len(values)
    while len(_offsets) < count:
        _offsets.append(encode_varint(len(_offsets)))
    lengths = list(map(len, values))
    parts: list[bytes] = [b"\x00"] * (4 * count + 1)
    for run_start, run_end, offset_varint_size in _OFFSET_RUNS:
        if run_start >= count:
            break
        run = slice(run_start, min(run_end, count))
        parts[4 * run.start : 4 * run.stop : 4] = map(_starts[offset_varint_size].__getitem__, lengths[run])
    parts[1 : 4 * count : 4] = _offsets[:count]
    parts[2 : 4 * count : 4] = map(_value_lengths.__getitem__, lengths)
    parts[3 : 4 * count : 4] = values
    return parts


def encoded_size(key: bytes | None, value: bytes | None, headers: Sequence[Header] = ()) -> int:
    """Bytes that a record takes in a batch, at most."""
    size: int = DefaultRecordBatchBuilder.size_of(key, value, list(headers))
    return RECORD_OVERHEAD_MAX + size


def _too_large(size: int, max_bytes: int) -> Exception:
    return kafka_error(ErrorCode.message_too_large)(f"a batch of {size} bytes where {max_bytes} are allowed")


def recompress(view: BatchView, compression: int, *, max_inflated_bytes: int = INFLATED_BYTES_MAX) -> bytes:
    """The same batch under another codec; uncompressed if compressing does not make it smaller. No
    record is decoded.
    """
    records = decompress(view.compression, view.records, max_bytes=max_inflated_bytes)
    return recompressed(view, records, compression)


def recompressed(view: BatchView, records: Buffer, compression: int) -> bytes:
    """The same for a batch whose inflated records the caller has."""
    attributes = view.attributes & ~COMPRESSION_MASK
    if compression != Compression.NONE:
        compressed = compress(compression, records)
        if len(compressed) < len(records):
            records = compressed
            attributes |= compression
    return assemble(
        records,
        record_count=view.record_count,
        last_offset_delta=view.last_offset_delta,
        base_timestamp=view.base_timestamp,
        max_timestamp=view.max_timestamp,
        attributes=attributes,
        base_offset=view.base_offset,
        leader_epoch=view.partition_leader_epoch,
        producer_id=view.producer_id,
        producer_epoch=view.producer_epoch,
        base_sequence=view.base_sequence,
    )


# ------------------------------------------------------------------ reading


def inflated_header(view: BatchView, size: int) -> bytes:
    """The header that a batch would have without compression, its records being of so many bytes;
    the CRC stays as it is.
    """
    return HEADER.pack(
        view.base_offset,
        HEADER_SIZE - LOG_OVERHEAD + size,
        view.partition_leader_epoch,
        view.magic,
        view.crc,
        view.attributes & ~COMPRESSION_MASK,
        view.last_offset_delta,
        view.base_timestamp,
        view.max_timestamp,
        view.producer_id,
        view.producer_epoch,
        view.base_sequence,
        view.record_count,
    )


def light_records(view: BatchView, *, max_inflated_bytes: int = INFLATED_BYTES_MAX) -> list[LightRecord]:
    """The records of a batch, control batches too. Raises CorruptBatch; the CRC is the caller's to
    check.
    """
    if view.compression == Compression.NONE:
        plain = b"".join((view.data, _SLACK))
    else:
        records = decompress(view.compression, view.records, max_bytes=max_inflated_bytes)
        plain = b"".join((inflated_header(view, len(records)), records, _SLACK))
    try:
        return list(DefaultRecordBatch(memoryview(plain)[: -len(_SLACK)]))
    except CorruptRecordException as error:
        raise CorruptBatch(str(error.args[0]) if error.args else "a broken record", view.position) from None
    except (ValueError, OverflowError, MemoryError, IndexError) as error:
        raise CorruptBatch(f"a broken record: {error}", view.position) from None


def decode(
    view: BatchView, *, topic: str = "", partition: int = -1, max_inflated_bytes: int = INFLATED_BYTES_MAX
) -> list[Record]:
    """The records of a batch with their place, control batches too. Raises CorruptBatch; the CRC is
    the caller's to check.
    """
    leader_epoch = view.partition_leader_epoch
    timestamp_type = view.timestamp_type
    new = tuple.__new__
    return [
        # The generated constructor of a NamedTuple is a Python function; this is what it does.
        new(Record, (topic, partition, r.offset, r.timestamp, timestamp_type, r.key, r.value, r.headers, leader_epoch))
        for r in light_records(view, max_inflated_bytes=max_inflated_bytes)
    ]


def decode_values(view: BatchView, *, max_inflated_bytes: int = INFLATED_BYTES_MAX) -> list[bytes | None]:
    """Only the values, in order."""
    return [record.value for record in light_records(view, max_inflated_bytes=max_inflated_bytes)]


def cut_values(values: Sequence[bytes], max_bytes: int, *, length: int | None = None) -> Iterator[Sequence[bytes]]:
    """The values in runs, each of which ``encode_values`` makes a batch of at most ``max_bytes``.

    ``length`` as for ``encode_values``. A value that is too large on its own is a run of its own;
    encoding it is refused then.
    """
    room = max_bytes - HEADER_SIZE
    if length is not None:
        step = max(1, room // (length + RECORD_OVERHEAD_MAX))
        yield from (values[start : start + step] for start in range(0, len(values), step))
        return
    sizes = list(accumulate([len(value) + RECORD_OVERHEAD_MAX for value in values]))  # up to and with each value
    start = before = 0
    while start < len(sizes):
        end = max(bisect_right(sizes, before + room, start), start + 1)
        yield values[start:end]
        start, before = end, sizes[end - 1]


__all__ = [
    "BATCH_BYTES_MAX",
    "NO_LEADER_EPOCH",
    "RECORD_OVERHEAD_MAX",
    "LightRecord",
    "RecordBatchBuilder",
    "cut_values",
    "decode",
    "decode_values",
    "encode",
    "encode_values",
    "encoded_size",
    "light_records",
    "recompress",
    "recompressed",
]
