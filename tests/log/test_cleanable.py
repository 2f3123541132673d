"""When a compacted log is due [L22, L24]: its dirty share, and the shortest and the longest time that a record stays as it was written."""

from __future__ import annotations

from typing import Any

from raylog.log.cleanable import SegmentAge, cleanable
from raylog.log.config import LogConfig
from raylog.records.codec import encode

NOW_MS = 1_000_000


def found(*segments: SegmentAge, cleaned_up_to: int = 0, stable_end: int = 1_000, **config: Any) -> Any:
    return cleanable(
        segments,
        config=LogConfig(compacts=True, **config),
        cleaner_point=cleaned_up_to,
        log_start_offset=0,
        stable_end_offset=stable_end,
        wall_ms=NOW_MS,
    )


def segment(base_offset: int, *, size: int = 100, written_ms: int = 0) -> SegmentAge:
    return SegmentAge(base_offset, size, written_ms, written_ms)


def test_a_log_is_due_when_more_than_its_share_is_dirty() -> None:
    segments = [segment(0), segment(10), segment(20), segment(30)]
    part = found(*segments, cleaned_up_to=10)
    assert (part.first_dirty_offset, part.first_uncleanable_offset) == (10, 30)
    assert part.dirty_ratio == 200 / 300
    assert part.is_due(LogConfig(compacts=True, min_cleanable_dirty_ratio=0.66))
    assert not part.is_due(LogConfig(compacts=True, min_cleanable_dirty_ratio=0.67))


def test_neither_the_active_segment_nor_what_is_not_final_is_cleaned() -> None:
    segments = [segment(0), segment(10), segment(20)]
    assert found(*segments).first_uncleanable_offset == 20
    assert found(*segments, stable_end=19).first_uncleanable_offset == 10
    assert found(segment(0)) is None


def test_records_stay_for_their_shortest_time() -> None:
    segments = [segment(0), segment(10, written_ms=NOW_MS - 500), segment(20)]
    assert found(*segments, min_compaction_lag_ms=500).first_uncleanable_offset == 20
    assert found(*segments, min_compaction_lag_ms=501).first_uncleanable_offset == 10


def test_a_record_that_waits_too_long_makes_its_log_due() -> None:
    clean, dirty = segment(0, size=10_000, written_ms=1), segment(10, size=1, written_ms=NOW_MS - 500)
    config = LogConfig(compacts=True)
    on_time = found(clean, dirty, segment(20), cleaned_up_to=10, max_compaction_lag_ms=500)
    overdue = found(clean, dirty, segment(20), cleaned_up_to=10, max_compaction_lag_ms=499)
    assert (on_time.is_due(config), overdue.is_due(config)) == (False, True)


def test_segments_without_timestamps_are_as_old_as_their_files(machine: Any) -> None:
    log = machine.open(compacts=True, deletes=False, segment_bytes=200, min_compaction_lag_ms=1_000)
    while len(log.segments) < 3:
        log.append_as_leader(encode([(-1, b"k", b"v" * 50, ())]), leader_epoch=0, wall_ms=machine.wall_ms)
    log.high_watermark = log.log_end_offset
    assert all(each.largest_timestamp < 0 for each in log.segments)
    assert log.compaction.cleanable(machine.wall_ms + 999) is None
    assert log.compaction.cleanable(machine.wall_ms + 1_000).first_uncleanable_offset == log.segments.active.base_offset
