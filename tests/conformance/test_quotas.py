"""Real clients with quotas, as Kafka's own quota_test has them: of the user or the client id, its own or the default.

Quotas are measured over three windows here, so that a client may use two seconds' worth at once, and not ten.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from raw_requests import eventually, isr_is_whole

from raylog.client.admin.admin import NewTopic
from raylog.client.sync import AdminClient
from raylog.testing.in_process import InProcessCluster, cluster
from raylog.wire.listeners import listeners_of

pytestmark = pytest.mark.conformance

RATE = 100_000
BURST_S = 2
COUNT, SIZE = 40, 10_000
"""Four seconds' worth."""
LEAST_S = COUNT * SIZE / RATE - BURST_S - 1  # the last window may count as a whole one
USERS = {"alice": "alice's password", "bob": "bob's password"}


@pytest.fixture(scope="module")
def running() -> Iterator[InProcessCluster]:
    with cluster(brokers=1, listeners=listeners_of("PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0")) as found:
        with AdminClient(found.address) as admin:
            admin.alter_configs(broker="all", set={"quota.window.num": "3"})
            for user, password in USERS.items():
                admin.set_user(user, password)
        router = found.launcher.servers[0].router
        eventually(lambda: len(router._sasl._credentials()) == 4, "the broker knows the users")
        yield found


@pytest.fixture
def topic(running: InProcessCluster) -> str:
    name = f"topic-{uuid.uuid4()}"
    with AdminClient(running.address) as admin:
        admin.create_topics([NewTopic(name, 1, 1)])
    eventually(lambda: isr_is_whole(running, name, 1), "it is there")
    return name


@contextmanager
def quota(running: InProcessCluster, entity: dict[str, str | None]) -> Iterator[None]:
    image = running.launcher.servers[0]

    def alter(changes: dict[str, float | None]) -> None:
        with AdminClient(running.address) as admin:
            admin.alter_quotas(entity, changes)
        decided = running.controller.image.quotas.values
        eventually(lambda: image.image.quotas.values == decided, "the broker knows the quotas")

    alter({"producer_byte_rate": RATE, "consumer_byte_rate": RATE})
    yield
    alter({"producer_byte_rate": None, "consumer_byte_rate": None})


def of_librdkafka(running: InProcessCluster, user: str, client_id: str, told: list[Any], **more: Any) -> dict[str, Any]:
    return {
        "bootstrap.servers": running.bootstrap_servers("SASL_PLAINTEXT"),
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": user,
        "sasl.password": USERS[user],
        "client.id": client_id,
        "throttle_cb": told.append,
        **{name.replace("_", "."): value for name, value in more.items()},
    }


def written(running: InProcessCluster, topic: str, user: str, client_id: str) -> tuple[float, list[Any]]:
    """How long it took, in seconds, and the throttle times that the client was told."""
    from confluent_kafka import Producer

    told: list[Any] = []
    producer = Producer(of_librdkafka(running, user, client_id, told, linger_ms=0, batch_size=SIZE))
    began = time.monotonic()
    for _ in range(COUNT):
        producer.produce(topic, b"v" * SIZE, partition=0)
    assert producer.flush(120) == 0
    return time.monotonic() - began, told


def consumed(running: InProcessCluster, topic: str, user: str, client_id: str) -> tuple[float, list[Any]]:
    """The same of a member of a group, which loses its place in it if its heartbeats are held back."""
    from confluent_kafka import Consumer

    told: list[Any] = []
    lost: list[Any] = []
    options: dict[str, Any] = {"auto_offset_reset": "earliest", "fetch_message_max_bytes": SIZE * 2}
    options |= {"group_id": topic + user, "session_timeout_ms": 6_000, "heartbeat_interval_ms": 500}
    consumer = Consumer(of_librdkafka(running, user, client_id, told, **options))
    consumer.subscribe([topic], on_lost=lambda _, partitions: lost.extend(partitions))
    began, found = time.monotonic(), 0
    while found < COUNT:
        found += sum(1 for each in consumer.consume(COUNT, 1.0) if each.error() is None)
    took_s = time.monotonic() - began
    consumer.close()
    assert not lost
    return took_s, told


@pytest.mark.parametrize(
    "entity",
    [
        {"user": "alice"},
        {"user": None},
        {"client-id": "app"},
        {"client-id": None},
        {"user": "alice", "client-id": "app"},
    ],
    ids=["user", "default-user", "client-id", "default-client-id", "user-and-client-id"],
)
def test_confluent_kafka_is_held_to_its_quota(
    running: InProcessCluster, topic: str, entity: dict[str, str | None]
) -> None:
    with quota(running, entity):
        for work in (written, consumed):
            took_s, told = work(running, topic, "alice", "app")
            assert took_s >= LEAST_S, f"{work.__name__} in {took_s} s"
            assert any(each.throttle_time > 0 for each in told), told


def test_a_neighbour_of_a_throttled_client_is_not_throttled(running: InProcessCluster, topic: str) -> None:
    with quota(running, {"user": "alice"}):
        assert written(running, topic, "alice", "app")[1]
        for work in (written, consumed):
            assert not work(running, topic, "bob", "app")[1]


def test_kafka_python_is_held_to_its_quota(
    running: InProcessCluster, topic: str, closed_sockets: None, caplog: pytest.LogCaptureFixture
) -> None:
    from kafka import KafkaConsumer, KafkaProducer, TopicPartition

    common = {"bootstrap_servers": running.bootstrap_servers().split(","), "client_id": "of-python"}
    with quota(running, {"client-id": "of-python"}):
        producer = KafkaProducer(**common, batch_size=SIZE, api_version=(3, 9))
        began = time.monotonic()
        for _ in range(COUNT):
            producer.send(topic, b"v" * SIZE, partition=0)
        producer.flush(120)
        assert time.monotonic() - began >= LEAST_S
        assert "ProduceResponse throttled by broker" in caplog.text
        producer.close()
        consumer = KafkaConsumer(**common, auto_offset_reset="earliest", max_partition_fetch_bytes=SIZE * 2)
        consumer.assign([TopicPartition(topic, 0)])
        began, found = time.monotonic(), 0
        while found < COUNT:
            found += sum(len(each) for each in consumer.poll(1_000).values())
        assert time.monotonic() - began >= LEAST_S
        assert "FetchResponse throttled by broker" in caplog.text
        consumer.close()
