"""Moves of replicas between the disks of a broker: the ISR keeps its size, and there is always a whole copy."""

from __future__ import annotations

import uuid

import msgpack
import pytest
from kio.schema.errors import ErrorCode

from raylog.control.session import DisksChecked, FailedDisk, Removal
from raylog.metadata.actors.disk_requests import DiskTarget, MoveToDisks
from raylog.metadata.records import PartitionChanged, RemovalPending, decode_batch, encode_batch
from raylog.metadata.requests import (
    AlterReassignments,
    DeleteTopics,
    MoveReplicas,
    PartitionTarget,
    RegisterDisk,
)
from raylog.types import ReplicaMove, TopicIdPartition, future_id, node_id

CLUSTER = "a-test-cluster"


def second(broker: int) -> uuid.UUID:
    return uuid.UUID(int=0xF000 + broker)


@pytest.fixture
def disks(new_world):
    """Three brokers, each with two disks: /disks/<broker> and /second/<broker>."""
    world = new_world(3)
    for broker in range(3):
        assert world.ask(RegisterDisk(CLUSTER, broker, second(broker), f"/second/{broker}")).error == 0
    return world


def to(world, broker, path=None, *, topic="t", partition=0):
    """The error of a move of that broker's replica to that disk: its second one if none is named."""
    target = DiskTarget(topic, partition, path or f"/second/{broker}")
    error, _ = world.ask(MoveToDisks(broker, (target,))).outcomes[0]
    world.run_later()
    return ErrorCode(error)


def create(world, *brokers, **configs):
    """The partition, on the brokers' first disks."""
    id = TopicIdPartition(world.create("t", brokers, **configs), 0)
    for broker in brokers:
        if world.state(id).slot(broker).directory_id == second(broker):
            assert to(world, broker, f"/disks/{broker}") is ErrorCode.none
            arrive(world, id, broker)
    assert all(slot.directory_id != second(slot.broker_id) for slot in world.state(id).replicas)
    return id


def copy_of(world, id, broker):
    """The process that opens the future copy."""
    return world.processes[world.state(id).future(broker).node_id]


def arrive(world, id, broker):
    """The leader has seen the future copy catch up; the error of its request."""
    leader, state = world.leader(id), world.state(id)
    return leader.alter(id, *state.isr, future_id(broker))


def removed(world, node):
    return [frame for frame in world.processes[node].heard if isinstance(frame, Removal)]


def test_a_followers_replica_comes_to_another_disk_in_one_record_and_nobody_else_hears_of_it(disks):
    id = create(disks, 0, 1, 2)
    before = disks.state(id)
    assert to(disks, 1) is ErrorCode.none
    during = disks.state(id)
    assert (during.replicas, during.isr, during.leader_epoch) == (before.replicas, before.isr, before.leader_epoch)
    copy = copy_of(disks, id, 1)
    assert copy.directory_id == second(1) and copy.told[id].isr == before.isr
    shown = {replica.broker_id: replica for replica in disks.leader(id).told[id].replicas}
    assert shown[future_id(1)].node_id == copy.node and shown[1].node_id == before.node_of(1)

    entries = len(disks.entries)
    assert arrive(disks, id, 1) == 0
    after = disks.state(id)
    assert after.isr == before.isr and not after.futures and after.leader_epoch == before.leader_epoch
    assert after.slot(1).directory_id == second(1) and after.node_of(1) == copy.node
    assert after.slot(1).admitted == copy.incarnation
    decided = [record for entry in disks.entries[entries:] for record in decode_batch(entry.data)]
    assert [type(record) for record in decided[:3]].count(PartitionChanged) >= 1
    assert any(isinstance(each, RemovalPending) and each.node_id == before.node_of(1) for each in decided)
    assert removed(disks, before.node_of(1))


def test_a_leaders_new_copy_leads_on_in_another_epoch(disks):
    id = create(disks, 0, 1)
    before = disks.state(id)
    assert before.leader == 0 and to(disks, 0) is ErrorCode.none
    copy = copy_of(disks, id, 0)
    assert arrive(disks, id, 0) == ErrorCode.new_leader_elected
    after = disks.state(id)
    assert (after.leader, after.leader_incarnation) == (0, copy.incarnation)
    assert after.leader_epoch == before.leader_epoch + 1 and after.isr == before.isr


def test_a_partition_of_one_replica_is_never_without_it(disks):
    id = create(disks, 0)
    assert to(disks, 0) is ErrorCode.none
    assert disks.state(id).isr == (0,) and disks.state(id).leader == 0
    assert arrive(disks, id, 0) == ErrorCode.new_leader_elected
    assert disks.state(id).isr == (0,) and disks.state(id).leader == 0


def test_only_the_process_that_was_seen_to_catch_up_takes_the_place(disks):
    id = create(disks, 0, 1)
    assert to(disks, 1) is ErrorCode.none
    leader, copy = disks.leader(id), copy_of(disks, id, 1)
    disks.starts_at_once = False
    copy.kill()
    assert arrive(disks, id, 1) == ErrorCode.ineligible_replica
    disks.launch(copy.node, directory_id=second(1))
    stale = ((0, leader.incarnation), (1, disks.process(id, 1).incarnation), (future_id(1), copy.incarnation))
    assert leader.alter(id, 0, 1, isr=stale) == ErrorCode.ineligible_replica
    assert disks.state(id).slot(1).directory_id != second(1)
    assert arrive(disks, id, 1) == 0 and disks.state(id).slot(1).directory_id == second(1)


def test_the_disk_where_it_is_cancels_a_move_and_another_one_replaces_it(disks):
    third = uuid.UUID(int=0xF100)
    assert disks.ask(RegisterDisk(CLUSTER, 1, third, "/third/1")).error == 0
    id = create(disks, 0, 1)
    assert to(disks, 1) is ErrorCode.none
    first = copy_of(disks, id, 1).node
    assert to(disks, 1) is ErrorCode.none and copy_of(disks, id, 1).node == first, "the same again changes nothing"
    home = {
        slot.directory_id: path
        for path, slot in [(disks.image.disks[s.directory_id].path, s) for s in disks.state(id).replicas]
    }
    other = next(path for path in ("/third/1", "/disks/1") if path not in home.values())
    assert to(disks, 1, other) is ErrorCode.none
    assert disks.image.disks[disks.state(id).future(1).directory_id].path == other and removed(disks, first)
    again = copy_of(disks, id, 1).node
    assert to(disks, 1, home[disks.state(id).slot(1).directory_id]) is ErrorCode.none
    assert not disks.state(id).futures and removed(disks, again)
    assert arrive_is_refused(disks, id, 1)


def arrive_is_refused(world, id, broker):
    return world.leader(id).alter(id, *world.state(id).isr, future_id(broker)) == ErrorCode.ineligible_replica


def test_refusals_are_kafkas(disks):
    create(disks, 0, 1)
    assert to(disks, 0, "/nowhere") is ErrorCode.log_dir_not_found
    assert to(disks, 0, "/second/1") is ErrorCode.log_dir_not_found, "a disk of another broker"
    assert to(disks, 0, topic="nobody") is ErrorCode.unknown_topic_or_partition
    assert to(disks, 0, partition=7) is ErrorCode.unknown_topic_or_partition
    assert to(disks, 2) is ErrorCode.replica_not_available
    assert to(disks, 0, "/nowhere", topic="nobody") is ErrorCode.log_dir_not_found, "the disk is looked for first"


def test_what_waits_to_be_deleted_on_a_disk_is_deleted_before_a_copy_comes_there(disks):
    id = create(disks, 0, 1)
    old = disks.state(id).slot(1)
    assert to(disks, 1) is ErrorCode.none
    disks.starts_at_once = False
    disks.process(id, 1).kill()
    assert arrive(disks, id, 1) == 0
    assert to(disks, 1, disks.image.disks[old.directory_id].path) is ErrorCode.replica_not_available
    disks.launch(old.node_id, directory_id=old.directory_id)
    assert to(disks, 1, disks.image.disks[old.directory_id].path) is ErrorCode.none


def test_a_copy_that_fails_is_given_up_and_the_replica_stays(disks):
    id = create(disks, 0, 1)
    before = disks.state(id)
    assert to(disks, 1) is ErrorCode.none
    copy_of(disks, id, 1).fail(id)
    assert not disks.state(id).futures and disks.state(id).replicas == before.replicas
    assert disks.state(id).isr == before.isr


def test_a_disk_that_fails_gives_its_copies_up_and_takes_no_more(disks):
    id = create(disks, 0, 1)
    assert to(disks, 1) is ErrorCode.none
    broker = disks.launch(node_id(1, 0), directory_id=disks.state(id).slot(1).directory_id)
    broker.say(DisksChecked((FailedDisk(second(1), "no such device"),)))
    assert not disks.state(id).futures and disks.state(id).isr == (0, 1)
    assert to(disks, 1) is ErrorCode.kafka_storage_error


def test_a_replica_that_leaves_its_broker_takes_its_copy_along(disks):
    id = create(disks, 0, 1)
    assert to(disks, 1) is ErrorCode.none
    copy = copy_of(disks, id, 1).node
    assert disks.ask(AlterReassignments((PartitionTarget("t", 0, (0,)),))).partitions[0].error == 0
    assert not disks.state(id).futures and removed(disks, copy)


def test_a_deleted_topics_copies_are_deleted_too(disks):
    id = create(disks, 0, 1)
    assert to(disks, 1) is ErrorCode.none
    copy = copy_of(disks, id, 1).node
    assert disks.ask(DeleteTopics(names=("t",))).topics[0].error == 0
    assert removed(disks, copy)


def test_a_replica_does_not_change_its_process_while_it_changes_its_disk(disks):
    id = create(disks, 0, 1, replicas_per_actor=None)
    assert to(disks, 1) is ErrorCode.none
    move = MoveReplicas((ReplicaMove("t", 0, 1, copy_of(disks, id, 1).node),))
    assert disks.ask(move).partitions[0].error == ErrorCode.reassignment_in_progress


def test_a_copy_in_a_process_that_runs_already_begins_another_epoch(disks):
    """A fetch of a former copy there may still be on its way to the leader."""
    id = create(disks, 0, 1, replicas_per_actor=None)
    assert to(disks, 1) is ErrorCode.none and arrive(disks, id, 1) == 0
    before = disks.state(id)
    assert to(disks, 1, "/disks/1") is ErrorCode.none
    after = disks.state(id)
    assert after.leader_epoch == before.leader_epoch + 1 and after.leader_incarnation == before.leader_incarnation
    assert after.isr == before.isr and arrive(disks, id, 1) == 0


def test_a_new_controller_goes_on_with_the_copy(disks):
    id = create(disks, 0, 1)
    assert to(disks, 1) is ErrorCode.none
    future = disks.state(id).future(1)
    disks.restart_controller()
    for process in disks.processes.values():
        if process.runs:
            process.hello()
    disks.pass_time(1_000)
    assert disks.state(id).future(1) == future
    assert arrive(disks, id, 1) == 0 and disks.state(id).slot(1).directory_id == second(1)


def test_a_state_without_copies_has_the_bytes_that_it_always_had(disks):
    id = create(disks, 0, 1)
    state = disks.state(id)
    (plain,) = msgpack.unpackb(encode_batch([PartitionChanged(*id, state)]))
    assert len(plain["state"]) == 11, "before there were copies it had eleven fields"
    assert to(disks, 1) is ErrorCode.none
    moving = PartitionChanged(*id, disks.state(id))
    assert len(msgpack.unpackb(encode_batch([moving]))[0]["state"]) == 12
    for record in (moving, PartitionChanged(*id, state)):
        assert decode_batch(encode_batch([record])) == (record,)


def test_a_copy_whose_log_is_not_open_does_not_arrive(disks):
    id = create(disks, 0, 1)
    disks.starts_at_once = False
    assert to(disks, 1) is ErrorCode.none
    copy = disks.launch(disks.state(id).future(1).node_id, says_hello=False, directory_id=second(1))
    copy.opens = False
    copy.hello()
    disks.run_later()
    assert arrive(disks, id, 1) == ErrorCode.ineligible_replica
    copy.open(id)
    disks.run_later()
    assert arrive(disks, id, 1) == 0
