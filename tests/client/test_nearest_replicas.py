"""Which replica of a partition a consumer reads."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from raylog.client.config import ConsumerConfig
from raylog.client.consumer.nearest_replicas import (
    AVOID_S,
    RETRY_S,
    REVIEW_S,
    NearestReplicas,
    NearReplica,
    is_this_machine,
)
from raylog.client.links.metadata import PartitionLeader, PartitionView
from raylog.types import Endpoint, TopicPartition

KEY = TopicPartition("t", 0)
HERE = "10.0.0.9"


class World:
    """Three nodes on machines 10.0.0.0–2, in racks a, b and b; node 0 leads, all are in sync."""

    def __init__(self, here: int | None = None, **options: Any) -> None:
        self.now = 100.0
        self.nodes = {node: Endpoint(f"10.0.0.{node}", 7000) for node in range(3)}
        self.racks: dict[int, str | None] = {0: "a", 1: "b", 2: "b"}
        self.leader = PartitionLeader(0, 5, self.nodes[0])
        self.part = PartitionView(self.leader, (0, 1, 2), (0, 1, 2), (), 5)
        self.topic = SimpleNamespace(partitions=[self.part], fetched_at=self.now)
        metadata: Any = SimpleNamespace(nodes=self.nodes, racks=self.racks, cached=lambda topic: self.topic)
        config = ConsumerConfig.parse(options)
        self.nearest = NearestReplicas(config, metadata, lambda: self.now, lambda host: host == f"10.0.0.{here}")

    def read(self) -> int:
        """The node that is read."""
        found = self.nearest.follower(KEY, self.leader)
        assert found is None or found == NearReplica(found.node, self.nodes[found.node])
        return self.leader.node if found is None else found.node

    def described(self) -> None:
        """The topic was described anew."""
        self.part.isr_epoch = self.leader.epoch
        self.topic.fetched_at = self.now
        self.nearest.reviewed(["t"])


@pytest.mark.parametrize(
    "here, rack, node",
    [
        (None, "", 0),
        (0, "", 0),
        (2, "", 2),
        (None, "a", 0),
        (None, "b", 1),
        (2, "b", 2),
        (2, "a", 2),
        (0, "b", 0),
        (None, "nowhere", 0),
    ],
)
def test_this_machine_comes_first_then_the_rack_and_the_leader_before_its_equals(
    here: int | None, rack: str, node: int
) -> None:
    assert World(here, client_rack=rack).read() == node


def test_no_follower_is_read_by_who_wants_leaders() -> None:
    assert World(2, client_rack="b", fetch_from="leader").read() == 0


def test_only_live_members_of_the_isr_are_read() -> None:
    world = World(None, client_rack="b")
    world.part.isr = (0, 2)
    assert world.read() == 2
    world.part.offline = (2,)
    assert world.read() == 0


def test_an_isr_of_another_leader_epoch_counts_for_nothing_until_the_topic_is_described_anew() -> None:
    world = World(1)
    assert world.read() == 1 and world.nearest.to_review() == []
    world.leader = PartitionLeader(2, 6, world.nodes[2])
    assert world.read() == 2
    assert world.nearest.to_review() == ["t"]
    assert world.nearest.to_review() == [], "once a second"
    world.now += 1
    assert world.nearest.to_review() == ["t"]
    world.described()
    assert world.read() == 1 and world.nearest.to_review() == []


def test_a_description_is_renewed_in_time_and_not_trusted_for_ever() -> None:
    world = World(1)
    assert world.read() == 1
    world.now += REVIEW_S
    assert world.read() == 1 and world.nearest.to_review() == ["t"]
    world.now += REVIEW_S + 1
    assert world.read() == 0, "nobody has confirmed it for too long"
    world.described()
    assert world.read() == 1


def test_a_replica_that_is_out_of_sync_is_looked_at_again() -> None:
    world = World(1)
    world.part.isr = (0, 2)
    assert world.read() == 0 and world.nearest.to_review() == []
    world.now += REVIEW_S
    assert world.nearest.to_review() == ["t"]
    world.part.isr = (0, 1)
    world.described()
    assert world.read() == 1


def test_topics_whose_leaders_are_read_are_not_asked_about() -> None:
    world = World(None)
    world.read()
    world.now += 10 * REVIEW_S
    world.leader = PartitionLeader(0, 6, world.nodes[0])
    world.read()
    assert world.nearest.to_review() == []


def test_who_gave_nothing_is_avoided_for_a_while() -> None:
    world = World(None, client_rack="b")
    world.nearest.avoid(KEY, 1)
    assert world.read() == 2, "the next nearest"
    world.nearest.avoid(KEY, 2, seconds=RETRY_S)
    assert world.read() == 0
    assert world.nearest.to_review() == ["t"]
    world.now += RETRY_S
    assert world.read() == 2
    world.now += AVOID_S
    assert world.read() == 1


def test_addresses_of_this_machine_are_known() -> None:
    assert is_this_machine("127.0.0.1") and is_this_machine("::1")
    assert not is_this_machine("192.0.2.1")
    assert not is_this_machine("localhost")
