"""AlterPartition: what a leader may ask, and how it is refused."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from raylog.control.session import AlterPartition, AlterPartitionAnswer, Assignment
from raylog.metadata.requests import AlterReassignments, PartitionTarget
from raylog.types import TopicIdPartition


@pytest.fixture
def led(world):
    world.topic = world.create("t", (0, 1, 2))
    world.p = TopicIdPartition(world.topic, 0)
    world.starts_at_once = False
    return world


def test_a_leader_shrinks_and_grows_its_isr(led):
    leader = led.leader(led.p)
    assert leader.alter(led.p, 0, 2) == 0
    state = led.state(led.p)
    assert (state.isr, state.leader_epoch) == ((0, 2), 0)
    assert leader.alter(led.p, 0, 2, 1) == 0
    assert led.state(led.p).isr == (0, 2, 1)
    assert led.state(led.p).partition_epoch == state.partition_epoch + 1


def test_the_new_state_is_told_to_everybody_before_the_answer(led):
    leader, follower = led.leader(led.p), led.process(led.p, 1)
    leader.heard.clear()
    follower.heard.clear()
    leader.alter(led.p, 0, 1)
    assert [type(frame) for frame in leader.heard] == [Assignment, AlterPartitionAnswer]
    assert [frame.isr for frame in follower.heard] == [(0, 1)]


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"leader_epoch": -1}, ErrorCode.fenced_leader_epoch),
        ({"leader_epoch": 9}, ErrorCode.not_controller),
        ({"partition_epoch": 0}, ErrorCode.invalid_update_version),
        ({"partition_epoch": 99}, ErrorCode.not_controller),
        ({"partition": 1}, ErrorCode.unknown_topic_or_partition),
        ({"isr": ((0, 1), (0, 1))}, ErrorCode.invalid_request),
        ({"isr": ((1, 2),)}, ErrorCode.invalid_request),
        ({"isr": ((0, 1), (7, 2))}, ErrorCode.invalid_request),
    ],
)
def test_a_request_out_of_order_is_refused_and_changes_nothing(led, changes, error):
    before = led.state(led.p)
    assert led.leader(led.p).alter(led.p, 0, 1, **changes) == error
    assert led.state(led.p) == before


def test_a_stale_request_is_refused(led):
    leader = led.leader(led.p)
    before = led.state(led.p).partition_epoch
    assert leader.alter(led.p, 0, 1) == 0
    assert leader.alter(led.p, 0, partition_epoch=before) == ErrorCode.invalid_update_version
    assert led.state(led.p).isr == (0, 1)


def test_only_the_leader_may_ask(led):
    assert led.process(led.p, 1).alter(led.p, 0, 1) == ErrorCode.invalid_request


def test_a_former_leader_is_fenced(led):
    old = led.leader(led.p)
    old.mute = True
    led.answers_dials = False
    old.lose_session()
    told = old.told[led.p]
    led.pass_time(9_100)
    assert led.state(led.p).leader == 1
    old.mute = False
    old.hello()
    led.run_later()
    old.told[led.p] = told
    assert old.alter(led.p, 0) == ErrorCode.fenced_leader_epoch


def test_a_dead_replica_cannot_join(led):
    leader, follower = led.leader(led.p), led.process(led.p, 2)
    follower.kill()
    assert led.state(led.p).isr == (0, 1)
    assert leader.alter(led.p, 0, 1, 2) == ErrorCode.ineligible_replica


def test_a_replica_without_a_session_cannot_join_but_may_stay(led):
    leader, follower = led.leader(led.p), led.process(led.p, 2)
    led.answers_dials = False
    follower.lose_session()
    assert leader.alter(led.p, 0, 2) == 0, "nobody has judged it dead, and it is a member"
    assert leader.alter(led.p, 0) == 0
    assert leader.alter(led.p, 0, 2) == ErrorCode.ineligible_replica


def test_a_replica_that_has_not_opened_its_log_cannot_join(led):
    leader = led.leader(led.p)
    led.process(led.p, 2).kill()
    follower = led.launch(led.state(led.p).node_of(2), says_hello=False)
    follower.opens = False
    follower.hello()
    led.run_later()
    assert leader.alter(led.p, 0, 1, 2) == ErrorCode.ineligible_replica
    follower.open(led.p)
    led.run_later()
    assert leader.alter(led.p, 0, 1, 2) == 0


def test_a_member_of_another_incarnation_than_was_seen_fetching_is_refused(led):
    leader, follower = led.leader(led.p), led.process(led.p, 2)
    isr = ((0, leader.incarnation), (2, follower.incarnation))
    led.launch(follower.node)
    assert leader.alter(led.p, 0, 2, isr=isr) == ErrorCode.ineligible_replica
    assert leader.alter(led.p, 0, 2) == 0


def test_a_refused_leader_is_told_the_state_that_it_missed(led):
    leader = led.leader(led.p)
    leader.heard.clear()
    leader.alter(led.p, 0, 1, partition_epoch=0)
    assert [type(frame) for frame in leader.heard] == [Assignment, AlterPartitionAnswer]


def test_a_former_leader_whose_replica_has_moved_away_is_not_given_it_back(world):
    """What it asks arrives late: an Assignment in answer would make it open the folder that it has just deleted, for nobody to remove."""
    topic = world.create("t", (0, 1), (0, 1), replicas_per_actor=2)
    id = TopicIdPartition(topic, 0)
    former = world.leader(id)
    told = former.told[id]
    late = AlterPartition(99, *id, told.leader_epoch, told.partition_epoch, ((0, former.incarnation),))
    world.ask(AlterReassignments((PartitionTarget("t", 0, (1,)),)))
    assert world.state(id).brokers == (1,) and id not in former.held and former.session is not None
    former.heard.clear()
    former.say(late)
    (answer,) = former.heard
    assert isinstance(answer, AlterPartitionAnswer) and answer.error == ErrorCode.fenced_leader_epoch
    assert id not in former.held


def test_an_isr_that_is_already_so_is_granted_without_a_decision(led):
    before = led.state(led.p)
    assert led.leader(led.p).alter(led.p, *before.isr) == 0
    assert led.state(led.p) == before
