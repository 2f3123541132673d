"""The pieces of files that hold a range of offsets: all of its batches below the high watermark, and none that starts beyond it."""

from __future__ import annotations

from typing import Any

import pytest

from raylog.log import whereabouts as module
from raylog.log.whereabouts import whereabouts
from raylog.records.batch import batches


@pytest.fixture
def log(machine: Any) -> Any:
    """Ten batches of ten records, 0 to 99, in four segments."""
    size = 61 + 10 * 109
    opened = machine.open(segment_bytes=3 * size, index_interval_bytes=1500)
    for _ in range(10):
        machine.append(*[b"x" * 100] * 10)
    opened.high_watermark = 100
    return opened


def held(log: Any, offset: int, end: int) -> list[int]:
    """The base offsets of the batches in the pieces."""
    found: list[int] = []
    for piece in whereabouts(log, offset, end).pieces:
        file = log.files.open(piece.path)
        assert file.identity() == (piece.device, piece.inode)
        found += [view.base_offset for view in batches(file.read_at(piece.position, piece.size))]
        assert len(file.read_at(piece.position, piece.size)) == piece.size
    return found


def test_the_pieces_hold_the_batches_of_the_range(log: Any) -> None:
    for offset in range(0, 100, 7):
        for end in range(offset + 1, 101, 9):
            first = offset - offset % 10
            assert held(log, offset, end) == list(range(first, end, 10)), (offset, end)
            assert whereabouts(log, offset, end).offset_end == end


def test_nothing_is_told_beyond_the_high_watermark(log: Any) -> None:
    log.high_watermark = 40
    assert held(log, 5, 100) == [0, 10, 20, 30] and whereabouts(log, 5, 100).offset_end == 40
    assert whereabouts(log, 40, 100) == module.Whereabouts((), 40)


def test_a_range_in_more_segments_than_one_answer_names_is_told_in_parts(
    log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PIECES_MAX", 2)
    assert held(log, 5, 95) == [0, 10, 20, 30, 40, 50] and whereabouts(log, 5, 95).offset_end == 60
    assert held(log, 60, 95) == [60, 70, 80, 90] and whereabouts(log, 60, 95).offset_end == 95


def test_files_that_no_other_process_can_open_are_told_of_nobody(log: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(log.segments.active.file), "identity", lambda file: None)
    assert whereabouts(log, 5, 95) == module.Whereabouts((), 5)
