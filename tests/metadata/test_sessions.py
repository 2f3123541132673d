"""Control sessions: who is let in, what a return raises, who is told to exit."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest
from kio.schema.errors import ErrorCode

from raylog.control.session import Exit, Heartbeat, Hello
from raylog.metadata.events import SessionClosed, SessionFrame, SessionHello
from raylog.types import ActorIdentity, Endpoint, TopicIdPartition, node_id


@pytest.fixture
def led(world):
    """A world with a topic of three replicas, led by broker 0."""
    world.topic = world.create("t", (0, 1, 2), min_insync_replicas=2)
    world.p = TopicIdPartition(world.topic, 0)
    world.starts_at_once = False
    assert world.state(world.p).leader == 0 and world.state(world.p).leader_epoch == 0
    return world


def test_a_session_that_returns_with_the_same_incarnation_raises_nothing(led):
    leader = led.leader(led.p)
    before = led.image.copy()
    leader.heard.clear()
    leader.lose_session()
    led.pass_time(200)
    leader.hello()
    led.run_later()
    led.pass_time(2_000)
    assert led.image == before
    assert [type(frame).__name__ for frame in leader.heard] == ["Welcome", "Assignment"], (
        "and is told what it may have missed"
    )


def test_a_return_to_a_new_controller_raises_nothing_either(led):
    before = led.image.copy()
    led.restart_controller()
    for process in list(led.processes.values()):
        process.hello()
    led.run_later()
    assert led.image == before
    assert led.controller.controller_epoch == 2
    assert {frame.told[led.p].controller_epoch for frame in led.processes.values()} == {2}


def test_a_new_incarnation_moves_leadership_even_if_the_death_was_not_noticed(led):
    leader = led.leader(led.p)
    led.launch(leader.node)
    state = led.state(led.p)
    assert (state.leader, state.leader_epoch) == (1, 1)
    assert set(state.isr) == {1, 2}, "after an unclean stop it has to prove by fetching that it holds everything"
    assert leader.exited, "the process that it replaced is told to exit"
    assert led.controller.active.latest.actors[leader.node].former == (leader.incarnation,)


def test_the_only_replica_leads_again_in_a_higher_epoch_after_a_restart(world):
    topic = world.create("t", (0,))
    p = TopicIdPartition(topic, 0)
    world.leader(p).kill()  # and created again at once
    state = world.state(p)
    assert state.leader == 0 and state.leader_epoch == 2, "1: nobody led; 2: the new incarnation"
    assert state.leader_incarnation == world.process(p, 0).incarnation and state.isr == (0,)
    assert state.unclean_elections == 0


def test_a_process_that_was_replaced_is_told_to_exit_when_it_comes_back(led):
    old = led.leader(led.p)
    old.lose_session()
    led.answers_dials = False
    new = led.launch(old.node)
    image = led.image.copy()
    old.hello()
    led.run_later()
    assert old.exited and old.session is None
    assert led.image == image and new.session is not None and not new.exited


def test_one_declared_dead_that_returns_keeps_its_incarnation_if_no_newer_one_came(led):
    old = led.leader(led.p)
    old.mute = True
    old.lose_session()
    led.pass_time(9_100)
    assert not led.image.actors[old.node].alive and led.state(led.p).leader == 1
    old.mute = False
    old.hello()
    led.run_later()
    assert led.image.actors[old.node].alive and not old.exited
    assert led.state(led.p).leader == 1, "it follows now"
    assert old.told[led.p].leader_epoch == 1


def test_a_leader_that_comes_back_without_the_replica_does_not_lead_on(led):
    leader = led.leader(led.p)
    leader.lose_session()
    leader.held.clear()
    leader.opens = False
    leader.hello()
    led.run_later()
    assert led.state(led.p).leader == 1


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"cluster_id": "another"}, "this is cluster a-test-cluster"),
        ({"node_id": node_id(9, 2)}, "broker 9 is not registered"),
        ({"directory_id": uuid.UUID(int=0xD001)}, "is not registered for broker 0"),
        ({"directory_id": uuid.UUID(int=1)}, "is not registered for broker 0"),
        ({"node_id": node_id(0, 77)}, "nothing is assigned"),
    ],
)
def test_a_stranger_is_told_to_exit_and_why(led, changes, reason):
    process = led.leader(led.p)
    heard = []
    process_like = type("Stranger", (), {"session": 99, "receive": lambda self, frame: heard.append(frame)})()
    led.sessions[99] = process_like
    identity = replace(ActorIdentity("a-test-cluster", process.node, uuid.UUID(int=0xD000), 999), **changes)
    image = led.image.copy()
    led.feed(SessionHello(99, Hello(identity, Endpoint("h", 1), "boot")))
    assert isinstance(heard[0], Exit) and reason in heard[0].reason
    assert led.image == image and 99 not in led.sessions


def test_what_a_replaced_session_says_counts_for_nothing(led):
    leader = led.leader(led.p)
    old_session = leader.session
    leader.hello()
    led.run_later()
    assert old_session not in led.sessions, "it is closed"
    led.feed(SessionFrame(old_session, Heartbeat()))
    led.feed(SessionClosed(old_session))
    assert not led.dials and leader.session in led.sessions


def test_a_second_hello_in_one_session_ends_it(led):
    leader = led.leader(led.p)
    leader.say(Hello(ActorIdentity("a-test-cluster", leader.node, uuid.UUID(int=0xD000), 1), leader.endpoint, "boot"))
    assert leader.exited


def test_a_replica_that_failed_moves_leadership_and_leaves_the_isr(led):
    led.leader(led.p).fail(led.p)
    state = led.state(led.p)
    assert (state.leader, state.isr) == (1, (1, 2))
    assert any("disk on fire" in notice for notice in led.notices)


def test_the_last_replica_that_fails_leaves_the_partition_without_a_leader(world):
    topic = world.create("t", (0,))
    p = TopicIdPartition(topic, 0)
    world.leader(p).fail(p)
    assert (world.state(p).leader, world.state(p).isr) == (-1, (0,))
    assert world.process(p, 0).held == {}, "it is not asked to open it again: an IO error is never retried in silence"


def test_a_standby_turns_everybody_away(led):
    from raylog.metadata.controller import Controller
    from raylog.metadata.events import CloseSession, RequestReceived, SendControllerReply
    from raylog.metadata.requests import DescribeCluster
    from raylog.raft.messages import HardState, bootstrap_snapshot
    from raylog.raft.quorum import Quorum, QuorumConfig

    me, other = uuid.UUID(int=1), uuid.UUID(int=2)
    quorum = Quorum(
        me, hard_state=HardState(), snapshot=bootstrap_snapshot("c", [me, other]), entries=(), config=QuorumConfig(),
        draw_election_timeout_ms=lambda: 1_000, now_ms=0,
    )  # fmt: skip
    standby = Controller(quorum, controller_node=1, config=led.config, plan=None, new_uuid=None)
    assert standby.start(0) == [] or all(type(effect).__name__ != "SendFrame" for effect in standby.start(0))
    hello = Hello(ActorIdentity("c", 1, me, 5), Endpoint("h", 1), "boot")
    assert standby.handle(SessionHello(1, hello), 0) == [CloseSession(1)]
    (reply,) = standby.handle(RequestReceived(7, DescribeCluster()), 0)
    assert isinstance(reply, SendControllerReply) and reply.reply.error == ErrorCode.not_controller


def test_a_process_that_listens_elsewhere_is_found_there_without_a_new_epoch(led):
    leader, follower = led.leader(led.p), led.process(led.p, 1)
    leader.lose_session()
    leader.endpoint = Endpoint("127.0.0.1", 4)
    leader.hello()
    led.run_later()
    assert led.state(led.p).leader_epoch == 0
    told = {replica.broker_id: replica.endpoint for replica in follower.told[led.p].replicas}
    assert told[0] == leader.endpoint
