"""Kafka Connect with exactly-once sources: a worker that is killed amid transactions and started again.

It copies every line of a file once into a topic, and, by MirrorMaker 2's connector, every record of that topic once into another.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition
from kafka_peer import apache_kafka
from raw_requests import eventually

from raylog.client.admin.admin import NewTopic
from raylog.client.sync import AdminClient
from raylog.testing.in_process import InProcessCluster

pytestmark = pytest.mark.conformance

TOPIC, COPY = "copied-lines", "here.copied-lines"
LINES, PARTS = 300, 2
PATIENCE_S = 120.0


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


class Worker:
    """A distributed worker. Killed at the end of ``running``, and started again by the next one with what its topics hold."""

    def __init__(self, bootstrap: str, folder: Path) -> None:
        self._log = folder / "log"
        self._config = folder / "worker.properties"
        self._url = f"http://127.0.0.1:{(port := free_port())}"
        names = {"config": "connect-configs", "offset": "connect-offsets", "status": "connect-status"}
        self._config.write_text(
            f"bootstrap.servers={bootstrap}\ngroup.id=connect\nlisteners=http://127.0.0.1:{port}\n"
            + "".join(
                f"{kind}.storage.topic={name}\n{kind}.storage.replication.factor=3\n" for kind, name in names.items()
            )
            + "offset.storage.partitions=3\nstatus.storage.partitions=1\n"
            + "".join(
                f"{side}.converter=org.apache.kafka.connect.storage.StringConverter\n" for side in ("key", "value")
            )
            + "exactly.once.source.support=enabled\nsession.timeout.ms=6000\nheartbeat.interval.ms=1000\n"
            + "offset.flush.interval.ms=500\nscheduled.rebalance.max.delay.ms=0\n"
        )

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        kafka = apache_kafka()
        command = kafka.java_command(
            "org.apache.kafka.connect.cli.ConnectDistributed", str(self._config), folder=kafka.connect_libs()
        )
        with self._log.open("a") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            self._await(process)
            yield
            assert process.poll() is None, self.told()
        finally:
            if process.poll() is None:
                os.kill(process.pid, signal.SIGKILL)
            process.wait()

    def told(self) -> str:
        return self._log.read_text()[-4_000:]

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        request = urllib.request.Request(
            f"{self._url}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return json.load(answer)

    def connect(self, name: str, connector: str, **config: str) -> None:
        """Have the connector run, as it is told; asked again while the worker joins its group."""
        given = {"connector.class": connector, "tasks.max": "1", "exactly.once.support": "required"} | config

        def is_taken() -> bool:
            try:
                self.ask("PUT", f"/connectors/{name}/config", given)
            except urllib.error.HTTPError as error:
                assert error.code in (409, 500, 503), error.read()
                return False
            return True

        eventually(is_taken, f"connector {name} to be taken")

    def _await(self, process: subprocess.Popen[bytes]) -> None:
        def answers() -> bool:
            assert process.poll() is None, self.told()
            try:
                self.ask("GET", "/connectors")
            except (urllib.error.URLError, OSError):
                return False
            return True

        eventually(answers, "the worker to answer")


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
