"""What a member wants and says of itself, byte for byte as Kafka's Java client writes it."""

from __future__ import annotations

import re
from typing import Any

import pytest

from raylog.client.config import ConsumerConfig
from raylog.client.groups.subscriptions import (
    Remembered,
    assignors_of,
    is_cooperative,
    plan,
    protocols,
    subscriptions_of,
    wanted,
)
from raylog.errors import ConfigError
from raylog.groups.assignors import ASSIGNORS
from raylog.groups.consumer_protocol import decode_assignment
from raylog.groups.requests import JoinedMember
from raylog.types import TopicPartition

EXISTING = {"events": False, "events.old": False, "orders": False, "__consumer_offsets": True}


def hexed(text: str) -> bytes:
    return bytes.fromhex(text.replace(" ", ""))


@pytest.mark.parametrize(
    ("given", "topics"),
    [
        ("events", ("events",)),
        (["orders", "events", "orders"], ("events", "orders")),
        (re.compile("events.*"), ("events", "events.old")),
        (re.compile("event"), ()),
        ("^ev", ("events", "events.old")),
        (["^ev", "orders"], ("events", "events.old", "orders")),
        ("^events$", ("events",)),
        (re.compile(".*"), ("events", "events.old", "orders")),
        ("missing", ("missing",)),
    ],
)
def test_a_subscription_means_these_topics(given: Any, topics: tuple[str, ...]) -> None:
    assert wanted(given).topics(EXISTING, excludes_internal=True) == topics


def test_a_pattern_reaches_internal_topics_only_where_they_are_not_excluded() -> None:
    assert "__consumer_offsets" in wanted("^.*").topics(EXISTING, excludes_internal=False)


@pytest.mark.parametrize("given", [[""], [3], "^("])
def test_what_names_no_topic_is_refused(given: Any) -> None:
    with pytest.raises(ConfigError):
        wanted(given)


def test_metadata_of_a_newcomer_are_kafkas_bytes() -> None:
    said = protocols(list(ASSIGNORS.values()), ["b", "a"], (), -1, Remembered())
    plain = "0003 00000002 0001 61 0001 62 ffffffff 00000000 ffffffff ffff"
    cooperative = "0003 00000002 0001 61 0001 62 00000004 ffffffff 00000000 ffffffff ffff"
    assert {each.name: each.metadata for each in said} == {
        "range": hexed(plain),
        "roundrobin": hexed(plain),
        "sticky": hexed(plain),
        "cooperative-sticky": hexed(cooperative),
    }


def test_metadata_of_a_cooperative_member_say_what_it_owns_and_since_when() -> None:
    owned = (TopicPartition("a", 0), TopicPartition("a", 2))
    (said,) = protocols([ASSIGNORS["cooperative-sticky"]], ["a"], owned, 7, Remembered(owned, 7))
    assert said.metadata == hexed(
        "0003 00000001 0001 61 00000004 00000007 00000001 0001 61 00000002 00000000 00000002 00000007 ffff"
    )


def test_a_plan_goes_to_each_member_by_its_id() -> None:
    (said,) = protocols([ASSIGNORS["range"]], ["a"], (), -1, Remembered())
    members = subscriptions_of([JoinedMember("x", None, said.metadata), JoinedMember("y", None, said.metadata)])
    shares = dict(plan(ASSIGNORS["range"], members, {"a": 3}))
    assert [key.partition for key in decode_assignment(shares["x"]).partitions] == [0, 1]
    assert [key.partition for key in decode_assignment(shares["y"]).partitions] == [2]


@pytest.mark.parametrize(
    ("value", "names", "cooperative"),
    [
        ("range", ["range"], False),
        (["range", "cooperative-sticky"], ["range", "cooperative-sticky"], False),
        ("org.apache.kafka.clients.consumer.CooperativeStickyAssignor", ["cooperative-sticky"], True),
        ("RoundRobinAssignor, StickyAssignor", ["roundrobin", "sticky"], False),
        (ASSIGNORS["cooperative-sticky"], ["cooperative-sticky"], True),
    ],
)
def test_strategies_go_by_kafkas_names(value: Any, names: list[str], cooperative: bool) -> None:
    assignors = assignors_of(value)
    assert [each.name for each in assignors] == names
    assert is_cooperative(assignors) is cooperative


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"group.id": "g", "partition.assignment.strategy": "fair"}, "unknown assignor 'fair'"),
        ({"group.id": "g", "partition.assignment.strategy": "range,range"}, "named twice"),
        ({"group.id": ""}, "group.id is empty"),
        ({"group.id": "g", "group.instance.id": ""}, "group.instance.id is empty"),
        ({"enable.auto.commit": True}, "needs a group.id"),
        ({"session.timeout.ms": 10_000}, "session.timeout.ms needs a group.id"),
        ({"group.id": "g", "heartbeat.interval.ms": 45_000}, "must be below session.timeout.ms=45000"),
        ({"group.id": "g", "group.protocol": "consumer"}, "group.protocol"),
    ],
)
def test_options_of_groups_are_honoured_or_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        ConsumerConfig.parse(options)


def test_commits_are_automatic_in_a_group_unless_said_otherwise() -> None:
    assert ConsumerConfig.parse({"group.id": "g"}).auto_commits
    assert not ConsumerConfig.parse({"group.id": "g", "enable.auto.commit": "false"}).auto_commits
    assert not ConsumerConfig.parse({}).auto_commits
