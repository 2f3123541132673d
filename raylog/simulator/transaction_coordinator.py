"""A transaction coordinator as leaders and producers see it: it gives out epochs, takes partitions in,
decides, and has markers written until every leader has acknowledged its own.

A model: it remembers all of it, and is no log (``raylog.transactions`` has the real one). It keeps
Kafka's rules (KIP-98, 360, 890): a transaction that is being ended is CONCURRENT_TRANSACTIONS,
another epoch PRODUCER_FENCED; in version 2 the epoch rises with every end, in version 1 when a
producer begins anew and where a transaction takes too long. Its faults are those of the road and of
its successor: questions and answers are lost or late (``put``), markers come twice, another process
takes over with the next coordinator epoch while markers of the former one are still on their way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, Protocol

from kio.schema.errors import ErrorCode

from raylog.log.markers import TransactionEnd
from raylog.metadata.requests import InitProducerId, ProducerIdAssigned
from raylog.records.control import Marker
from raylog.replication.events import ProduceReply
from raylog.replication.transaction_events import MarkersReceived, PartitionMarker, VerifyTransaction
from raylog.simulator.checkers import Violation
from raylog.simulator.processes import Machine, Process
from raylog.simulator.transaction_checker import KnownTransaction, TransactionChecker, TransactionName
from raylog.simulator.workload import NETWORK_EXCEPTION, Client
from raylog.types import TopicIdPartition

if TYPE_CHECKING:
    from raylog.simulator.simulation import Simulation

FENCED = ErrorCode.producer_fenced.value
CONCURRENT = ErrorCode.concurrent_transactions.value
ABORTABLE = ErrorCode.transaction_abortable.value
UNAVAILABLE = ErrorCode.coordinator_not_available.value
INVALID_MAPPING = ErrorCode.invalid_producer_id_mapping.value
NEVER_OF_A_MARKER = (ErrorCode.invalid_producer_epoch.value, ErrorCode.transaction_coordinator_fenced.value)
ANSWER_LOST_US = 1_000_000
LOST = 0.03  # of questions, and as many answers
LATE = 0.15  # of questions and answers
TIMEOUT_MS = 2_000


class CoordinatorSays(NamedTuple):
    """An answer to a producer. The identity is that of its next transaction, if the answer has one."""

    error: int
    producer_id: int = -1
    producer_epoch: int = -1


OnAnswer = Callable[[CoordinatorSays], None]


class Coordination(Protocol):
    """A transaction coordinator as clients and leaders reach it: each of these is one attempt, which
    may be lost, and answers once, in a turn of ``asker`` (if that still lives).
    """

    def follow(self, topic: str, id: TopicIdPartition) -> None:
        """There is a new partition that transactions may write to."""

    def initialise(self, asker: Process, transactional_id: str, version: int, answered: OnAnswer) -> None:
        """A producer begins anew: what the former instance left open is aborted first."""

    def add_partitions(
        self, asker: Process, transaction: KnownTransaction, ids: Sequence[TopicIdPartition], answered: OnAnswer
    ) -> None:
        """Of a producer of version 1."""

    def decide(
        self, asker: Process, transaction: KnownTransaction, version: int, answered: OnAnswer, *, commits: bool
    ) -> None: ...

    def verify_for(self, asker: Process, order: VerifyTransaction, answered: Callable[[int], None]) -> None:
        """A leader asks whether it may append, or to take its partition in."""

    def unfinished(self) -> str | None:
        """What is not over yet, once no producer begins anything new."""


@dataclass(slots=True)
class CoordinatedProducer:
    """``ending``: what has been decided and is not marked everywhere yet."""

    transactional_id: str
    version: int
    producer_id: int = -1
    epoch: int = -1
    current: KnownTransaction | None = None
    ending: KnownTransaction | None = None


class PartitionWriter(Client):
    """Writes to one partition, whoever leads it. ``_gone``: the controller has said that its topic was
    deleted; that somebody asked for it says nothing yet.
    """

    def __init__(self, name: str, simulation: Simulation, machine: Machine, topic: str, id: TopicIdPartition) -> None:
        super().__init__(name, simulation, machine)
        self.topic = topic
        self.id = id
        self._attempts: list[Callable[[], None]] = []
        self._gone = False

    def attempt_later(self, attempt: Callable[[], None]) -> None:
        """When a leader is found, or the partition is gone."""
        self._attempts.append(attempt)
        self.find_leader(self.topic, self.id, newer_than=-1)

    def leader_found(self) -> None:
        attempts, self._attempts = self._attempts, []
        for attempt in attempts:
            attempt()

    def partition_is_gone(self) -> None:
        self._gone = True
        self.leader_found()


class MarkerWriter(PartitionWriter):
    """Has markers appended to one partition."""

    def __init__(self, simulation: Simulation, machine: Machine, topic: str, id: TopicIdPartition) -> None:
        super().__init__(f"marker-writer-{topic}{id.partition}", simulation, machine, topic, id)

    def write(self, end: Callable[[], TransactionEnd | None], done: Callable[[], None]) -> None:
        """Again and again until ``end`` is None or the marker is acknowledged."""

        def attempt() -> None:
            wanted = end()
            if wanted is None:
                return
            if self._gone:
                done()
                return
            leader = self.leader
            if leader is None:
                self.attempt_later(attempt)
                return

            def replied(reply: object | None) -> None:
                error: int = NETWORK_EXCEPTION
                if reply is not None:
                    assert isinstance(reply, ProduceReply), reply
                    error = reply.partitions[0].error
                self.simulation.trace(f"{self.name}: {wanted} error {error}")
                if not error:
                    done()
                    return
                if error in NEVER_OF_A_MARKER and end() == wanted and not self.checkers.history(self.id).generation:
                    raise Violation(f"{self.name} was refused {wanted}: {error}")
                if self.leader == leader:
                    self.leader = None
                self.later(self.scheduler.between(2_000, 100_000), attempt, f"{self.name} retries")

            request = MarkersReceived(0, 1_500, (PartitionMarker(self.id, wanted),))
            self.ask(leader.endpoint, request, replied)

        attempt()


class TransactionCoordinator(Client):
    """See the module. ``put`` puts a question to it, over a road that loses some."""

    def __init__(self, simulation: Simulation, machine: Machine, checker: TransactionChecker) -> None:
        super().__init__("transaction-coordinator", simulation, machine)
        self.checker = checker
        self.producers: dict[str, CoordinatedProducer] = {}
        self._ids: dict[tuple[str, int], TopicIdPartition] = {}  # of the partitions that were heard of, by topic
        self._topics: dict[TopicIdPartition, str] = {}
        self._writers: dict[TopicIdPartition, MarkerWriter] = {}
        self._epoch = 0
        self._unavailable_until_ms = 0
        self._take_over_later()

    def follow(self, topic: str, id: TopicIdPartition) -> None:
        self._ids[topic, id.partition] = id
        self._topics[id] = topic

    def put(self, asker: Process, question: Callable[[], int], answered: Callable[[int], None]) -> None:
        """``question`` is put after a while, its answer comes after another; either may be lost, which
        is answered with NETWORK_EXCEPTION.
        """
        healing = self.simulation.is_healing

        def pause_us() -> int:
            typical_us = 50_000 if not healing and self.scheduler.chance(LATE) else 1_000
            return min(self.scheduler.skewed_us(typical_us), ANSWER_LOST_US)

        def lost() -> None:
            asker.later(ANSWER_LOST_US, lambda: answered(NETWORK_EXCEPTION), f"{asker.name} hears nothing")

        def arrive() -> None:
            error = UNAVAILABLE if self.now_ms < self._unavailable_until_ms else question()
            if not healing and self.scheduler.chance(LOST):
                lost()
            else:
                asker.later(pause_us(), lambda: answered(error), f"{asker.name} is answered")

        if not healing and self.scheduler.chance(LOST):
            lost()
        else:
            self.later(pause_us(), arrive, f"{asker.name} asks the coordinator")

    def initialise(self, asker: Process, transactional_id: str, version: int, answered: OnAnswer) -> None:
        given = CoordinatorSays(UNAVAILABLE)

        def question() -> int:
            nonlocal given
            error = self.begin_anew(transactional_id, version)
            known = self.producers[transactional_id]
            given = CoordinatorSays(error, known.producer_id, known.epoch)
            return error

        self.put(asker, question, lambda error: answered(given._replace(error=error)))

    def add_partitions(
        self, asker: Process, transaction: KnownTransaction, ids: Sequence[TopicIdPartition], answered: OnAnswer
    ) -> None:
        self.put(asker, lambda: self.add(transaction, ids), lambda error: answered(CoordinatorSays(error)))

    def decide(
        self, asker: Process, transaction: KnownTransaction, version: int, answered: OnAnswer, *, commits: bool
    ) -> None:
        epoch = transaction.producer_epoch + (version >= 2)
        self.put(
            asker,
            lambda: self.end_transaction(transaction, commits=commits),
            lambda error: answered(CoordinatorSays(error, transaction.producer_id, epoch)),
        )

    def verify_for(self, asker: Process, order: VerifyTransaction, answered: Callable[[int], None]) -> None:
        self.put(asker, lambda: self.verify(order), answered)

    def unfinished(self) -> str | None:
        for known in self.producers.values():
            if known.current is not None or known.ending is not None:
                return f"the coordinator is amid {known}"
        return None

    def _take_over_later(self) -> None:
        self.simulation.rhythm.later(self.later, 2_000_000, self._take_over, "a coordinator takes over")

    def _take_over(self) -> None:
        """Another process goes on with what had been decided, in the next epoch."""
        if self.simulation.is_healing:
            return
        self._epoch += 1
        self.simulation.counts["transaction coordinators that took over"] += 1
        self._unavailable_until_ms = self.now_ms + self.scheduler.between(0, 300)
        for producer in self.producers.values():
            if producer.ending is not None:
                self._mark(producer, producer.ending)
        self._take_over_later()

    # ---------------------------------------------------------------- questions

    def begin_anew(self, transactional_id: str, version: int) -> int:
        """InitProducerId: what the former instance left open is aborted first."""
        producer = self.producers.setdefault(transactional_id, CoordinatedProducer(transactional_id, version))
        if producer.producer_id < 0:
            self.ask_controller(InitProducerId(), lambda reply: self._got_id(producer, reply))
            return UNAVAILABLE
        if producer.ending is not None:
            return CONCURRENT
        producer.epoch += 1
        if producer.current is not None:
            self._decide(producer, producer.current, commits=False)
            return CONCURRENT
        return 0

    def _got_id(self, producer: CoordinatedProducer, reply: object | None) -> None:
        if isinstance(reply, ProducerIdAssigned) and not reply.error:
            self.simulation.producer_id_assigned(reply.producer_id)
            if producer.producer_id < 0:
                producer.producer_id, producer.epoch = reply.producer_id, reply.producer_epoch

    def add(self, transaction: KnownTransaction, ids: Iterable[TopicIdPartition]) -> int:
        """AddPartitionsToTxn of a producer."""
        producer = self.producers[transaction.name.transactional_id]
        if transaction.producer_epoch != producer.epoch:
            return FENCED
        if producer.ending is not None:
            return CONCURRENT
        if transaction.commits is not None:
            return ABORTABLE
        self._open(producer, transaction)
        transaction.partitions.update(ids)
        return 0

    def verify(self, order: VerifyTransaction) -> int:
        """A leader asks whether it may append, or to take its partition in."""
        producer = self.producers[order.membership.transactional_id]
        if order.producer_id != producer.producer_id:
            return INVALID_MAPPING
        if order.producer_epoch != producer.epoch:
            return FENCED
        if producer.ending is not None:
            return CONCURRENT
        id = self._ids[order.topic, order.partition]
        current = producer.current
        if not order.membership.adds:
            return 0 if current is not None and id in current.partitions else ABORTABLE
        transaction = self.checker.newest(producer.transactional_id, producer.epoch)
        self._open(producer, transaction)
        transaction.partitions.add(id)
        return 0

    def end_transaction(self, transaction: KnownTransaction, *, commits: bool) -> int:
        """EndTxn, which a producer repeats when it has heard nothing."""
        producer = self.producers[transaction.name.transactional_id]
        if producer.ending is not None:
            return CONCURRENT
        if transaction.commits is not None:
            return 0 if transaction.commits == commits else FENCED
        if transaction.producer_epoch != producer.epoch:
            return FENCED
        if producer.version >= 2:
            producer.epoch += 1
        self._decide(producer, transaction, commits=commits)
        return CONCURRENT if producer.ending is not None else 0

    def _open(self, producer: CoordinatedProducer, transaction: KnownTransaction) -> None:
        if producer.current is transaction:
            return
        assert producer.current is None, (producer, transaction.name)
        producer.current = transaction
        self.later(TIMEOUT_MS * 1_000, lambda: self._too_long(producer, transaction), "a transaction takes too long")

    def _too_long(self, producer: CoordinatedProducer, transaction: KnownTransaction) -> None:
        if producer.current is transaction:
            self.simulation.counts["transactions that took too long"] += 1
            producer.epoch += 1
            self._decide(producer, transaction, commits=False)

    # ---------------------------------------------------------------- ends

    def _decide(self, producer: CoordinatedProducer, transaction: KnownTransaction, *, commits: bool) -> None:
        transaction.commits = commits
        self.simulation.trace(f"{self.name}: {transaction.name} commits: {commits}")
        self.simulation.counts["transactions committed" if commits else "transactions aborted"] += 1
        producer.current = None
        if transaction.partitions:
            producer.ending = transaction
            self._mark(producer, transaction)

    def _mark(self, producer: CoordinatedProducer, transaction: KnownTransaction) -> None:
        marker = Marker.COMMIT if transaction.commits else Marker.ABORT
        end = TransactionEnd(producer.producer_id, producer.epoch, self._epoch, marker, version=producer.version)
        for id in sorted(transaction.partitions - transaction.marked):
            writer = self._writers.get(id)
            if writer is None:
                writer = self._writers[id] = MarkerWriter(self.simulation, self.machine, self._topics[id], id)
            self._write(producer, transaction, writer, end)

    def _write(
        self, producer: CoordinatedProducer, transaction: KnownTransaction, writer: MarkerWriter, end: TransactionEnd
    ) -> None:
        id = writer.id

        def wanted() -> TransactionEnd | None:
            """Nothing any more if another has got it there, or this coordinator is over."""
            return None if id in transaction.marked or end.coordinator_epoch != self._epoch else end

        def done() -> None:
            if id in transaction.marked:
                return
            transaction.marked.add(id)
            self._come_again(producer, writer, end)
            if producer.ending is transaction and transaction.marked >= transaction.partitions:
                producer.ending = None

        writer.write(wanted, done)

    def _come_again(self, producer: CoordinatedProducer, writer: MarkerWriter, end: TransactionEnd) -> None:
        """The same marker late once more, now and then; in version 1 only that of a coordinator that
        was over before, which the epoch tells, for nothing else does.
        """
        if self.simulation.is_healing or not self.scheduler.chance(0.4):
            return
        if producer.version < 2:
            if not end.coordinator_epoch:
                return
            end = replace(end, coordinator_epoch=end.coordinator_epoch - 1)
        left = [end]
        delay_us = self.scheduler.skewed_us(150_000)
        again = lambda: writer.write(lambda: left.pop() if left else None, lambda: None)  # noqa: E731
        self.later(delay_us, again, f"{writer.name} comes again")


__all__ = ["CoordinatedProducer", "MarkerWriter", "PartitionWriter", "TransactionCoordinator", "TransactionName"]
