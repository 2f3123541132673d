"""Kafka clients that nobody here wrote, as streams that know when they were served: for measuring how long a death holds them up.

A ``Producing`` sends numbered records at a steady rate to one partition, idempotent and with acks=all, everything else as the client
has it by default. A ``Grouped`` is a member of a group of its own that reads that partition and commits where it is, again and
again. Each works in a thread of its own until ``stop``. ``served`` has the time of every acknowledgement (of a record, of a commit);
``errors`` what the client did not repeat itself but told its user.

==============  =====================================================
``LIBRARIES``   which client
==============  =====================================================
confluent       confluent-kafka, which is librdkafka
kafka-python    written in Python
aiokafka        written in Python for asyncio, its codec in C
==============  =====================================================
"""

from __future__ import annotations

import asyncio
import threading
import time
from abc import ABC, abstractmethod
from array import array
from bisect import bisect_right
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any

RATE_PER_SECOND = 200
STOP_WITHIN_S = 60.0
TURN_S = 0.02  # of a member: how long it waits for records before it commits again


class Stream(ABC):
    """Work in a thread. ``served``: times of ``time.perf_counter``."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.bootstrap = bootstrap
        self.topic = topic
        self.served: array[float] = array("d")
        self.errors: list[str] = []
        self.over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.work()
        except BaseException as error:
            self.errors.append(f"it ended: {error!r}")

    @abstractmethod
    def work(self) -> None:
        """Until ``over`` is set; then finish what was begun."""

    def note(self) -> None:
        self.served.append(time.perf_counter())

    def stop(self) -> None:
        """End it; what was begun is finished first."""
        self.over.set()
        self._thread.join(STOP_WITHIN_S)
        if self._thread.is_alive():
            self.errors.append(f"it does not end within {STOP_WITHIN_S:g} s")

    def served_since(self, moment: float) -> int:
        """How often it was served after a moment."""
        return len(self.served) - bisect_right(self.served, moment)

    def longest_pause_since(self, moment: float) -> float:
        """Seconds between two consecutive times that it was served, the second of which came after a moment."""
        after = bisect_right(self.served, moment)
        assert 0 < after < len(self.served), f"{after} times before, {len(self.served) - after} times after"
        return max(self.served[each] - self.served[each - 1] for each in range(after, len(self.served)))


class Producing(Stream):
    """``offsets``: where each record was acknowledged, by its number."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.sent = 0
        self.offsets: dict[int, int] = {}
        super().__init__(bootstrap, topic)

    def settled(self, number: int, offset: int | None, error: object = None) -> None:
        if offset is None:
            self.errors.append(f"record {number}: {error}")
        else:
            self.offsets[number] = offset
            self.note()

    def next(self) -> tuple[int, bytes]:
        self.sent += 1
        return self.sent - 1, b"%d" % (self.sent - 1)


class Grouped(Stream):
    """``numbers``: what it has read, in order."""

    def __init__(self, bootstrap: str, topic: str, group: str) -> None:
        self.group = group
        self.numbers: list[int] = []
        super().__init__(bootstrap, topic)


# ------------------------------------------------------------------ confluent-kafka


class ConfluentProducing(Producing):
    def work(self) -> None:
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": self.bootstrap, "enable.idempotence": True, "log_level": 0})
        while not self.over.is_set():
            number, value = self.next()

            def delivered(error: Any, message: Any, number: int = number) -> None:
                self.settled(number, None if error is not None else message.offset(), error)

            producer.produce(self.topic, value, partition=0, on_delivery=delivered)
            producer.poll(1 / RATE_PER_SECOND)
        left = producer.flush(STOP_WITHIN_S)
        if left:
            self.errors.append(f"{left} records were never settled")


class ConfluentGrouped(Grouped):
    def work(self) -> None:
        from confluent_kafka import Consumer, KafkaException, TopicPartition

        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": self.group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        consumer.subscribe([self.topic])
        with closing(consumer):
            while not self.over.is_set():
                for message in consumer.consume(500, TURN_S):
                    if message.error() is not None:
                        self.errors.append(str(message.error()))
                    else:
                        self.numbers.append(int(message.value()))
                if not self.numbers:
                    continue
                at = TopicPartition(self.topic, 0, len(self.numbers))
                try:
                    (found,) = consumer.commit(offsets=[at], asynchronous=False)
                    if found.error is not None:
                        raise KafkaException(found.error)
                except KafkaException as error:
                    self.errors.append(f"commit: {error}")
                else:
                    self.note()


# ------------------------------------------------------------------ kafka-python


class KafkaPythonProducing(Producing):
    def work(self) -> None:
        from kafka import KafkaProducer

        servers = self.bootstrap.split(",")
        with closing(KafkaProducer(bootstrap_servers=servers, enable_idempotence=True)) as producer:
            sent = []
            while not self.over.is_set():
                number, value = self.next()
                future = producer.send(self.topic, value, partition=0)
                future.add_callback(lambda found, number=number: self.settled(number, found.offset))
                future.add_errback(lambda error, number=number: self.settled(number, None, repr(error)))
                sent = [each for each in sent if not each.is_done] + [future]
                self.over.wait(1 / RATE_PER_SECOND)
            producer.flush(STOP_WITHIN_S)
            if any(not each.is_done for each in sent):
                self.errors.append("some records were never settled")


class KafkaPythonGrouped(Grouped):
    def work(self) -> None:
        from kafka import KafkaConsumer, OffsetAndMetadata, TopicPartition
        from kafka.errors import KafkaError

        consumer = KafkaConsumer(
            self.topic,
            bootstrap_servers=self.bootstrap.split(","),
            group_id=self.group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        with closing(consumer):
            while not self.over.is_set():
                for records in consumer.poll(int(TURN_S * 1_000)).values():
                    self.numbers += [int(record.value) for record in records]
                if not self.numbers:
                    continue
                try:
                    consumer.commit({TopicPartition(self.topic, 0): OffsetAndMetadata(len(self.numbers), "", -1)})
                except KafkaError as error:
                    self.errors.append(f"commit: {error!r}")
                else:
                    self.note()


# ------------------------------------------------------------------ aiokafka


class AioKafkaProducing(Producing):
    def work(self) -> None:
        asyncio.run(self._work())

    async def _work(self) -> None:
        from aiokafka import AIOKafkaProducer

        producer = AIOKafkaProducer(bootstrap_servers=self.bootstrap, enable_idempotence=True)
        await producer.start()
        sent: set[asyncio.Future[Any]] = set()
        try:
            while not self.over.is_set():
                number, value = self.next()
                future = await producer.send(self.topic, value, partition=0)
                sent.add(future)

                def delivered(future: asyncio.Future[Any], number: int = number) -> None:
                    sent.discard(future)
                    error = future.exception()
                    self.settled(number, None if error is not None else future.result().offset, repr(error))

                future.add_done_callback(delivered)
                await asyncio.sleep(1 / RATE_PER_SECOND)
            async with asyncio.timeout(STOP_WITHIN_S):
                await producer.flush()
        finally:
            await producer.stop()


class AioKafkaGrouped(Grouped):
    def work(self) -> None:
        asyncio.run(self._work())

    async def _work(self) -> None:
        from aiokafka import AIOKafkaConsumer, TopicPartition
        from aiokafka.errors import KafkaError

        consumer = AIOKafkaConsumer(
            self.topic,
            bootstrap_servers=self.bootstrap,
            group_id=self.group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        await consumer.start()
        try:
            while not self.over.is_set():
                for records in (await consumer.getmany(timeout_ms=int(TURN_S * 1_000))).values():
                    self.numbers += [int(record.value) for record in records]
                if not self.numbers:
                    continue
                try:
                    await consumer.commit({TopicPartition(self.topic, 0): len(self.numbers)})
                except KafkaError as error:
                    self.errors.append(f"commit: {error!r}")
                else:
                    self.note()
        finally:
            await consumer.stop()


@dataclass(frozen=True, slots=True)
class Library:
    """How to make its streams."""

    producing: Callable[[str, str], Producing]
    grouped: Callable[[str, str, str], Grouped]


LIBRARIES = {
    "confluent-kafka": Library(ConfluentProducing, ConfluentGrouped),
    "kafka-python": Library(KafkaPythonProducing, KafkaPythonGrouped),
    "aiokafka": Library(AioKafkaProducing, AioKafkaGrouped),
}
