"""Members of consumer groups that poll in threads of their own: kafka-python's and aiokafka's behind one face.

``owned`` is what a member has, ``given`` and ``taken`` what its rebalance listener was told, ``values`` what it has read. Work on the
consumer is done on its thread, between two polls.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any

import aiokafka
import aiokafka.abc
import kafka
from aiokafka.coordinator.assignors.range import RangePartitionAssignor as AioRange
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor as AioRoundRobin
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor as AioSticky
from kafka.consumer.subscription_state import ConsumerRebalanceListener
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

PATIENCE_S = 120.0
POLL_MS = 50


def numbers_of(partitions: Iterable[Any]) -> set[int]:
    return {each.partition for each in partitions}


class Member(ABC):
    """``assignor``: its class of this client. Everything else is the client's own settings."""

    def __init__(self, bootstrap: str, group: str, topic: str, *, assignor: str = "range", **config: Any) -> None:
        self.topic = topic
        self.settings: dict[str, Any] = {
            "bootstrap_servers": bootstrap.split(","),
            "group_id": group,
            "auto_offset_reset": "earliest",
            "enable_auto_commit": False,
            "heartbeat_interval_ms": 200,
            "session_timeout_ms": 60_000,
            "partition_assignment_strategy": [self.assignors()[assignor]],
        } | config
        self.owned: set[int] = set()
        self.given: list[set[int]] = []
        self.taken: list[set[int]] = []
        self.values: list[bytes] = []
        self.failure: BaseException | None = None
        self._orders: queue.SimpleQueue[tuple[Callable[[Any], Any], Future[Any]]] = queue.SimpleQueue()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    @staticmethod
    @abstractmethod
    def assignors() -> dict[str, Any]:
        """The assignors of this client by the names that they have in the protocol."""

    @abstractmethod
    def _run(self) -> None: ...

    def _work(self) -> None:
        try:
            self._run()
        except BaseException as error:
            self.failure = error

    def _take(self, found: dict[Any, list[Any]]) -> None:
        self.values += [record.value for records in found.values() for record in records]

    def orders(self) -> list[tuple[Callable[[Any], Any], Future[Any]]]:
        return [self._orders.get() for _ in range(self._orders.qsize())]

    def ask(self, work: Callable[[Any], Any]) -> Any:
        """What that comes to, given the consumer, on the member's thread. Of aiokafka's it may be awaited there."""
        done: Future[Any] = Future()
        self._orders.put((work, done))
        return done.result(PATIENCE_S)

    @abstractmethod
    def commit(self, partition: int, offset: int, metadata: str = "") -> None: ...

    @abstractmethod
    def committed(self, partition: int) -> int | None: ...

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        if self.failure is not None:
            raise self.failure


class KafkaPythonMember(Member):
    @staticmethod
    def assignors() -> dict[str, Any]:
        return {
            "range": RangePartitionAssignor,
            "roundrobin": RoundRobinPartitionAssignor,
            "sticky": StickyPartitionAssignor,
            "cooperative-sticky": CooperativeStickyAssignor,
        }

    def _run(self) -> None:
        member = self

        class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
            def on_partitions_revoked(self, revoked: Any) -> None:
                member.taken.append(numbers_of(revoked))

            def on_partitions_assigned(self, assigned: Any) -> None:
                member.given.append(numbers_of(assigned))

        consumer = kafka.KafkaConsumer(**self.settings)
        try:
            consumer.subscribe([self.topic], listener=Listener())
            while not self._over.is_set():
                self._take(consumer.poll(POLL_MS))
                self.owned = numbers_of(consumer.assignment())
                for work, done in self.orders():
                    try:
                        done.set_result(work(consumer))
                    except Exception as error:
                        done.set_exception(error)
        finally:
            consumer.close()

    def commit(self, partition: int, offset: int, metadata: str = "") -> None:
        place = {kafka.TopicPartition(self.topic, partition): kafka.OffsetAndMetadata(offset, metadata, -1)}
        self.ask(lambda consumer: consumer.commit(place))

    def committed(self, partition: int) -> int | None:
        found: int | None = self.ask(lambda consumer: consumer.committed(kafka.TopicPartition(self.topic, partition)))
        return found


class AioKafkaMember(Member):
    @staticmethod
    def assignors() -> dict[str, Any]:
        return {"range": AioRange, "roundrobin": AioRoundRobin, "sticky": AioSticky}

    def _run(self) -> None:
        asyncio.run(self._consume())

    async def _consume(self) -> None:
        member = self

        class Listener(aiokafka.abc.ConsumerRebalanceListener):  # type: ignore[misc]
            def on_partitions_revoked(self, revoked: Any) -> None:
                member.taken.append(numbers_of(revoked))

            def on_partitions_assigned(self, assigned: Any) -> None:
                member.given.append(numbers_of(assigned))

        consumer = aiokafka.AIOKafkaConsumer(**self.settings)
        consumer.subscribe([self.topic], listener=Listener())
        await consumer.start()
        try:
            while not self._over.is_set():
                self._take(await consumer.getmany(timeout_ms=POLL_MS))
                self.owned = numbers_of(consumer.assignment())
                for work, done in self.orders():
                    try:
                        done.set_result(await work(consumer))
                    except Exception as error:
                        done.set_exception(error)
        finally:
            await consumer.stop()

    def commit(self, partition: int, offset: int, metadata: str = "") -> None:
        place = {aiokafka.TopicPartition(self.topic, partition): (offset, metadata)}
        self.ask(lambda consumer: consumer.commit(place))

    def committed(self, partition: int) -> int | None:
        found: int | None = self.ask(
            lambda consumer: consumer.committed(aiokafka.TopicPartition(self.topic, partition))
        )
        return found


CLIENTS: dict[str, type[Member]] = {"kafka-python": KafkaPythonMember, "aiokafka": AioKafkaMember}
