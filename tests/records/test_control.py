"""Control batches: bytes, and what they refuse."""

from __future__ import annotations

import struct

import pytest

from raylog.records import codec
from raylog.records.batch import CONTROL_MASK, TRANSACTIONAL_MASK, BatchView, assemble
from raylog.records.control import ControlRecord, Marker, control_batch, read_control_batch
from raylog.records.corrupt import CorruptBatch
from raylog.records.record import Header


def test_a_marker_is_read_back() -> None:
    batch = control_batch(Marker.COMMIT, producer_id=9, producer_epoch=2, coordinator_epoch=5, timestamp_ms=77)
    view = BatchView(batch)
    assert view.has_valid_crc() and view.is_control and view.is_transactional
    assert (view.record_count, view.base_sequence, view.last_sequence) == (1, -1, -1)
    assert read_control_batch(view) == ControlRecord(Marker.COMMIT, 9, 2, 5, 0, 77)


def test_a_marker_has_kafkas_bytes() -> None:
    batch = control_batch(Marker.ABORT, producer_id=1, producer_epoch=0, coordinator_epoch=3, timestamp_ms=0)
    assert BatchView(batch).records.hex() == "20" + "000000" + "08" + "00000000" + "0c" + "0000" + "00000003" + "00"
    assert batch[21:23].hex() == "0030"
    (record,) = codec.light_records(BatchView(batch))
    assert (record.key, record.value) == (bytes.fromhex("00000000"), bytes.fromhex("000000000003"))


def marked(key: bytes | None, value: bytes | None, count: int = 1) -> BatchView:
    records: list[tuple[int, bytes | None, bytes | None, list[Header]]] = [(1, key, value, [])] * count
    plain = BatchView(codec.encode(records))
    return BatchView(
        assemble(
            plain.records,
            record_count=count,
            last_offset_delta=count - 1,
            base_timestamp=1,
            max_timestamp=1,
            attributes=CONTROL_MASK | TRANSACTIONAL_MASK,
        )
    )


def test_a_type_of_the_future_is_reported_as_unknown() -> None:
    assert read_control_batch(marked(struct.pack(">hh", 0, 5), None)).marker is None


def test_a_longer_value_of_the_future_is_read() -> None:
    view = marked(struct.pack(">hh", 1, 1), struct.pack(">hiq", 1, 8, 0))
    assert (read_control_batch(view).marker, read_control_batch(view).coordinator_epoch) == (Marker.COMMIT, 8)


@pytest.mark.parametrize(
    "view",
    [
        marked(None, None),
        marked(b"\0\0\0", None),
        marked(struct.pack(">hh", -1, 0), b"\0" * 6),
        marked(struct.pack(">hh", 0, 0), None),
        marked(struct.pack(">hh", 0, 0), b"\0" * 5),
        marked(struct.pack(">hh", 0, 0), b"\0" * 6, count=2),
    ],
)
def test_a_malformed_marker_is_corrupt(view: BatchView) -> None:
    with pytest.raises(CorruptBatch):
        read_control_batch(view)
