"""Transactional producers of a simulated cluster, of both versions of transactions.

Each writes one transaction after the other, to one to three partitions, a few batches to each, and
commits or aborts it. What a client may meet they do: they die amid a transaction and begin anew, or
stand still for longer than a transaction may take; some of version 1 forget to add a partition. A
Produce of theirs is sent again long after the end of its transaction: one that was appended, and one
that never was.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from raylog.histories import RecordedOperation
from raylog.records.batch import BatchView
from raylog.records.codec import encode_values
from raylog.replication.events import FetchReply, ProducePartition, ProduceReceived, ProduceReply
from raylog.replication.replica import READ_COMMITTED
from raylog.replication.transaction_events import TransactionMembership
from raylog.simulator.processes import Machine, Process
from raylog.simulator.transaction_checker import KnownTransaction, TransactionName, value_of
from raylog.simulator.transaction_coordinator import (
    FENCED,
    TIMEOUT_MS,
    Coordination,
    CoordinatorSays,
    OnAnswer,
    PartitionWriter,
)
from raylog.simulator.transaction_history import transactional_records
from raylog.simulator.workload import (
    NETWORK_EXCEPTION,
    RETRIABLE,
    UNKNOWN_TOPIC,
    KnownLeader,
    SimulatedConsumer,
)
from raylog.types import TopicIdPartition

if TYPE_CHECKING:
    from raylog.simulator.simulated_transactions import SimulatedTransactions
    from raylog.simulator.simulation import Simulation

GONE = -1_000
Answered = Callable[[int], None]


class Sending(Protocol):
    """Whoever sends batches of transactions."""

    name: str
    simulation: Simulation
    machine: Machine
    membership: TransactionMembership


class BatchSender(PartitionWriter):
    """Sends a transactional producer's batches to one partition, each until it is taken or refused for
    good.
    """

    def __init__(self, owner: Sending, topic: str, id: TopicIdPartition) -> None:
        super().__init__(f"{owner.name}-{topic}{id.partition}", owner.simulation, owner.machine, topic, id)
        self.owner = owner

    def send(
        self, data: bytes, answered: Answered, *, located: Answered = lambda offset: None, attempts: int = 1 << 30
    ) -> None:
        """``located`` takes the offset that is acknowledged. ``attempts``: at most so many; then it is
        given up, and ``answered`` says NETWORK_EXCEPTION.
        """

        def attempt() -> None:
            nonlocal attempts
            if self._gone or attempts <= 0:
                answered(GONE if self._gone else NETWORK_EXCEPTION)
                return
            leader = self.leader
            if leader is None:
                self.attempt_later(attempt)
                return
            attempts -= 1
            generation = self.checkers.history(self.id).generation

            def replied(reply: object | None) -> None:
                error: int = NETWORK_EXCEPTION
                if reply is not None:
                    assert isinstance(reply, ProduceReply), reply
                    error = reply.partitions[0].error
                    if not error and self._acknowledged(data, reply.partitions[0].base_offset, generation, leader):
                        located(reply.partitions[0].base_offset)
                self.simulation.trace(f"{self.name}: error {error}")
                if error in RETRIABLE or error in UNKNOWN_TOPIC:
                    if self.leader == leader:
                        self.leader = None
                    self.later(self.scheduler.between(1_000, 60_000), attempt, f"{self.name} retries")
                else:
                    answered(error)

            part = ProducePartition(self.id, data, self.owner.membership)
            self.ask(leader.endpoint, ProduceReceived(0, -1, 1_500, (part,)), replied)

        attempt()

    def _acknowledged(self, data: bytes, offset: int, generation: int, leader: KnownLeader) -> bool:
        """Whether the promise counts."""
        counts = offset >= 0 and leader.epoch >= self.checkers.history(self.id).first_epoch
        if counts:
            self.checkers.acknowledged(self.id, generation, offset, BatchView(data).crc)
        return counts


class TransactionalProducer(Process):
    """See the module."""

    def __init__(self, transactional_id: str, transactions: SimulatedTransactions, *, version: int) -> None:
        simulation = transactions.simulation
        super().__init__(f"producer-{transactional_id}", simulation.client_machine)
        self.transactional_id = transactional_id
        self.simulation = simulation
        self.transactions = transactions
        self.version = version
        self.membership = TransactionMembership(self.transactional_id, adds=version >= 2, is_abortable=version >= 2)
        self.transaction: KnownTransaction | None = None
        self.history = transactions.history
        self._process = self.history.process(self.name)
        self._recorded: RecordedOperation | None = None  # what the history says of ``transaction``
        self.is_over = False
        self._number = 0
        self._is_ready = False  # the coordinator has said which epoch is its own
        self._identity = (-1, -1)  # producer id and epoch
        self._failed = False
        self._waits_for: set[TopicIdPartition] = set()
        self._sequences: dict[tuple[TopicIdPartition, int], int] = {}  # the next one, by partition and epoch
        self._senders: dict[TopicIdPartition, BatchSender] = {}
        self._next_later()

    @property
    def is_idle(self) -> bool:
        return self.transaction is None

    def stop(self) -> None:
        self.is_over = True

    def _coordinator(self) -> Coordination:
        coordinator = self.transactions.coordinator
        assert coordinator is not None
        return coordinator

    def _ask(self, question: Callable[[OnAnswer], None], answered: OnAnswer) -> None:
        """Until there is an answer that is not retriable."""

        def heard(says: CoordinatorSays) -> None:
            if says.error in RETRIABLE:
                delay_us = self.scheduler.between(5_000, 60_000) * (
                    self.simulation.calm if self.simulation.rhythm.is_night else 1
                )
                self.later(delay_us, lambda: self._ask(question, answered), f"{self.name} asks again")
            else:
                answered(says)

        question(heard)

    def _next_later(self) -> None:
        self.simulation.rhythm.later(self.later, 15_000, self._next, f"{self.name} goes on")

    def _next(self) -> None:
        if self.is_over:
            return
        if not self._is_ready:
            self._ask(self._begin_anew, self._begun_anew)
            return
        there = sorted(id for id in self.transactions.partitions if not self.simulation.is_deleted(id))
        if not there:
            self._next_later()
            return
        count = min(len(there), self.scheduler.rng.choice((1, 2, 2, 3)))
        self._begin(self.scheduler.rng.sample(there, count))

    def _begin_anew(self, answered: OnAnswer) -> None:
        self._coordinator().initialise(self, self.transactional_id, self.version, answered)

    def _begun_anew(self, says: CoordinatorSays) -> None:
        assert not says.error, says
        self._identity = (says.producer_id, says.producer_epoch)
        self._is_ready = True
        self._next_later()

    def _begin(self, ids: list[TopicIdPartition]) -> None:
        name = TransactionName(self.transactional_id, self._next_number())
        transaction = self.transactions.checker.begun(name, *self._identity)
        self.transaction = transaction
        self._recorded = self.history.begun(self._process)
        self._failed = False
        if self.version >= 2:
            self._write(transaction, ids)
            return
        added = ids[1:] if self.scheduler.chance(0.05) else ids
        self._ask(
            lambda answered: self._coordinator().add_partitions(self, transaction, added, answered),
            lambda says: self._abandon() if says.error else self._write(transaction, ids),
        )

    def _next_number(self) -> int:
        self._number += 1
        return self._number

    def _batches(self) -> int:
        """How many are written to a partition."""
        return self.scheduler.between(1, 3)

    def _values(self, transaction: KnownTransaction, id: TopicIdPartition, number: int) -> list[bytes]:
        """Those of the transaction's batch ``number`` in a partition."""
        return [value_of(transaction.name, number)]

    def _write(self, transaction: KnownTransaction, ids: list[TopicIdPartition]) -> None:
        self._waits_for = set(ids)
        for id in ids:
            self._send(transaction, id, 0, self._batches())
        if self.scheduler.chance(0.1) and not self.is_over:
            self.later(self.scheduler.skewed_us(3_000), lambda: self._dies(transaction), f"{self.name} dies")
        elif self.scheduler.chance(0.15) and not self.is_over:
            self.later(self.scheduler.skewed_us(2_000), lambda: self._gives_up(transaction), f"{self.name} gives up")

    def _gives_up(self, transaction: KnownTransaction) -> None:
        """Abort while the first Produce is on its way."""
        if self.transaction is transaction and self._waits_for:
            self._waits_for = set()
            self._failed = True
            self._end(transaction)

    def _dies(self, transaction: KnownTransaction) -> None:
        """And begins anew; what it has sent is on its way all the same."""
        if self.transaction is transaction and not self.is_over:
            self.simulation.counts["transactional producers that began anew"] += 1
            self._abandon()

    def _abandon(self) -> None:
        self._over(is_acknowledged=False)
        self._is_ready = False
        self._next_later()

    def _over(self, *, is_acknowledged: bool) -> None:
        """The transaction is, as far as its producer is concerned."""
        assert self._recorded is not None
        self.history.ended(self._recorded, is_acknowledged=is_acknowledged)
        self.transaction = self._recorded = None

    def _send(self, transaction: KnownTransaction, id: TopicIdPartition, number: int, count: int) -> None:
        sender = self._senders.get(id)
        if sender is None:
            sender = self._senders[id] = BatchSender(self, self.transactions.partitions[id], id)
        values = self._values(transaction, id, number)
        place = (id, transaction.producer_epoch)
        sequence = self._sequences.get(place, 0)
        self._sequences[place] = sequence + len(values)
        data = bytes(
            encode_values(
                values,
                timestamp_ms=self.machine.wall_ms(),
                producer_id=transaction.producer_id,
                producer_epoch=transaction.producer_epoch,
                base_sequence=sequence,
                is_transactional=True,
            )
        )
        is_current = self.transaction is transaction

        def answered(error: int) -> None:
            if not error:
                transaction.acknowledged[id] = transaction.acknowledged.get(id, 0) + 1
            self._answered(error)
            if self.transaction is not transaction or id not in self._waits_for:
                return
            self._failed = self._failed or bool(error)
            if not error and number + 1 < count and not self._failed:
                self._send(transaction, id, number + 1, count)
                return
            self._waits_for.discard(id)
            if not self._waits_for:
                self._end(transaction)

        assert is_current and self._recorded is not None
        sender.send(data, answered, located=self.history.sending(self._recorded, id, values))
        self._come_late(sender, data)

    def _answered(self, error: int) -> None:
        """A batch was taken, or refused for good."""

    def _come_late(self, sender: BatchSender, data: bytes) -> None:
        if not self.is_over and self.scheduler.chance(0.3):
            again = lambda: sender.send(data, lambda error: None, attempts=3)  # noqa: E731
            self.later(self.scheduler.skewed_us(80_000), again, f"{sender.name} comes late")

    def _end(self, transaction: KnownTransaction) -> None:
        if self.scheduler.chance(0.02) and not self.is_over:
            self.later(2 * TIMEOUT_MS * 1_000, lambda: self._end(transaction), f"{self.name} stands still")
            return
        # At the end of a run copiers have to come to the end of their source.
        commits = not self._failed and (self.is_over or self.scheduler.chance(0.65))
        if not (self.is_over or commits or self._failed) and self.scheduler.chance(0.7):
            # An abort while something that was never appended is on its way.
            id = self.scheduler.rng.choice(sorted(self._senders))
            self._send_unheard(transaction, id)
        if self._recorded is not None and self.transaction is transaction:
            self._recorded.is_ending = commits
        self._ask(
            lambda answered: self._coordinator().decide(self, transaction, self.version, answered, commits=commits),
            lambda says: self._ended(transaction, commits, says),
        )

    def _send_unheard(self, transaction: KnownTransaction, id: TopicIdPartition) -> None:
        """One batch more, for whose answer it does not wait."""
        self._waits_for = set()
        number = transaction.acknowledged.get(id, 0)
        self._send(transaction, id, number, number + 1)

    def _ended(self, transaction: KnownTransaction, commits: bool, says: CoordinatorSays) -> None:
        if self.transaction is not transaction:
            return
        self._over(is_acknowledged=not says.error)
        # Version 1 raises its epoch by beginning anew wherever something may be on its way.
        self._is_ready = not says.error and (self.version >= 2 or commits)
        if self.version >= 2:
            self._identity = (says.producer_id, says.producer_epoch)
        if says.error:
            self.simulation.counts["transactions that were fenced"] += says.error == FENCED
        self._next_later()


class CommittedConsumer(SimulatedConsumer):
    """Reads committed records only."""

    isolation_level = READ_COMMITTED
    _process = ""
    _position = 0  # where it reads on if it does not decide otherwise

    def _fetched(self, leader: KnownLeader | None, asked: object, from_follower: bool, reply: object | None) -> None:
        if isinstance(reply, FetchReply):
            (result,) = reply.partitions
            self._aborted = result.aborted or ()
        super()._fetched(leader, asked, from_follower, reply)  # type: ignore[arg-type]

    def _read(self, views: list[BatchView], generation: int, leader_epoch: int) -> None:
        super()._read(views, generation, leader_epoch)
        checker, history = self.simulation.transactions.checker, self.simulation.transactions.history
        if not self._process:
            self._process = history.process(self.name)
        if self.offset != self._position or not self._position:
            history.moved(self._process, self.id, self.offset)
        history.polled(self._process, self.id, transactional_records(views, self._aborted, self.offset))
        self._position = views[-1].next_offset
        shown = checker.was_read(self.id, views, self._aborted, self.name)
        self.simulation.counts["batches of transactions read committed"] += shown
