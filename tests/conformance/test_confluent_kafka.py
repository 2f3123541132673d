"""confluent-kafka (librdkafka) through the Brokers' listeners: one case per thing that its users do without a consumer group."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)
from raw_requests import eventually, isr_is_whole, part

from raylog.testing.in_process import InProcessCluster
from raylog.types import BROKER_SLOT, node_id

pytestmark = pytest.mark.conformance

NewTopicOf = Callable[..., str]
QUIET = {"log_level": 0}
PATIENCE_S = 60.0


class Delivered:
    """What became of each message: ``messages`` in the order of the reports, or the errors."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.errors: list[KafkaError] = []

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.messages.append(message)
        else:
            self.errors.append(error)


def produce(bootstrap: str, topic: str, values: Iterable[bytes], **config: Any) -> Delivered:
    """All values to partition 0; waits for their reports."""
    settings = {key.replace("_", "."): value for key, value in config.items()}
    producer = Producer({"bootstrap.servers": bootstrap, **QUIET, **settings})
    delivered = Delivered()
    for value in values:
        producer.produce(topic, value, partition=0, on_delivery=delivered)
    assert producer.flush(PATIENCE_S) == 0
    return delivered


@contextmanager
def consumer(bootstrap: str, **config: Any) -> Iterator[Consumer]:
    settings = {key.replace("_", "."): value for key, value in config.items()}
    found = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False, **QUIET, **settings}
    )
    try:
        yield found
    finally:
        found.close()


def take(reader: Consumer, count: int, timeout_s: float = PATIENCE_S) -> list[Message]:
    """So many messages; fewer if no more come in time."""
    found: list[Message] = []
    deadline = time.monotonic() + timeout_s
    while len(found) < count and time.monotonic() < deadline:
        for message in reader.consume(count - len(found), 0.2):
            assert message.error() is None, message.error()
            found.append(message)
    return found


def read(bootstrap: str, topic: str, count: int, offset: int = OFFSET_BEGINNING, **config: Any) -> list[Message]:
    """So many messages of partition 0."""
    with consumer(bootstrap, **config) as reader:
        reader.assign([TopicPartition(topic, 0, offset)])
        return take(reader, count)


def error_of(reader: Consumer) -> int:
    """The code of the error that a consumer reports instead of a message."""
    message = eventually(lambda: [found for found in [reader.poll(0.5)] if found is not None], "an error")[0]
    return int(message.error().code())


def values_of(messages: Iterable[Message]) -> list[bytes | None]:
    return [message.value() for message in messages]


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


@pytest.fixture
def admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap, **QUIET})


# ------------------------------------------------------------------ producing and consuming


def test_what_is_produced_is_consumed_in_order(bootstrap: str, new_topic: NewTopicOf) -> None:
    topic = new_topic()
    delivered = produce(bootstrap, topic, numbered(5_000), linger_ms=1)
    assert not delivered.errors
    assert [message.offset() for message in delivered.messages] == list(range(5_000))
    assert values_of(read(bootstrap, topic, 5_000)) == numbered(5_000)


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_every_kind_of_acknowledgement(bootstrap: str, new_topic: NewTopicOf, acks: str) -> None:
    topic = new_topic()
    delivered = produce(bootstrap, topic, numbered(100), acks=acks)
    assert not delivered.errors and len(delivered.messages) == 100
    assert values_of(read(bootstrap, topic, 100)) == numbered(100)


def test_partitions_on_all_brokers_are_written_and_read(bootstrap: str, new_topic: NewTopicOf) -> None:
    topic = new_topic(6)
    producer = Producer({"bootstrap.servers": bootstrap, **QUIET})
    delivered = Delivered()
    for value in numbered(600):
        producer.produce(topic, value, key=value, on_delivery=delivered)
    assert producer.flush(PATIENCE_S) == 0 and not delivered.errors
    with consumer(bootstrap) as reader:
        reader.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(6)])
        found = take(reader, 600)
    assert sorted(values_of(found)) == sorted(numbered(600))
    assert {message.partition() for message in found} == set(range(6))


def test_headers_keys_and_empty_values_come_back(bootstrap: str, new_topic: NewTopicOf) -> None:
    topic = new_topic()
    producer = Producer({"bootstrap.servers": bootstrap, **QUIET})
    headers = [("a", b"1"), ("b", None), ("a", b"")]
    producer.produce(topic, None, key=b"k", headers=headers, partition=0)
    producer.produce(topic, b"", key=None, partition=0)
    assert producer.flush(PATIENCE_S) == 0
    first, second = read(bootstrap, topic, 2)
    assert (first.key(), first.value(), first.headers()) == (b"k", None, headers)
    assert (second.key(), second.value(), second.headers()) == (None, b"", None)


def test_timestamps_are_the_producers(bootstrap: str, new_topic: NewTopicOf) -> None:
    topic = new_topic()
    producer = Producer({"bootstrap.servers": bootstrap, **QUIET})
    producer.produce(topic, b"v", timestamp=1_234_567_890_123, partition=0)
    assert producer.flush(PATIENCE_S) == 0
    assert read(bootstrap, topic, 1)[0].timestamp() == (1, 1_234_567_890_123)


def test_timestamps_are_the_brokers_where_the_topic_says_so(bootstrap: str, new_topic: NewTopicOf) -> None:
    topic = new_topic(message_timestamp_type="LogAppendTime")
    before = time.time() * 1_000 - 1
    delivered = produce(bootstrap, topic, [b"v"])
    kind, stamped = read(bootstrap, topic, 1)[0].timestamp()
    assert kind == 2 and before <= stamped <= time.time() * 1_000 + 1
    assert delivered.messages[0].timestamp() == (2, stamped)


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_every_codec(bootstrap: str, new_topic: NewTopicOf, codec: str) -> None:
    topic = new_topic()
    values = [b"%d" % number * 100 for number in range(500)]
    assert not produce(bootstrap, topic, values, compression_type=codec, linger_ms=20).errors
    assert values_of(read(bootstrap, topic, 500)) == values


def test_an_idempotent_producer_writes_each_message_once(bootstrap: str, new_topic: NewTopicOf) -> None:
    topic = new_topic()
    delivered = produce(bootstrap, topic, numbered(2_000), enable_idempotence=True)
    assert not delivered.errors
    assert [message.offset() for message in delivered.messages] == list(range(2_000))
    assert values_of(read(bootstrap, topic, 2_000)) == numbered(2_000)


def test_a_large_message_passes(bootstrap: str, new_topic: NewTopicOf) -> None:
    topic = new_topic(max_message_bytes="9000000")
    value = bytes(range(256)) * 30_000
    assert not produce(bootstrap, topic, [value, b"small"], message_max_bytes=9_000_000).errors
    found = read(bootstrap, topic, 2, fetch_message_max_bytes=1_000, max_partition_fetch_bytes=1_000)
    assert values_of(found) == [value, b"small"]


def test_messages_of_a_refused_batch_are_told_apart(bootstrap: str, new_topic: NewTopicOf) -> None:
    """librdkafka blames the messages that the broker names and says of the others that they were in their batch (KIP-467).

    Where the broker names a single one, it blames all.
    """
    topic = new_topic(**{"cleanup.policy": "compact"})
    producer = Producer({"bootstrap.servers": bootstrap, **QUIET, "linger.ms": 60_000})
    outcomes: dict[bytes, int | None] = {}

    def report(error: KafkaError | None, message: Message) -> None:
        outcomes[message.value()] = None if error is None else error.code()

    for value, key in ((b"good", b"k"), (b"keyless", None), (b"good too", b"k"), (b"keyless too", None)):
        producer.produce(topic, value, key=key, partition=0, on_delivery=report)
    assert producer.flush(PATIENCE_S) == 0
    mine, others = KafkaError.INVALID_RECORD, KafkaError._INVALID_DIFFERENT_RECORD
    assert outcomes == {b"good": others, b"keyless": mine, b"good too": others, b"keyless too": mine}
    producer.produce(topic, b"good", key=b"k", partition=0, on_delivery=report)
    assert producer.flush(PATIENCE_S) == 0 and outcomes[b"good"] is None


def test_a_message_too_large_is_refused_and_the_next_one_is_not(bootstrap: str, new_topic: NewTopicOf) -> None:
    topic = new_topic(max_message_bytes="10000")
    assert [error.code() for error in produce(bootstrap, topic, [b"x" * 20_000]).errors] == [
        KafkaError.MSG_SIZE_TOO_LARGE
    ]
    assert not produce(bootstrap, topic, [b"fits"]).errors


def test_delivery_and_error_callbacks(bootstrap: str, new_topic: NewTopicOf) -> None:
    topic = new_topic()
    errors: list[KafkaError] = []
    statistics: list[str] = []
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "statistics.interval.ms": 50,
            "stats_cb": statistics.append,
            "error_cb": errors.append,
            **QUIET,
        }
    )
    delivered = Delivered()
    producer.produce(topic, b"v", partition=0, on_delivery=delivered)
    eventually(lambda: producer.poll(0.05) is not None and statistics and delivered.messages, "callbacks")
    assert delivered.messages[0].topic() == topic and not errors


# ------------------------------------------------------------------ positions


def test_offsets_for_times(bootstrap: str, new_topic: NewTopicOf) -> None:
    topic = new_topic()
    producer = Producer({"bootstrap.servers": bootstrap, **QUIET})
    for number in range(10):
        producer.produce(topic, b"%d" % number, timestamp=1_000_000 + 1_000 * number, partition=0)
    assert producer.flush(PATIENCE_S) == 0
    with consumer(bootstrap) as reader:
        for asked, offset in ((0, 0), (1_000_000, 0), (1_003_001, 4), (1_009_000, 9), (2_000_000, OFFSET_END)):
            (found,) = reader.offsets_for_times([TopicPartition(topic, 0, asked)], timeout=PATIENCE_S)
            assert found.offset == offset, asked
        assert reader.get_watermark_offsets(TopicPartition(topic, 0), timeout=PATIENCE_S) == (0, 10)


def test_seek_goes_back_and_forth(bootstrap: str, new_topic: NewTopicOf) -> None:
    topic = new_topic()
    produce(bootstrap, topic, numbered(100))
    with consumer(bootstrap) as reader:
        reader.assign([TopicPartition(topic, 0, 50)])
        assert values_of(take(reader, 10)) == numbered(60)[50:]
        reader.seek(TopicPartition(topic, 0, 0))
        assert values_of(take(reader, 100)) == numbered(100)
        reader.seek(TopicPartition(topic, 0, 99))
        assert values_of(take(reader, 1)) == [b"99"]
        assert reader.position([TopicPartition(topic, 0)])[0].offset == 100


def test_a_paused_partition_rests_until_it_is_resumed(bootstrap: str, new_topic: NewTopicOf) -> None:
    topic = new_topic(2)
    producer = Producer({"bootstrap.servers": bootstrap, **QUIET})
    for number in range(2):
        producer.produce(topic, b"%d" % number, partition=number)
    assert producer.flush(PATIENCE_S) == 0
    with consumer(bootstrap) as reader:
        both = [TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(2)]
        reader.assign(both)
        reader.pause(both[:1])
        assert values_of(take(reader, 1)) == [b"1"]
        assert take(reader, 1, timeout_s=0.5) == []
        reader.resume(both[:1])
        assert values_of(take(reader, 1)) == [b"0"]


def test_a_position_behind_the_end_is_reset_as_configured(bootstrap: str, new_topic: NewTopicOf) -> None:
    topic = new_topic()
    produce(bootstrap, topic, numbered(10))
    assert values_of(read(bootstrap, topic, 10, 1_000, auto_offset_reset="earliest")) == numbered(10)
    with consumer(bootstrap, auto_offset_reset="error") as reader:
        reader.assign([TopicPartition(topic, 0, 1_000)])
        assert error_of(reader) == KafkaError._AUTO_OFFSET_RESET


def test_a_consumer_at_the_end_waits_and_is_woken(bootstrap: str, new_topic: NewTopicOf) -> None:
    topic = new_topic(3)
    with consumer(bootstrap, fetch_wait_max_ms=60_000) as reader:
        reader.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(3)])
        assert reader.poll(0.5) is None
        started = time.monotonic()
        assert not produce(bootstrap, topic, [b"v"]).errors
        assert values_of(take(reader, 1)) == [b"v"]
    assert time.monotonic() - started < 30, "it was woken, not timed out"


# ------------------------------------------------------------------ topics and configs


def test_metadata_names_only_the_brokers_listeners(bootstrap: str, new_topic: NewTopicOf, admin: AdminClient) -> None:
    topic = new_topic(4)
    found = admin.list_topics(timeout=PATIENCE_S)
    assert {f"{each.host}:{each.port}" for each in found.brokers.values()} == set(bootstrap.split(","))
    assert sorted(found.brokers) == [0, 1, 2] and found.controller_id in found.brokers
    partitions = found.topics[topic].partitions
    assert sorted(partitions) == [0, 1, 2, 3]
    for each in partitions.values():
        assert each.leader in (0, 1, 2) and sorted(each.replicas) == sorted(each.isrs) == [0, 1, 2]
    described = admin.describe_cluster(request_timeout=PATIENCE_S).result()
    assert sorted(node.id for node in described.nodes) == [0, 1, 2]
    topics = admin.describe_topics(TopicCollection([topic]), request_timeout=PATIENCE_S)[topic].result()
    assert len(topics.partitions) == 4


def test_topics_are_created_grown_and_deleted(bootstrap: str, admin: AdminClient) -> None:
    admin.create_topics([NewTopic("made", 2, 3, config={"retention.ms": "1000"})])["made"].result(PATIENCE_S)
    eventually(lambda: len(admin.list_topics("made", PATIENCE_S).topics["made"].partitions) == 2, "the topic")
    with pytest.raises(KafkaException) as exists:
        admin.create_topics([NewTopic("made", 2, 3)])["made"].result(PATIENCE_S)
    assert exists.value.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS
    admin.create_partitions([NewPartitions("made", 3)])["made"].result(PATIENCE_S)
    eventually(lambda: len(admin.list_topics("made", PATIENCE_S).topics["made"].partitions) == 3, "the partition")
    admin.delete_topics(["made"])["made"].result(PATIENCE_S)
    eventually(lambda: "made" not in admin.list_topics(timeout=PATIENCE_S).topics, "the end of the topic")


def test_configs_are_described_and_altered_incrementally(
    bootstrap: str, new_topic: NewTopicOf, admin: AdminClient
) -> None:
    topic = new_topic(retention_ms="5000")

    def described() -> dict[str, ConfigEntry]:
        resource = ConfigResource(ResourceType.TOPIC, topic)
        return admin.describe_configs([resource])[resource].result(PATIENCE_S)

    assert described()["retention.ms"].value == "5000" and described()["segment.ms"].is_default
    change = ConfigResource(
        ResourceType.TOPIC,
        topic,
        incremental_configs=[
            ConfigEntry("max.message.bytes", "2000", incremental_operation=AlterConfigOpType.SET),
            ConfigEntry("retention.ms", None, incremental_operation=AlterConfigOpType.DELETE),
        ],
    )
    admin.incremental_alter_configs([change])[change].result(PATIENCE_S)
    assert described()["max.message.bytes"].value == "2000" and described()["retention.ms"].is_default
    assert [error.code() for error in produce(bootstrap, topic, [b"x" * 3_000]).errors] == [
        KafkaError.MSG_SIZE_TOO_LARGE
    ]


def test_offsets_are_listed(bootstrap: str, new_topic: NewTopicOf, admin: AdminClient) -> None:
    topic = new_topic()
    producer = Producer({"bootstrap.servers": bootstrap, **QUIET})
    for number in (1, 3, 2):
        producer.produce(topic, b"v", timestamp=1_000 * number, partition=0)
        assert producer.flush(PATIENCE_S) == 0
    partition = TopicPartition(topic, 0)
    for spec, offset in (
        (OffsetSpec.earliest(), 0),
        (OffsetSpec.latest(), 3),
        (OffsetSpec.max_timestamp(), 1),
        (OffsetSpec.for_timestamp(1_500), 1),
    ):
        assert admin.list_offsets({partition: spec})[partition].result(PATIENCE_S).offset == offset


def test_records_are_deleted(bootstrap: str, new_topic: NewTopicOf, admin: AdminClient) -> None:
    topic = new_topic()
    produce(bootstrap, topic, numbered(10))
    asked = TopicPartition(topic, 0, 4)
    assert admin.delete_records([asked])[asked].result(PATIENCE_S).low_watermark == 4
    assert values_of(read(bootstrap, topic, 6)) == numbered(10)[4:]


def test_a_topic_that_is_unknown_is_created_by_a_producer_and_not_by_a_consumer(
    bootstrap: str, admin: AdminClient
) -> None:
    with consumer(bootstrap) as reader:
        found = reader.list_topics("nobody-made-this", timeout=PATIENCE_S).topics["nobody-made-this"]
    assert found.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART
    assert "nobody-made-this" not in admin.list_topics(timeout=PATIENCE_S).topics
    assert not produce(bootstrap, "made-by-a-producer", [b"v"]).errors
    assert values_of(read(bootstrap, "made-by-a-producer", 1)) == [b"v"]


def test_a_topic_that_may_not_be_created_is_unknown(
    bootstrap: str, admin: AdminClient, running: InProcessCluster
) -> None:
    from raylog.client.sync import AdminClient as OwnAdmin

    with OwnAdmin(running.address) as own:
        own.alter_configs(broker="all", set={"auto.create.topics.enable": "false"})
        try:
            errors = produce(
                bootstrap, "not-allowed", [b"v"], message_timeout_ms=60_000, topic_metadata_propagation_max_ms=500
            ).errors
        finally:
            own.alter_configs(broker="all", delete=["auto.create.topics.enable"])
    assert [error.code() for error in errors] == [KafkaError.UNKNOWN_TOPIC_OR_PART]
    assert "not-allowed" not in admin.list_topics(timeout=PATIENCE_S).topics


# ------------------------------------------------------------------ faults


class Stream:
    """An idempotent producer in a thread of its own that numbers what it sends until it is told to stop."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 1, **QUIET})
        self._topic = topic
        self._over = threading.Event()
        self.delivered = Delivered()
        self.sent = 0
        self._thread = threading.Thread(target=self._send)
        self._thread.start()

    def _send(self) -> None:
        while not self._over.wait(0.001):
            self._producer.produce(self._topic, b"%d" % self.sent, partition=0, on_delivery=self.delivered)
            self.sent += 1
            self._producer.poll(0)

    def more(self) -> None:
        """Wait until fifty more have been acknowledged."""
        wanted = len(self.delivered.messages) + 50
        eventually(lambda: len(self.delivered.messages) >= wanted, "fifty more acknowledged", PATIENCE_S)

    def stop(self) -> int:
        """How many were acknowledged: all."""
        self._over.set()
        self._thread.join()
        assert self._producer.flush(PATIENCE_S) == 0 and not self.delivered.errors, self.delivered.errors
        return self.sent


def test_a_leader_that_is_killed_loses_nothing_and_stops_nobody(
    running: InProcessCluster, bootstrap: str, new_topic: NewTopicOf
) -> None:
    topic = new_topic(min_insync_replicas="2")
    stream = Stream(bootstrap, topic)
    try:
        stream.more()
        running.crash(part(running, topic)["leader_node"])
        stream.more()
    finally:
        count = stream.stop()
    assert values_of(read(bootstrap, topic, count)) == numbered(count)
    eventually(lambda: isr_is_whole(running, topic), "the killed replica back")


def test_a_broker_whose_listener_is_killed_comes_back_and_nothing_is_lost(
    running: InProcessCluster, bootstrap: str, new_topic: NewTopicOf
) -> None:
    topic = new_topic(min_insync_replicas="2")
    stream = Stream(bootstrap, topic)
    try:
        stream.more()
        running.crash(node_id(part(running, topic)["leader"], BROKER_SLOT))
        stream.more()
    finally:
        count = stream.stop()
    assert values_of(read(running.bootstrap_servers(), topic, count)) == numbered(count)


def test_reading_and_writing_go_on_without_a_controller(
    running: InProcessCluster, bootstrap: str, new_topic: NewTopicOf
) -> None:
    topic = new_topic()
    running.stop_controller()
    try:
        assert not produce(bootstrap, topic, numbered(100)).errors, "a new client finds its way"
        assert values_of(read(bootstrap, topic, 100)) == numbered(100)
    finally:
        running.start_controller()
    running.await_true(lambda: running.active >= 0)


def test_a_transactional_id_is_initialised_and_an_empty_transaction_ends(bootstrap: str) -> None:
    for _ in range(2):
        producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "confluent"} | QUIET)
        producer.init_transactions(PATIENCE_S)
        producer.begin_transaction()
        producer.commit_transaction(PATIENCE_S)
