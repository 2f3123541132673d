"""A batch's bytes under its producer's stamp: copied no oftener than safety demands."""

from __future__ import annotations

from raylog.client.producer_batch import ProducerBatch
from raylog.records.batch import BatchView
from raylog.records.codec import decode_values, encode_values

VALUES = [b"a", b"bc", b""]


def encoded() -> ProducerBatch:
    data = encode_values(VALUES, timestamp_ms=1)
    return ProducerBatch.of_bytes("t", 0, data, len(VALUES), created_ms=0, deadline_ms=1, compression=0)


def check(data: bytes | bytearray, stamp: tuple[int, int, int]) -> None:
    view = BatchView(data)
    assert (view.producer_id, view.producer_epoch, view.base_sequence) == stamp
    assert view.has_valid_crc() and decode_values(view) == VALUES


def test_the_first_stamp_copies_nothing() -> None:
    batch = encoded()
    before = batch.data
    batch.stamp = (1 << 40, 7, 123_456)
    assert batch.stamped_bytes() is before is batch.stamped_bytes()
    check(batch.stamped_bytes(), (1 << 40, 7, 123_456))


def test_a_later_stamp_leaves_alone_what_may_still_be_on_its_way() -> None:
    batch = encoded()
    batch.stamp = (5, 0, 0)
    sent = batch.stamped_bytes()
    batch.stamp = (6, 1, 9)
    check(batch.stamped_bytes(), (6, 1, 9))
    check(sent, (5, 0, 0))


def test_unstamped_bytes_go_as_they_are() -> None:
    batch = encoded()
    assert batch.stamped_bytes() is batch.data
    check(batch.stamped_bytes(), (-1, -1, -1))
