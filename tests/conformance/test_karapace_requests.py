"""What Karapace asks of a cluster, by the client libraries that it is built on: aiokafka and confluent-kafka.

The program itself is not run: it is not in the registries that the tests fetch from. Its registries elect their primary in a group whose
protocol type is "sr"; they keep schemas in a compacted topic that each reads to its end, and wait for their own records there; its REST
proxy writes, reads in groups and shows topics.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Awaitable, Iterator
from contextlib import closing
from typing import Any

import pytest
from aiokafka.client import AIOKafkaClient, ConnectionGroup, CoordinationType
from aiokafka.errors import (
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    MemberIdRequired,
    NoError,
    RebalanceInProgressError,
    UnknownMemberIdError,
    for_code,
)
from aiokafka.protocol.group import HeartbeatRequest, JoinGroupRequest, LeaveGroupRequest, SyncGroupRequest
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ConfigResource, ConfigSource, NewTopic, OffsetSpec, ResourceType
from outside import Client, request
from raw_requests import eventually

from raylog.client.sync import AdminClient as Native
from raylog.testing.in_process import InProcessCluster, cluster

pytestmark = pytest.mark.conformance

PATIENCE_S = 60.0
SESSION_MS = 3_000


@pytest.fixture(scope="module")
def running() -> Iterator[InProcessCluster]:
    """Its groups allow short sessions, so that a member that has gone is missed soon."""
    with cluster(brokers=3) as found:
        with Native(found.address) as admin:
            short = {"group.min.session.timeout.ms": "1000", "group.initial.rebalance.delay.ms": "0"}
            admin.alter_configs(broker="all", set=short)
        yield found


@pytest.fixture
def server(running: InProcessCluster) -> dict[str, Any]:
    return {"bootstrap.servers": running.bootstrap_servers(), "client.id": "karapace", "log_level": 0}


@pytest.fixture
def admin(server: dict[str, Any]) -> AdminClient:
    return AdminClient(server)


# ------------------------------------------------------------------ the election of a primary


class Registry:
    """One member of the group of registries."""

    def __init__(self, bootstrap: str, group: str, port: int, protocol_type: str = "sr") -> None:
        self.client = AIOKafkaClient(bootstrap_servers=bootstrap, client_id=f"karapace-{port}")
        self.group = group
        self.identity = {"version": 2, "host": "localhost", "port": port, "scheme": "http", "master_eligibility": True}
        self.protocol_type = protocol_type
        self.member_id, self.generation = "", -1
        self.coordinator: Any = None
        self.leads = False

    async def start(self) -> None:
        await self.client.bootstrap()
        self.coordinator = await self.client.coordinator_lookup(CoordinationType.GROUP, self.group)

    async def ask(self, request: Any) -> Any:
        async with asyncio.timeout(PATIENCE_S):
            return await self.client.send(self.coordinator, request, group=ConnectionGroup.COORDINATION)

    async def join(self) -> tuple[Any, Any]:
        """Join, and choose the primary if the group is led; the error, and what this member is given."""
        metadata = [("v0", json.dumps(self.identity).encode())]
        wanted = (self.group, SESSION_MS, 10_000)
        joined = await self.ask(JoinGroupRequest(*wanted, self.member_id, None, self.protocol_type, metadata))
        if for_code(joined.error_code) is MemberIdRequired:
            self.member_id = joined.member_id
            joined = await self.ask(JoinGroupRequest(*wanted, self.member_id, None, self.protocol_type, metadata))
        if for_code(joined.error_code) is not NoError:
            return for_code(joined.error_code), None
        self.member_id, self.generation = joined.member_id, joined.generation_id
        self.leads = joined.leader_id == joined.member_id
        assert joined.group_protocol == "v0" and self.leads == bool(joined.members)
        chosen = [] if not self.leads else self.choose({each[0]: json.loads(each[-1]) for each in joined.members})
        synced = await self.ask(SyncGroupRequest(self.group, self.generation, self.member_id, None, chosen))
        error = for_code(synced.error_code)
        return error, json.loads(synced.member_assignment) if error is NoError else None

    def choose(self, members: dict[str, Any]) -> list[tuple[str, bytes]]:
        """The lowest port is primary, and everybody is told so."""
        primary = min(members, key=lambda each: members[each]["port"])
        told = json.dumps({"master": primary, "master_identity": members[primary], "error": 0}).encode()
        return [(member, told) for member in members]

    async def heartbeat(self) -> Any:
        return for_code((await self.ask(HeartbeatRequest(self.group, self.generation, self.member_id))).error_code)

    async def rejoin_when_told(self) -> tuple[Any, Any]:
        """Beat until the group wants it back, as a change of members makes it; or knows it no more, on a machine that stood still."""
        async with asyncio.timeout(PATIENCE_S):
            while (error := await self.heartbeat()) is NoError:
                await asyncio.sleep(0.05)
        if error is UnknownMemberIdError:
            self.member_id, self.generation = "", -1
        else:
            assert error is RebalanceInProgressError
        return await self.join()


def run(work: Awaitable[None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(2 * PATIENCE_S):
            await work

    asyncio.run(bounded())


def test_registries_elect_a_primary_and_another_takes_over(
    running: InProcessCluster, admin: AdminClient, server: dict[str, Any]
) -> None:
    group = f"schema-registry-{uuid.uuid4().hex}"
    bootstrap = server["bootstrap.servers"].split(",")

    async def story() -> None:
        first, second, stranger = (
            Registry(bootstrap, group, port, kind) for port, kind in ((8081, "sr"), (8082, "sr"), (0, "consumer"))
        )
        for each in (first, second, stranger):
            await each.start()
        try:
            error, told = await first.join()
            assert (error, told["master_identity"]) == (NoError, first.identity) and first.leads
            both = await asyncio.gather(first.rejoin_when_told(), second.join())
            assert [error for error, _ in both] == [NoError, NoError] and (first.leads, second.leads) == (True, False)
            assert {told["master"] for _, told in both} == {first.member_id} and second.generation == first.generation
            shown = await asyncio.to_thread(described, running, admin, first)
            assert (shown.group_state, shown.protocol_type, shown.protocol_data) == ("Stable", "sr", "v0")
            assert [json.loads(each.member_metadata) for each in shown.members] == [first.identity, second.identity]
            assert {json.loads(each.member_assignment)["master"] for each in shown.members} == {first.member_id}
            assert (await stranger.join())[0] is InconsistentGroupProtocolError
            error, told = await second.rejoin_when_told()  # the first says nothing any more, and its session ends
            assert (error, told["master"], told["master_identity"]) == (NoError, second.member_id, second.identity)
            assert second.leads and await second.heartbeat() is NoError
            assert await first.heartbeat() is UnknownMemberIdError
            first.generation, first.member_id = -1, ""
            both = await asyncio.gather(second.rejoin_when_told(), first.join())  # which is back, with the lowest port
            assert {told["master"] for _, told in both} == {first.member_id} and second.leads and not first.leads
            stale = SyncGroupRequest(group, first.generation - 1, first.member_id, None, [])
            assert for_code((await first.ask(stale)).error_code) is IllegalGenerationError
            left = await second.ask(LeaveGroupRequest(group, second.member_id))
            assert for_code(left.error_code) is NoError
            error, told = await first.rejoin_when_told()
            assert (error, told["master"], first.leads) == (NoError, first.member_id, True)
        finally:
            for each in (first, second, stranger):
                await each.client.close()

    run(story())


def described(running: InProcessCluster, admin: AdminClient, registry: Registry) -> Any:
    """The registries' group, as its coordinator shows it to anybody."""
    listed = admin.list_consumer_groups().result(PATIENCE_S)
    assert registry.group not in [each.group_id for each in listed.valid] and not listed.errors, "it is no consumers'"
    client = Client(running, registry.coordinator)
    try:
        return client.ask(request(15, 5, groups=(registry.group,), include_authorized_operations=False)).groups[0]
    finally:
        client.close()


# ------------------------------------------------------------------ the topic of schemas


def reader(server: dict[str, Any], topic: str) -> Consumer:
    """A registry's: in a group that nobody else is in, which commits nothing."""
    own = {"group.id": f"karapace-autogenerated-{uuid.uuid4().hex[:12]}", "enable.auto.commit": False}
    found = Consumer(
        {**server, **own, "auto.offset.reset": "earliest", "fetch.wait.max.ms": 50, "metadata.max.age.ms": 1000}
    )
    found.list_topics(timeout=PATIENCE_S)
    found.subscribe([topic])
    return found


def until(consumer: Consumer, offset: int) -> list[Any]:
    """What is read up to that offset."""
    found: list[Any] = []

    def is_there() -> bool:
        for each in consumer.consume(1000, timeout=0.2):
            if each.error() is None:
                found.append(each)
            else:
                assert each.error().code() == KafkaError.UNKNOWN_TOPIC_OR_PART, each.error()
        return bool(found) and found[-1].offset() >= offset

    eventually(is_there, f"the record at {offset}", PATIENCE_S)
    return found


def offsets_once_known(consumer: Consumer, topic: str) -> tuple[int, int]:
    """The first and the next. The broker that the consumer asks may hear of a new topic a moment after the one that made it."""

    def found() -> tuple[int, int] | None:
        try:
            told: tuple[int, int] = consumer.get_watermark_offsets(TopicPartition(topic, 0), PATIENCE_S)
        except KafkaException as error:
            assert error.args[0].code() == KafkaError._UNKNOWN_PARTITION, error
            return None
        return told

    offsets: tuple[int, int] = eventually(found, f"{topic} to be known")
    return offsets


def test_schemas_are_kept_in_a_topic_and_a_registry_waits_for_its_own_record(
    server: dict[str, Any], admin: AdminClient
) -> None:
    topic = f"_schemas-{uuid.uuid4().hex}"
    wanted = NewTopic(topic, num_partitions=1, replication_factor=3, config={"cleanup.policy": "compact"})
    registry = f"X-Registry-Version: {topic}".encode()
    with closing(reader(server, topic)) as first:  # before the topic is there
        admin.create_topics([wanted], request_timeout=20)[topic].result(PATIENCE_S)
        with pytest.raises(KafkaException) as again:
            admin.create_topics([wanted], request_timeout=20)[topic].result(PATIENCE_S)
        assert again.value.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS
        assert offsets_once_known(first, topic) == (0, 0)
        producer = Producer({**server, "acks": -1, "metadata.max.age.ms": 60_000})

        def store(key: dict[str, Any], value: dict[str, Any] | None) -> int:
            """Write, and read until it is there; its offset."""
            told: list[Any] = []
            producer.produce(
                topic,
                json.dumps(value).encode() if value is not None else None,
                json.dumps(key).encode(),
                headers=[("X-Registry-Version", registry), ("X-Origin-Host", b"localhost")],
                on_delivery=lambda error, message: told.append((error, message.offset())),
            )
            assert producer.flush(PATIENCE_S) == 0 and told[0][0] is None
            mine = until(first, told[0][1])[-1]
            assert mine.offset() == told[0][1] and json.loads(mine.key()) == key
            assert mine.headers() == [("X-Registry-Version", registry), ("X-Origin-Host", b"localhost")]
            return int(told[0][1])

        schema = {"keytype": "SCHEMA", "subject": "flights-value", "version": 1, "magic": 1}
        value = {"subject": "flights-value", "version": 1, "id": 1, "schema": '"string"', "deleted": False}
        assert store({"keytype": "NOOP", "magic": 0}, None) == 0
        assert [store(schema, value), store(schema, value | {"deleted": True}), store(schema, None)] == [1, 2, 3]
        assert first.get_watermark_offsets(TopicPartition(topic, 0), PATIENCE_S) == (0, 4)
    with closing(reader(server, topic)) as second:  # a registry that starts reads all of it
        found = [(json.loads(each.key())["keytype"], each.value()) for each in until(second, 3)]
    assert [kind for kind, _ in found] == ["NOOP", *["SCHEMA"] * 3] and found[3][1] is None
    healthy = admin.describe_topics(TopicCollection([topic]))[topic].result(PATIENCE_S)
    assert [len(each.isr) for each in healthy.partitions] == [3]


# ------------------------------------------------------------------ the REST proxy


def test_the_rest_proxy_shows_topics_with_their_configs_and_offsets(server: dict[str, Any], admin: AdminClient) -> None:
    topic = f"rest-{uuid.uuid4().hex}"
    admin.create_topics([NewTopic(topic, 2, 3, config={"retention.ms": "7000000"})])[topic].result(PATIENCE_S)
    told = admin.list_topics(timeout=PATIENCE_S)
    assert sorted(told.brokers) == [0, 1, 2]
    for each in told.topics[topic].partitions.values():
        assert each.leader in each.replicas and sorted(each.replicas) == [0, 1, 2]
    resource = ConfigResource(ResourceType.TOPIC, topic)
    (future,) = admin.describe_configs([resource]).values()
    own = {
        name: each.value
        for name, each in future.result(PATIENCE_S).items()
        if ConfigSource(each.source) is ConfigSource.DYNAMIC_TOPIC_CONFIG
    }
    assert own == {"retention.ms": "7000000"}
    producer = Producer({**server, "acks": -1, "linger.ms": 0})
    for number in range(3):
        producer.produce(topic, b"%d" % number, partition=1)
    producer.flush(PATIENCE_S)
    for spec, offset in ((OffsetSpec.latest(), 3), (OffsetSpec.earliest(), 0)):
        part = TopicPartition(topic, 1)
        assert admin.list_offsets({part: spec})[part].result(PATIENCE_S).offset == offset
    (gone,) = admin.describe_configs([ConfigResource(ResourceType.TOPIC, "no-such-topic")]).values()
    with pytest.raises(KafkaException) as unknown:
        gone.result(PATIENCE_S)
    assert unknown.value.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_the_rest_proxy_reads_in_a_group_commits_and_seeks(server: dict[str, Any], admin: AdminClient) -> None:
    topic, group = f"rest-{uuid.uuid4().hex}", f"rest-{uuid.uuid4().hex}"
    admin.create_topics([NewTopic(topic, 1, 3)])[topic].result(PATIENCE_S)
    producer = Producer({**server, "acks": -1})
    for number in range(5):
        producer.produce(topic, b"%d" % number, partition=0)
    producer.flush(PATIENCE_S)
    part = TopicPartition(topic, 0)
    limits = {"fetch.min.bytes": 1, "fetch.message.max.bytes": 67_108_864, "session.timeout.ms": 10_000}
    own = {"group.id": group, "enable.auto.commit": False, "auto.offset.reset": "earliest"}
    with closing(Consumer({**server, **limits, **own})) as consumer:
        assert [each.offset for each in consumer.committed([part], PATIENCE_S)] == [-1001]
        consumer.subscribe([topic])
        assert [each.value() for each in until(consumer, 4)] == [b"0", b"1", b"2", b"3", b"4"]
        consumer.commit(offsets=[TopicPartition(topic, 0, 3)], asynchronous=False)
        assert [each.offset for each in consumer.committed([part], PATIENCE_S)] == [3]
        for position, first in ((OFFSET_BEGINNING, b"0"), (2, b"2")):
            consumer.seek(TopicPartition(topic, 0, position))
            assert until(consumer, 4)[0].value() == first
        consumer.seek(TopicPartition(topic, 0, OFFSET_END))
        assert consumer.consume(1, timeout=0.3) == []
    with closing(Consumer({**server, **limits, **own})) as consumer:  # another instance of the group goes on there
        consumer.subscribe([topic])
        assert [each.value() for each in until(consumer, 4)] == [b"3", b"4"]
    with closing(Consumer({**server, **limits, **own})) as consumer:  # and one that subscribes to nothing
        consumer.assign([TopicPartition(topic, 0, 1)])
        assert until(consumer, 4)[0].value() == b"1"
