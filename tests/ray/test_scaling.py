"""A host that is saturated splits by itself, and is one again when the load is over. Real processes, bounds set low."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from ray_clusters import PATIENCE_S, eventually

import raylog
from raylog import NewTopic, TopicPartition
from raylog.client.admin.actors import ActorInfo

pytestmark = pytest.mark.ray

TOPIC = "hot"
PARTITIONS = 4
LOW = {
    "actor.scaling.busy.ratio": 0.02,
    "actor.scaling.idle.ratio": 0.015,
    "actor.scaling.busy.ms": 2_000,
    "actor.scaling.idle.ms": 4_000,
    "actor.scaling.backoff.ms": 1_000,
    "actor.scaling.actors.max": 2,
}


@pytest.fixture
def cluster(short_folder: Path) -> Iterator[raylog.Cluster]:
    made = raylog.init(short_folder / "data", brokers=1, ray_address="local", configs=LOW, timeout_s=PATIENCE_S)
    yield made
    made.shutdown()


def hosts(cluster: raylog.Cluster) -> list[ActorInfo]:
    return [each for each in cluster.admin().list_actors() if each.host == "replicas"]


class Load:
    """Small records to every partition, each acknowledged before the next; what was acknowledged, by partition."""

    def __init__(self, cluster: raylog.Cluster) -> None:
        self.acked: dict[int, list[bytes]] = {partition: [] for partition in range(PARTITIONS)}
        self._cluster = cluster
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(partition,)) for partition in range(PARTITIONS)]

    def _run(self, partition: int) -> None:
        with self._cluster.producer(acks="all", linger_ms=0) as producer:
            while not self._over.is_set():
                values = [b"%d" % (len(self.acked[partition]) + number) for number in range(20)]
                for sent in [producer.send(TOPIC, value, partition=partition) for value in values]:
                    sent.result(60)
                self.acked[partition] += values

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()


def test_a_busy_host_splits_by_itself_and_merges_when_the_load_is_over(cluster: raylog.Cluster) -> None:
    cluster.admin().create_topics([NewTopic(TOPIC, PARTITIONS, 1)])
    (first,) = hosts(cluster)
    assert not first.automatic
    with Load(cluster) as load:
        eventually(
            lambda: [each.replicas for each in hosts(cluster)] == [2, 2], "two hosts with two hot partitions each"
        )
        split = {each.actor: each for each in hosts(cluster)}
        assert [each.automatic for each in split.values()] == [False, True]
        goal = {partition: len(values) + 100 for partition, values in load.acked.items()}
        eventually(lambda: all(len(load.acked[each]) > goal[each] for each in goal), "all partitions go on")
    eventually(lambda: [each.actor for each in hosts(cluster)] == [first.actor], "the added host is gone")
    assert hosts(cluster)[0].replicas == PARTITIONS
    for partition, values in load.acked.items():
        with cluster.consumer() as consumer:
            consumer.assign([TopicPartition(TOPIC, partition)])
            consumer.seek_to_beginning()
            found: list[bytes | None] = []
            eventually(
                lambda found=found, consumer=consumer, values=values: (  # type: ignore[misc]
                    found.extend(each.value for each in consumer.consume(len(values), timeout=1.0))
                    or len(found) >= len(values)
                ),
                f"{len(values)} records of {TOPIC}-{partition}",
            )
        assert found == values, f"partition {partition}: nothing lost, doubled or reordered"
