"""Retention [L20]: by time, by size, by log start; renaming and the delayed removal."""

from __future__ import annotations

from typing import Any

import pytest

from raylog.log.config import LogConfig
from raylog.log.retention import SegmentFacts, deletable

DAY = 86_400_000


def _segments(*sizes: int, timestamps: tuple[int, ...] = (), width: int = 100) -> list[SegmentFacts]:
    return [
        SegmentFacts(
            base_offset=number * width,
            end_offset=(number + 1) * width,
            size=size,
            largest_timestamp=timestamps[number] if timestamps else 0,
            is_active=number == len(sizes) - 1,
        )
        for number, size in enumerate(sizes)
    ]


def _deletable(
    segments: list[SegmentFacts], *, start: int = 0, watermark: int = 10**9, now: int = 0, **config: Any
) -> int:
    return deletable(
        segments,
        config=LogConfig(**{"retention_ms": -1, **config}),
        high_watermark=watermark,
        log_start_offset=start,
        wall_ms=now,
    )


def test_tv_6_size_retention_deletes_while_the_excess_is_at_least_a_segment() -> None:
    assert _deletable(_segments(100, 100, 100, 50), retention_bytes=200) == 1
    assert _deletable(_segments(100, 100, 100, 50), retention_bytes=150) == 2
    assert _deletable(_segments(100, 100, 100, 50), retention_bytes=251) == 0
    assert _deletable(_segments(100, 100, 100, 50), retention_bytes=-1) == 0


@pytest.mark.parametrize(("start", "count"), [(150, 1), (200, 2), (99, 0), (100, 1)])
def test_tv_7_a_segment_goes_when_the_next_one_starts_at_or_below_the_log_start(start: int, count: int) -> None:
    assert _deletable(_segments(10, 10, 10), start=start) == count


def test_time_retention_uses_the_largest_timestamp_and_is_strict() -> None:
    segments = _segments(10, 10, 10, timestamps=(1000, 3000, 2000))
    assert _deletable(segments, retention_ms=500, now=1500) == 0
    assert _deletable(segments, retention_ms=500, now=1501) == 1
    assert _deletable(segments, retention_ms=500, now=2600) == 1, "the second, younger one protects the third"
    assert _deletable(segments, retention_ms=500, now=3501) == 3
    assert _deletable(segments, retention_ms=-1, now=10**15) == 0


def test_nothing_at_or_above_the_high_watermark_is_deleted() -> None:
    segments = _segments(10, 10, 10)
    assert [_deletable(segments, retention_bytes=0, watermark=mark) for mark in (99, 100, 299, 300)] == [0, 1, 2, 3]


def test_a_compacted_topic_only_loses_what_lies_below_its_start() -> None:
    segments = _segments(10, 10, 10)
    assert (
        _deletable(segments, deletes=False, compacts=True, retention_bytes=0, retention_ms=0, now=DAY, start=100) == 1
    )
    assert _deletable(segments, deletes=True, compacts=True, retention_bytes=0) == 3


# ------------------------------------------------------------------ on a log


def _fill(machine: Any, count: int = 4, **config: Any) -> Any:
    log = machine.open(segment_bytes=200, **config)
    for number in range(count):
        machine.append(b"x" * 100, timestamp_ms=1000 * number)
    log.high_watermark = log.log_end_offset
    return log


def test_old_segments_are_renamed_then_removed_after_the_delay(machine: Any) -> None:
    log = _fill(machine, retention_ms=1500, file_delete_delay_ms=60_000)
    assert log.delete_old_segments(2600) == [0, 1]
    assert (log.log_start_offset, log.segments.base_offsets) == (2, [2, 3])
    renamed = [name for name in machine.names() if name.endswith(".deleted")]
    assert [name[:20] for name in renamed if ".log" in name] == [f"{0:020d}", f"{1:020d}"]
    assert log.delete_renamed_files(62_599) == 0 and log.delete_renamed_files(62_600) == len(renamed) == 6
    assert not [name for name in machine.names() if name.endswith(".deleted")]
    assert log.leader_epochs.entries == ((0, 2),)
    log.check()
    assert machine.recover().log_start_offset == 2


def test_a_log_whose_segments_have_all_expired_rolls_first(machine: Any) -> None:
    log = _fill(machine, retention_ms=1500)
    assert log.delete_old_segments(DAY) == [0, 1, 2, 3]
    assert (log.log_start_offset, log.log_end_offset, log.segments.base_offsets, log.size_bytes) == (4, 4, [4], 0)
    assert log.delete_old_segments(2 * DAY) == [], "an empty active segment stays"
    assert machine.append(b"a") == 4
    assert machine.recover().log_end_offset == 5 and machine.log.log_start_offset == 4


def test_records_without_timestamps_are_judged_by_the_files_modification_time(machine: Any) -> None:
    machine.wall_ms = 10_000
    log = machine.open(segment_bytes=200, retention_ms=500)
    machine.append(b"x" * 100, timestamp_ms=-1)
    machine.wall_ms = 20_000
    machine.append(b"x" * 100, timestamp_ms=-1)
    log.high_watermark = 2
    assert log.delete_old_segments(20_400) == [0]


def test_readers_of_deleted_offsets_are_told(machine: Any) -> None:
    log = _fill(machine, retention_bytes=300)
    gone = log.delete_old_segments(0)
    assert gone == [0, 1] and log.read(2, 10).base_offset == 2
    with pytest.raises(Exception, match="is not in"):
        log.read(1, 10)


def test_renamed_files_of_a_crashed_process_are_removed_at_the_next_start(machine: Any) -> None:
    log = _fill(machine, retention_ms=1500)
    log.delete_old_segments(2600)
    log = machine.recover()
    assert len(log.recovery.removed) == 6 and log.log_start_offset == 2
