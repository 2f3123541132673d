"""Kafka clients of a simulated cluster: they speak Kafka's protocol with the listeners of its
Brokers, and nothing else.

Each is a process with an event loop of its own (``simulated_loop``), as simple as a client may be,
so that what it is told can be judged by the checker of the native ones (``client_checker``):

- ``KafkaWriter``: an idempotent producer that has one request under way, for one partition or
  several.
- ``KafkaReader``: a consumer with an incremental fetch session at each broker (KIP-227).
- ``KafkaCommitter``: commits offsets of a group of its own, and asks for them again.

They find leaders and coordinators as every Kafka client does, by Metadata and FindCoordinator from
any Broker.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode
from kio.schema.fetch.v12.request import ForgottenTopic
from kio.schema.find_coordinator.v3.request import FindCoordinatorRequest
from kio.schema.types import TopicName
from kio.static.primitive import i8, i32

from raylog.client.groups import requests as group_requests
from raylog.client.links import requests
from raylog.errors import RaylogError
from raylog.groups.requests import CommittedPartition
from raylog.records.batch import batches
from raylog.records.codec import encode_values, light_records
from raylog.simulator.client_checker import Sent
from raylog.simulator.native_clients import NativeClient
from raylog.types import NO_LEADER, Endpoint, TopicPartition
from raylog.wire.connection import Connection

if TYPE_CHECKING:
    from raylog.simulator.simulated_clients import ClientSimulation

REST_US = 50_000
WAIT_MS = 100  # how long a Fetch waits for records
NOWHERE = Endpoint("clients", 0)  # where nobody listens
NO_GENERATION = -1
GROUP_KEY = i8(0)
UNKNOWN_OFFSET = -1
RETRIABLE = frozenset(
    (
        ErrorCode.not_leader_or_follower,
        ErrorCode.leader_not_available,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.request_timed_out,
        ErrorCode.not_enough_replicas,
        ErrorCode.not_enough_replicas_after_append,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.unknown_leader_epoch,
        ErrorCode.kafka_storage_error,
        ErrorCode.offset_not_available,
        ErrorCode.coordinator_not_available,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.not_coordinator,
        ErrorCode.network_exception,
    )
)


class KafkaClient(NativeClient):
    """Knows the brokers and leaders that the last Metadata named. ``leaders`` is by partition."""

    def __init__(self, name: str, simulation: ClientSimulation, topic: str) -> None:
        self.timeout_ms = simulation.scheduler.rng.choice((2_000, 30_000)) * simulation.calm
        self.brokers: dict[int, Endpoint] = {}
        self.leaders: dict[int, int] = {}
        self._connections: dict[Endpoint, Connection] = {}
        super().__init__(name, simulation, topic)

    def any_broker(self) -> Endpoint:
        """One of those that it knows, or where a user would tell it to begin."""
        known = [*self.brokers.values(), *self.simulation.kafka_listeners.values()]
        return self.scheduler.rng.choice(known) if known else NOWHERE

    async def ask(self, endpoint: Endpoint, entity: Any, *, wait_ms: float = 0) -> Any:
        """The reply. Raises RaylogError if none comes; a connection that was silent is given up, as
        clients do.
        """
        connection = self._connections.get(endpoint)
        if connection is None or not connection.is_open:
            connection = self._connections[endpoint] = await Connection.open(
                endpoint, secret=None, cluster_id="", client_id=self.name, timeout_ms=self.timeout_ms
            )
        try:
            return await connection.request(entity, timeout_ms=self.timeout_ms + wait_ms)
        except RaylogError:
            connection.abort()
            raise

    async def refresh(self) -> None:
        """Ask any Broker until one answers."""
        while True:
            endpoint = self.any_broker()
            try:
                reply = await self.ask(endpoint, requests.metadata([self.topic]))
            except RaylogError as error:
                self.simulation.trace(f"{self.name} gets no metadata from {endpoint}: {error}")
                await self.rest(REST_US)
                continue
            self.simulation.counts["metadata that a Broker gave"] += 1
            self.brokers = {int(each.node_id): Endpoint(each.host, each.port) for each in reply.brokers}
            (topic,) = reply.topics
            self.leaders = {int(each.partition_index): int(each.leader_id) for each in topic.partitions}
            return

    def leader(self, partition: int) -> Endpoint | None:
        return self.brokers.get(self.leaders.get(partition, NO_LEADER))


@dataclass(slots=True)
class _Batch:
    """Records of one partition, whose fate is not known yet. ``first``: the number of the first."""

    partition: int
    first: int
    count: int
    producer_id: int
    sequence: int
    data: bytearray


class KafkaWriter(KafkaClient):
    """Goes on until ``finish``; what it then has under way it sends until it is acknowledged."""

    def __init__(self, name: str, simulation: ClientSimulation, topic: str) -> None:
        self.unsettled = 0
        self.is_settled = False
        self._is_finishing = False
        self._pace_us = simulation.scheduler.rng.choice((5_000, 30_000, 100_000))
        self._producers: dict[int, tuple[int, int]] = {}  # by partition: producer id, next sequence
        super().__init__(name, simulation, topic)

    def finish(self) -> None:
        self._is_finishing = True

    async def _live(self) -> None:
        await self.refresh()
        while not self._is_finishing:
            await self._send(self._chosen())
            await self.rest(self._pace_us)
        await self._send([id.partition for id in self.simulation.partition_ids])
        self.is_settled = True

    def _chosen(self) -> list[int]:
        """A partition, or all of them in one request: what its receiver doesn't lead is refused."""
        numbers = [id.partition for id in self.simulation.partition_ids]
        self.scheduler.rng.shuffle(numbers)
        return numbers[: self.scheduler.rng.choice((1, 1, len(numbers)))]

    async def _send(self, partitions: list[int]) -> None:
        """A batch for each partition in one request, then each of them until its fate is known."""
        batches = [await self._batch(partition) for partition in partitions]
        answers = await self._ask_leader(batches)
        for batch in batches:
            answer = answers.get(batch.partition)
            while not self._is_settled(batch, answer):
                await self.rest(REST_US)
                await self.refresh()
                answer = (await self._ask_leader([batch])).get(batch.partition)

    async def _batch(self, partition: int) -> _Batch:
        sent = self.checker.sent.setdefault((self.name, partition), Sent())
        count = self.scheduler.rng.choice((1, 1, 3))
        first, sent.count = sent.count, sent.count + count
        self.unsettled += count
        padding = b"." * self.scheduler.between(0, 60)
        if self._is_finishing or self.scheduler.chance(0.02):
            self._producers.pop(partition, None)  # as a producer does that is started again
        producer_id, sequence = self._producers.get(partition) or (await self._new_producer_id(), 0)
        data = encode_values(
            [f"{self.name}:{number}:".encode() + padding for number in range(first, first + count)],
            timestamp_ms=self.machine.wall_ms(),
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=sequence,
        )
        return _Batch(partition, first, count, producer_id, sequence, data)

    async def _new_producer_id(self) -> int:
        while True:
            try:
                reply = await self.ask(self.any_broker(), requests.init_producer_id())
            except RaylogError:
                await self.rest(REST_US)
                continue
            if reply.error_code is ErrorCode.none:
                self.simulation.producer_id_assigned(int(reply.producer_id))
                return int(reply.producer_id)
            await self.rest(REST_US)

    async def _ask_leader(self, batches: list[_Batch]) -> dict[int, Any]:
        """The answers by partition; empty if none came."""
        data = {TopicPartition(self.topic, batch.partition): batch.data for batch in batches}
        endpoint = self.leader(batches[0].partition)
        if endpoint is None:
            return {}
        try:
            reply = await self.ask(endpoint, requests.produce(data, acks=-1, timeout_ms=self.timeout_ms))
        except RaylogError as error:
            self.simulation.trace(f"{self.name}: {error}")
            return {}
        self.simulation.counts["batches that a Kafka client sent with others"] += len(batches) > 1
        return {int(each.index): each for topic in reply.responses for each in topic.partition_responses}

    def _is_settled(self, batch: _Batch, answer: Any | None) -> bool:
        code = answer.error_code if answer is not None else ErrorCode.network_exception
        if answer is not None and code in (ErrorCode.none, ErrorCode.duplicate_sequence_number):
            self._producers[batch.partition] = batch.producer_id, batch.sequence + batch.count
            self._acknowledged(batch, int(answer.base_offset) if code is ErrorCode.none else UNKNOWN_OFFSET)
        elif code in (ErrorCode.out_of_order_sequence_number, ErrorCode.unknown_producer_id):
            self._forgotten(batch, code)
        else:
            assert code in RETRIABLE, f"{self.name} is told {code!r}"
            self.simulation.counts["batches that a Kafka client sent again"] += 1
            return False
        self.unsettled -= batch.count
        return True

    def _acknowledged(self, batch: _Batch, offset: int) -> None:
        for place in range(batch.count):
            at = offset + place if offset >= 0 else offset
            self.checker.acknowledged(self.id_of(batch.partition), self.name, batch.first + place, at)

    def _forgotten(self, batch: _Batch, code: ErrorCode) -> None:
        """The leader does not know this producer any more: only what was lost excuses that."""
        history = self.simulation.checkers.history(self.id_of(batch.partition))
        if not history.generation:
            raise history.fail(f"{self.name} is told {code!r}, though no record was lost")
        self._producers.pop(batch.partition, None)
        self.simulation.counts["batches whose fate a Kafka client does not know"] += 1


class KafkaReader(KafkaClient):
    """Reads every partition from its first record on, through one fetch session for each broker."""

    def __init__(self, name: str, simulation: ClientSimulation, topic: str) -> None:
        self._pace_us = simulation.scheduler.rng.choice((1_000, 20_000, 200_000))
        self._max_bytes = simulation.scheduler.rng.choice((300, 1 << 20))
        self.next_offsets: dict[int, int] = {}
        self._sessions: dict[int, _Session] = {}
        super().__init__(name, simulation, topic)

    def behind(self, ends: dict[int, int]) -> str | None:
        for partition, end in ends.items():
            if (offset := self.next_offsets.get(partition, 0)) < end:
                return f"{self.name} has read {offset} of {end} records of partition {partition}"
        return None

    async def _live(self) -> None:
        while True:
            await self.refresh()
            if all(self.leader(id.partition) is None for id in self.simulation.partition_ids):
                await self.rest(REST_US)
            is_fresh = True
            while is_fresh:
                before = dict(self.next_offsets)
                for broker in sorted(self.brokers):
                    is_fresh = await self._read_from(broker) and is_fresh
                if self.next_offsets == before:
                    await self.rest(self._pace_us)
                is_fresh = is_fresh and not self.scheduler.chance(0.02)

    async def _read_from(self, broker: int) -> bool:
        """One fetch. False if leaders have to be looked up."""
        wanted = {
            partition: self.next_offsets.get(partition, 0)
            for partition, leader in self.leaders.items()
            if leader == broker
        }
        session = self._sessions.setdefault(broker, _Session())
        if not wanted and not session.partitions:
            return len(self.leaders) == len(self.simulation.partition_ids)
        request = session.request(self.topic, wanted, self._max_bytes)
        try:
            reply = await self.ask(self.brokers[broker], request, wait_ms=request.max_wait.total_seconds() * 1_000)
        except RaylogError as error:
            self.simulation.trace(f"{self.name}: {error}")
            session.end()
            await self.rest(REST_US)
            return False
        if reply.error_code is not ErrorCode.none:
            assert reply.error_code in SESSION_ERRORS, f"{self.name} is told {reply.error_code!r}"
            self.simulation.counts["fetch sessions that a Broker had forgotten"] += 1
            session.end()
            return True
        session.answered(int(reply.session_id))
        self.simulation.counts["fetches in a session"] += session.is_open
        parts = [part for topic in reply.responses for part in topic.partitions]
        return all([await self._take(part, wanted) for part in parts])

    async def _take(self, part: Any, wanted: dict[int, int]) -> bool:
        partition = int(part.partition_index)
        history = self.simulation.checkers.history(self.id_of(partition))
        if partition not in wanted:
            raise history.fail(f"{self.name} is given partition {partition}, which its session no longer has")
        if part.error_code is ErrorCode.offset_out_of_range:
            if not history.generation:
                raise history.fail(f"{self.name} is told that {wanted[partition]} is out of range")
            self.next_offsets[partition] = 0
            return True
        if part.error_code is not ErrorCode.none:
            assert part.error_code in RETRIABLE, f"{self.name} is told {part.error_code!r}"
            self.simulation.counts["fetches that had to look for the leader"] += 1
            return False
        expected = wanted[partition]
        for view in batches(part.records or b"", allow_partial_tail=True):
            for record in light_records(view):
                if record.offset >= expected:
                    self._taken(partition, expected, record.offset, record.value)
                    expected = record.offset + 1
        self.next_offsets[partition] = expected
        return True

    def _taken(self, partition: int, expected: int, offset: int, value: bytes | None) -> None:
        assert value is not None, offset
        self.simulation.counts["records read through listeners"] += 1
        self.checker.read(self.id_of(partition), self.name, expected, offset, value)


SESSION_ERRORS = frozenset((ErrorCode.fetch_session_id_not_found, ErrorCode.invalid_fetch_session_epoch))


class _Session:
    """The client's end of one incremental fetch session."""

    def __init__(self) -> None:
        self.session_id = 0
        self.epoch = 0
        self.partitions: dict[int, int] = {}  # what the broker has of it: the offset by partition

    @property
    def is_open(self) -> bool:
        return self.session_id != 0

    def request(self, topic: str, wanted: dict[int, int], max_bytes: int) -> Any:
        """All of ``wanted`` if the session begins; else what has changed."""
        changed = {number: offset for number, offset in wanted.items() if self.partitions.get(number) != offset}
        gone = [number for number in self.partitions if number not in wanted]
        self.partitions = dict(wanted)
        entity = requests.fetch(
            {TopicPartition(topic, number): (offset, -1) for number, offset in changed.items()},
            max_wait_ms=WAIT_MS,
            min_bytes=1,
            max_bytes=1 << 20,
            partition_max_bytes=max_bytes,
        )
        return replace(
            entity, session_id=self.session_id, session_epoch=self.epoch, forgotten_topics_data=_forgotten(topic, gone)
        )

    def answered(self, session_id: int) -> None:
        if session_id == 0:
            self.end()
        else:
            self.session_id = session_id
            self.epoch += 1

    def end(self) -> None:
        self.session_id = 0
        self.epoch = 0
        self.partitions = {}


def _forgotten(topic: str, numbers: Iterable[int]) -> tuple[Any, ...]:
    partitions = tuple(map(i32, numbers))
    return (ForgottenTopic(topic=TopicName(topic), partitions=partitions),) if partitions else ()


class KafkaCommitter(KafkaClient):
    """The only one that commits in its group, without being a member; what it is told was committed
    stays so.
    """

    def __init__(self, name: str, simulation: ClientSimulation, topic: str, group_id: str) -> None:
        self.group_id = group_id
        self._coordinator: Endpoint | None = None
        self._tried = 0  # the highest offset that it tried to commit
        self.acknowledged = 0
        self._is_finishing = False
        self.is_settled = False
        self._pace_us = simulation.scheduler.rng.choice((30_000, 200_000))
        super().__init__(name, simulation, topic)

    def finish(self) -> None:
        self._is_finishing = True

    async def _live(self) -> None:
        await self.refresh()
        while not self._is_finishing:
            if self.scheduler.chance(0.7):
                await self._commit()
            else:
                await self._look()
            await self.rest(self._pace_us)
        while not await self._commit():
            await self.rest(REST_US)
        while not await self._look():
            await self.rest(REST_US)
        self.is_settled = True

    async def _commit(self) -> bool:
        self._tried += 1
        tried = self._tried
        commit = CommittedPartition(self.topic, 0, tried, -1, "")
        reply = await self._ask_coordinator(
            group_requests.offset_commit(
                self.group_id, [commit], member_id="", instance_id=None, generation=NO_GENERATION
            )
        )
        if reply is None or await self._is_refused(reply.topics[0].partitions[0].error_code):
            return False
        self.acknowledged = tried
        self.simulation.counts["commits through listeners"] += 1
        return True

    async def _look(self) -> bool:
        acknowledged = self.acknowledged
        reply = await self._ask_coordinator(group_requests.offset_fetch(self.group_id, [TopicPartition(self.topic, 0)]))
        if reply is None or await self._is_refused(reply.error_code):
            return False
        (found,) = group_requests.fetched_offsets(reply).values()
        if await self._is_refused(ErrorCode(found.error)):
            return False
        self.simulation.counts["commits read through listeners"] += 1
        offset = max(0, found.offset)
        if not acknowledged <= offset <= self._tried and not self._may_be_lost():
            history = self.simulation.checkers.history(self.id_of(0))
            raise history.fail(f"{self.group_id} is at {offset}: {acknowledged} was acknowledged, {self._tried} tried")
        return True

    def _may_be_lost(self) -> bool:
        return any(each.generation and each.compacts for each in self.simulation.checkers.histories.values())

    async def _is_refused(self, code: ErrorCode) -> bool:
        if code is ErrorCode.none:
            return False
        assert code in RETRIABLE, f"{self.name} is told {code!r}"
        self._coordinator = None
        await self.rest(REST_US)
        return True

    async def _ask_coordinator(self, request: Any) -> Any | None:
        try:
            if self._coordinator is None:
                found = await self.ask(self.any_broker(), FindCoordinatorRequest(key=self.group_id, key_type=GROUP_KEY))
                if await self._is_refused(found.error_code):
                    return None
                self._coordinator = Endpoint(found.host, int(found.port))
            return await self.ask(self._coordinator, request)
        except RaylogError as error:
            self.simulation.trace(f"{self.name}: {error}")
            self._coordinator = None
            await self.rest(REST_US)
            return None
