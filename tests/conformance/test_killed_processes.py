"""Real clients while the processes that serve them are SIGKILLed: a partition's leader, a group's coordinator, a Broker's listener.

One embedded cluster of real processes, three brokers; each client writes to a topic of its own with three replicas, and a member of a group
of its own reads it and commits. The topic's leader and the group's coordinator are of one broker, so that its listener's death cuts
off both. After each kill both are served again, no error reached the client's user, nothing that was acknowledged is lost, nothing is there
twice, and the member has read everything in order.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from benchmark_modules import benchmark_module
from kafka_peer import apache_kafka
from ray_clusters import eventually, isr_is_whole, kept_environment, partition_of, pid_of

import raylog
from raylog import NewTopic
from raylog.offsets_topic import OFFSETS_TOPIC, OFFSETS_TOPIC_PARTITIONS, partition_for
from raylog.types import BROKER_SLOT, node_id

pytestmark = pytest.mark.conformance

LIBRARIES = ("confluent-kafka", "kafka-python", "aiokafka")
KINDS = ("leader", "coordinator", "broker")
PATIENCE_S = 180.0
LINE_EVERY_S = 0.01
_numbers = itertools.count()


@pytest.fixture(scope="module")
def embedded() -> Iterator[raylog.Cluster]:
    """Three brokers on a Ray of the module's own, with group coordinators that are all in sync."""
    folder = Path(tempfile.mkdtemp(prefix="rl"))
    with kept_environment("RAY_TMPDIR", "RAY_AUTH_MODE"):
        os.environ["RAY_TMPDIR"] = str(folder)
        cluster = raylog.init(folder / "data", ray_address="local", timeout_s=120)
        try:
            with cluster.admin() as admin:
                admin.create_topics([NewTopic(OFFSETS_TOPIC, OFFSETS_TOPIC_PARTITIONS, 3)])
                admin.alter_configs(broker="all", set={"group.initial.rebalance.delay.ms": "100"})
            eventually(lambda: isr_is_whole(cluster, OFFSETS_TOPIC), "all group coordinators in sync")
            yield cluster
        finally:
            cluster.shutdown()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def group() -> str:
    return f"group-{next(_numbers)}"


@pytest.fixture
def topic(embedded: raylog.Cluster, group: str) -> str:
    """A topic that the broker leads which coordinates the group."""
    leader = partition_of(embedded, OFFSETS_TOPIC, partition_for(group))["leader"]
    order = [(leader + step) % 3 for step in range(3)]
    with embedded.admin() as admin:
        admin.create_topics([NewTopic(group, replica_assignment={0: order}, configs={"min.insync.replicas": "2"})])
    eventually(lambda: isr_is_whole(embedded, group), "all replicas in sync")
    return group


@pytest.fixture
def kill(embedded: raylog.Cluster, topic: str, group: str) -> Iterator[Callable[[str], float]]:
    """Ends a process; when that was. At the end of the test it is back and everything in sync."""
    struck: list[tuple[int, int]] = []

    def strike(kind: str) -> float:
        part = partition_of(embedded, topic)
        match kind:
            case "leader":
                node = part["leader_node"]
            case "coordinator":
                node = partition_of(embedded, OFFSETS_TOPIC, partition_for(group))["leader_node"]
            case _:
                node = node_id(part["leader"], BROKER_SLOT)
        struck.append((node, pid_of(embedded, node)))
        moment = time.perf_counter()
        os.kill(struck[-1][1], signal.SIGKILL)
        return moment

    yield strike
    for node, pid in struck:
        eventually(lambda: is_back(embedded, node, pid), "the killed process is back")  # noqa: B023
    eventually(lambda: isr_is_whole(embedded, topic) and isr_is_whole(embedded, OFFSETS_TOPIC), "all in sync again")


def is_back(embedded: raylog.Cluster, node: int, pid: int) -> bool:
    return any(
        actor["node_id"] == node and actor["state"] == "live" and actor["pid"] != pid
        for actor in embedded.status()["actors"]
    )


# ------------------------------------------------------------------ libraries


@pytest.mark.usefixtures("closed_sockets")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("library", LIBRARIES)
def test_a_killed_process_costs_a_client_nothing(
    embedded: raylog.Cluster, topic: str, group: str, kill: Callable[[str], float], library: str, kind: str
) -> None:
    client = benchmark_module("kafka_clients").LIBRARIES[library]
    servers = embedded.bootstrap_servers()
    producing, grouped = client.producing(servers, topic), client.grouped(servers, topic, group)
    streams = (producing, grouped)
    try:
        for each in streams:
            eventually(lambda: each.errors or len(each.served) > 20, "it is served", PATIENCE_S)  # noqa: B023
        moment = kill(kind)
        for each in streams:
            eventually(lambda: each.errors or each.served_since(moment) > 100, "it is served again", PATIENCE_S)  # noqa: B023
    finally:
        producing.stop()
        eventually(lambda: grouped.errors or len(grouped.numbers) >= producing.sent, "the rest is read", PATIENCE_S)
        grouped.stop()
    assert not producing.errors and not grouped.errors
    everything = range(producing.sent)
    assert [producing.offsets.get(number) for number in everything] == [*everything], "each once, in order"
    assert grouped.numbers == [*everything]


# ------------------------------------------------------------------ programs


class Writing:
    """A program that sends the lines of its input. They come slowly, until ``stop``."""

    def __init__(self, command: list[str]) -> None:
        self.lines = 0
        self._over = threading.Event()
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (it lives as long as the program)
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=self._errors, text=True
        )
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def _write(self) -> None:
        assert self._process.stdin is not None
        while not self._over.wait(LINE_EVERY_S):
            self._process.stdin.write(f"{self.lines}\n")
            self._process.stdin.flush()
            self.lines += 1
        self._process.stdin.close()

    def stop(self) -> str:
        """End its input and wait until it has ended well; what it complained of."""
        self._over.set()
        self._thread.join()
        status = self._process.wait(PATIENCE_S)
        self._errors.seek(0)
        with self._errors:
            told = self._errors.read()
        assert status == 0, told
        return told


class Reading:
    """A program that prints what it reads, a line each, until ``stop``."""

    def __init__(self, command: list[str]) -> None:
        self.lines: list[str] = []
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(line.strip())
        self._process.stdout.close()

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(PATIENCE_S)
        self._thread.join()


def kcat(servers: str, topic: str, group: str) -> tuple[list[str], list[str]]:
    if shutil.which("kcat") is None:
        pytest.skip("no kcat on this machine")
    common = ["kcat", "-b", servers, "-q"]
    writing = [*common, "-P", "-t", topic, "-p", "0", "-X", "enable.idempotence=true"]
    return writing, [*common, "-G", group, "-u", "-X", "auto.offset.reset=earliest", topic]


def java(servers: str, topic: str, group: str) -> tuple[list[str], list[str]]:
    kafka: Any = apache_kafka()
    where = ("--bootstrap-server", servers, "--topic", topic)
    consumer = "org.apache.kafka.tools.consumer.ConsoleConsumer"
    return (
        kafka.java_command("kafka.tools.ConsoleProducer", *where),
        kafka.java_command(consumer, *where, "--group", group, "--from-beginning"),
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("program", [kcat, java], ids=lambda each: each.__name__)
def test_a_killed_process_costs_a_program_nothing(
    embedded: raylog.Cluster,
    topic: str,
    group: str,
    kill: Callable[[str], float],
    program: Callable[[str, str, str], tuple[list[str], list[str]]],
    kind: str,
) -> None:
    produce, consume = program(embedded.bootstrap_servers(), topic, group)
    reading = Reading(consume)
    writing = Writing(produce)
    try:
        eventually(lambda: len(reading.lines) > 20, "it reads what is written", PATIENCE_S)
        kill(kind)
        goal = writing.lines + 100
        eventually(lambda: len(reading.lines) > goal, "it reads what was written since", PATIENCE_S)
    finally:
        told = writing.stop()
        try:
            eventually(lambda: len(reading.lines) >= writing.lines, "it reads the rest", PATIENCE_S)
        finally:
            reading.stop()
    assert reading.lines == [str(number) for number in range(writing.lines)], "each once, in order"
    assert "ERROR" not in told
