"""Decisions about reassignments: which replicas a partition shall have, by broker; listing those
that are under way; on which of its disks a broker shall have a replica.

Owns validation, the choice of disk and server actor for what is added, and the answers. The way
from here to there is ``reassignments``', and between disks ``disk_moves``', its end
``PartitionDecisions``'. A broker's disk
on which an older replica of the partition still waits to be deleted is not taken: two processes
would have the same folder.
"""

from __future__ import annotations

import uuid

from raylog.configs import topic_configs
from raylog.errors import RaylogError, code_of
from raylog.metadata.actors import disk_moves
from raylog.metadata.actors.disk_health import DiskHealth
from raylog.metadata.actors.disk_requests import DiskTarget, MoveToDisks, MovingToDisks
from raylog.metadata.actors.node_slots import NodeSlots
from raylog.metadata.image import MetadataImage, Topic
from raylog.metadata.ledger import Ledger
from raylog.metadata.partitions import reassignments
from raylog.metadata.partitions.partition_decisions import PartitionDecisions
from raylog.metadata.records import HostPlanned, PartitionState, ReplicaSlot
from raylog.metadata.requests import (
    AlterReassignments,
    ListReassignments,
    OngoingReassignment,
    PartitionOutcome,
    PartitionTarget,
    ReassignmentsAltered,
    ReassignmentsListed,
)
from raylog.refusals import (
    InvalidAssignment,
    InvalidReplicationFactor,
    InvalidRequest,
    LogDirNotFound,
    NoReassignmentInProgress,
    ReassignmentInProgress,
    ReplicaNotAvailable,
    StorageError,
    UnknownTopic,
)
from raylog.types import TopicIdPartition


class Reassignments:
    __slots__ = ("_disks", "_ledger", "_partitions")

    def __init__(self, ledger: Ledger, partitions: PartitionDecisions, disks: DiskHealth) -> None:
        self._disks = disks
        self._ledger = ledger
        self._partitions = partitions

    def alter(self, request: AlterReassignments, now_ms: int) -> ReassignmentsAltered:
        """Each partition succeeds or fails by itself."""
        places = _Places(self._ledger.latest, self._disks)
        outcomes: list[PartitionOutcome] = []
        changes: dict[TopicIdPartition, PartitionState] = {}
        for wanted in request.partitions:
            try:
                id, after = self._next(wanted, places, any_factor=request.allow_replication_factor_change)
                if id in changes:
                    raise InvalidRequest(f"{wanted.topic}-{wanted.partition} is named twice in one request")
            except RaylogError as error:
                outcomes.append(PartitionOutcome(wanted.topic, wanted.partition, code_of(error), str(error)))
                continue
            changes[id] = after
            outcomes.append(PartitionOutcome(wanted.topic, wanted.partition))
        self._ledger.add(*places.take_planned())
        for id, after in changes.items():
            self._partitions.reassign(id, after)
        self._partitions.settle(changes, now_ms)
        return ReassignmentsAltered(tuple(outcomes))

    def _next(
        self, wanted: PartitionTarget, places: _Places, *, any_factor: bool
    ) -> tuple[TopicIdPartition, PartitionState]:
        topic = self._ledger.latest.topic_named(wanted.topic)
        name = f"{wanted.topic}-{wanted.partition}"
        if topic is None or wanted.partition not in topic.partitions:
            raise UnknownTopic(f"there is no partition {name}")
        id = TopicIdPartition(topic.topic_id, wanted.partition)
        state = topic.partitions[wanted.partition]
        if wanted.brokers is None:
            if not reassignments.is_under_way(state):
                raise NoReassignmentInProgress(f"{name} is not being reassigned")
            slots = reassignments.origin(state)
        else:
            if not any_factor and len(wanted.brokers) != len(reassignments.origin(state)):
                raise InvalidReplicationFactor(
                    f"{name} has {len(reassignments.origin(state))} replicas, not {len(wanted.brokers)}"
                )
            slots = self._slots(topic, id, state, wanted.brokers, places)
        runs_already = any(
            slot.node_id in self._ledger.latest.actors for slot in slots if state.slot(slot.broker_id) is None
        )
        after = reassignments.started(state, slots, renews_epoch=runs_already)
        if after is None:
            raise InvalidAssignment(
                f"{name}: in sync are only brokers {list(state.isr)}, none of which would be left; wait for another, "
                "or let a replica lead by an unclean election"
            )
        return id, after

    def _slots(
        self, topic: Topic, id: TopicIdPartition, state: PartitionState, brokers: tuple[int, ...], places: _Places
    ) -> tuple[ReplicaSlot, ...]:
        name = f"{topic.name}-{id.partition}"
        if not brokers or len(set(brokers)) != len(brokers):
            raise InvalidAssignment(f"{name}: brokers {list(brokers)} are none, or one twice")
        image = self._ledger.latest
        added = [broker for broker in brokers if state.slot(broker) is None]
        for broker in added:
            if broker not in image.brokers or not image.disks_of(broker):
                raise InvalidAssignment(f"{name}: broker {broker} is unknown or has no disk")
            if broker in image.draining:
                raise InvalidAssignment(f"{name}: broker {broker} is being drained; undrain it first")
            if broker in image.leaving:
                raise InvalidAssignment(f"{name}: the node of broker {broker} is about to be taken away")
        disks = {broker: places.disk(id, broker) for broker in added}
        return tuple(state.slot(broker) or places.slot(topic, broker, disks[broker]) for broker in brokers)

    def move_to_disks(self, request: MoveToDisks, now_ms: int) -> MovingToDisks:
        """Each replica by itself. A disk that is not the broker's, or offline, is refused first, as
        in Kafka.
        """
        places = _Places(self._ledger.latest, self._disks)
        outcomes: list[tuple[int, str | None]] = []
        changes: dict[TopicIdPartition, PartitionState] = {}
        for wanted in request.replicas:
            try:
                id, after = self._on_disk(request.broker_id, wanted, places)
                if id in changes:
                    raise InvalidRequest(f"{wanted.topic}-{wanted.partition} is named twice in one request")
            except RaylogError as error:
                outcomes.append((code_of(error), str(error)))
                continue
            changes[id] = after
            outcomes.append((0, None))
        self._ledger.add(*places.take_planned())
        for id, after in changes.items():
            self._partitions.reassign(id, after)
        self._partitions.settle(changes, now_ms)
        return MovingToDisks(tuple(outcomes))

    def _on_disk(self, broker: int, wanted: DiskTarget, places: _Places) -> tuple[TopicIdPartition, PartitionState]:
        image, name = self._ledger.latest, f"{wanted.topic}-{wanted.partition}"
        disk = next((each.directory_id for each in image.disks_of(broker) if each.path == wanted.path), None)
        if disk is None:
            have = ", ".join(each.path for each in image.disks_of(broker)) or "none"
            raise LogDirNotFound(f"broker {broker} has no disk {wanted.path!r}; its disks: {have}")
        if self._disks.has_failed(disk):
            raise StorageError(f"broker {broker}: {wanted.path} is offline")
        topic = image.topic_named(wanted.topic)
        if topic is None or wanted.partition not in topic.partitions:
            raise UnknownTopic(f"there is no partition {name}")
        id, state = TopicIdPartition(topic.topic_id, wanted.partition), topic.partitions[wanted.partition]
        slot, future = state.slot(broker), state.future(broker)
        if slot is None:
            raise ReplicaNotAvailable(f"{name}: broker {broker} has no replica, only brokers {list(state.brokers)}")
        if disk == slot.directory_id:
            return id, disk_moves.given_up(state, broker)
        if future is not None and disk == future.directory_id:
            return id, state
        if self._disks.has_failed(slot.directory_id):
            raise StorageError(f"{name}: broker {broker} has it on a disk that is offline")
        if disk in places.doomed(id):
            raise ReplicaNotAvailable(f"{name}: its former copy on {wanted.path} is yet to be deleted; try again")
        future = places.slot(topic, broker, disk)
        return id, disk_moves.started(state, future, renews_epoch=future.node_id in image.actors)

    def list(self, request: ListReassignments) -> ReassignmentsListed:
        """Those under way, of the partitions that are named or of all; one that is not there is
        left out, as in Kafka.
        """
        image = self._ledger.committed
        found = []
        for name, topic_id in sorted(image.topic_ids.items()):
            for partition, state in sorted(image.topics[topic_id].partitions.items()):
                is_asked = request.partitions is None or (name, partition) in request.partitions
                if is_asked and reassignments.is_under_way(state):
                    found.append(OngoingReassignment(name, partition, state.brokers, state.adding, state.removing))
        return ReassignmentsListed(tuple(found))


class _Places:
    """Disks and server actors for what one request adds."""

    def __init__(self, image: MetadataImage, disks: DiskHealth) -> None:
        self._image = image
        self._disks = disks
        self._slots = NodeSlots(image)
        self._replicas_on_disk: dict[uuid.UUID, int] = {}
        for topic in image.topics.values():
            for state in topic.partitions.values():
                for slot in state.slots:
                    self._count(slot.directory_id)

    def _count(self, directory_id: uuid.UUID) -> None:
        self._replicas_on_disk[directory_id] = self._replicas_on_disk.get(directory_id, 0) + 1

    def disk(self, id: TopicIdPartition, broker: int) -> uuid.UUID:
        """The least loaded disk of the broker that works and where no older replica of the
        partition waits to be deleted.
        """
        doomed = self.doomed(id)
        disks = [disk.directory_id for disk in self._image.disks_of(broker) if disk.directory_id not in doomed]
        if not disks:
            raise ReassignmentInProgress(
                f"{self._image.topics[id.topic_id].name}-{id.partition}: broker {broker} has yet to delete the replica "
                "that it held before; try again when it has"
            )
        return min(disks, key=lambda each: (self._disks.has_failed(each), self._replicas_on_disk.get(each, 0)))

    def doomed(self, id: TopicIdPartition) -> set[uuid.UUID]:
        """The disks on which a replica of that partition waits to be deleted."""
        removals = self._image.removals.items()
        return {removal.directory_id for key, removal in removals if (key.topic_id, key.partition) == id}

    def slot(self, topic: Topic, broker: int, directory_id: uuid.UUID) -> ReplicaSlot:
        self._count(directory_id)
        per_actor = topic_configs.replicas_per_actor(topic.configs)
        return self._slots.allocate(topic.topic_id, topic.name, broker, directory_id, replicas_per_actor=per_actor)

    def take_planned(self) -> list[HostPlanned]:
        return self._slots.take_planned()
