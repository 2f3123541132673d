"""A simulated producer that sends what the real producer's queue says: batches that are given up,
expire, are split and begin new epochs.

The other producers of the simulator (``workload``) never give a batch up. This one has short
delivery timeouts, few retries and impatient requests, so that batches end while copies of them are
on their way, stored without an acknowledgement, or both. Some are larger than a segment and are
split; some the topic refuses for good. Its queue is production code (``PartitionQueue``).

Beside what holds for every idempotent producer (``checkers``), it demands of the cluster: a batch
whose every attempt was refused is never in the log, whatever is acknowledged is at the offset of
the acknowledgement and bears its CRC, and nobody forgets what it has acknowledged. At the end a
batch is acknowledged once more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from raylog.client.producer.partition_queue import NOT_APPENDED, PartitionQueue, ProducerIdentity
from raylog.client.producer.producer_batch import ProducerBatch
from raylog.metadata.requests import InitProducerId, ProducerIdAssigned
from raylog.records.batch import BatchView
from raylog.records.codec import encode, encode_values
from raylog.replication.events import ProducePartition, ProduceReceived, ProduceReply
from raylog.simulator.checkers import Violation
from raylog.simulator.keyed_values import is_tombstone, key_of
from raylog.simulator.processes import Machine
from raylog.simulator.queue_client import QueueClient
from raylog.simulator.workload import NONE, SEQUENCE_REFUSED, UNKNOWN_TOPIC, KnownLeader, SimulatedProducer
from raylog.types import TopicIdPartition

if TYPE_CHECKING:
    from raylog.simulator.simulation import Simulation

WAITING_MAX = 12
NO_DEADLINE = float("inf")


class QueueProducer(SimulatedProducer):
    """``producers`` of the simulation take it for one of theirs."""

    def __init__(
        self,
        name: str,
        simulation: Simulation,
        machine: Machine,
        *,
        topic: str,
        id: TopicIdPartition,
        interval_us: int,
        compacts: bool,
    ) -> None:
        super().__init__(
            name,
            simulation,
            machine,
            topic=topic,
            id=id,
            acks=-1,
            idempotent=True,
            interval_us=interval_us,
            compacts=compacts,
        )
        rng = self.scheduler.rng
        self._queue = PartitionQueue(topic, id.partition, max_in_flight=5, retries=rng.choice((0, 2, 1_000)))
        self._client = QueueClient(self._queue)
        self._delivery_timeout_ms = rng.choice((500, 2_000, 10_000))
        self._request_timeout_ms = rng.choice((200, 1_000, 3_000))
        self._first_values: dict[tuple[int, ...], int] = {}  # of the batches that are not done, by serial
        self._last: ProducerBatch | None = None
        self._newest_epoch = -1
        self._expire_later()

    @property
    def is_idle(self) -> bool:
        return self.gone or (self._queue.idle and (self._last is None or self._last.done))

    def produce_last(self) -> None:
        self._delivery_timeout_ms = 1_000_000_000
        self._request_timeout_ms = 3_000
        self._queue.retries = 1_000_000
        super().produce_last()
        self._last = self._queue.pending[-1] if self._queue.pending else None

    def partition_is_gone(self) -> None:
        super().partition_is_gone()
        self._queue.pending.clear()
        self._queue.in_flight.clear()

    # ---------------------------------------------------------------- making batches

    def _make_batch(self) -> None:
        if len(self._queue.pending) >= WAITING_MAX and self.producing:
            return
        rng = self.scheduler.rng
        count = rng.choice((1, 2, 4, 4, 12)) if self.producing else 1
        is_keyless = self.compacts and self.producing and self.scheduler.chance(0.03)
        first = self.ledger.sent
        self.ledger.sent += count
        data = self._encode(first, count, is_keyless)
        now_ms = self.scheduler.now_ms
        batch = ProducerBatch.of_bytes(
            self.topic,
            self.id.partition,
            data,
            count,
            created_ms=now_ms,
            deadline_ms=now_ms + self._delivery_timeout_ms,
            compression=0,
        )
        self._client.add(batch)
        self._first_values[batch.serial] = first

    def _encode(self, first: int, count: int, is_keyless: bool) -> bytearray:
        now_ms = self.machine.wall_ms()
        values = [(number, self._value(number)) for number in range(first, first + count)]
        if not self.compacts or is_keyless:
            return bytearray(encode_values([value for _, value in values], timestamp_ms=now_ms))
        rows = [(now_ms, key_of(number), None if is_tombstone(number) else value, ()) for number, value in values]
        return bytearray(encode(rows))

    # ---------------------------------------------------------------- sending

    def _send(self) -> None:
        if self.gone:
            return
        if self._client.lacks_identity:
            self._get_id()
            return
        if self.leader is None:
            if self._queue.pending:
                self.find_leader(self.topic, self.id, newer_than=-1)
            return
        while (batch := self._client.take(self.scheduler.now_ms)) is not None:
            self._send_batch(batch, self.leader)

    def _send_batch(self, batch: ProducerBatch, leader: KnownLeader) -> None:
        data = bytes(batch.stamped_bytes())
        generation = self.checkers.history(self.id).generation
        request = ProduceReceived(0, -1, 1_500, (ProducePartition(self.id, data),))
        crc = BatchView(data).crc
        self.ask(
            leader.endpoint,
            request,
            lambda reply: self._settle(batch, crc, generation, leader, reply),
            timeout_ms=self._request_timeout_ms,
        )

    def leader_found(self) -> None:
        """As the real client does it takes no leader that is older than one it knows."""
        if self.leader is not None and self.leader.epoch < self._newest_epoch:
            self.leader = None
            self.later(100_000, self._send, f"{self.name} has heard of a newer leader")
            return
        if self.leader is not None:
            self._newest_epoch = self.leader.epoch
        self._send()

    def _got_id(self, reply: object | None) -> None:
        self._getting_id = False
        if isinstance(reply, ProducerIdAssigned) and not reply.error:
            self.simulation.producer_id_assigned(reply.producer_id)
            self._client.identity = ProducerIdentity(reply.producer_id, reply.producer_epoch)
            self._send()
        else:
            self.later(self.scheduler.between(10_000, 200_000), self._send, f"{self.name} asks for an id again")

    def _get_id(self) -> None:
        if not self._getting_id:
            self._getting_id = True
            self.ask_controller(InitProducerId(), self._got_id)

    # ---------------------------------------------------------------- what became of it

    def _settle(
        self, batch: ProducerBatch, crc: int, generation: int, leader: KnownLeader, reply: object | None
    ) -> None:
        if self.gone or batch not in self._queue.in_flight:
            return
        error, offset = ErrorCode.network_exception, -1
        if reply is not None:
            assert isinstance(reply, ProduceReply), reply
            error, offset = ErrorCode(reply.partitions[0].error), reply.partitions[0].base_offset
        self.simulation.trace(f"{self.name}: {batch} error {error.name} at {offset}")
        if error.value == NONE:
            self._stored(batch, crc, offset, generation, leader)
            ended = self._client.acknowledged(batch, offset)
        else:
            self._check_sequence_refused(batch, error, generation)
            ended = self._client.refused(batch, error)
            if batch in ended and error in NOT_APPENDED and not batch.outcome_unknown:
                self._note_refused(batch)
            self._note_splits(batch)
            self._look_for_the_leader(leader, error)
        self._end(ended)
        self._queue.check()
        self._send()

    def _stored(self, batch: ProducerBatch, crc: int, offset: int, generation: int, leader: KnownLeader) -> None:
        """Checked also for a batch that was given up while it was away."""
        if offset < 0:
            return
        if leader.epoch < self.checkers.history(self.id).first_epoch:
            generation = -1  # by a leader that has not heard of an unclean election: forgiven
        self.checkers.acknowledged(self.id, generation, offset, crc)
        first = self._first_values[batch.serial]
        for index in range(batch.record_count):
            self.ledger.acknowledged[first + index] = (generation, offset + index)

    def _check_sequence_refused(self, batch: ProducerBatch, error: ErrorCode, generation: int) -> None:
        """Nobody forgets what it has acknowledged: then the sequence of a batch that was sent first
        is never out of order.
        """
        if error.value not in SEQUENCE_REFUSED or not batch.was_sent_first or batch.was_split_in_doubt:
            return
        history = self.checkers.history(self.id)
        if not history.generation and not history.retention and not history.deletable_end and not history.compacts:
            raise Violation(f"{self.name} was refused the sequence of {batch}: {error.name}")

    def _note_refused(self, batch: ProducerBatch) -> None:
        """Every attempt was refused, so it is nowhere."""
        self.simulation.counts["batches refused for good"] += 1
        first = self._first_values[batch.serial]
        self.ledger.refused.update(range(first, first + batch.record_count))

    def _note_splits(self, batch: ProducerBatch) -> None:
        first = self._first_values[batch.serial]
        if batch.children:
            self.simulation.counts["batches split"] += 1
        for child in batch.children:
            self._first_values[child.serial] = first
            first += child.record_count

    def _end(self, ended: list[ProducerBatch]) -> None:
        for batch in ended:
            if batch.error is not None:
                self.simulation.counts["batches given up"] += 1
                if batch is self._last and not self.gone:
                    self.produce_last()  # lost with one before it; the next one is to be acknowledged

    def _look_for_the_leader(self, leader: KnownLeader, error: ErrorCode) -> None:
        if self.leader is not None and self.leader != leader:
            return
        if error.value in SEQUENCE_REFUSED:
            return  # the leader is the right one
        self.leader = None
        newer_than = leader.epoch if error is not ErrorCode.not_enough_replicas and self.scheduler.chance(0.7) else -1
        if error.value in UNKNOWN_TOPIC:
            newer_than = -1
        self.later(
            self.scheduler.between(1_000, 100_000),
            lambda: self.find_leader(self.topic, self.id, newer_than=newer_than),
            f"{self.name} retries",
        )

    def _expire_later(self) -> None:
        label = f"{self.name} looks at its deadlines"
        if self._queue.pending:
            self.later(self.scheduler.skewed_us(150_000), self._expire, label)
        else:
            self.simulation.rhythm.later(self.later, 150_000, self._expire, label)

    def _expire(self) -> None:
        if self.gone:
            return
        self._end(self._client.expire(self.scheduler.now_ms))
        self._send()
        self._expire_later()
