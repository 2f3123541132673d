"""Transactions in the simulated cluster with the production coordinator.

``TransactionSimulation`` is the simulation (``simulation``), with its faults, topics, clients and
checkers; but every replica process runs the production ``TransactionMachine`` for the partitions of
``__transaction_state`` that it leads (``hosted_coordinator``), in place of the model of a coordinator.
So a coordinator dies, is deposed, is cut off and loses its page cache like any leader. Producers of
both versions, and copiers, ask it over the network, and so do leaders for their leave to append.

What it decided is read from its log (``decided_transactions``), and the checkers of transactions, of
copies and of histories judge as they do with the model. At the end nothing may be under way, and
every replica's image of the transactions is the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from raylog.log.log import Log
from raylog.metadata.requests import CreateTopics, RequestedTopic
from raylog.offsets_topic import TRANSACTIONS_TOPIC
from raylog.simulator.administration import Administration
from raylog.simulator.checkers import Violation
from raylog.simulator.decided_transactions import DecidedTransactions
from raylog.simulator.hosted_coordinator import HostedCoordinator, TransactionProcess
from raylog.simulator.processes import Machine
from raylog.simulator.simulated_servers import BrokerProcess
from raylog.simulator.simulated_sessions import ActorSpec
from raylog.simulator.simulated_transactions import SimulatedTransactions
from raylog.simulator.simulation import Simulation
from raylog.simulator.transaction_coordinator import Coordination
from raylog.types import TopicIdPartition

PARTITIONS = 2  # of __transaction_state here: fifty would take the time of fifty logs
STATE_CONFIGS = (
    ("segment.index.bytes", "480"),
    ("index.interval.bytes", "200"),
    ("min.cleanable.dirty.ratio", "0.2"),
    ("delete.retention.ms", "1000"),
    ("segment.bytes", "5000"),
)


class HostedTransactions(SimulatedTransactions):
    """The coordinator is the cluster's own. It takes longer than the model, so more is copied at once."""

    copied_records_max, copied_bytes_max = 60, 3_000

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(simulation, is_on=True)
        self.decided = DecidedTransactions(
            simulation.checkers, self.checker, simulation.counts, lambda id: simulation.is_deleted(id)
        )
        self.checker.coordinator_has_lost = lambda: self.decided.has_lost
        self._hosted = HostedCoordinator(simulation, self.decided, PARTITIONS)

    def _new_coordinator(self) -> Coordination:
        return self._hosted

    def follow_state(self, id: TopicIdPartition) -> None:
        """There is a partition of ``__transaction_state``."""
        self.decided.follow_state(id)
        self._hosted.partitions[id.partition] = id

    def state_partitions(self) -> list[TopicIdPartition]:
        return list(self._hosted.partitions.values())

    def seen(self, id: TopicIdPartition, log: Log, who: str) -> None:
        super().seen(id, log, who)
        self.decided.seen(id)


class TransactionAdministration(Administration):
    """Makes ``__transaction_state`` first. People move its replicas as those of any other topic, but
    do not delete, grow or configure it.
    """

    simulation: TransactionSimulation

    def __init__(self, simulation: TransactionSimulation) -> None:
        super().__init__(simulation)
        self.partition_counts = (2, 2, 3)  # two are what a copier needs

    def _registered(self, reply: object) -> None:
        if self._to_register == 1:
            topic = RequestedTopic(TRANSACTIONS_TOPIC, PARTITIONS, -1, configs=STATE_CONFIGS)
            self.administrator.request(CreateTopics((topic,)), lambda reply: self._describe())
        super()._registered(reply)

    def _follow(self, name: str, id: TopicIdPartition, configs: dict[str, str]) -> None:
        if name != TRANSACTIONS_TOPIC:
            super()._follow(name, id, configs)
            return
        history = self.simulation.checkers.history(id, name)
        history.compacts = True
        history.delete_retention_ms = int(configs.get("delete.retention.ms", 0))
        history.clocks_are_set = "set a clock" in self.simulation.faults.mixture
        self.simulation.transactions.follow_state(id)

    @contextmanager
    def _others(self) -> Iterator[None]:
        """Only other topics are there to choose from."""
        state = self.topics.pop(TRANSACTIONS_TOPIC, None)
        try:
            yield
        finally:
            if state is not None:
                self.topics[TRANSACTIONS_TOPIC] = state

    def _delete_some(self) -> None:
        with self._others():
            super()._delete_some()

    def _grow_some(self) -> None:
        with self._others():
            super()._grow_some()

    def _configure_some(self) -> None:
        with self._others():
            super()._configure_some()


class TransactionSimulation(Simulation):
    """``TransactionSimulation(seed).run()``, as ``Simulation``."""

    coordinated_topics: ClassVar = (TRANSACTIONS_TOPIC,)

    def __init__(self, seed: int, **options: Any) -> None:
        super().__init__(seed, **options)
        self.administration: TransactionAdministration = TransactionAdministration(self)
        self.transactions: HostedTransactions = HostedTransactions(self)

    def start_actor(self, machine: Machine, spec: ActorSpec, *, is_broker: bool) -> None:
        self.counts["server starts"] += 1
        if is_broker:
            BrokerProcess(self, machine, spec)
        else:
            TransactionProcess(self, machine, spec)

    # ---------------------------------------------------------------- the end

    def _uneven(self) -> str | None:
        reason = super()._uneven()
        if reason is not None:
            return reason
        for id in self.transactions.state_partitions():
            for process, replica in self._replicas_of(id):
                assert isinstance(process, TransactionProcess)
                machine, end = process.transaction_machine(id), replica.open_log().log_end_offset
                position = machine.context.position if machine is not None else 0
                if position != end:
                    return f"{process.name} has read {TRANSACTIONS_TOPIC}-{id.partition} to {position} of {end}"
        return None

    def _compare(self) -> None:
        super()._compare()
        for id in self.transactions.state_partitions():
            images = []
            for process, _ in self._replicas_of(id):
                assert isinstance(process, TransactionProcess)
                machine = process.transaction_machine(id)
                images.append((process.name, dict(machine.image) if machine is not None else {}))
            for name, image in images[1:]:
                if image != images[0][1]:
                    raise Violation(f"{images[0]} has another picture of transactions than {name}: {image}")
            self.counts["transactional ids at rest"] += len(images[0][1])
