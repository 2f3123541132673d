"""The first record into a new topic, by every client: it is taken at once, as no broker refuses it for being early.

Each client is told to wait for minutes after an answer that it would have to repeat, and to give up
long before. So one answer without a leader, or one refused record, fails the case.
"""

from __future__ import annotations

import asyncio
import itertools
import shutil
import subprocess
from collections.abc import Callable
from contextlib import closing
from types import ModuleType

import confluent_kafka.admin
import kafka.admin
import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin import NewTopic as AioNewTopic
from confluent_kafka import Producer
from kafka import KafkaProducer
from kafka_peer import apache_kafka
from raw_requests import eventually

from raylog import TopicPartition
from raylog.client.sync import AdminClient
from raylog.testing.in_process import InProcessCluster

pytestmark = [pytest.mark.conformance, pytest.mark.usefixtures("closed_sockets")]

PARTITIONS = 12
TOO_LATE_MS = 200_000
"""How long a client waits before it repeats anything: longer than it has for the record."""
PATIENCE_MS = 45_000
_numbers = itertools.count()


class Confluent:
    """librdkafka asks for the leaders again after ``fast.interval.ms``, and repeats after ``retry.backoff.ms``."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def create(self, topic: str) -> None:
        admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": self.bootstrap})
        made = admin.create_topics([confluent_kafka.admin.NewTopic(topic, PARTITIONS, 3)])
        made[topic].result(PATIENCE_MS / 1000)

    def produce(self, topic: str, partitions: int) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "message.timeout.ms": PATIENCE_MS,
                "retries": 0,
                "topic.metadata.refresh.fast.interval.ms": 60_000,
                "topic.metadata.refresh.interval.ms": -1,
                "topic.metadata.propagation.max.ms": TOO_LATE_MS,
            }
        )
        failures: list[object] = []
        for partition in range(partitions):
            producer.produce(
                topic, b"first", partition=partition, on_delivery=lambda error, _: error and failures.append(error)
            )
        assert producer.flush(PATIENCE_MS / 1000) == 0 and not failures, failures


class KafkaPython:
    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap.split(",")

    def create(self, topic: str) -> None:
        with closing(kafka.admin.KafkaAdminClient(bootstrap_servers=self.bootstrap)) as admin:
            admin.create_topics([kafka.admin.NewTopic(topic, PARTITIONS, 3)])

    def produce(self, topic: str, partitions: int) -> None:
        settings = {"retries": 0, "enable_idempotence": False, "retry_backoff_ms": TOO_LATE_MS}
        made = KafkaProducer(bootstrap_servers=self.bootstrap, max_block_ms=PATIENCE_MS, **settings)
        with closing(made) as producer:
            sent = [producer.send(topic, b"first", partition=partition) for partition in range(partitions)]
            assert [each.get(PATIENCE_MS / 1000).offset for each in sent] == [0] * partitions


class Aiokafka:
    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def create(self, topic: str) -> None:
        async def create() -> None:
            admin = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap)
            await admin.start()
            try:
                await admin.create_topics([AioNewTopic(topic, PARTITIONS, 3)])
            finally:
                await admin.close()

        asyncio.run(create())

    def produce(self, topic: str, partitions: int) -> None:
        async def produce() -> None:
            producer = AIOKafkaProducer(
                bootstrap_servers=self.bootstrap, retry_backoff_ms=TOO_LATE_MS, request_timeout_ms=PATIENCE_MS
            )
            await producer.start()
            try:
                async with asyncio.timeout(PATIENCE_MS / 1000):
                    sent = [await producer.send(topic, b"first", partition=each) for each in range(partitions)]
                    assert [(await each).offset for each in sent] == [0] * partitions
            finally:
                await producer.stop()

        asyncio.run(produce())


class Kcat(Confluent):
    """librdkafka, too, as a shell uses it; topics are made by the library."""

    def produce(self, topic: str, partitions: int) -> None:
        settings = {"message.timeout.ms": PATIENCE_MS, "topic.metadata.refresh.fast.interval.ms": 60_000}
        options = [text for name, value in settings.items() for text in ("-X", f"{name}={value}")]
        for partition in range(partitions):
            command = [
                "kcat",
                "-b",
                self.bootstrap,
                "-P",
                "-t",
                topic,
                "-p",
                str(partition),
                "-X",
                "retries=0",
                *options,
            ]
            done = subprocess.run(command, input="first\n", capture_output=True, text=True, timeout=180)
            assert done.returncode == 0, done.stderr


class Java:
    """Kafka's own console producer, whose records go where their keys' hashes say; so there are many."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap, self.kafka = bootstrap, apache_kafka()

    def create(self, topic: str) -> None:
        arguments = ("--create", "--topic", topic, "--partitions", str(PARTITIONS), "--replication-factor", "3")
        run_java(self.kafka, "org.apache.kafka.tools.TopicCommand", self.bootstrap, *arguments)

    def produce(self, topic: str, partitions: int) -> None:
        settings = {
            "retries": 0,
            "enable.idempotence": "false",
            "retry.backoff.ms": TOO_LATE_MS,
            "retry.backoff.max.ms": TOO_LATE_MS,
            "max.block.ms": PATIENCE_MS,
            "request.timeout.ms": PATIENCE_MS // 2,
            "delivery.timeout.ms": PATIENCE_MS,
            "linger.ms": 0,
        }
        options = [text for name, value in settings.items() for text in ("--producer-property", f"{name}={value}")]
        keyed = ("--property", "parse.key=true", "--property", "key.separator=:")
        lines = "".join(f"{number}:first\n" for number in range(20 * partitions))
        arguments = ("--topic", topic, *keyed, *options)
        said = run_java(self.kafka, "kafka.tools.ConsoleProducer", self.bootstrap, *arguments, stdin=lines)
        assert "ERROR" not in said and "WARN" not in said, said


def run_java(kafka: ModuleType, main_class: str, bootstrap: str, *arguments: str, stdin: str = "") -> str:
    command = kafka.java_command(main_class, "--bootstrap-server", bootstrap, *arguments)
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


CLIENTS = {"confluent-kafka": Confluent, "kafka-python": KafkaPython, "aiokafka": Aiokafka, "kcat": Kcat, "java": Java}
Client = Confluent | KafkaPython | Aiokafka | Java


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest, bootstrap: str) -> Client:
    if request.param == "kcat" and shutil.which("kcat") is None:
        pytest.skip("no kcat on this machine")
    made: Callable[[str], Client] = CLIENTS[request.param]
    return made(bootstrap)


def has_records(running: InProcessCluster, topic: str, partitions: int) -> None:
    with AdminClient(running.address) as admin:
        wanted = {TopicPartition(topic, number): "latest" for number in range(partitions)}
        eventually(lambda: all(each.offset for each in admin.list_offsets(wanted).values()), f"records in {topic}")


def test_a_topic_just_created_takes_a_record_in_every_partition(client: Client, running: InProcessCluster) -> None:
    topic = f"just-created-{next(_numbers)}"
    client.create(topic)
    client.produce(topic, PARTITIONS)
    has_records(running, topic, PARTITIONS)


def test_a_topic_that_creates_itself_takes_the_record_that_creates_it(
    client: Client, running: InProcessCluster
) -> None:
    topic = f"by-itself-{next(_numbers)}"
    client.produce(topic, 1)
    has_records(running, topic, 1)
