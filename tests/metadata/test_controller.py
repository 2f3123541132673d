"""The controller as a whole: topics come to life, leaders die, sessions come and go."""

from __future__ import annotations

from raylog.control.session import Assignment, Welcome
from raylog.types import TopicIdPartition


def test_a_created_topic_gets_its_processes_and_its_preferred_leader(world):
    topic = world.create("flights", (0, 1, 2), (1, 2, 0))
    assert len(world.starts) == 6, "one server actor per replica"
    for partition, preferred in ((0, 0), (1, 1)):
        state = world.state(TopicIdPartition(topic, partition))
        assert (state.leader, state.leader_epoch) == (preferred, 0)
        assert set(state.isr) == {0, 1, 2}
    for process in world.processes.values():
        assert isinstance(process.heard[0], Welcome)
        (told,) = process.told.values()
        assert told.controller_epoch == 1 and told.leader_epoch == 0
        assert all(replica.incarnation and replica.endpoint for replica in told.replicas)


def test_tv_26_the_next_leader_is_found_in_assignment_order_not_in_isr_order(world):
    topic = world.create("t", (1, 2, 0), (2, 0, 1), (0, 1, 2), replicas_per_actor=3)
    p0, p1, p2 = (TopicIdPartition(topic, partition) for partition in range(3))
    leader = world.leader(p2)
    assert leader.alter(p2, 0, 2) == 0 and leader.alter(p2, 0, 2, 1) == 0
    assert world.state(p2).isr == (0, 2, 1)
    before = [world.state(p).leader for p in (p0, p1)]
    assert before == [1, 2]
    world.starts_at_once = False
    leader.kill()
    assert world.state(p2).leader == 1, "assignment order has 1 first, ISR order 2"
    assert world.state(p2).isr == (2, 1)
    assert [world.state(p).leader for p in (p0, p1)] == before
    assert all(0 not in world.state(p).isr for p in (p0, p1))
    assert world.state(p0).leader_epoch == 0, "a follower's death raises no leader epoch"


def test_tv_27_kill_minus_nine_of_the_leader_moves_leadership_to_the_next_replica(world):
    topic = world.create("my-replicated-topic", (1, 2, 0))
    p = TopicIdPartition(topic, 0)
    assert world.state(p).leader == 1
    assert world.leader(p).alter(p, 1, 2, 0) == 0
    assert world.state(p).isr == (1, 2, 0)
    world.starts_at_once = False
    world.leader(p).kill()
    state = world.state(p)
    assert (state.leader, state.brokers, state.isr) == (2, (1, 2, 0), (2, 0))
    told = world.process(p, 2).told[p]
    assert isinstance(told, Assignment) and (told.leader, told.leader_epoch, told.isr) == (2, 1, (2, 0))
