"""Kafka Connect with exactly-once sources: a worker that is killed amid transactions and started again.

It copies every line of a file once into a topic, and, by MirrorMaker 2's connector, every record of that topic once into another.
"""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition
from connect_worker import PATIENCE_S, Worker
from raw_requests import eventually

from raylog.client.admin.admin import NewTopic
from raylog.client.sync import AdminClient
from raylog.testing.in_process import InProcessCluster

pytestmark = pytest.mark.conformance

TOPIC, COPY = "copied-lines", "here.copied-lines"
LINES, PARTS = 300, 2


def committed(bootstrap: str, topic: str) -> list[str]:
    """The values, in their order, as a read_committed consumer sees them."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "reads", "enable.partition.eof": True, "log_level": 0}
    )
    found: list[str] = []
    try:
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        while (message := consumer.poll(PATIENCE_S)) is not None:
            if message.error() is not None:
                if message.error().code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    return []
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                return found
            found.append(message.value().decode())
    finally:
        consumer.close()
    raise AssertionError(f"{topic} does not end: {len(found)} records")


def test_sources_that_are_killed_copy_every_record_once(
    running: InProcessCluster, bootstrap: str, tmp_path: Path
) -> None:
    with AdminClient(running.address) as admin:
        admin.create_topics([NewTopic(TOPIC, 1, 3)])
    source = tmp_path / "lines.txt"
    source.touch()
    worker = Worker(bootstrap, tmp_path)
    lines: list[str] = []
    pause = threading.Event()

    def append(count: int) -> None:
        """A few at a time, so that many transactions come of it."""
        for _ in range(count // 10):
            fresh = [f"line {len(lines) + number}" for number in range(10)]
            with source.open("a") as file:
                file.writelines(f"{line}\n" for line in fresh)
            lines.extend(fresh)
            pause.wait(0.05)

    def await_copied(topic: str, least: int) -> None:
        eventually(lambda: len(committed(bootstrap, topic)) >= least, f"{least} records in {topic}")

    for part in range(PARTS):
        is_last = part == PARTS - 1
        with worker.running():
            worker.connect(
                "files", "org.apache.kafka.connect.file.FileStreamSourceConnector",
                file=str(source), topic=TOPIC, **{"transaction.boundary": "poll"},
            )  # fmt: skip
            worker.connect(
                "mirror", "org.apache.kafka.connect.mirror.MirrorSourceConnector",
                topics=TOPIC,
                **{
                    "source.cluster.alias": "here", "target.cluster.alias": "there",
                    "source.cluster.bootstrap.servers": bootstrap, "target.cluster.bootstrap.servers": bootstrap,
                    "replication.factor": "3", "offset-syncs.topic.replication.factor": "3",
                    "key.converter": "org.apache.kafka.connect.converters.ByteArrayConverter",
                    "value.converter": "org.apache.kafka.connect.converters.ByteArrayConverter",
                    "source.consumer.isolation.level": "read_committed", "consumer.poll.timeout.ms": "200",
                },
            )  # fmt: skip
            append(LINES // PARTS)
            least = len(lines) if is_last else len(lines) - LINES // 4  # killed in the middle, with transactions open
            await_copied(TOPIC, least)
            await_copied(COPY, least if is_last else 1 + part * LINES // 4)
    assert committed(bootstrap, TOPIC) == lines
    assert committed(bootstrap, COPY) == lines
