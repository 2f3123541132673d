"""Creating what is missing: one pending creation per actor, backoff, no storms."""

from __future__ import annotations

import pytest

from raylog.metadata.events import ActorKind, ActorStarted, ActorStartFailed
from raylog.metadata.requests import ClusterStatus, CreateTopics, DeleteTopics, RequestedTopic
from raylog.types import TopicIdPartition, node_id


@pytest.fixture
def slow(new_world):
    """A world of one broker whose creations take as long as the test likes."""
    world = new_world(brokers=1)
    world.starts_at_once = False
    world.ask(CreateTopics((RequestedTopic("t", 1, 1, configs=(("replicas.per.actor", "1"),)),)))
    world.node = world.starts[0].node_id
    return world


def test_every_registered_broker_gets_its_broker_actor(new_world):
    world = new_world(brokers=2, starts_brokers=True)
    assert [(start.node_id, start.kind, start.path) for start in world.starts] == [
        (node_id(0, 0), ActorKind.BROKER, "/disks/0"),
        (node_id(1, 0), ActorKind.BROKER, "/disks/1"),
    ]
    assert all(process.session is not None for process in world.processes.values())


def test_a_creation_names_the_disk_and_what_it_will_hold(slow):
    (start,) = slow.starts
    assert start.kind is ActorKind.REPLICAS and start.path == "/disks/0" and start.broker_id == 0
    assert start.replicas == (TopicIdPartition(slow.image.topic_ids["t"], 0),)


def test_one_creation_is_pending_however_long_it_takes(slow):
    slow.pass_time(120_000, step=1_000)
    assert len(slow.starts) == 1


def test_a_failed_creation_is_repeated_with_growing_pauses(slow):
    times = []
    for _ in range(5):
        slow.feed(ActorStartFailed(slow.node, "no room"))
        failed_at, count = slow.now, len(slow.starts)
        while len(slow.starts) == count:
            slow.pass_time(100)
        times.append(slow.now - failed_at)
    assert times == [200, 400, 800, 1_600, 3_200]
    assert any("no room" in notice for notice in slow.notices)
    slow.start(slow.starts[-1])
    assert slow.processes[slow.node].session is not None


def test_a_created_process_that_never_says_hello_is_created_again(slow):
    slow.feed(ActorStarted(slow.node))
    slow.pass_time(29_000, step=1_000)
    assert len(slow.starts) == 1
    slow.pass_time(3_000)
    assert len(slow.starts) == 2


@pytest.mark.parametrize("hello_first", [False, True])
def test_a_process_that_outlives_its_topic_does_not_keep_the_next_topic_waiting(slow, hello_first):
    slow.ask(DeleteTopics(("t",)))
    if hello_first:
        slow.launch(slow.node)
        slow.feed(ActorStarted(slow.node))
    else:
        slow.start(slow.starts[0])
    slow.pass_time(100)
    slow.ask(CreateTopics((RequestedTopic("u", 1, 1, configs=(("replicas.per.actor", "1"),)),)))
    slow.pass_time(1_000)
    assert [start.node_id for start in slow.starts] == [slow.node, slow.node]
    slow.start(slow.starts[-1])
    assert slow.processes[slow.node].session is not None


def test_a_hello_that_overtakes_its_creations_report_is_no_missing_hello(slow):
    slow.launch(slow.node)
    slow.feed(ActorStarted(slow.node))
    slow.pass_time(60_000, step=1_000)
    assert len(slow.starts) == 1 and slow.processes[slow.node].session is not None


def test_a_process_that_dies_between_its_hello_and_its_creations_report_is_not_expected_any_more(slow):
    slow.launch(slow.node)
    slow.processes[slow.node].kill()
    assert len(slow.starts) == 1, "its creation is still pending"
    slow.feed(ActorStarted(slow.node))
    slow.pass_time(1_000)
    assert len(slow.starts) == 2
    slow.start(slow.starts[-1])
    assert slow.processes[slow.node].session is not None


def test_a_killed_process_is_created_again_at_once_but_a_crash_loop_slows_down(slow):
    slow.start(slow.starts[-1])
    pauses = []
    for _ in range(4):
        killed_at, count = slow.now, len(slow.starts)
        slow.processes[slow.node].kill()
        while len(slow.starts) == count:
            slow.pass_time(100)
        pauses.append(slow.now - killed_at)
        slow.start(slow.starts[-1])
    assert pauses[0] == 0 and pauses[1:] == [400, 800, 1_600]
    slow.pass_time(11_000)
    count = len(slow.starts)
    slow.processes[slow.node].kill()
    assert len(slow.starts) == count + 1, "a process that lived long was no crash"


def test_a_replica_whose_process_cannot_be_created_does_not_hold_up_the_others(world):
    world.starts_at_once = False
    world.ask(CreateTopics((RequestedTopic("t", assignment=((0, (0, 1, 2)),)),)))
    p = TopicIdPartition(world.image.topic_ids["t"], 0)
    for start in list(world.starts):
        if start.broker_id == 0:
            world.feed(ActorStartFailed(start.node_id, "no such resource"))
        else:
            world.start(start)
    state = world.state(p)
    assert state.leader == 1 and state.isr == (1, 2), "nobody waits for the preferred leader either"


def test_a_new_topic_waits_a_moment_for_its_preferred_leader(world):
    world.starts_at_once = False
    world.ask(CreateTopics((RequestedTopic("t", assignment=((0, (0, 1, 2)),)),)))
    p = TopicIdPartition(world.image.topic_ids["t"], 0)
    for start in list(world.starts):
        if start.broker_id != 0:
            world.start(start)
    assert world.state(p).leader == -1
    world.pass_time(900)
    assert world.state(p).leader == -1
    world.pass_time(200)
    assert (world.state(p).leader, world.state(p).leader_epoch) == (1, 0)
    assert world.state(p).isr == (0, 1, 2), "the others are in sync with the empty log"


def test_topics_go_to_live_brokers_unless_too_few_are_left(world):
    world.create("t", (0,), (1,), (2,))
    world.starts_at_once = False
    world.process(TopicIdPartition(world.image.topic_ids["t"], 2), 2).kill()
    (two,) = world.ask(CreateTopics((RequestedTopic("two", 4, 2),))).topics
    (three,) = world.ask(CreateTopics((RequestedTopic("three", 1, 3),))).topics
    assert two.error == three.error == 0
    assert all(2 not in state.brokers for state in world.image.topic_named("two").partitions.values())


def test_a_process_is_shown_as_live_when_its_registration_is_committed(slow):
    def shown() -> tuple[str, int]:
        (actor,) = [each for each in slow.ask(ClusterStatus()).actors if each.node_id == slow.node]
        return actor.state, actor.incarnation

    slow.persists = False
    process = slow.launch(slow.node)
    assert shown() == ("starting", 0)
    slow.persists = True
    slow.persist()
    assert shown() == ("live", process.incarnation)


def _pause_before_the_next_start(world, leaders: int) -> int:
    """Milliseconds from the death of broker 0's host, which leads that many replicated partitions, to its successor's start."""
    id = TopicIdPartition(world.create("t", *[(0, 1, 2)] * leaders, replicas_per_actor=None), 0)
    process = world.process(id, 0)
    assert all(world.state(TopicIdPartition(id.topic_id, each)).leader == 0 for each in range(leaders))
    world.pass_time(2_000, step=1_000)
    world.starts.clear()
    killed_at = world.now
    process.kill()
    while process.node not in [start.node_id for start in world.starts]:
        assert world.now - killed_at < 500
        world.pass_time(10, step=10)
    return world.now - killed_at


@pytest.mark.parametrize(("leaders", "pause_ms"), [(4, 0), (6, 60), (9, 80)])
def test_a_process_that_led_much_is_replaced_when_others_have_taken_over(new_world, leaders, pause_ms):
    world = new_world(settling_ms_per_leader=10, settling_max_ms=80)
    assert _pause_before_the_next_start(world, leaders) == pause_ms


@pytest.mark.parametrize(
    ("brokers", "min_insync_replicas"), [((0,), 1), ((0, 1), 2)], ids=["nobody leads", "too few in sync"]
)
def test_a_process_without_which_a_partition_takes_no_writes_is_replaced_at_once(
    new_world, brokers, min_insync_replicas
):
    world = new_world(settling_ms_per_leader=10)
    world.create("u", brokers, replicas_per_actor=None, min_insync_replicas=min_insync_replicas)
    assert _pause_before_the_next_start(world, 6) == 0
