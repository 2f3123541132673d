"""A blank disk where a broker's disk was: the replicas move to it as they are assigned, and begin with nothing."""

from __future__ import annotations

import uuid

import pytest

from raylog.control.session import ReplicaStatus
from raylog.metadata.image import MetadataImage
from raylog.metadata.requests import DeleteTopics, RegisterDisk
from raylog.types import TopicIdPartition, broker_of


@pytest.fixture
def world(new_world):
    return new_world(starts_brokers=True)


def directories(world, id):
    return {slot.broker_id: slot.directory_id for slot in world.state(id).replicas}


def processes_of(world, broker):
    return [process for process in world.processes.values() if broker_of(process.node) == broker]


def lose(world, broker):
    """The broker's processes end, and its disk is replaced."""
    for process in processes_of(world, broker):
        process.kill()
    return world.replace_disk(broker)


def test_the_replicas_of_a_lost_disk_are_on_the_one_that_replaces_it_and_out_of_sync(world):
    id = TopicIdPartition(world.create("t", (1, 2)), 0)
    world.starts_at_once = False
    world.starts.clear()
    new = lose(world, 2)
    assert directories(world, id)[2] == new
    world.pass_time(60_000, step=1_000)
    mine = {start.node_id: start for start in world.starts if start.broker_id == 2}
    assert {start.directory_id for start in mine.values()} == {new}, "the Broker and the replica are started on it"
    world.start(mine[world.state(id).node_of(2)])
    assert 2 not in world.state(id).isr
    assert world.leader(id).alter(id, 1, 2) == 0, "it joins when it has caught up"
    assert MetadataImage.of(world.image.records()) == world.image


def test_the_leader_on_a_lost_disk_is_succeeded_and_never_leads_by_what_it_no_longer_has(world):
    id = TopicIdPartition(world.create("t", (2,)), 0)
    epoch = world.state(id).leader_epoch
    lose(world, 2)
    world.pass_time(60_000, step=1_000)
    state = world.state(id)
    assert (state.leader, state.isr, state.elr) == (-1, (), ())
    assert state.leader_epoch > epoch and state.last_known_leader == -1
    assert isinstance(world.process(id, 2).held[id], ReplicaStatus)


def test_processes_that_still_run_on_a_lost_disk_are_over(world):
    id = TopicIdPartition(world.create("t", (2, 1)), 0)
    former = world.leader(id)
    world.starts_at_once = False
    world.replace_disk(2)
    assert world.state(id).leader == 1
    assert former.session is None
    former.hello()
    assert former.exited


def test_what_was_to_be_deleted_on_a_lost_disk_is_gone(world):
    id = TopicIdPartition(world.create("t", (2,)), 0)
    world.starts_at_once = False
    for process in processes_of(world, 2):
        process.kill()
    world.ask(DeleteTopics(("t",)))
    node = next(iter(world.image.removals_of))
    assert id.topic_id in {key.topic_id for key in world.image.removals}
    world.replace_disk(2)
    assert not world.image.removals and node not in world.image.actors
    assert MetadataImage.of(world.image.records()) == world.image


def test_a_known_disk_that_moves_to_anothers_path_replaces_nothing(world):
    (a,) = world.image.disks_of(1)
    second = world.replace_disk(2)
    assert [disk.directory_id for disk in world.image.disks_of(2)] == [second]
    third = RegisterDisk(world.image.cluster_id, 1, uuid.UUID(int=0xF000), "/disks/1b")
    assert world.ask(third).error == 0
    swapped = RegisterDisk(world.image.cluster_id, 1, third.directory_id, a.path)
    assert world.ask(swapped).error == 0
    assert {disk.directory_id for disk in world.image.disks_of(1)} == {a.directory_id, third.directory_id}
