"""Users of the production clients, each a process of a simulated cluster with an event loop of its
own.

A ``Writer`` sends numbered records to the partitions of a topic through one ``AsyncProducer``. A
``PartitionReader`` follows all of them through one ``AsyncConsumer``; a ``GroupReader`` shares them
with others and commits. They do what users do, and tell the checker (``client_checker``) all that
they are told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

from raylog.client.consumer.consumer import AsyncConsumer
from raylog.client.groups.member import MembershipState
from raylog.client.groups.offset_commits import Offsets
from raylog.client.producer.deliveries import RecordMetadata
from raylog.client.producer.producer import AsyncProducer
from raylog.errors import ClientTimeoutError, ClusterError, RaylogError
from raylog.records.record import Record
from raylog.simulator.client_checker import Sent
from raylog.simulator.processes import Process
from raylog.simulator.simulated_loop import loop_of
from raylog.types import TopicIdPartition, TopicPartition

if TYPE_CHECKING:
    from raylog.simulator.simulated_clients import ClientSimulation

POLL_S = 1.0
HURRIED_REST_US = 1_000


class NativeClient(Process):
    def __init__(self, name: str, simulation: ClientSimulation, topic: str) -> None:
        super().__init__(name, simulation.client_machine)
        self.simulation = simulation
        self.topic = topic
        self.checker = simulation.client_checker
        self.loop = loop_of(self, simulation.network)
        self.is_over = False
        self.later(1, lambda: self.begin(self._live()), f"{name} starts")

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Go on with it until it ends; what it raises breaks the run."""
        self.loop.run(lambda: self.loop.create_task(work).add_done_callback(_raise))

    async def _live(self) -> None:
        raise NotImplementedError

    def on_end(self) -> None:
        self.loop.abandon()

    async def rest(self, typical_us: int) -> None:
        """As long as day or night have it; hardly at all once there is nothing to do but to read
        what is left.
        """
        if self.simulation.is_finishing:
            typical_us = min(typical_us, HURRIED_REST_US)
        rested = self.loop.create_future()

        def over() -> None:
            self.loop.run(lambda: rested.set_result(None))

        self.simulation.rhythm.later(self.later, typical_us, over, f"{self.name} rests")
        await rested

    def id_of(self, partition: int) -> TopicIdPartition:
        return next(id for id in self.simulation.partition_ids if id.partition == partition)


def _raise(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.result()


class Writer(NativeClient):
    """Goes on until ``finish``; then it has ``unsettled`` records until all are settled."""

    def __init__(self, name: str, simulation: ClientSimulation, topic: str) -> None:
        rng = simulation.scheduler.rng
        request_timeout_ms = rng.choice((2_000, 30_000)) * simulation.calm
        self.is_impatient = rng.random() < 0.4
        linger_ms = rng.choice((0, 0, 5, 50))
        self._options = {
            "linger_ms": linger_ms,
            "batch_size": rng.choice((200, 1_000, 1 << 20)),
            "request_timeout_ms": request_timeout_ms,
            "delivery_timeout_ms": linger_ms + request_timeout_ms if self.is_impatient else 10_000_000,
            "max_block_ms": 1_000_000,
            "max_in_flight_requests_per_connection": rng.choice((1, 5, 5)),
            "retries": rng.choice((1, 3)) if self.is_impatient else (1 << 31) - 1,
            "reconnect_backoff_max_ms": 500,
            "metadata_max_age_ms": rng.choice((2_000, 300_000)),
        }
        self._pace_us = rng.choice((5_000, 30_000, 100_000))
        self._is_finishing = False
        self.is_done_sending = False
        self.unsettled = 0
        super().__init__(name, simulation, topic)

    @property
    def is_settled(self) -> bool:
        return self.is_done_sending and not self.unsettled

    def finish(self) -> None:
        self._is_finishing = True

    async def _live(self) -> None:
        rng = self.scheduler.rng
        producer = AsyncProducer(self.simulation.address, self._options)
        while not self._is_finishing:
            for _ in range(rng.choice((1, 1, 3, 10))):
                if self.unsettled < 300:
                    await self._send(producer, rng.choice(self.simulation.partition_ids))
            await self.rest(self._pace_us)
        for id in self.simulation.partition_ids:  # whatever became of others, one gets through
            while not await self._gets_through(producer, id):
                await self.rest(self._pace_us)
        self.simulation.counts["batches that were retried"] += producer._opened().sender.retries
        self.is_done_sending = True

    async def _gets_through(self, producer: AsyncProducer, id: TopicIdPartition) -> bool:
        await self._send(producer, id)
        await producer.flush()
        sent = self.checker.sent[self.name, id.partition]
        return sent.count - 1 in sent.acknowledged

    async def _send(self, producer: AsyncProducer, id: TopicIdPartition) -> None:
        sent = self.checker.sent.setdefault((self.name, id.partition), Sent())
        number, sent.count = sent.count, sent.count + 1
        value = f"{self.name}:{number}:".encode() + b"." * self.scheduler.between(0, 60)
        settled = partial(self._settled, id, number)
        self.unsettled += 1
        try:
            await producer.send(self.topic, value, partition=id.partition, on_delivery=settled)
        except RaylogError as error:  # it was not taken
            self._settled(id, number, None, error)

    def _settled(
        self, id: TopicIdPartition, number: int, metadata: RecordMetadata | None, error: RaylogError | None
    ) -> None:
        self.unsettled -= 1
        self.simulation.trace(f"{self.name}: {id.partition}/{number} {metadata and metadata.offset} {error}")
        if metadata is not None:
            self.checker.acknowledged(id, self.name, number, metadata.offset)
            return
        self.simulation.counts["sends that failed"] += 1


class PartitionReader(NativeClient):
    """Reads every partition from its first record on."""

    def __init__(self, name: str, simulation: ClientSimulation, topic: str) -> None:
        rng = simulation.scheduler.rng
        self.options = {
            "auto_offset_reset": "earliest",
            "request_timeout_ms": rng.choice((2_000, 30_000)) * simulation.calm,
            "default_api_timeout_ms": 60_000 * simulation.calm,
            "max_partition_fetch_bytes": rng.choice((300, 1 << 20)),
            "reconnect_backoff_max_ms": 500,
            "metadata_max_age_ms": rng.choice((2_000, 300_000)),
        }
        self._pace_us = rng.choice((1_000, 20_000, 200_000))
        self.next_offsets: dict[int, int] = {}
        super().__init__(name, simulation, topic)

    def behind(self, ends: dict[int, int]) -> str | None:
        for partition, end in ends.items():
            if (offset := self.next_offsets.get(partition, 0)) < end:
                return f"{self.name} has read {offset} of {end} records of partition {partition}"
        return None

    async def _live(self) -> None:
        try:
            await self.read()
        except (ClusterError, ClientTimeoutError) as error:  # a user would begin anew
            self.simulation.trace(f"{self.name} fails: {error}")
            self.simulation.counts["consumers that failed"] += 1
            self.is_over = True
            self.kill()
            self.simulation.reader_failed(self)

    async def read(self) -> None:
        """For ever, or until it is told to leave. Raises what polls raise."""
        consumer = AsyncConsumer(self.simulation.address, self.options)
        while True:
            assigned = [TopicPartition(self.topic, id.partition) for id in self.simulation.partition_ids]
            if assigned != consumer.assignment():
                consumer.assign(assigned)
            for record in await self.consume(consumer):
                self.take(record)
            await self.rest(self._pace_us)

    async def consume(self, consumer: AsyncConsumer) -> list[Record]:
        return await consumer.consume(self.scheduler.rng.choice((1, 10, 500)), POLL_S)

    def take(self, record: Record) -> None:
        expected = self.next_offsets.get(record.partition, 0)
        assert record.value is not None, record
        self.checker.read(self.id_of(record.partition), self.name, expected, record.offset, record.value)
        self.next_offsets[record.partition] = record.offset + 1


class GroupReader(PartitionReader):
    """A member of a group, which works on what it reads, and commits after that. ``leave`` is the
    orderly end, ``kill`` a crash.
    """

    def __init__(self, name: str, simulation: ClientSimulation, topic: str, group_id: str) -> None:
        super().__init__(name, simulation, topic)
        rng = simulation.scheduler.rng
        self.options |= {
            "group_id": group_id,
            "session_timeout_ms": 6_000 * simulation.calm,
            "heartbeat_interval_ms": 1_500 * simulation.calm,
            "max_poll_interval_ms": 8_000 * simulation.calm,
            "partition_assignment_strategy": simulation.group_strategy,
        }
        self._commits_automatically = rng.random() < 0.3
        self.options |= {
            "enable_auto_commit": self._commits_automatically,
            "auto_commit_interval_ms": 500,
        }
        self._floors: dict[int, int] = {}  # by partition that is assigned: what was committed before
        self._is_leaving = False

    def leave(self) -> None:
        self._is_leaving = True

    def _assigned(self, consumer: AsyncConsumer, keys: list[TopicPartition]) -> None:
        for key in keys:
            self.next_offsets.pop(key.partition, None)
            self._floors[key.partition] = self.checker.committed.get(key.partition, 0)
        member = consumer._opened().membership("assignment")._member
        if member.state is MembershipState.STABLE:  # else its generation is one that may never have a plan
            self.checker.assigned(self.name, member.generation, [key.partition for key in consumer.assignment()])

    def _revoked(self, keys: list[TopicPartition]) -> None:
        for key in keys:
            self._floors.pop(key.partition, None)
            self.next_offsets.pop(key.partition, None)

    async def read(self) -> None:
        consumer = AsyncConsumer(self.simulation.address, self.options)
        consumer.subscribe(
            [self.topic],
            on_assigned=partial(self._assigned, consumer),
            on_revoked=self._revoked,
            on_lost=self._revoked,
        )
        self._watch_commits(consumer)
        while not self._is_leaving:
            for record in await self.consume(consumer):
                self.take(record)
            if not self._commits_automatically and self.scheduler.chance(0.5):
                await self._commit(consumer)
            await self.rest(self._pace_us)
        self.is_over = True
        await consumer.close()
        self.kill()

    def take(self, record: Record) -> None:
        id = self.id_of(record.partition)
        if record.partition not in self.next_offsets:
            self.checker.taken_over(id, self.name, record.offset, self._floors.get(record.partition))
            self.next_offsets[record.partition] = record.offset
        super().take(record)
        self.checker.worked_on(id, self.name, record.offset)

    async def _commit(self, consumer: AsyncConsumer) -> None:
        try:
            await consumer.commit()
        except RaylogError as error:
            self.simulation.trace(f"{self.name} cannot commit: {error}")
            self.simulation.counts["commits of clients that failed"] += 1

    def _watch_commits(self, consumer: AsyncConsumer) -> None:
        """Tell the checker of every commit that is acknowledged, also of those that the consumer
        makes by itself.
        """
        commits = consumer._opened().membership("commits").commits
        commit = commits.commit

        async def watched(offsets: Offsets, timeout_ms: float) -> None:
            before, newest = consumer.group_metadata().generation, self.checker.newest_generation
            await commit(offsets, timeout_ms)
            generation = max(before, consumer.group_metadata().generation)  # it was sent in one of the two, or between
            read = {self.id_of(key.partition): value.offset for key, value in offsets.items()}
            if offsets:  # else nobody was asked
                self.checker.commit_acknowledged(self.name, generation, newest, read)

        commits.commit = watched  # type: ignore[method-assign]
