"""A disk that its Broker reports as failed: what is on it moves, what is on the broker's other disk does not."""

from __future__ import annotations

import uuid

import pytest

from raylog.control.session import BrokerDisks, DisksChecked, FailedDisk
from raylog.metadata.events import ActorStartFailed
from raylog.metadata.requests import (
    AlterReassignments,
    ClusterStatus,
    CreateTopics,
    PartitionTarget,
    RegisterDisk,
    RequestedTopic,
)
from raylog.types import BROKER_SLOT, TopicIdPartition, node_id

SECOND = {broker: uuid.UUID(int=0xE000 + broker) for broker in range(3)}


@pytest.fixture
def two_disks(new_world):
    """Three brokers of two disks each, their Brokers connected; partitions 0 and 1 are led by broker 0 from its two disks."""
    world = new_world(3)
    for broker, directory_id in SECOND.items():
        cluster = world.image.cluster_id
        assert world.ask(RegisterDisk(cluster, broker, directory_id, f"/disks/{broker}-1")).error == 0
    world.brokers = [world.launch(node_id(broker, BROKER_SLOT)) for broker in range(3)]
    topic_id = world.create("t", (0, 1, 2), (0, 1, 2), min_insync_replicas=2)
    world.ids = [TopicIdPartition(topic_id, partition) for partition in range(2)]
    return world


def disk_of(world, id, broker):
    return world.state(id).slot(broker).directory_id


def fail(world, broker, *directory_ids):
    world.brokers[broker].say(DisksChecked(tuple(FailedDisk(each, "input/output error") for each in directory_ids)))
    world.run_later()


def test_the_replicas_of_a_topic_are_spread_over_a_broker_s_disks(two_disks):
    for broker in range(3):
        assert len({disk_of(two_disks, id, broker) for id in two_disks.ids}) == 2


def test_a_broker_is_told_its_disks_and_of_each_that_comes(two_disks):
    frames = [frame for frame in two_disks.brokers[0].heard if isinstance(frame, BrokerDisks)]
    assert {each.directory_id for each in frames[-1].disks} == {disk_of(two_disks, id, 0) for id in two_disks.ids}
    third = uuid.UUID(int=0xF000)
    two_disks.ask(RegisterDisk(two_disks.image.cluster_id, 0, third, "/disks/0-2"))
    assert third in {each.directory_id for each in two_disks.brokers[0].heard[-1].disks}


def test_leaders_on_a_failed_disk_move_and_those_on_the_other_stay(two_disks):
    lost, kept = two_disks.ids
    fail(two_disks, 0, disk_of(two_disks, lost, 0))
    assert two_disks.state(lost).leader == 1 and two_disks.state(lost).isr == (1, 2)
    assert two_disks.state(kept).leader == 0 and two_disks.state(kept).isr == (0, 1, 2)


def test_a_replica_on_a_failed_disk_does_not_come_back_into_the_isr_until_the_disk_works(two_disks):
    lost = two_disks.ids[0]
    fail(two_disks, 0, disk_of(two_disks, lost, 0))
    leader = two_disks.leader(lost)
    assert leader.alter(lost, 0, 1, 2) != 0
    fail(two_disks, 0)
    assert leader.alter(lost, 0, 1, 2) == 0


def test_the_last_replica_on_a_failed_disk_waits_without_a_leader_and_leads_again(two_disks):
    topic_id = two_disks.create("alone", (1,))
    id = TopicIdPartition(topic_id, 0)
    fail(two_disks, 1, disk_of(two_disks, id, 1))
    assert two_disks.state(id).leader == -1 and two_disks.state(id).isr == (1,)
    fail(two_disks, 1)
    assert two_disks.state(id).leader == 1


def test_nothing_new_is_put_on_a_failed_disk(two_disks):
    failed = disk_of(two_disks, two_disks.ids[0], 0)
    fail(two_disks, 0, failed)
    topic_id = two_disks.create("by-hand", (0, 1), (0, 1), (0, 1))
    two_disks.ask(CreateTopics((RequestedTopic("planned", 6, 3),)))
    planned = two_disks.image.topic_named("planned").topic_id
    for id in [TopicIdPartition(topic_id, n) for n in range(3)] + [TopicIdPartition(planned, n) for n in range(6)]:
        assert disk_of(two_disks, id, 0) != failed
    moved = TopicIdPartition(two_disks.create("moved", (1, 2)), 0)
    two_disks.ask(AlterReassignments((PartitionTarget("moved", 0, (0, 2)),)))
    assert disk_of(two_disks, moved, 0) != failed


def test_the_status_names_the_disk_and_the_reason(two_disks):
    failed = disk_of(two_disks, two_disks.ids[0], 0)
    fail(two_disks, 0, failed)
    assert two_disks.ask(ClusterStatus()).failed_disks == ((failed, "input/output error"),)
    (said,) = (notice for notice in two_disks.notices if "has failed: input/output error" in notice)
    assert two_disks.notice_levels[said] == "ERROR"
    fail(two_disks, 0)
    assert two_disks.notice_levels[two_disks.notices[-1]] == "INFO" and "works again" in two_disks.notices[-1]
    assert two_disks.ask(ClusterStatus()).failed_disks == ()


def test_a_broker_speaks_for_its_own_disks_only(two_disks):
    theirs = disk_of(two_disks, two_disks.ids[0], 1)
    fail(two_disks, 0, theirs)
    assert two_disks.ask(ClusterStatus()).failed_disks == ()
    fail(two_disks, 1, theirs)
    fail(two_disks, 0)
    assert len(two_disks.ask(ClusterStatus()).failed_disks) == 1


def test_a_broker_that_cannot_start_on_one_disk_starts_on_the_other(new_world):
    world = new_world(0, starts_brokers=True)
    world.starts_at_once = False
    for directory_id in (SECOND[0], SECOND[1]):
        world.ask(RegisterDisk(world.image.cluster_id, 0, directory_id, f"/disks/{directory_id.int}"))
    first = world.starts[-1]
    world.feed(ActorStartFailed(first.node_id, "input/output error"))
    world.pass_time(1_000)
    assert world.starts[-1].node_id == first.node_id and world.starts[-1].directory_id != first.directory_id
