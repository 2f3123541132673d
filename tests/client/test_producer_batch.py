"""A batch's bytes under its producer's stamp: copied no oftener than safety demands."""

from __future__ import annotations

from typing import Any

import pytest

from raylog.client.producer.producer_batch import ProducerBatch
from raylog.errors import ClosedError
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


def test_a_batch_that_was_given_up_before_its_thread_encodes_it_holds_no_bytes() -> None:
    """A producer is closed at once, or a delivery timeout passes, while ``send`` is about to encode what it has filled."""
    batch = ProducerBatch("t", 0, created_ms=0, deadline_ms=1)
    batch.add((1, None, b"v", ()), 1)
    batch.fail(ClosedError("closed"))
    batch.encode()
    assert batch.data is None


def test_a_batch_that_is_given_up_while_its_thread_encodes_it_holds_no_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = ProducerBatch("t", 0, created_ms=0, deadline_ms=1)
    batch.add((1, None, b"v", ()), 1)

    def given_up_meanwhile(*_: Any, **__: Any) -> bytes:
        batch.fail(ClosedError("closed"))
        return b"bytes"

    monkeypatch.setattr("raylog.client.producer.producer_batch.encode", given_up_meanwhile)
    batch.encode()
    assert batch.data is None


@pytest.mark.parametrize("data", [bytes, bytearray])
def test_a_batch_of_a_transaction_says_so_in_its_header(data: Any) -> None:
    raw = data(encode_values([b"a", b"b"], timestamp_ms=1))
    batch = ProducerBatch.of_bytes("t", 0, raw, 2, created_ms=0, deadline_ms=1, compression=0)
    batch.is_transactional = True
    for stamp in ((7, 0, 0), (7, 1, 4)):
        batch.stamp = stamp
        view = BatchView(bytes(batch.stamped_bytes()))
        assert view.is_transactional and view.has_valid_crc() and not view.is_control
        assert (view.producer_id, view.producer_epoch, view.base_sequence) == stamp
    assert all(child.is_transactional for child in batch.split())
