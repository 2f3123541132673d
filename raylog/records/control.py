"""Control batches: the markers that end a transaction in a partition's log [L9].

A control batch holds exactly one record and is never handed to an application. Bytes, big-endian::

    key    version i16 (0), type i16: 0 abort, 1 commit (others belong to Kafka's own Raft log)
    value  version i16 (0), coordinator epoch i32

The batch is transactional and control (attributes 0x30), carries the producer's id and epoch and no
sequence.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

from raylog.records.batch import CONTROL_MASK, TRANSACTIONAL_MASK, BatchView, assemble
from raylog.records.codec import light_records
from raylog.records.corrupt import CorruptBatch
from raylog.records.varint import encode_varint

_KEY = struct.Struct(">hh")
_VALUE = struct.Struct(">hi")
_VERSION = 0


class Marker(IntEnum):
    ABORT = 0
    COMMIT = 1


@dataclass(frozen=True, slots=True)
class ControlRecord:
    """What a control batch says. ``marker`` is None for a type that this version does not know;
    readers skip it.
    """

    marker: Marker | None
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    offset: int
    timestamp: int


def control_batch(
    marker: Marker, *, producer_id: int, producer_epoch: int, coordinator_epoch: int, timestamp_ms: int
) -> bytes:
    """The batch that ends a producer's transaction, to be appended by the partition's leader."""
    key = _KEY.pack(_VERSION, marker)
    value = _VALUE.pack(_VERSION, coordinator_epoch)
    body = b"\x00\x00\x00" + encode_varint(len(key)) + key + encode_varint(len(value)) + value + b"\x00"
    return assemble(
        encode_varint(len(body)) + body,
        record_count=1,
        last_offset_delta=0,
        base_timestamp=timestamp_ms,
        max_timestamp=timestamp_ms,
        attributes=TRANSACTIONAL_MASK | CONTROL_MASK,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
    )


def control_type(key: bytes | None, position: int) -> int:
    """The type of a control record, by its key; ``position`` is that of its batch. Raises CorruptBatch
    for what is no such key.
    """
    if key is None or len(key) < _KEY.size:
        raise CorruptBatch(f"a control record with the key {key!r}", position)
    version, number = _KEY.unpack_from(key)
    if version < 0:
        raise CorruptBatch(f"a control record of version {version}", position)
    return int(number)


def read_control_batch(view: BatchView) -> ControlRecord:
    """Raises CorruptBatch where a control batch is not what the layout above says. A newer version
    of the value may be longer.
    """
    assert view.is_control, view
    records = light_records(view)
    if len(records) != 1:
        raise CorruptBatch(f"a control batch of {len(records)} records", view.position)
    record = records[0]
    type_number = control_type(record.key, view.position)
    marker = Marker(type_number) if type_number in (Marker.ABORT, Marker.COMMIT) else None
    coordinator_epoch = -1
    if marker is not None:
        if record.value is None or len(record.value) < _VALUE.size:
            raise CorruptBatch(f"a control record with the value {record.value!r}", view.position)
        coordinator_epoch = _VALUE.unpack_from(record.value)[1]
    return ControlRecord(
        marker, view.producer_id, view.producer_epoch, coordinator_epoch, record.offset, record.timestamp
    )
