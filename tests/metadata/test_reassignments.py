"""Reassignment: how a partition gets to another set of replicas, and what may not be lost on the way."""

from __future__ import annotations

import uuid

import pytest
from kio.schema.errors import ErrorCode

from raylog.control.session import Removal
from raylog.metadata.partitions import reassignments
from raylog.metadata.partitions.elections import Candidate, Standing
from raylog.metadata.records import PartitionState, ReplicaSlot
from raylog.metadata.requests import (
    AlterReassignments,
    ClusterStatus,
    CreatePartitions,
    DeleteTopics,
    DrainBroker,
    ListReassignments,
    PartitionGrowth,
    PartitionTarget,
)
from raylog.types import TopicIdPartition, node_id

LIVE, ABSENT, DEAD = Standing.LIVE, Standing.ABSENT, Standing.DEAD


# ------------------------------------------------------------------ the rules, alone


def slots(*brokers: int) -> tuple[ReplicaSlot, ...]:
    return tuple(ReplicaSlot(broker, node_id(broker, 2), uuid.UUID(int=broker + 1), 1) for broker in brokers)


def state(replicas, isr=None, leader=None, elr=(), adding=(), removing=()):
    isr = tuple(replicas) if isr is None else tuple(isr)
    leader = (isr[0] if isr else -1) if leader is None else leader
    made = PartitionState(
        slots(*replicas),
        isr,
        leader,
        100 + leader if leader >= 0 else 0,
        4,
        10,
        tuple(elr),
        -1,
        tuple(adding),
        tuple(removing),
    )
    made.check()
    return made


def started(before, *brokers):
    after = reassignments.started(before, slots(*brokers))
    if after is not None:
        after.check()
    return after


def completed(before, *, min_insync_replicas=1, **standings):
    candidates = {
        broker: Candidate(standings.get(f"b{broker}", LIVE), 100 + broker, is_draining=f"d{broker}" in standings)
        for broker in before.brokers
    }
    after = reassignments.completed(before, candidates, min_insync_replicas=min_insync_replicas)
    after.check()
    return after


def shape(each):
    return each.brokers, each.adding, each.removing


def test_added_replicas_come_first_and_removed_ones_stay_until_the_end():
    after = started(state((0, 1, 2)), 3, 1, 2)
    assert shape(after) == ((3, 1, 2, 0), (3,), (0,))
    assert (after.isr, after.leader, after.leader_epoch, after.partition_epoch) == ((0, 1, 2), 0, 4, 11)
    assert completed(after) is after, "3 has not caught up"


def test_it_is_complete_when_all_that_are_added_are_in_sync():
    under_way = state((3, 4, 1, 0), (0, 1, 3), adding=(3, 4), removing=(0,))
    assert completed(under_way) is under_way, "4 is not in sync"
    after = completed(state((3, 4, 1, 0), (1, 0, 3, 4), leader=1, adding=(3, 4), removing=(0,)))
    assert (shape(after), after.isr) == (((3, 4, 1), (), ()), (1, 3, 4))
    assert (after.leader, after.leader_epoch) == (1, 4), "who stays leads on in the same epoch"


def test_leadership_goes_to_the_target_when_the_leader_is_removed():
    after = completed(state((3, 1, 0), (0, 1, 3), leader=0, adding=(3,), removing=(0,)))
    assert (after.leader, after.leader_epoch, after.leader_incarnation) == (3, 5, 103)
    after = completed(state((3, 1, 0), (0, 1, 3), leader=0, adding=(3,), removing=(0,)), b3=ABSENT)
    assert after.leader == 1
    waits = state((3, 1, 0), (0, 3), leader=0, adding=(3,), removing=(0,))
    assert completed(waits, b3=ABSENT) is waits, "nobody of the target can lead"
    drained = completed(state((3, 1, 0), (0, 1, 3), leader=0, adding=(3,), removing=(0,)), d3=True)
    assert drained.leader == 1


def test_removing_alone_completes_at_once_if_enough_stay_in_sync():
    assert shape(completed(started(state((0, 1, 2)), 0, 1), min_insync_replicas=2)) == ((0, 1), (), ())
    lacks = started(state((0, 1, 2), isr=(0, 2)), 0, 1)
    assert completed(lacks, min_insync_replicas=2) is lacks, "1 has to return first: two copies are asked for"
    alone = completed(started(state((0, 1, 2), isr=(0, 2)), 0), min_insync_replicas=2)
    assert (shape(alone), alone.isr) == (((0,), (), ()), (0,)), "of one replica no more than one can be asked for"


def test_the_minimum_counts_the_replicas_that_are_not_being_added():
    from raylog.metadata.partitions.elections import effective_min_isr

    growing = started(state((0,)), 0, 1, 2)
    assert effective_min_isr(growing, 2) == 1
    done = completed(state((0, 1, 2), (0, 1, 2), adding=(1, 2)), min_insync_replicas=2)
    assert effective_min_isr(done, 2) == 2


def test_the_elr_is_emptied_when_a_reassignment_completes():
    under_way = state((0, 1, 2), (0, 2), elr=(1,), adding=(2,))
    assert completed(under_way, min_insync_replicas=2).elr == ()


def test_cancelling_returns_to_the_origin_and_drops_what_was_added():
    under_way = state((3, 1, 2, 0), (0, 1, 3), leader=0, adding=(3,), removing=(0,))
    after = started(under_way, 1, 2, 0)
    assert (shape(after), after.isr, after.leader) == (((1, 2, 0), (), ()), (0, 1), 0)
    led_by_added = state((3, 1, 0), (3, 1), leader=3, adding=(3,), removing=(0,))
    after = started(led_by_added, 1, 0)
    assert (after.leader, after.leader_epoch, after.isr) == (-1, 5, (1,)), "an election has to follow"


def test_a_changed_target_starts_from_the_origin_again():
    under_way = state((3, 1, 0), (0, 1, 3), leader=0, adding=(3,), removing=(0,))
    after = started(under_way, 4, 1)
    assert shape(after) == ((4, 1, 0), (4,), (0,)) and after.isr == (0, 1)


def test_who_alone_has_what_is_committed_is_never_dropped():
    assert started(state((3, 0), (3,), adding=(3,)), 0) is None, "only the added one is in sync"
    assert started(state((3, 0), (), elr=(3,), adding=(3,)), 0) is None
    nobody = PartitionState(slots(3, 0), (), -1, 0, 4, 10, (), 3, (3,))
    assert reassignments.started(nobody, slots(0)) is None, "the last known leader"
    assert started(state((3, 0), (), elr=(0,), adding=(3,)), 0) is not None


def test_another_order_alone_moves_nothing_but_the_preferred_leader():
    after = started(state((0, 1, 2)), 2, 1, 0)
    assert (shape(after), after.leader, after.partition_epoch) == (((2, 1, 0), (), ()), 0, 11)
    same = state((0, 1, 2))
    assert started(same, 0, 1, 2) is same


# ------------------------------------------------------------------ through the controller


@pytest.fixture
def world(new_world):
    return new_world(brokers=5)


def reassign(world, *targets):
    reply = world.ask(
        AlterReassignments(tuple(PartitionTarget("t", partition, brokers) for partition, brokers in targets))
    )
    return [outcome.error for outcome in reply.partitions]


def listed(world):
    found = world.ask(ListReassignments()).partitions
    return [(each.partition, each.replicas, each.adding, each.removing) for each in found]


def made(world, *brokers, **configs):
    return TopicIdPartition(world.create("t", brokers, **configs), 0)


def test_a_replica_moves_its_process_starts_and_the_old_folder_is_deleted(world):
    id = made(world, 0, 1, 2)
    old = world.process(id, 2)
    assert reassign(world, (0, (0, 1, 3))) == [0]
    assert listed(world) == [(0, (0, 1, 3, 2), (3,), (2,))]
    new = world.process(id, 3)
    assert id in new.held, "its process was started and told to open"
    assert world.leader(id).alter(id, 0, 1, 2, 3) == 0
    assert listed(world) == [] and world.state(id).brokers == (0, 1, 3) and set(world.state(id).isr) == {0, 1, 3}
    assert any(isinstance(frame, Removal) for frame in old.heard) and id not in old.held
    assert old.exited and not world.image.removals and old.node not in world.image.actors


def test_the_removed_leader_hands_over_to_the_target(world):
    id = made(world, 0, 1)
    assert reassign(world, (0, (2, 1))) == [0]
    leader = world.leader(id)
    assert leader.alter(id, 0, 1, 2) == ErrorCode.new_leader_elected
    assert world.state(id).leader == 2 and world.state(id).brokers == (2, 1)
    assert leader.exited


def test_cancelling_deletes_what_was_added(world):
    id = made(world, 0, 1)
    reassign(world, (0, (2, 1)))
    added = world.process(id, 2)
    assert reassign(world, (0, None)) == [0]
    assert world.state(id).brokers == (1, 0) and world.state(id).leader == 0
    assert added.exited and not world.image.removals and listed(world) == []
    assert reassign(world, (0, None)) == [ErrorCode.no_reassignment_in_progress]


def test_cancelling_before_the_process_has_started_leaves_nothing(world):
    made(world, 0, 1)
    world.starts_at_once = False
    reassign(world, (0, (2, 1)))
    start = world.starts[-1]
    assert reassign(world, (0, None)) == [0]
    world.starts_at_once = True
    world.start(start)
    assert world.processes[start.node_id].exited and not world.image.removals


def test_a_replica_that_is_still_being_deleted_is_not_added_again(world):
    id = made(world, 0, 1)
    old = world.process(id, 1)
    world.starts_at_once = False
    old.kill()
    assert reassign(world, (0, (0, 2))) == [0]
    world.launch(world.state(id).node_of(2))
    assert world.leader(id).alter(id, 0, 2) == 0
    assert world.state(id).brokers == (0, 2) and len(world.image.removals) == 1
    assert reassign(world, (0, (0, 1))) == [ErrorCode.reassignment_in_progress]
    world.launch(old.node)
    assert not world.image.removals, "its process came back and deleted the folder"
    assert reassign(world, (0, (0, 1))) == [0]


def test_requests_that_make_no_sense_are_refused_one_by_one(world):
    made(world, 0, 1)
    world.ask(DrainBroker(4))
    invalid = ErrorCode.invalid_replica_assignment
    assert reassign(world, (0, ()), (0, (1, 1)), (0, (0, 77)), (0, (0, 4))) == [invalid] * 4
    assert reassign(world, (9, (0, 1))) == [ErrorCode.unknown_topic_or_partition]
    assert reassign(world, (0, (0, 2)), (0, (0, 3))) == [0, ErrorCode.invalid_request]
    strict = AlterReassignments((PartitionTarget("t", 0, (0, 1, 2)),), allow_replication_factor_change=False)
    assert world.ask(strict).partitions[0].error == ErrorCode.invalid_replication_factor


def test_raising_the_replication_factor_raises_the_minimum_at_the_end(world):
    id = made(world, 0, min_insync_replicas=2)
    reassign(world, (0, (0, 1, 2)))
    assert world.leader(id).told[id].min_isr == 1
    assert world.leader(id).alter(id, 0, 1) == 0
    assert world.leader(id).told[id].min_isr == 1
    assert world.leader(id).alter(id, 0, 1, 2) == 0
    assert world.leader(id).told[id].min_isr == 2 and world.state(id).adding == ()


def test_lowering_the_replication_factor_is_done_at_once(world):
    id = made(world, 0, 1, 2)
    gone = world.process(id, 0)
    assert reassign(world, (0, (1,))) == [0]
    assert world.state(id).brokers == world.state(id).isr == (1,) and world.state(id).leader == 1
    assert gone.exited


def test_the_death_of_what_is_added_changes_nothing(world):
    id = made(world, 0, 1, 2)
    reassign(world, (0, (0, 1, 3)))
    world.process(id, 3).kill()
    world.run_later()
    assert listed(world) == [(0, (0, 1, 3, 2), (3,), (2,))] and world.state(id).isr == (0, 1, 2)
    assert world.leader(id).alter(id, 0, 1, 2, 3) == 0, "its next process goes on"
    assert world.state(id).brokers == (0, 1, 3)


def test_a_reassignment_outlives_the_controller(world):
    id = made(world, 0, 1)
    reassign(world, (0, (0, 2)))
    world.restart_controller()
    for process in list(world.processes.values()):
        if not process.exited:
            process.hello()
    world.run_later()
    assert listed(world) == [(0, (0, 2, 1), (2,), (1,))]
    assert world.leader(id).alter(id, 0, 1, 2) == 0 and world.state(id).brokers == (0, 2)


def test_a_topic_that_is_deleted_while_it_moves_leaves_no_folder(world):
    id = made(world, 0, 1)
    reassign(world, (0, (0, 2)))
    holders = [world.process(id, broker) for broker in (0, 1, 2)]
    world.ask(DeleteTopics(("t",)))
    assert all(process.exited for process in holders) and not world.image.removals


def test_partitions_that_are_added_meanwhile_have_the_target_number_of_replicas(world):
    id = made(world, 0, 1)
    reassign(world, (0, (0, 1, 2)))
    world.ask(CreatePartitions((PartitionGrowth("t", 2),)))
    assert len(world.state(TopicIdPartition(id.topic_id, 1)).replicas) == 3


def test_what_is_being_added_does_not_count_as_out_of_sync(world):
    made(world, 0, 1)
    reassign(world, (0, (0, 1, 2)))
    assert world.ask(ClusterStatus()).under_replicated == ()


def test_replicas_share_processes_where_the_topic_allows(world):
    topic_id = world.create("t", (0, 1), (0, 1), replicas_per_actor=4)
    reassign(world, (0, (0, 2)), (1, (0, 2)))
    nodes = {world.state(TopicIdPartition(topic_id, partition)).node_of(2) for partition in (0, 1)}
    assert len(nodes) == 1


def test_a_replica_that_comes_back_to_the_same_process_has_to_open_again(world):
    world.create("t", (0, 1), (0, 1), replicas_per_actor=4)
    id = TopicIdPartition(next(iter(world.image.topics)), 0)
    process = world.process(id, 1)
    reassign(world, (0, (0,)))
    assert id not in process.held and not world.image.removals
    process.opens = False
    reassign(world, (0, (0, 1)))
    assert world.process(id, 1) is process and id in process.told
    assert world.leader(id).alter(id, 0, 1) == ErrorCode.ineligible_replica, "it is still opening"
    process.open(id)
    world.run_later()
    assert world.leader(id).alter(id, 0, 1) == 0


def test_a_replica_that_may_have_been_in_its_process_before_is_followed_in_a_new_epoch(world):
    """A late fetch of the one before, still on its way to the leader, must not count for the one that is empty."""
    world.create("t", (0, 1), (0, 1), replicas_per_actor=4)
    id = TopicIdPartition(next(iter(world.image.topics)), 0)
    reassign(world, (0, (0,)))
    epoch = world.state(id).leader_epoch
    reassign(world, (0, (0, 1)))
    assert world.state(id).leader_epoch == epoch + 1 and world.state(id).leader == 0
    assert world.leader(id).alter(id, 0, 1) == 0


def test_a_replica_in_a_process_of_its_own_raises_no_epoch(world):
    id = made(world, 0, 1)
    epoch = world.state(id).leader_epoch
    reassign(world, (0, (0, 1, 2)))
    assert world.state(id).leader_epoch == epoch
