"""Histories of real clients on the test broker: nothing is wrong with them, and what is hidden from a poll is missed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as ConfluentPartition

import raylog
import raylog.testing
from raylog.histories import AnomalyKind, HistoryRecorder, HistoryVerdict, RecordedProcess, check
from raylog.testing.kafka import Kafka

pytestmark = pytest.mark.core

PARTITIONS = 2
RECORDS = 3000  # of each producer
PATIENCE_S = 60.0


class Workload:
    """Two producers and two readers, of confluent-kafka and of raylog, while leaders move."""

    def __init__(self, kafka: Kafka, hides: Callable[[bytes], bool] = lambda value: False) -> None:
        self.kafka = kafka
        self.recorder = HistoryRecorder()
        self.hides = hides
        self.missing = {"confluent reader": 2 * RECORDS, "raylog reader": 2 * RECORDS}
        self.errors: list[BaseException] = []
        self.halves = threading.Semaphore(0)

    def run(self) -> HistoryVerdict:
        works = [self.confluent_writes, self.raylog_writes, self.confluent_reads, self.raylog_reads]
        threads = [threading.Thread(target=self._guarded, args=(work,)) for work in works]
        for thread in threads:
            thread.start()
        for _ in range(2):  # each producer is half done
            assert self.halves.acquire(timeout=PATIENCE_S)
        for partition in range(PARTITIONS):
            self.kafka.move_leader("t", partition)
        for thread in threads:
            thread.join()
        assert not self.errors, self.errors
        return check(self.recorder.history())

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self.errors.append(error)

    def confluent_writes(self) -> None:
        process = self.recorder.process("confluent writer")
        producer = Producer(
            {"bootstrap.servers": self.kafka.bootstrap, "enable.idempotence": True, "linger.ms": 1, "log_level": 0}
        )
        for number in range(RECORDS):
            value, partition = b"c%d" % number, number % PARTITIONS
            producer.produce("t", value, partition=partition, on_delivery=process.send("t", partition, value))
            producer.poll(0)
            if number == RECORDS // 2:
                producer.flush(PATIENCE_S)
                self.halves.release()
        assert producer.flush(PATIENCE_S) == 0

    def raylog_writes(self) -> None:
        process = self.recorder.process("raylog writer")
        with raylog.Producer(self.kafka.address) as producer:
            for number in range(RECORDS):
                value, partition = b"r%d" % number, number % PARTITIONS
                producer.send("t", value, partition=partition, on_delivery=process.send("t", partition, value))
                if number == RECORDS // 2:
                    producer.flush(PATIENCE_S)
                    self.halves.release()
            assert producer.flush(PATIENCE_S) == 0

    def confluent_reads(self) -> None:
        process = self.recorder.process("confluent reader")
        consumer = Consumer({"bootstrap.servers": self.kafka.bootstrap, "group.id": "unused", "log_level": 0})
        process.assign({("t", partition): 0 for partition in range(PARTITIONS)})
        consumer.assign([ConfluentPartition("t", partition, 0) for partition in range(PARTITIONS)])
        try:
            self._read(process, lambda: consumer.consume(100, 1.0), lambda message: message.value())
        finally:
            consumer.close()

    def raylog_reads(self) -> None:
        process = self.recorder.process("raylog reader")
        with raylog.Consumer(self.kafka.address, auto_offset_reset="earliest") as consumer:
            process.assign({("t", partition): 0 for partition in range(PARTITIONS)})
            consumer.assign([raylog.TopicPartition("t", partition) for partition in range(PARTITIONS)])
            self._read(process, lambda: consumer.consume(100, 1.0), lambda record: record.value)

    def _read(
        self, process: RecordedProcess, poll: Callable[[], Sequence[Any]], value_of: Callable[[Any], bytes]
    ) -> None:
        while self.missing[process.name] > 0 and not self.errors:
            records = poll()
            self.missing[process.name] -= len(records)
            process.poll([record for record in records if not self.hides(value_of(record))])


def test_plain_clients_on_the_test_broker_see_nothing_wrong() -> None:
    with raylog.testing.broker(topics={"t": PARTITIONS}, brokers=3) as kafka:
        verdict = Workload(kafka).run()
    assert verdict.holds and not verdict.allowed, verdict.words()
    assert (verdict.sent, verdict.polled) == (2 * RECORDS, 4 * RECORDS)


@pytest.mark.parametrize(("hidden", "writer"), [(b"c700", "confluent writer"), (b"r701", "raylog writer")])
def test_an_acknowledged_record_that_no_poll_returns_is_lost(hidden: bytes, writer: str) -> None:
    with raylog.testing.broker(topics={"t": PARTITIONS}, brokers=3) as kafka:
        verdict = Workload(kafka, lambda value: value == hidden).run()
    (anomaly,) = verdict.errors
    (record,), (operation,) = anomaly.records, anomaly.operations
    assert anomaly.kind is AnomalyKind.LOST_WRITE
    assert (record.partition, record.value) == (("t", int(hidden[1:]) % PARTITIONS), hidden)
    assert record.offset is not None and operation.process == writer
