"""Native transactional producers against the production servers: inside, through the brokers' listeners, blocking and not."""

from __future__ import annotations

import asyncio
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from raw_requests import eventually, part

import raylog
from raylog import NewTopic, TopicPartition
from raylog.client.consumer.consumer import AsyncConsumer
from raylog.client.links.address import ClusterAddress
from raylog.client.producer.producer import AsyncProducer
from raylog.client.sync import AdminClient, Consumer, Producer
from raylog.client.transactions.calls import TransactionCalls
from raylog.errors import (
    ConfigError,
    MessageTooLargeError,
    TransactionAbortedError,
    TransactionStateError,
    kafka_error,
)
from raylog.offsets_topic import TRANSACTIONS_TOPIC, partition_for
from raylog.testing.in_process import InProcessCluster, cluster

pytestmark = pytest.mark.core

FencedError = kafka_error(ErrorCode.producer_fenced)
TIMEOUT_S = 30.0
NewTopicName = Callable[..., str]


@pytest.fixture(scope="module")
def running() -> Iterator[InProcessCluster]:
    with cluster(brokers=3) as made:
        yield made


@pytest.fixture(params=["inside", "outside"])
def address(request: pytest.FixtureRequest, running: InProcessCluster) -> ClusterAddress:
    if request.param == "inside":
        return running.address
    return raylog.connect(bootstrap_servers=running.bootstrap_servers()).address


@pytest.fixture
def new_topic(running: InProcessCluster, request: pytest.FixtureRequest) -> NewTopicName:
    def make(partitions: int = 1, **configs: str) -> str:
        name = f"{request.node.name.replace('[', '-').rstrip(']')}-{time.monotonic_ns()}"
        with AdminClient(running.address) as admin:
            admin.create_topics(NewTopic(name, partitions, 3, configs=configs))
        return name

    return make


def read(
    address: ClusterAddress, topic: str, count: int, *, committed: bool = True, partitions: int = 1
) -> list[bytes]:
    """As many values as can be read, up to ``count``, and one more if there is one; sorted."""
    level = "read_committed" if committed else "read_uncommitted"
    with Consumer(address, auto_offset_reset="earliest", isolation_level=level) as consumer:
        consumer.assign([(topic, number) for number in range(partitions)])
        values: list[bytes] = []
        while len(values) < count and (taken := consumer.consume(count, timeout=TIMEOUT_S)):
            values += [record.value for record in taken if record.value is not None]
        values += [record.value for record in consumer.consume(1, timeout=0.3) if record.value is not None]
    return sorted(values)


def group_consumer(address: ClusterAddress, topic: str, group: str, **options: Any) -> Consumer:
    settings: dict[str, Any] = {"enable_auto_commit": False, "isolation_level": "read_committed"}
    consumer = Consumer(address, group_id=group, auto_offset_reset="earliest", **settings | options)
    consumer.subscribe(topic)
    return consumer


def committed_offset(address: ClusterAddress, group: str, topic: str) -> int | None:
    with Consumer(address, group_id=group, isolation_level="read_committed") as consumer:
        found = consumer.committed([TopicPartition(topic, 0)])[TopicPartition(topic, 0)]
    return None if found is None else found.offset


# ------------------------------------------------------------------ commit and abort


def test_what_was_committed_is_there_for_who_reads_committed_records(
    address: ClusterAddress, new_topic: NewTopicName
) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    topic = new_topic(3)
    with Producer(address, transactional_id=topic) as producer:
        with producer.transaction() as txn:
            one = txn.send(topic, b"one", partition=0)
            txn.send_batch(topic, [b"two", b"three"], partition=1)
            txn.send_arrow(topic, pyarrow.table({"value": [b"four"]}), partition=2)
        assert one.done() and read(address, topic, 4, partitions=3) == [b"four", b"one", b"three", b"two"]
        for number in range(20):
            with producer.transaction() as txn:
                txn.send_batch(topic, [b"%d" % number] * 3, keys=[b"a", b"b", b"c"])
    assert len(read(address, topic, 64, partitions=3)) == 64


def test_an_exception_aborts_and_the_producer_goes_on(address: ClusterAddress, new_topic: NewTopicName) -> None:
    topic = new_topic()
    with Producer(address, transactional_id=topic) as producer:
        with pytest.raises(ZeroDivisionError), producer.transaction() as txn:
            txn.send(topic, b"gone").result(TIMEOUT_S)
            txn.send(topic, b"gone, too")
            raise ZeroDivisionError
        with producer.transaction() as txn:
            txn.send(topic, b"kept")
    assert read(address, topic, 1) == [b"kept"]
    assert b"gone" in read(address, topic, 2, committed=False)


def test_nothing_of_an_open_transaction_is_read_before_its_commit(
    running: InProcessCluster, new_topic: NewTopicName
) -> None:
    topic = new_topic()
    with Producer(running.address, transactional_id=topic) as producer:
        txn = producer.transaction().begin()
        txn.send(topic, b"early").result(TIMEOUT_S)
        assert read(running.address, topic, 0) == []
        assert read(running.address, topic, 1, committed=False) == [b"early"]
        txn.commit()
        assert read(running.address, topic, 1) == [b"early"]


def test_transactions_without_records_are_nothing(running: InProcessCluster, new_topic: NewTopicName) -> None:
    topic = new_topic()
    with Producer(running.address, transactional_id=topic) as producer:
        with producer.transaction():
            pass
        with pytest.raises(KeyError), producer.transaction():
            raise KeyError
        with producer.transaction() as txn:
            txn.abort()
        with producer.transaction() as txn:
            txn.send(topic, b"x")
            txn.commit()
    assert read(running.address, topic, 1) == [b"x"]


def test_a_record_that_fails_aborts_all_of_it_and_the_commit_says_why(
    address: ClusterAddress, new_topic: NewTopicName
) -> None:
    small, large = new_topic(**{"max.message.bytes": "1000"}), new_topic()
    with Producer(address, transactional_id=small) as producer:
        with pytest.raises(TransactionAbortedError) as raised, producer.transaction() as txn:
            txn.send(large, b"fits")
            txn.send(small, b"x" * 2_000)
        assert isinstance(raised.value.__cause__, MessageTooLargeError)
        with pytest.raises(TransactionAbortedError), producer.transaction() as txn:
            with pytest.raises(MessageTooLargeError):
                txn.send(small, b"x" * 2_000).result(TIMEOUT_S)
            txn.send(large, b"late")
        with producer.transaction() as txn:
            txn.send(large, b"kept")
            txn.send(small, b"kept")
    assert read(address, large, 1) == read(address, small, 1) == [b"kept"]


def test_what_is_queued_when_a_transaction_is_aborted_is_never_sent(
    running: InProcessCluster, new_topic: NewTopicName
) -> None:
    topic = new_topic()
    with Producer(running.address, transactional_id=topic, linger_ms=60_000) as producer:
        with pytest.raises(KeyError), producer.transaction() as txn:
            queued = txn.send(topic, b"queued")
            raise KeyError
        with pytest.raises(TransactionAbortedError):
            queued.result(TIMEOUT_S)
        with producer.transaction() as txn:
            txn.send(topic, b"kept")
    assert read(running.address, topic, 1, committed=False) == [b"kept"]


# ------------------------------------------------------------------ who may send


def test_a_transactional_producer_sends_in_transactions_only_and_one_at_a_time(
    running: InProcessCluster, new_topic: NewTopicName
) -> None:
    topic = new_topic()
    with Producer(running.address, transactional_id=topic) as producer:
        with pytest.raises(TransactionStateError, match=r"producer\.transaction\(\)"):
            producer.send(topic, b"outside")
        with producer.transaction() as txn:
            producer.send(topic, b"inside")
            with pytest.raises(TransactionStateError, match="one at a time"), producer.transaction():
                pass
        with pytest.raises(TransactionStateError, match="has ended"):
            txn.send(topic, b"after")
        with producer.transaction() as following:
            following.send(topic, b"following")
            with pytest.raises(TransactionStateError, match="has ended"):
                txn.commit()
    assert read(running.address, topic, 2) == [b"following", b"inside"]
    with Producer(running.address) as plain, pytest.raises(ConfigError, match=r"transactional\.id"):
        plain.transaction()


def test_the_last_producer_of_an_id_fences_the_others_which_say_by_whom(
    address: ClusterAddress, new_topic: NewTopicName
) -> None:
    topic = new_topic()
    first = Producer(address, transactional_id=topic)
    second: Producer = pickle.loads(pickle.dumps(first))
    with pytest.raises(FencedError, match=r"epoch [1-9]\d* now") as raised, first.transaction() as txn:
        txn.send(topic, b"of the first").result(TIMEOUT_S)
        with second.transaction() as other:
            other.send(topic, b"of the second")
    assert repr(topic) in str(raised.value) and "epoch 0)" in str(raised.value)
    for _ in range(2):
        with pytest.raises(FencedError, match="taken"), first.transaction():
            pass
    with pytest.raises(FencedError):
        first.send(topic, b"of the first, again")
    with second.transaction() as other:
        other.send(topic, b"of the second, again")
    first.close()
    second.close()
    assert read(address, topic, 2) == [b"of the second", b"of the second, again"]


def await_abort(address: ClusterAddress, transactional_id: str) -> None:
    """Wait until its coordinator has ended the transaction."""
    with AdminClient(address) as admin:
        eventually(
            lambda: admin.describe_transactions(transactional_id)[transactional_id].state == "CompleteAbort",
            "the end of the transaction's time",
        )


def test_a_transaction_that_takes_too_long_is_aborted_and_the_producer_goes_on(
    address: ClusterAddress, new_topic: NewTopicName
) -> None:
    topic = new_topic()
    with Producer(address, transactional_id=topic, transaction_timeout_ms=300) as producer:
        with (
            pytest.raises(TransactionAbortedError, match=r"transaction\.timeout\.ms=300"),
            producer.transaction() as txn,
        ):
            txn.send(topic, b"late").result(TIMEOUT_S)
            await_abort(address, topic)
        with pytest.raises(TransactionAbortedError), producer.transaction() as txn:
            txn.send(topic, b"late").result(TIMEOUT_S)
            await_abort(address, topic)
            txn.send(topic, b"later")
        with producer.transaction() as txn:
            txn.send(topic, b"kept")
    assert read(address, topic, 1) == [b"kept"]


# ------------------------------------------------------------------ offsets


def test_offsets_are_committed_with_the_records_or_not_at_all(address: ClusterAddress, new_topic: NewTopicName) -> None:
    source, target = new_topic(), new_topic()
    with Producer(address) as plain:
        plain.send_batch(source, [b"%d" % number for number in range(10)]).result(TIMEOUT_S)
    with group_consumer(address, source, source) as consumer, Producer(address, transactional_id=target) as producer:
        with pytest.raises(KeyError), producer.transaction() as txn:
            txn.send_batch(target, [record.value for record in consumer.consume(4, timeout=TIMEOUT_S)])
            txn.commit_offsets(consumer)
            raise KeyError
        assert committed_offset(address, source, source) is None
        consumer.seek_to_committed()
        done = 0
        while done < 10:
            with producer.transaction() as txn:
                records = consumer.consume(3, timeout=TIMEOUT_S)
                txn.send_batch(target, [record.value for record in records])
                txn.commit_offsets(consumer)
            done += len(records)
            assert committed_offset(address, source, source) == done
            with pytest.raises(KeyError), producer.transaction() as txn:
                txn.send_batch(target, [record.value for record in consumer.consume(2, timeout=0.5)] or [b"none"])
                txn.commit_offsets(consumer)
                raise KeyError
            consumer.seek_to_committed()
    assert read(address, target, 10) == [b"%d" % number for number in range(10)]


def test_offsets_of_a_group_may_be_given_by_hand(running: InProcessCluster, new_topic: NewTopicName) -> None:
    source = new_topic()
    key = TopicPartition(source, 0)
    with Producer(running.address, transactional_id=source) as producer:
        with producer.transaction() as txn:
            txn.commit_offsets({key: 17}, group=source)
        assert committed_offset(running.address, source, source) == 17
        with pytest.raises(ConfigError, match="group"), producer.transaction() as txn:
            txn.commit_offsets({key: 18})
    assert committed_offset(running.address, source, source) == 17


def test_a_consumer_that_commits_on_its_own_is_refused(running: InProcessCluster, new_topic: NewTopicName) -> None:
    source = new_topic()
    with Producer(running.address, transactional_id=source) as producer:
        consumer = group_consumer(running.address, source, source, enable_auto_commit=True)
        with consumer, pytest.raises(ConfigError, match="enable_auto_commit"), producer.transaction() as txn:
            txn.commit_offsets(consumer)


def test_a_member_whose_partitions_are_anothers_commits_nothing(
    address: ClusterAddress, new_topic: NewTopicName
) -> None:
    """The zombie of KIP-447: its transaction fails, whatever its transactional id."""
    source, target = new_topic(), new_topic()
    with Producer(address) as plain:
        plain.send(source, b"once").result(TIMEOUT_S)
    with Producer(address, transactional_id=target) as producer, group_consumer(address, source, source) as consumer:
        (record,) = consumer.consume(1, timeout=TIMEOUT_S)
        zombie = consumer.handed_out()
        consumer.unsubscribe()
        with pytest.raises(kafka_error(ErrorCode.unknown_member_id)), producer.transaction() as txn:
            txn.send(target, record.value)
            txn.commit_offsets(zombie.offsets, group=zombie.group)
        with producer.transaction() as txn:
            txn.send(target, b"next")
    assert committed_offset(address, source, source) is None
    assert read(address, target, 1) == [b"next"]


# ------------------------------------------------------------------ the protocol before version 2


@pytest.fixture
def version_1(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cluster has finalized no newer version."""

    async def told(calls: TransactionCalls) -> int:
        return 1

    monkeypatch.setattr(TransactionCalls, "_version", told)


def test_version_1_adds_partitions_and_groups_itself(
    version_1: None, address: ClusterAddress, new_topic: NewTopicName
) -> None:
    source, target = new_topic(), new_topic(3)
    with Producer(address) as plain:
        plain.send_batch(source, [b"%d" % number for number in range(6)]).result(TIMEOUT_S)
    with group_consumer(address, source, source) as consumer, Producer(address, transactional_id=target) as producer:
        done = 0
        while done < 6:
            with producer.transaction() as txn:
                records = consumer.consume(2, timeout=TIMEOUT_S)
                for partition in range(3):
                    txn.send_batch(target, [record.value for record in records], partition=partition)
                txn.commit_offsets(consumer)
            done += len(records)
            assert committed_offset(address, source, source) == done
            with pytest.raises(KeyError), producer.transaction() as txn:
                txn.send(target, b"gone", partition=0).result(TIMEOUT_S)
                txn.commit_offsets({TopicPartition(source, 0): 0}, group=consumer.group_metadata())
                raise KeyError
        assert committed_offset(address, source, source) == 6
    assert read(address, target, 18, partitions=3) == sorted([b"%d" % number for number in range(6)] * 3)


def test_version_1_goes_on_after_a_failure_and_is_fenced(
    version_1: None, running: InProcessCluster, new_topic: NewTopicName
) -> None:
    small = new_topic(**{"max.message.bytes": "1000"})
    with Producer(running.address, transactional_id=small) as producer:
        for _ in range(3):
            with pytest.raises(TransactionAbortedError), producer.transaction() as txn:
                txn.send(small, b"fits")
                producer.flush()
                txn.send(small, b"x" * 2_000)
                txn.send(small, b"fits, too")
            with producer.transaction() as txn:
                txn.send_batch(small, [b"kept"])
        with pytest.raises(TransactionAbortedError), producer.transaction() as txn:
            txn.send(small, b"x" * 2_000)  # the id is initialised again after this, but not taken back
        with Producer(running.address, transactional_id=small) as other, other.transaction() as txn:
            txn.send(small, b"of the other")
        with pytest.raises(FencedError, match="taken"), producer.transaction() as txn:
            txn.send(small, b"fenced")
    assert read(running.address, small, 4) == [b"kept"] * 3 + [b"of the other"]


# ------------------------------------------------------------------ what administrators see


def test_a_transaction_is_listed_and_described_while_it_is_open(
    address: ClusterAddress, new_topic: NewTopicName
) -> None:
    topic = new_topic()
    with Producer(address, transactional_id=topic) as producer, AdminClient(address) as admin:
        txn = producer.transaction().begin()
        txn.send(topic, b"x").result(TIMEOUT_S)
        (listed,) = [each for each in admin.list_transactions(states=["Ongoing"]) if each.transactional_id == topic]
        described = admin.describe_transactions(topic)[topic]
        assert described.state == listed.state == "Ongoing" and described.producer_id == listed.producer_id
        assert described.partitions == (TopicPartition(topic, 0),) and described.timeout_ms == 60_000
        assert described.start_ms is not None and abs(described.start_ms - time.time() * 1000) < 60_000
        assert described.coordinator == listed.coordinator
        assert admin.list_transactions(producer_ids=[listed.producer_id]) == [listed]
        later_ms = round(time.time() * 1000) + 10_000
        key = TopicPartition(topic, 0)
        assert admin.find_hanging_transactions([key], older_than_ms=0, now_ms=later_ms) == []
        txn.commit()
        assert topic not in {each.transactional_id for each in admin.list_transactions(states=["Ongoing"])}
        with pytest.raises(kafka_error(ErrorCode.transactional_id_not_found)):
            admin.describe_transactions("nobody")


def test_a_transaction_that_no_coordinator_knows_is_found_and_aborted(
    running: InProcessCluster, address: ClusterAddress, new_topic: NewTopicName
) -> None:
    """As an Apache Kafka may have left it: its batch is in the log, and its coordinator has forgotten it."""
    topic = new_topic()
    key = TopicPartition(topic, 0)
    with Producer(address, transactional_id=topic) as producer:
        producer.transaction().begin().send(topic, b"left").result(TIMEOUT_S)
        with AdminClient(address) as admin:
            ((found, left),) = hanging(admin, key, forgotten=topic)
            assert found == key and left.transaction_start_offset == 0
            admin.abort_transaction(
                key,
                producer_id=left.producer_id,
                producer_epoch=left.producer_epoch,
                coordinator_epoch=max(0, left.coordinator_epoch or 0),
            )
        with Producer(address) as plain:
            plain.send(topic, b"behind").result(TIMEOUT_S)
        assert read(address, topic, 1) == [b"behind"]


def hanging(admin: AdminClient, key: TopicPartition, *, forgotten: str) -> list[Any]:
    """What hangs in a partition, as if nobody knew that transactional id."""
    client: Any = admin._client
    listed = client.list_transactions

    async def list_others(**filters: Any) -> list[Any]:
        return [each for each in await listed(**filters) if each.transactional_id != forgotten]

    client.list_transactions = list_others
    now_ms = round(time.time() * 1000) + 10_000
    return admin.find_hanging_transactions([key], older_than_ms=0, now_ms=now_ms)


# ------------------------------------------------------------------ coroutines, faults


def test_coroutines_have_transactions_as_well(address: ClusterAddress, new_topic: NewTopicName) -> None:
    source, target = new_topic(), new_topic()

    async def transform() -> None:
        consumer = AsyncConsumer(
            address,
            group_id=source,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
        )
        consumer.subscribe(source)
        async with AsyncProducer(address, transactional_id=target) as producer, consumer:
            async with producer.transaction() as txn:
                await txn.send_and_wait(source, b"one")
                await txn.send_batch(source, [b"two", b"three"])
            done = 0
            while done < 3:
                async with producer.transaction() as txn:
                    for record in await consumer.consume(2, timeout=TIMEOUT_S):
                        await txn.send(target, record.value)
                        done += 1
                    await txn.commit_offsets(consumer)
            with pytest.raises(KeyError):
                async with producer.transaction() as txn:
                    await txn.send(target, b"gone")
                    raise KeyError
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2), producer.transaction() as txn:
                    await txn.send(target, b"cancelled")
                    await asyncio.sleep(TIMEOUT_S)
            async with producer.transaction() as txn:
                await txn.send(target, b"zero")

    asyncio.run(transform())
    assert read(address, target, 4) == [b"one", b"three", b"two", b"zero"]
    assert committed_offset(address, source, source) is not None


def test_a_producer_that_is_closed_within_a_transaction_aborts_it(
    running: InProcessCluster, new_topic: NewTopicName
) -> None:
    topic = new_topic()
    producer = Producer(running.address, transactional_id=topic)
    producer.transaction().begin().send(topic, b"left").result(TIMEOUT_S)
    producer.close()
    with Producer(running.address) as plain:
        plain.send(topic, b"behind").result(TIMEOUT_S)
    assert read(running.address, topic, 1) == [b"behind"]


def test_every_transaction_is_whole_while_coordinators_and_leaders_die(
    running: InProcessCluster, new_topic: NewTopicName
) -> None:
    """Each holds one number in two partitions. Those that were reported as committed are there, once, in both."""
    topic = new_topic(2)
    committed: list[bytes] = []
    is_over = threading.Event()

    def write() -> None:
        with Producer(running.address, transactional_id=topic) as producer:
            number = 0
            while not is_over.is_set():
                value = b"%06d" % (number := number + 1)
                with producer.transaction() as txn:
                    for partition in range(2):
                        txn.send(topic, value, partition=partition)
                committed.append(value)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(3):
            goal = len(committed) + 20
            running.await_true(lambda goal=goal: len(committed) >= goal or not writer.is_alive())
            running.crash(coordinating(running, topic))
            goal = len(committed) + 20
            running.await_true(lambda goal=goal: len(committed) >= goal or not writer.is_alive())
    finally:
        is_over.set()
        writer.join(60)
    assert not writer.is_alive() and len(committed) >= 100
    assert read(running.address, topic, 2 * len(committed), partitions=2) == sorted(committed * 2)


def coordinating(running: InProcessCluster, transactional_id: str) -> int:
    """The node of the process that coordinates an id."""
    node: int = part(running, TRANSACTIONS_TOPIC, partition_for(transactional_id))["leader_node"]
    return node
