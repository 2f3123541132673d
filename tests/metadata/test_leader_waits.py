"""AwaitLeader: the answer comes with the election, and never names a dead leader."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from raylog.metadata.events import RequestAbandoned
from raylog.metadata.requests import AwaitLeader, CreateTopics, DeleteTopics, RequestedTopic
from raylog.types import TopicIdPartition


@pytest.fixture
def led(world):
    world.topic = world.create("t", (0, 1, 2))
    world.p = TopicIdPartition(world.topic, 0)
    world.starts_at_once = False
    return world


def ask(world, epoch, timeout_ms=1_000):
    return world.ask(AwaitLeader("t", 0, epoch, timeout_ms), wait=False)


def test_a_live_leader_of_a_newer_epoch_is_named_at_once(led):
    leader = led.leader(led.p)
    reply = led.replies[ask(led, -1)]
    assert (reply.error, reply.leader_node, reply.leader_epoch) == (0, leader.node, 0)
    assert (reply.endpoint, reply.topic_id) == (leader.endpoint, led.topic)


def test_the_answer_waits_for_the_election_and_comes_with_its_commit(led):
    token = ask(led, 0)
    led.pass_time(200)
    assert token not in led.replies
    led.persists = False
    led.leader(led.p).kill()
    assert token not in led.replies, "decided, not committed"
    led.persists = True
    led.persist()
    reply = led.replies[token]
    assert (reply.error, reply.leader_node, reply.leader_epoch) == (0, led.process(led.p, 1).node, 1)


def test_a_leader_whose_session_has_ended_is_not_named_until_it_is_known_to_live(led):
    led.answers_dials = False
    led.leader(led.p).lose_session()
    token = ask(led, -1)
    assert token not in led.replies
    led.leader(led.p).hello()
    led.run_later()
    assert led.replies[token].leader_node == led.leader(led.p).node


def test_at_the_deadline_a_live_leader_of_the_same_epoch_is_better_than_none(led):
    token = ask(led, 0)
    led.pass_time(900)
    assert token not in led.replies
    led.pass_time(200)
    reply = led.replies[token]
    assert (reply.error, reply.leader_epoch) == (0, 0), "the asker had lost its connection, not its leader"


def test_at_the_deadline_without_a_live_leader_none_is_named(led):
    for process in list(led.processes.values()):
        process.kill()
    token = ask(led, 0)
    led.pass_time(1_100)
    assert led.replies[token].error == ErrorCode.leader_not_available
    assert led.replies[token].leader_node == -1
    assert led.replies[ask(led, 0, 0)].error == ErrorCode.leader_not_available, "no timeout: no wait"


def test_waiting_for_an_unknown_partition_ends_at_once(led):
    assert led.ask(AwaitLeader("u", 0, -1, 1_000)).error == ErrorCode.unknown_topic_or_partition
    assert led.ask(AwaitLeader("t", 1, -1, 1_000)).error == ErrorCode.unknown_topic_or_partition


def test_waiting_for_a_partition_ends_with_the_commit_that_deletes_its_topic(led):
    led.create("other", (0, 1, 2))
    token, other = ask(led, 0), led.ask(AwaitLeader("other", 0, 0, 1_000), wait=False)
    led.persists = False
    led.ask(DeleteTopics(("t",)), wait=False)
    assert token not in led.replies, "decided, not committed"
    led.persists = True
    led.persist()
    assert led.replies[token].error == ErrorCode.unknown_topic_or_partition
    assert other not in led.replies, "its topic is there"


def test_a_new_topics_first_leader_is_awaited(world):
    world.starts_at_once = False
    world.ask(CreateTopics((RequestedTopic("t", 1, 1),)))
    token = ask(world, -1)
    assert token not in world.replies
    world.start(world.starts[-1])
    assert world.replies[token].leader_epoch == 0


def test_who_has_gone_away_gets_no_answer(led):
    token = ask(led, 0)
    led.feed(RequestAbandoned(token))
    led.leader(led.p).kill()
    led.pass_time(1_100)
    assert token not in led.replies
