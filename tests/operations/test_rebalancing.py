"""A broker comes under load, gets its share of bytes and leaders, and goes again; nobody notices."""

from __future__ import annotations

import os

import pytest
from operating import Load

from raylog.client.sync import Producer
from raylog.types import TopicPartition

pytestmark = pytest.mark.core

PARTITIONS = 12


def fill(operator, topic, records_of):
    """Records of 10 kB, ``records_of(partition)`` in each."""
    with Producer(operator.running.address, acks="all") as producer:
        for number in range(PARTITIONS):
            for _ in range(records_of(number)):
                producer.send(topic, os.urandom(10_000), partition=number)
        assert producer.flush(60) == 0


def bytes_held(operator):
    held = dict.fromkeys(range(4), 0)
    for found in operator.admin.replica_sizes().values():
        for broker, size in found.items():
            held[broker] += size
    return held


def is_even(held):
    mean = sum(held.values()) / len(held)
    return all(abs(size - mean) <= 0.2 * mean for size in held.values())


def leads_are_even(operator, topic):
    leads = [sum(part.leader == broker for part in operator.partitions(topic)) for broker in range(4)]
    return max(leads) - min(leads) <= 1


def test_the_sizes_of_replicas_are_those_of_their_files(operator):
    topic = operator.new_topic((0, 1), (2, 3))
    with Producer(operator.running.address, acks="all") as producer:
        for _ in range(20):
            producer.send(topic, os.urandom(1_000), partition=0)
        assert producer.flush(30) == 0
    operator.until(lambda: len({*operator.admin.replica_sizes()[TopicPartition(topic, 0)].values()}) == 1)
    sizes = operator.admin.replica_sizes()
    (size,) = {*sizes[TopicPartition(topic, 0)].values()}
    files = (operator.running.folder / "broker-1" / f"{topic}-0").glob("*.log")
    assert size == sum(path.stat().st_size for path in files) > 20_000
    assert sizes[TopicPartition(topic, 1)] == {2: 0, 3: 0}


def test_a_broker_that_comes_gets_its_share_under_load_and_goes_again(operator, raylog):
    before = set(operator.admin.list_topics())
    for topic in before:
        operator.admin.delete_topics([topic])
    topic = operator.new_topic(*((number % 3, (number + 1) % 3) for number in range(PARTITIONS)))
    fill(operator, topic, lambda number: 10 + number)
    with Load(operator, topic) as coming:
        operator.until(lambda: len(coming.acked) > 50)
        assert raylog("brokers", "rebalance", "--timeout", "120", "--json")[0] == 0
        assert any(3 in part.replicas for part in operator.partitions(topic))
        count = len(coming.acked)
        operator.until(lambda: len(coming.acked) > count + 50)
    assert coming.errors == []
    # The plan was made for the bytes that were there when it began, and the load has written on: what is left to do is little.
    operator.until(lambda: raylog("brokers", "rebalance", "--timeout", "120", "--json")[1]["moved"] == [])
    operator.until(lambda: is_even(bytes_held(operator)))
    operator.until(lambda: leads_are_even(operator, topic))
    with Load(operator, topic) as going:
        operator.until(lambda: len(going.acked) > 50)
        assert raylog("brokers", "remove", "3", "--timeout", "120")[0] == 0
        count = len(going.acked)
        operator.until(lambda: len(going.acked) > count + 50)
    assert going.errors == []
    assert not any(3 in part.replicas for part in operator.partitions(topic))
    assert {each["broker"] for each in raylog("brokers", "list", "--json")[1]} == {0, 1, 2}
