"""A whole cluster in one thread and virtual time: production machines, simulated everything else, one seed for all of it.

Owns the cluster under test (machines, servers, the controller, clients), drives it, feeds the checkers after every event, and
asks for progress at the end. What runs in it is production code:
``ReplicaHost`` with real ``Log``s, ``Controller`` with the Raft ``Quorum`` and its log file. What is simulated: time
(``scheduler``), connections (``simulated_network``), processes and power (``processes``), disks (``simulated_files``), threads
(an effect's result comes after a random delay).

A run starts with the set-up of the cluster, which faults disturb in every fourth. Then it has two parts. *Trouble*: clients work,
faults strike (``faults``), topics come and go (``administration``), for ``events`` events; nights may lie in between (``rhythm``).
*Healing*: no more faults; the cluster has to bring every partition back to a leader and a whole ISR, acknowledge everything that producers
still hold, let them produce anew, and end with byte-identical replicas. Anything broken raises ``Violation`` (or the AssertionError of a
machine's own ``check``).

One seed is one run: nothing here draws from anything but the scheduler's generator, so a trace can be had of a run that failed.
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
from typing import Any

from raylog.log.log import Log
from raylog.log.record_validation import WALKED_BYTES_MAX
from raylog.metadata.controller_config import ControllerConfig
from raylog.metadata.image import MetadataImage
from raylog.metadata.reassignments import is_under_way
from raylog.metadata.records import PartitionState
from raylog.metadata.requests import ElectionType
from raylog.metadata.session import Assignment, Condition
from raylog.replication.context import HostConfig
from raylog.replication.leader import Leader
from raylog.replication.replica import Replica, Role
from raylog.testing.administration import Administration
from raylog.testing.bit_rot import BitRot
from raylog.testing.checkers import Checkers, ReplicaMemory, Violation
from raylog.testing.clock_steps import ClockSteps
from raylog.testing.faults import Faults
from raylog.testing.processes import Machine
from raylog.testing.rhythm import Rhythm
from raylog.testing.scheduler import Scheduler
from raylog.testing.simulated_controller import ControllerProcess
from raylog.testing.simulated_network import Network
from raylog.testing.simulated_quorum import Controllers
from raylog.testing.simulated_servers import ActorSpec, BrokerProcess, ReplicaProcess, ServerProcess
from raylog.testing.workload import Client, Producer
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
SPARED = 4  # by night the host's own invariants are checked after every fourth event only: that was a third of the time
THREE_CONTROLLERS = 0.65  # the share of runs with three; the others have one


class Simulation:
    """``Simulation(seed).run()`` returns when all promises held; ``trace_lines`` has what happened if ``tracing``."""

    def __init__(
        self,
        seed: int,
        *,
        events: int = EVENTS,
        night_minutes: int = 0,
        tracing: bool = False,
        on_line: Callable[[str], None] | None = None,
    ):
        """``night_minutes``: of the cluster's time, besides that of the events; 0: as the seed draws it, mostly none."""
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
        rng = self.scheduler.rng
        self.cluster_id = "simulated-cluster"
        drawn_minutes = rng.randint(3, 15) if rng.random() < NIGHTS else 0
        self._nights = self._drawn_nights(night_minutes or drawn_minutes)
        self.calm = (CALMER if sum(self._nights) >= LONG_NIGHTS_MINUTES else CALM) if self._nights else 1
        self.host_config = HostConfig(
            replica_lag_time_max_ms=rng.choice((500, 2_000, 10_000)) * self.calm,
            replica_fetch_wait_max_ms=500 * self.calm,
            replica_fetch_max_bytes=rng.choice((300, 1 << 20)),
            replica_fetch_response_max_bytes=rng.choice((1_000, 10 << 20)),
            replica_high_watermark_checkpoint_interval_ms=1_000 * self.calm,
            log_retention_check_interval_ms=3_000 * self.calm,
            log_cleaner_backoff_ms=300 * self.calm,
            replica_fetch_backoff_ms=500,
            # In every third seed a thread checks the records of each Produce before it is appended.
            walked_bytes_max=0 if seed % 3 == 2 else WALKED_BYTES_MAX,
            log_scrub_interval_ms=5_000 * self.calm,
        )
        self.controller_config = ControllerConfig(
            heartbeat_interval_ms=1_000 * self.calm,
            session_timeout_ms=rng.choice((2_000, 4_000, 9_000)) * self.calm,
            hello_timeout_ms=5_000,
            start_backoff_max_ms=3_000,
            snapshot_bytes=rng.choice((1_000, 5_000, 20 << 20)),
            stable_after_ms=3_000,
            unclean_shutdown_election_wait_ms=30_000,
        )
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
        self._memories: dict[tuple[int, TopicIdPartition], ReplicaMemory] = {}
        self._states: dict[TopicIdPartition, PartitionState] = {}
        self._committed_index = 0  # of the metadata log: ``_states`` is what all entries up to it fold to
        self._registered: dict[
            int, int
        ] = {}  # incarnations by node at the last look: later decisions name no older ones
        self._producer_ids: set[int] = set()
        self.deleted_topics: set[uuid.UUID] = set()
        self._healing = False
        self._is_set_up_in_trouble = rng.random() < 0.25
        self._person_due_ms = 0
        self.producers: list[Producer] = []
        self.consumers: list[Client] = []
        self.clock_steps = ClockSteps(self)
        self.controllers = Controllers(self, controller_brokers)
        self.controllers.start()
        self.bit_rot = BitRot(self)
        self.faults = Faults(self)
        self.administration = Administration(self)

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
        """Every second seed has cold reads, of half of what was not used lately. By a hash: the draws of a seed are what they were."""
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

    def machine_of(self, broker_id: int) -> Machine:
        return self.brokers[broker_id]

    # ---------------------------------------------------------------- views

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
        return self._states.get(id)

    def is_deleted(self, id: TopicIdPartition) -> bool:
        return id.topic_id in self.deleted_topics

    def producer_id_assigned(self, producer_id: int) -> None:
        if producer_id in self._producer_ids:
            raise Violation(f"producer id {producer_id} was given out twice")
        self._producer_ids.add(producer_id)

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

    # ---------------------------------------------------------------- what an event touched is checked after it

    def log_opened(self, process: ReplicaProcess, assignment: Assignment, log: Log) -> None:
        self.counts["logs opened"] += 1
        self.counts[f"opened {log.condition.value}"] += 1
        if log.recovery.cut_bytes:
            self.counts["torn tails"] += 1
        if log.condition is Condition.SUSPECT:
            self.counts["suspect replicas"] += 1
        self.trace(f"{process.name} opened {log.where}: {log.condition.value}, end {log.log_end_offset}")

    def log_deleted(self, process: ReplicaProcess, id: TopicIdPartition) -> None:
        """The replica was removed: if it comes back to this process it is a new one, with nothing to remember."""
        self._memories.pop((process.spec.incarnation, id), None)

    def check_host(self, process: ReplicaProcess) -> None:
        if not (self.rhythm.is_night and self.scheduler.steps % SPARED):
            process.host.check()
        for id, replica in process.host.replicas.items():
            if replica.log is not None and replica.role in (Role.LEADER, Role.FOLLOWER):
                self._check_replica(process, id, replica, replica.log)
            elif replica.role is Role.OFFLINE:
                self._check_failed(process, id, replica)

    def _check_replica(self, process: ReplicaProcess, id: TopicIdPartition, replica: Replica, log: Log) -> None:
        key = (process.spec.incarnation, id)
        memory = self._memories.get(key)
        if memory is None:
            memory = self._memories[key] = ReplicaMemory()
        elif log.log_end_offset < memory.log_end_offset:
            self.counts["truncations"] += 1
        assignment = replica.assignment
        was_leader, epoch = memory.is_leader, memory.leader_epoch
        self.checkers.replica(
            memory,
            id,
            assignment.topic,
            log,
            broker=process.host.context.broker_id,
            incarnation=process.spec.incarnation,
            is_leader=replica.role is Role.LEADER,
            leader_epoch=assignment.leader_epoch,
            partition_epoch=assignment.partition_epoch,
        )
        if replica.leader is not None:
            self._check_counted(memory, id, replica.leader)
        if memory.is_leader and (not was_leader or epoch != memory.leader_epoch):
            self.counts["elections"] += 1
            self.trace(f"{process.name} leads {log.where} in epoch {memory.leader_epoch} from {log.log_end_offset}")

    def _check_counted(self, memory: ReplicaMemory, id: TopicIdPartition, leader: Leader) -> None:
        for broker, progress in leader.followers.items():
            counted = (progress.incarnation, progress.log_end_offset)
            if progress.log_end_offset < 0 or memory.counted.get(broker) == counted:
                continue
            memory.counted[broker] = counted
            process = self.process_of(broker, progress.incarnation)
            replica = process.host.replicas.get(id) if process is not None else None
            if replica is None or replica.log is None or replica.role is not Role.FOLLOWER:
                continue
            if replica.assignment.leader_epoch == leader.leader_epoch:
                self.checkers.counts(memory, id, broker, progress.log_end_offset, replica.log)

    def _check_failed(self, process: ReplicaProcess, id: TopicIdPartition, replica: Replica) -> None:
        """A replica that failed may have moved its high watermark, and acknowledged by it, in that same event."""
        memory = self._memories.get((process.spec.incarnation, id))
        if memory is not None and memory.log is not None:
            log, memory.log = memory.log, None
            assignment = replica.assignment  # it may have come in that event, too
            is_same_epoch = assignment.leader_epoch == memory.leader_epoch
            self.checkers.replica(
                memory,
                id,
                replica.assignment.topic,
                log,
                broker=process.host.context.broker_id,
                incarnation=process.spec.incarnation,
                is_leader=memory.is_leader,
                leader_epoch=memory.leader_epoch,
                partition_epoch=assignment.partition_epoch if is_same_epoch else memory.partition_epoch,
            )
            memory.log = None

    def check_controller(self, process: ControllerProcess) -> None:
        """The quorum's promises, and every partition whose committed state is another than before: seen in whoever knows first."""
        controller = process.controller
        if controller is None:
            return
        self.controllers.checker.check(process, controller.quorum)
        index = controller.quorum.delivered_index
        if index < self._committed_index or index == process.checked_index:
            return
        self._committed_index = process.checked_index = index
        image = controller.image
        states = self._states
        for topic_id, topic in image.topics.items():
            for partition, state in topic.partitions.items():
                id = TopicIdPartition(topic_id, partition)
                known = states.get(id)
                if state is not known:
                    states[id] = state
                    if known != state:
                        self._decided(id, topic.name, known, state)
                        if known is not None and state.unclean_elections == known.unclean_elections:
                            self._check_joined(id, topic.name, image, known, state)
        self._registered = {node: actor.incarnation for node, actor in image.actors.items()}

    def assigned(self, assignment: Assignment) -> None:
        """The controller says so, hence it is committed, though a later decision may already stand in its image."""
        leader = next((each for each in assignment.replicas if each.broker_id == assignment.leader), None)
        self.checkers.assigned(
            assignment.id,
            assignment.topic,
            leader=assignment.leader,
            leader_incarnation=leader.incarnation if leader is not None else 0,
            leader_epoch=assignment.leader_epoch,
            partition_epoch=assignment.partition_epoch,
            isr_size=len(assignment.isr),
            min_isr=assignment.min_isr,
        )

    def _decided(self, id: TopicIdPartition, topic: str, known: PartitionState | None, state: PartitionState) -> None:
        if known is not None:
            self.counts["isr shrinks"] += len(state.isr) < len(known.isr)
            self.counts["isr expansions"] += len(state.isr) > len(known.isr)
            self._count_reassignment(known, state)
            self.counts["elections from the elr"] += state.leader in known.elr and state.leader != known.leader
        self.trace(
            f"decided {topic}-{id.partition}: leader {state.leader} epoch {state.leader_epoch}/{state.partition_epoch} "
            f"isr {state.isr} elr {state.elr} unclean {state.unclean_elections}"
        )
        self.bit_rot.decided(id, state.brokers)
        self.checkers.decided(
            id,
            topic,
            leader=state.leader,
            leader_incarnation=state.leader_incarnation,
            leader_epoch=state.leader_epoch,
            partition_epoch=state.partition_epoch,
            unclean_elections=state.unclean_elections,
        )

    def _count_reassignment(self, known: PartitionState, state: PartitionState) -> None:
        was, is_now = is_under_way(known), is_under_way(state)
        gone = [slot for slot in known.replicas if slot.node_id not in {each.node_id for each in state.replicas}]
        self.counts["reassignments"] += is_now and not was
        if was and {slot.broker_id for slot in gone} & set(known.adding):
            self.counts["cancelled reassignments"] += 1
        elif was and not is_now:
            self.counts["completed reassignments"] += 1
        self.counts["replicas moved away"] += len(gone)

    def _check_joined(
        self, id: TopicIdPartition, topic: str, image: MetadataImage, known: PartitionState, state: PartitionState
    ) -> None:
        """Who joins the ISR holds all that is below any high watermark, in the process that is registered; the leader counts that one."""
        history = self.checkers.history(id, topic)
        leading = self._replica_in(image, id, state, state.leader)
        for broker in (broker for broker in state.isr if broker not in known.isr):
            replica = self._replica_in(image, id, state, broker)
            if replica is not None and replica.role is Role.OPENING:
                raise history.fail(f"broker {broker} joined the ISR before its process had opened the log")
            if replica is not None and replica.log is not None:
                self.checkers.joined(id, topic, broker, replica.log)
            leader = leading.leader if leading is not None else None
            if leader is None or leader.leader_epoch != state.leader_epoch:
                continue
            if broker not in leader.isr.maximal:
                raise history.fail(
                    f"broker {broker} joined the ISR, but leader {state.leader} counts {leader.isr.maximal}"
                )
            node, counted = state.node_of(broker), leader.followers.get(broker)
            actor = image.actors.get(node)
            registered = {self._registered.get(node), actor.incarnation if actor is not None else None}
            if counted is not None and None not in registered and counted.incarnation not in registered:
                raise history.fail(
                    f"broker {broker} joined the ISR, but leader {state.leader} counts its incarnation "
                    f"{counted.incarnation}, and registered is {max(filter(None, registered))}"
                )

    def _replica_in(
        self, image: MetadataImage, id: TopicIdPartition, state: PartitionState, broker: int
    ) -> Replica | None:
        """The replica of a broker in its registered process; None if that one is dead or has not heard of it."""
        actor = image.actors.get(state.node_of(broker))
        for process in self.replica_processes():
            if actor is not None and process.spec.incarnation == actor.incarnation:
                return process.host.replicas.get(id)
        return None

    def check_everything(self) -> None:
        for process in self.replica_processes():
            self.check_host(process)
            for replica in process.host.replicas.values():
                if replica.log is not None:
                    replica.log.check()
        for controller in self.controllers.running():
            controller.check()

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
            self.check_everything()

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
        for producer in self.producers:
            producer.produce_last()
        self._run_until(self._unfinished, deadline_ms)
        for client in (*self.producers, *self.consumers):
            client.stop()
        self._run_until(self._uneven, deadline_ms)
        self.check_everything()
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

    def replace_failed(self, machine: Machine | None = None) -> None:
        """Somebody mends the disks, of one machine or all, and restarts what an IO error took offline.

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
                    # Everything is gone and unclean election is off: only a person can decide to go on (DESIGN §6).
                    self._person_due_ms = self.scheduler.now_ms + 1_000
                    self.administration.elect(ElectionType.UNCLEAN)
                return f"{topic}-{id.partition} has leader {state.leader}, isr {state.isr}, elr {state.elr}"
            if is_under_way(state):
                return f"{topic}-{id.partition} is still being reassigned: adding {state.adding}, removing {state.removing}"
        return None

    def _unfinished(self) -> str | None:
        for producer in self.producers:
            if not producer.is_idle:
                return f"{producer.name} still waits for {len(producer.unsent)} + {len(producer.in_flight)} batches"
        return None

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
            logs = [replica.open_log() for _, replica in self._replicas_of(id)]
            if len(logs) != len(state.replicas):
                return f"{topic}-{id.partition}: {len(logs)} of {len(state.replicas)} replicas are open"
            if len({(log.log_end_offset, log.high_watermark) for log in logs}) != 1 or (
                logs[0].log_end_offset != logs[0].high_watermark
            ):
                ends = [(log.log_end_offset, log.high_watermark) for log in logs]
                return f"{topic}-{id.partition}: ends and high watermarks {ends}"
        return self.bit_rot.unmended()

    def _compare(self) -> None:
        for id, _, state in self.partitions():
            replicas = self._replicas_of(id)
            logs = [(process.host.context.broker_id, replica.open_log()) for process, replica in replicas]
            self.checkers.identical(id, logs)
            leader = next(log for broker, log in logs if broker == state.leader)
            for producer in self.producers:
                if producer.id == id:
                    self.checkers.kept(id, producer.ledger, leader)

    # ---------------------------------------------------------------- small things for the shells

    @staticmethod
    def with_token(request: Any, token: int) -> Any:
        """The same event under the shell's own name for the request."""
        return replace(request, token=token)
