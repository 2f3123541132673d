"""Transactions of a simulated cluster: their coordinator, its checker, their history, and all that
writes and reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raylog.log.log import Log
from raylog.replication.transaction_events import VerifyTransaction
from raylog.simulator.copy_checker import Chain
from raylog.simulator.processes import Process
from raylog.simulator.transaction_checker import TransactionChecker
from raylog.simulator.transaction_coordinator import Coordination, TransactionCoordinator
from raylog.simulator.transaction_history import TransactionHistory
from raylog.simulator.transactional_copiers import Copying
from raylog.simulator.transactional_producers import Answered, CommittedConsumer, TransactionalProducer
from raylog.types import TopicIdPartition

if TYPE_CHECKING:
    from raylog.simulator.checkers import History
    from raylog.simulator.simulation import Simulation

COPIERS = 0.5  # the share of runs with transactions in which somebody copies


class SimulatedTransactions:
    """See the module. ``is_on``: whether there are any."""

    copied_records_max, copied_bytes_max = 12, 300  # of what a copier copies at once
    hurried_records_max, hurried_bytes_max = 400, 12_000  # the same at the end, when all has to be copied

    def __init__(self, simulation: Simulation, *, is_on: bool) -> None:
        self.simulation = simulation
        self.is_on = is_on
        self._is_stopped = False
        self.checker = TransactionChecker(simulation.checkers)
        self.history = TransactionHistory(self.checker.holds)
        self.partitions: dict[TopicIdPartition, str] = {}
        self.producers: list[TransactionalProducer] = []
        self.coordinator: Coordination | None = None
        self.copying: Copying | None = None

    def follow(self, topic: str, id: TopicIdPartition, history: History) -> None:
        """There is a new partition."""
        if not self.is_on or history.compacts:
            return
        machine = self.simulation.client_machine
        if self.coordinator is None:
            self.coordinator = self._new_coordinator()
            self._begin()
            if self._is_stopped:
                self.stop()
        self.coordinator.follow(topic, id)
        self.partitions[id] = topic
        name = f"committed-consumer-{topic}{id.partition}"
        self.simulation.consumers.append(CommittedConsumer(name, self.simulation, machine, topic=topic, id=id))

    def seen(self, id: TopicIdPartition, log: Log, who: str) -> None:
        """A replica after an event; the checkers of the log have seen it."""
        self.checker.replica(id, log, who)

    def _new_coordinator(self) -> Coordination:
        return TransactionCoordinator(self.simulation, self.simulation.client_machine, self.checker)

    def _begin(self) -> None:
        scheduler = self.simulation.scheduler
        copies = scheduler.chance(COPIERS)
        for version in (1, 2, 2, 1)[: scheduler.rng.choice((3, 4)) - copies]:
            name = f"tx{version}.{len(self.simulation.client_machine.processes)}"
            self.producers.append(TransactionalProducer(name, self, version=version))
        if copies:
            self.copying = Copying(self)

    def chains(self) -> list[Chain]:
        """Those that are copied now."""
        return self.copying.chains() if self.copying is not None else []

    def may_be_copied(self, source: TopicIdPartition, *targets: TopicIdPartition) -> bool:
        """Copies must not go in circles, and nothing is copied to one place twice."""
        return not any(
            chain.source in targets or (chain.source == source and chain.target in targets) for chain in self.chains()
        )

    def verify(self, asker: Process, order: VerifyTransaction, answered: Answered) -> None:
        assert self.coordinator is not None, order
        self.coordinator.verify_for(asker, order, answered)

    def stop(self) -> None:
        self._is_stopped = True
        for producer in self.producers:
            producer.stop()
        if self.copying is not None:
            self.copying.stop()

    def unfinished(self) -> str | None:
        """What is not over yet, once no producer begins anything new."""
        for producer in self.producers:
            if not producer.is_idle:
                return f"{producer.name} is amid {producer.transaction}"
        if self.copying is not None and (reason := self.copying.unfinished()) is not None:
            return reason
        return self.coordinator.unfinished() if self.coordinator is not None else None

    def at_rest(self, id: TopicIdPartition, leader: Log) -> None:
        """Of one partition, once all is over."""
        self.checker.at_end(id, leader)
        if self.is_on:
            self.history.read_at_end(id, leader)

    def at_end(self) -> None:
        self.simulation.counts.update(self.history.judge())
        if self.copying is not None:
            self.copying.at_end()
