"""Requests of transactions fail on order, or their answers get lost: clients go on where Kafka says that they can."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from kio.schema.errors import ErrorCode

import raylog
import raylog.testing
from raylog.client.transactions.shared import ParticipantProducer, SharedTransactions
from raylog.errors import RaylogError, kafka_error
from raylog.testing.kafka import Kafka

pytestmark = pytest.mark.core

PATIENCE_S = 60.0
RETRIABLE = ["CONCURRENT_TRANSACTIONS", "COORDINATOR_NOT_AVAILABLE"]
FencedError = kafka_error(ErrorCode.producer_fenced)


@pytest.fixture
def kafka() -> Iterator[Kafka]:
    with raylog.testing.broker(topics=["numbers", "squares"]) as found:
        found.write("numbers", b"1", b"2")
        yield found


class ConfluentCopier:
    """Copies what it reads, and its offsets, in one transaction: with AddPartitionsToTxn and AddOffsetsToTxn."""

    def __init__(self, kafka: Kafka) -> None:
        settings = {"bootstrap.servers": kafka.bootstrap, "log_level": 0}
        self._consumer = Consumer({**settings, "group.id": "copiers", "enable.auto.commit": False})
        self._consumer.assign([TopicPartition("numbers", 0, 0)])
        self._producer = Producer({**settings, "transactional.id": "copier", "retry.backoff.ms": 10})
        self._producer.init_transactions(PATIENCE_S)

    def copy(self) -> None:
        """Raises what Kafka calls fatal as FencedError."""
        try:
            self._producer.begin_transaction()
            for message in self._consumer.consume(2, PATIENCE_S):
                self._producer.produce("squares", message.value())
            positions = self._consumer.position([TopicPartition("numbers", 0)])
            metadata = self._consumer.consumer_group_metadata()
            self._producer.send_offsets_to_transaction(positions, metadata, PATIENCE_S)
            self._producer.commit_transaction(PATIENCE_S)
        except KafkaException as error:
            assert error.args[0].fatal(), error
            raise FencedError(str(error)) from error

    def close(self) -> None:
        self._consumer.close()


class NativeCopier:
    """The same from outside the cluster; leaders and the group's coordinator add themselves."""

    def __init__(self, kafka: Kafka) -> None:
        cluster = raylog.connect(bootstrap_servers=kafka.bootstrap)
        self._consumer = cluster.consumer(group_id="copiers", enable_auto_commit=False)
        self._consumer.assign([("numbers", 0)])
        self._consumer.seek(("numbers", 0), 0)
        self._producer = cluster.producer(transactional_id="copier")
        with self._producer.transaction():
            pass

    def copy(self) -> None:
        with self._producer.transaction() as transaction:
            records = self._consumer.consume(2, timeout=PATIENCE_S)
            transaction.send_batch("squares", [record.value for record in records])
            transaction.commit_offsets(self._consumer)

    def close(self) -> None:
        self._producer.close()
        self._consumer.close()


Make = Callable[[Kafka], Any]
clients = pytest.mark.parametrize("make", [ConfluentCopier, NativeCopier])


def committed(kafka: Kafka, count: int | None = None) -> list[bytes | None]:
    """What a reader of committed records sees of the copies."""
    return [record.value for record in kafka.records("squares", count=count, read_committed=True)]


def offset_of_group(kafka: Kafka) -> int:
    reader = Consumer(
        {"bootstrap.servers": kafka.bootstrap, "group.id": "copiers", "isolation.level": "read_committed"}
    )
    try:
        (found,) = reader.committed([TopicPartition("numbers", 0)], PATIENCE_S)
    finally:
        reader.close()
    return int(found.offset)


@clients
@pytest.mark.parametrize("code", RETRIABLE)
def test_a_commit_that_is_refused_twice_succeeds(kafka: Kafka, make: Make, code: str) -> None:
    copier = make(kafka)
    order = kafka.fail("EndTxn", code=code, times=2)
    copier.copy()
    copier.close()
    assert (order.hits, committed(kafka, 2), offset_of_group(kafka)) == (2, [b"1", b"2"], 2)


@clients
def test_a_commit_that_is_fenced_ends_the_producer(kafka: Kafka, make: Make) -> None:
    copier = make(kafka)
    order = kafka.fail("EndTxn", code="PRODUCER_FENCED")
    for _ in range(2):
        with pytest.raises(FencedError):
            copier.copy()
    copier.close()
    assert order.hits == 1
    make(kafka).close()  # who has the id next aborts what was under way
    assert committed(kafka) == []


@clients
@pytest.mark.parametrize("lost", ["request", "reply"])
def test_a_commit_whose_answer_is_lost_is_answered_alike_and_commits_once(kafka: Kafka, make: Make, lost: Any) -> None:
    copier = make(kafka)
    order = kafka.drop("EndTxn", lost=lost)
    copier.copy()
    kafka.write("numbers", b"3", b"4")
    copier.copy()
    copier.close()
    assert (order.hits, committed(kafka, 4), offset_of_group(kafka)) == (1, [b"1", b"2", b"3", b"4"], 4)


@pytest.mark.parametrize(
    ("make", "api", "code"),
    [
        (ConfluentCopier, "InitProducerId", "CONCURRENT_TRANSACTIONS"),
        (ConfluentCopier, "AddPartitionsToTxn", "CONCURRENT_TRANSACTIONS"),
        (ConfluentCopier, "AddPartitionsToTxn", "COORDINATOR_LOAD_IN_PROGRESS"),
        (ConfluentCopier, "AddOffsetsToTxn", "COORDINATOR_NOT_AVAILABLE"),
        (ConfluentCopier, "TxnOffsetCommit", "COORDINATOR_LOAD_IN_PROGRESS"),
        (NativeCopier, "InitProducerId", "NOT_COORDINATOR"),
        (NativeCopier, "TxnOffsetCommit", "COORDINATOR_NOT_AVAILABLE"),
    ],
)
def test_each_request_of_a_transaction_can_fail(kafka: Kafka, make: Make, api: str, code: str) -> None:
    orders = kafka.fail(api, code=code), kafka.drop(api, lost="reply", nth=2), kafka.delay(api, ms=5, nth=3)
    copier = make(kafka)
    copier.copy()
    copier.close()
    assert [order.hits for order in orders] == [1, 1, 1]
    assert (committed(kafka, 2), offset_of_group(kafka)) == ([b"1", b"2"], 2)


def test_records_of_committed_transactions_are_told_from_others(kafka: Kafka) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": "one", "linger.ms": 0})
    producer.init_transactions(PATIENCE_S)
    for value in (b"kept", b"aborted", b"kept too", b"open"):
        producer.begin_transaction()
        producer.produce("squares", value)
        producer.flush(PATIENCE_S)
        if value == b"aborted":
            producer.abort_transaction(PATIENCE_S)
        elif value != b"open":
            producer.commit_transaction(PATIENCE_S)
    assert committed(kafka, 2) == [b"kept", b"kept too"]
    assert [record.value for record in kafka.records("squares")] == [b"kept", b"aborted", b"kept too", b"open"]
    kafka.write("squares", b"behind an open transaction")
    assert committed(kafka) == [b"kept", b"kept too"]
    producer.commit_transaction(PATIENCE_S)
    assert committed(kafka, 4) == [b"kept", b"kept too", b"open", b"behind an open transaction"]


# ---------------------------------------------------------------------- transactions of several producers


def shared(kafka: Kafka) -> SharedTransactions:
    return SharedTransactions(raylog.connect(bootstrap_servers=kafka.bootstrap).address, "job")


def attempt(kafka: Kafka, transactions: SharedTransactions) -> int:
    address = raylog.connect(bootstrap_servers=kafka.bootstrap).address
    with ParticipantProducer(transactions.begin(), address) as producer:
        producer.send("squares", b"1")
        return producer.finish()


@pytest.mark.parametrize("api", ["JoinTransaction", "KeepTransaction", "EndSharedTransaction"])
def test_each_request_of_a_shared_transaction_can_fail(kafka: Kafka, api: str) -> None:
    orders = kafka.fail(api, code="CONCURRENT_TRANSACTIONS"), kafka.drop(api, lost="reply", nth=2)
    with shared(kafka) as transactions:
        transactions.commit([attempt(kafka, transactions)], "one")
        assert [order.hits for order in orders] == [1, 1]
        transactions.commit([attempt(kafka, transactions)], "two")
    assert committed(kafka, 2) == [b"1", b"1"]


def test_a_shared_commit_that_is_fenced_says_so(kafka: Kafka) -> None:
    order = kafka.fail("EndSharedTransaction", code="PRODUCER_FENCED")
    with shared(kafka) as transactions:
        winner = attempt(kafka, transactions)
        with pytest.raises(FencedError, match="another owner has taken the id over"):
            transactions.commit([winner])
    with shared(kafka):
        assert (order.hits, committed(kafka)) == (1, [])


def test_a_task_that_may_not_join_says_why(kafka: Kafka) -> None:
    kafka.fail("JoinTransaction", code="POLICY_VIOLATION")
    with shared(kafka) as transactions, pytest.raises(RaylogError) as refused:
        attempt(kafka, transactions)
    assert refused.value.code is ErrorCode.policy_violation
