"""Moves of replicas between the server actors of a disk: who leads meanwhile, who lets go, and what is refused."""

from __future__ import annotations

import uuid

import pytest
from kio.schema.errors import ErrorCode

from raylog.control.session import Release, Removal, ReplicaOpened
from raylog.metadata.partitions import moves
from raylog.metadata.partitions.elections import Candidate, Standing
from raylog.metadata.records import ADMITTED_ELSEWHERE, PartitionState, ReplicaSlot
from raylog.metadata.requests import (
    AlterReassignments,
    DeleteTopics,
    MoveReplicas,
    PartitionTarget,
    RegisterDisk,
)
from raylog.types import Condition, ReplicaMove, TopicIdPartition, node_id

LIVE, ABSENT = Standing.LIVE, Standing.ABSENT


# ------------------------------------------------------------------ the rule, alone


def state(isr=(0, 1, 2), leader=0, replicas=(0, 1, 2)):
    slots = tuple(ReplicaSlot(each, node_id(each, 2), uuid.UUID(int=each + 1), 100 + each) for each in replicas)
    made = PartitionState(slots, tuple(isr), leader, 100 + leader if leader >= 0 else 0, 4, 10)
    made.check()
    return made


def moved(before, broker, *, min_isr=1, **standings):
    candidates = {
        each: Candidate(standings.get(f"b{each}", LIVE), 100 + each, is_draining=f"d{each}" in standings)
        for each in before.brokers
    }
    after = moves.moved(before, broker, node_id(broker, 9), candidates, has_run=True, min_isr=min_isr)
    after.check()
    assert after.partition_epoch > before.partition_epoch
    assert [slot.directory_id for slot in after.replicas] == [slot.directory_id for slot in before.replicas]
    assert after.node_of(broker) == node_id(broker, 9)
    return after


def test_a_leader_hands_over_before_it_moves_and_is_out_of_sync_meanwhile():
    after = moved(state(), 0)
    assert (after.leader, after.leader_incarnation, after.leader_epoch, after.isr) == (1, 101, 5, (1, 2))


def test_leadership_goes_to_nobody_who_is_not_live_in_sync_and_there_to_stay():
    assert moved(state(), 0, b1=ABSENT).leader == 2
    assert moved(state(), 0, d1=True).leader == 2
    assert moved(state(isr=(0, 2)), 0).leader == 2


def test_a_leader_without_anybody_else_leaves_nobody_until_its_log_is_open_again():
    after = moved(state(isr=(0,), replicas=(0,)), 0)
    assert (after.leader, after.leader_incarnation, after.leader_epoch, after.isr) == (-1, 0, 5, (0,))
    assert after.last_known_leader == 0


def test_a_followers_move_ends_the_epoch_so_that_its_late_fetches_count_no_more():
    after = moved(state(), 2)
    assert (after.leader, after.leader_incarnation, after.leader_epoch, after.isr) == (0, 100, 5, (0, 1))


def test_the_isr_is_not_left_below_the_minimum():
    assert moved(state(), 2, min_isr=3).isr == (0, 1, 2)
    assert moved(state(isr=(0, 1)), 0, min_isr=2).isr == (0, 1)


def test_the_new_process_is_judged_by_what_it_finds():
    before = state()
    after = moved(before, 2)
    assert after.slot(2).admitted == ADMITTED_ELSEWHERE
    assert after.slot(0) == before.slot(0)
    fresh = ReplicaSlot(0, node_id(0, 2), uuid.UUID(int=1))
    never = PartitionState((fresh,), (0,))
    unheard = moves.moved(never, 0, node_id(0, 9), {0: Candidate(ABSENT)}, has_run=False, min_isr=1)
    assert unheard.slot(0).admitted == 0, "nobody can have opened it"


# ------------------------------------------------------------------ the controller


def packed(world, *assignments, **configs):
    """A topic whose partitions each have an actor of their own on each broker, and logs that end clean."""
    topic_id = world.create("a", *assignments, **configs)
    return [TopicIdPartition(topic_id, partition) for partition in range(len(assignments))]


def ask(world, id, broker, node, topic="a"):
    return world.ask(MoveReplicas((ReplicaMove(topic, id.partition, broker, node),))).partitions[0]


def catches_up(world, id, broker):
    """The leader takes that broker's new process in."""
    leader = world.process(id, world.state(id).leader)
    assert leader.alter(id, *world.state(id).isr, broker) in (0, ErrorCode.new_leader_elected.value)


def test_a_leader_moves_and_leads_again_when_it_is_in_sync(world):
    id, other = packed(world, (0, 1, 2), (0, 1, 2))
    source, target = world.process(id, 0), world.process(other, 0)
    assert source is not target
    target.conditions[id] = Condition.CLEAN
    assert ask(world, id, 0, target.node).error == 0
    after = world.state(id)
    assert after.node_of(0) == target.node and after.leader == 1 and id in target.held
    assert [frame.partition for frame in source.heard if isinstance(frame, Release)] == [id.partition]
    assert not [frame for frame in source.heard if isinstance(frame, Removal)], "the folder stays"
    catches_up(world, id, 0)
    after = world.state(id)
    assert (after.leader, after.leader_incarnation, sorted(after.isr)) == (0, target.incarnation, [0, 1, 2])


def test_an_actor_that_is_left_with_nothing_exits_when_it_has_let_go(world):
    id, other = packed(world, (0, 1, 2), (0, 1, 2))
    source, target = world.process(id, 0), world.process(other, 0)
    source.keeps = True
    ask(world, id, 0, target.node)
    assert not source.exited and source.node in world.image.actors
    source.let_go(id)
    assert source.exited and source.node not in world.image.actors


def test_a_lone_replica_moves_and_leads_when_it_is_open(world):
    id, other = packed(world, (0,), (0,))
    target = world.process(other, 0)
    target.conditions[id] = Condition.CLEAN
    target.opens = False
    epoch = world.state(id).leader_epoch
    assert ask(world, id, 0, target.node).error == 0
    assert world.state(id).leader == -1 and world.state(id).isr == (0,)
    target.open(id)
    world.run_later()
    after = world.state(id)
    assert (after.leader, after.leader_incarnation, after.leader_epoch) == (0, target.incarnation, epoch + 2)


@pytest.mark.parametrize("condition", [Condition.SUSPECT, Condition.MISSING])
def test_a_log_that_is_found_worse_costs_its_places(world, condition):
    id, other = packed(world, (0, 1, 2), (0, 1, 2), min_insync_replicas=3)
    target = world.process(other, 0)
    target.conditions[id] = condition
    target.ends[id] = (0, 5)
    ask(world, id, 0, target.node)
    assert world.state(id).isr == (1, 2)


def test_a_move_is_told_again_to_a_process_that_missed_it(world):
    id, other = packed(world, (0, 1, 2), (0, 1, 2))
    source, target = world.process(id, 0), world.process(other, 0)
    both = packed_beside(world, source)
    source.keeps = True
    ask(world, id, 0, target.node)
    source.heard.clear()
    world.restart_controller()
    for process in world.processes.values():
        process.hello()
    world.run_later()
    assert [(frame.topic_id, frame.partition) for frame in source.heard if isinstance(frame, Release)] == [id]
    assert not source.exited, f"it holds {both}, too"


def packed_beside(world, process):
    """Another replica of that process, so that it stays."""
    topic_id = world.create("b", (process.broker,))
    id = TopicIdPartition(topic_id, 0)
    mover = world.process(id, process.broker)
    assert mover is not process
    assert ask(world, id, process.broker, process.node, "b").error == 0
    return id


def test_what_is_opened_late_by_a_former_holder_is_let_go(world):
    id, other = packed(world, (0, 1, 2), (0, 1, 2))
    source, target = world.process(id, 0), world.process(other, 0)
    packed_beside(world, source)
    status = source.held[id]
    ask(world, id, 0, target.node)
    source.heard.clear()
    source.say(ReplicaOpened(status))
    assert [frame.partition for frame in source.heard if isinstance(frame, Release)] == [id.partition]
    assert world.state(id).node_of(0) == target.node


def test_an_opening_under_way_at_a_former_holder_is_ended_by_its_next_hello(world):
    id, other = packed(world, (0, 1, 2), (0, 1, 2))
    source, target = world.process(id, 0), world.process(other, 0)
    packed_beside(world, source)
    source.keeps = True
    ask(world, id, 0, target.node)
    source.held.pop(id)
    source.unopened = (tuple(id),)
    source.heard.clear()
    world.restart_controller()
    for process in world.processes.values():
        process.hello()
    world.run_later()
    assert [frame.partition for frame in source.heard if isinstance(frame, Release)] == [id.partition]


def test_what_is_refused_by_name(world):
    id, other = packed(world, (0, 1, 2), (0, 1, 2))
    source, target = world.process(id, 0), world.process(other, 0)

    def refused(broker, node, code, words, topic="a", partition=id.partition):
        outcome = ask(world, TopicIdPartition(id.topic_id, partition), broker, node, topic)
        assert outcome.error == code.value and words in outcome.message, outcome

    refused(0, target.node, ErrorCode.unknown_topic_or_partition, "no partition nobody-0", topic="nobody")
    refused(0, target.node, ErrorCode.unknown_topic_or_partition, "no partition a-7", partition=7)
    refused(7, target.node, ErrorCode.invalid_request, "broker 7 has no replica")
    refused(0, world.process(id, 1).node, ErrorCode.invalid_request, "is of broker 1, not of 0")
    refused(0, node_id(0, 1), ErrorCode.invalid_request, "holds no replicas")
    refused(0, node_id(0, 77), ErrorCode.replica_not_available, "is not running")
    assert ask(world, id, 0, source.node).error == 0, "it is there"
    source.mute = True
    source.lose_session()
    refused(0, target.node, ErrorCode.replica_not_available, "out of sight")


def test_a_disk_that_is_not_the_replicas_is_refused(world):
    (id,) = packed(world, (0, 1, 2))
    second = uuid.UUID(int=0xF00)
    assert world.ask(RegisterDisk("a-test-cluster", 0, second, "/disks/0b")).error == 0
    world.starts_at_once = False
    placed = world.create("c", (0,))
    world.pass_time(100)
    start = world.starts[-1]
    if start.directory_id != second:
        placed = world.create("d", (0,))
        start = world.starts[-1]
    assert start.directory_id == second, (start, placed)
    world.start(start)
    world.run_later()
    outcome = ask(world, id, 0, start.node_id)
    assert outcome.error == ErrorCode.invalid_request.value and "is on the disk /disks/0b" in outcome.message


def test_a_replica_that_is_being_reassigned_does_not_move(world):
    id, other = packed(world, (0, 1), (0, 1))
    assert world.ask(AlterReassignments((PartitionTarget("a", 0, (1, 2)),))).partitions[0].error == 0
    outcome = ask(world, id, 0, world.process(other, 0).node)
    assert outcome.error == ErrorCode.reassignment_in_progress.value and "adding" not in outcome.message


def test_a_replica_does_not_return_before_its_former_process_has_let_go(world):
    id, other = packed(world, (0, 1, 2), (0, 1, 2))
    source, target = world.process(id, 0), world.process(other, 0)
    packed_beside(world, source)
    source.keeps = True
    assert ask(world, id, 0, target.node).error == 0
    outcome = ask(world, id, 0, source.node)
    assert outcome.error == ErrorCode.replica_not_available.value and "let go" in outcome.message
    source.let_go(id)
    assert ask(world, id, 0, source.node).error == 0
    assert world.state(id).node_of(0) == source.node


def test_a_replica_that_returns_is_not_live_before_its_log_is_open_again(world):
    """What its process said when it held the log before says nothing of what another one has left there."""
    id, other = packed(world, (0,), (0,))
    source, target = world.process(id, 0), world.process(other, 0)
    packed_beside(world, source)
    assert ask(world, id, 0, target.node).error == 0
    assert world.state(id).leader_incarnation == target.incarnation
    source.opens = False
    assert ask(world, id, 0, source.node).error == 0
    assert (world.state(id).node_of(0), world.state(id).leader) == (source.node, -1)
    source.open(id)
    world.run_later()
    assert world.state(id).leader_incarnation == source.incarnation


def test_a_deletion_during_a_move_is_the_new_actors(world):
    id, other = packed(world, (0, 1, 2), (0, 1, 2))
    source, target = world.process(id, 0), world.process(other, 0)
    source.keeps = True
    ask(world, id, 0, target.node)
    world.ask(DeleteTopics(names=("a",)))
    assert {frame.partition for frame in target.heard if isinstance(frame, Removal)} == {0, 1}
    assert not [frame for frame in source.heard if isinstance(frame, Removal)]
    source.let_go(id)
    assert not world.image.removals and source.exited


def test_a_dead_actor_that_loses_its_last_replica_is_forgotten(world):
    id, other = packed(world, (0, 1, 2), (0, 1, 2))
    source, target = world.process(id, 0), world.process(other, 0)
    world.starts_at_once = False
    source.kill()
    assert not world.image.actors[source.node].alive
    assert ask(world, id, 0, target.node).error == 0
    assert source.node not in world.image.actors
