"""Reading by offset and by timestamp [L16, L17], and cutting the log."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from raylog.errors import kafka_error
from raylog.log import segment
from raylog.log.files import NotInMemory
from raylog.records.batch import MAGIC_POSITION, batches
from raylog.records.codec import encode
from raylog.records.corrupt import CorruptBatch

OutOfRange = kafka_error(ErrorCode.offset_out_of_range)


def _offsets(log: Any, offset: int, max_bytes: int, **more: Any) -> list[int]:
    return [view.base_offset for view in batches(log.read(offset, max_bytes, **more).records)]


@pytest.fixture
def log(machine: Any) -> Any:
    """Ten batches of ten records, 0 to 99, four segments, two epochs."""
    size = 61 + 10 * 109
    opened = machine.open(segment_bytes=3 * size, index_interval_bytes=1500)
    for number in range(10):
        machine.append(*[b"x" * 100] * 10, timestamp_ms=1000 + number, leader_epoch=number // 5)
    opened.high_watermark = 100
    return opened


def test_a_read_starts_with_the_batch_that_holds_the_offset(log: Any) -> None:
    assert len(log.segments) == 4
    for offset in range(100):
        found = log.read(offset, 1)
        assert found.base_offset == offset - offset % 10 and found.next_offset == found.base_offset + 10
        assert _offsets(log, offset, 1) == [found.base_offset]


def test_only_whole_batches_within_the_limit_but_always_the_first(log: Any) -> None:
    size = len(bytes(log.read(0, 1).records))
    assert _offsets(log, 0, 2 * size) == [0, 10] == _offsets(log, 5, 3 * size - 1)
    assert len(log.read(0, 0).records) == size
    assert log.read(0, size - 1, at_least_one=False).records == b""
    assert _offsets(log, 0, size, at_least_one=False) == [0]


def test_a_read_ends_with_its_segment(log: Any) -> None:
    assert _offsets(log, 0, 1 << 20) == [0, 10, 20]
    assert _offsets(log, 30, 1 << 20) == [30, 40, 50]


def test_nothing_that_starts_at_the_end_offset_is_read(log: Any) -> None:
    assert _offsets(log, 0, 1 << 20, end_offset=20) == [0, 10]
    assert _offsets(log, 0, 1 << 20, end_offset=21) == [0, 10, 20]
    assert log.read(20, 100, end_offset=20).records == b""
    assert log.read(25, 100, end_offset=20).next_offset == 25
    assert log.read(30, 100, end_offset=30).records == b""


def test_outside_the_log_is_out_of_range_and_its_end_is_empty(log: Any) -> None:
    assert log.read(100, 100).records == b""
    for offset in (-1, 101):
        with pytest.raises(OutOfRange, match=r"t-0: offset"):
            log.read(offset, 100)
    log.advance_log_start(15)
    with pytest.raises(OutOfRange):
        log.read(14, 100)
    assert log.read(15, 1).base_offset == 10


def test_reading_on_from_where_the_last_read_ended_visits_everything_once(log: Any) -> None:
    for limit in (1, 1500, 3000, 1 << 20):
        offset, seen = 0, []
        while offset < 100:
            part = log.read(offset, limit)
            seen += [view.base_offset for view in batches(part.records)]
            assert part.next_offset > offset
            offset = part.next_offset
        assert seen == list(range(0, 100, 10))


@pytest.fixture
def small_batches(machine: Any) -> tuple[Any, list[tuple[int, int, int]]]:
    """A sealed segment and an active one of small batches of several sizes; (base offset, next offset, bytes) of each batch."""
    log = machine.open(segment_bytes=64 << 10, index_interval_bytes=1024)
    written = []
    for number in range(700):
        base_offset = log.log_end_offset
        machine.append(*[b"x" * (number % 37)] * (1 + number % 3))
        view = next(batches(log.read(base_offset, 1).records))
        written.append((base_offset, log.log_end_offset, view.size))
    assert len(log.segments) == 2
    return log, written


def test_of_many_small_batches_as_many_are_read_as_there_may_be(
    small_batches: tuple[Any, list[tuple[int, int, int]]],
) -> None:
    """The index says where most of them end; it must not say more than that."""
    log, written = small_batches
    second = log.segments.active.base_offset
    for first in range(0, 700, 23):
        for max_bytes in (20_000, 40_001, 1 << 20):
            for end_offset in (log.log_end_offset, (written[first][0] + log.log_end_offset) // 2):
                expected, size = [], 0
                for base_offset, next_offset, batch_bytes in written[first:]:
                    is_elsewhere = (base_offset >= second) != (written[first][0] >= second)
                    if base_offset >= end_offset or size + batch_bytes > max_bytes or is_elsewhere:
                        break
                    size += batch_bytes
                    expected.append((base_offset, next_offset))
                found = log.read(written[first][0], max_bytes, end_offset=end_offset)
                assert [view.base_offset for view in batches(found.records)] == [base for base, _ in expected]
                assert found.next_offset == expected[-1][1]


def test_an_index_that_names_no_batch_is_not_believed(machine: Any) -> None:
    log = machine.open(index_interval_bytes=1024)
    for _ in range(300):
        machine.append(bytes(200))
    honest = [view.base_offset for view in batches(log.read(0, 40_000).records)]
    index = log.segments.active.offset_index.file
    for number in range(index.count):
        relative, position = index.get(number)
        struct.pack_into(">ii", index._tail, number * 8, relative, position + 80)  # amid zeros, as of an empty batch
    assert [view.base_offset for view in batches(log.read(0, 40_000).records)] == honest


def test_a_read_of_many_small_batches_looks_at_few_of_them(
    small_batches: tuple[Any, list[tuple[int, int, int]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    log, written = small_batches
    looked = []

    class Counting:
        def unpack_from(self, data: Any, at: int) -> Any:
            looked.append(at)
            return place.unpack_from(data, at)

    place = segment._PLACE
    monkeypatch.setattr(segment, "_PLACE", Counting())
    found = log.read(written[0][0], 60_000)
    assert len(list(batches(found.records))) > 300
    assert len(looked) < 60


def test_many_sealed_segments_are_read_with_few_open_files(machine: Any) -> None:
    log = machine.open(segment_bytes=200)
    for _ in range(60):
        machine.append(b"x" * 80)
    assert len(log.segments) == 60
    assert [log.read(offset, 1).base_offset for offset in range(60)] == list(range(60))
    assert sum(not segment.is_resting for segment in log.segments) <= 9


# ------------------------------------------------------------------ timestamps


def test_the_first_record_at_or_after_a_timestamp_is_found(log: Any) -> None:
    assert log.offset_for_timestamp(0) == (1000, 0, 0)
    assert log.offset_for_timestamp(1003) == (1003, 30, 0)
    assert log.offset_for_timestamp(1009) == (1009, 90, 1)
    assert log.offset_for_timestamp(1010) is None
    assert log.offset_for_timestamp(1009, 90) is None
    assert log.largest_timestamp() == (1009, 90, 1)


def test_timestamps_out_of_order_are_found_inside_batches(machine: Any) -> None:
    log = machine.open()
    assert log.largest_timestamp() is None and log.offset_for_timestamp(0) is None
    records = [(50, None, b"a", ()), (900, None, b"b", ()), (60, None, b"c", ())]
    log.append_as_leader(encode(records), leader_epoch=2, wall_ms=1)
    log.append_as_leader(encode([(100, None, b"d", ())]), leader_epoch=2, wall_ms=1)
    assert log.offset_for_timestamp(51) == (900, 1, 2)
    assert log.largest_timestamp() == (900, 1, 2)
    log.high_watermark = 4
    log.advance_log_start(2)
    assert log.offset_for_timestamp(51) == (60, 2, 2)
    assert log.offset_for_timestamp(101) is None


# ------------------------------------------------------------------ cutting


@pytest.mark.parametrize("offset", [0, 10, 20, 30, 50, 60, 90])
def test_truncation_at_a_batch_ends_the_log_there(log: Any, machine: Any, offset: int) -> None:
    assert log.truncate_to(offset)
    log.check()
    assert (log.log_end_offset, log.high_watermark) == (offset, offset)
    assert log.leader_epochs.latest_epoch == (1 if offset > 50 else 0 if offset else -1)
    assert machine.append(b"new", leader_epoch=7) == offset
    assert log.read(offset, 1).next_offset == offset + 1
    again = machine.recover()
    again.check()
    assert again.log_end_offset == offset + 1 and again.leader_epochs.latest_epoch == 7


def test_truncation_inside_a_batch_takes_the_whole_batch(log: Any) -> None:
    assert log.truncate_to(47)
    log.check()
    assert log.log_end_offset == 40


def test_truncation_at_or_behind_the_end_does_nothing(log: Any) -> None:
    assert not log.truncate_to(100) and not log.truncate_to(1000)
    assert log.log_end_offset == 100


def test_truncation_lowers_the_flushed_end_so_that_new_records_are_not_taken_for_flushed(log: Any) -> None:
    log.flush()
    assert log.recovery_point == 100 and log.unflushed_messages == 0 and log.flushes.oldest_unflushed_ms is None
    log.truncate_to(60)
    assert log.recovery_point == 60


def test_starting_over_elsewhere_leaves_nothing_behind(log: Any, machine: Any) -> None:
    log.truncate_fully_and_start_at(5000)
    log.check()
    assert (log.log_start_offset, log.high_watermark, log.log_end_offset, log.size_bytes) == (5000, 5000, 5000, 0)
    assert log.leader_epochs.entries == () and len(log.producers) == 0
    assert machine.append(b"a") == 5000
    assert [name for name in machine.names() if name.endswith(".log")] == [f"{5000:020d}.log"]
    again = machine.recover()
    assert (again.log_start_offset, again.log_end_offset) == (5000, 5001)


def test_delete_records_moves_the_start_but_not_beyond_the_high_watermark(log: Any, machine: Any) -> None:
    log.high_watermark = 50
    with pytest.raises(OutOfRange, match="high watermark 50"):
        log.advance_log_start(51)
    assert log.advance_log_start(35) and not log.advance_log_start(35)
    assert log.leader_epochs.entries == ((0, 35), (1, 50))
    log = machine.reopen()
    assert (log.log_start_offset, log.high_watermark) == (35, 50)
    assert log.delete_old_segments(machine.wall_ms) == [0]
    assert log.segments.base_offsets[0] == 30


# ------------------------------------------------------------------ flushing


def test_flush_counts_and_ages_what_it_does_not_cover(machine: Any) -> None:
    log = machine.open()
    machine.wall_ms = 5000
    machine.append(b"a", b"b")
    machine.wall_ms = 6000
    machine.append(b"c")
    assert (log.unflushed_messages, log.flushes.oldest_unflushed_ms) == (3, 5000)
    assert log.flush() == 3
    assert (log.unflushed_messages, log.flushes.oldest_unflushed_ms, log.recovery_point) == (0, None, 3)
    machine.wall_ms = 7000
    machine.append(b"d")
    assert (log.unflushed_messages, log.flushes.oldest_unflushed_ms) == (1, 7000)


def test_an_append_during_a_flush_is_not_covered_by_it(machine: Any) -> None:
    log = machine.open()
    machine.append(b"a")

    def fault(operation: str, path: str) -> None:
        if operation == "flush" and path.endswith(".log"):
            machine.disk.fault = None
            machine.wall_ms = 9000
            machine.append(b"b")

    machine.disk.fault = fault
    assert log.flush() == 1
    assert (log.recovery_point, log.unflushed_messages, log.flushes.oldest_unflushed_ms) == (1, 1, 9000)


def test_a_truncation_during_a_flush_takes_back_its_promise(machine: Any) -> None:
    log = machine.open()
    machine.append(b"a")
    machine.append(b"b")

    def fault(operation: str, path: str) -> None:
        if operation == "flush" and path.endswith(".log"):
            machine.disk.fault = None
            log.truncate_to(1)
            machine.append(b"c")

    machine.disk.fault = fault
    log.flush()
    assert log.recovery_point <= 1


def test_only_rolled_segments_are_flushed_on_request(machine: Any) -> None:
    log = machine.open(segment_bytes=300)
    for _ in range(4):
        machine.append(b"x" * 100)
    assert log.segments.base_offsets == [0, 1, 2, 3] or log.has_rolled_unflushed
    assert log.flush_rolled() == log.segments.base_offsets[-1] == log.recovery_point
    assert not log.has_rolled_unflushed and log.unflushed_messages > 0


# ------------------------------------------------------------------ without waiting for the disk


def _loading(machine: Any, read: Callable[[], Any]) -> tuple[Any, list[NotInMemory]]:
    """What ``read`` returns in the end, and what had to be loaded for it."""
    loaded: list[NotInMemory] = []
    while True:
        try:
            return read(), loaded
        except NotInMemory as missing:
            assert len(loaded) < 10
            loaded.append(missing)
            machine.files.load(missing.path, missing.position, missing.size)


def test_a_cold_read_is_refused_until_its_index_and_its_records_are_loaded(machine: Any, log: Any) -> None:
    for offset in (0, 15, 29, 35, 60, 95):
        warm = bytes(log.read(offset, 1).records)
        machine.disk.evict()
        found, loaded = _loading(machine, lambda offset=offset: log.read(offset, 1, in_memory=True))
        assert bytes(found.records) == warm
        assert offset >= 90 or 1 <= len(loaded) <= 3


def test_a_refused_read_changes_nothing(machine: Any, log: Any) -> None:
    machine.disk.evict()
    before = [dict(segment._positions) for segment in log.segments]
    for read in (log.read, log.read):
        with pytest.raises(NotInMemory):
            read(15, 1 << 20, in_memory=True)
    assert [dict(segment._positions) for segment in log.segments] == before
    log.check()


def test_a_cold_search_by_timestamp_finds_what_a_warm_one_finds(machine: Any, log: Any) -> None:
    for timestamp in (0, 1003, 1009, 1010):
        machine.disk.evict()
        found, loaded = _loading(machine, lambda at=timestamp: log.offset_for_timestamp(at, in_memory=True))
        assert found == log.offset_for_timestamp(timestamp) and bool(loaded) == (timestamp <= 1009)
    machine.disk.evict()
    assert _loading(machine, lambda: log.largest_timestamp(in_memory=True))[0] == log.largest_timestamp()


def test_what_was_just_appended_is_read_without_asking(machine: Any, log: Any) -> None:
    machine.disk.evict()
    assert log.read(90, 1 << 20, in_memory=True).base_offset == 90
    reopened = machine.reopen()
    machine.disk.evict()
    with pytest.raises(NotInMemory):  # an earlier process wrote it: nobody knows how long ago
        reopened.read(90, 1 << 20, in_memory=True)


def test_a_search_through_a_large_cold_index_needs_one_load_of_it(machine: Any) -> None:
    log = machine.open(segment_bytes=100_000, index_interval_bytes=1)
    while len(log.segments) < 2:
        machine.append(b"x" * 80)
    assert log.segments.all[0].offset_index.file.count > 500
    machine.disk.evict()
    _, loaded = _loading(machine, lambda: log.read(37, 1, in_memory=True))
    assert [missing.path.rpartition(".")[2] for missing in loaded][:2] == ["index", "log"]


def test_a_batch_whose_magic_byte_has_changed_ends_a_read_and_is_refused_where_it_is_the_first(machine: Any) -> None:
    log = machine.open(index_interval_bytes=1 << 20)
    for _ in range(3):
        machine.append(*[b"x" * 100] * 10)
    log.high_watermark = 30
    size = len(bytes(log.read(0, 1).records))
    machine.reopen()
    machine.damage("00000000000000000000.log", lambda data: _with_magic(data, size, 66))
    log = machine.log
    assert _offsets(log, 0, 1 << 20, end_offset=30) == [0]
    with pytest.raises(CorruptBatch, match="unknown magic byte 66"):
        log.read(10, 1 << 20, end_offset=30)


def _with_magic(data: bytes, at: int, magic: int) -> bytes:
    return data[: at + MAGIC_POSITION] + bytes([magic]) + data[at + MAGIC_POSITION + 1 :]
