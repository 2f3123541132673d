"""Replicas of a compacted partition that make another table are found and named; those that were only compacted further are not."""

from __future__ import annotations

from raylog.client.admin.replica_comparison import Difference
from raylog.client.admin.table_comparison import TableComparison
from raylog.records.batch import stamp
from raylog.records.codec import RecordBatchBuilder

Row = tuple[int, bytes, bytes | None]


def log(*rows: Row, epoch: int = 3) -> bytes:
    """A batch for each row: offset, key and value."""
    found = b""
    for offset, key, value in rows:
        builder = RecordBatchBuilder()
        builder.append(timestamp_ms=1_000, key=key, value=value)
        data = bytearray(builder.build())
        stamp(data, offset, epoch)
        found += bytes(data)
    return found


def compared(*replicas: bytes, end: int = 10, log_start: int = 0) -> Difference | None:
    comparison = TableComparison(range(len(replicas)), 0, end, leader_epoch=5)
    for broker, replica in enumerate(replicas):
        comparison.take(broker, replica)
    return comparison.finish(range(len(replicas)), log_start)


WHOLE: list[Row] = [(0, b"a", b"1"), (1, b"b", b"1"), (2, b"a", b"2"), (3, b"b", None), (9, b"c", b"1")]


def test_replicas_that_were_compacted_differently_agree() -> None:
    assert compared(log(*WHOLE), log(*WHOLE[1:]), log(WHOLE[2], WHOLE[4])) is None


def test_a_key_that_is_missing_or_stale_or_came_back_is_named() -> None:
    for other in (log(*WHOLE[:4]), log(WHOLE[0], *WHOLE[3:]), log(*WHOLE[:3], WHOLE[4])):
        found = compared(log(*WHOLE), other, log(*WHOLE))
        if other == log(*WHOLE[:4]):
            assert found is not None and (found.offset, found.brokers) == (9, (1,))
        assert found is not None and "1 keys have another last record on broker 1" in found.what
    changed = compared(log(*WHOLE), log(*WHOLE[:4], (9, b"c", b"2")))
    assert changed is not None and changed.offset == 9


def test_what_was_deleted_meanwhile_is_left_out() -> None:
    assert compared(log(*WHOLE), log(WHOLE[4]), log_start=5) is None


def test_a_damaged_batch_and_offsets_that_go_back_are_named() -> None:
    broken = bytearray(log(*WHOLE))
    broken[-1] ^= 1
    found = compared(log(*WHOLE), bytes(broken))
    assert found is not None and found.brokers == (1,) and "wrong CRC" in found.what
    found = compared(log(*WHOLE), log(WHOLE[2], WHOLE[1]))
    assert found is not None and "comes where offset 3 has to follow" in found.what
    found = compared(log(*WHOLE, epoch=6))
    assert found is not None and "leader epoch 6" in found.what


def test_a_damaged_replica_does_not_keep_the_others_from_being_compared() -> None:
    broken = bytearray(log(*WHOLE))
    broken[-1] ^= 1
    comparison = TableComparison((0, 1, 2), 0, 10, leader_epoch=5)
    for broker, replica in enumerate((log(*WHOLE), bytes(broken), log(*WHOLE))):
        comparison.take(broker, replica)
        assert comparison.is_done(broker)
    found = comparison.finish((0, 1, 2), 0)
    assert found is not None and found.brokers == (1,) and list(comparison.damaged) == [1]
    tables = comparison.tables((0, 1, 2), 0)
    assert sorted(tables) == [0, 2] and tables[0] == tables[2]


def test_a_record_that_was_dropped_because_its_key_was_written_again_meanwhile_is_no_difference() -> None:
    comparison = TableComparison((0, 1), 0, 10, leader_epoch=5)
    comparison.take(0, log(*WHOLE))
    comparison.take(1, log(*WHOLE[:4], (12, b"c", b"2")))
    assert comparison.finish((0, 1), 0) is not None
    assert comparison.written_again(log((10, b"x", b"1"), (12, b"c", b"2"))) == 13
    assert comparison.finish((0, 1), 0) is None
    assert comparison.written_again(b"") is None
