"""The hosts of a disk: planned with it, warm before the first topic, and kept when they hold nothing."""

from __future__ import annotations

import uuid

import pytest

from raylog.configs import topic_configs
from raylog.errors import ConfigError
from raylog.metadata.actors.node_slots import NodeSlots
from raylog.metadata.events import ActorKind
from raylog.metadata.image import MetadataImage
from raylog.metadata.records import BrokerRegistered, DiskRegistered, HostKind, HostRetired
from raylog.metadata.requests import (
    AlterReassignments,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    PartitionGrowth,
    PartitionTarget,
    RegisterDisk,
    RequestedTopic,
    UnregisterBroker,
)
from raylog.offsets_topic import OFFSETS_TOPIC
from raylog.types import broker_of, node_id


@pytest.fixture
def world(new_world):
    return new_world(brokers=3, plans_hosts=True)


CLUSTER = "a-test-cluster"


def disk_of(broker):
    return uuid.UUID(int=0xD000 + broker)


def hosts(world, broker, kind=HostKind.REPLICAS):
    return [each.node_id for each in world.image.hosts_of(disk_of(broker)) if each.kind is kind]


def nodes_of(world, topic):
    found = world.image.topic_named(topic)
    return {slot.node_id for state in found.partitions.values() for slot in state.replicas}


def test_each_disk_has_a_host_of_each_kind_before_the_first_topic(world):
    assert [(start.node_id, start.kind) for start in world.starts] == [
        (node_id(broker, slot), kind)
        for broker in range(3)
        for slot, kind in ((2, ActorKind.REPLICAS), (3, ActorKind.COORDINATOR))
    ]
    assert all(process.session is not None for process in world.processes.values())


def test_registering_a_disk_again_plans_nothing(world):
    before = dict(world.image.hosts)
    world.ask(RegisterDisk(CLUSTER, 1, disk_of(1), "/elsewhere/1"))
    assert world.image.hosts == before


def test_a_disk_that_an_older_version_registered_gets_its_hosts_when_it_is_registered_again(new_world):
    world = new_world(brokers=1, plans_hosts=False)
    assert not world.image.hosts
    world.restart_controller(plans_hosts=True)
    world.ask(RegisterDisk(CLUSTER, 0, disk_of(0), "/disks/0"))
    assert [len(hosts(world, 0, kind)) for kind in HostKind] == [1, 1]


def test_replicas_of_all_topics_go_to_the_warm_hosts(world):
    started = len(world.starts)
    world.ask(CreateTopics((RequestedTopic("a", 6, 3), RequestedTopic("b", 6, 3))))
    assert nodes_of(world, "a") == nodes_of(world, "b") == {hosts(world, broker)[0] for broker in range(3)}
    assert len(world.starts) == started, "no process is started for a topic"
    world.ask(CreatePartitions((PartitionGrowth("a", 9),)))
    assert nodes_of(world, "a") == nodes_of(world, "b")


def test_internal_topics_go_to_the_coordinators(world):
    world.ask(CreateTopics((RequestedTopic(OFFSETS_TOPIC),)))
    assert nodes_of(world, OFFSETS_TOPIC) == {hosts(world, broker, HostKind.COORDINATOR)[0] for broker in range(3)}


def test_a_number_gives_a_topic_actors_of_its_own(world):
    own = (("replicas.per.actor", "2"),)
    world.ask(CreateTopics((RequestedTopic("t", 4, 1, configs=own),)))
    assert not nodes_of(world, "t") & world.image.hosts.keys()
    assert all(len(ids) <= 2 for ids in world.image.assigned.values())


def test_the_least_loaded_host_takes_the_next_replica(world):
    world.create("a", (0,), (0,), replicas_per_actor="auto")
    image = world.image.copy()
    first = hosts(world, 0)[0]
    slots = NodeSlots(image)
    second = slots.plan_host(0, disk_of(0), HostKind.REPLICAS)
    image.apply(second)
    chosen = [
        NodeSlots(image).allocate(uuid.uuid4(), "b", 0, disk_of(0), replicas_per_actor=None).node_id,
        *(
            each.node_id
            for slots in [NodeSlots(image)]
            for each in [slots.allocate(uuid.uuid4(), "b", 0, disk_of(0), replicas_per_actor=None) for _ in range(3)]
        ),
    ]
    assert chosen == [second.node_id, second.node_id, second.node_id, first]


def test_a_host_that_holds_nothing_any_more_stays(world):
    world.create("t", (0, 1), replicas_per_actor="auto")
    world.ask(DeleteTopics(("t",)))
    world.pass_time(1_000)
    assert not world.image.removals
    assert not [process for process in world.processes.values() if process.exited]


def test_a_host_that_dies_is_started_again_though_it_holds_nothing(world):
    node = hosts(world, 1)[0]
    started = len(world.starts)
    world.processes[node].kill()
    world.pass_time(1_000)
    assert [(each.node_id, each.kind) for each in world.starts[started:]] == [(node, ActorKind.REPLICAS)]
    assert world.processes[node].session is not None


def test_a_reassigned_replica_goes_to_a_host_of_its_new_disk(world):
    world.create("t", (0, 1), replicas_per_actor="auto")
    world.ask(AlterReassignments((PartitionTarget("t", 0, (0, 2)),)))
    assert hosts(world, 2)[0] in nodes_of(world, "t")


def test_the_hosts_of_a_replaced_disk_are_those_of_its_replacement(new_world):
    world = new_world(brokers=1, plans_hosts=True)
    before = sorted(world.image.hosts)
    world.ask(RegisterDisk(CLUSTER, 0, uuid.UUID(int=0xFFF), "/disks/0"))
    assert sorted(world.image.hosts) == before
    assert {host.directory_id for host in world.image.hosts.values()} == {uuid.UUID(int=0xFFF)}


def test_the_hosts_of_a_removed_broker_go_with_it(world):
    world.ask(UnregisterBroker(2))
    assert {broker_of(node) for node in world.image.hosts} == {0, 1}
    assert {broker_of(node) for node in world.image.actors} == {0, 1}


def test_a_retired_host_that_holds_nothing_is_not_needed():
    disk = uuid.UUID(int=1)
    image = MetadataImage.of([BrokerRegistered(0), DiskRegistered(disk, 0, "/d")])
    host = NodeSlots(image).plan_host(0, disk, HostKind.REPLICAS)
    image.apply(host)
    assert image.needs(host.node_id) and image.directory_of(host.node_id) == disk
    assert MetadataImage.of(image.records()).hosts == image.hosts == image.copy().hosts
    image.apply(HostRetired(host.node_id))
    image.check()
    assert not image.needs(host.node_id)


@pytest.mark.parametrize("text", ["0", "-1", "10001", "many", "1.5", "²", ""])
def test_what_is_neither_auto_nor_a_number_is_refused(text):
    with pytest.raises(ConfigError, match=r"not auto or a number from 1 to 10,000"):
        topic_configs.validated("replicas.per.actor", text)
    assert topic_configs.validated("replicas.per.actor", " auto ") == "auto"
    assert topic_configs.replicas_per_actor({"replicas.per.actor": "7"}) == 7
