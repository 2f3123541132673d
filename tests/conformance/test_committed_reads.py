"""Clients that read committed records only, over a folder with transactions that Apache Kafka could have written."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator

import pytest
from transactional_folders import COMMITTED, TOPIC, cluster_over_transactions

pytestmark = [pytest.mark.conformance, pytest.mark.usefixtures("closed_sockets")]

PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def over_transactions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """What clients call ``bootstrap.servers``."""
    with cluster_over_transactions(tmp_path_factory.mktemp("transactions")) as running:
        yield running.bootstrap_servers()


def with_confluent(bootstrap: str) -> list[bytes]:
    """librdkafka reads committed records by default."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "enable.partition.eof": True, "log_level": 0})
    consumer.assign([TopicPartition(TOPIC, 0, OFFSET_BEGINNING)])
    found: list[bytes] = []
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        message = consumer.poll(1)
        if message is not None and message.error() is None:
            found.append(message.value())
        elif message is not None and message.error().code() == KafkaError._PARTITION_EOF:
            break
    consumer.close()
    return found


def with_kafka_python(bootstrap: str) -> list[bytes]:
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(bootstrap_servers=bootstrap.split(","), group_id=None, isolation_level="read_committed")
    t0 = TopicPartition(TOPIC, 0)
    consumer.assign([t0])
    consumer.seek_to_beginning()
    end = consumer.end_offsets([t0])[t0]
    found: list[bytes] = []
    deadline = time.monotonic() + PATIENCE_S
    while consumer.position(t0) < end and time.monotonic() < deadline:
        found += [record.value for records in consumer.poll(200).values() for record in records]
    consumer.close()
    return found


def with_aiokafka(bootstrap: str) -> list[bytes]:
    from aiokafka import AIOKafkaConsumer, TopicPartition

    async def work() -> list[bytes]:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=bootstrap, group_id=None, isolation_level="read_committed", enable_auto_commit=False
        )
        await consumer.start()
        try:
            t0 = TopicPartition(TOPIC, 0)
            consumer.assign([t0])
            await consumer.seek_to_beginning()
            end = (await consumer.end_offsets([t0]))[t0]
            found: list[bytes] = []
            async with asyncio.timeout(PATIENCE_S):
                while await consumer.position(t0) < end:
                    got = await consumer.getmany(timeout_ms=200)
                    found += [record.value for records in got.values() for record in records]
            return found
        finally:
            await consumer.stop()

    return asyncio.run(work())


@pytest.mark.parametrize(
    "read", [with_confluent, with_kafka_python, with_aiokafka], ids=["confluent-kafka", "kafka-python", "aiokafka"]
)
def test_aborted_and_undecided_records_are_not_given(
    over_transactions: str, read: Callable[[str], list[bytes]]
) -> None:
    assert read(over_transactions) == COMMITTED
