"""Transactions of native producers on real processes: coordinators and the program itself are SIGKILLed."""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import ray.cloudpickle
from ray_clusters import PATIENCE_S, eventually, isr_is_whole, kill, partition_of, pid_of

import raylog
from raylog import NewTopic, TopicPartition
from raylog.offsets_topic import TRANSACTIONS_TOPIC, partition_for

pytestmark = pytest.mark.ray

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "exactly_once.py"


@pytest.fixture(scope="module")
def example() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("exactly_once", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    ray.cloudpickle.register_pickle_by_value(module)  # its actors' processes cannot import it
    yield module
    del sys.modules[spec.name]


def committed(cluster: raylog.Cluster, topic: str, partition: int, count: int) -> list[bytes | None]:
    """What is read of committed records: ``count`` of them, and what comes in the second after."""
    with cluster.consumer(isolation_level="read_committed", auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(topic, partition)])
        found: list[bytes | None] = []
        eventually(
            lambda: (
                found.extend(record.value for record in consumer.consume(1_000, timeout=1.0)) or len(found) >= count
            ),
            f"{count} records of {topic}-{partition}",
        )
        return found + [record.value for record in consumer.consume(1_000, timeout=1.0)]


def test_a_producer_goes_on_when_its_coordinator_is_killed_at_any_step(embedded: raylog.Cluster) -> None:
    topic = "ends"
    with embedded.admin() as admin:
        admin.create_topics([NewTopic(topic, 2, 3, configs={"min.insync.replicas": "2"})])
    eventually(lambda: isr_is_whole(embedded, topic), "all replicas in sync")
    number, expected = 0, list[bytes]()
    with embedded.producer(transactional_id=topic) as producer:

        def transact(*, aborts: bool, kills_before_end: bool) -> None:
            nonlocal number
            number += 1
            txn = producer.transaction().begin()
            for partition in range(2):
                txn.send(topic, b"%d" % number, partition=partition).result(PATIENCE_S)
            if kills_before_end:
                part = partition_of(embedded, TRANSACTIONS_TOPIC, partition_for(topic))
                kill(pid_of(embedded, part["leader_node"]))
            if aborts:
                txn.abort()
            else:
                txn.commit()
                expected.append(b"%d" % number)

        transact(aborts=False, kills_before_end=False)
        for aborts in (False, True):
            eventually(lambda: isr_is_whole(embedded, TRANSACTIONS_TOPIC), "all replicas in sync again")
            transact(aborts=aborts, kills_before_end=True)
            for _ in range(3):
                transact(aborts=not aborts, kills_before_end=False)
                transact(aborts=False, kills_before_end=False)
    for partition in range(2):
        assert committed(embedded, topic, partition, len(expected)) == expected


def test_an_actor_that_is_killed_and_started_again_squares_each_number_once(
    embedded: raylog.Cluster, example: ModuleType
) -> None:
    found = example.run(embedded, count=3_000, kills=3, timeout_s=PATIENCE_S)
    assert found == Counter(number**2 for number in range(3_000))
