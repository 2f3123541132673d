"""Brokers whose Ray node is about to go: drained by the notice of their own process, for as long as that process lives."""

from __future__ import annotations

from raylog.control.session import NodeLeaving
from raylog.metadata.image import MetadataImage
from raylog.metadata.requests import CreateTopics, DescribeCluster, DrainBroker, RequestedTopic
from raylog.types import TopicIdPartition, broker_of


def launch_brokers(world, broker_node):
    return [world.launch(broker_node(broker)) for broker in range(3)]


def draining(world):
    return [broker.broker_id for broker in world.ask(DescribeCluster()).brokers if broker.is_draining]


def test_the_leaders_of_a_node_that_is_about_to_go_leave_it_in_one_decision(world, broker_node):
    brokers = launch_brokers(world, broker_node)
    topic_id = world.create("t", (0, 1, 2), (0, 2, 1), (1, 2, 0))
    entries = len(world.entries)
    brokers[0].say(NodeLeaving())
    world.run_later()
    states = [world.state(TopicIdPartition(topic_id, partition)) for partition in range(3)]
    assert [state.leader for state in states] == [1, 2, 1]
    assert all(set(state.isr) == {0, 1, 2} for state in states)
    assert len(world.entries) == entries + 1 and draining(world) == [0]
    brokers[0].say(NodeLeaving())
    assert len(world.entries) == entries + 1, "saying it again decides nothing"


def test_the_next_process_of_the_broker_is_not_draining(world, broker_node):
    launch_brokers(world, broker_node)
    id = TopicIdPartition(world.create("t", (0, 1, 2)), 0)
    world.processes[broker_node(0)].say(NodeLeaving())
    for process in (world.process(id, 0), world.processes[broker_node(0)]):
        process.kill()
    assert draining(world) == [0], "while nobody has come back"
    world.launch(broker_node(0))
    world.run_later()
    assert draining(world) == []
    assert world.state(id).leader == 1, "a return moves nothing by itself"
    assert world.leader(id).alter(id, 0, 1, 2) == 0, "it may join the ISR again"


def test_a_snapshot_knows_who_is_leaving(world, broker_node):
    launch_brokers(world, broker_node)
    world.processes[broker_node(0)].say(NodeLeaving())
    image = MetadataImage.of(world.image.records())
    assert image == world.image and image.is_draining(0)


def test_a_new_controller_knows_who_is_leaving(world, broker_node):
    launch_brokers(world, broker_node)
    id = TopicIdPartition(world.create("t", (0, 1, 2)), 0)
    world.processes[broker_node(0)].say(NodeLeaving())
    world.restart_controller()
    for process in list(world.processes.values()):
        process.hello()
    world.run_later()
    assert draining(world) == [0] and world.state(id).leader == 1


def test_new_topics_avoid_a_broker_that_is_leaving_where_they_can(world, broker_node):
    launch_brokers(world, broker_node)
    world.processes[broker_node(1)].say(NodeLeaving())
    world.ask(CreateTopics((RequestedTopic("two", 3, 2),)))
    (topic,) = world.image.topics.values()
    used = {broker_of(slot.node_id) for state in topic.partitions.values() for slot in state.replicas}
    assert used == {0, 2}


def test_a_drain_by_hand_outlives_the_notice_and_its_process(world, broker_node):
    launch_brokers(world, broker_node)
    assert world.ask(DrainBroker(0, True)).error == 0
    world.processes[broker_node(0)].say(NodeLeaving())
    world.launch(broker_node(0))
    world.run_later()
    assert draining(world) == [0]
    assert world.ask(DrainBroker(0, False)).error == 0
    assert draining(world) == []


def test_a_replica_speaks_for_no_broker(world, broker_node):
    launch_brokers(world, broker_node)
    id = TopicIdPartition(world.create("t", (0, 1, 2)), 0)
    world.leader(id).say(NodeLeaving())
    assert draining(world) == [] and world.state(id).leader == 0
