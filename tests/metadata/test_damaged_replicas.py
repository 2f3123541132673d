"""Replicas with damaged bytes in their logs: who leads instead, and what they are counted in no more."""

from __future__ import annotations

from dataclasses import replace

from kio.schema.errors import ErrorCode

from raylog.control.session import ReplicaDamaged, ReplicaMended
from raylog.metadata.requests import AlterReassignments, ClusterStatus, PartitionTarget
from raylog.types import TopicIdPartition

WORDS = "/disks/0/t-0/00000000000000000000.log at byte 99, offset 4: a CRC does not fit"


def partition(world, *replicas, **configs):
    return TopicIdPartition(world.create("t", replicas, **configs), 0)


def complain(world, id, broker):
    process = world.process(id, broker)
    process.say(ReplicaDamaged(*id, process.told[id].leader_epoch, WORDS))


def test_leadership_goes_to_another_member_and_the_damaged_one_is_counted_on_no_more(world):
    id = partition(world, 0, 1, 2)
    before = world.state(id)
    complain(world, id, 0)
    after = world.state(id)
    assert (after.leader, after.isr, after.elr) == (1, (1, 2), ())
    assert after.leader_epoch == before.leader_epoch + 1 and after.unclean_elections == 0
    told = world.process(id, 0).told[id]
    assert (told.leader, told.isr, told.elr) == (1, (1, 2), ())
    assert any("broker 0 is damaged" in notice and WORDS in notice for notice in world.notices)


def test_a_damaged_follower_leaves_the_isr_in_a_new_epoch_of_the_same_leader(world):
    id = partition(world, 0, 1, 2)
    before = world.state(id)
    complain(world, id, 2)
    after = world.state(id)
    assert (after.leader, after.isr) == (0, (0, 1))
    assert after.leader_epoch == before.leader_epoch + 1, "what the leader has seen it hold counts no more"
    world.pass_time(3_000)
    assert world.state(id).leader_epoch == after.leader_epoch, "once"


def test_it_is_no_eligible_leader_either(world):
    id = partition(world, 0, 1, **{"min.insync.replicas": "2"})
    complain(world, id, 1)
    assert (world.state(id).isr, world.state(id).elr) == ((0,), ())


def test_it_joins_again_when_it_has_dropped_the_damage(world):
    id = partition(world, 0, 1, 2)
    complain(world, id, 2)
    assert world.leader(id).alter(id, 0, 1, 2) == ErrorCode.ineligible_replica
    world.process(id, 2).say(ReplicaMended(*id))
    assert world.leader(id).alter(id, 0, 1, 2) == 0
    assert any("copied from the leader" in notice for notice in world.notices)


def test_a_reassignment_does_not_end_while_only_damaged_replicas_would_stay(world):
    id = partition(world, 0, 1)
    world.process(id, 1).lose_session()
    complain(world, id, 0)
    reply = world.ask(AlterReassignments((PartitionTarget("t", 0, (0,)),)))
    assert reply.partitions[0].error == 0
    assert world.state(id).brokers == (0, 1) and world.state(id).removing == (1,)
    world.process(id, 0).say(ReplicaMended(*id))
    assert world.state(id).brokers == (0,)


def test_who_alone_is_in_sync_leads_on_until_another_one_is(world):
    id = partition(world, 0, 1)
    world.process(id, 1).kill()
    world.run_later()
    assert world.state(id).isr == (0,)
    epoch = world.state(id).leader_epoch
    complain(world, id, 0)
    assert (world.state(id).leader, world.state(id).leader_epoch) == (0, epoch)
    assert world.leader(id).alter(id, 0, 1) == ErrorCode.new_leader_elected
    assert (world.state(id).leader, world.state(id).isr) == (1, (1,))


def test_where_every_live_member_is_damaged_nothing_changes(world):
    id = partition(world, 0, 1)
    complain(world, id, 1)
    complain(world, id, 0)
    world.process(id, 1).say(ReplicaMended(*id))
    state = world.state(id)
    assert (state.leader, state.isr) == (0, (0,)), "the follower was dropped first, and is not in sync"


def test_a_damaged_member_leads_only_if_no_other_can(world):
    id = partition(world, 0, 1, 2)
    world.process(id, 1).lose_session()
    world.process(id, 2).lose_session()
    complain(world, id, 0)
    assert world.state(id).leader == 0, "the others are being dialled"
    world.process(id, 2).hello()
    assert world.state(id).leader == 2


def test_a_new_controller_hears_of_damage_in_the_hello(world):
    id = partition(world, 0, 1, 2)
    process = world.process(id, 0)
    world.restart_controller()
    process.held[id] = replace(process.held[id], damage=WORDS, assigned_leader_epoch=world.state(id).leader_epoch)
    for broker in (1, 2, 0):
        world.process(id, broker).hello()
    assert world.state(id).leader == 1 and 0 not in world.state(id).isr


def test_a_report_of_an_epoch_that_is_over_asks_for_no_other(world):
    id = partition(world, 0, 1, 2)
    complain(world, id, 2)
    state = world.state(id)
    world.process(id, 2).say(ReplicaDamaged(*id, state.leader_epoch - 1, WORDS))
    assert world.state(id) == state


def test_the_status_names_the_damage_and_what_was_mended(world):
    id = partition(world, 0, 1, 2)
    complain(world, id, 0)
    damaged = {each.node_id: each.damaged for each in world.ask(ClusterStatus()).actors}
    assert damaged[world.process(id, 0).node] == (("t", 0, WORDS),)
    world.process(id, 0).say(ReplicaMended(*id))
    actor = {each.node_id: each for each in world.ask(ClusterStatus()).actors}[world.process(id, 0).node]
    assert actor.damaged == () and actor.mended == (("t", 0, WORDS),)
