"""A whole cluster in one thread and virtual time: production machines, simulated everything else,
one seed for all of it.

Owns the cluster under test (machines, servers, the controller, clients), drives it, and asks for
progress at the end. After every event ``observer`` feeds the checkers. What runs in it is
production code: ``ReplicaHost`` with real ``Log``s, ``Controller`` with the Raft ``Quorum`` and its
log file. What is simulated: time (``scheduler``), connections (``simulated_network``), processes
and power (``processes``), disks (``simulated_files``), threads (an effect's result comes after a
random delay).

A run starts with the set-up of the cluster, which faults disturb in every fourth. Then it has two
parts. *Trouble*: clients work, faults strike (``faults``), topics come and go (``administration``),
for ``events`` events; nights may lie in between (``rhythm``). *Healing*: no more faults; the
cluster has to bring every partition back to a leader and a whole ISR, acknowledge everything that
producers still hold, let them produce anew, and end with byte-identical replicas. Anything broken
raises ``Violation`` (or the AssertionError of a machine's own ``check``).

One seed is one run: nothing here draws from anything but the scheduler's generator, so a trace can
be had of a run that failed.
"""

from __future__ import annotations

import errno
import os
import re
import uuid
import zlib
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any, ClassVar

from raylog.log.record_validation import WALKED_BYTES_MAX
from raylog.metadata.configuration.controller_config import ControllerConfig
from raylog.metadata.partitions.reassignments import is_under_way
from raylog.metadata.records import PartitionState
from raylog.metadata.requests import ElectionType
from raylog.replication.context import HostConfig
from raylog.replication.replica import Replica, Role
from raylog.simulator.administration import Administration
from raylog.simulator.bit_rot import BitRot
from raylog.simulator.checkers import Checkers, Violation
from raylog.simulator.clock_steps import ClockSteps
from raylog.simulator.faults import Faults
from raylog.simulator.observer import Observer
from raylog.simulator.processes import Machine
from raylog.simulator.rhythm import Rhythm
from raylog.simulator.scheduler import Scheduler
from raylog.simulator.simulated_controller import ControllerProcess
from raylog.simulator.simulated_network import Network
from raylog.simulator.simulated_quorum import Controllers, Place
from raylog.simulator.simulated_scaling import SimulatedScaling
from raylog.simulator.simulated_servers import BrokerProcess, ReplicaProcess
from raylog.simulator.simulated_sessions import ActorSpec, ServerProcess
from raylog.simulator.simulated_transactions import SimulatedTransactions
from raylog.simulator.workload import Client, SimulatedProducer
from raylog.types import Endpoint, TopicIdPartition

EVENTS = 4_000
SET_UP_EVENTS_MAX = 1_000
THREADS_REPORT_MS = 2_000
HEALING_MS = 120_000
EVERYTHING_EVERY = 100
EMPTY_BROKERS = 10  # brokers of larger ids have a controller and no replicas
NIGHTS = 0.1  # the share of runs that have some
CALM = 10  # by how much heartbeats and the like are slower in runs with nights, which are longer than others by far
CALMER, LONG_NIGHTS_MINUTES = 30, 60  # the same where the nights are long
THREE_CONTROLLERS = 0.65  # the share of runs with three; the others have one


class Simulation:
    """``Simulation(seed).run()`` returns when all promises held; ``trace_lines`` has what happened
    if ``tracing``.

    ``coordinated_topics``: those whose leaders coordinate something.
    """

    coordinated_topics: ClassVar[tuple[str, ...]] = ()
    runs_transactions: ClassVar[bool] = True

    def __init__(
        self,
        seed: int,
        *,
        events: int = EVENTS,
        night_minutes: int = 0,
        tracing: bool = False,
        on_line: Callable[[str], None] | None = None,
    ):
        """``night_minutes``: of the cluster's time, besides that of the events; 0: as the seed
        draws it, mostly none.
        """
        self.seed = seed
        self.events = events
        self.tracing = tracing
        self.on_line = on_line
        self.last_lines: deque[str] = deque(maxlen=40)
        self.counts: Counter[str] = Counter()
        self.scheduler = Scheduler(seed)
        self.rhythm = Rhythm(self.scheduler)
        self.network = Network(self.scheduler)
        self.checkers = Checkers(lambda: self.scheduler.now_ms)
        self.observer = Observer(self)
        rng = self.scheduler.rng
        self.cluster_id = "simulated-cluster"
        drawn_minutes = rng.randint(3, 15) if rng.random() < NIGHTS else 0
        self._nights = self._drawn_nights(night_minutes or drawn_minutes)
        self.calm = (CALMER if sum(self._nights) >= LONG_NIGHTS_MINUTES else CALM) if self._nights else 1
        self.host_config = self._drawn_host_config()
        self.controller_config = self._drawn_controller_config()
        brokers = rng.choice((3, 3, 3, 4))
        self.machines = [self._machine(f"b{number}") for number in range(1, brokers + 1)]
        self.broker_machines = list(self.machines)
        self.brokers = dict(enumerate(self.broker_machines, start=1))
        controller_count = 3 if rng.random() < THREE_CONTROLLERS else 1
        controller_brokers = list(self.brokers)[:controller_count]
        if rng.random() < 0.5:
            controller_brokers = [EMPTY_BROKERS + number for number in range(1, controller_count + 1)]
            self.brokers |= {broker: self._machine(f"c{broker - EMPTY_BROKERS}") for broker in controller_brokers}
            self.machines = list(self.brokers.values())
        self.client_machine = Machine("clients", self.scheduler, wall_offset_ms=0)
        self.network.add_machine(self.client_machine)
        self.all_machines = [*self.machines, self.client_machine]
        self.directory_ids = {broker: self.new_uuid() for broker in self.brokers}
        self._incarnations = 0
        self._producer_ids: set[int] = set()
        self.deleted_topics: set[uuid.UUID] = set()
        self._healing = False
        self._is_set_up_in_trouble = rng.random() < 0.25
        self._person_due_ms = 0
        self.producers: list[SimulatedProducer] = []
        self.consumers: list[Client] = []
        self.clock_steps = ClockSteps(self)
        self.controllers = Controllers(self, controller_brokers)
        self.controllers.start()
        self.bit_rot = BitRot(self)
        self.faults = Faults(self)
        self.administration = Administration(self)
        self.scaling = SimulatedScaling(self)
        self.transactions = SimulatedTransactions(self, is_on=self._draws_transactions())

    def _draws_transactions(self) -> bool:
        """By a hash: what the other seeds draw is what it was before there were transactions."""
        return self.runs_transactions and zlib.crc32(f"{self.seed} transactions".encode()) % 2 == 0

    def _drawn_host_config(self) -> HostConfig:
        rng = self.scheduler.rng
        return HostConfig(
            replica_lag_time_max_ms=rng.choice((500, 2_000, 10_000)) * self.calm,
            replica_fetch_wait_max_ms=500 * self.calm,
            replica_fetch_max_bytes=rng.choice((300, 1 << 20)),
            replica_fetch_response_max_bytes=rng.choice((1_000, 10 << 20)),
            replica_high_watermark_checkpoint_interval_ms=1_000 * self.calm,
            log_retention_check_interval_ms=3_000 * self.calm,
            log_cleaner_backoff_ms=300 * self.calm,
            replica_fetch_backoff_ms=500,
            # In every third seed a thread checks the records of each Produce before it is appended.
            walked_bytes_max=0 if self.seed % 3 == 2 else WALKED_BYTES_MAX,
            log_scrub_interval_ms=5_000 * self.calm,
        )

    def _drawn_controller_config(self) -> ControllerConfig:
        rng = self.scheduler.rng
        return ControllerConfig(
            heartbeat_interval_ms=1_000 * self.calm,
            session_timeout_ms=rng.choice((2_000, 4_000, 9_000)) * self.calm,
            hello_timeout_ms=5_000,
            start_backoff_max_ms=3_000,
            snapshot_bytes=rng.choice((1_000, 5_000, 20 << 20)),
            stable_after_ms=3_000,
            unclean_shutdown_election_wait_ms=30_000,
            high_watermark_record_interval_ms=500 * self.calm,
        )

    # ---------------------------------------------------------------- the cluster

    def _machine(self, name: str) -> Machine:
        machine = Machine(name, self.scheduler, wall_offset_ms=self.scheduler.between(-5_000, 5_000))
        machine.when_dark = lambda: self._dark(machine)
        machine.disk.evicts = self._evicts
        files = machine.disk.files()
        files.make_directory(f"/{name}")  # the disk's own folder was made and synced when it was formatted
        files.sync_directory("/")
        self.network.add_machine(machine)
        return machine

    def _evicts(self, path: str, page: int, now_ms: int) -> bool:
        """Every second seed has cold reads, of half of what was not used lately. By a hash: the
        draws of a seed are what they were.
        """
        return self.seed % 2 == 1 and zlib.crc32(f"{self.seed} {path} {page} {now_ms}".encode()) % 2 == 0

    def _dark(self, machine: Machine) -> None:
        self.trace(f"{machine.name} is dark")
        delay_ms = 200 if self._healing else self.scheduler.between(50, self.scheduler.rng.choice((500, 5_000)))
        self.scheduler.after_ms(delay_ms, lambda: self._light(machine), f"{machine.name} is back")

    def _light(self, machine: Machine) -> None:
        machine.turn_on()
        self.clock_steps.restarted(machine)
        self.controllers.start_later(machine)

    def new_uuid(self) -> uuid.UUID:
        return uuid.UUID(int=self.scheduler.rng.getrandbits(128), version=4)

    def new_incarnation(self) -> int:
        self._incarnations += 1
        return self._incarnations

    def start_actor(self, machine: Machine, spec: ActorSpec, *, is_broker: bool) -> None:
        self.counts["server starts"] += 1
        (BrokerProcess if is_broker else ReplicaProcess)(self, machine, spec)

    def new_controller(self, place: Place) -> ControllerProcess:
        return ControllerProcess(self, place)

    def machine_of(self, broker_id: int) -> Machine:
        return self.brokers[broker_id]

    def has_disk(self, broker_id: int, directory_id: uuid.UUID) -> bool:
        return self.directory_ids[broker_id] == directory_id

    # ---------------------------------------------------------------- views

    @property
    def is_healing(self) -> bool:
        return self._healing

    def servers(self) -> list[ServerProcess]:
        return [
            process for machine in self.machines for process in machine.processes if isinstance(process, ServerProcess)
        ]

    def replica_processes(self) -> list[ReplicaProcess]:
        return [process for process in self.servers() if isinstance(process, ReplicaProcess)]

    def process_of(self, broker: int, incarnation: int) -> ReplicaProcess | None:
        """The process of that incarnation on a broker's machine, while it lives."""
        for process in self.machine_of(broker).processes:
            if isinstance(process, ReplicaProcess) and process.spec.incarnation == incarnation:
                return process
        return None

    def leaders(self) -> list[ReplicaProcess]:
        return [
            process
            for process in self.replica_processes()
            if any(replica.role is Role.LEADER for replica in process.host.replicas.values())
        ]

    def endpoint_of_any_replica(self, id: TopicIdPartition) -> Endpoint | None:
        holders = [process for process in self.replica_processes() if id in process.host.replicas]
        return self.scheduler.rng.choice(holders).endpoint if holders else None

    def state_of(self, id: TopicIdPartition) -> PartitionState | None:
        """The committed state of a partition, as known to whoever knows most."""
        return self.observer.states.get(id)

    def is_deleted(self, id: TopicIdPartition) -> bool:
        return id.topic_id in self.deleted_topics

    def producer_id_assigned(self, producer_id: int) -> None:
        if producer_id in self._producer_ids:
            raise Violation(f"producer id {producer_id} was given out twice")
        self._producer_ids.add(producer_id)

    def acknowledged_alone(self, id: TopicIdPartition, leader_epoch: int, base_offset: int) -> None:
        """A leader tells a producer with acks=1 that it has a batch. For those who hold it to that."""

    # ---------------------------------------------------------------- tracing

    def trace(self, line: str) -> None:
        if self.tracing:
            line = f"{self.scheduler.steps:6d} {self.scheduler.now_us / 1000:12.3f}  {line}"
            self.last_lines.append(line)
            if self.on_line is not None:
                self.on_line(line)

    def trace_event(self, name: str, event: object) -> None:
        if self.tracing:
            text = re.sub(" at 0x[0-9a-f]+", "", repr(event))
            self.trace(f"{name} {text if len(text) < 400 else text[:400] + '…'}")

    # ---------------------------------------------------------------- running

    def run(self) -> None:
        self.administration.start()
        if self._is_set_up_in_trouble:
            self.faults.start()
        while not self.counts["elections"] and self.scheduler.steps < SET_UP_EVENTS_MAX:
            self._step()
        if not self._is_set_up_in_trouble:
            self.faults.start()
        part = self.events // (len(self._nights) + 1)
        self._live_for(part)
        for minutes in self._nights:
            self._sleep(minutes)
            self._live_for(part)
        self._heal()

    def _drawn_nights(self, minutes: int) -> list[int]:
        """One of all, or several that differ."""
        if not minutes:
            return []
        cuts = sorted(self.scheduler.between(0, minutes) for _ in range(self.scheduler.rng.choice((0, 1, 2))))
        return [end - start for start, end in pairwise((0, *cuts, minutes))]

    def _live_for(self, events: int) -> None:
        end = self.scheduler.steps + events
        while self.scheduler.steps < end:
            self._step()

    def _sleep(self, minutes: int) -> None:
        self.trace(f"night falls, for {minutes} minutes")
        self.counts["nights"] += 1
        self.rhythm.fall_asleep()
        end_ms = self.scheduler.now_ms + minutes * 60_000
        while self.scheduler.now_ms < end_ms:
            self._step()
        self.rhythm.wake_up()
        self.trace("day breaks")

    def _step(self) -> None:
        label = self.scheduler.run_next()
        assert label is not None, "nothing is left to do"
        if self.scheduler.steps % (10 * EVERYTHING_EVERY if self.rhythm.is_night else EVERYTHING_EVERY) == 0:
            self.observer.check_everything()

    def _run_until(self, done: Callable[[], str | None], deadline_ms: int) -> None:
        """Goes on until ``done`` returns None; what it says instead is why not yet."""
        while (reason := done()) is not None:
            if self.scheduler.now_ms > deadline_ms:
                raise Violation(f"no progress after healing: {reason}")
            for _ in range(20):
                self._step()

    def _heal(self) -> None:
        self.trace("healing")
        self._healing = True
        self.faults.stop()
        self.administration.stop()
        self.network.heal()
        for machine in self.machines:
            machine.broken = None
            for process in list(machine.processes):
                process.resume()
        self.replace_failed()
        # A thread may still have to report an error that it met before.
        self.scheduler.after_ms(THREADS_REPORT_MS, self.replace_failed, "what has failed is replaced")
        deadline_ms = self.scheduler.now_ms + HEALING_MS * self.calm
        self._run_until(self._unready, deadline_ms)
        self._stop_producing()
        self.transactions.stop()
        self._run_until(self._unfinished, deadline_ms)
        for client in (*self.producers, *self.consumers):
            client.stop()
        self._run_until(self._uneven, deadline_ms)
        self.observer.check_everything()
        self._compare()

    def partitions(self) -> list[tuple[TopicIdPartition, str, PartitionState]]:
        """What the active controller knows of them; nothing while there is none."""
        active = self.controllers.active()
        if active is None or active.controller is None:
            return []
        image = active.controller.image
        return [
            (TopicIdPartition(topic_id, partition), topic.name, state)
            for topic_id, topic in image.topics.items()
            for partition, state in topic.partitions.items()
        ]

    def decided(self, id: TopicIdPartition) -> PartitionState | None:
        """What the active controller has decided last of a partition, whether that is committed or
        not yet.
        """
        active = self.controllers.active()
        office = active.controller.active if active is not None and active.controller is not None else None
        topic = office.latest.topics.get(id.topic_id) if office is not None else None
        return topic.partitions.get(id.partition) if topic is not None else None

    def replace_failed(self, machine: Machine | None = None) -> None:
        """Somebody mends the disks, of one machine or all, and restarts what an IO error took
        offline.

        No process goes on by itself after one (DESIGN §4).
        """
        for process in self.replica_processes():
            if machine is not None and process.machine is not machine:
                continue
            reasons = [replica.reason for replica in process.host.replicas.values() if replica.role is Role.OFFLINE]
            if any(os.strerror(code) in (reason or "") for reason in reasons for code in (errno.EIO, errno.ENOSPC)):
                self.trace(f"{process.name} is restarted: {reasons}")
                process.kill()

    def _unready(self) -> str | None:
        reason = self.controllers.incomplete()
        if reason is not None:
            return reason
        for id, topic, state in self.partitions():
            if state.leader < 0 or len(state.isr) != len(state.replicas):
                if (
                    state.leader < 0
                    and not state.isr
                    and not state.elr
                    and self._person_due_ms <= self.scheduler.now_ms
                ):
                    # Everything is gone and unclean election is off: only a person can decide to go
                    # on (DESIGN §6).
                    self._person_due_ms = self.scheduler.now_ms + 1_000
                    self.administration.elect(ElectionType.UNCLEAN)
                return f"{topic}-{id.partition} has leader {state.leader}, isr {state.isr}, elr {state.elr}"
            if state.futures:
                return f"{topic}-{id.partition} is still on its way to another disk: {state.futures}"
            if is_under_way(state):
                return f"{topic}-{id.partition} is still being reassigned: adding {state.adding}, removing {state.removing}"
        return None

    def _stop_producing(self) -> None:
        for producer in self.producers:
            if producer.producing:
                producer.produce_last()

    def _unfinished(self) -> str | None:
        self._stop_producing()  # a topic that was asked for before the healing may have come since
        for producer in self.producers:
            if not producer.is_idle:
                return f"{producer.name} still waits for {len(producer.unsent)} + {len(producer.in_flight)} batches"
        return self.transactions.unfinished()

    def _replicas_of(self, id: TopicIdPartition) -> list[tuple[ReplicaProcess, Replica]]:
        return [
            (process, process.host.replicas[id])
            for process in self.replica_processes()
            if id in process.host.replicas and process.host.replicas[id].log is not None
        ]

    def _uneven(self) -> str | None:
        reason = self._unready()
        if reason is not None:
            return reason
        for id, topic, state in self.partitions():
            holders = sorted(process.spec.node_id for process, _ in self._replicas_of(id))
            if holders != sorted(slot.node_id for slot in state.replicas):
                return f"{topic}-{id.partition} is open at {holders}, assigned to {state.replicas}"
            logs = [replica.open_log() for _, replica in self._replicas_of(id)]
            if len(logs) != len(state.replicas):
                return f"{topic}-{id.partition}: {len(logs)} of {len(state.replicas)} replicas are open"
            if len({(log.log_end_offset, log.high_watermark) for log in logs}) != 1 or (
                logs[0].log_end_offset != logs[0].high_watermark
            ):
                ends = [(log.log_end_offset, log.high_watermark) for log in logs]
                return f"{topic}-{id.partition}: ends and high watermarks {ends}"
        return self.bit_rot.unmended() or self._unfinished()

    def _compare(self) -> None:
        for id, _, state in self.partitions():
            replicas = self._replicas_of(id)
            logs = [(process.host.context.broker_id, replica.open_log()) for process, replica in replicas]
            self.checkers.identical(id, logs)
            leader = next(log for broker, log in logs if broker == state.leader)
            self.transactions.at_rest(id, leader)
            for producer in self.producers:
                if producer.id == id:
                    self.checkers.kept(id, producer.ledger, leader)
        self.transactions.at_end()

    # ---------------------------------------------------------------- small things for the shells

    @staticmethod
    def with_token(request: Any, token: int) -> Any:
        """The same event under the shell's own name for the request."""
        return replace(request, token=token)
