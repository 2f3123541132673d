"""What users may write for the beginning and the end of a read."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from raylog.errors import ConfigError
from raylog.ranges.places import EARLIEST, LATEST, AtTime, bound
from raylog.types import TopicPartition

pytestmark = pytest.mark.spark

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
NOON_MS = 1_767_355_200_000


def test_by_default_everything_is_read() -> None:
    assert bound("starting").of([T0, T1]) == {T0: EARLIEST, T1: EARLIEST}
    assert bound("ending").of([T0]) == {T0: LATEST}


@pytest.mark.parametrize(
    "offsets",
    [
        {"t": {0: 23, 1: "earliest"}},
        {T0: 23, ("t", 1): -2},
        '{"t":{"0":23,"1":-2}}',
    ],
)
def test_offsets_per_partition_are_given_as_in_spark_or_by_partition(offsets: Any) -> None:
    assert bound("starting", offsets=offsets).of([T0, T1]) == {T0: 23, T1: EARLIEST}


def test_a_moment_beats_the_offsets() -> None:
    both = bound("starting", offsets={"t": {0: 23}}, timestamp=NOON)
    assert both.of([T0, T1]) == {T0: AtTime(NOON_MS), T1: AtTime(NOON_MS)}
    each = bound("ending", offsets="latest", offsets_by_timestamp='{"t":{"0":1000}}')
    assert each.of([T0]) == {T0: AtTime(1000)}


def test_a_moment_stands_among_offsets() -> None:
    assert bound("ending", offsets={"t": {0: NOON}}).of([T0]) == {T0: AtTime(NOON_MS)}


def test_a_partition_left_out_or_one_too_many_is_named() -> None:
    given = bound("starting", offsets={"t": {0: 23}})
    with pytest.raises(ConfigError, match=r"starting_offsets leaves out t-1"):
        given.of([T0, T1])
    with pytest.raises(ConfigError, match=r"starting_offsets names t-0, which is not read"):
        bound("starting", offsets={"t": {0: 1, 1: 1}}).of([T1])


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("starting", {"offsets": "latest"}, "is empty"),
        ("ending", {"offsets": "earliest"}, "is empty"),
        ("starting", {"offsets": {"t": {0: -1}}}, "is latest"),
        ("starting", {"offsets": "newest"}, "give 'earliest'"),
        ("starting", {"offsets": 5}, "give 'earliest'"),
        ("starting", {"offsets": {"t": 5}}, "for each partition"),
        ("starting", {"offsets": {"t": {0: -3}}}, "give an offset"),
        ("starting", {"offsets": {"t": {0: True}}}, "give an offset"),
        ("starting", {"offsets": {"t": {"x": 5}}}, "is not a topic and partition"),
        ("starting", {"timestamp": datetime(2026, 1, 2)}, "no time zone"),
        ("starting", {"timestamp": -5}, "milliseconds since 1970"),
        ("starting", {"timestamp": 1 << 63}, "milliseconds since 1970"),
        ("starting", {"timestamp": "yesterday"}, "milliseconds since 1970"),
    ],
)
def test_what_is_no_place_is_refused(kind: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        bound(kind, **options)
