"""Clients that name their rack are sent to a replica there (KIP-392)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from kio.schema.errors import ErrorCode
from outside import Client, fetch, metadata, parts, produce
from raw_requests import batch, eventually

from raylog.testing.in_process import InProcessCluster, cluster
from raylog.types import BROKER_SLOT, node_id

pytestmark = pytest.mark.core

Open = Callable[..., Client]
NewTopicOf = Callable[..., str]


@pytest.fixture(scope="module")
def running() -> Iterator[InProcessCluster]:
    with cluster(brokers=3, racks=["a", "b", "b"]) as found:
        yield found


def test_metadata_shows_racks(client: Open) -> None:
    asking = client()
    racks = ["a", "b", "b"]
    eventually(lambda: [each.rack for each in asking.ask(metadata()).brokers] == racks, "every broker and its rack")


def test_a_leader_sends_to_a_replica_in_sync_in_the_clients_rack(client: Open, new_topic: NewTopicOf) -> None:
    topic = new_topic((0, 2))
    client(0).ask(produce(topic, {0: batch(b"v")}))
    found = parts(client(0).ask(fetch(topic, {0: 0}, version=11, rack="b", max_wait_ms=300_000, min_bytes=1 << 20)))[0]
    assert (found.error_code, found.preferred_read_replica, found.records) == (ErrorCode.none, 2, b"")
    near = parts(client(2).ask(fetch(topic, {0: 0}, version=11, rack="b", max_wait_ms=10_000)))[0]
    assert near.records and near.preferred_read_replica == -1


def test_nobody_is_sent_anywhere_without_need(client: Open, new_topic: NewTopicOf) -> None:
    topic = new_topic((0, 2))
    client(0).ask(produce(topic, {0: batch(b"v")}))
    for rack in ("", "a", "nowhere"):
        found = parts(client(0).ask(fetch(topic, {0: 0}, version=11, rack=rack)))[0]
        assert found.records and found.preferred_read_replica == -1, rack


def test_librdkafka_reads_in_its_rack(running: InProcessCluster, client: Open, new_topic: NewTopicOf) -> None:
    topic = new_topic((0, 2))
    client(0).ask(produce(topic, {0: batch(b"one", b"two")}))
    handlers = running.launcher.servers[node_id(2, BROKER_SLOT)].router.server.handlers
    read_there: list[str | None] = []
    handle = handlers[1]
    handlers[1] = lambda request: (read_there.append(request.context.client_id), handle(request))[1]
    consumer = Consumer(
        {
            "bootstrap.servers": running.bootstrap_servers(),
            "group.id": "unused",
            "enable.auto.commit": False,
            "client.rack": "b",
            "log_level": 0,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        found: list[bytes] = []

        def both() -> bool:
            found.extend(message.value() for message in consumer.consume(2, 0.2) if not message.error())
            return len(found) == 2

        eventually(both, "both records")
        assert found == [b"one", b"two"] and "rdkafka" in read_there
    finally:
        handlers[1] = handle
        consumer.close()
