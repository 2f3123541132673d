"""How ranges of offsets become tasks: what holds for every split."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylog.errors import ConfigError
from raylog.ranges.splitting import OffsetRange, split
from raylog.types import TopicPartition

pytestmark = pytest.mark.spark

LENGTHS = st.lists(st.one_of(st.integers(0, 40), st.integers(0, 10**12)), max_size=8)
LIMITS = st.one_of(st.none(), st.integers(1, 60))


def ranges(lengths: list[int]) -> list[OffsetRange]:
    return [OffsetRange("t", number, 7 * number, 7 * number + length, ("a",)) for number, length in enumerate(lengths)]


def offsets(parts: list[OffsetRange]) -> list[tuple[int, int]]:
    return [(part.partition, offset) for part in parts for offset in range(part.start, part.end)]


@given(st.lists(st.integers(0, 40), max_size=8), LIMITS, LIMITS, LIMITS)
def test_every_offset_is_in_exactly_one_part_in_order(
    lengths: list[int], parts_min: int | None, records_max: int | None, bytes_max: int | None
) -> None:
    whole = ranges(lengths)
    density = {each.key: 3.7 for each in whole}
    parts = split(whole, parts_min=parts_min, records_max=records_max, bytes_max=bytes_max, bytes_per_offset=density)
    assert offsets(parts) == offsets(whole)


@given(LENGTHS, LIMITS, st.one_of(st.none(), st.integers(10**10, 10**13)))
def test_no_part_is_empty_and_the_limits_hold(
    lengths: list[int], parts_min: int | None, records_max: int | None
) -> None:
    whole = ranges(lengths)
    parts = split(whole, parts_min=parts_min, records_max=records_max)
    assert all(len(part) > 0 and part.hosts == ("a",) for part in parts)
    assert records_max is None or all(len(part) <= records_max for part in parts)
    assert len(parts) >= min(parts_min or 0, sum(lengths))
    for earlier, later in pairwise(parts):
        assert earlier.partition < later.partition or earlier.end == later.start


@given(LENGTHS, LIMITS)
def test_parts_of_one_range_are_of_one_length_but_for_one_offset(lengths: list[int], parts_min: int | None) -> None:
    whole = ranges(lengths)
    parts = split(whole, parts_min=parts_min)
    for each in whole:
        found = {len(part) for part in parts if part.partition == each.partition}
        assert not found or max(found) - min(found) <= 1


def test_a_range_is_split_by_its_offsets() -> None:
    assert [len(part) for part in split(ranges([10, 3]), records_max=3)] == [2, 3, 2, 3, 3]
    assert [len(part) for part in split(ranges([10]), records_max=10)] == [10]


def test_more_parts_are_made_where_parts_are_longest() -> None:
    parts = split(ranges([10, 1000]), parts_min=6)
    assert [part.partition for part in parts] == [0, 1, 1, 1, 1, 1]


def test_a_range_is_split_by_its_bytes() -> None:
    whole = ranges([1000])
    parts = split(whole, bytes_max=1024, bytes_per_offset={TopicPartition("t", 0): 10.24})
    assert [len(part) for part in parts] == [100] * 10
    assert split(whole, bytes_max=1024) == whole  # nobody knows the size


def test_no_more_parts_than_offsets() -> None:
    assert len(split(ranges([3, 0, 2]), parts_min=50)) == 5
    assert [len(part) for part in split(ranges([3]), bytes_max=1, bytes_per_offset={TopicPartition("t", 0): 9.0})] == [
        1
    ] * 3


@pytest.mark.parametrize("option", ["parts_min", "records_max", "bytes_max"])
def test_a_limit_below_one_is_refused(option: str) -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        split(ranges([3]), **{option: 0})  # type: ignore[arg-type]
