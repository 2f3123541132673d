"""kafka-python through the Brokers' listeners: one case per thing that its users do without a consumer group."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient, NewTopic
from kafka.errors import MessageSizeTooLargeError, TopicAlreadyExistsError
from raw_requests import eventually, isr_is_whole, part

from raylog.testing.in_process import InProcessCluster
from raylog.types import BROKER_SLOT, node_id

pytestmark = pytest.mark.conformance

NewTopicOf = Callable[..., str]
PATIENCE_S = 20.0


class _Sockets:
    """The module ``socket`` as the client sees it; remembers what was opened."""

    def __init__(self) -> None:
        self.opened: list[socket.socket] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(socket, name)

    def socket(self, *arguments: Any) -> socket.socket:
        self.opened.append(socket.socket(*arguments))
        return self.opened[-1]


@pytest.fixture(autouse=True)
def closed_sockets(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The client leaves some of its sockets to the garbage collector, which warns of them."""
    seen = _Sockets()
    monkeypatch.setattr("kafka.net.inet.socket", seen)
    yield
    for each in seen.opened:
        each.close()


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


def test_headers_keys_and_timestamps_come_back(bootstrap: str, new_topic: NewTopicOf) -> None:
    topic = new_topic()
    headers = [("a", b"1"), ("a", b"")]
    with producer(bootstrap) as writer:
        sent = writer.send(topic, None, key=b"k", headers=headers, timestamp_ms=1_234_567, partition=0)
        sent.get(PATIENCE_S)
    with consumer(bootstrap, topic) as reader:
        (record,) = take(reader, 1)
    assert (record.key, record.value, record.timestamp) == (b"k", None, 1_234_567)
    assert list(record.headers) == headers


def test_positions_by_time_seek_and_pause(bootstrap: str, new_topic: NewTopicOf) -> None:
    topic = new_topic()
    partition = TopicPartition(topic, 0)
    with producer(bootstrap) as writer:
        for number in range(10):
            writer.send(topic, b"%d" % number, timestamp_ms=1_000 * number + 1_000, partition=0).get(PATIENCE_S)
    with consumer(bootstrap, topic) as reader:
        assert reader.offsets_for_times({partition: 4_500})[partition].offset == 4
        assert reader.beginning_offsets([partition]) == {partition: 0}
        assert reader.end_offsets([partition]) == {partition: 10}
        reader.seek(partition, 7)
        assert [record.value for record in take(reader, 3)] == [b"7", b"8", b"9"]
        reader.seek(partition, 0)
        reader.pause(partition)
        assert take(reader, 1, timeout_s=0.5) == []
        reader.resume(partition)
        assert len(take(reader, 10)) == 10


def test_all_partitions_on_all_brokers(bootstrap: str, new_topic: NewTopicOf) -> None:
    topic = new_topic(6)
    with producer(bootstrap) as writer:
        for sent in [writer.send(topic, value, key=value) for value in numbered(600)]:
            sent.get(PATIENCE_S)
    with consumer(bootstrap, topic, 6) as reader:
        found = take(reader, 600)
    assert sorted(record.value for record in found) == sorted(numbered(600))


def test_topics_are_listed_created_and_deleted(bootstrap: str) -> None:
    with closing(KafkaAdminClient(bootstrap_servers=bootstrap.split(","))) as admin:
        admin.create_topics([NewTopic("made-by-kafka-python", num_partitions=2, replication_factor=3)])
        with pytest.raises(TopicAlreadyExistsError):
            admin.create_topics([NewTopic("made-by-kafka-python", num_partitions=2, replication_factor=3)])
        assert "made-by-kafka-python" in admin.list_topics()
        (described,) = admin.describe_topics(["made-by-kafka-python"])
        assert len(described["partitions"]) == 2
        assert sorted(each["broker_id"] for each in admin.describe_cluster()["brokers"]) == [0, 1, 2]
        admin.delete_topics(["made-by-kafka-python"])
        eventually(lambda: "made-by-kafka-python" not in admin.list_topics(), "the end of the topic")


def test_configs_are_described(bootstrap: str, new_topic: NewTopicOf) -> None:
    topic = new_topic(retention_ms="5000")
    with closing(KafkaAdminClient(bootstrap_servers=bootstrap.split(","))) as admin:
        found = str(admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)]))
    assert "retention.ms" in found and "5000" in found


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
