"""Hosts by hand: one more on a disk, and one less."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from raylog.control.session import Heartbeat
from raylog.metadata.image import MetadataImage
from raylog.metadata.records import HostKind
from raylog.metadata.requests import (
    ClusterStatus,
    CreatePartitions,
    MoveReplicas,
    PartitionGrowth,
    PlanHost,
    RetireHost,
)
from raylog.types import Condition, ReplicaMove, TopicIdPartition, node_id


@pytest.fixture
def hosted(new_world):
    """One broker whose disk has its two hosts, and a topic of three partitions on the one for replicas."""
    world = new_world(1, plans_hosts=True)
    topic_id = world.create("a", (0,), (0,), (0,), replicas_per_actor=None)
    return world, [TopicIdPartition(topic_id, partition) for partition in range(3)]


def nodes(world, ids):
    return [world.state(id).node_of(0) for id in ids]


def test_a_new_host_starts_empty_and_takes_what_comes_and_what_is_moved(hosted):
    world, ids = hosted
    first = nodes(world, ids)[0]
    answer = world.ask(PlanHost(0))
    assert answer.error == 0 and answer.message is None
    added = world.processes[answer.node_id]
    assert added.runs and not added.held
    for id in ids[:1]:
        added.conditions[id] = Condition.CLEAN
    outcome = world.ask(MoveReplicas((ReplicaMove("a", 0, 0, added.node),))).partitions[0]
    assert outcome.error == 0 and nodes(world, ids) == [added.node, first, first]
    topic_id = world.create("b", (0,), replicas_per_actor=None)
    assert world.state(TopicIdPartition(topic_id, 0)).node_of(0) == added.node, "it holds the fewest"


def test_a_retired_host_gives_everything_away_and_ends(hosted):
    world, ids = hosted
    first = nodes(world, ids)[0]
    added = world.ask(PlanHost(0)).node_id
    retired = world.ask(RetireHost(first))
    assert sorted(retired.moved) == [("a", 0), ("a", 1), ("a", 2)] and not retired.remaining
    assert nodes(world, ids) == [added] * 3 and all(world.state(id).leader == 0 for id in ids)
    assert world.processes[first].exited and first not in world.image.actors and first not in world.image.hosts
    again = world.ask(RetireHost(first))
    assert again.error == ErrorCode.invalid_request.value, "there is no such actor any more"


def test_the_last_host_of_its_kind_stays(hosted):
    world, ids = hosted
    (first,) = set(nodes(world, ids))
    coordinator = next(node for node, host in world.image.hosts.items() if host.kind is HostKind.COORDINATOR)
    for node in (first, coordinator):
        answer = world.ask(RetireHost(node))
        assert answer.error == ErrorCode.invalid_request.value and "only host of its kind" in answer.message
    assert set(nodes(world, ids)) == {first}


def test_nothing_is_retired_to_hosts_that_do_not_run(hosted):
    world, ids = hosted
    (first,) = set(nodes(world, ids))
    world.starts_at_once = False
    world.ask(PlanHost(0))
    answer = world.ask(RetireHost(first))
    assert answer.error == ErrorCode.replica_not_available.value and first in world.image.hosts


def retire_while_out_of_sight(world, node):
    """Its process has no session, and is not known to be dead: nothing of it can move."""
    world.answers_dials = False
    process = world.processes[node]
    process.lose_session()
    retired = world.ask(RetireHost(node))
    assert not retired.error and not retired.moved and len(retired.remaining) == 3, retired
    assert all("out of sight" in reason for _, _, reason in retired.remaining)
    assert node not in world.image.hosts and node in world.image.retiring
    return process


def test_what_a_retired_host_could_not_give_away_follows_by_itself(hosted):
    world, ids = hosted
    first = nodes(world, ids)[0]
    added = world.ask(PlanHost(0)).node_id
    process = retire_while_out_of_sight(world, first)
    process.hello()
    world.run_later()
    assert nodes(world, ids) == [added] * 3 and all(world.state(id).leader == 0 for id in ids)
    assert process.exited and first not in world.image.actors and not world.image.retiring


def test_the_next_controller_knows_who_is_retiring(hosted):
    world, ids = hosted
    first = nodes(world, ids)[0]
    added = world.ask(PlanHost(0)).node_id
    process = retire_while_out_of_sight(world, first)
    world.restart_controller()
    assert first in world.image.retiring and MetadataImage.of(world.image.records()) == world.image
    world.processes[added].hello()
    process.hello()
    world.run_later()
    assert nodes(world, ids) == [added] * 3 and process.exited and not world.image.retiring


def test_an_actor_of_its_own_is_retired_like_a_host(hosted):
    world, _ = hosted
    topic_id = world.create("own", (0,), (0,), (0,), replicas_per_actor=2)
    own = [TopicIdPartition(topic_id, partition) for partition in range(4)]
    alone = nodes(world, own[:3])[2]
    world.answers_dials = False
    process = world.processes[alone]
    process.lose_session()
    assert len(world.ask(RetireHost(alone)).remaining) == 1 and alone in world.image.retiring
    world.ask(CreatePartitions((PartitionGrowth("own", 4),)))
    assert nodes(world, own)[3] not in nodes(world, own)[:3], "there is room at the one that retires"
    process.hello()
    world.run_later()
    assert nodes(world, own)[2] in world.image.hosts and process.exited


def test_a_retiring_host_is_given_nothing(hosted):
    world, ids = hosted
    first = nodes(world, ids)[0]
    added = world.processes[world.ask(PlanHost(0)).node_id]
    added.keeps = True
    for node in (added.node, first):  # there and back: the other one has yet to let go of it
        assert not world.ask(MoveReplicas((ReplicaMove("a", 0, 0, node),))).partitions[0].error
    retired = world.ask(RetireHost(first))
    assert [partition for _, partition, _ in retired.remaining] == [0] and "yet to let go" in retired.remaining[0][2]
    topic_id = world.create("b", (0,), replicas_per_actor=None)
    assert world.state(TopicIdPartition(topic_id, 0)).node_of(0) == added.node
    outcome = world.ask(MoveReplicas((ReplicaMove("b", 0, 0, first),))).partitions[0]
    assert outcome.error == ErrorCode.replica_not_available.value and "is ending" in outcome.message
    assert nodes(world, ids) == [first, added.node, added.node]
    added.let_go(ids[0])
    assert nodes(world, ids) == [added.node] * 3 and world.processes[first].exited


def test_an_empty_host_ends_at_once(hosted):
    world, _ = hosted
    added = world.ask(PlanHost(0)).node_id
    assert world.ask(RetireHost(added)).error == 0
    assert world.processes[added].exited and added not in world.image.actors


def test_users_replicas_and_internal_ones_stay_apart(hosted):
    world, _ = hosted
    coordinator = next(node for node, host in world.image.hosts.items() if host.kind is HostKind.COORDINATOR)
    outcome = world.ask(MoveReplicas((ReplicaMove("a", 0, 0, coordinator),))).partitions[0]
    assert outcome.error == ErrorCode.invalid_request.value and "internal topics only" in outcome.message
    assert world.ask(PlanHost(0, kind=HostKind.COORDINATOR)).error == 0


def test_what_is_refused_by_name(hosted):
    world, _ = hosted
    for request, code, words in (
        (PlanHost(7), ErrorCode.broker_id_not_registered, "broker 7 is not registered"),
        (PlanHost(0, "/elsewhere"), ErrorCode.invalid_request, "its disks: /disks/0"),
        (RetireHost(node_id(0, 0)), ErrorCode.invalid_request, "no server actor"),
        (RetireHost(node_id(5, 5)), ErrorCode.invalid_request, "no server actor"),
    ):
        answer = world.ask(request)
        assert answer.error == code.value and words in answer.message, answer


def test_more_hosts_than_cores_are_planned_and_said(hosted):
    world, _ = hosted
    for process in world.processes.values():
        process.say(Heartbeat(cpu_per_mille=250, memory_bytes=1 << 20, cores=2))
    assert world.ask(PlanHost(0)).message is None
    answer = world.ask(PlanHost(0))
    assert answer.error == 0 and "3 hosts for replicas now, and its machine 2 cores" in answer.message


def test_the_status_says_what_each_actor_holds_and_uses(hosted):
    world, ids = hosted
    (first,) = set(nodes(world, ids))
    world.processes[first].say(Heartbeat(cpu_per_mille=730, memory_bytes=5 << 20, cores=2, busy_per_mille=610))
    status = next(each for each in world.ask(ClusterStatus()).actors if each.node_id == first)
    assert (status.replicas, status.leaders, status.host, status.path) == (3, 3, HostKind.REPLICAS, "/disks/0")
    assert (status.cpu_per_mille, status.memory_bytes, status.busy_per_mille) == (730, 5 << 20, 610)
    assert not status.is_automatic
    others = [each for each in world.ask(ClusterStatus()).actors if each.node_id != first]
    assert others and all(each.cpu_per_mille == -1 for each in others)
