"""What confluent-kafka's admin client asks beside the everyday things: brokers' configs, replacements, elections, what it may do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import ElectionType, KafkaError, KafkaException, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AclOperation,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewTopic,
    ResourceType,
)
from raw_requests import eventually

from raylog.client.sync import AdminClient as Native
from raylog.errors import RaylogError
from raylog.testing.in_process import InProcessCluster

pytestmark = pytest.mark.conformance

NewTopicOf = Callable[..., str]
PATIENCE_S = 60.0


@pytest.fixture
def admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})


def described(admin: AdminClient, kind: Any, name: str) -> dict[str, ConfigEntry]:
    resource = ConfigResource(kind, name)
    found: dict[str, ConfigEntry] = admin.describe_configs([resource])[resource].result(PATIENCE_S)
    return found


def changed(admin: AdminClient, kind: Any, name: str, *changes: tuple[str, str | None, Any]) -> None:
    entries = [ConfigEntry(key, value, incremental_operation=operation) for key, value, operation in changes]
    resource = ConfigResource(kind, name, incremental_configs=entries)
    admin.incremental_alter_configs([resource])[resource].result(PATIENCE_S)


def test_all_configs_of_a_topic_are_replaced(admin: AdminClient, new_topic: NewTopicOf) -> None:
    topic = new_topic(retention_ms="5000", flush_ms="7")
    resource = ConfigResource(ResourceType.TOPIC, topic, set_config={"retention.ms": "6000"})
    with pytest.warns(DeprecationWarning, match="alter_configs"):
        altered = admin.alter_configs([resource])
    altered[resource].result(PATIENCE_S)
    found = described(admin, ResourceType.TOPIC, topic)
    assert (found["retention.ms"].value, found["flush.ms"].is_default) == ("6000", True)


def test_a_brokers_config_goes_before_that_of_all_brokers(admin: AdminClient, running: InProcessCluster) -> None:
    key, kind = "log.segment.bytes", ResourceType.BROKER
    with Native(running.address) as native:  # this client cannot name all brokers
        native.alter_configs(broker="all", set={key: 1_000_000})
    changed(admin, kind, "1", (key, "2000000", AlterConfigOpType.SET))
    try:
        own, other = described(admin, kind, "1")[key], described(admin, kind, "2")[key]
        assert (own.value, ConfigSource(own.source)) == ("2000000", ConfigSource.DYNAMIC_BROKER_CONFIG)
        assert (other.value, ConfigSource(other.source)) == ("1000000", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG)
        fixed = described(admin, kind, "1")["broker.rack"]
        assert fixed.is_read_only and not fixed.is_sensitive
    finally:
        changed(admin, kind, "1", (key, None, AlterConfigOpType.DELETE))
        with Native(running.address) as native:
            native.alter_configs(broker="all", delete=[key])
    assert described(admin, kind, "1")[key].is_default


def test_a_topic_that_creates_itself_has_the_partitions_and_replicas_that_the_cluster_says(
    admin: AdminClient, running: InProcessCluster
) -> None:
    def shape(topic: str) -> tuple[int, set[int], str | None]:
        writer = Producer({"bootstrap.servers": running.bootstrap_servers()})
        writer.produce(topic, b"v", partition=0)
        assert writer.flush(PATIENCE_S) == 0
        found = admin.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions
        minimum = described(admin, ResourceType.TOPIC, topic)["min.insync.replicas"].value
        return len(found), {len(each.replicas) for each in found.values()}, minimum

    assert shape("by-itself-unset") == (1, {3}, "2")
    names = ("num.partitions", "default.replication.factor")
    unset = [described(admin, ResourceType.BROKER, "1")[name] for name in names]
    assert [(each.value, each.is_default) for each in unset] == [("1", True), ("3", True)]
    with Native(running.address) as native:
        native.alter_configs(broker="all", set={"num.partitions": 4, "default.replication.factor": 2})
        try:
            assert shape("by-itself-set") == (4, {2}, "1")
            found = [described(admin, ResourceType.BROKER, "1")[name] for name in names]
            sources = {ConfigSource(each.source) for each in found}
            assert sources == {ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG}
            with pytest.raises(RaylogError, match=r"num\.partitions=0"):
                native.alter_configs(broker="all", set={"num.partitions": 0})
        finally:
            native.alter_configs(broker="all", delete=list(names))


def test_refused_changes_name_the_reason(admin: AdminClient, new_topic: NewTopicOf) -> None:
    topic = new_topic()
    for kind, name, key, reason in (
        (ResourceType.TOPIC, topic, "retention.msec", "did you mean 'retention.ms'"),
        (ResourceType.BROKER, "1", "num.io.threads", "num.io.threads is refused"),
    ):
        with pytest.raises(KafkaException, match=reason):
            changed(admin, kind, name, (key, "1", AlterConfigOpType.SET))
    with pytest.raises(KafkaException) as unknown:
        described(admin, ResourceType.TOPIC, "nowhere")
    assert unknown.value.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_what_is_allowed_is_said_to_who_asks(admin: AdminClient, new_topic: NewTopicOf) -> None:
    topic = new_topic()
    cluster = admin.describe_cluster(include_authorized_operations=True).result(PATIENCE_S)
    assert {AclOperation.ALTER, AclOperation.DESCRIBE, AclOperation.CREATE} <= set(cluster.authorized_operations)
    asked = TopicCollection([topic])
    found = admin.describe_topics(asked, include_authorized_operations=True)[topic].result(PATIENCE_S)
    assert {AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE} <= set(found.authorized_operations)
    assert admin.describe_topics(asked)[topic].result(PATIENCE_S).authorized_operations is None


def test_leaders_are_elected(admin: AdminClient, running: InProcessCluster, new_topic: NewTopicOf) -> None:
    topic = new_topic()
    partition = TopicPartition(topic, 0)
    with Native(running.address) as native:
        first = native.describe_topics(topic)[topic].partitions[0].leader
        native.drain_broker(first)
        eventually(lambda: native.describe_topics(topic)[topic].partitions[0].leader not in (-1, first), "drained")
        native.undrain_broker(first)
        assert admin.elect_leaders(ElectionType.PREFERRED, [partition]).result(PATIENCE_S) == {partition: None}
        eventually(lambda: native.describe_topics(topic)[topic].partitions[0].leader == first, "back again")
    again = admin.elect_leaders(ElectionType.PREFERRED, [partition]).result(PATIENCE_S)
    assert again[partition].code() == KafkaError.ELECTION_NOT_NEEDED
    unknown = TopicPartition("nowhere", 3)
    answers = admin.elect_leaders(ElectionType.PREFERRED, [unknown]).result(PATIENCE_S)
    assert answers[unknown].code() == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_tv_33_a_topic_of_three_partitions_and_replicas_is_created_read_back_described_and_deleted(
    admin: AdminClient,
) -> None:
    name, resource = "tv-33", ConfigResource(ResourceType.TOPIC, "tv-33")
    admin.create_topics([NewTopic(name, 3, 3, config={"cleanup.policy": "compact"})])[name].result(PATIENCE_S)
    assert name in admin.list_topics(timeout=PATIENCE_S).topics
    assert admin.describe_configs([resource])[resource].result(PATIENCE_S)["cleanup.policy"].value == "compact"

    def partitions() -> list[tuple[int, list[int]]]:
        found = admin.describe_topics(TopicCollection([name]))[name].result(PATIENCE_S)
        return [(each.id, sorted(node.id for node in each.replicas)) for each in found.partitions if each.leader]

    eventually(lambda: partitions() == [(number, [0, 1, 2]) for number in range(3)], "all partitions lead")
    admin.delete_topics([name])[name].result(PATIENCE_S)
    eventually(lambda: name not in admin.list_topics(timeout=PATIENCE_S).topics, "the end of the topic")
