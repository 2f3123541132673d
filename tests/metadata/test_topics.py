"""Requests about topics and their configs."""

from __future__ import annotations

import uuid

import pytest
from kio.schema.errors import ErrorCode

from raylog.configs import topic_configs
from raylog.metadata.actors import node_slots
from raylog.metadata.configuration import effective_configs
from raylog.metadata.configuration.config_requests import (
    AlterConfigs,
    ConfigChange,
    ConfigOperation,
    ConfigQuery,
    DescribeConfigs,
    ResourceChanges,
    ResourceType,
)
from raylog.metadata.requests import (
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    DescribeCluster,
    DescribeTopics,
    PartitionGrowth,
    RegisterDisk,
    RequestedTopic,
)
from raylog.types import TopicIdPartition, broker_of


def create(world, *topics, **options):
    return world.ask(CreateTopics(topics, **options)).topics


def test_a_topic_gets_what_was_asked_for(world):
    (created,) = create(world, RequestedTopic("t", 4, 3, configs=(("retention.ms", "1000"),)))
    assert (created.error, created.partitions, created.replication_factor) == (0, 4, 3)
    assert ("retention.ms", "1000", 1) in created.configs and ("segment.ms", "604800000", 5) in created.configs
    topic = world.image.topic_named("t")
    assert topic.configs == {"retention.ms": "1000"}
    leaders = [state.brokers[0] for _, state in sorted(topic.partitions.items())]
    assert sorted(leaders) == [0, 0, 1, 2] and leaders[0] == leaders[3], "preferred leaders go round"
    assert all(len(set(state.brokers)) == 3 for state in topic.partitions.values())


def test_defaults_are_the_clusters(new_world):
    world = new_world(num_partitions=2, default_replication_factor=3)
    (created,) = create(world, RequestedTopic("t"))
    assert (created.partitions, created.replication_factor) == (2, 3)


@pytest.mark.parametrize(
    ("topic", "error"),
    [
        (RequestedTopic("bad name", 1, 1), ErrorCode.invalid_topic_exception),
        (RequestedTopic("taken", 1, 1), ErrorCode.topic_already_exists),
        (RequestedTopic("a.b", 1, 1), ErrorCode.invalid_topic_exception),
        (RequestedTopic("t", 0, 1), ErrorCode.invalid_partitions),
        (RequestedTopic("t", -2, 1), ErrorCode.invalid_partitions),
        (RequestedTopic("t", 1, 0), ErrorCode.invalid_replication_factor),
        (RequestedTopic("t", 1, 4), ErrorCode.invalid_replication_factor),
        (RequestedTopic("t", 1, 1, configs=(("retention.mss", "1"),)), ErrorCode.invalid_config),
        (RequestedTopic("t", 1, 1, configs=(("cleanup.policy", "compress"),)), ErrorCode.invalid_config),
        (RequestedTopic("t", 1, 1, configs=(("retention.ms", None),)), ErrorCode.invalid_config),
        (RequestedTopic("t", 2, -1, assignment=((0, (0,)),)), ErrorCode.invalid_request),
        (RequestedTopic("t", assignment=((1, (0,)),)), ErrorCode.invalid_replica_assignment),
        (RequestedTopic("t", assignment=((0, (0, 0)),)), ErrorCode.invalid_replica_assignment),
        (RequestedTopic("t", assignment=((0, (0,)), (1, (0, 1)))), ErrorCode.invalid_replica_assignment),
        (RequestedTopic("t", assignment=((0, (9,)),)), ErrorCode.invalid_replica_assignment),
        (RequestedTopic("t", assignment=((0, ()),)), ErrorCode.invalid_replica_assignment),
    ],
)
def test_a_topic_that_cannot_be_is_refused_and_the_others_are_created(world, topic, error):
    create(world, RequestedTopic("taken", 1, 1), RequestedTopic("a_b", 1, 1))
    bad, good = create(world, topic, RequestedTopic("good", 1, 1))
    assert bad.error == error and bad.message and bad.topic_id is None
    assert good.error == 0
    assert sorted(world.image.topic_ids) == ["a_b", "good", "taken"]


def test_a_topic_named_twice_in_one_request_is_created_not_once(world):
    results = create(world, RequestedTopic("t", 1, 1), RequestedTopic("t", 1, 1))
    assert [result.error for result in results] == [ErrorCode.invalid_request] * 2
    assert not world.image.topics


def test_names_of_one_request_collide_too(world):
    first, second = create(world, RequestedTopic("a.b", 1, 1), RequestedTopic("a_b", 1, 1))
    assert (first.error, second.error) == (0, ErrorCode.invalid_topic_exception)


def test_validate_only_decides_and_changes_nothing(world):
    (result,) = create(world, RequestedTopic("t", 3, 2), validate_only=True)
    assert (result.error, result.partitions) == (0, 3)
    assert not world.image.topics and not world.starts


def test_requests_are_decided_in_order_against_uncommitted_decisions_and_answered_at_the_commit(world):
    world.persists = False
    first = world.ask(CreateTopics((RequestedTopic("t", 1, 1),)), wait=False)
    second = world.ask(CreateTopics((RequestedTopic("t", 1, 1),)), wait=False)
    assert first not in world.replies and second not in world.replies, "nothing is committed yet"
    assert not world.starts and not world.image.topics
    world.persists = True
    world.persist()
    assert world.replies[first].topics[0].error == 0
    assert world.replies[second].topics[0].error == ErrorCode.topic_already_exists


def test_a_wide_topic_shares_processes_by_replicas_per_actor(world):
    create(world, RequestedTopic("wide", 10, 3, configs=(("replicas.per.actor", "4"),)))
    counts = sorted(len(ids) for ids in world.image.assigned.values())
    assert counts == [2, 2, 2, 4, 4, 4, 4, 4, 4]
    world.ask(CreatePartitions((PartitionGrowth("wide", 12),)))
    assert sorted(len(ids) for ids in world.image.assigned.values()) == [4] * 9, "growth fills what is there"


def test_replicas_have_processes_of_their_own_where_they_are_asked_for(world):
    create(world, RequestedTopic("t", 4, 3, configs=(("replicas.per.actor", "1"),)))
    assert len(world.image.assigned) == 12
    assert all(broker_of(node) == world.image.partition(id).slot(broker_of(node)).broker_id
               for node, ids in world.image.assigned.items() for id in ids)  # fmt: skip


def test_the_offsets_topic_is_made_as_the_cluster_wants_it(world):
    (created,) = create(world, RequestedTopic("__consumer_offsets"))
    assert (created.error, created.partitions, created.replication_factor) == (0, 50, 3)
    topic = world.image.topic_named("__consumer_offsets")
    assert topic.configs["cleanup.policy"] == "compact" and topic.configs["min.insync.replicas"] == "2"
    assert sorted(len(ids) for ids in world.image.assigned.values()) == [50, 50, 50], "one process per disk"
    assert (topic.configs["segment.bytes"], topic.configs["compression.type"]) == (str(100 << 20), "producer")


def test_partitions_only_grow(world):
    create(world, RequestedTopic("t", 3, 2), RequestedTopic("__consumer_offsets", 50, 1))
    grown, same, fewer, unknown, internal, zero = (
        world.ask(CreatePartitions((growth,))).topics[0]
        for growth in (
            PartitionGrowth("t", 5),
            PartitionGrowth("t", 5),
            PartitionGrowth("t", 2),
            PartitionGrowth("u", 2),
            PartitionGrowth("__consumer_offsets", 60),
            PartitionGrowth("t", 0),
        )
    )
    assert grown.error == 0 and len(world.image.topic_named("t").partitions) == 5
    assert same.error == fewer.error == zero.error == ErrorCode.invalid_partitions
    assert unknown.error == ErrorCode.unknown_topic_or_partition
    assert internal.error == ErrorCode.invalid_request
    assert all(len(state.replicas) == 2 for state in world.image.topic_named("t").partitions.values())


def errors(outcomes):
    return [each.error for each in outcomes]


@pytest.mark.parametrize(
    ("topics", "is_refused"),
    [
        ((RequestedTopic("a", 10_000, 1),), False),
        ((RequestedTopic("a", 10_001, 1),), True),
        ((RequestedTopic("a", 2_000_000_000, 3),), True),
        ((RequestedTopic("a", 4_996, 1), RequestedTopic("b", 5_000, 1), RequestedTopic("c", -1, 1)), False),
        ((RequestedTopic("a", 4_997, 1), RequestedTopic("b", 5_000, 1), RequestedTopic("c", -1, 1)), True),
        ((RequestedTopic("a", 9_950, 1), RequestedTopic("__consumer_offsets")), False),
        ((RequestedTopic("a", 9_951, 1), RequestedTopic("__consumer_offsets")), True),
        ((RequestedTopic("a", 9_999, 1), RequestedTopic("b", assignment=((0, (0,)),))), False),
        ((RequestedTopic("a", 9_999, 1), RequestedTopic("b", assignment=((0, (0,)), (1, (1,))))), True),
    ],
)
def test_a_creation_of_more_partitions_than_one_request_makes_is_refused_as_a_whole(new_world, topics, is_refused):
    world = new_world(num_partitions=4)
    expected = ErrorCode.policy_violation if is_refused else 0
    assert errors(create(world, *topics, validate_only=True)) == [expected] * len(topics)


def test_a_number_of_partitions_that_is_refused_does_not_count_against_the_other_topics(world):
    none, good = create(world, RequestedTopic("a", -20_000, 1), RequestedTopic("b", 10_000, 1), validate_only=True)
    assert (none.error, good.error) == (ErrorCode.invalid_partitions, 0)
    none, much = create(world, RequestedTopic("a", -20_000, 1), RequestedTopic("b", 10_001, 1), validate_only=True)
    assert none.error == much.error == ErrorCode.policy_violation


def test_a_growth_by_more_partitions_than_one_request_makes_is_refused_as_a_whole(world):
    create(world, RequestedTopic("t", 3, 1), RequestedTopic("u", 2, 1))

    def grown(*counts):
        growths = tuple(PartitionGrowth(name, count) for name, count in zip("tuv", counts, strict=True))
        return errors(world.ask(CreatePartitions(growths, validate_only=True)).topics)

    unknown = ErrorCode.unknown_topic_or_partition
    assert grown(5_003, 5_002, 100_000) == [0, 0, unknown]
    assert grown(5_003, 5_003, 100_000) == [ErrorCode.policy_violation] * 3
    assert grown(-20_000, 10_003, 1) == [ErrorCode.policy_violation] * 3, "a refused number takes nothing away"
    assert len(world.image.topic_named("t").partitions) == 3


def test_a_topic_grows_to_100_000_partitions_by_several_requests(world, monkeypatch):
    monkeypatch.setattr(topic_configs, "REQUEST_PARTITIONS_MAX", 4)
    monkeypatch.setattr(topic_configs, "PARTITIONS_MAX", 10)
    create(world, RequestedTopic("t", 4, 3))
    told = [world.ask(CreatePartitions((PartitionGrowth("t", count),))).topics[0].error for count in (9, 8, 11, 10)]
    assert told == [ErrorCode.policy_violation, 0, ErrorCode.invalid_partitions, 0]
    assert len(world.image.topic_named("t").partitions) == 10


class CountedName(str):
    """Counts how often names are compared and folded."""

    __hash__ = str.__hash__
    looks = 0

    def __eq__(self, other):
        CountedName.looks += 1
        return str.__eq__(self, other)

    def replace(self, *arguments):
        CountedName.looks += 1
        return str.replace(self, *arguments)


@pytest.mark.parametrize(
    ("prefix", "ask"),
    [
        ("new", lambda names: CreateTopics(tuple(RequestedTopic(name, 1, 1) for name in names), validate_only=True)),
        ("new", lambda names: CreateTopics(tuple(RequestedTopic(name, 0, 1) for name in names))),
        ("old", lambda names: CreatePartitions(tuple(PartitionGrowth(name, 2) for name in names), validate_only=True)),
        ("old", lambda names: DeleteTopics(names)),
    ],
    ids=["create", "refuse", "grow", "delete"],
)
def test_a_request_of_many_topics_looks_at_each_name_a_few_times(world, prefix, ask):
    create(world, *(RequestedTopic(f"old.{number}", 1, 1) for number in range(400)))
    CountedName.looks = 0
    outcomes = world.ask(ask(tuple(CountedName(f"{prefix}.{number}") for number in range(400)))).topics
    assert len(outcomes) == 400 and CountedName.looks <= 400 * 10


def test_configs_that_several_topics_of_a_request_have_are_described_once(world, monkeypatch):
    asked = []
    describe = effective_configs.topic_synonyms
    monkeypatch.setattr(
        effective_configs, "topic_synonyms", lambda *arguments: asked.append(arguments) or describe(*arguments)
    )
    own = (("retention.ms", "1000"),)
    created = create(world, *(RequestedTopic(f"t{number}", 1, 1, configs=own * (number % 2)) for number in range(9)))
    assert [{name: value for name, value, _ in each.configs}["retention.ms"] for each in created] == [
        "1000" if number % 2 else "604800000" for number in range(9)
    ]
    assert len(asked) == 2 * len(topic_configs.TOPIC_CONFIGS)


def test_a_topic_for_whose_actors_a_broker_has_no_slots_is_refused(world, monkeypatch):
    monkeypatch.setattr(node_slots, "SLOTS_PER_BROKER", 50)
    wide = RequestedTopic("wide", 100, 3, configs=(("replicas.per.actor", "1"),))
    refused, good = create(world, wide, RequestedTopic("good", 1, 1), validate_only=True)
    assert (refused.error, good.error) == (ErrorCode.invalid_partitions, 0)


def test_new_partitions_may_be_placed_by_hand(world):
    create(world, RequestedTopic("t", 1, 2))
    for brokers in (((0, 1),), (), ((0, 1), (1,)), ((0, 1), (1, 1)), ((0, 1), (1, 9)), ((0, 1), ())):
        bad = world.ask(CreatePartitions((PartitionGrowth("t", 3, brokers),))).topics[0]
        assert bad.error == ErrorCode.invalid_replica_assignment, brokers
    assert (
        world.ask(CreatePartitions((PartitionGrowth("t", 3, ((2, 1), (1, 0))),), validate_only=True)).topics[0].error
        == 0
    )
    assert len(world.image.topic_named("t").partitions) == 1
    world.ask(CreatePartitions((PartitionGrowth("t", 3, ((2, 1), (1, 0))),)))
    assert [world.image.topic_named("t").partitions[p].brokers for p in (1, 2)] == [(2, 1), (1, 0)]


def test_topics_are_deleted_by_name_and_by_id(world):
    create(world, RequestedTopic("a", 1, 1), RequestedTopic("b", 1, 1))
    b = world.image.topic_ids["b"]
    reply = world.ask(DeleteTopics(("a", "nope"), (b, uuid.UUID(int=5))))
    assert [each.error for each in reply.topics] == [
        0, ErrorCode.unknown_topic_or_partition, 0, ErrorCode.unknown_topic_id,
    ]  # fmt: skip
    assert [(each.name, each.topic_id is not None) for each in reply.topics] == [
        ("a", True), ("nope", False), ("b", True), (None, True),
    ]  # fmt: skip
    assert not world.image.topics


def test_a_topic_that_is_named_twice_is_not_deleted(world):
    create(world, RequestedTopic("a", 1, 1), RequestedTopic("b", 1, 1), RequestedTopic("c", 1, 1))
    b = world.image.topic_ids["b"]
    reply = world.ask(DeleteTopics(("a", "a", "b", "c"), (b,)))
    twice = ErrorCode.invalid_request
    assert [each.error for each in reply.topics] == [twice, twice, twice, 0, twice]
    assert sorted(world.image.topic_ids) == ["a", "b"]


def test_no_topic_takes_the_name_of_the_controllers_own_log(world):
    (refused,) = create(world, RequestedTopic("__cluster_metadata", 1, 1))
    assert refused.error == ErrorCode.invalid_request and not world.image.topics


def test_deletion_can_be_switched_off(new_world):
    world = new_world(delete_topic_enable=False)
    create(world, RequestedTopic("a", 1, 1))
    assert world.ask(DeleteTopics(("a",))).topics[0].error == ErrorCode.topic_deletion_disabled


# ------------------------------------------------------------------ configs


def alter(world, *changes, topic="t", **options):
    resource = ResourceChanges(ResourceType.TOPIC, topic, changes)
    return world.ask(AlterConfigs((resource,), **options)).resources[0]


def test_configs_change_live_and_reach_the_replicas(world):
    topic = world.create("t", (0, 1), replicas_per_actor=None)
    p = TopicIdPartition(topic, 0)
    assert alter(world, ConfigChange("retention.ms", ConfigOperation.SET, "5")).error == 0
    assert dict(world.process(p, 1).told[p].config)["retention.ms"] == "5"
    assert alter(world, ConfigChange("retention.ms", ConfigOperation.DELETE)).error == 0
    assert dict(world.process(p, 1).told[p].config)["retention.ms"] == "604800000"
    assert world.image.topics[topic].configs == {}


def test_the_changes_of_one_topic_are_made_together_or_not_at_all(world):
    world.create("t", (0,), replicas_per_actor=None)
    good = ConfigChange("retention.ms", ConfigOperation.SET, "5")
    for bad in (
        ConfigChange("remote.storage.enable", ConfigOperation.SET, "true"),
        ConfigChange("nonsense", ConfigOperation.DELETE),
        ConfigChange("segment.ms", ConfigOperation.APPEND, "5"),
        ConfigChange("cleanup.policy", ConfigOperation.APPEND, "compress"),
    ):
        outcome = alter(world, good, bad)
        assert outcome.error == ErrorCode.invalid_config and bad.name in outcome.message
    assert alter(world, good, good).error == ErrorCode.invalid_request
    assert alter(world, good, topic="u").error == ErrorCode.unknown_topic_or_partition
    assert alter(world, good, validate_only=True).error == 0
    assert world.image.topic_named("t").configs == {}


def test_lists_can_be_added_to_and_taken_from(world):
    world.create("t", (0,))
    assert alter(world, ConfigChange("cleanup.policy", ConfigOperation.APPEND, "delete")).error == 0
    assert world.image.topic_named("t").configs.get("cleanup.policy", "delete") == "delete"


def test_a_config_that_a_broker_has_from_its_start_is_refused(world):
    resource = ResourceChanges(ResourceType.BROKER, "0", (ConfigChange("num.io.threads", ConfigOperation.SET, "4"),))
    refused = world.ask(AlterConfigs((resource,))).resources[0]
    assert refused.error == ErrorCode.invalid_config and "num.io.threads" in refused.message


def test_configs_are_described_with_their_origin(world):
    world.create("t", (0,), retention_ms=9)
    (described,) = world.ask(DescribeConfigs((ConfigQuery(ResourceType.TOPIC, "t"),))).resources
    assert len(described.entries) == 32
    entries = {entry.name: entry for entry in described.entries}
    assert (entries["retention.ms"].value, entries["retention.ms"].source) == ("9", 1)
    assert (entries["segment.ms"].value, entries["segment.ms"].source) == ("604800000", 5)
    (some,) = world.ask(DescribeConfigs((ConfigQuery(ResourceType.TOPIC, "t", ("preallocate",)),))).resources
    assert [entry.name for entry in some.entries] == ["preallocate"]


def test_a_changed_minimum_isr_raises_the_partition_epoch_and_one_that_is_reached_empties_the_elr(world):
    topic = world.create("t", (0, 1, 2), min_insync_replicas=2)
    p = TopicIdPartition(topic, 0)
    leader = world.leader(p)
    assert leader.alter(p, 0) == 0
    before = world.state(p)
    assert set(before.elr) == {1, 2} and leader.told[p].min_isr == 2
    assert world.configure("t", "min.insync.replicas", "3") == 0
    after = world.state(p)
    assert after.elr == before.elr and after.partition_epoch == before.partition_epoch + 1
    assert after.leader_epoch == before.leader_epoch
    assert (leader.told[p].min_isr, leader.told[p].partition_epoch) == (3, after.partition_epoch)
    world.configure("t", "min.insync.replicas", "1")
    after = world.state(p)
    assert after.elr == () and after.partition_epoch == before.partition_epoch + 2
    world.configure("t", "retention.ms", "5")
    assert world.state(p) == after, "another config changes nothing of it"


# ------------------------------------------------------------------ views


def test_topics_are_described_by_name_by_id_or_all(world):
    topic = world.create("b", (1, 0))
    world.create("a", (2,))
    everything = world.ask(DescribeTopics())
    assert [view.name for view in everything.topics] == ["a", "b"]
    assert everything.cluster_id and everything.controller_node == 1
    assert {broker_of(node.node_id) for node in everything.nodes} == {0, 1, 2}
    by_id, unknown_id = world.ask(DescribeTopics(topic_ids=(topic, uuid.UUID(int=1)))).topics
    assert (by_id.name, unknown_id.error) == ("b", ErrorCode.unknown_topic_id)
    by_name, unknown = world.ask(DescribeTopics(names=("b", "c"))).topics
    assert by_name == by_id and unknown.error == ErrorCode.unknown_topic_or_partition
    (partition,) = by_name.partitions
    assert broker_of(partition.leader_node) == 1 and partition.error == 0
    assert [broker_of(node) for node in partition.replica_nodes] == [1, 0]
    assert partition.offline_nodes == ()


def test_a_dead_leader_is_not_named(world):
    topic = world.create("t", (1,))
    p = TopicIdPartition(topic, 0)
    world.starts_at_once = False
    world.leader(p).kill()
    view = world.ask(DescribeTopics())
    (partition,) = view.topics[0].partitions
    assert (partition.leader_node, partition.error) == (-1, ErrorCode.leader_not_available)
    assert partition.offline_nodes == partition.replica_nodes and view.nodes == ()


def test_the_cluster_is_described(world):
    world.create("t", (0,))
    cluster = world.ask(DescribeCluster())
    assert [broker.broker_id for broker in cluster.brokers] == [0, 1, 2]
    assert len(cluster.brokers[0].nodes) == 1 and cluster.controller_epoch == 1


def test_disks_are_registered_once_and_never_change_their_broker(world):
    directory = uuid.UUID(int=0xD000)
    moved = RegisterDisk("a-test-cluster", 0, directory, "/elsewhere", "r1")
    assert world.ask(moved).error == 0 and world.ask(moved).error == 0
    assert world.image.disks[directory].path == "/elsewhere" and world.image.brokers[0].rack == "r1"
    stolen = RegisterDisk("a-test-cluster", 1, directory, "/x")
    assert world.ask(stolen).error == ErrorCode.duplicate_broker_registration
    foreign = RegisterDisk("another", 1, uuid.UUID(int=3), "/x")
    assert world.ask(foreign).error == ErrorCode.inconsistent_cluster_id
    assert world.ask(RegisterDisk("a-test-cluster", 1 << 15, uuid.UUID(int=3), "/x")).error
