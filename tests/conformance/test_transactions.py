"""Transactions of Kafka clients through the Brokers' listeners. Java 4 speaks protocol v2, all others v1."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import subprocess
import threading
import time
from collections.abc import Callable

import kafka
import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition
from kafka_peer import apache_kafka
from raw_requests import eventually, part

from raylog.offsets_topic import TRANSACTIONS_TOPIC, partition_for
from raylog.testing.in_process import InProcessCluster

pytestmark = pytest.mark.conformance

NewTopicOf = Callable[..., str]
PATIENCE_S = 60.0


def transactional(bootstrap: str, transactional_id: str, **config: object) -> Producer:
    settings = {key.replace("_", "."): value for key, value in config.items()}
    producer = Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": transactional_id, "log_level": 0} | settings
    )
    producer.init_transactions(PATIENCE_S)
    return producer


def read(bootstrap: str, topic: str, partitions: int = 1, isolation: str = "read_committed") -> list[bytes]:
    """Everything up to where such a consumer may read, partition by partition."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "reads", "isolation.level": isolation,
         "enable.partition.eof": True, "log_level": 0}
    )  # fmt: skip
    found: list[bytes] = []
    try:
        for number in range(partitions):
            consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING)])
            deadline = time.monotonic() + PATIENCE_S
            while time.monotonic() < deadline:
                message = consumer.poll(1)
                if message is not None and message.error() is None:
                    found.append(message.value())
                elif message is not None and message.error().code() == KafkaError._PARTITION_EOF:
                    break
    finally:
        consumer.close()
    return found


def produce(producer: Producer, topic: str, *values: bytes, partition: int = 0) -> None:
    for value in values:
        producer.produce(topic, value, partition=partition)
    assert producer.flush(PATIENCE_S) == 0


def test_read_committed_sees_exactly_what_was_committed(bootstrap: str, new_topic: NewTopicOf) -> None:
    topic = new_topic(2)
    producer = transactional(bootstrap, "exactly")
    for number in range(6):
        producer.begin_transaction()
        for partition in range(2):
            produce(producer, topic, *(b"%d-%d" % (number, each) for each in range(5)), partition=partition)
        if number % 2:
            producer.abort_transaction(PATIENCE_S)
        else:
            producer.commit_transaction(PATIENCE_S)
    committed = [b"%d-%d" % (number, each) for number in (0, 2, 4) for each in range(5)] * 2
    eventually(lambda: read(bootstrap, topic, 2) == committed, "the markers")
    assert len(read(bootstrap, topic, 2, "read_uncommitted")) == 60


def test_an_open_transaction_hides_what_follows_and_its_timeout_ends_it(bootstrap: str, new_topic: NewTopicOf) -> None:
    topic = new_topic()
    left = transactional(bootstrap, "left-behind", transaction_timeout_ms=3_000)
    left.begin_transaction()
    produce(left, topic, b"never")
    other = transactional(bootstrap, "other")
    other.begin_transaction()
    produce(other, topic, b"committed")
    other.commit_transaction(PATIENCE_S)
    assert read(bootstrap, topic) == []
    eventually(lambda: read(bootstrap, topic) == [b"committed"], "the timeout", timeout_s=30)
    with pytest.raises(KafkaException) as raised:
        left.commit_transaction(PATIENCE_S)
    assert raised.value.args[0].fatal()


def test_a_second_producer_fences_the_first(bootstrap: str, new_topic: NewTopicOf) -> None:
    topic = new_topic()
    first = transactional(bootstrap, "fenced")
    first.begin_transaction()
    produce(first, topic, b"of the first")
    second = transactional(bootstrap, "fenced")
    with pytest.raises(KafkaException) as raised:
        first.commit_transaction(PATIENCE_S)
    assert raised.value.args[0].code() in (KafkaError._FENCED, KafkaError.PRODUCER_FENCED)
    second.begin_transaction()
    produce(second, topic, b"of the second")
    second.commit_transaction(PATIENCE_S)
    eventually(lambda: read(bootstrap, topic) == [b"of the second"], "the markers")


def test_offsets_are_committed_with_the_records(bootstrap: str, new_topic: NewTopicOf) -> None:
    source, sink = new_topic(), new_topic()
    plain = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    produce(plain, source, *(b"%d" % each for each in range(20)))
    config = {
        "bootstrap.servers": bootstrap,
        "group.id": "copiers",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "log_level": 0,
    }
    producer = transactional(bootstrap, "copier")
    for commits in (False, True, True):
        consumer = Consumer(config)
        consumer.subscribe([source])
        taken = []
        deadline = time.monotonic() + PATIENCE_S
        while len(taken) < 10 and time.monotonic() < deadline:
            message = consumer.poll(1)
            if message is not None and message.error() is None:
                taken.append(message)
        producer.begin_transaction()
        produce(producer, sink, *(each.value() for each in taken))
        ends = [TopicPartition(source, 0, taken[-1].offset() + 1)]
        producer.send_offsets_to_transaction(ends, consumer.consumer_group_metadata(), PATIENCE_S)
        if commits:
            producer.commit_transaction(PATIENCE_S)
        else:
            producer.abort_transaction(PATIENCE_S)
        consumer.close()
    eventually(lambda: read(bootstrap, sink) == [b"%d" % each for each in range(20)], "all, once")


def test_transactions_go_on_while_their_coordinator_and_leaders_are_killed(
    running: InProcessCluster, bootstrap: str, new_topic: NewTopicOf
) -> None:
    topic = new_topic(2)
    producer = transactional(bootstrap, "survivor")
    stop = threading.Event()
    killed: list[int] = []

    def kill() -> None:
        while not stop.wait(1.5):
            for name, number in ((TRANSACTIONS_TOPIC, partition_for("survivor")), (topic, 0)):
                node = part(running, name, number)["leader_node"]
                if node >= 0 and not stop.is_set():
                    running.crash(node)
                    killed.append(node)

    killer = threading.Thread(target=kill)
    killer.start()
    committed, unknown = [], []
    try:
        for number in itertools.count():
            if number >= 60 and len(killed) >= 6:
                break
            value = b"%d" % number
            commits = number % 3 > 0
            try:
                producer.begin_transaction()
                producer.produce(topic, value, partition=0)
                producer.produce(topic, value, partition=1)
                producer.flush(PATIENCE_S)
                if commits:
                    producer.commit_transaction(PATIENCE_S)
                    committed.append(value)
                else:
                    producer.abort_transaction(PATIENCE_S)
            except KafkaException as error:
                print(number, commits, error)
                if commits:
                    unknown.append(value)
                producer = transactional(bootstrap, "survivor")
    finally:
        stop.set()
        killer.join()
    assert len(unknown) < 5 and len(committed) > 30

    def seen() -> bool:
        found = read(bootstrap, topic, 2)
        certain = [each for each in found if each not in unknown]
        return certain == committed * 2 and len(found) == len(certain) + 2 * len({*found} & {*unknown})

    eventually(seen, "every committed record once", timeout_s=60)


def test_kafka_python_commits_and_aborts(bootstrap: str, new_topic: NewTopicOf, closed_sockets: None) -> None:
    topic, group = new_topic(2), "kafka-python-offsets"
    writer = kafka.KafkaProducer(
        bootstrap_servers=bootstrap, transactional_id="kafka-python-writer", client_id="writer"
    )
    try:
        writer.init_transactions()
        for value, commits in ((b"first", True), (b"aborted", False), (b"second", True)):
            writer.begin_transaction()
            for number in range(2):
                writer.send(topic, value, partition=number)
            place = kafka.TopicPartition(topic, 0)
            offsets = {place: kafka.OffsetAndMetadata(len(value), "", -1)}
            writer.send_offsets_to_transaction(offsets, group)
            if commits:
                writer.commit_transaction()
            else:
                writer.abort_transaction()
    finally:
        writer.close()
    eventually(lambda: read(bootstrap, topic, 2) == [b"first", b"second"] * 2, "the markers")
    with contextlib.closing(kafka.KafkaConsumer(bootstrap_servers=bootstrap, group_id=group)) as consumer:
        assert consumer.committed(kafka.TopicPartition(topic, 0)) == len(b"second")


def test_aiokafka_commits_and_aborts(bootstrap: str, new_topic: NewTopicOf) -> None:
    topic = new_topic(2)

    async def work() -> None:
        writer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id="aiokafka-writer")
        await writer.start()
        try:
            for value, commits in ((b"first", True), (b"aborted", False), (b"second", True)):
                await writer.begin_transaction()
                for number in range(2):
                    await writer.send_and_wait(topic, value, partition=number)
                await (writer.commit_transaction() if commits else writer.abort_transaction())
        finally:
            await writer.stop()

    asyncio.run(work())
    eventually(lambda: read(bootstrap, topic, 2) == [b"first", b"second"] * 2, "the markers")


@pytest.mark.parametrize("is_latest", [False, True], ids=["3.9", "latest"])
def test_java_producers_write_in_transactions(bootstrap: str, new_topic: NewTopicOf, is_latest: bool) -> None:
    """Version 3.9 speaks the protocol v1, version 4 v2: its Produce adds the partitions."""
    peer = apache_kafka()
    version = peer.LATEST if is_latest else peer.VERSION
    topic = new_topic(2)
    done = subprocess.run(
        peer.java_command(
            "org.apache.kafka.tools.ProducerPerformance",
            *("--num-records", "3000", "--record-size", "10", "--throughput", "3000"),
            *("--topic", topic, "--transactional-id", f"java-{is_latest}", "--transaction-duration-ms", "50"),
            *("--producer-props", f"bootstrap.servers={bootstrap}"),
            version=version,
        ),
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout, done.stderr)
    eventually(lambda: len(read(bootstrap, topic, 2)) == 3_000, "the markers", timeout_s=30)
