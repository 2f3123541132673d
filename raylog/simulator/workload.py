"""Clients of a simulated cluster: producers that retry as the real one does, consumers, and
somebody who administers.

Each is a process on the clients' machine with connections of its own. They know what a real client
knows: leaders they asked for, answers they got. Everything they were promised goes to the checkers;
what may be asked of the cluster at the end (a produce succeeds, all that waited is acknowledged) is
asked by the simulation.

A producer owns one partition. *Idempotent* ones (always acks=all) keep several batches in flight,
number them, send each again with the bytes and the sequence number it had, in order, until it is
acknowledged; the cluster has to sort out what arrives twice. *Plain* ones keep one batch in flight
and may leave duplicates behind. After an unclean election (the checkers know) an idempotent
producer that is refused its sequence number takes a new producer id; otherwise that refusal is a
lost record, and a violation.

To compacted topics they write keys, and tombstones (``keyed_values``).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from raylog.metadata.requests import (
    AwaitLeader,
    InitProducerId,
    LeaderFound,
    ProducerIdAssigned,
    Request,
)
from raylog.records.batch import SEQUENCE_MASK, BatchView, batches
from raylog.records.codec import encode, encode_values
from raylog.records.compression import Compression
from raylog.records.corrupt import CorruptBatch, UnsupportedMagic
from raylog.replication.events import (
    DeleteRecordsPartition,
    DeleteRecordsReceived,
    DeleteRecordsReply,
    EpochEndPartition,
    FetchPartition,
    FetchReceived,
    FetchReply,
    ListOffsetsPartition,
    ListOffsetsReceived,
    ListOffsetsReply,
    OffsetForLeaderEpochReceived,
    ProducePartition,
    ProduceReceived,
    ProduceReply,
)
from raylog.simulator import answer_checks
from raylog.simulator.checkers import Violation
from raylog.simulator.keyed_values import is_tombstone, key_of
from raylog.simulator.messages import OnReply, SimulatedCaller
from raylog.simulator.processes import Machine, Process
from raylog.types import Endpoint, TopicIdPartition

if TYPE_CHECKING:
    from raylog.simulator.simulation import Simulation

NONE = ErrorCode.none.value
NETWORK_EXCEPTION = ErrorCode.network_exception.value
SEQUENCE_REFUSED = (ErrorCode.out_of_order_sequence_number.value, ErrorCode.unknown_producer_id.value)
DUPLICATE = ErrorCode.duplicate_sequence_number.value
OUT_OF_RANGE = ErrorCode.offset_out_of_range.value
RETRIABLE = frozenset(code.value for code in ErrorCode if code.retriable)
UNKNOWN_TOPIC = (ErrorCode.unknown_topic_or_partition.value, ErrorCode.unknown_topic_id.value)
NOT_CONTROLLER = ErrorCode.not_controller.value
IN_FLIGHT_MAX = 5
REQUEST_TIMEOUT_MS = 3_000


@dataclass(frozen=True, slots=True)
class KnownLeader:
    node_id: int
    epoch: int
    endpoint: Endpoint


class Client(Process):
    """What all clients do: hold connections, find the controller and the leader of their partition."""

    def __init__(self, name: str, simulation: Simulation, machine: Machine) -> None:
        super().__init__(name, machine)
        self.simulation = simulation
        self.checkers = simulation.checkers
        self.leader: KnownLeader | None = None
        self._finding = False
        self._controller_at = 0
        self._callers: dict[Endpoint, SimulatedCaller] = {}

    def ask(self, endpoint: Endpoint, request: object, on_reply: OnReply, *, timeout_ms: int | None = None) -> None:
        self._caller(endpoint).call(request, on_reply, timeout_ms=timeout_ms or REQUEST_TIMEOUT_MS)

    def _caller(self, endpoint: Endpoint) -> SimulatedCaller:
        caller = self._callers.get(endpoint)
        if caller is None:
            caller = self._callers[endpoint] = SimulatedCaller(self, self.simulation.network, endpoint, None)
        return caller

    def ask_controller(self, request: Request, on_reply: OnReply) -> None:
        """Of the controller that answered last; the next time of another one if this one is not
        active, or silent.
        """
        endpoints = self.simulation.controllers.endpoints
        at = self._controller_at

        def answered(reply: object | None) -> None:
            if (reply is None or getattr(reply, "error", 0) == NOT_CONTROLLER) and at == self._controller_at:
                self._controller_at += 1
            on_reply(reply)

        self.ask(endpoints[at % len(endpoints)], request, answered)

    def find_leader(self, topic: str, id: TopicIdPartition, *, newer_than: int) -> None:
        """Learn of a leader; ``leader_found`` is called when there is one."""
        if self._finding:
            return
        self._finding = True
        request = AwaitLeader(topic, id.partition, newer_than, 1_000)
        self.ask_controller(request, lambda reply: self._found(topic, id, newer_than, reply))

    def _found(self, topic: str, id: TopicIdPartition, newer_than: int, reply: object | None) -> None:
        self._finding = False
        if isinstance(reply, LeaderFound) and not reply.error and reply.endpoint is not None:
            if reply.topic_id != id.topic_id:
                self.partition_is_gone()
                return
            if self.leader is None or reply.leader_epoch >= self.leader.epoch:
                self.leader = KnownLeader(reply.leader_node, reply.leader_epoch, reply.endpoint)
            self.leader_found()
            return
        if isinstance(reply, LeaderFound) and reply.error in UNKNOWN_TOPIC and self.simulation.is_deleted(id):
            self.partition_is_gone()
            return
        delay_us = self.scheduler.between(10_000, 200_000)
        if self.simulation.rhythm.is_night:
            delay_us *= self.simulation.calm  # elections take as much longer
        self.later(
            delay_us, lambda: self.find_leader(topic, id, newer_than=newer_than), f"{self.name} finds its leader"
        )

    def stop(self) -> None:
        """For subclasses: begin nothing new."""

    def leader_found(self) -> None:
        """For subclasses: ``self.leader`` is known."""

    def partition_is_gone(self) -> None:
        """For subclasses: the topic was deleted."""


# ---------------------------------------------------------------------- producing


@dataclass(slots=True)
class Outgoing:
    """A batch until its end. ``values`` are what it carries, ``generation`` the partition's history
    in which it was made.
    """

    serial: int
    first_value: int
    values: tuple[bytes, ...]
    data: bytes = b""
    crc: int = 0
    generation: int = 0
    attempts: int = 0


@dataclass(slots=True)
class PromisedRecords:
    """What a producer was promised: value number → offset, for acks=all; and all that it ever sent."""

    producer: str
    id: TopicIdPartition
    idempotent: bool
    acks: int
    acknowledged: dict[int, tuple[int, int]] = field(default_factory=dict)  # number → (generation, offset)
    refused: set[int] = field(default_factory=set)  # numbers of values that no leader may have
    may_be_twice: set[int] = field(
        default_factory=set
    )  # under way when the producer started over, as the model does and ours does not
    sent: int = 0


class SimulatedProducer(Client):
    def __init__(
        self,
        name: str,
        simulation: Simulation,
        machine: Machine,
        *,
        topic: str,
        id: TopicIdPartition,
        acks: int,
        idempotent: bool,
        interval_us: int,
        compacts: bool = False,
        first_sequence: int = 0,
        age_ms: int = 0,
    ) -> None:
        """``first_sequence``: of each producer id. ``age_ms``: how old what it writes is, by its
        timestamps.
        """
        super().__init__(name, simulation, machine)
        self.compacts = compacts
        self.age_ms = age_ms
        self._first_sequence = first_sequence
        assert acks == -1 or not idempotent, (acks, idempotent)
        self.topic = topic
        self.id = id
        self.acks = acks
        self.idempotent = idempotent
        self.interval_us = interval_us
        self.producing = True
        self.gone = False
        self.ledger = PromisedRecords(name, id, idempotent, acks)
        self.unsent: deque[Outgoing] = deque()
        self.in_flight: list[Outgoing] = []
        self._batches_made = 0
        self._producer_id = -1
        self._producer_epoch = -1
        self._next_sequence = first_sequence
        self._is_known = False  # a batch under this producer id was acknowledged
        self._getting_id = False
        self.later(1 + self.scheduler.between(0, 500_000), self._produce, f"{name} starts")

    @property
    def is_idle(self) -> bool:
        """Everything sent has met its end."""
        return self.gone or (not self.unsent and not self.in_flight)

    def stop(self) -> None:
        self.producing = False

    def produce_last(self) -> None:
        """One batch more, and then no more."""
        self.producing = False
        if not self.gone:
            self._make_batch()
            self._send()

    # ---------------------------------------------------------------- making batches

    def _produce(self) -> None:
        if self.gone or not self.producing:
            return
        if len(self.unsent) < 20:
            self._make_batch()
            self._send()
        self.simulation.rhythm.later(self.later, self.interval_us, self._produce, f"{self.name} produces")

    def _make_batch(self) -> None:
        first = self.ledger.sent
        self.ledger.sent += self.scheduler.between(1, 4)
        values = tuple(self._value(number) for number in range(first, self.ledger.sent))
        self._batches_made += 1
        self.unsent.append(Outgoing(self._batches_made, first, values))

    def _value(self, number: int) -> bytes:
        return f"{self.name}:{number}:".encode() + b"." * self.scheduler.between(0, 60)

    def _send(self) -> None:
        if self.gone:
            return
        if self.idempotent and self._producer_id < 0:
            self._get_id()
            return
        if self.leader is None:
            self.find_leader(self.topic, self.id, newer_than=-1)
            return
        # A leader that knows nothing of a producer takes any sequence number, so the first batch
        # goes alone. Leaders remember five batches: none may leave before the fifth before it is
        # done.
        while self.unsent:
            batch = self.unsent[0]
            oldest = min((each.serial for each in self.in_flight), default=batch.serial)
            if batch.serial - oldest >= IN_FLIGHT_MAX or (self.in_flight and not self._is_known):
                break
            self._send_one(self.unsent.popleft(), self.leader)

    def _send_one(self, batch: Outgoing, leader: KnownLeader) -> None:
        if not batch.data:
            batch.data = self._encoded(batch)
            batch.crc = BatchView(batch.data).crc
            self._next_sequence = self._next_sequence + len(batch.values) & SEQUENCE_MASK
        batch.generation = self.checkers.history(self.id).generation
        batch.attempts += 1
        request = ProduceReceived(0, self.acks, 1_500, (ProducePartition(self.id, batch.data),))
        if self.acks == 0:
            self._caller(leader.endpoint).tell(request)
            if self.scheduler.chance(0.2):  # with acks=0 nobody says that the leader has changed
                self.find_leader(self.topic, self.id, newer_than=-1)
            return
        self.in_flight.append(batch)
        self.ask(leader.endpoint, request, lambda reply: self._answered(batch, leader, reply))

    def _encoded(self, batch: Outgoing) -> bytes:
        now_ms = self.machine.wall_ms() - self.age_ms
        base_sequence = self._next_sequence if self.idempotent else -1
        if not self.compacts:
            values = encode_values(
                batch.values,
                timestamp_ms=now_ms,
                producer_id=self._producer_id,
                producer_epoch=self._producer_epoch,
                base_sequence=base_sequence,
            )
            return bytes(values)
        numbered = enumerate(batch.values, start=batch.first_value)
        return encode(
            [(now_ms, key_of(number), None if is_tombstone(number) else value, ()) for number, value in numbered],
            compression=Compression.LZ4 if batch.serial % 3 == 0 else Compression.NONE,
            producer_id=self._producer_id,
            producer_epoch=self._producer_epoch,
            base_sequence=base_sequence,
        )

    # ---------------------------------------------------------------- answers

    def _answered(self, batch: Outgoing, leader: KnownLeader, reply: object | None) -> None:
        if batch not in self.in_flight:
            return  # the producer has started over meanwhile
        error: int = NETWORK_EXCEPTION
        offset = -1
        if reply is not None:
            assert isinstance(reply, ProduceReply), reply
            (result,) = reply.partitions
            error, offset = result.error, result.base_offset
        self.simulation.trace(f"{self.name}: {batch.first_value}+{len(batch.values)} error {error} at {offset}")
        if error in (NONE, DUPLICATE):
            self.in_flight.remove(batch)
            self._acknowledged(batch, offset, leader)
        elif error in SEQUENCE_REFUSED and self.idempotent:
            self._sequence_refused(batch, error)
        elif error in RETRIABLE or error in UNKNOWN_TOPIC:
            self._retry(batch, leader)
        else:
            raise Violation(f"{self.name} was refused with {ErrorCode(error).name} by {leader}: {reply}")
        self._send()

    def _acknowledged(self, batch: Outgoing, offset: int, leader: KnownLeader) -> None:
        self._is_known = self.idempotent
        if self.acks != -1 or offset < 0:
            return
        history = self.checkers.history(self.id)
        if leader.epoch < history.first_epoch and (leader.epoch >= 0 or history.generation):
            batch.generation = -1  # by a leader that has not heard of an unclean election: forgiven
        self.checkers.acknowledged(self.id, batch.generation, offset, batch.crc)
        for index in range(len(batch.values)):
            self.ledger.acknowledged[batch.first_value + index] = (batch.generation, offset + index)

    def _retry(self, batch: Outgoing, leader: KnownLeader) -> None:
        self._back_to_unsent(batch)
        if self.leader == leader:
            self.leader = None
            newer_than = leader.epoch if self.scheduler.chance(0.7) else -1
            self.later(
                self.scheduler.between(1_000, 100_000),
                lambda: self.find_leader(self.topic, self.id, newer_than=newer_than),
                f"{self.name} retries",
            )

    def _back_to_unsent(self, batch: Outgoing) -> None:
        self.in_flight.remove(batch)
        position = 0
        while position < len(self.unsent) and self.unsent[position].first_value < batch.first_value:
            position += 1
        self.unsent.insert(position, batch)

    def _sequence_refused(self, batch: Outgoing, error: int) -> None:
        """Fine while an earlier batch is on its way again; else the cluster has forgotten what it
        had appended.

        It may forget a batch whose records were deleted: of those a snapshot names only a
        producer's last one.
        """
        earlier = [each for each in (*self.in_flight, *self.unsent) if each.first_value < batch.first_value]
        history = self.checkers.history(self.id)
        self._back_to_unsent(batch)
        if earlier:
            return
        if not history.generation and not history.retention and not history.may_be_deleted(batch.crc):
            raise Violation(f"{self.name} was refused sequence of {batch.first_value}: {ErrorCode(error).name}")
        self._start_over()

    def _start_over(self) -> None:
        """A new producer id; what is not acknowledged is numbered anew."""
        for batch in sorted(self.in_flight, key=lambda batch: batch.first_value, reverse=True):
            self.ledger.may_be_twice.update(range(batch.first_value, batch.first_value + len(batch.values)))
            self._back_to_unsent(batch)
        for batch in self.unsent:
            batch.data = b""
        self._producer_id = self._producer_epoch = -1
        self._next_sequence = self._first_sequence
        self._is_known = False
        self.simulation.counts["producers that started over"] += 1

    def _get_id(self) -> None:
        if not self._getting_id:
            self._getting_id = True
            self.ask_controller(InitProducerId(), self._got_id)

    def _got_id(self, reply: object | None) -> None:
        self._getting_id = False
        if isinstance(reply, ProducerIdAssigned) and not reply.error:
            self.simulation.producer_id_assigned(reply.producer_id)
            self._producer_id, self._producer_epoch = reply.producer_id, reply.producer_epoch
            self.checkers.first_sequences[reply.producer_id] = self._first_sequence
            self._send()
        else:
            self.later(self.scheduler.between(10_000, 200_000), self._send, f"{self.name} asks for an id again")

    def leader_found(self) -> None:
        self._send()

    def partition_is_gone(self) -> None:
        self.gone = True
        self.unsent.clear()
        self.in_flight.clear()


# ---------------------------------------------------------------------- consuming


class SimulatedConsumer(Client):
    """Reads a partition from its start, over and over; now and then from a follower, now and then
    at an offset read before.
    """

    isolation_level = 0
    goes_back_max = 1 << 62

    def __init__(
        self, name: str, simulation: Simulation, machine: Machine, *, topic: str, id: TopicIdPartition
    ) -> None:
        super().__init__(name, simulation, machine)
        self.topic = topic
        self.id = id
        self.offset = 0
        self.gone = False
        self.consuming = True
        self.records_read = 0
        self.later(1 + self.scheduler.between(0, 500_000), self._poll, f"{name} starts")

    def stop(self) -> None:
        self.consuming = False

    def _poll_later(self) -> None:
        self.simulation.rhythm.later(self.later, 50_000, self._poll, f"{self.name} polls")

    def _poll(self) -> None:
        if self.gone or not self.consuming:
            return
        endpoint = self.leader.endpoint if self.leader is not None else None
        from_follower = self.scheduler.chance(0.1)
        if from_follower:
            endpoint = self.simulation.endpoint_of_any_replica(self.id) or endpoint
        if endpoint is None:
            self.find_leader(self.topic, self.id, newer_than=-1)
            return
        if self.scheduler.chance(0.05):
            self.offset = self.scheduler.between(max(0, self.offset - self.goes_back_max), self.offset)
        epoch = (
            self.leader.epoch if self.leader is not None and not from_follower and self.scheduler.chance(0.5) else -1
        )
        partition = FetchPartition(self.id, self.offset, self.scheduler.rng.choice((1, 500, 1 << 20)), epoch)
        request = FetchReceived(0, -1, -1, 500, 1, 1 << 20, self.isolation_level, (partition,))
        history = self.checkers.history(self.id)
        asked = answer_checks.Asked(history.generation, self.offset, history.end)
        leader = self.leader
        self.ask(endpoint, request, lambda reply: self._fetched(leader, asked, from_follower, reply))

    def _fetched(
        self, leader: KnownLeader | None, asked: answer_checks.Asked, from_follower: bool, reply: object | None
    ) -> None:
        if reply is None:
            self._lost(leader, from_follower)
            return
        assert isinstance(reply, FetchReply), reply
        (result,) = reply.partitions
        if result.error == OUT_OF_RANGE:
            if not from_follower and leader is not None:
                is_current = leader.epoch == self.checkers.history(self.id).newest_epoch
                answer_checks.out_of_range(self.checkers.history(self.id), asked, is_current=is_current)
            self.offset = max(0, result.log_start_offset)
        elif result.error:
            self._lost(leader, from_follower)
            return
        elif len(result.records):
            try:
                views = list(takewhile(BatchView.has_valid_crc, batches(result.records)))
            except (CorruptBatch, UnsupportedMagic) as error:
                raise Violation(f"{self.name} was sent damaged records: {error}") from None
            if not views:
                raise Violation(f"{self.name} was sent damaged records at offset {self.offset}")
            self._read(views, asked.generation, -1 if from_follower or leader is None else leader.epoch)
            self.offset = views[-1].next_offset
            self.records_read += sum(view.record_count for view in views)
        self._poll_later()

    def _read(self, views: list[BatchView], generation: int, leader_epoch: int) -> None:
        history = self.checkers.history(self.id)
        is_there = self.offset >= views[0].base_offset or history.compacts
        if not is_there or self.offset >= views[0].next_offset:
            raise Violation(f"{self.name} asked for {self.offset} and got {views[0].base_offset}")
        if history.generation and leader_epoch < history.first_epoch:
            return  # who answered may not have heard of the unclean election
        self.checkers.consumed(self.id, generation, views)
        if history.generation == generation:
            answer_checks.was_read(history, self.offset, views, self.now_ms)

    def _lost(self, leader: KnownLeader | None, from_follower: bool) -> None:
        if not from_follower and self.leader == leader:
            self.leader = None
        self._poll_later()

    def leader_found(self) -> None:
        self._poll_later()

    def partition_is_gone(self) -> None:
        self.gone = True


# ---------------------------------------------------------------------- administering


class Administrator(Client):
    """Sends requests to the controller, again and again until it answers, and to leaders once."""

    def request(self, request: Request, on_reply: OnReply) -> None:
        def answered(reply: object | None) -> None:
            error = getattr(reply, "error", 0)
            if reply is None or error in RETRIABLE:
                self.later(
                    self.scheduler.between(20_000, 200_000),
                    lambda: self.request(request, on_reply),
                    f"{self.name} asks again",
                )
            else:
                on_reply(reply)

        self.ask_controller(request, answered)

    def delete_records(self, id: TopicIdPartition, endpoint: Endpoint, offset: int) -> None:
        self.checkers.deleting(id, offset)
        generation = self.checkers.history(id).generation

        def answered(reply: object | None) -> None:
            assert reply is None or isinstance(reply, DeleteRecordsReply), reply
            if reply is not None and not reply.partitions[0].error:
                self.simulation.counts["deletions of records acknowledged"] += 1
                deleted = offset if offset >= 0 else reply.partitions[0].low_watermark
                answer_checks.deletion_acknowledged(self.checkers.history(id), generation, deleted)

        self.ask(endpoint, DeleteRecordsReceived(0, 1_000, (DeleteRecordsPartition(id, offset),)), answered)

    def list_offsets(self, id: TopicIdPartition, leader: KnownLeader, timestamp: int) -> None:
        history = self.checkers.history(id)
        generation, known_end = history.generation, history.end

        def answered(reply: object | None) -> None:
            if not isinstance(reply, ListOffsetsReply) or reply.partitions[0].error:
                return
            (found,) = reply.partitions
            if leader.epoch < history.first_epoch:
                return  # deposed by an unclean election, of which it has not heard
            self.checkers.listed(id, generation, found.offset)
            if timestamp >= 0:
                self.simulation.counts["searches by time"] += 1
                answer_checks.searched(
                    history,
                    generation,
                    timestamp,
                    (found.timestamp, found.offset),
                    known_end=known_end,
                    is_current=leader.epoch == history.newest_epoch,
                )

        self.ask(leader.endpoint, ListOffsetsReceived(0, -1, 0, (ListOffsetsPartition(id, timestamp),)), answered)

    def ask_epoch(self, id: TopicIdPartition, endpoint: Endpoint, epoch: int) -> None:
        asked = self.scheduler.between(0, max(0, epoch))
        request = OffsetForLeaderEpochReceived(0, -1, (EpochEndPartition(id, asked, epoch),))
        self.ask(endpoint, request, lambda reply: None)
