"""What followers have not fetched yet is read from memory, byte for byte what the file holds."""

from __future__ import annotations

from typing import Any

import pytest

from raylog.log import recent_appends
from raylog.log.recent_appends import RecentAppends
from raylog.records.codec import encode, encode_values


def followed(machine: Any, *values: bytes, batches: int = 1) -> None:
    batch = bytes(encode_values(list(values), timestamp_ms=1))
    machine.log.append_as_leader(batch * batches, leader_epoch=0, wall_ms=1, is_followed=True)


def in_file(machine: Any) -> bytes:
    return b"".join(segment.file.read_at(0, segment.size) for segment in machine.log.segments)


@pytest.fixture
def log(machine: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A log of which nothing can be read but what is in memory."""
    opened = machine.open()

    def refused(*_: Any, **__: Any) -> None:
        raise AssertionError("the file was read")

    monkeypatch.setattr(type(opened.segments.active), "read", refused)
    return opened


def test_followers_get_the_bytes_of_the_file_without_reading_it(machine: Any, log: Any) -> None:
    followed(machine, b"a", b"b")
    followed(machine, b"c")
    found = log.read(0, 1 << 20)
    assert (found.base_offset, found.next_offset) == (0, 3)
    assert found.records == in_file(machine)
    assert log.read(2, 1 << 20).records == in_file(machine)[-len(bytes(log.read(2, 1).records)) :]


def test_as_many_appends_as_fit_and_always_the_first_batch(machine: Any, log: Any) -> None:
    for _ in range(3):
        followed(machine, b"x" * 10)
    size = len(in_file(machine)) // 3
    assert [log.read(0, limit).next_offset for limit in (1, size, 2 * size, 3 * size - 1, 3 * size)] == [1, 1, 2, 2, 3]
    assert log.read(0, 1 << 20, end_offset=2).next_offset == 2


def test_what_is_not_whole_appends_is_left_to_the_file(machine: Any, log: Any) -> None:
    followed(machine, b"a", b"b", batches=2)
    for offset, limit, end, at_least_one in ((1, 1 << 20, 4, True), (0, 10, 4, True), (0, 1 << 20, 3, True)):
        with pytest.raises(AssertionError, match="the file was read"):
            log.read(offset, limit, end_offset=end, at_least_one=at_least_one)


def test_what_everybody_has_is_forgotten(machine: Any, log: Any) -> None:
    followed(machine, b"a")
    followed(machine, b"b")
    log.high_watermark = 1
    log.checkpoint()
    assert log.read(1, 1 << 20).next_offset == 2
    with pytest.raises(AssertionError, match="the file was read"):
        log.read(0, 1 << 20)


def test_a_truncation_forgets_everything(machine: Any) -> None:
    machine.open()
    followed(machine, b"a")
    followed(machine, b"old")
    machine.log.truncate_to(1)
    machine.log.append_as_leader(encode([(1, None, b"new", ())]), leader_epoch=1, wall_ms=1)
    assert machine.log.read(1, 1 << 20).records == in_file(machine)[-len(bytes(machine.log.read(1, 1).records)) :]


def test_memory_is_bounded_and_the_newest_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent_appends, "BYTES_MAX", 100)
    recent = RecentAppends()
    for number in range(10):
        recent.add(number, number + 1, bytes(40), is_one_batch=True)
        recent.check(number + 1)
    assert recent.size_bytes == 80
    assert (
        recent.read(9, 1000, 10, at_least_one=True) is not None and recent.read(7, 1000, 10, at_least_one=True) is None
    )
