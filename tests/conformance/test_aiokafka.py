"""aiokafka through the Brokers' listeners: one case per thing that its users do without a consumer group."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import (
    MessageSizeTooLargeError,
    UnknownTopicOrPartitionError,
)
from raw_requests import eventually, isr_is_whole, part

from raylog.testing.in_process import InProcessCluster
from raylog.types import BROKER_SLOT, node_id

pytestmark = pytest.mark.conformance

NewTopicOf = Callable[..., str]
PATIENCE_S = 60.0


def run(work: Awaitable[Any]) -> Any:
    async def bounded() -> Any:
        async with asyncio.timeout(3 * PATIENCE_S):
            return await work

    return asyncio.run(bounded())


@asynccontextmanager
async def producer(bootstrap: str, **config: Any) -> AsyncIterator[AIOKafkaProducer]:
    found = AIOKafkaProducer(bootstrap_servers=bootstrap, **config)
    await found.start()
    try:
        yield found
    finally:
        await found.stop()


@asynccontextmanager
async def consumer(bootstrap: str, topic: str, partitions: int = 1, **config: Any) -> AsyncIterator[AIOKafkaConsumer]:
    """A consumer at the beginning of these partitions."""
    found = AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=None, enable_auto_commit=False, **config)
    await found.start()
    try:
        found.assign([TopicPartition(topic, number) for number in range(partitions)])
        await found.seek_to_beginning()
        yield found
    finally:
        await found.stop()


async def take(reader: AIOKafkaConsumer, count: int, timeout_s: float = PATIENCE_S) -> list[ConsumerRecord]:
    found: list[ConsumerRecord] = []
    deadline = time.monotonic() + timeout_s
    while len(found) < count and time.monotonic() < deadline:
        for records in (await reader.getmany(timeout_ms=200, max_records=count - len(found))).values():
            found += records
    return found


async def send_all(writer: AIOKafkaProducer, topic: str, values: Iterable[bytes]) -> list[int]:
    """The offsets of all values, in partition 0."""
    sent = [await writer.send(topic, value, partition=0) for value in values]
    return [(await each).offset for each in sent]


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


async def produce_and_consume(bootstrap: str, topic: str, values: list[bytes], **config: Any) -> None:
    async with producer(bootstrap, **config) as writer:
        assert await send_all(writer, topic, values) == list(range(len(values)))
    async with consumer(bootstrap, topic) as reader:
        assert [record.value for record in await take(reader, len(values))] == values


@pytest.mark.parametrize("acks", [1, "all"])
def test_what_is_produced_is_consumed_in_order(bootstrap: str, new_topic: NewTopicOf, acks: Any) -> None:
    run(produce_and_consume(bootstrap, new_topic(), numbered(2_000), acks=acks))


def test_producing_without_acknowledgement(bootstrap: str, new_topic: NewTopicOf) -> None:
    topic = new_topic()

    async def work() -> None:
        async with producer(bootstrap, acks=0) as writer:
            for value in numbered(100):
                await writer.send(topic, value, partition=0)
            await writer.flush()
        async with consumer(bootstrap, topic) as reader:
            assert [record.value for record in await take(reader, 100)] == numbered(100)

    run(work())


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_every_codec(bootstrap: str, new_topic: NewTopicOf, codec: str) -> None:
    values = [b"%d" % number * 100 for number in range(300)]
    run(produce_and_consume(bootstrap, new_topic(), values, compression_type=codec, linger_ms=20))


def test_an_idempotent_producer_writes_each_message_once(bootstrap: str, new_topic: NewTopicOf) -> None:
    run(produce_and_consume(bootstrap, new_topic(), numbered(1_000), enable_idempotence=True))


def test_a_large_message_passes(bootstrap: str, new_topic: NewTopicOf) -> None:
    values = [bytes(range(256)) * 30_000, b"small"]
    run(produce_and_consume(bootstrap, new_topic(max_message_bytes="9000000"), values, max_request_size=9_000_000))


def test_a_message_too_large_is_refused(bootstrap: str, new_topic: NewTopicOf) -> None:
    topic = new_topic(max_message_bytes="10000")

    async def work() -> None:
        async with producer(bootstrap) as writer:
            with pytest.raises(MessageSizeTooLargeError):
                await writer.send_and_wait(topic, b"x" * 20_000, partition=0)
            assert (await writer.send_and_wait(topic, b"fits", partition=0)).offset == 0

    run(work())


def test_headers_keys_and_empty_values_come_back(bootstrap: str, new_topic: NewTopicOf) -> None:
    topic = new_topic()
    headers = [("a", b"1"), ("a", b"")]

    async def work() -> None:
        async with producer(bootstrap) as writer:
            await writer.send_and_wait(topic, None, key=b"k", headers=headers, partition=0)
        async with consumer(bootstrap, topic) as reader:
            (record,) = await take(reader, 1)
        assert (record.key, record.value, record.headers) == (b"k", None, tuple(headers))

    run(work())


def test_timestamps_are_the_producers(bootstrap: str, new_topic: NewTopicOf) -> None:
    topic = new_topic()

    async def work() -> None:
        async with producer(bootstrap) as writer:
            await writer.send_and_wait(topic, b"v", timestamp_ms=1_234_567, partition=0)
        async with consumer(bootstrap, topic) as reader:
            (record,) = await take(reader, 1)
        assert (record.timestamp, record.timestamp_type) == (1_234_567, 0)

    run(work())


def test_timestamps_are_the_brokers_where_the_topic_says_so(bootstrap: str, new_topic: NewTopicOf) -> None:
    topic = new_topic(message_timestamp_type="LogAppendTime")

    async def work() -> None:
        before = time.time() * 1_000 - 1
        async with producer(bootstrap) as writer:
            told = await writer.send_and_wait(topic, b"v", timestamp_ms=1_234_567, partition=0)
        async with consumer(bootstrap, topic) as reader:
            (record,) = await take(reader, 1)
        assert (record.timestamp, record.timestamp_type) == (told.timestamp, 1)
        assert before <= record.timestamp <= time.time() * 1_000 + 1

    run(work())


async def timed(bootstrap: str, topic: str) -> None:
    """Ten records, a second apart."""
    async with producer(bootstrap) as writer:
        for number in range(10):
            await writer.send_and_wait(topic, b"%d" % number, timestamp_ms=1_000 * number + 1_000, partition=0)


def test_offsets_for_times(bootstrap: str, new_topic: NewTopicOf) -> None:
    topic = new_topic()
    partition = TopicPartition(topic, 0)

    async def work() -> None:
        await timed(bootstrap, topic)
        async with consumer(bootstrap, topic) as reader:
            for asked, offset in ((0, 0), (4_500, 4), (10_000, 9), (10_001, None)):
                found = (await reader.offsets_for_times({partition: asked}))[partition]
                assert (found and found.offset) == offset, asked

    run(work())


def test_offsets_are_listed(bootstrap: str, new_topic: NewTopicOf) -> None:
    topic = new_topic()
    partition = TopicPartition(topic, 0)

    async def work() -> None:
        await timed(bootstrap, topic)
        async with consumer(bootstrap, topic) as reader:
            assert await reader.beginning_offsets([partition]) == {partition: 0}
            assert await reader.end_offsets([partition]) == {partition: 10}

    run(work())


def test_seek_goes_back_and_forth(bootstrap: str, new_topic: NewTopicOf) -> None:
    topic = new_topic()
    partition = TopicPartition(topic, 0)

    async def work() -> None:
        await timed(bootstrap, topic)
        async with consumer(bootstrap, topic) as reader:
            reader.seek(partition, 7)
            assert [record.value for record in await take(reader, 3)] == [b"7", b"8", b"9"]
            reader.seek(partition, 2)
            assert [record.value for record in await take(reader, 1)] == [b"2"]
            assert await reader.position(partition) == 3

    run(work())


def test_a_paused_partition_rests_until_it_is_resumed(bootstrap: str, new_topic: NewTopicOf) -> None:
    topic = new_topic()

    async def work() -> None:
        await timed(bootstrap, topic)
        async with consumer(bootstrap, topic) as reader:
            reader.pause(TopicPartition(topic, 0))
            assert await take(reader, 1, timeout_s=0.5) == []
            reader.resume(TopicPartition(topic, 0))
            assert len(await take(reader, 10)) == 10

    run(work())


def test_all_partitions_on_all_brokers(bootstrap: str, new_topic: NewTopicOf) -> None:
    topic = new_topic(6)

    async def work() -> None:
        async with producer(bootstrap) as writer:
            sent = [await writer.send(topic, value, key=value) for value in numbered(600)]
            await asyncio.gather(*sent)
        async with consumer(bootstrap, topic, 6) as reader:
            found = await take(reader, 600)
        assert sorted(record.value for record in found) == sorted(numbered(600))

    run(work())


@asynccontextmanager
async def administrator(bootstrap: str) -> AsyncIterator[AIOKafkaAdminClient]:
    found = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await found.start()
    try:
        yield found
    finally:
        await found.close()


def test_topics_are_created_grown_and_deleted(bootstrap: str) -> None:
    made = "made-by-aiokafka"

    async def partitions(admin: AIOKafkaAdminClient) -> int:
        (described,) = await admin.describe_topics([made])
        return len(described["partitions"])

    async def work() -> None:
        async with administrator(bootstrap) as admin:
            await admin.create_topics([NewTopic(made, 2, 3)])
            assert made in await admin.list_topics()
            assert await partitions(admin) == 2
            await admin.create_partitions({made: NewPartitions(3)})
            while await partitions(admin) != 3:
                await asyncio.sleep(0.02)
            await admin.delete_topics([made])
            while made in await admin.list_topics():
                await asyncio.sleep(0.02)

    run(work())


def test_metadata_names_only_the_brokers_listeners(bootstrap: str, new_topic: NewTopicOf) -> None:
    topic = new_topic(2)

    async def work() -> None:
        async with administrator(bootstrap) as admin:
            found = await admin.describe_cluster()
            (described,) = await admin.describe_topics([topic])
        assert {f"{each['host']}:{each['port']}" for each in found["brokers"]} == set(bootstrap.split(","))
        assert all(sorted(each["replicas"]) == [0, 1, 2] for each in described["partitions"])

    run(work())


def test_configs_are_described_and_replaced(bootstrap: str, new_topic: NewTopicOf) -> None:
    """This client knows no incremental changes."""
    topic = new_topic(retention_ms="5000")

    async def described(admin: AIOKafkaAdminClient) -> dict[str, str]:
        (reply,) = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
        return {each[0]: each[1] for each in reply.resources[0][4]}

    async def work() -> None:
        async with administrator(bootstrap) as admin:
            assert (await described(admin))["retention.ms"] == "5000"
            change = ConfigResource(ConfigResourceType.TOPIC, topic, {"max.message.bytes": "2000"})
            await admin.alter_configs([change])
            found = await described(admin)
            assert found["max.message.bytes"] == "2000" and found["retention.ms"] != "5000"
        async with producer(bootstrap) as writer:
            with pytest.raises(MessageSizeTooLargeError):
                await writer.send_and_wait(topic, b"x" * 3_000, partition=0)

    run(work())


def test_records_are_deleted(bootstrap: str, new_topic: NewTopicOf) -> None:
    topic = new_topic()
    partition = TopicPartition(topic, 0)

    async def work() -> None:
        await timed(bootstrap, topic)
        async with administrator(bootstrap) as admin:
            assert await admin.delete_records({partition: RecordsToDelete(4)}) == {partition: 4}
        async with consumer(bootstrap, topic) as reader:
            assert [record.value for record in await take(reader, 6)] == numbered(10)[4:]

    run(work())


def test_a_topic_that_is_unknown_is_created_by_a_producer(bootstrap: str) -> None:
    async def work() -> None:
        async with producer(bootstrap) as writer:
            assert (await writer.send_and_wait("made-by-aiokafkas-producer", b"v", partition=0)).offset == 0
        async with consumer(bootstrap, "made-by-aiokafkas-producer") as reader:
            assert [record.value for record in await take(reader, 1)] == [b"v"]

    run(work())


def test_a_topic_that_may_not_be_created_is_unknown(bootstrap: str, running: InProcessCluster) -> None:
    from raylog.client.sync import AdminClient

    async def work() -> None:
        async with producer(bootstrap, request_timeout_ms=8_000) as writer:
            with pytest.raises(UnknownTopicOrPartitionError):
                await writer.send_and_wait("not-allowed", b"v")

    with AdminClient(running.address) as own:
        own.alter_configs(broker="all", set={"auto.create.topics.enable": "false"})
        try:
            run(work())
        finally:
            own.alter_configs(broker="all", delete=["auto.create.topics.enable"])


@pytest.mark.parametrize("victim", ["leader", "broker"])
def test_a_kill_loses_nothing_and_stops_nobody(
    running: InProcessCluster, bootstrap: str, new_topic: NewTopicOf, victim: str
) -> None:
    topic = new_topic(min_insync_replicas="2")
    found = part(running, topic)
    node = found["leader_node"] if victim == "leader" else node_id(found["leader"], BROKER_SLOT)

    async def work() -> int:
        async with producer(bootstrap, enable_idempotence=True, linger_ms=1) as writer:
            assert await send_all(writer, topic, numbered(200)) == list(range(200))
            await asyncio.to_thread(running.crash, node)
            assert await send_all(writer, topic, numbered(200)) == list(range(200, 400))
        async with consumer(bootstrap, topic) as reader:
            assert [record.value for record in await take(reader, 400)] == numbered(200) * 2

    run(work())
    eventually(lambda: isr_is_whole(running, topic), "the killed process back")


def test_a_transactional_id_is_initialised_and_an_empty_transaction_ends(bootstrap: str) -> None:
    async def once() -> None:
        found = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id="aiokafka")
        await found.start()
        try:
            async with found.transaction():
                pass
        finally:
            await found.stop()

    run(once())
    run(once())
