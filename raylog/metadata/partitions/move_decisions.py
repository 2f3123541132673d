"""Decisions about moves of replicas between the server actors of a disk: what is refused, and by
which words.

Owns validation only. What a move does to a partition is ``moves``', its consequences
``PartitionDecisions``'. A move is refused while the replica's own process is out of sight: it may
lead, and nobody could tell it to let go.
"""

from __future__ import annotations

from raylog.errors import RaylogError, code_of
from raylog.metadata.actors.disk_health import DiskHealth
from raylog.metadata.actors.node_slots import host_kind
from raylog.metadata.image import MetadataImage, RemovalKey
from raylog.metadata.ledger import Ledger
from raylog.metadata.partitions import reassignments
from raylog.metadata.partitions.partition_decisions import PartitionDecisions
from raylog.metadata.records import HostKind, PartitionState, ReplicaSlot
from raylog.metadata.requests import MoveReplicas, PartitionOutcome, ReplicasMoved
from raylog.metadata.sessions import Sessions
from raylog.refusals import (
    InvalidRequest,
    ReassignmentInProgress,
    ReplicaNotAvailable,
    StorageError,
    UnknownTopic,
)
from raylog.types import FIRST_REPLICA_SLOT, ReplicaMove, TopicIdPartition, broker_of, slot_of


class Moves:
    __slots__ = ("_disks", "_ledger", "_partitions", "_sessions")

    def __init__(self, ledger: Ledger, sessions: Sessions, partitions: PartitionDecisions, disks: DiskHealth) -> None:
        self._ledger = ledger
        self._sessions = sessions
        self._partitions = partitions
        self._disks = disks

    @property
    def _latest(self) -> MetadataImage:
        return self._ledger.latest

    def move(self, request: MoveReplicas, now_ms: int) -> tuple[ReplicasMoved, list[int]]:
        """Each move succeeds or fails by itself. Second: the actors that have lost a replica."""
        outcomes: list[PartitionOutcome] = []
        former: list[int] = []
        for wanted in request.moves:
            try:
                id, slot = self._found(wanted)
                if slot.node_id != wanted.actor:
                    self._check(wanted, id, slot)
                    self._partitions.move(id, slot, wanted.actor, now_ms)
                    former.append(slot.node_id)
            except RaylogError as error:
                outcomes.append(PartitionOutcome(wanted.topic, wanted.partition, code_of(error), str(error)))
                continue
            outcomes.append(PartitionOutcome(wanted.topic, wanted.partition))
        return ReplicasMoved(tuple(outcomes)), former

    def _found(self, wanted: ReplicaMove) -> tuple[TopicIdPartition, ReplicaSlot]:
        name = f"{wanted.topic}-{wanted.partition}"
        topic = self._latest.topic_named(wanted.topic)
        state = topic.partitions.get(wanted.partition) if topic is not None else None
        if topic is None or state is None:
            raise UnknownTopic(f"there is no partition {name}")
        slot = state.slot(wanted.broker)
        if slot is None:
            raise InvalidRequest(f"{name}: broker {wanted.broker} has no replica, only brokers {list(state.brokers)}")
        self._check_settled(name, state)
        if state.future(wanted.broker) is not None:
            raise ReassignmentInProgress(
                f"{name}: broker {wanted.broker} is copying it to another disk; move it when that is done"
            )
        return TopicIdPartition(topic.topic_id, wanted.partition), slot

    @staticmethod
    def _check_settled(name: str, state: PartitionState) -> None:
        if reassignments.is_under_way(state):
            raise ReassignmentInProgress(
                f"{name} is being reassigned: brokers {list(state.adding)} are added, {list(state.removing)} removed; "
                "move its replicas when that is done"
            )

    def _check(self, wanted: ReplicaMove, id: TopicIdPartition, slot: ReplicaSlot) -> None:
        name, node = f"{wanted.topic}-{wanted.partition}", wanted.actor
        if slot_of(node) < FIRST_REPLICA_SLOT:
            raise InvalidRequest(f"{name}: server actor {node} holds no replicas")
        if broker_of(node) != slot.broker_id:
            raise InvalidRequest(f"{name}: server actor {node} is of broker {broker_of(node)}, not of {slot.broker_id}")
        actor, session = self._latest.actors.get(node), self._sessions.of_node(node)
        if actor is None or not actor.alive or session is None:
            raise ReplicaNotAvailable(f"{name}: server actor {node} is not running")
        if actor.directory_id != slot.directory_id:
            disks = self._latest.disks
            raise InvalidRequest(
                f"{name}: server actor {node} is on the disk {disks[actor.directory_id].path}, the replica on "
                f"{disks[slot.directory_id].path}; a move never leaves a disk"
            )
        host = self._latest.hosts.get(node)
        if host is not None and host.kind is not host_kind(wanted.topic):
            holds = "users' topics" if host.kind is HostKind.REPLICAS else "internal topics"
            raise InvalidRequest(f"{name}: server actor {node} holds replicas of {holds} only")
        if session.exiting or node in self._latest.retiring:
            raise ReplicaNotAvailable(f"{name}: server actor {node} is ending")
        if self._disks.has_failed(slot.directory_id):
            raise StorageError(f"{name}: the disk {self._latest.disks[slot.directory_id].path} is offline")
        if id in session.releasing or RemovalKey(*id, node) in self._latest.removals:
            raise ReplicaNotAvailable(f"{name}: server actor {node} has yet to let go of it; try again when it has")
        holder = self._latest.actors.get(slot.node_id)
        if holder is not None and holder.alive and self._sessions.of_node(slot.node_id) is None:
            raise ReplicaNotAvailable(
                f"{name}: server actor {slot.node_id}, which holds it, is out of sight; try again when it is back or dead"
            )
