"""Consumer groups through the Brokers' listeners: confluent-kafka (librdkafka), aiokafka, and both in one group."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioPartition
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from raw_requests import eventually, part

from raylog.groups.context import GroupConfig
from raylog.offsets_topic import OFFSETS_TOPIC, partition_for
from raylog.server.replica_server import ReplicaServer
from raylog.testing.in_process import InProcessCluster, cluster

pytestmark = pytest.mark.conformance

NewTopicOf = Callable[..., str]
PATIENCE_S = 60.0
_groups = itertools.count()


@pytest.fixture(scope="module")
def running() -> Iterator[InProcessCluster]:
    """Three brokers whose groups do not wait for more members when they begin."""
    groups = GroupConfig(group_initial_rebalance_delay_ms=100)
    with cluster(brokers=3, replica_server=lambda spec: ReplicaServer(spec, groups=groups)) as found:
        yield found


@pytest.fixture
def group() -> str:
    return f"group-{next(_groups)}"


class Member:
    """A confluent consumer that polls in a thread of its own. ``owned`` is what it has, ``given`` and ``taken`` what it was told."""

    def __init__(self, bootstrap: str, group: str, topic: str, **config: Any) -> None:
        settings = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 60_000,
            "heartbeat.interval.ms": 200,
            "log_level": 0,
        }
        self.consumer = Consumer(settings | {key.replace("_", "."): value for key, value in config.items()})
        self.is_cooperative = config.get("partition_assignment_strategy") == "cooperative-sticky"
        self.owned: set[int] = set()
        self.given: list[set[int]] = []
        self.taken: list[set[int]] = []
        self.values: list[bytes] = []
        self.errors: list[KafkaError] = []
        self._over = threading.Event()
        self.consumer.subscribe([topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked)
        self._thread = threading.Thread(target=self._poll)
        self._thread.start()

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        numbers = {each.partition for each in partitions}
        self.given.append(numbers)
        self.owned = self.owned | numbers if self.is_cooperative else numbers

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        numbers = {each.partition for each in partitions}
        self.taken.append(numbers)
        self.owned = self.owned - numbers

    def _poll(self) -> None:
        while not self._over.is_set():
            message = self.consumer.poll(0.05)
            if message is None:
                continue
            if message.error() is not None:
                self.errors.append(message.error())
            else:
                self.values.append(message.value())

    def halt(self) -> None:
        """Stop polling, and nothing else: heartbeats go on."""
        self._over.set()
        self._thread.join()

    def close(self) -> None:
        self.halt()
        self.consumer.close()


@pytest.fixture
def member(bootstrap: str, group: str) -> Iterator[Callable[..., Member]]:
    """Makes members of the test's group, and closes those that are left at its end."""
    made: list[Member] = []

    def make(topic: str, **config: Any) -> Member:
        made.append(Member(bootstrap, group, topic, **config))
        return made[-1]

    yield make
    for each in made:
        if not each._over.is_set():
            each.close()


def fill(bootstrap: str, topic: str, partitions: int, count: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    for number in range(count):
        producer.produce(topic, b"%d" % number, partition=number % partitions)
    assert not producer.flush(PATIENCE_S)


def share(members: list[Member], partitions: int) -> bool:
    """Whether the members have all partitions, each one of them once, and none of them none."""
    owned = sorted(number for each in members for number in each.owned)
    return owned == list(range(partitions)) and all(each.owned for each in members)


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_members_share_the_partitions_and_take_over_what_a_leaver_had(
    bootstrap: str, new_topic: NewTopicOf, member: Callable[..., Member], strategy: str
) -> None:
    topic = new_topic(4)
    fill(bootstrap, topic, 4, 40)
    first = member(topic, partition_assignment_strategy=strategy)
    eventually(lambda: share([first], 4), "one member has everything")
    second = member(topic, partition_assignment_strategy=strategy)
    eventually(lambda: share([first, second], 4) and len(second.owned) == 2, "two members share")
    if strategy == "cooperative-sticky":
        assert all(len(taken) == 2 for taken in first.taken), f"it gave up more than it had to: {first.taken}"
    second.close()
    eventually(lambda: share([first], 4), "who is left has everything again")
    eventually(lambda: {*first.values, *second.values} >= {b"%d" % each for each in range(40)}, "all records")


def test_commits_are_where_the_next_one_goes_on(
    bootstrap: str, new_topic: NewTopicOf, member: Callable[..., Member]
) -> None:
    topic = new_topic(2)
    fill(bootstrap, topic, 2, 20)
    first = member(topic)
    eventually(lambda: len(first.values) == 20, "all records")
    first.halt()
    committed = first.consumer.commit(offsets=[TopicPartition(topic, 0, 7, "seven")], asynchronous=False)
    assert committed[0].error is None
    (found,) = first.consumer.committed([TopicPartition(topic, 0)], timeout=PATIENCE_S)
    assert (found.offset, found.metadata) == (7, "seven")
    first.consumer.close()
    second = member(topic)
    eventually(lambda: len(second.values) >= 13, "what was not committed")
    assert len(second.values) == 13, "three of partition 0 and all of partition 1"


def test_a_commit_for_a_partition_that_is_not_there_is_refused_and_the_others_count(
    bootstrap: str, new_topic: NewTopicOf, group: str
) -> None:
    topic = new_topic(1)
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    places = [TopicPartition(topic, 0, 4), TopicPartition(topic, 7, 5), TopicPartition(f"{topic}-other", 0, 6)]

    def change(those: list[TopicPartition]) -> dict[tuple[str, int], int | None]:
        asked = [ConsumerGroupTopicPartitions(group, those)]
        result = admin.alter_consumer_group_offsets(asked)[group].result(PATIENCE_S)
        return {(each.topic, each.partition): each.error and each.error.code() for each in result.topic_partitions}

    unknown = KafkaError.UNKNOWN_TOPIC_OR_PART
    assert change(places) == {(topic, 0): None, (topic, 7): unknown, (f"{topic}-other", 0): unknown}
    assert change(places[1:]) == {(topic, 7): unknown, (f"{topic}-other", 0): unknown}
    found = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(PATIENCE_S)
    assert [(each.topic, each.partition, each.offset) for each in found.topic_partitions] == [(topic, 0, 4)]


def test_automatic_commits_happen_in_the_background_and_at_close(
    bootstrap: str, new_topic: NewTopicOf, member: Callable[..., Member]
) -> None:
    topic = new_topic(1)
    fill(bootstrap, topic, 1, 10)
    first = member(topic, enable_auto_commit=True, auto_commit_interval_ms=100)
    eventually(lambda: len(first.values) == 10, "all records")
    first.close()
    fill(bootstrap, topic, 1, 5)
    second = member(topic)
    eventually(lambda: len(second.values) >= 5, "the new records")
    assert len(second.values) == 5


def test_a_member_that_stops_without_a_word_is_out_after_its_session(
    bootstrap: str, new_topic: NewTopicOf, member: Callable[..., Member], running: InProcessCluster, group: str
) -> None:
    topic = new_topic(2)
    first, second = member(topic), member(topic, session_timeout_ms=6_000, max_poll_interval_ms=6_000)
    eventually(lambda: share([first, second], 2), "two members share")
    second.halt()  # librdkafka leaves the group when nobody polls for max.poll.interval.ms
    eventually(lambda: share([first], 2), "the other one has everything")
    second.consumer.close()


def test_a_static_member_that_restarts_within_its_session_moves_nothing(
    new_topic: NewTopicOf, member: Callable[..., Member]
) -> None:
    topic = new_topic(2)
    first = member(topic, group_instance_id="one", session_timeout_ms=300_000)
    second = member(topic, group_instance_id="two", session_timeout_ms=300_000)
    eventually(lambda: share([first, second], 2), "two members share")
    had, told = set(second.owned), len(first.given)
    second.close()  # a static member does not leave
    again = member(topic, group_instance_id="two", session_timeout_ms=300_000)
    eventually(lambda: again.owned == had, "the same partitions again")
    assert len(first.given) == told and first.owned


def test_a_second_member_of_one_instance_id_fences_the_first(
    new_topic: NewTopicOf, member: Callable[..., Member]
) -> None:
    topic = new_topic(1)
    first = member(topic, group_instance_id="one")
    eventually(lambda: first.owned == {0}, "it has the partition")
    second = member(topic, group_instance_id="one")
    eventually(lambda: any(error.code() == KafkaError._FATAL for error in first.errors), "the first one is told")
    eventually(lambda: second.owned == {0}, "the second one has it")


def test_consumer_callbacks_are_called(bootstrap: str, new_topic: NewTopicOf, group: str) -> None:
    topic = new_topic(2)
    fill(bootstrap, topic, 2, 10)
    given: list[list[TopicPartition]] = []
    taken: list[list[TopicPartition]] = []
    commits: list[tuple[KafkaError | None, list[TopicPartition]]] = []
    statistics: list[str] = []
    errors: list[KafkaError] = []
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "statistics.interval.ms": 50,
        "log_level": 0,
    }
    reader = Consumer(
        settings,
        on_commit=lambda error, partitions: commits.append((error, partitions)),
        stats_cb=statistics.append,
        error_cb=errors.append,
    )
    reader.subscribe(
        [topic], on_assign=lambda _, those: given.append(those), on_revoke=lambda _, those: taken.append(those)
    )
    messages: list[bytes] = []

    def all_read() -> bool:
        messages.extend(each.value() for each in reader.consume(10, 0.1) if each.error() is None)
        return len(messages) == 10

    eventually(all_read, "all records")
    reader.commit(offsets=[TopicPartition(topic, 1, 3)], asynchronous=True)
    eventually(lambda: reader.poll(0.05) is None and commits and statistics, "the callbacks")
    reader.close()
    assert sorted(each.partition for each in given[0]) == sorted(each.partition for each in taken[-1]) == [0, 1]
    (error, partitions), *_ = commits
    assert error is None and [(each.partition, each.offset) for each in partitions] == [(1, 3)]
    assert not errors


def test_groups_are_listed_described_changed_and_deleted(
    bootstrap: str, new_topic: NewTopicOf, member: Callable[..., Member], group: str
) -> None:
    topic = new_topic(2)
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    first = member(topic, client_id="somebody")
    eventually(lambda: first.owned == {0, 1}, "it has everything")
    first.halt()
    first.consumer.commit(offsets=[TopicPartition(topic, 1, 3)], asynchronous=False)
    listed = {each.group_id: each for each in admin.list_consumer_groups().result(PATIENCE_S).valid}
    assert listed[group].state.name == "STABLE"
    described = admin.describe_consumer_groups([group])[group].result(PATIENCE_S)
    (one,) = described.members
    assert (described.state.name, described.partition_assignor) == ("STABLE", "range")
    assert (one.client_id, one.host) == ("somebody", "/127.0.0.1")
    assert {each.partition for each in one.assignment.topic_partitions} == {0, 1}
    first.consumer.close()
    eventually(
        lambda: admin.describe_consumer_groups([group])[group].result(PATIENCE_S).state.name == "EMPTY", "nobody there"
    )
    change = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 9)])
    assert not admin.alter_consumer_group_offsets([change])[group].result(PATIENCE_S).topic_partitions[0].error
    found = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(PATIENCE_S)
    assert {each.partition: each.offset for each in found.topic_partitions} == {0: 9, 1: 3}
    admin.delete_consumer_groups([group])[group].result(PATIENCE_S)
    gone = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(PATIENCE_S)
    assert not gone.topic_partitions


def test_a_coordinator_that_is_killed_is_replaced_and_the_group_goes_on(
    bootstrap: str, new_topic: NewTopicOf, member: Callable[..., Member], running: InProcessCluster, group: str
) -> None:
    topic = new_topic(2)
    fill(bootstrap, topic, 2, 10)
    first = member(topic)
    eventually(lambda: len(first.values) == 10, "all records")
    first.halt()
    first.consumer.commit(offsets=[TopicPartition(topic, 0, 4)], asynchronous=False)
    number = partition_for(group)
    eventually(lambda: len(part(running, OFFSETS_TOPIC, number)["isr"]) == 3, "three coordinators in sync")
    told = len(first.given)
    leader = part(running, OFFSETS_TOPIC, number)["leader_node"]
    running.crash(leader)
    began = time.monotonic()
    while True:
        try:
            first.consumer.commit(offsets=[TopicPartition(topic, 0, 5)], asynchronous=False)
            break
        except Exception:
            assert time.monotonic() - began < PATIENCE_S, "no commit for so long"
    (found,) = first.consumer.committed([TopicPartition(topic, 0)], timeout=PATIENCE_S)
    assert found.offset == 5
    assert len(first.given) == told, "the members noticed nothing"
    eventually(lambda: len(part(running, OFFSETS_TOPIC, number)["isr"]) == 3, "the killed one is back")
    first.consumer.close()


def test_aiokafka_consumes_in_a_group_and_goes_on_where_it_was(
    bootstrap: str, new_topic: NewTopicOf, group: str
) -> None:
    topic = new_topic(2)
    fill(bootstrap, topic, 2, 20)

    async def read(count: int) -> list[bytes]:
        consumer = AIOKafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            metadata_max_age_ms=1_000,
        )
        await consumer.start()
        try:
            values = [(await asyncio.wait_for(consumer.getone(), PATIENCE_S)).value for _ in range(count)]
            await consumer.commit()
            assert await consumer.committed(AioPartition(topic, 0)) is not None
            return values
        finally:
            await consumer.stop()

    assert sorted([*asyncio.run(read(12)), *asyncio.run(read(8))]) == sorted(b"%d" % each for each in range(20))


def test_clients_of_two_kinds_share_one_group(
    bootstrap: str, new_topic: NewTopicOf, member: Callable[..., Member], group: str
) -> None:
    topic = new_topic(4)
    first = member(topic, partition_assignment_strategy="roundrobin")
    eventually(lambda: share([first], 4), "one member has everything")

    async def second() -> set[int]:
        from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor

        consumer = AIOKafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group,
            heartbeat_interval_ms=200,
            session_timeout_ms=60_000,
            partition_assignment_strategy=(RoundRobinPartitionAssignor,),
        )
        await consumer.start()
        try:
            deadline = time.monotonic() + PATIENCE_S
            while len(consumer.assignment()) != 2 or len(first.owned) != 2:
                assert time.monotonic() < deadline, f"{consumer.assignment()} and {first.owned}"
                await asyncio.sleep(0.02)
            return {each.partition for each in consumer.assignment()} | first.owned
        finally:
            await consumer.stop()

    assert asyncio.run(second()) == {0, 1, 2, 3}
    eventually(lambda: share([first], 4), "who is left has everything again")
