"""Histories of confluent-kafka's transactions on the test broker: copiers commit and abort between each other's records
while leaders move, and the checker finds nothing wrong with what readers of committed records see.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

import raylog.testing
from raylog.histories import AnomalyKind, HistoryRecorder, IsolationModel, RecordedProcess, check
from raylog.testing.kafka import Kafka

pytestmark = pytest.mark.core

PARTITIONS = 3
COPIERS = 3
TRANSACTIONS = 30  # of each copier
SENDS_MAX = 5
COMMITTED_SHARE = 0.7
PATIENCE_S = 60.0
LAST = b"last"
"""The value of each partition's last record: who has polled it has seen everything."""


class RecordedConsumer:
    """Reads all partitions from the beginning, and goes back to where it was told to."""

    def __init__(self, process: RecordedProcess, kafka: Kafka, isolation_level: str) -> None:
        settings = {"bootstrap.servers": kafka.bootstrap, "group.id": "unused", "enable.auto.commit": False}
        self.process = process
        self.client = Consumer({**settings, "isolation.level": isolation_level, "log_level": 0})
        self.positions = dict.fromkeys(range(PARTITIONS), 0)
        self.go_to(self.positions)

    def go_to(self, positions: dict[int, int]) -> None:
        self.positions = dict(positions)
        self.process.assign({("t", partition): offset for partition, offset in positions.items()})
        self.client.assign([TopicPartition("t", partition, offset) for partition, offset in positions.items()])

    def poll(self, timeout: float) -> Sequence[Any]:
        messages = [each for each in self.client.consume(10, timeout) if each.error() is None]
        for message in self.process.poll(messages):
            self.positions[message.partition()] = message.offset() + 1
        return messages


class CopierWorkload:
    """Copiers with a producer and a consumer each, and a reader, at one isolation level."""

    def __init__(self, kafka: Kafka, isolation_level: str) -> None:
        self.kafka = kafka
        self.isolation_level = isolation_level
        self.recorder = HistoryRecorder()
        self.committed = 0
        self.errors: list[BaseException] = []
        self.halves = threading.Semaphore(0)

    def run(self) -> None:
        copiers = [threading.Thread(target=self._guarded, args=(self._copies, number)) for number in range(COPIERS)]
        reader = threading.Thread(target=self._guarded, args=(self._reads, COPIERS))
        for thread in (*copiers, reader):
            thread.start()
        for _ in copiers:
            assert self.halves.acquire(timeout=PATIENCE_S)
        for partition in range(PARTITIONS):
            self.kafka.move_leader("t", partition)
        for thread in copiers:
            thread.join()
        self._writes_the_last()
        reader.join()
        assert not self.errors, self.errors

    def _guarded(self, work: Callable[[int], None], number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            self.errors.append(error)
            self.halves.release()

    def _producer(self, name: str) -> Producer:
        settings = {"bootstrap.servers": self.kafka.bootstrap, "transactional.id": name}
        producer = Producer({**settings, "linger.ms": 0, "log_level": 0})
        producer.init_transactions(PATIENCE_S)
        return producer

    def _copies(self, number: int) -> None:
        process, chosen = self.recorder.process(f"copier {number}"), random.Random(number)
        producer = self._producer(f"copier-{number}")
        consumer = RecordedConsumer(process, self.kafka, self.isolation_level)
        try:
            for transaction in range(TRANSACTIONS):
                self._transacts(producer, consumer, f"{number}/{transaction}", chosen)
                if transaction == TRANSACTIONS // 2:
                    self.halves.release()
        finally:
            consumer.client.close()

    def _transacts(self, producer: Producer, consumer: RecordedConsumer, name: str, chosen: random.Random) -> None:
        before = dict(consumer.positions)
        with consumer.process.transaction() as transaction:
            producer.begin_transaction()
            for place in range(chosen.randint(1, SENDS_MAX)):
                self._sends(producer, consumer.process, chosen.randrange(PARTITIONS), f"{name}/{place}".encode())
                consumer.poll(0.01)
            if chosen.random() < COMMITTED_SHARE:
                try:
                    transaction.commit(producer.commit_transaction)
                    self.committed += 1
                    return
                except KafkaException as error:
                    if not error.args[0].txn_requires_abort():
                        raise
            producer.flush(
                PATIENCE_S
            )  # an abort before the first partition was added ends librdkafka, on Kafka too (#4849)
            transaction.abort(producer.abort_transaction)
        consumer.go_to(before)

    def _sends(self, producer: Producer, process: RecordedProcess, partition: int, value: bytes) -> None:
        producer.produce("t", value, partition=partition, on_delivery=process.send("t", partition, value))
        producer.poll(0)

    def _writes_the_last(self) -> None:
        process, producer = self.recorder.process("last writer"), self._producer("last")
        with process.transaction() as transaction:
            producer.begin_transaction()
            for partition in range(PARTITIONS):
                self._sends(producer, process, partition, LAST)
            transaction.commit(producer.commit_transaction)

    def _reads(self, _: int) -> None:
        consumer = RecordedConsumer(self.recorder.process("reader"), self.kafka, self.isolation_level)
        left = PARTITIONS
        try:
            while left and not self.errors:
                left -= sum(message.value() == LAST for message in consumer.poll(1.0))
        finally:
            consumer.client.close()


def test_transactions_on_the_test_broker_have_nothing_wrong() -> None:
    with raylog.testing.broker(topics={"t": PARTITIONS}, brokers=3) as kafka:
        workload = CopierWorkload(kafka, "read_committed")
        workload.run()
    verdict = check(workload.recorder.history())
    assert verdict.holds, verdict.words()
    assert {anomaly.kind for anomaly in verdict.allowed} <= IsolationModel.READ_COMMITTED.allowed
    assert workload.committed > COPIERS * TRANSACTIONS // 2


def test_readers_of_uncommitted_records_see_what_readers_of_committed_ones_must_not() -> None:
    """The same workload has aborted records to see, and transactions that see their own."""
    with raylog.testing.broker(topics={"t": PARTITIONS}, brokers=3) as kafka:
        workload = CopierWorkload(kafka, "read_uncommitted")
        workload.run()
    history = workload.recorder.history()
    verdict = check(history, model=IsolationModel.READ_UNCOMMITTED)
    assert verdict.holds, verdict.words()
    assert check(history).kinds >= {AnomalyKind.ABORTED_READ, AnomalyKind.PRECOMMITTED_READ}
