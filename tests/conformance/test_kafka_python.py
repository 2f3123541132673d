"""kafka-python through the Brokers' listeners: one case per thing that its users do without a consumer group."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer, OffsetAndMetadata, TopicPartition
from kafka.admin import AlterConfigOp, ConfigResource, ConfigResourceType, KafkaAdminClient, NewTopic, OffsetSpec
from kafka.errors import (
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    TopicAlreadyExistsError,
)
from raw_requests import eventually, isr_is_whole, part

from raylog.testing.in_process import InProcessCluster
from raylog.types import BROKER_SLOT, node_id

pytestmark = [pytest.mark.conformance, pytest.mark.usefixtures("closed_sockets")]

NewTopicOf = Callable[..., str]
PATIENCE_S = 60.0


def producer(bootstrap: str, **config: Any) -> Any:
    return closing(KafkaProducer(bootstrap_servers=bootstrap.split(","), **config))


@contextmanager
def consumer(bootstrap: str, topic: str, partitions: int = 1, **config: Any) -> Iterator[KafkaConsumer]:
    """A consumer at the beginning of these partitions."""
    servers = bootstrap.split(",")
    with closing(KafkaConsumer(bootstrap_servers=servers, group_id=None, enable_auto_commit=False, **config)) as found:
        found.assign([TopicPartition(topic, number) for number in range(partitions)])
        found.seek_to_beginning()
        yield found


def take(reader: KafkaConsumer, count: int, timeout_s: float = PATIENCE_S) -> list[Any]:
    found: list[Any] = []
    deadline = time.monotonic() + timeout_s
    while len(found) < count and time.monotonic() < deadline:
        for records in reader.poll(200, max_records=count - len(found)).values():
            found += records
    return found


def send_all(writer: KafkaProducer, topic: str, values: Iterable[bytes]) -> list[int]:
    """The offsets of all values, in partition 0."""
    sent = [writer.send(topic, value, partition=0) for value in values]
    return [each.get(PATIENCE_S).offset for each in sent]


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def produce_and_consume(bootstrap: str, topic: str, values: list[bytes], **config: Any) -> None:
    with producer(bootstrap, **config) as writer:
        assert send_all(writer, topic, values) == list(range(len(values)))
    with consumer(bootstrap, topic) as reader:
        assert [record.value for record in take(reader, len(values))] == values


@pytest.mark.parametrize("acks", [1, "all"])
def test_what_is_produced_is_consumed_in_order(bootstrap: str, new_topic: NewTopicOf, acks: Any) -> None:
    produce_and_consume(bootstrap, new_topic(), numbered(1_000), acks=acks)


def test_producing_without_acknowledgement(bootstrap: str, new_topic: NewTopicOf) -> None:
    topic = new_topic()
    with producer(bootstrap, acks=0) as writer:
        for value in numbered(100):
            writer.send(topic, value, partition=0)
        writer.flush(PATIENCE_S)
    with consumer(bootstrap, topic) as reader:
        assert [record.value for record in take(reader, 100)] == numbered(100)


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_every_codec(bootstrap: str, new_topic: NewTopicOf, codec: str) -> None:
    values = [b"%d" % number * 100 for number in range(300)]
    produce_and_consume(bootstrap, new_topic(), values, compression_type=codec, linger_ms=20)


def test_an_idempotent_producer_writes_each_message_once(bootstrap: str, new_topic: NewTopicOf) -> None:
    produce_and_consume(bootstrap, new_topic(), numbered(1_000), enable_idempotence=True)


def test_a_large_message_passes(bootstrap: str, new_topic: NewTopicOf) -> None:
    values = [bytes(range(256)) * 30_000, b"small"]
    produce_and_consume(bootstrap, new_topic(max_message_bytes="9000000"), values, max_request_size=9_000_000)


def test_a_message_too_large_is_refused(bootstrap: str, new_topic: NewTopicOf) -> None:
    topic = new_topic(max_message_bytes="10000")
    with producer(bootstrap) as writer, pytest.raises(MessageSizeTooLargeError):
        writer.send(topic, b"x" * 20_000, partition=0).get(PATIENCE_S)
    with producer(bootstrap) as writer:
        assert writer.send(topic, b"fits", partition=0).get(PATIENCE_S).offset == 0


def test_headers_keys_and_empty_values_come_back(bootstrap: str, new_topic: NewTopicOf) -> None:
    topic = new_topic()
    headers = [("a", b"1"), ("a", b"")]
    with producer(bootstrap) as writer:
        writer.send(topic, None, key=b"k", headers=headers, partition=0).get(PATIENCE_S)
    with consumer(bootstrap, topic) as reader:
        (record,) = take(reader, 1)
    assert (record.key, record.value, list(record.headers)) == (b"k", None, headers)


def test_timestamps_are_the_producers(bootstrap: str, new_topic: NewTopicOf) -> None:
    topic = new_topic()
    with producer(bootstrap) as writer:
        writer.send(topic, b"v", timestamp_ms=1_234_567, partition=0).get(PATIENCE_S)
    with consumer(bootstrap, topic) as reader:
        (record,) = take(reader, 1)
    assert (record.timestamp, record.timestamp_type) == (1_234_567, 0)


def test_timestamps_are_the_brokers_where_the_topic_says_so(bootstrap: str, new_topic: NewTopicOf) -> None:
    topic = new_topic(message_timestamp_type="LogAppendTime")
    before = time.time() * 1_000 - 1
    with producer(bootstrap) as writer:
        told = writer.send(topic, b"v", timestamp_ms=1_234_567, partition=0).get(PATIENCE_S).timestamp
    with consumer(bootstrap, topic) as reader:
        (record,) = take(reader, 1)
    assert (record.timestamp, record.timestamp_type) == (told, 1)
    assert before <= record.timestamp <= time.time() * 1_000 + 1


def timed(bootstrap: str, topic: str) -> None:
    """Ten records, a second apart."""
    with producer(bootstrap) as writer:
        for number in range(10):
            writer.send(topic, b"%d" % number, timestamp_ms=1_000 * number + 1_000, partition=0).get(PATIENCE_S)


def test_offsets_for_times(bootstrap: str, new_topic: NewTopicOf) -> None:
    topic = new_topic()
    partition = TopicPartition(topic, 0)
    timed(bootstrap, topic)
    with consumer(bootstrap, topic) as reader:
        found = {asked: reader.offsets_for_times({partition: asked})[partition] for asked in (0, 4_500, 10_000, 10_001)}
    assert {asked: place and place.offset for asked, place in found.items()} == {
        0: 0,
        4_500: 4,
        10_000: 9,
        10_001: None,
    }


def test_offsets_are_listed(bootstrap: str, new_topic: NewTopicOf) -> None:
    topic = new_topic()
    partition = TopicPartition(topic, 0)
    timed(bootstrap, topic)
    with consumer(bootstrap, topic) as reader:
        assert reader.beginning_offsets([partition]) == {partition: 0}
        assert reader.end_offsets([partition]) == {partition: 10}
    with closing(KafkaAdminClient(bootstrap_servers=bootstrap.split(","))) as admin:
        for spec, offset in ((OffsetSpec.EARLIEST, 0), (OffsetSpec.LATEST, 10), (4_500, 4)):
            assert admin.list_partition_offsets({partition: spec})[partition].offset == offset


def test_seek_goes_back_and_forth(bootstrap: str, new_topic: NewTopicOf) -> None:
    topic = new_topic()
    partition = TopicPartition(topic, 0)
    timed(bootstrap, topic)
    with consumer(bootstrap, topic) as reader:
        reader.seek(partition, 7)
        assert [record.value for record in take(reader, 3)] == [b"7", b"8", b"9"]
        reader.seek(partition, 2)
        assert [record.value for record in take(reader, 1)] == [b"2"]
        assert reader.position(partition) == 3


def test_a_paused_partition_rests_until_it_is_resumed(bootstrap: str, new_topic: NewTopicOf) -> None:
    topic = new_topic()
    timed(bootstrap, topic)
    with consumer(bootstrap, topic) as reader:
        reader.pause(TopicPartition(topic, 0))
        assert take(reader, 1, timeout_s=0.5) == []
        reader.resume(TopicPartition(topic, 0))
        assert len(take(reader, 10)) == 10


def test_all_partitions_on_all_brokers(bootstrap: str, new_topic: NewTopicOf) -> None:
    topic = new_topic(6)
    with producer(bootstrap) as writer:
        for sent in [writer.send(topic, value, key=value) for value in numbered(600)]:
            sent.get(PATIENCE_S)
    with consumer(bootstrap, topic, 6) as reader:
        found = take(reader, 600)
    assert sorted(record.value for record in found) == sorted(numbered(600))


def test_topics_are_created_grown_and_deleted(bootstrap: str) -> None:
    made = "made-by-kafka-python"
    with closing(KafkaAdminClient(bootstrap_servers=bootstrap.split(","))) as admin:
        admin.create_topics([NewTopic(made, num_partitions=2, replication_factor=3)])
        with pytest.raises(TopicAlreadyExistsError):
            admin.create_topics([NewTopic(made, num_partitions=2, replication_factor=3)])
        assert made in admin.list_topics()
        assert len(admin.describe_topics([made])[0]["partitions"]) == 2
        admin.create_partitions({made: 3})
        eventually(lambda: len(admin.describe_topics([made])[0]["partitions"]) == 3, "the partition")
        eventually(lambda: brokers_of(admin) == [0, 1, 2], "all brokers")
        admin.delete_topics([made])
        eventually(lambda: made not in admin.list_topics(), "the end of the topic")


def brokers_of(admin: KafkaAdminClient) -> list[int]:
    return sorted(each["broker_id"] for each in admin.describe_cluster()["brokers"])


def test_metadata_names_only_the_brokers_listeners(bootstrap: str, new_topic: NewTopicOf) -> None:
    topic = new_topic(2)
    with closing(KafkaAdminClient(bootstrap_servers=bootstrap.split(","))) as admin:
        found = admin.describe_cluster()["brokers"]
        (described,) = admin.describe_topics([topic])
    assert {f"{each['host']}:{each['port']}" for each in found} == set(bootstrap.split(","))
    assert all(sorted(each["replica_nodes"]) == [0, 1, 2] for each in described["partitions"])


def test_configs_are_described_and_altered_incrementally(bootstrap: str, new_topic: NewTopicOf) -> None:
    topic = new_topic(retention_ms="5000")
    with closing(KafkaAdminClient(bootstrap_servers=bootstrap.split(","))) as admin:

        def described() -> str:
            return str(admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)]))

        assert "retention.ms" in described() and "5000" in described()
        changes = {"max.message.bytes": (AlterConfigOp.SET, "2000"), "retention.ms": (AlterConfigOp.DELETE, None)}
        admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, changes)], incremental=True)
        eventually(lambda: "2000" in described() and "retention.ms" not in described(), "the changes")
    with producer(bootstrap) as writer, pytest.raises(MessageSizeTooLargeError):
        writer.send(topic, b"x" * 3_000, partition=0).get(PATIENCE_S)


def test_records_are_deleted(bootstrap: str, new_topic: NewTopicOf) -> None:
    topic = new_topic()
    timed(bootstrap, topic)
    with closing(KafkaAdminClient(bootstrap_servers=bootstrap.split(","))) as admin:
        found = admin.delete_records({TopicPartition(topic, 0): 4})
    assert found[TopicPartition(topic, 0)]["low_watermark"] == 4
    with consumer(bootstrap, topic) as reader:
        assert [record.value for record in take(reader, 6)] == numbered(10)[4:]


def test_a_topic_that_is_unknown_is_created_by_a_producer(bootstrap: str) -> None:
    with producer(bootstrap) as writer:
        assert writer.send("made-by-kafka-pythons-producer", b"v", partition=0).get(PATIENCE_S).offset == 0
    with consumer(bootstrap, "made-by-kafka-pythons-producer") as reader:
        assert [record.value for record in take(reader, 1)] == [b"v"]


def test_a_topic_that_may_not_be_created_is_unknown(bootstrap: str, running: InProcessCluster) -> None:
    from raylog.client.sync import AdminClient

    with AdminClient(running.address) as own:
        own.alter_configs(broker="all", set={"auto.create.topics.enable": "false"})
        try:
            with producer(bootstrap, max_block_ms=1_000) as writer, pytest.raises(KafkaTimeoutError):
                writer.send("not-allowed-here", b"v").get(PATIENCE_S)
        finally:
            own.alter_configs(broker="all", delete=["auto.create.topics.enable"])
    with closing(KafkaAdminClient(bootstrap_servers=bootstrap.split(","))) as admin:
        assert "not-allowed-here" not in admin.list_topics()


def test_commit_callbacks_are_called(bootstrap: str, new_topic: NewTopicOf) -> None:
    topic = new_topic()
    timed(bootstrap, topic)
    told: list[Any] = []
    with closing(KafkaConsumer(bootstrap_servers=bootstrap.split(","), group_id="kafka-python-callbacks")) as reader:
        reader.assign([TopicPartition(topic, 0)])
        assert reader.committed(TopicPartition(topic, 0)) is None, "it has found its coordinator"
        place = {TopicPartition(topic, 0): OffsetAndMetadata(5, "", -1)}
        reader.commit_async(place, callback=lambda offsets, response: told.append((offsets, response)))
        eventually(lambda: reader.poll(50) is not None and told, "the callback")
        assert told[0][0] == place and not isinstance(told[0][1], Exception)
        assert reader.committed(TopicPartition(topic, 0)) == 5


@pytest.mark.parametrize("victim", ["leader", "broker"])
def test_a_kill_loses_nothing_and_stops_nobody(
    running: InProcessCluster, bootstrap: str, new_topic: NewTopicOf, victim: str
) -> None:
    topic = new_topic(min_insync_replicas="2")
    found = part(running, topic)
    node = found["leader_node"] if victim == "leader" else node_id(found["leader"], BROKER_SLOT)
    with producer(bootstrap, enable_idempotence=True, linger_ms=1) as writer:
        assert send_all(writer, topic, numbered(200)) == list(range(200))
        running.crash(node)
        assert send_all(writer, topic, numbered(200)) == list(range(200, 400))
    with consumer(bootstrap, topic) as reader:
        assert [record.value for record in take(reader, 400)] == numbered(200) * 2
    eventually(lambda: isr_is_whole(running, topic), "the killed process back")


def test_a_transactional_id_is_initialised_and_an_empty_transaction_ends(bootstrap: str) -> None:
    for _ in range(2):
        with producer(bootstrap, transactional_id="kafka-python") as writer:
            writer.init_transactions()
            writer.begin_transaction()
            writer.commit_transaction()
