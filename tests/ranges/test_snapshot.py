"""Which offsets a read has, given what is in the logs; what is not there any more is told, never left out in silence."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylog.errors import ConfigError, OffsetOutOfRangeError
from raylog.ranges.places import bound
from raylog.ranges.snapshot import NONE_SO_LATE, LogEnds, resolve
from raylog.types import TopicPartition

pytestmark = pytest.mark.spark

T0 = TopicPartition("t", 0)
LOG = LogEnds(earliest=20, latest=30, at_times={1000: 24, 2000: 28, 9000: NONE_SO_LATE})


def found(
    start: Any = "earliest", end: Any = "latest", *, log: LogEnds = LOG, **options: Any
) -> tuple[tuple[int, int], list[str]]:
    starting = bound("starting", offsets=start if start == "earliest" else {"t": {0: start}})
    ending = bound("ending", offsets=end if end == "latest" else {"t": {0: end}})
    ranges, losses = resolve({T0: log}, starting, ending, **options)
    return ranges[T0], losses


def moment(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def test_the_snapshot_is_what_the_log_holds() -> None:
    assert found() == ((20, 30), [])
    assert found(22, 25) == ((22, 25), [])
    assert found(30) == ((30, 30), [])


def test_moments_are_offsets_and_an_end_after_the_last_record_is_the_end() -> None:
    assert found(moment(1000), moment(2000)) == ((24, 28), [])
    assert found("earliest", moment(9000)) == ((20, 30), [])


def test_a_start_after_the_last_record_is_an_error_or_the_end() -> None:
    with pytest.raises(ConfigError, match="no record at or after 9000 ms"):
        found(moment(9000))
    assert found(moment(9000), strategy="latest") == ((30, 30), [])
    with pytest.raises(ConfigError, match="strategy='newest': error or latest"):
        found(moment(9000), strategy="newest")


@pytest.mark.parametrize(
    ("start", "end", "left", "message"),
    [
        (5, "latest", (20, 30), "offsets 5 to 19 of t-0 are deleted: its log starts at 20"),
        (5, 10, (20, 20), "offsets 5 to 9 of t-0 are deleted"),
        ("earliest", 10, (20, 20), "offsets below 10 of t-0 are deleted"),
        (22, 40, (22, 30), "t-0 ends at 30, before offset 40"),
        (35, "latest", (30, 30), "t-0 ends at 30, before offset 35"),
        (35, 40, (30, 30), "t-0 ends at 30, before offset 40"),
    ],
)
def test_what_is_not_there_is_an_error_or_a_reported_loss(
    start: Any, end: Any, left: tuple[int, int], message: str
) -> None:
    with pytest.raises(OffsetOutOfRangeError, match=message):
        found(start, end)
    offsets, losses = found(start, end, fail_on_data_loss=False)
    assert offsets == left
    assert len(losses) == 1 and message in losses[0]


def test_a_read_that_starts_after_it_ends_is_refused() -> None:
    with pytest.raises(ConfigError, match="the start is after the end"):
        found(25, 22)


@given(st.integers(0, 60), st.integers(0, 60), st.integers(0, 60), st.integers(0, 60))
def test_without_a_loss_exactly_what_was_asked_for_is_read(start: int, end: int, earliest: int, length: int) -> None:
    log = LogEnds(earliest, earliest + length, {})
    if start > end:
        with pytest.raises(ConfigError):
            found(start, end, log=log, fail_on_data_loss=False)
        return
    offsets, losses = found(start, end, log=log, fail_on_data_loss=False)
    assert set(range(*offsets)) == set(range(start, end)) & set(range(log.earliest, log.latest))
    assert log.earliest <= offsets[0] <= offsets[1] <= log.latest
    if set(range(start, end)) - set(range(*offsets)):
        assert losses
