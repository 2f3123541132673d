"""From PLAINTEXT to SASL_SSL, broker by broker, as docs/security.md says: its steps, under a load of librdkafka's clients.

One embedded cluster of real processes, three brokers, a topic and its groups' coordinators with three replicas. Two idempotent producers
and a group of two write and read all the while. The brokers get a listener more, the clients move there one by one, and the brokers
lose the first listener. Nobody is told of an error but of connections that librdkafka opens again by itself, every record is
acknowledged, and the group reads each once.
"""

from __future__ import annotations

import os
import random
import shutil
import socket
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from certificates import Authority, settings
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from ray_clusters import STATUS_S, eventually, isr_is_whole, kept_environment
from typer.testing import CliRunner

import raylog
from raylog import NewTopic
from raylog.cli.main import app
from raylog.offsets_topic import OFFSETS_TOPIC, OFFSETS_TOPIC_PARTITIONS

pytestmark = pytest.mark.conformance

TOPIC, GROUP = "orders", "readers"
BROKERS, PARTITIONS = 3, 6
PASSWORD = "a secret of alice's"
RECORD_EVERY_S = 0.005
RECORDS_PER_COMMIT = 20
PATIENCE_S = 180.0
HANDLED_INSIDE = {KafkaError._TRANSPORT}
"""What librdkafka tells ``error_cb`` of and puts right by itself: a connection that has ended."""


class Client:
    """One of librdkafka's in a thread, which another one replaces when it has to move. ``errors``: what its user was told."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.errors: list[str] = []
        self.served = 0
        self.moves = 0
        self._options = options
        self._over = threading.Event()
        self._has_to_move = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._over.is_set():
                self._has_to_move.clear()
                self.moves += 1
                self.work({**self._options, "error_cb": self._told, "log_level": 0})
        except BaseException as error:
            self.errors.append(repr(error))

    def _told(self, error: KafkaError) -> None:
        if error.fatal() or error.code() not in HANDLED_INSIDE:
            self.errors.append(f"{error.name()}: {error.str()}")

    @property
    def goes_on(self) -> bool:
        return not self._over.is_set() and not self._has_to_move.is_set()

    def work(self, options: dict[str, Any]) -> None:
        """Until ``goes_on`` is false; then finish what was begun, and close."""
        raise NotImplementedError

    def move(self, options: dict[str, Any]) -> None:
        """Another client goes on, and is served."""
        before = self.moves
        self._options = options
        self._has_to_move.set()
        eventually(lambda: self.errors or self.moves > before, "the client has ended well", PATIENCE_S)
        self.more()

    def more(self, count: int = 50) -> None:
        """Wait until it was served so many times more."""
        goal = self.served + count
        eventually(lambda: self.errors or self.served > goal, f"{type(self).__name__} is served", PATIENCE_S)
        assert not self.errors

    def stop(self) -> None:
        self._over.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "it does not end"


class Producing(Client):
    """Numbers what it sends. ``acknowledged`` has the values."""

    def __init__(self, options: dict[str, Any], name: str) -> None:
        self.name = name
        self.sent = 0
        self.acknowledged: list[bytes] = []
        super().__init__(options)

    def work(self, options: dict[str, Any]) -> None:
        producer = Producer({**options, "enable.idempotence": True})

        def delivered(error: KafkaError | None, message: Any) -> None:
            if error is not None:
                self.errors.append(f"a record: {error}")
                return
            self.acknowledged.append(message.value())
            self.served += 1

        while self.goes_on:
            value = f"{self.name} {self.sent}".encode()
            producer.produce(TOPIC, value, key=value, on_delivery=delivered)
            self.sent += 1
            producer.poll(RECORD_EVERY_S)
        if producer.flush(PATIENCE_S):
            self.errors.append("records were never settled")


class Reading(Client):
    """A member of the group, which commits what it has read, at the latest before another member goes on. ``read`` has the values."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.read: list[bytes] = []
        super().__init__(options)

    def work(self, options: dict[str, Any]) -> None:
        mine = {"group.id": GROUP, "auto.offset.reset": "earliest", "enable.auto.commit": False}
        consumer = Consumer({**options, **mine})
        consumer.subscribe([TOPIC], on_revoke=lambda _, __: commit(consumer))
        try:
            while self.goes_on:
                message = consumer.poll(0.1)
                if message is None:
                    continue
                if message.error() is not None:
                    self.errors.append(str(message.error()))
                    continue
                self.read.append(message.value())
                self.served += 1
                if self.served % RECORDS_PER_COMMIT == 0:
                    commit(consumer)
            commit(consumer)
        finally:
            consumer.close()


def commit(consumer: Consumer) -> None:
    """All that was read, if anything was since the last time. Raises KafkaException."""
    try:
        consumer.commit(asynchronous=False)
    except KafkaException as error:
        if error.args[0].code() != KafkaError._NO_OFFSET:
            raise


def free_ports(count: int) -> list[int]:
    """Below those that connections are given: a Broker finds its port free when it comes back."""
    found: list[int] = []
    for port in random.sample(range(20_000, 32_000), 200):
        with socket.socket() as bound:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                bound.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise AssertionError("no free ports")


class Site:
    """The cluster, and where its brokers listen."""

    def __init__(self, folder: Path) -> None:
        ports = free_ports(2 * BROKERS)
        self.authority = Authority(folder / "certificates")
        self.folder = folder / "data"
        self.plain = [f"PLAINTEXT://127.0.0.1:{port}" for port in ports[:BROKERS]]
        self.secure = [f"SASL_SSL://127.0.0.1:{port}" for port in ports[BROKERS:]]
        self.properties = folder / "server.properties"
        lines = settings(self.authority.signed("broker")).items()
        self.properties.write_text("".join(f"{name}={value}\n" for name, value in lines))
        self.cluster = raylog.init(self.folder, listeners=self.plain, ray_address="local", timeout_s=120)

    def give(self, broker: int, *listeners: str, config: Path | None = None) -> None:
        """The command of the recipe, and the wait behind it."""
        arguments = ["node", "resources", str(self.folder / f"broker-{broker}"), "--listeners", ",".join(listeners)]
        done = CliRunner().invoke(app, [*arguments, *(["--config", str(config)] if config is not None else [])])
        assert done.exit_code == 0, done.output

        def has_them() -> bool:
            found = self.cluster.status(STATUS_S)["brokers"][broker]
            return found["live"] and found["listeners"] == listeners

        eventually(has_them, f"broker {broker} listens at {listeners}", PATIENCE_S)

    @property
    def before(self) -> dict[str, Any]:
        """What clients are told that speak plainly."""
        return {"bootstrap.servers": ",".join(each.partition("://")[2] for each in self.plain)}

    @property
    def afterwards(self) -> dict[str, Any]:
        return {
            "bootstrap.servers": ",".join(each.partition("://")[2] for each in self.secure),
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.authority.certificate),
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": "alice",
            "sasl.password": PASSWORD,
        }


@pytest.fixture
def site() -> Iterator[Site]:
    folder = Path(tempfile.mkdtemp(prefix="rl"))
    with kept_environment("RAY_TMPDIR", "RAY_AUTH_MODE"):
        os.environ["RAY_TMPDIR"] = str(folder)
        found = Site(folder)
        try:
            with found.cluster.admin() as admin:
                admin.create_topics(
                    [
                        NewTopic(OFFSETS_TOPIC, OFFSETS_TOPIC_PARTITIONS, BROKERS),
                        NewTopic(TOPIC, PARTITIONS, BROKERS, configs={"min.insync.replicas": "2"}),
                    ]
                )
            for topic in (OFFSETS_TOPIC, TOPIC):
                eventually(lambda: isr_is_whole(found.cluster, topic), f"all replicas of {topic} in sync")  # noqa: B023
            yield found
        finally:
            found.cluster.shutdown()
    shutil.rmtree(folder, ignore_errors=True)


def test_a_cluster_goes_from_plaintext_to_sasl_ssl_broker_by_broker_and_no_client_notices(site: Site) -> None:
    producers = [Producing(site.before, name) for name in ("first", "second")]
    members = [Reading(site.before) for _ in range(2)]
    clients: list[Client] = [*producers, *members]
    try:
        for each in clients:
            each.more()
        with site.cluster.admin() as admin:
            admin.set_user("alice", PASSWORD)
        for broker in range(BROKERS):
            site.give(broker, site.plain[broker], site.secure[broker], config=site.properties)
            for each in clients:
                each.more()
        for each in clients:
            each.move(site.afterwards)
        for broker in range(BROKERS):
            site.give(broker, site.secure[broker], config=site.properties)
            for each in clients:
                each.more()
    finally:
        for producer in producers:
            producer.stop()
        sent = sum(each.sent for each in producers)
        eventually(
            lambda: any(each.errors for each in clients) or sum(len(each.read) for each in members) >= sent,
            "everything is read",
            PATIENCE_S,
        )
        for member in members:
            member.stop()
    assert [each.errors for each in clients] == [[]] * len(clients)
    assert [each.moves for each in clients] == [2] * len(clients)
    acknowledged = Counter(value for each in producers for value in each.acknowledged)
    assert len(acknowledged) == sent and set(acknowledged.values()) == {1}
    assert Counter(value for each in members for value in each.read) == acknowledged
    for each in site.plain:
        host, port = each.removeprefix("PLAINTEXT://").split(":")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, int(port)), timeout=10)
