"""Brokers that are being drained: who leads instead, and what they may not join."""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from raylog.control.session import AlterPartitionAnswer
from raylog.metadata.requests import CreateTopics, DrainBroker, ElectionType, ElectLeaders, RequestedTopic
from raylog.types import TopicIdPartition, broker_of


def drain(world, broker, is_draining=True):
    reply = world.ask(DrainBroker(broker, is_draining))
    assert reply.error == 0, reply
    return reply


def test_draining_moves_every_leader_in_one_decision(world):
    topic_id = world.create("t", (0, 1, 2), (0, 2, 1), (1, 2, 0))
    reply = drain(world, 0)
    assert reply.moved == (("t", 0), ("t", 1)) and reply.remaining == ()
    states = [world.state(TopicIdPartition(topic_id, partition)) for partition in range(3)]
    assert [state.leader for state in states] == [1, 2, 1]
    assert all(set(state.isr) == {0, 1, 2} for state in states), "a drained replica that is in sync stays so"
    assert drain(world, 0).moved == (), "asking again does nothing"


def test_new_leaders_hear_of_it_before_the_old_one(world):
    id = TopicIdPartition(world.create("t", (0, 1, 2)), 0)
    heard = []
    for broker in range(3):
        process = world.process(id, broker)
        receive = process.receive

        def note(frame, receive=receive, broker=broker):
            heard.append(broker)
            receive(frame)

        process.receive = note
    drain(world, 0)
    assert heard[0] == 1


def test_who_alone_can_lead_leads_on_until_somebody_else_is_in_sync(world):
    id = TopicIdPartition(world.create("t", (0, 1)), 0)
    world.process(id, 1).kill()
    world.run_later()
    assert world.state(id).isr == (0,)
    assert drain(world, 0).remaining == (("t", 0),)
    assert world.state(id).leader == 0
    leader = world.leader(id)
    assert leader.alter(id, 0, 1) == ErrorCode.new_leader_elected
    assert world.state(id).leader == 1 and set(world.state(id).isr) == {0, 1}
    assert isinstance(leader.heard[-1], AlterPartitionAnswer), "the new state arrives before the answer"
    assert drain(world, 0).remaining == ()


def test_a_drained_broker_joins_no_isr_until_it_is_undrained(world):
    id = TopicIdPartition(world.create("t", (0, 1, 2)), 0)
    drain(world, 2)
    world.process(id, 2).kill()
    world.run_later()
    assert world.state(id).isr == (0, 1)
    assert world.leader(id).alter(id, 0, 1, 2) == ErrorCode.ineligible_replica
    drain(world, 2, is_draining=False)
    assert world.leader(id).alter(id, 0, 1, 2) == 0


def test_a_drained_member_that_is_in_sync_hinders_no_other_change(world):
    id = TopicIdPartition(world.create("t", (0, 1, 2)), 0)
    drain(world, 2)
    assert world.leader(id).alter(id, 0, 2) == 0
    assert world.leader(id).alter(id, 0, 1, 2) == 0


def test_an_election_takes_a_drained_broker_last_but_takes_it(world):
    id = TopicIdPartition(world.create("t", (0, 1, 2)), 0)
    drain(world, 1)
    world.process(id, 0).kill()
    assert world.state(id).leader == 2, "1 stands before 2"
    world.starts_at_once = False
    world.process(id, 2).kill()
    assert world.state(id).leader == 1, "better than nobody"


def test_preferred_elections_and_balance_leave_a_drained_broker_alone(world):
    id = TopicIdPartition(world.create("t", (0, 1, 2)), 0)
    drain(world, 0)
    outcome = world.ask(ElectLeaders(ElectionType.PREFERRED, (("t", 0),))).partitions[0]
    assert outcome.error == ErrorCode.preferred_leader_not_available and "being drained" in outcome.message
    world.pass_time(310_000, step=1_000)
    assert world.state(id).leader == 1
    drain(world, 0, is_draining=False)
    assert world.state(id).leader == 1, "undraining moves nothing by itself"
    world.pass_time(310_000, step=1_000)
    assert world.state(id).leader == 0


def test_draining_outlives_the_controller_and_the_broker(world):
    id = TopicIdPartition(world.create("t", (0, 1, 2)), 0)
    drain(world, 0)
    world.restart_controller()
    for process in list(world.processes.values()):
        process.hello()
    world.run_later()
    assert world.image.draining == {0} and world.state(id).leader == 1


def test_new_topics_avoid_a_drained_broker_where_they_can(world):
    drain(world, 1)
    world.ask(CreateTopics((RequestedTopic("two", 3, 2), RequestedTopic("three", 1, 3))))
    topics = {topic.name: topic for topic in world.image.topics.values()}
    used = {broker_of(slot.node_id) for state in topics["two"].partitions.values() for slot in state.replicas}
    assert used == {0, 2}
    assert len(topics["three"].partitions[0].replicas) == 3


def test_a_new_partition_does_not_wait_for_a_preferred_leader_that_is_drained(world):
    drain(world, 0)
    id = TopicIdPartition(world.create("t", (0, 1)), 0)
    assert world.state(id).leader == 1


def test_an_unknown_broker_is_not_drained(world):
    assert world.ask(DrainBroker(77)).error == ErrorCode.broker_id_not_registered
