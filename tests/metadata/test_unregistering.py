"""Forgetting a broker: when it is refused, and what is left of it."""

from __future__ import annotations

import uuid

import pytest
from kio.schema.errors import ErrorCode

from raylog.metadata.actors.registrations import decide_unregister_broker
from raylog.metadata.image import MetadataImage
from raylog.metadata.records import BrokerRegistered, DiskRegistered
from raylog.metadata.requests import (
    AlterReassignments,
    DrainBroker,
    PartitionTarget,
    RegisterDisk,
    UnregisterBroker,
)
from raylog.types import TopicIdPartition, broker_of


@pytest.fixture
def world(new_world):
    return new_world(brokers=4, starts_brokers=True)


def moved_off(world):
    """A topic that has just left broker 2 for broker 3."""
    id = TopicIdPartition(world.create("t", (1, 2)), 0)
    assert world.ask(AlterReassignments((PartitionTarget("t", 0, (1, 3)),))).partitions[0].error == 0
    assert world.leader(id).alter(id, 1, 2, 3) == 0
    return id


def test_an_empty_broker_is_forgotten_and_its_processes_end(world):
    id = moved_off(world)
    world.ask(DrainBroker(2))
    own = world.processes[2 << 16]
    assert world.ask(UnregisterBroker(2)).error == 0
    image = world.image
    assert sorted(image.brokers) == [0, 1, 3] and not image.draining and not image.disks_of(2)
    assert not [node for node in image.actors if broker_of(node) == 2]
    assert own.exited
    world.starts.clear()
    world.pass_time(60_000, step=1_000)
    assert not [start for start in world.starts if start.broker_id == 2], "nobody starts it again"
    assert world.state(id).brokers == (1, 3)
    assert MetadataImage.of(image.records()) == image


def test_a_process_of_a_forgotten_broker_is_sent_away(world):
    moved_off(world)
    world.ask(UnregisterBroker(2))
    late = world.launch(2 << 16)
    assert late.exited


def test_a_broker_that_holds_replicas_is_not_forgotten(world):
    world.create("t", (1, 2))
    reply = world.ask(UnregisterBroker(2))
    assert reply.error == ErrorCode.invalid_request and "still holds t-0" in reply.message
    assert 2 in world.image.brokers


def test_what_waited_to_be_deleted_on_a_dead_broker_is_forgotten_with_it(world):
    id = TopicIdPartition(world.create("t", (1, 2)), 0)
    world.starts_at_once = False
    world.process(id, 2).kill()
    assert world.ask(AlterReassignments((PartitionTarget("t", 0, (1, 3)),))).partitions[0].error == 0
    world.launch(world.state(id).node_of(3))
    assert world.leader(id).alter(id, 1, 3) == 0
    assert len(world.image.removals) == 1
    assert world.ask(UnregisterBroker(2)).error == 0
    assert not world.image.removals and not world.image.removals_of


def test_it_may_come_back_as_a_new_broker(world):
    moved_off(world)
    disk = world.image.disks_of(2)[0]
    world.ask(UnregisterBroker(2))
    assert world.ask(RegisterDisk(world.image.cluster_id, 2, disk.directory_id, disk.path)).error == 0
    world.pass_time(2_000)
    assert world.image.actors[2 << 16].alive


def test_the_home_of_a_voter_is_not_forgotten():
    voter = uuid.UUID(int=5)
    image = MetadataImage.of([BrokerRegistered(1), DiskRegistered(voter, 1, "/d")])
    records, reply = decide_unregister_broker(image, UnregisterBroker(1), controller_disks=[voter])
    assert not records and reply.error == ErrorCode.invalid_request and "controller" in reply.message


def test_an_unknown_broker_is_named(world):
    assert world.ask(UnregisterBroker(77)).error == ErrorCode.broker_id_not_registered
