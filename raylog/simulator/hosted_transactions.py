"""Transactions in the simulated cluster with the production coordinator.

``TransactionSimulation`` is the simulation (``simulation``), with its faults, topics, clients and
checkers; but every replica process runs the production ``TransactionMachine`` for the partitions of
``__transaction_state`` that it leads (``hosted_coordinator``), in place of the model of a coordinator.
So a coordinator dies, is deposed, is cut off and loses its page cache like any leader. Producers of
both versions, and copiers, ask it over the network, and so do leaders for their leave to append.

The same processes run the production coordinator of groups for ``__consumer_offsets``. In most runs a
group copies and commits its offsets in transactions (``group_copiers``), and in most a job writes, whose
tasks are participants of one transaction (``simulated_jobs``). Now and then a coordinator dies when it
has decided, before all markers are written.

What it decided is read from its log (``decided_transactions``), and the checkers of transactions, of
copies and of histories judge as they do with the model. At the end nothing may be under way
or pending, and every replica's image of the transactions and of the groups is the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, assert_never

from raylog.groups.context import GroupConfig
from raylog.groups.machine import GroupMachine
from raylog.log.log import Log
from raylog.metadata.requests import CreateTopics, RequestedTopic
from raylog.offsets_topic import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from raylog.simulator.administration import Administration
from raylog.simulator.committed_offsets import CommittedOffsets
from raylog.simulator.copy_checker import Chain
from raylog.simulator.decided_transactions import DecidedTransactions
from raylog.simulator.group_copiers import CopyingMember, GroupCopying
from raylog.simulator.hosted_coordinator import HostedCoordinator, TransactionProcess
from raylog.simulator.processes import Machine
from raylog.simulator.simulated_groups import known_groups
from raylog.simulator.simulated_jobs import SimulatedJob
from raylog.simulator.simulated_servers import BrokerProcess
from raylog.simulator.simulated_sessions import ActorSpec
from raylog.simulator.simulated_transactions import SimulatedTransactions
from raylog.simulator.simulation import Simulation
from raylog.simulator.transaction_coordinator import Coordination
from raylog.transactions.machine import TransactionMachine
from raylog.types import TopicIdPartition

PARTITIONS = 2  # of each of those topics here: fifty would take the time of fifty logs
STATE_TOPICS = (TRANSACTIONS_TOPIC, OFFSETS_TOPIC)
GROUPS = 0.8  # the share of runs in which a group copies
JOBS = 0.7  # the share of runs in which a job writes
DEATHS_AFTER_DECISIONS = 0.05
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

    def __init__(self, simulation: TransactionSimulation) -> None:
        super().__init__(simulation, is_on=True)
        self.decided = DecidedTransactions(
            simulation.checkers, self.checker, simulation.counts, lambda id: simulation.is_deleted(id)
        )
        self.checker.coordinator_has_lost = lambda: self.decided.has_lost
        self.committed_offsets = CommittedOffsets(simulation.counts, lambda: self.decided.has_lost)
        self.hosted = HostedCoordinator(simulation, self.decided, PARTITIONS)
        self.group_copying: GroupCopying | None = None
        self.job: SimulatedJob | None = None
        self.decided.on_decision = self._decided_in
        self._offsets: dict[int, TopicIdPartition] = {}
        delay_ms = simulation.scheduler.rng.choice((0, 200))
        self.group_config = GroupConfig(
            group_initial_rebalance_delay_ms=delay_ms,
            offsets_commit_timeout_ms=1_000,
            group_min_session_timeout_ms=CopyingMember.session_ms,
        )

    def _new_coordinator(self) -> Coordination:
        return self.hosted

    def _begin(self) -> None:
        super()._begin()
        if self.simulation.scheduler.chance(GROUPS):
            self.group_copying = GroupCopying(self)
        if self.simulation.scheduler.chance(JOBS):
            self.job = SimulatedJob(self)

    def _decided_in(self, id: TopicIdPartition) -> None:
        """Something was decided in that partition of ``__transaction_state``."""
        scheduler = self.simulation.scheduler
        if not self.simulation.is_healing and scheduler.chance(DEATHS_AFTER_DECISIONS):
            dies = lambda: self._coordinator_dies(id)  # noqa: E731
            scheduler.after_us(scheduler.between(1, 8_000), dies, "a coordinator dies after a decision")

    def _coordinator_dies(self, id: TopicIdPartition) -> None:
        if self.simulation.is_healing or not self.decided.are_ending(id):
            return
        leaders = [
            (replica.assignment.leader_epoch, process.spec.incarnation, process)
            for process in self.simulation.replica_processes()
            if (replica := process.host.replicas.get(id)) is not None and replica.leader is not None
        ]
        if leaders:
            _, _, process = max(leaders)
            self.simulation.trace(f"{process.name} dies between a decision and its markers")
            self.simulation.counts["coordinators that died between a decision and its markers"] += 1
            process.kill()

    def chains(self) -> list[Chain]:
        return super().chains() + (self.group_copying.chains() if self.group_copying is not None else [])

    def follow_state(self, id: TopicIdPartition) -> None:
        """There is a partition of ``__transaction_state``."""
        self.decided.follow_state(id)
        self.hosted.partitions[id.partition] = id

    def follow_offsets(self, id: TopicIdPartition) -> None:
        """There is a partition of ``__consumer_offsets``."""
        self._offsets[id.partition] = id

    def state_partitions(self) -> list[TopicIdPartition]:
        return list(self.hosted.partitions.values())

    def offsets_partitions(self) -> list[TopicIdPartition]:
        """All of them by number, or none yet."""
        return [self._offsets[number] for number in range(PARTITIONS)] if len(self._offsets) == PARTITIONS else []

    def seen(self, id: TopicIdPartition, log: Log, who: str) -> None:
        super().seen(id, log, who)
        self.decided.seen(id)

    def at_rest(self, id: TopicIdPartition, leader: Log) -> None:
        super().at_rest(id, leader)
        if self.job is not None:
            self.job.checker.at_rest(id, leader)

    def stop(self) -> None:
        super().stop()
        if self.job is not None:
            self.job.stop()

    def unfinished(self) -> str | None:
        if self.job is not None and (reason := self.job.unfinished()) is not None:
            return reason
        if self.group_copying is not None and (reason := self.group_copying.unfinished()) is not None:
            return reason
        return super().unfinished()

    def at_end(self) -> None:
        super().at_end()
        if self.group_copying is not None:
            self.group_copying.at_end()
        if self.job is not None:
            self.job.checker.at_end()


class TransactionAdministration(Administration):
    """Makes ``__transaction_state`` and ``__consumer_offsets`` first. People move their replicas as those
    of any other topic, but do not delete, grow or configure them.
    """

    simulation: TransactionSimulation

    def __init__(self, simulation: TransactionSimulation) -> None:
        super().__init__(simulation)
        self.partition_counts = (2, 2, 3)  # two are what a copier needs

    def _registered(self, reply: object) -> None:
        if self._to_register == 1:
            topics = [RequestedTopic(name, PARTITIONS, -1, configs=STATE_CONFIGS) for name in STATE_TOPICS]
            self.administrator.request(CreateTopics(tuple(topics)), lambda reply: self._describe())
        super()._registered(reply)

    def _follow(self, name: str, id: TopicIdPartition, configs: dict[str, str]) -> None:
        if name not in STATE_TOPICS:
            super()._follow(name, id, configs)
            return
        history = self.simulation.checkers.history(id, name)
        history.compacts = history.is_coordinated = True
        set_back_ms = self.simulation.clock_steps.set_back_ms
        history.delete_retention_ms = int(configs.get("delete.retention.ms", 0)) - set_back_ms
        history.clocks_are_set = "set a clock" in self.simulation.faults.mixture
        if name == TRANSACTIONS_TOPIC:
            self.simulation.transactions.follow_state(id)
        else:
            self.simulation.transactions.follow_offsets(id)

    @contextmanager
    def _others(self) -> Iterator[None]:
        """Only other topics are there to choose from."""
        those = {name: self.topics.pop(name) for name in STATE_TOPICS if name in self.topics}
        try:
            yield
        finally:
            self.topics |= those

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

    coordinated_topics: ClassVar = STATE_TOPICS

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
        transactions = self.transactions
        for id in (*transactions.state_partitions(), *transactions.offsets_partitions()):
            for process, replica in self._replicas_of(id):
                assert isinstance(process, TransactionProcess)
                machine, end = process.machine_of(id), replica.open_log().log_end_offset
                position = machine.context.position if machine is not None else 0
                if position != end:
                    name = self.checkers.history(id).name
                    return f"{process.name} has read {name} to {position} of {end}"
        return None

    def _compare(self) -> None:
        super()._compare()
        transactions = self.transactions
        for id in transactions.state_partitions():
            self.counts["transactional ids at rest"] += self._compare_images(id)
        for id in transactions.offsets_partitions():
            self.counts["groups at rest"] += self._compare_images(id)

    def _compare_images(self, id: TopicIdPartition) -> int:
        """Those of all replicas are the same, and nothing is pending. Returns how many entries they have."""
        history = self.checkers.history(id)
        forgotten = self.checkers.forgotten(history)
        images = []
        for process, _ in self._replicas_of(id):
            assert isinstance(process, TransactionProcess)
            machine = process.machine_of(id)
            images.append((process.name, _entries(machine, forgotten)))
            pending = _pending(machine)
            if pending and not history.generation and not self.transactions.decided.has_lost:
                raise history.fail(f"{process.name} has offsets of transactions that never end: {pending}")
        for name, image in images[1:]:
            if image != images[0][1]:
                raise history.fail(f"{images[0]} has another picture than {name}: {image}")
        return len(images[0][1])


def _entries(machine: TransactionMachine | GroupMachine | None, forgotten: set[bytes | None]) -> Mapping[str, object]:
    match machine:
        case TransactionMachine():
            return dict(machine.image)
        case GroupMachine():
            return known_groups(machine, forgotten)
        case None:
            return {}
        case _:
            assert_never(machine)


def _pending(machine: TransactionMachine | GroupMachine | None) -> list[str]:
    """The groups with offsets of open transactions."""
    if not isinstance(machine, GroupMachine):
        return []
    return [group_id for group_id, stored in machine.image.groups.items() if stored.pending]
