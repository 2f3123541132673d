"""What a cleaner makes of one batch: the same bytes, a batch of fewer records, an empty one, or
nothing.

Pure of files. A batch that is written anew keeps its base offset and its last offset, hence its
sequence numbers, its producer, its leader epoch and its codec [L26]; the records that stay are
copied as they are, unless the batch is given a *delete horizon* (bit 6 of the attributes): then its
base timestamp is the time until which its tombstones, or its transaction marker, are kept, and the
records' time deltas count from there (KIP-534).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from raylog.records.batch import COMPRESSION_MASK, DELETE_HORIZON_MASK, BatchView, TimestampType, assemble
from raylog.records.codec import LightRecord, inflated_header, light_records
from raylog.records.compression import Compression, compress, decompress
from raylog.records.corrupt import CorruptBatch
from raylog.records.pure import encode_record
from raylog.records.varint import decode_varint

KeepsRecord = Callable[[LightRecord], bool]


@dataclass(frozen=True, slots=True)
class ShellDecision:
    """What is to become of a batch's shell. ``discards_records``: all of them go, whatever their
    keys.

    ``keeps_shell``: it stays even if it is empty. ``horizon_ms``: the delete horizon that a batch
    gets now if it holds a tombstone, or for ``ends_nothing``, a marker that is of no use any more,
    and has none yet.
    """

    discards_records: bool
    keeps_shell: bool
    horizon_ms: int
    ends_nothing: bool = False


def cleaned(batch: BatchView, decision: ShellDecision, keeps: KeepsRecord) -> tuple[bytes | memoryview | None, int]:
    """The batch as it stays (None: not at all), and how many records stay. Raises CorruptBatch for
    records that cannot be read.
    """
    if not batch.record_count or decision.discards_records:
        return (empty(batch) if decision.keeps_shell else None), 0
    plain = _plain(batch)
    records = light_records(plain)
    kept = [record for record in records if batch.is_control or keeps(record)]
    if not kept:
        return (empty(batch) if decision.keeps_shell else None), 0
    has_tombstone = not batch.is_control and any(record.value is None for record in kept)
    if (has_tombstone or decision.ends_nothing) and not batch.has_delete_horizon:
        return _with_horizon(batch, kept, decision.horizon_ms), len(kept)
    if len(kept) == len(records):
        return batch.data, len(kept)
    return _with_records(batch, _copied(plain, records, kept), kept), len(kept)


def empty(batch: BatchView) -> bytes:
    """A batch of no records in its place, for the sake of the producer, the epoch and the offsets
    that its header names.
    """
    return assemble(
        b"",
        record_count=0,
        last_offset_delta=batch.last_offset_delta,
        base_timestamp=-1,
        max_timestamp=batch.max_timestamp,
        attributes=batch.attributes & ~(COMPRESSION_MASK | DELETE_HORIZON_MASK),
        base_offset=batch.base_offset,
        leader_epoch=batch.partition_leader_epoch,
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        base_sequence=batch.base_sequence,
    )


def _plain(batch: BatchView) -> BatchView:
    if batch.compression == Compression.NONE:
        return batch
    records = decompress(batch.compression, batch.records)
    return BatchView(b"".join((inflated_header(batch, len(records)), records)))


def _copied(plain: BatchView, records: Sequence[LightRecord], kept: Sequence[LightRecord]) -> bytes:
    """The bytes of those that stay."""
    content = plain.records
    wanted = {record.offset for record in kept}
    parts: list[memoryview] = []
    position = 0
    for record in records:
        size, start = decode_varint(content, position)
        end = start + size
        if record.offset in wanted:
            parts.append(content[position:end])
        position = end
    if position != len(content):
        raise CorruptBatch(f"{len(content) - position} bytes behind the last record", plain.position)
    return b"".join(parts)


def _with_horizon(batch: BatchView, kept: Sequence[LightRecord], horizon_ms: int) -> bytes:
    stamped = batch.timestamp_type == TimestampType.LOG_APPEND_TIME
    content = b"".join(
        encode_record(
            0 if stamped else record.timestamp - horizon_ms,
            record.offset - batch.base_offset,
            record.key,
            record.value,
            record.headers,
        )
        for record in kept
    )
    return _with_records(
        batch, content, kept, base_timestamp=horizon_ms, attributes=batch.attributes | DELETE_HORIZON_MASK
    )


def _with_records(
    batch: BatchView,
    content: bytes,
    kept: Sequence[LightRecord],
    *,
    base_timestamp: int | None = None,
    attributes: int | None = None,
) -> bytes:
    stamped = batch.timestamp_type == TimestampType.LOG_APPEND_TIME
    return assemble(
        compress(batch.compression, content),
        record_count=len(kept),
        last_offset_delta=batch.last_offset_delta,
        base_timestamp=batch.base_timestamp if base_timestamp is None else base_timestamp,
        max_timestamp=batch.max_timestamp if stamped else max(record.timestamp for record in kept),
        attributes=batch.attributes if attributes is None else attributes,
        base_offset=batch.base_offset,
        leader_epoch=batch.partition_leader_epoch,
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        base_sequence=batch.base_sequence,
    )
