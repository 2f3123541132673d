"""Kafka Streams with exactly_once_v2: a word count that is killed and started again counts every word once."""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from kafka_peer import apache_kafka

from raylog.client.admin.admin import NewTopic
from raylog.client.sync import AdminClient
from raylog.testing.in_process import InProcessCluster

pytestmark = pytest.mark.conformance

PROGRAM = Path(__file__).with_name("WordCount.java")
INPUT, OUTPUT = "lines", "counts"
PARTITIONS = 2
LINES = 600
PATIENCE_S = 120.0


@contextlib.contextmanager
def word_count(bootstrap: str, folder: Path) -> Iterator[None]:
    """The process, which is killed at the end."""
    kafka = apache_kafka()
    config = folder / "streams.properties"
    config.write_text(
        f"bootstrap.servers={bootstrap}\napplication.id=words\nprocessing.guarantee=exactly_once_v2\nstate.dir={folder}/state\n"
        "replication.factor=3\nstatestore.cache.max.bytes=0\nauto.offset.reset=earliest\nconsumer.session.timeout.ms=6000\nconsumer.heartbeat.interval.ms=1000\n"
    )
    with (folder / "log").open("a") as log:
        command = kafka.java_command(str(PROGRAM), str(config), INPUT, OUTPUT, folder=kafka.streams_libs())
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield
        assert process.poll() is None, (folder / "log").read_text()[-4_000:]
    finally:
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
        process.wait()


def committed_counts(bootstrap: str) -> dict[str, list[int]]:
    """By word, the counts in the order of the topic, as a read_committed consumer sees them."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "reads", "enable.partition.eof": True, "log_level": 0}
    )
    found: dict[str, list[int]] = {}
    try:
        for number in range(PARTITIONS):
            consumer.assign([TopicPartition(OUTPUT, number, OFFSET_BEGINNING)])
            while (message := consumer.poll(PATIENCE_S)) is not None:
                if message.error() is not None:
                    assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                    break
                found.setdefault(message.key().decode(), []).append(*struct.unpack(">q", message.value()))
    finally:
        consumer.close()
    return found


def counted(bootstrap: str) -> int:
    return sum(map(len, committed_counts(bootstrap).values()))


def await_counts(bootstrap: str, least: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while (seen := counted(bootstrap)) < least:
        assert time.monotonic() < deadline, f"{seen} counts of {least}"


def test_a_word_count_that_is_killed_counts_every_word_once(
    running: InProcessCluster, bootstrap: str, tmp_path: Path
) -> None:
    with AdminClient(running.address) as admin:
        admin.create_topics([NewTopic(name, PARTITIONS, 3) for name in (INPUT, OUTPUT)])
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    words: Counter[str] = Counter()

    def write(lines: int) -> None:
        for number in range(lines):
            line = f"w{number % 7} w{number % 11} again"
            words.update(line.split())
            producer.produce(INPUT, line.encode(), partition=number % PARTITIONS)
        assert producer.flush(PATIENCE_S) == 0

    for part in range(3):
        with word_count(bootstrap, tmp_path):
            write(LINES // 3)
            if part < 2:
                await_counts(bootstrap, LINES * part + LINES // 3)  # in the middle: killed with a transaction open
            else:
                await_counts(bootstrap, words.total())
    found = committed_counts(bootstrap)
    assert {word: sorted(counts) for word, counts in found.items()} == {
        word: list(range(1, total + 1)) for word, total in words.items()
    }
    assert all(counts == sorted(counts) for counts in found.values())
