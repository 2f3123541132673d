"""Replicas that differ in any byte, and batches that are wrong on all of them, are found and named."""

from __future__ import annotations

import struct

import pytest

from raylog.client.admin.replica_comparison import Difference, ReplicaComparison
from raylog.records.batch import stamp, write_crc
from raylog.records.codec import encode_values


def batch(offset: int, epoch: int = 3, count: int = 10) -> bytes:
    """A batch of so many records as a leader of that epoch stores it."""
    data = bytearray(encode_values([b"%d" % each for each in range(count)], timestamp_ms=1_000))
    stamp(data, offset, epoch)
    return bytes(data)


def log(*batches: bytes) -> bytes:
    return b"".join(batches)


def changed(data: bytes, position: int, *, mend_crc: bool) -> bytes:
    altered = bytearray(data)
    altered[position] ^= 0x01
    if mend_crc:
        write_crc(altered)
    return bytes(altered)


def compared(portions: dict[int, bytes], *, end: int = 30, offset: int = 0) -> ReplicaComparison:
    comparison = ReplicaComparison(offset, end, leader_epoch=5)
    comparison.compare(portions)
    return comparison


def difference(portions: dict[int, bytes], *, offset: int = 0) -> Difference:
    found = compared(portions, offset=offset).difference
    assert found is not None
    return found


WHOLE = [batch(0), batch(10), batch(20, epoch=5)]


def test_equal_replicas_agree_to_the_end() -> None:
    comparison = compared({0: log(*WHOLE), 1: log(*WHOLE), 2: log(*WHOLE)})
    assert comparison.difference is None
    assert (comparison.offset, comparison.batches, comparison.records) == (30, 3, 30)
    assert comparison.size_bytes == len(log(*WHOLE))
    assert comparison.epoch_starts == [(3, 0), (5, 20)]


def test_a_shorter_answer_shortens_the_comparison_and_it_goes_on() -> None:
    comparison = compared({0: log(*WHOLE), 1: log(*WHOLE[:1]), 2: log(*WHOLE[:2])})
    assert (comparison.difference, comparison.offset) == (None, 10)
    comparison.compare({0: log(*WHOLE[1:]), 1: log(*WHOLE[1:]), 2: log(*WHOLE[1:])})
    assert (comparison.difference, comparison.offset) == (None, 30)


def test_a_changed_byte_with_a_mended_crc_is_found_and_named() -> None:
    altered = changed(WHOLE[1], 70, mend_crc=True)
    found = difference({2: log(*WHOLE), 0: log(WHOLE[0], altered, WHOLE[2]), 1: log(*WHOLE)})
    assert (found.offset, found.brokers) == (10, (0,))
    expected = f"byte 70 is {altered[70]:#04x} instead of {WHOLE[1][70]:#04x}, and its CRC holds (brokers 2, 1 agree)"
    assert expected in found.what and "offsets 10–19 broker 0: CRC 0x" in found.what


def test_a_change_on_the_reference_shows_who_agrees() -> None:
    found = difference({0: changed(WHOLE[0], 80, mend_crc=True), 1: WHOLE[0], 2: WHOLE[0]})
    assert (found.offset, found.brokers) == (0, (1, 2))


def test_another_leader_epoch_alone_is_a_difference() -> None:
    found = difference({0: log(*WHOLE), 1: log(WHOLE[0], batch(10, epoch=4), WHOLE[2])})
    assert (found.offset, found.brokers) == (10, (1,)) and "leader epoch 4 instead of 3" in found.what


def test_batches_cut_otherwise_are_a_difference() -> None:
    found = difference({0: batch(0, count=10), 1: log(batch(0, count=5), batch(5, count=5))})
    assert found.offset == 0 and "number of records 5 instead of 10" in found.what


def test_a_wrong_crc_is_found_even_where_all_agree() -> None:
    wrong = changed(WHOLE[1], 70, mend_crc=False)
    found = difference({0: log(WHOLE[0], wrong), 1: log(WHOLE[0], wrong)})
    assert (found.offset, found.brokers) == (10, (0,)) and "wrong CRC" in found.what


@pytest.mark.parametrize(
    ("batches", "told"),
    [
        ([batch(0), batch(11)], "follows offset 9: a gap"),
        ([batch(0), batch(5)], "comes where offset 10 has to follow"),
        ([batch(5)], "offset 0 is missing"),
        ([batch(0, epoch=4), batch(10, epoch=3)], "is of leader epoch 3, after one of 4"),
        ([batch(0, epoch=6)], "is of leader epoch 6, the present one is 5"),
    ],
    ids=["gap", "overlap", "beginning", "epoch-back", "epoch-ahead"],
)
def test_offsets_without_gap_and_epochs_that_never_go_back_are_demanded(batches: list[bytes], told: str) -> None:
    found = difference({0: log(*batches), 1: log(*batches)})
    assert told in found.what


def test_a_count_that_contradicts_the_offsets_is_found() -> None:
    wrong = bytearray(batch(0))
    struct.pack_into(">i", wrong, 57, 9)
    write_crc(wrong)
    assert "holds 9 records" in difference({0: bytes(wrong), 1: bytes(wrong)}).what


def test_a_log_that_begins_within_a_batch_is_fine() -> None:
    comparison = compared({0: log(*WHOLE), 1: log(*WHOLE)}, offset=4)
    assert (comparison.difference, comparison.offset) == (None, 30)


def test_what_lies_beyond_the_end_is_not_judged() -> None:
    comparison = compared({0: log(*WHOLE), 1: log(*WHOLE[:2], batch(20, epoch=9))}, end=20)
    assert (comparison.difference, comparison.offset) == (None, 20)


def test_a_part_of_a_batch_is_no_answer() -> None:
    assert "only a part" in difference({0: WHOLE[0], 1: WHOLE[0][:-3]}).what


def test_garbage_is_named() -> None:
    assert "no whole batch" in difference({0: b"garbage" * 30, 1: b"garbage" * 30}).what
