"""What a simulated event touched is looked at after it, and shown to the checkers.

Owns what was last seen of each replica in each process, and the committed state of every partition,
as known to whoever knows most. It reads the production objects and changes nothing. Processes call
it: ``check_host`` and ``check_controller`` after each event of theirs, the others where something
begins or ends. What must hold is in ``checkers``.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from raylog.control.session import Assignment
from raylog.log.log import Log
from raylog.metadata.controllers.history import EVENTS_MAX, ClusterHistory
from raylog.metadata.image import MetadataImage
from raylog.metadata.partitions.reassignments import is_under_way
from raylog.metadata.records import PartitionState
from raylog.replication.leader import Leader
from raylog.replication.replica import Replica, Role
from raylog.simulator.checkers import ReplicaMemory, Violation
from raylog.types import Condition, TopicIdPartition, broker_of_future, future_id, is_future

if TYPE_CHECKING:
    from raylog.simulator.simulated_controller import ControllerProcess
    from raylog.simulator.simulated_servers import ReplicaProcess
    from raylog.simulator.simulation import Simulation


SPARED = 4  # by night the host's own invariants are checked after every fourth event only: that was a third of the time


class Observer:
    """See the module. ``states``: the committed state of each partition."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.checkers = simulation.checkers
        self.counts = simulation.counts
        self.states: dict[TopicIdPartition, PartitionState] = {}
        self._topics: frozenset[uuid.UUID] = frozenset()  # that there are, as committed
        self._memories: dict[tuple[int, TopicIdPartition], ReplicaMemory] = {}
        self._events: dict[tuple[int, int], tuple[str, str, str]] = {}  # by positions, as first told
        self._committed_index = 0  # of the metadata log: ``states`` is what all entries up to it fold to
        self._registered: dict[
            int, int
        ] = {}  # incarnations by node at the last look: later decisions name no older ones

    def log_opened(self, process: ReplicaProcess, assignment: Assignment, log: Log) -> None:
        self.counts["logs opened"] += 1
        self.counts[f"opened {log.condition.value}"] += 1
        if log.recovery.cut_bytes:
            self.counts["torn tails"] += 1
        if log.condition is Condition.SUSPECT:
            self.counts["suspect replicas"] += 1
        self.simulation.trace(f"{process.name} opened {log.where}: {log.condition.value}, end {log.log_end_offset}")
        for other in self.simulation.replica_processes():
            replica = other.host.replicas.get(assignment.id) if other.spec.path == process.spec.path else None
            if replica is not None and replica.log is not None:
                raise Violation(f"{process.name} opened {log.where}, which {other.name} has open")

    def log_deleted(self, process: ReplicaProcess, id: TopicIdPartition) -> None:
        """The replica was removed: if it comes back to this process it is a new one, with nothing
        to remember.
        """
        state = self.states.get(id)
        slots = state.slots if state is not None and not self.simulation.is_deleted(id) else ()
        if any(slot.directory_id == process.spec.directory_id for slot in slots):
            raise Violation(f"{process.name} deleted the folder of {id}, which is assigned to its disk: {slots}")
        self._memories.pop((process.spec.incarnation, id), None)

    def log_released(self, process: ReplicaProcess, id: TopicIdPartition) -> None:
        """Another process of the disk holds it now: what that one does to the log is not this one's
        to remember.
        """
        self._memories.pop((process.spec.incarnation, id), None)
        self.counts["replicas released"] += 1

    def check_host(self, process: ReplicaProcess) -> None:
        if not (self.simulation.rhythm.is_night and self.simulation.scheduler.steps % SPARED):
            process.host.check()
        process.check_open_files()
        # What a coordinator of the process has written counts for what others of its replicas did in the same turn.
        topics = self.simulation.coordinated_topics
        replicas = sorted(process.host.replicas.items(), key=lambda each: each[1].assignment.topic not in topics)
        for id, replica in replicas:
            if self._is_unseen(id, replica):
                continue
            if replica.log is not None and replica.role in (Role.LEADER, Role.FOLLOWER):
                self._check_replica(process, id, replica, replica.log)
            elif replica.role is Role.OFFLINE:
                self._check_failed(process, id, replica)

    def _is_unseen(self, id: TopicIdPartition, replica: Replica) -> bool:
        """Whether it obeys a decision that was committed together with the end of its topic: nobody
        has seen what kind it was.
        """
        known = self.states.get(id)
        is_newer = known is not None and replica.assignment.partition_epoch > known.partition_epoch
        return is_newer and id.topic_id not in self._topics

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
        if self.simulation.transactions.is_on:
            self.simulation.transactions.seen(id, log, process.name)
        if replica.leader is not None:
            self._check_counted(memory, id, replica.leader)
        if memory.is_leader and (not was_leader or epoch != memory.leader_epoch):
            self.counts["elections"] += 1
            self.simulation.trace(
                f"{process.name} leads {log.where} in epoch {memory.leader_epoch} from {log.log_end_offset}"
            )

    def _check_counted(self, memory: ReplicaMemory, id: TopicIdPartition, leader: Leader) -> None:
        for broker, progress in leader.followers.items():
            counted = (progress.incarnation, progress.log_end_offset)
            if progress.log_end_offset < 0 or memory.counted.get(broker) == counted:
                continue
            memory.counted[broker] = counted
            of = broker_of_future(broker) if is_future(broker) else broker
            process = self.simulation.process_of(of, progress.incarnation)
            replica = process.host.replicas.get(id) if process is not None else None
            if replica is None or replica.log is None or replica.role is not Role.FOLLOWER:
                continue
            if replica.assignment.leader_epoch == leader.leader_epoch:
                self.checkers.counts(memory, id, broker, progress.log_end_offset, replica.log)

    def _check_failed(self, process: ReplicaProcess, id: TopicIdPartition, replica: Replica) -> None:
        """A replica that failed may have moved its high watermark, and acknowledged by it, in that
        same event.
        """
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
        """The quorum's promises, and every partition whose committed state is another than before:
        seen in whoever knows first.
        """
        controller = process.controller
        if controller is None:
            return
        self.simulation.controllers.checker.check(process, controller.quorum)
        self.simulation.scaling.decided(process)
        index = controller.quorum.delivered_index
        if index > process.told_index:
            self._check_events(process, controller.history)
            process.told_index = index
        if index < self._committed_index or index == process.checked_index:
            return
        self._committed_index = process.checked_index = index
        image = controller.image
        self._topics = frozenset(image.topics)
        self.simulation.scaling.committed(image)
        states = self.states
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
        for id, mark in image.high_watermarks.items():
            self.checkers.noted(id, mark.offset)

    def check_created(self, topic_id: uuid.UUID, created: range) -> None:
        """Who created these partitions of it was told that they serve: each has had a leader
        elected.
        """
        for controller in self.simulation.controllers.running():
            found = controller.controller.image.topics.get(topic_id) if controller.controller is not None else None
            if found is not None and controller.is_active:
                for partition, state in found.partitions.items():
                    if partition in created and state.leader_epoch < 0:
                        raise Violation(f"{found.name}-{partition} is said to be created, and nobody has led it")

    def assigned(self, assignment: Assignment) -> None:
        """The controller says so, hence it is committed, though a later decision may already stand
        in its image.
        """
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

    def _check_events(self, process: ControllerProcess, history: ClusterHistory) -> None:
        """Every controller tells the same of an entry of the metadata log."""
        for event in history.after((process.told_index, 1 << 31), EVENTS_MAX)[0]:
            if event.kind == "controller-elected":  # who it is, is known to who was there
                continue
            told = (event.kind, event.subject, event.text)
            first = self._events.setdefault(event.position, told)
            if first != told:
                raise Violation(f"{process.name} tells {told} of {event.position}, another controller {first}")

    def _decided(self, id: TopicIdPartition, topic: str, known: PartitionState | None, state: PartitionState) -> None:
        if known is not None:
            self.counts["isr shrinks"] += len(state.isr) < len(known.isr)
            self.counts["isr expansions"] += len(state.isr) > len(known.isr)
            self._count_reassignment(known, state)
            self.counts["elections from the elr"] += state.leader in known.elr and state.leader != known.leader
        self.simulation.trace(
            f"decided {topic}-{id.partition}: leader {state.leader} epoch {state.leader_epoch}/{state.partition_epoch} "
            f"isr {state.isr} elr {state.elr} unclean {state.unclean_elections}"
        )
        self.simulation.bit_rot.decided(id, state.brokers)
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
        gone = [slot for slot in known.replicas if state.slot(slot.broker_id) is None]
        moved = [slot for slot in known.replicas if state.node_of(slot.broker_id) not in (slot.node_id, -1)]
        self.counts["moves between actors"] += len(moved)
        self.counts["moves of leaders"] += any(slot.broker_id == known.leader for slot in moved)
        self.counts["reassignments"] += is_now and not was
        if was and {slot.broker_id for slot in gone} & set(known.adding):
            self.counts["cancelled reassignments"] += 1
        elif was and not is_now:
            self.counts["completed reassignments"] += 1
        self.counts["replicas moved away"] += len(gone)

    def _check_joined(
        self, id: TopicIdPartition, topic: str, image: MetadataImage, known: PartitionState, state: PartitionState
    ) -> None:
        """Who joins the ISR, or takes a member's place, holds all that is below any high watermark,
        in the process that is registered; the leader counts that one.

        A broker whose replica joins may have a future copy as well, which the leader counts under a
        name of its own. That one counts here if it is what has arrived, until the leader has heard
        that it bears the broker's name now.
        """
        history = self.checkers.history(id, topic)
        leading = self._replica_in(image, id, state, state.leader)
        arrived = {each.broker_id for each in known.futures if state.node_of(each.broker_id) == each.node_id}
        for broker in (broker for broker in state.isr if broker not in known.isr or broker in arrived):
            replica = self._replica_in(image, id, state, broker)
            if replica is not None and replica.role is Role.OPENING:
                raise history.fail(f"broker {broker} joined the ISR before its process had opened the log")
            if replica is not None and replica.log is not None:
                self.checkers.joined(id, topic, broker, replica.log)
            leader = leading.leader if leading is not None else None
            if leader is None or leader.leader_epoch != state.leader_epoch:
                continue
            names = {broker, future_id(broker)} if broker in arrived else {broker}
            if not names & set(leader.isr.maximal):
                raise history.fail(
                    f"broker {broker} joined the ISR, but leader {state.leader} counts {leader.isr.maximal}"
                )
            node, counted = state.node_of(broker), leader.followers.get(broker)
            if broker in arrived:
                counted = leader.followers.get(future_id(broker), counted)
            actor = image.actors.get(node)
            registered = {self._registered.get(node), actor.incarnation if actor is not None else None}
            if counted is None or counted.log_end_offset < 0:
                continue  # nothing is counted yet: the high watermark stands still
            if None not in registered and counted.incarnation not in registered:
                raise history.fail(
                    f"broker {broker} joined the ISR, but leader {state.leader} counts its incarnation "
                    f"{counted.incarnation}, and registered is {max(filter(None, registered))}"
                )

    def _replica_in(
        self, image: MetadataImage, id: TopicIdPartition, state: PartitionState, broker: int
    ) -> Replica | None:
        """The replica of a broker in its registered process; None if that one is dead or has not
        heard of it.
        """
        actor = image.actors.get(state.node_of(broker))
        for process in self.simulation.replica_processes():
            if actor is not None and process.spec.incarnation == actor.incarnation:
                return process.host.replicas.get(id)
        return None

    def check_everything(self) -> None:
        for process in self.simulation.replica_processes():
            self.check_host(process)
            for replica in process.host.replicas.values():
                if replica.log is not None:
                    replica.log.check()
        for controller in self.simulation.controllers.running():
            controller.check()
