"""What an admin client sees of disks, producers, controllers and brokers, and the same as Kafka's answers of every version."""

from __future__ import annotations

import asyncio

import pytest
from kio.schema.errors import ErrorCode
from raw_requests import NOW_MS, batch, nodes_of

from raylog.client.admin.admin import AsyncAdminClient, NewTopic
from raylog.client.links import requests
from raylog.client.links.address import ClusterAddress
from raylog.client.sync import call
from raylog.errors import kafka_error
from raylog.kafka import table
from raylog.server.apis.entities import module_of, request_class
from raylog.types import TopicPartition
from raylog.wire.connection import Connection

pytestmark = pytest.mark.core


def ask_node(operator, node, body):
    """One request to one server, past the clients."""
    running = operator.running

    async def exchange():
        servers = running.launcher.servers
        connection = await Connection.open(
            servers[node]._endpoint, secret=running.address.secret, cluster_id=running.address.cluster_id
        )
        try:
            return await connection.request(body, timeout_ms=10_000)
        finally:
            connection.close()

    return running.run(exchange())


def test_the_producers_that_a_leader_remembers_are_named(operator):
    topic = operator.new_topic((1, 2), (2, 1))
    written = {TopicPartition(topic, 0): batch(b"a", b"b", producer_id=77, sequence=5)}
    leader = operator.partition(topic).leader_node
    reply = ask_node(operator, leader, requests.produce(written, acks=-1, timeout_ms=5_000))
    assert reply.responses[0].partition_responses[0].error_code is ErrorCode.none
    found = operator.admin.describe_producers([(topic, 0), (topic, 1)])
    assert found[TopicPartition(topic, 1)] == ()
    (one,) = found[TopicPartition(topic, 0)]
    assert (one.producer_id, one.producer_epoch, one.last_sequence, one.last_timestamp) == (77, 0, 6, NOW_MS)
    assert (one.coordinator_epoch, one.transaction_start_offset) == (None, None)


def test_only_the_leader_tells_of_producers(operator):
    topic = operator.new_topic((1, 2))
    nodes = nodes_of(operator.running, topic)
    body = requests.describe_producers([TopicPartition(topic, 0), TopicPartition("nowhere", 3)])
    replies = {broker: ask_node(operator, nodes[broker], body) for broker in (1, 2)}
    codes = {broker: [part.partitions[0].error_code for part in reply.topics] for broker, reply in replies.items()}
    assert codes[1] == [ErrorCode.none, ErrorCode.unknown_topic_or_partition]
    assert codes[2] == [ErrorCode.not_leader_or_follower, ErrorCode.unknown_topic_or_partition]
    assert list(table.DESCRIBE_PRODUCERS.versions) == [0]


def test_the_quorum_is_described(operator):
    found = operator.admin.describe_quorum()
    assert (found.leader, [voter.broker for voter in found.voters], found.observers) == (0, [0], ())
    assert found.leader_epoch >= 1 and found.voters[0].log_end_offset >= found.high_watermark > 0
    assert found.voters[0].last_fetch_timestamp > NOW_MS
    assert found.voters[0].endpoint in operator.running.address.bootstrap


@pytest.mark.parametrize("version", list(table.DESCRIBE_QUORUM.versions))
def test_the_quorum_is_described_in_every_version(operator, version):
    cls = request_class(table.DESCRIBE_QUORUM, version)
    module = module_of(cls)
    named = [("__cluster_metadata", 0), ("__cluster_metadata", 1), ("other", 0)]
    topics = (
        module.TopicData(topic_name=name, partitions=(module.PartitionData(partition_index=index),))
        for name, index in named
    )
    reply = call(operator.running.address, cls(topics=tuple(topics)))
    parts = [topic.partitions[0] for topic in reply.topics]
    unknown = ErrorCode.unknown_topic_or_partition
    assert [part.error_code for part in parts] == [ErrorCode.none, unknown, unknown]
    assert [voter.replica_id for voter in parts[0].current_voters] == [0] and not parts[1].current_voters
    if version >= 2:
        ((name, port),) = [(node.listeners[0].name, node.listeners[0].port) for node in reply.nodes]
        assert name == "CONTROLLER" and port == operator.running.address.bootstrap[0].port


@pytest.mark.parametrize("version", list(table.DESCRIBE_LOG_DIRS.versions))
def test_disks_are_described_in_every_version(operator, version):
    topic = operator.new_topic((1, 2), segment_bytes=100_000)
    cls = request_class(table.DESCRIBE_LOG_DIRS, version)
    module = module_of(cls)
    for asked in (None, (module.DescribableLogDirTopic(topic=topic, partitions=(0, 5)),)):
        reply = ask_node(operator, nodes_of(operator.running, topic)[1], cls(topics=asked))
        (result,) = reply.results
        ((part,),) = [each.partitions for each in result.topics if each.name == topic]
        assert (part.partition_index, part.is_future_key, part.offset_lag) == (0, False, 0)
        assert asked is None or [each.name for each in result.topics] == [topic]
        assert version < 5 or result.is_cordoned is False
    dirs = operator.admin.describe_log_dirs()
    (log_dir,) = dirs[1].values()
    assert TopicPartition(topic, 0) in log_dir.replicas and log_dir.total_bytes > log_dir.usable_bytes > 0
    # The follower of a new topic may still be opening its log.
    operator.until(lambda: set(operator.admin.replica_sizes()[TopicPartition(topic, 0)]) == {1, 2})


@pytest.mark.parametrize("version", range(3))
def test_the_cluster_is_described_in_every_version(operator, version):
    cls = request_class(table.DESCRIBE_CLUSTER, version)

    def ask(*, kind=1, operations=False):
        extra = {"endpoint_type": kind} if version >= 1 else {}
        extra |= {"include_fenced_brokers": True} if version >= 2 else {}
        return call(operator.running.address, cls(include_cluster_authorized_operations=operations, **extra))

    reply = ask()
    assert reply.cluster_id == operator.running.address.cluster_id
    assert [each.broker_id for each in reply.brokers] == [0, 1, 2, 3] and all(each.port > 0 for each in reply.brokers)
    assert version < 2 or not any(each.is_fenced for each in reply.brokers)
    assert reply.cluster_authorized_operations == -(1 << 31)
    assert ask(operations=True).cluster_authorized_operations == 0b1111110100000
    if version >= 1:
        assert ask(kind=2).error_code is ErrorCode.mismatched_endpoint_type
        assert ask(kind=9).error_code is ErrorCode.unsupported_endpoint_type


@pytest.mark.parametrize("version", list(table.LIST_OFFSETS.versions))
def test_offsets_by_name_are_those_that_the_version_knows(operator, version):
    topic = operator.new_topic((1,))
    node = operator.partition(topic).leader_node
    ask_node(operator, node, requests.produce({TopicPartition(topic, 0): batch(b"a", b"b")}, acks=-1, timeout_ms=5_000))
    cls = request_class(table.LIST_OFFSETS, version)
    module = module_of(cls)

    def ask(timestamp):
        part = module.ListOffsetsPartition(partition_index=0, timestamp=timestamp)
        topics = (module.ListOffsetsTopic(name=topic, partitions=(part,)),)
        extra = {"isolation_level": 0} if version >= 2 else {}
        extra |= {"timeout": requests._ms(1_000)} if version >= 10 else {}
        answer = ask_node(operator, node, cls(replica_id=-1, topics=topics, **extra)).topics[0].partitions[0]
        return answer.offset if answer.error_code is ErrorCode.none else answer.error_code

    unknown = ErrorCode.unsupported_version
    since = {-1: (1, 2), -2: (1, 0), -3: (7, 0), -4: (8, 0), -5: (9, -1), -6: (11, -1), -7: (99, None)}
    for timestamp, (first, offset) in since.items():
        assert ask(timestamp) == (offset if version >= first else unknown), timestamp


def test_a_dead_broker_is_named_only_to_who_asks(world_with_a_dead_broker):
    live, everyone = world_with_a_dead_broker
    assert live == [0, 1] and everyone == [(0, False), (1, False), (2, True)]


@pytest.fixture
def world_with_a_dead_broker():
    from raylog.metadata.requests import BrokerView, ClusterDescribed
    from raylog.server.apis.admin import APIS
    from raylog.types import Endpoint

    api = next(each for each in APIS if each.spec is table.DESCRIBE_CLUSTER)
    brokers = tuple(
        BrokerView(broker, None, (), (), last_endpoint=Endpoint("h", 9), is_live=broker < 2) for broker in range(3)
    )
    described = ClusterDescribed("c", 1, 1, brokers)

    class Admin(AsyncAdminClient):
        async def _ask(self, request, timeout_ms=None):
            return api.to_entity(request, described, 2)

    def told(fenced):
        admin = Admin(ClusterAddress("c", "", "c", (Endpoint("h", 9),), None))
        return asyncio.run(admin.describe_cluster(include_fenced=fenced)).brokers

    yield [each.broker for each in told(False)], [(each.broker, each.is_fenced) for each in told(True)]


def test_partitions_without_a_topic_have_no_producers(operator):
    with pytest.raises(kafka_error(ErrorCode.unknown_topic_or_partition)):
        operator.admin.describe_producers([("nowhere", 0)])


def test_topics_are_deleted_by_their_ids(operator):
    topic = operator.new_topic((1,))
    topic_id = operator.admin.describe_topics([topic])[topic].topic_id
    operator.admin.delete_topics(topic_id)
    assert topic not in operator.admin.list_topics()
    with pytest.raises(kafka_error(ErrorCode.unknown_topic_id)):
        operator.admin.delete_topics([topic_id])
    operator.admin.delete_topics([topic_id], if_exists=True)


def test_the_records_of_internal_topics_are_not_deleted_by_hand(operator):
    name = "__transaction_state"
    operator.admin.create_topics(NewTopic(name, replica_assignment={0: [1]}))
    operator.until(lambda: operator.partition(name).leader == 1)
    try:
        with pytest.raises(kafka_error(ErrorCode.invalid_topic_exception)):
            operator.admin.delete_records({TopicPartition(name, 0): 0})
    finally:
        operator.admin.delete_topics(name)
