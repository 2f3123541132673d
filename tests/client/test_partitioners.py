"""Where records go."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise

import pytest

from raylog.client.config import ProducerConfig
from raylog.client.partitioners import (
    DefaultPartitioner,
    RoundRobinPartitioner,
    TopicPartitions,
    murmur2,
    partition_for_key,
    partitioner_of,
)
from raylog.errors import ConfigError

SIX = TopicPartitions("t", 6, (0, 1, 2, 3, 4, 5))


@pytest.mark.parametrize(
    "key, expected",
    [
        ("21", -973932308),
        ("foobar", -790332482),
        ("abc", 479470107),
        ("a-little-bit-long-string", -985981536),
        ("a-little-bit-longer-string", -1486304829),
        ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
    ],
)
def test_tv_9_murmur2_is_kafkas(key: str, expected: int) -> None:
    assert murmur2(key.encode()) == expected
    assert partition_for_key(key.encode(), 7) == (expected & 0x7FFFFFFF) % 7


def test_a_key_keeps_its_partition_while_the_count_stays() -> None:
    partitioner = DefaultPartitioner(sticky_bytes=1)
    places = {partitioner.partition("t", b"k", b"k", None, b"v", SIX) for _ in range(100)}
    assert places == {partition_for_key(b"k", 6)}
    assert partitioner.keyed(b"k", 5) == partition_for_key(b"k", 5)


def test_keyless_records_stay_until_the_sticky_bytes_are_sent_and_then_move() -> None:
    partitioner = DefaultPartitioner(sticky_bytes=100, chance=random.Random(1))
    places = [partitioner.sticky(SIX, 10) for _ in range(200)]
    runs = [places[start : start + 10] for start in range(0, 200, 10)]
    assert all(len(set(run)) == 1 for run in runs)
    assert all(before[0] != after[0] for before, after in pairwise(runs))
    assert set(places) == set(range(6))


def test_keyless_records_avoid_partitions_without_a_leader() -> None:
    partitioner = DefaultPartitioner(sticky_bytes=1, chance=random.Random(1))
    cluster = TopicPartitions("t", 6, (1, 4))
    assert {partitioner.sticky(cluster, 1) for _ in range(50)} == {1, 4}
    nobody = TopicPartitions("u", 2, ())
    assert {partitioner.sticky(nobody, 1) for _ in range(50)} == {0, 1}


def test_adaptive_partitioning_sends_less_where_batches_queue() -> None:
    partitioner = DefaultPartitioner(sticky_bytes=1, queued=lambda topic: {0: 9, 1: 9}, chance=random.Random(1))
    three = TopicPartitions("t", 3, (0, 1, 2))
    counts = Counter(partitioner.sticky(three, 1) for _ in range(600))
    assert counts[2] > 200 > counts[0]


def test_ignore_keys_treats_keyed_records_as_keyless() -> None:
    partitioner = DefaultPartitioner(sticky_bytes=1, ignore_keys=True, chance=random.Random(1))
    assert len({partitioner.partition("t", b"k", b"k", None, b"v", SIX) for _ in range(50)}) > 1


def test_round_robin_takes_every_partition_in_turn_per_topic() -> None:
    partitioner = RoundRobinPartitioner()
    assert [partitioner.partition("t", b"k", b"k", None, None, SIX) for _ in range(8)] == [0, 1, 2, 3, 4, 5, 0, 1]
    assert partitioner.partition("u", None, None, None, None, TopicPartitions("u", 3, (2,))) == 2


class LastPartition:
    def partition(self, topic, key, key_bytes, value, value_bytes, cluster):  # type: ignore[no-untyped-def]
        return cluster.count - 1


@pytest.mark.parametrize("option", [LastPartition, LastPartition(), f"{__name__}:LastPartition"])
def test_a_custom_partitioner_is_a_class_an_object_or_a_path(option: object, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, __name__, sys.modules[LastPartition.__module__])
    found = partitioner_of(ProducerConfig.parse({"partitioner.class": option}), lambda topic: {})
    assert found.partition("t", None, None, None, None, SIX) == 5


def test_kafkas_class_names_work_and_nonsense_is_refused() -> None:
    def made(name: object) -> object:
        return partitioner_of(ProducerConfig.parse({"partitioner.class": name}), lambda topic: {})

    assert isinstance(made("org.apache.kafka.clients.producer.RoundRobinPartitioner"), RoundRobinPartitioner)
    assert isinstance(made(None), DefaultPartitioner)
    with pytest.raises(ConfigError, match="cannot be imported"):
        made("nowhere.Nothing")
    with pytest.raises(ConfigError, match="no method partition"):
        made(object())
