"""CreateTopics and CreatePartitions answer when what they created has leaders; and who is named meanwhile."""

from __future__ import annotations

import uuid
from types import SimpleNamespace

import pytest
from kio.schema.errors import ErrorCode

from raylog.metadata.events import RequestAbandoned, SendControllerReply
from raylog.metadata.partitions import new_partitions
from raylog.metadata.partitions.creation_waits import CREATION, CreationWaits
from raylog.metadata.requests import (
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    DescribeTopics,
    DrainBroker,
    PartitionGrowth,
    RequestedTopic,
    TopicCreation,
    TopicsCreated,
)
from raylog.timers import Timers
from raylog.types import NO_LEADER, TopicIdPartition

ASSIGNMENT = ((0, (0, 1, 2)), (1, (1, 2, 0)))


@pytest.fixture
def slow(world):
    """Processes start, and do not open what they are assigned."""
    world.starts_at_once = False
    return world


def create(world, timeout_ms, *, validate_only=False):
    request = CreateTopics((RequestedTopic("t", assignment=ASSIGNMENT),), validate_only, timeout_ms)
    return world.ask(request, wait=False)


def start(world, *, brokers=(0, 1, 2), opens=True):
    for each in [each for each in world.starts if each.broker_id in brokers and each.node_id not in world.processes]:
        world.launch(each.node_id, says_hello=False).opens = opens
        world.processes[each.node_id].hello()
    world.run_later()


def open_all(world):
    for process in sorted(world.processes.values(), key=lambda each: each.node):
        for id in sorted(process.told):
            if id not in process.held:
                process.open(id)
    world.run_later()


def views(world):
    (topic,) = world.ask(DescribeTopics(("t",))).topics
    return topic.partitions


def test_the_reply_waits_until_all_partitions_have_leaders(slow):
    token = create(slow, 5_000)
    slow.pass_time(200)
    assert token not in slow.replies
    start(slow, brokers=(0,))
    slow.pass_time(200)
    assert token not in slow.replies, "partition 1 still waits for its preferred leader"
    start(slow)
    (topic,) = slow.replies[token].topics
    assert (topic.error, topic.partitions, topic.replication_factor) == (0, 2, 3)
    assert [slow.state(TopicIdPartition(topic.topic_id, number)).leader for number in (0, 1)] == [0, 1]


def test_the_leaders_assignment_is_on_its_way_before_the_reply(slow):
    order = []
    perform = slow.perform
    slow.perform = lambda effects: (order.extend(effects), perform(effects))
    token = create(slow, 5_000)
    start(slow)
    leaders = [
        index for index, effect in enumerate(order) if getattr(getattr(effect, "frame", None), "leader_epoch", -1) >= 0
    ]
    (reply,) = [index for index, effect in enumerate(order) if getattr(effect, "token", None) == token]
    assert leaders and max(leaders[:2]) < reply


def test_a_reply_without_a_timeout_leaves_with_the_commit(slow):
    token = create(slow, None)
    assert slow.replies[token].topics[0].error == 0


def test_a_validated_topic_is_waited_for_by_nobody(slow):
    assert slow.replies[create(slow, 5_000, validate_only=True)].topics[0].error == 0


def test_at_its_timeout_the_topic_is_created_and_the_answer_says_timed_out(slow):
    token = create(slow, 500)
    slow.pass_time(400)
    assert token not in slow.replies
    slow.pass_time(200)
    (topic,) = slow.replies[token].topics
    assert topic.error == ErrorCode.request_timed_out and "created" in topic.message
    assert "t" in slow.image.topic_ids


def test_a_timeout_of_zero_is_timed_out_at_the_commit(slow):
    token = create(slow, 0)
    assert slow.replies[token].topics[0].error == ErrorCode.request_timed_out
    assert "t" in slow.image.topic_ids


def test_only_topics_that_lack_leaders_are_timed_out(slow):
    quick, late = RequestedTopic("quick", assignment=((0, (0,)),)), RequestedTopic("late", assignment=((0, (1,)),))
    bad = RequestedTopic("bad", assignment=((0, (77,)),))
    token = slow.ask(CreateTopics((quick, late, bad), timeout_ms=500), wait=False)
    start(slow, brokers=(0,))
    slow.pass_time(600)
    errors = [topic.error for topic in slow.replies[token].topics]
    assert errors == [0, ErrorCode.request_timed_out, ErrorCode.invalid_replica_assignment]


def test_a_decision_that_is_not_committed_in_time_is_timed_out_once(slow):
    slow.persists = False
    token = create(slow, 500)
    slow.pass_time(600)
    assert slow.replies[token].topics[0].error == ErrorCode.request_timed_out
    slow.persists = True
    slow.persist()  # "answered twice" would be raised here
    start(slow)


def test_a_deleted_topic_ends_the_wait(slow):
    token = create(slow, 60_000)
    slow.ask(DeleteTopics(("t",)))
    assert slow.replies[token].topics[0].error == 0


def test_an_abandoned_request_is_forgotten(slow):
    token = create(slow, 60_000)
    slow.feed(RequestAbandoned(token))
    start(slow)
    slow.pass_time(100)
    assert token not in slow.replies


def test_growth_waits_for_the_leaders_of_the_new_partitions(world):
    world.create("t", (0, 1, 2))
    world.starts_at_once = False
    world.starts.clear()
    request = CreatePartitions((PartitionGrowth("t", 2, ((1, 2, 0),)),), timeout_ms=60_000)
    token = world.ask(request, wait=False)
    assert token not in world.replies
    assert views(world)[0].leader_node >= 0
    start(world)
    open_all(world)
    assert world.replies[token].topics[0].error == 0


def test_growth_is_timed_out_as_creation_is(world):
    world.create("t", (0, 1, 2))
    world.starts_at_once = False
    token = world.ask(CreatePartitions((PartitionGrowth("t", 2),), timeout_ms=300), wait=False)
    world.pass_time(400)
    assert world.replies[token].topics[0].error == ErrorCode.request_timed_out
    assert len(world.image.topic_named("t").partitions) == 2


# ---------------------------------------------------------------------- who is named


def test_a_new_partition_is_shown_with_the_leader_that_it_will_have(slow):
    create(slow, 60_000)
    start(slow, opens=False)
    nodes = [view.leader_node >> 16 for view in views(slow)]
    assert nodes == [0, 1] and all(view.error == 0 and view.leader_epoch == -1 for view in views(slow))
    open_all(slow)
    assert [view.leader_node >> 16 for view in views(slow)] == nodes
    assert all(view.leader_epoch == 0 for view in views(slow))


def test_controllers_name_only_processes_that_run(slow):
    create(slow, 60_000)
    start(slow, brokers=(2,), opens=False)
    assert [view.leader_node >> 16 for view in views(slow)] == [2, 2]


def test_a_process_that_was_never_started_may_lead_and_a_dead_one_may_not(slow):
    create(slow, 60_000)
    topic = slow.image.topic_named("t")
    first = topic.partitions[0]
    assert new_partitions.leader_or_next(slow.image, first) == 0
    assert new_partitions.leader_or_next(slow.image, first, running=True) == NO_LEADER
    start(slow, brokers=(0,), opens=False)
    slow.process(TopicIdPartition(topic.topic_id, 0), 0).kill()
    assert new_partitions.leader_or_next(slow.image, slow.image.topic_named("t").partitions[0]) == 1


def test_a_draining_broker_is_named_last(slow):
    create(slow, 60_000)
    start(slow, opens=False)
    slow.ask(DrainBroker(0))
    assert [view.leader_node >> 16 for view in views(slow)] == [1, 1]


def test_a_partition_that_somebody_has_led_is_not_new(world):
    world.create("t", (0,))
    world.starts_at_once = False
    id = TopicIdPartition(world.image.topic_named("t").topic_id, 0)
    world.leader(id).kill()
    (view,) = views(world)
    assert (view.error, view.leader_node) == (ErrorCode.leader_not_available, NO_LEADER)


# ------------------------------------------------------------------ the machine, alone

ID = TopicIdPartition(uuid.UUID(int=1), 0)
CREATED = TopicsCreated((TopicCreation("t", 0, None, ID.topic_id, 1, 1),))


class Committed:
    """The committed image, as far as the waits look at it: who leads each partition."""

    def __init__(self, **leaders):
        self.leaders = leaders

    def partition(self, id):
        return SimpleNamespace(leader=self.leaders["leader"])


def waits_for(leader, *, timeout_ms):
    timers = Timers()
    waits = CreationWaits(Committed(leader=leader), timers)
    waits.begin(5, CREATED, {ID: "t"}, timeout_ms=timeout_ms, now_ms=0)
    return waits, timers


@pytest.mark.parametrize("timeout_ms", [0, 1_000])
def test_what_is_led_when_it_is_committed_is_waited_for_by_nobody(timeout_ms):
    waits, timers = waits_for(0, timeout_ms=timeout_ms)
    assert waits.committed(5) == [SendControllerReply(5, CREATED)]
    waits.check()
    assert not waits.partitions() and (CREATION, 5) not in timers


def test_a_deposed_controller_answers_only_what_is_committed():
    waits, timers = waits_for(NO_LEADER, timeout_ms=1_000)
    assert waits.deposed() == [], "another one may decide otherwise"
    assert waits.committed(5) == []
    assert waits.deposed() == [SendControllerReply(5, CREATED)]
    assert (CREATION, 5) not in timers
