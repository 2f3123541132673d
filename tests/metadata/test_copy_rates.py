"""A broker's throttle is divided among its processes that copy, and each is told its share before it begins."""

from __future__ import annotations

import uuid

import pytest

from raylog.configs.replication_quotas import DISK_MOVE_RATE, FOLLOWER_RATE, FOLLOWERS, LEADER_RATE, LEADERS
from raylog.control.session import Assignment, CopyRates, CopyRatesChanged, Welcome
from raylog.metadata.actors.disk_requests import DiskTarget, MoveToDisks
from raylog.metadata.configuration.config_requests import (
    AlterConfigs,
    ConfigChange,
    ConfigOperation,
    ResourceChanges,
    ResourceType,
)
from raylog.metadata.requests import AlterReassignments, PartitionTarget, RegisterDisk
from raylog.types import TopicIdPartition


def limit(world, broker, **rates):
    """``limit(world, 0, leader=5)``; broker None: all; a rate of None: back to the default."""
    changes = tuple(
        ConfigChange(name, ConfigOperation.DELETE if rate is None else ConfigOperation.SET, rate and str(rate))
        for name, rate in ((LEADER_RATE, rates.get("leader", 0)), (FOLLOWER_RATE, rates.get("follower", 0)))
        if rate != 0
    )
    resource = ResourceChanges(ResourceType.BROKER, "" if broker is None else str(broker), changes)
    assert world.ask(AlterConfigs((resource,))).resources[0].error == 0


def told(process) -> CopyRates:
    """The rates that a process was told last."""
    frames = [frame for frame in process.heard if isinstance(frame, Welcome | CopyRatesChanged)]
    return frames[-1].rates


@pytest.fixture
def moving(new_world):
    """Two partitions on broker 0, each on its way to broker 1 where nobody has fetched yet."""
    world = new_world(3)
    topic_id = world.create("t", (0,), (0,))
    world.configure("t", LEADERS, "0:0,1:0")
    world.configure("t", FOLLOWERS, "0:1,1:1")
    world.ids = [TopicIdPartition(topic_id, 0), TopicIdPartition(topic_id, 1)]
    return world


def move(world, *brokers):
    world.ask(AlterReassignments(tuple(PartitionTarget("t", id.partition, brokers) for id in world.ids)))
    world.run_later()


def test_a_broker_s_rate_is_divided_among_its_processes_that_copy(moving):
    limit(moving, 0, leader=1_000)
    limit(moving, 1, follower=600)
    assert told(moving.process(moving.ids[0], 0)) == CopyRates(), "nothing copies yet"
    move(moving, 1)
    for id in moving.ids:
        assert told(moving.process(id, 0)) == CopyRates(as_leader=500)
        assert told(moving.process(id, 1)) == CopyRates(as_follower=300)


def test_a_new_replica_is_told_its_share_before_it_is_told_what_to_copy(moving):
    limit(moving, None, leader=1_000, follower=600)
    move(moving, 1)
    heard = [
        frame for frame in moving.process(moving.ids[1], 1).heard if isinstance(frame, CopyRatesChanged | Assignment)
    ]
    assert isinstance(heard[0], CopyRatesChanged) and heard[0].rates.as_follower in (300, 600)


def test_the_share_of_one_that_is_in_sync_goes_to_the_others(moving):
    limit(moving, None, leader=1_000, follower=600)
    move(moving, 0, 1)
    first, second = moving.ids
    assert moving.leader(first).alter(first, 0, 1) == 0
    assert told(moving.process(first, 0)) == CopyRates() and told(moving.process(first, 1)) == CopyRates()
    assert told(moving.process(second, 0)) == CopyRates(as_leader=1_000)
    assert told(moving.process(second, 1)) == CopyRates(as_follower=600)


def test_a_broker_s_own_rate_goes_before_that_for_all_and_its_deletion_brings_the_other_back(moving):
    limit(moving, None, leader=1_000)
    limit(moving, 0, leader=50)
    move(moving, 1)
    leader = moving.process(moving.ids[0], 0)
    assert told(leader) == CopyRates(as_leader=25)
    limit(moving, 0, leader=None)
    assert told(leader) == CopyRates(as_leader=500)
    limit(moving, None, leader=None)
    assert told(leader) == CopyRates()


def test_what_is_not_listed_has_no_limit(moving):
    limit(moving, None, leader=1_000, follower=1_000)
    moving.configure("t", LEADERS, "1:0")
    moving.configure("t", FOLLOWERS, None)
    move(moving, 1)
    assert told(moving.process(moving.ids[0], 0)) == CopyRates()
    assert told(moving.process(moving.ids[1], 0)) == CopyRates(as_leader=1_000)
    assert told(moving.process(moving.ids[1], 1)) == CopyRates()


def test_the_dead_have_no_share(moving):
    limit(moving, None, follower=600)
    move(moving, 1)
    moving.process(moving.ids[0], 1).runs = False
    moving.starts_at_once = False
    moving.process(moving.ids[0], 1).lose_session()
    assert told(moving.process(moving.ids[1], 1)) == CopyRates(as_follower=600)


def test_a_new_controller_tells_the_rates_with_its_welcome_even_if_there_are_none_any_more(moving):
    limit(moving, None, leader=1_000)
    move(moving, 1)
    leader = moving.process(moving.ids[0], 0)
    moving.restart_controller()
    leader.hello()
    moving.run_later()
    welcome = [frame for frame in leader.heard if isinstance(frame, Welcome)][-1]
    assert welcome.rates == CopyRates(as_leader=500)
    limit(moving, None, leader=None)
    moving.restart_controller()
    leader.hello()
    moving.run_later()
    assert told(leader) == CopyRates()


def test_a_rate_that_cannot_be_divided_leaves_everybody_a_byte(moving):
    limit(moving, None, leader=1)
    move(moving, 1)
    assert told(moving.process(moving.ids[0], 0)) == CopyRates(as_leader=1)


def test_the_rate_of_moves_between_disks_is_divided_among_the_processes_that_copy(new_world):
    world = new_world(1)
    assert world.ask(RegisterDisk("a-test-cluster", 0, uuid.UUID(int=0xF000), "/second")).error == 0
    topic_id = world.create("t", (0,), (0,))
    ids = [TopicIdPartition(topic_id, 0), TopicIdPartition(topic_id, 1)]
    change = (ConfigChange(DISK_MOVE_RATE, ConfigOperation.SET, "1000"),)
    assert world.ask(AlterConfigs((ResourceChanges(ResourceType.BROKER, "0", change),))).resources[0].error == 0
    paths = {world.image.disks[slot.directory_id].path for id in ids for slot in world.state(id).replicas}
    homes = {id: world.image.disks[world.state(id).slot(0).directory_id].path for id in ids}
    others = {id: next(path for path in ("/second", "/disks/0") if path != homes[id]) for id in ids}
    assert paths and all(told(world.process(id, 0)) == CopyRates() for id in ids), "nothing copies yet"
    for id in ids:
        assert world.ask(MoveToDisks(0, (DiskTarget("t", id.partition, others[id]),))).outcomes == ((0, None),)
    copies = [world.processes[world.state(id).future(0).node_id] for id in ids]
    assert [told(copy) for copy in copies] == [CopyRates(as_follower=500)] * 2
    assert world.ask(MoveToDisks(0, (DiskTarget("t", 1, homes[ids[1]]),))).outcomes == ((0, None),)
    assert told(copies[0]) == CopyRates(as_follower=1_000), "the other one has been cancelled"


def test_a_rate_of_nothing_holds_moves_between_disks_as_in_kafka(new_world):
    world = new_world(1)
    assert world.ask(RegisterDisk("a-test-cluster", 0, uuid.UUID(int=0xF000), "/second")).error == 0
    id = TopicIdPartition(world.create("t", (0,)), 0)
    change = (ConfigChange(DISK_MOVE_RATE, ConfigOperation.SET, "0"),)
    assert world.ask(AlterConfigs((ResourceChanges(ResourceType.BROKER, "0", change),))).resources[0].error == 0
    home = world.image.disks[world.state(id).slot(0).directory_id].path
    other = next(path for path in ("/second", "/disks/0") if path != home)
    assert world.ask(MoveToDisks(0, (DiskTarget("t", 0, other),))).outcomes == ((0, None),)
    world.run_later()
    assert told(world.processes[world.state(id).future(0).node_id]) == CopyRates(as_follower=0)
