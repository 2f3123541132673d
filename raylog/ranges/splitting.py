"""Ranges of offsets, and how they are split into tasks.

Pure arithmetic. For all options, each offset of the input is in exactly one part, no part is empty,
the parts of a partition are consecutive, and the parts of a range differ in length by at most one
offset. Offsets are counted, not records: in a compacted topic a part may hold fewer records than
offsets, or none.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from raylog.errors import ConfigError
from raylog.types import TopicPartition


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """``start <= offset < end`` of one partition. ``hosts``: hosts from which it is near to read,
    best first.
    """

    topic: str
    partition: int
    start: int
    end: int
    hosts: tuple[str, ...] = ()

    @property
    def key(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    def __len__(self) -> int:
        return self.end - self.start

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} [{self.start}, {self.end})"


def split(
    ranges: Iterable[OffsetRange],
    *,
    parts_min: int | None = None,
    records_max: int | None = None,
    bytes_max: int | None = None,
    bytes_per_offset: Mapping[TopicPartition, float] | None = None,
) -> list[OffsetRange]:
    """Split the ranges: no part above ``records_max`` offsets or about ``bytes_max`` bytes, at
    least ``parts_min`` parts.

    There are fewer than ``parts_min`` only if there are fewer offsets. Empty ranges yield no part.
    """
    for name, value in (
        ("min_partitions", parts_min),
        ("max_records_per_partition", records_max),
        ("bytes_max", bytes_max),
    ):
        if value is not None and value < 1:
            raise ConfigError(f"{name}={value}: at least 1")
    whole = [each for each in ranges if len(each) > 0]
    counts = [_count(each, records_max, bytes_max, (bytes_per_offset or {}).get(each.key)) for each in whole]
    if parts_min is not None:
        _raise(whole, counts, parts_min)
    return [part for each, count in zip(whole, counts, strict=True) for part in _cut(each, count)]


def _count(each: OffsetRange, records_max: int | None, bytes_max: int | None, bytes_per_offset: float | None) -> int:
    """Return how many parts the limits require, at most one for each offset."""
    count = 1
    if records_max is not None:
        count = -(-len(each) // records_max)
    if bytes_max is not None and bytes_per_offset:
        count = max(count, -int(-len(each) * bytes_per_offset // bytes_max))
    return min(count, len(each))


def _raise(whole: list[OffsetRange], counts: list[int], parts_min: int) -> None:
    """Add parts, each where the parts are longest, until there are enough or all are of one offset."""
    longest = [(-len(each) / count, index) for index, (each, count) in enumerate(zip(whole, counts, strict=True))]
    heapq.heapify(longest)
    missing = parts_min - sum(counts)
    while missing > 0 and longest:
        _, index = heapq.heappop(longest)
        if counts[index] == len(whole[index]):
            continue
        counts[index] += 1
        missing -= 1
        heapq.heappush(longest, (-len(whole[index]) / counts[index], index))


def _cut(each: OffsetRange, count: int) -> Iterable[OffsetRange]:
    bounds = [each.start + len(each) * number // count for number in range(count + 1)]
    return (replace(each, start=start, end=end) for start, end in pairwise(bounds))
