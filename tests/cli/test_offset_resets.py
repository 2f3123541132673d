"""Where a group shall go on: the rules of ``raylog groups reset-offsets``, without a cluster."""

from __future__ import annotations

from datetime import timedelta

import pytest

from raylog.cli.offset_resets import (
    CommittedPlace,
    Rule,
    export,
    new_offset,
    parse_duration,
    parse_file,
    parse_moment,
    parse_scope,
)
from raylog.errors import ConfigError
from raylog.types import TopicPartition

KEY = TopicPartition("t", 0)


@pytest.mark.parametrize(
    ("rule", "offset"),
    [
        (Rule("earliest"), 10),
        (Rule("latest"), 100),
        (Rule("current"), 50),
        (Rule("shift", 20), 70),
        (Rule("shift", -100), 10),
        (Rule("offset", 500), 100),
        (Rule("offset", 3), 10),
        (Rule("time", 7), 60),
        (Rule("file", file={KEY: 33}), 33),
        (Rule("file", file={KEY: 333}), 100),
    ],
)
def test_tv_32_a_group_at_50_of_a_log_from_10_to_100(rule: Rule, offset: int) -> None:
    assert new_offset(rule, KEY, CommittedPlace(earliest=10, latest=100, committed=50, at_time=60)) == offset


def test_what_has_no_committed_offset_goes_to_the_end_and_cannot_be_shifted() -> None:
    place = CommittedPlace(earliest=10, latest=100)
    assert new_offset(Rule("current"), KEY, place) == 100
    with pytest.raises(ConfigError, match="cannot shift the offset of t-0"):
        new_offset(Rule("shift", 1), KEY, place)


def test_a_time_after_the_last_record_means_the_end() -> None:
    assert new_offset(Rule("time", 7), KEY, CommittedPlace(earliest=10, latest=100, committed=50)) == 100


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1970-01-01T00:00:01.500", 1_500),
        ("1970-01-01T00:00:01.500Z", 1_500),
        ("1970-01-01T01:00:00.000+01:00", 0),
        ("2024-02-29T12:00:00.000", 1_709_208_000_000),
    ],
)
def test_dates_are_utc_unless_they_say_otherwise(text: str, ms: int) -> None:
    assert parse_moment(text) == ms


@pytest.mark.parametrize("text", ["yesterday", "2024-02-30T00:00:00.000", "2024-02-28", ""])
def test_what_is_no_date_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is no date"):
        parse_moment(text)


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("P1D", timedelta(days=1)),
        ("PT2H", timedelta(hours=2)),
        ("P1DT2H3M4.5S", timedelta(days=1, hours=2, minutes=3, seconds=4.5)),
        ("PT30M", timedelta(minutes=30)),
    ],
)
def test_durations_are_days_hours_minutes_and_seconds(text: str, duration: timedelta) -> None:
    assert parse_duration(text) == duration


@pytest.mark.parametrize("text", ["P", "PT", "P1DT", "1D", "P1H", ""])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is no duration"):
        parse_duration(text)


def test_topics_may_name_their_partitions() -> None:
    assert parse_scope(["a", "b:2,0,2"]) == {"a": None, "b": (0, 2)}
    for text in ("", ":1", "a:", "a:x", "a:1,"):
        with pytest.raises(ConfigError, match="give TOPIC or"):
            parse_scope([text])


def test_a_file_is_read_as_it_was_written() -> None:
    plan = {TopicPartition("b", 1): 7, TopicPartition("a", 0): 3}
    lines = export(plan)
    assert lines == ["a,0,3", "b,1,7"]
    assert parse_file("\n".join(lines) + "\n\n") == plan


@pytest.mark.parametrize("text", ["", "a,0", "a,0,x", "a,0,1,2"])
def test_a_file_without_offsets_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_file(text)
