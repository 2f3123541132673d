"""``raylog events``: what has happened to a cluster, from whichever controller answers, with when and why."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from operating import Operator

from raylog.cluster import Cluster
from raylog.testing.in_process import InProcessCluster, cluster
from raylog.types import ClusterEvent

pytestmark = pytest.mark.core

Raylog = Callable[..., tuple[int, Any]]


def holder(operator: Operator, topic: str) -> int:
    return operator.partition(topic).leader_node


def test_the_death_of_a_leader_is_told_with_its_reason_and_what_followed(operator: Operator, raylog: Raylog) -> None:
    topic = operator.new_topic((1, 2), **{"replicas.per.actor": "1"})
    began_ms = time.time() * 1_000 - 1_000
    node = holder(operator, topic)
    operator.running.crash(node)
    operator.until(lambda: operator.partition(topic).leader == 2)
    operator.until(lambda: len(operator.partition(topic).isr) == 2)
    code, events = raylog("events", "--last", "10000", "--json")
    assert code == 0
    of_topic = [(each["kind"], each["text"]) for each in events if each["subject"] == f"{topic}-0"]
    assert ("leader-elected", "broker 2 leads, epoch 1, after broker 1") in of_topic
    assert ("isr-shrunk", "without broker 1: in sync are [2]") in of_topic
    assert ("isr-expanded", "with broker 1: in sync are [2, 1]") in of_topic
    (death,) = [
        each for each in events if each["kind"] == "actor-died" and each["subject"] == f"actor {node} of broker 1"
    ]
    assert death["text"] == "its process is gone: connections to it are refused"
    assert began_ms < death["time_ms"] < time.time() * 1_000 + 1_000
    positions = [(each["index"], each["number"]) for each in events]
    assert positions == sorted(set(positions))


def test_events_are_chosen_by_kind_and_subject_and_shown_one_a_line(operator: Operator, raylog: Raylog) -> None:
    topic = operator.new_topic((3,))
    operator.admin.delete_topics([topic])
    code, shown = raylog("events", "--about", topic, "--kind", "topic-*")
    assert code == 0
    assert [line.split("  ")[1] for line in shown.splitlines()] == ["topic-created", "topic-deleted"]
    assert raylog("events", "--about", topic, "--kind", "topic-*", "--last", "1")[1].count("\n") == 1
    assert raylog("events", "--about", "no such thing", "--json") == (0, [])


@pytest.fixture(scope="module")
def three() -> Iterator[InProcessCluster]:
    with cluster(brokers=3, controllers=3) as made:
        yield made


def test_every_controller_tells_the_same_and_a_reader_goes_on_behind_what_it_has(three: InProcessCluster) -> None:
    made = Operator(three)
    topic = made.new_topic((1, 2, 0))
    view = Cluster(three.address)
    events, _ = view.events()
    position = events[-1].position
    former = three.active
    three.crash_controller(former)
    other = made.new_topic((2, 1))
    found: list[ClusterEvent] = []

    def has_come() -> bool:
        found[:] = view.events(position)[0]
        return any(each.subject == other for each in found)

    made.until(has_come)
    assert all(each.position > position for each in found)
    assert any(each.kind == "controller-elected" and f"broker {former}'s" not in each.text for each in found)
    again = [each for each in view.events(count=10_000)[0] if each.subject == topic]
    assert [(each.kind, each.at_ms > 0) for each in again] == [("topic-created", True)]
    made.admin.close()
