"""A compacted topic on running servers: what readers find, through restarts, and what may be changed while it runs."""

from __future__ import annotations

import pytest
from raw_requests import eventually

import raylog.testing
from raylog.client.sync import AdminClient, Consumer, Producer
from raylog.errors import KafkaError
from raylog.testing.kafka import Kafka
from raylog.types import TopicPartition

pytestmark = pytest.mark.core

COMPACTED = {
    "cleanup.policy": "compact",
    "segment.bytes": "2000",
    "min.cleanable.dirty.ratio": "0.01",
}


def table(kafka: Kafka, topic: str) -> tuple[int, dict[bytes | None, bytes | None]]:
    """How many records a reader finds, and the last value of each key."""
    found = kafka.records(topic)
    return len(found), {record.key: record.value for record in found}


def test_readers_of_a_compacted_topic_find_the_last_value_of_each_key_while_it_is_compacted_and_after_a_crash() -> None:
    with raylog.testing.broker(brokers=3, configs={"log.cleaner.backoff.ms": 20}) as kafka:
        kafka.create_topic("accounts", configs=COMPACTED)
        expected: dict[bytes | None, bytes | None] = {}
        with Producer(kafka.address) as producer:
            for number in range(600):
                key, value = b"k%d" % (number % 5), None if number % 7 == 3 else b"v%d" % number
                expected[key] = value
                producer.send("accounts", value, key=key, partition=0)
                if number % 4 == 3:
                    producer.flush()
            refused = producer.send("accounts", b"of nobody", partition=0)
            with pytest.raises(KafkaError, match="key"):
                refused.result(60)
        assert table(kafka, "accounts")[1] == expected
        eventually(lambda: table(kafka, "accounts")[0] < 100, "most records compacted away")
        assert table(kafka, "accounts")[1] == expected
        with AdminClient(kafka.address) as admin:
            verified = admin.verify_replicas(["accounts"])
            assert verified.holds, verified.words()
            assert verified.partitions[0].compared == (0, 1, 2) and verified.partitions[0].records >= len(expected)
        kafka.crash_leader("accounts")
        count, found = table(kafka, "accounts")
        assert found == expected and count < 200
        with Consumer(kafka.address) as consumer:
            consumer.assign([TopicPartition("accounts", 0)])
            consumer.seek(TopicPartition("accounts", 0), 3)
            first = consumer.poll(30)
            assert first is not None and first.offset > 3, (
                "that one was compacted away: reading goes on at the next one"
            )


def test_a_policy_can_be_changed_while_the_topic_is_written() -> None:
    with raylog.testing.broker(configs={"log.cleaner.backoff.ms": 20}) as kafka, AdminClient(kafka.address) as admin:
        kafka.create_topic("t", configs={**COMPACTED, "cleanup.policy": "delete"})
        for number in range(100):
            kafka.write("t", b"x" * 90 + b"%d" % number, key=b"k")
        assert table(kafka, "t")[0] == 100
        admin.alter_configs("t", set={"cleanup.policy": "compact,delete"})
        assert admin.describe_configs("t")["cleanup.policy"].value == "compact,delete"
        eventually(lambda: table(kafka, "t")[0] < 60, "compacted")
        assert table(kafka, "t")[1] == {b"k": b"x" * 90 + b"99"}
