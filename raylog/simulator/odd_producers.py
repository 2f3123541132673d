"""Producers that nobody wishes for: one that replaces itself and writes on as who it was, and one
that sends what no leader may take.

Both send one batch at a time with acks=all. What they may not write they must be refused; the
checkers of the log (``checkers``) see what was appended all the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import crc32c
from kio.schema.errors import ErrorCode

from raylog.metadata.requests import InitProducerId, ProducerIdAssigned
from raylog.records.batch import BatchView
from raylog.records.codec import encode, encode_values
from raylog.replication.events import ProducePartition, ProduceReceived, ProduceReply
from raylog.simulator.checkers import Violation
from raylog.simulator.processes import Machine
from raylog.simulator.workload import NETWORK_EXCEPTION, NONE, RETRIABLE, UNKNOWN_TOPIC, Client, KnownLeader
from raylog.types import TopicIdPartition

if TYPE_CHECKING:
    from raylog.simulator.simulation import Simulation

OUT_OF_ORDER = ErrorCode.out_of_order_sequence_number.value
INVALID_EPOCH = ErrorCode.invalid_producer_epoch.value


class OneBatchProducer(Client):
    """Sends a batch until it is taken or refused for good, then calls ``_next`` for another."""

    def __init__(
        self, name: str, simulation: Simulation, machine: Machine, *, topic: str, id: TopicIdPartition, interval_us: int
    ) -> None:
        super().__init__(name, simulation, machine)
        self.topic = topic
        self.id = id
        self.interval_us = interval_us
        self._sending: Callable[[], None] | None = None
        self._is_over = False
        self.later(1 + self.scheduler.between(0, 500_000), self._next, f"{name} starts")

    def stop(self) -> None:
        self._is_over = True

    def _next(self) -> None:
        raise NotImplementedError

    def _next_later(self) -> None:
        self.simulation.rhythm.later(self.later, self.interval_us, self._next, f"{self.name} goes on")

    def _send(self, data: bytes, answered: Callable[[int, int, int, KnownLeader], None]) -> None:
        """``answered(error, offset, history number when it was sent last, leader)``: with the first
        answer that is not retriable.
        """

        def attempt() -> None:
            if self._is_over:
                return
            leader = self.leader
            if leader is None:
                self.find_leader(self.topic, self.id, newer_than=-1)
                return
            generation = self.checkers.history(self.id).generation

            def replied(reply: object | None) -> None:
                error: int = NETWORK_EXCEPTION
                offset = -1
                if reply is not None:
                    assert isinstance(reply, ProduceReply), reply
                    error, offset = reply.partitions[0].error, reply.partitions[0].base_offset
                self.simulation.trace(f"{self.name}: error {error} at {offset}")
                # A CRC that does not fit is retriable for clients, who cannot know where it was
                # damaged.
                if error in UNKNOWN_TOPIC or (error in RETRIABLE and error != ErrorCode.corrupt_message.value):
                    if self.leader == leader:
                        self.leader = None
                    self.later(self.scheduler.between(1_000, 100_000), attempt, f"{self.name} retries")
                else:
                    self._sending = None
                    answered(error, offset, generation, leader)

            self.ask(leader.endpoint, ProduceReceived(0, -1, 1_500, (ProducePartition(self.id, data),)), replied)

        self._sending = attempt
        attempt()

    def leader_found(self) -> None:
        if self._sending is not None:
            self._sending()

    def partition_is_gone(self) -> None:
        self._is_over = True

    def _holds(self, offset: int, generation: int, leader: KnownLeader) -> bool:
        """Whether what was acknowledged there is still the truth, and can't have been deleted."""
        history = self.checkers.history(self.id)
        is_kept = offset >= history.deletable_end and not history.retention
        return is_kept and history.generation == generation and leader.epoch >= history.first_epoch


class Successor(OneBatchProducer):
    """An idempotent producer whose epoch rises every few batches. Then the former instance writes
    once more; or a number is left out.

    Neither may be taken: INVALID_PRODUCER_EPOCH and OUT_OF_ORDER_SEQUENCE_NUMBER.
    """

    def __init__(
        self, name: str, simulation: Simulation, machine: Machine, *, topic: str, id: TopicIdPartition, interval_us: int
    ) -> None:
        super().__init__(name, simulation, machine, topic=topic, id=id, interval_us=interval_us)
        self._producer_id = -1
        self._epoch = 0
        self._sequence = 0
        self._numbers = 0
        self._former: tuple[int, int] | None = None  # epoch and next sequence of the instance before
        self._last: tuple[int, int, KnownLeader] | None = (
            None  # where the last batch is: offset, history number, by whom
        )

    def _next(self) -> None:
        if self._is_over or self._sending is not None:
            return
        if self._producer_id < 0:
            self.ask_controller(InitProducerId(), self._got_id)
            return
        is_safe = self._last is not None and self._holds(*self._last)
        if is_safe and self._sequence and self._former is not None and self.scheduler.chance(0.3):
            self._send(self._batch(*self._former), self._of_the_former)
        elif is_safe and self._sequence and self.scheduler.chance(0.2):
            self._send(self._batch(self._epoch, self._sequence + self.scheduler.between(1, 3)), self._of_a_leap)
        else:
            if self._sequence and self.scheduler.chance(0.2):
                self._former = (self._epoch, self._sequence)
                self._epoch, self._sequence = self._epoch + 1, 0
            data = self._batch(self._epoch, self._sequence)
            self._send(data, lambda *answer: self._taken(data, *answer))

    def _got_id(self, reply: object | None) -> None:
        if isinstance(reply, ProducerIdAssigned) and not reply.error:
            self.simulation.producer_id_assigned(reply.producer_id)
            self._producer_id = reply.producer_id
        self._next_later()

    def _batch(self, epoch: int, sequence: int) -> bytes:
        self._numbers += 1
        values = [f"{self.name}:{self._numbers}.{position}".encode() for position in range(2)]
        return bytes(
            encode_values(
                values,
                timestamp_ms=self.machine.wall_ms(),
                producer_id=self._producer_id,
                producer_epoch=epoch,
                base_sequence=sequence,
            )
        )

    def _taken(self, data: bytes, error: int, offset: int, generation: int, leader: KnownLeader) -> None:
        if error == NONE:
            if offset >= 0 and leader.epoch >= self.checkers.history(self.id).first_epoch:
                self.checkers.acknowledged(self.id, generation, offset, BatchView(data).crc)
            self._sequence += 2
            self._last = (offset, generation, leader)
        elif self._last is not None and self._holds(*self._last) and self._sequence:
            raise Violation(f"{self.name} was refused epoch {self._epoch}, sequence {self._sequence}: {error}")
        else:  # what it wrote went with an unclean election, or was deleted: another producer begins
            self._producer_id, self._epoch, self._sequence = -1, 0, 0
            self._former = self._last = None
        self._next_later()

    def _of_the_former(self, error: int, offset: int, generation: int, leader: KnownLeader) -> None:
        self._refused(error, INVALID_EPOCH, offset, "an epoch that is over")

    def _of_a_leap(self, error: int, offset: int, generation: int, leader: KnownLeader) -> None:
        self._refused(error, OUT_OF_ORDER, offset, "a sequence with a gap")

    def _refused(self, error: int, expected: int, offset: int, what: str) -> None:
        assert self._last is not None
        if error == NONE and self._holds(*self._last):
            raise Violation(f"{self.name} wrote {what} at {offset}")
        if error == expected:
            self.simulation.counts[f"refused: {what}"] += 1
        else:  # nobody knows it any more: no promise is left to be tested
            self._producer_id, self._epoch, self._sequence = -1, 0, 0
            self._former = self._last = None
        self._next_later()


class Vandal(OneBatchProducer):
    """Sends damaged and forbidden batches. Each has to be refused, by an error that does not ask
    for the same once more.
    """

    def _next(self) -> None:
        if self._is_over or self._sending is not None:
            return
        rng = self.scheduler.rng
        kinds: list[Callable[[], bytes]] = [self._noise, self._flipped, self._short, self._control, self._miscounted]
        kinds += [self._garbage, self._misplaced]
        if self.checkers.history(self.id).compacts:
            kinds.append(self._plain)
        kind = rng.choice(kinds)
        self._send(kind(), lambda error, offset, generation, leader: self._answered(kind.__name__, error, offset))

    def _answered(self, kind: str, error: int, offset: int) -> None:
        if error == NONE:
            raise Violation(f"{self.name} wrote a batch that is {kind.strip('_')} at {offset}")
        self.simulation.counts["refused: damaged or forbidden batches"] += 1
        self._next_later()

    def _plain(self) -> bytes:
        return bytes(encode_values([b"without a key"], timestamp_ms=self.machine.wall_ms()))

    def _keyed(self) -> bytearray:
        return bytearray(encode([(self.machine.wall_ms(), b"key of a vandal", b"value", ())]))

    def _noise(self) -> bytes:
        return self.scheduler.rng.randbytes(self.scheduler.between(1, 200))

    def _flipped(self) -> bytes:
        data = self._keyed()
        data[self.scheduler.between(61, len(data) - 1)] ^= 1 << self.scheduler.between(0, 7)
        return bytes(data)

    def _short(self) -> bytes:
        data = self._keyed()
        return bytes(data[: self.scheduler.between(1, len(data) - 1)])

    def _control(self) -> bytes:
        return _sealed(self._keyed(), 22, b"\x20")

    def _garbage(self) -> bytes:
        data = self._keyed()
        return _sealed(data, 61, self.scheduler.rng.randbytes(len(data) - 61))

    def _misplaced(self) -> bytes:
        """The record's offset is not in its batch."""
        return _sealed(self._keyed(), 64, bytes([2 * self.scheduler.between(1, 60)]))

    def _miscounted(self) -> bytes:
        return _sealed(self._keyed(), 57, (7).to_bytes(4, "big"))


def _sealed(data: bytearray, position: int, changed: bytes) -> bytes:
    """The batch with some of its bytes changed, under a CRC that fits them."""
    data[position : position + len(changed)] = changed
    data[17:21] = crc32c.crc32c(bytes(data[21:])).to_bytes(4, "big")
    return bytes(data)
