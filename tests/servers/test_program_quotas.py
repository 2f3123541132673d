"""Programs that know the cluster's secret are held to the quotas of their client ids at the processes that hold replicas."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from raw_requests import endpoint_of, eventually, nodes_of
from raw_requests import part as part_of

from raylog import NewTopic, TopicPartition
from raylog.client.links import requests
from raylog.client.sync import AdminClient, Consumer, Producer
from raylog.security.quotas import ClientQuotas
from raylog.security.told_quotas import SETTING, as_text, from_text
from raylog.server.replica_server import ReplicaServer
from raylog.testing.in_process import InProcessCluster, cluster
from raylog.wire.connection import Connection

pytestmark = pytest.mark.core

KIB = 1_024
VALUE = b"v" * (23 * KIB // 2)
"""Two of them are what a quota of 2 KiB a second allows in 11.5 s; what ten seconds allow may be sent at once."""
RATES = ("producer_byte_rate", "consumer_byte_rate")


@pytest.fixture(scope="module")
def running() -> Iterator[InProcessCluster]:
    with cluster(brokers=2) as found:
        yield found


@pytest.fixture
def topic(running: InProcessCluster, request: pytest.FixtureRequest) -> str:
    """A topic with two replicas."""
    name = request.node.name.replace("[", "-").replace("]", "")
    with AdminClient(running.address) as admin:
        admin.create_topics([NewTopic(name, 1, 2, configs={"min.insync.replicas": "2"})])
    return str(name)


def hosts(running: InProcessCluster) -> list[ReplicaServer]:
    return [each for each in running.launcher.servers.values() if isinstance(each, ReplicaServer)]


def is_asked(host: ReplicaServer) -> bool:
    return host._quotas._borrower._request is not None


def know_what_they_have(running: InProcessCluster) -> bool:
    """Whether no process has a request let pass whose quota it has asked for."""
    return not any(
        holding.is_urgent for each in hosts(running) for holding in each._quotas._borrower._borrowing.values()
    )


@pytest.fixture
def quota(running: InProcessCluster, topic: str) -> Iterator[Callable[..., None]]:
    """Sets quotas, and waits until all processes with replicas have them; removes them at the end."""
    entities: list[dict[str, str | None]] = []

    def alter(entity: dict[str, str | None], changes: dict[str, float | None]) -> None:
        with AdminClient(running.address) as admin:
            admin.alter_quotas(entity, changes)
        text = as_text(running.controller.image.quotas, 11, 1_000)
        eventually(lambda: all(each._quotas._text == text for each in hosts(running)), "the processes know the quotas")
        if text is not None:
            eventually(lambda: all(map(is_asked, hosts(running))), "a Broker asks what they want of them")

    def set_(entity: dict[str, str | None], **values: float) -> None:
        entities.append(entity)
        alter(entity, dict(values))

    yield set_
    for entity in entities:
        alter(entity, dict.fromkeys(RATES))


@contextmanager
def at_least(seconds: float) -> Iterator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began >= seconds


def write(running: InProcessCluster, topic: str, client_id: str, count: int, **options: object) -> float:
    """How many seconds it took."""
    began = time.monotonic()
    with Producer(running.address, client_id=client_id, **options) as producer:
        for _ in range(count):
            producer.send(topic, VALUE).result(60)
            eventually(lambda: know_what_they_have(running), "leases")
    return time.monotonic() - began


def read(running: InProcessCluster, topic: str, client_id: str, count: int) -> list[bytes | None]:
    found: list[bytes | None] = []
    with Consumer(running.address, client_id=client_id, max_partition_fetch_bytes=2 * len(VALUE)) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek_to_beginning()
        eventually(
            lambda: found.extend(each.value for each in consumer.consume(count, timeout=1)) or len(found) >= count,
            "records",
        )
    return found


def test_a_producer_above_its_quota_waits_and_others_do_not(
    running: InProcessCluster, topic: str, quota: Callable[..., None]
) -> None:
    quota({"client-id": "noisy"}, producer_byte_rate=2 * KIB)
    with at_least(1.0):
        write(running, topic, "noisy", 3)
    assert write(running, topic, "neighbour", 3) < write(running, topic, "noisy", 2), "which still has to wait"
    assert read(running, topic, "reader", 8) == [VALUE] * 8, "followers copied all of it"


def test_a_consumer_above_its_quota_waits_and_misses_nothing(
    running: InProcessCluster, topic: str, quota: Callable[..., None]
) -> None:
    write(running, topic, "writer", 4)
    quota({"client-id": "greedy"}, consumer_byte_rate=2 * KIB)
    read(running, topic, "greedy", 1)
    eventually(lambda: know_what_they_have(running), "leases")
    with at_least(1.0):
        assert read(running, topic, "greedy", 3) == [VALUE] * 3


def test_who_does_not_wait_is_not_read_and_gets_no_more_than_the_quota(
    running: InProcessCluster, topic: str, quota: Callable[..., None]
) -> None:
    """A client that knows the secret, and heeds no throttle time."""
    write(running, topic, "writer", 6)
    quota({"client-id": "rude"}, consumer_byte_rate=2 * KIB)
    node = nodes_of(running, topic)[part_of(running, topic)["leader"]]
    endpoint, address = endpoint_of(running, node), running.address

    async def work() -> list[tuple[int, float, float]]:
        """For each Fetch: the bytes, the throttle time and how long its answer took."""
        connection = await Connection.open(
            endpoint, secret=address.secret, cluster_id=address.cluster_id, client_id="rude"
        )
        found = []
        for offset in (0, 1, 1):
            began = time.monotonic()
            reply = await connection.request(
                requests.fetch(
                    {TopicPartition(topic, 0): (offset, -1)},
                    max_wait_ms=0,
                    min_bytes=0,
                    max_bytes=1 << 24,
                    partition_max_bytes=1 << 24,
                ),
                timeout_ms=60_000,
            )
            size = len(reply.responses[0].partitions[0].records)
            found.append((size, reply.throttle_time.total_seconds(), time.monotonic() - began))
            while not know_what_they_have(running):
                await asyncio.sleep(0.001)
        connection.close()
        await connection.wait_closed()
        return found

    first, second, third = running.run(work(), 120)
    assert 0 < first[0] <= 20 * KIB, "no more than ten seconds' worth at once"
    assert first[1] == 0
    assert second[0] == 0 and second[1] > 0, "what exceeds the quota is left out"
    assert third[2] >= second[1] - 0.05, "the connection was not read before"


def test_a_default_is_each_client_ids_own_and_followers_have_none(
    running: InProcessCluster, topic: str, quota: Callable[..., None]
) -> None:
    quota({"client-id": None}, producer_byte_rate=2 * KIB, consumer_byte_rate=2 * KIB)
    with at_least(1.0):
        write(running, topic, "one", 3, acks="all")
    write(running, topic, "another", 2, acks="all")
    quota({"client-id": None}, producer_byte_rate=1 << 40, consumer_byte_rate=1)
    write(running, topic, "third", 20, acks="all")


def test_only_quotas_of_client_ids_are_told() -> None:
    quotas = ClientQuotas()
    quotas.set((("user", "alice"),), "producer_byte_rate", 1.0)
    quotas.set((("client-id", "app"), ("user", "alice")), "producer_byte_rate", 1.0)
    quotas.set((("client-id", "app"),), "request_percentage", 1.0)
    assert as_text(quotas, 11, 1_000) is None, "a program with the secret is no user"
    quotas.set((("client-id", "app"),), "producer_byte_rate", 5.0)
    quotas.set((("client-id", None),), "consumer_byte_rate", 7.0)
    text = as_text(quotas, 3, 500)
    assert text is not None
    told = from_text(text)
    assert (told.windows, told.window_ms) == (3, 500)
    assert told.quotas.values == {
        (("client-id", "app"),): {"producer_byte_rate": 5.0},
        (("client-id", None),): {"consumer_byte_rate": 7.0},
    }
    assert SETTING == "client.quotas"
