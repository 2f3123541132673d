"""Decisions about the hosts of a disk, by hand: one more, or one less.

A new host is empty. A retired one gives its replicas to the other hosts of its disk and kind, each
to the one that holds the fewest then; it ends when it has let go of all. What cannot move yet
follows by itself (``resume``), under the next controller, too: the image knows who is retiring. The
last host of its kind stays. Owns validation and the choice; the move of one replica is
``move_decisions``'.
"""

from __future__ import annotations

import uuid

from raylog.errors import RaylogError, code_of
from raylog.metadata.actors.disk_health import DiskHealth
from raylog.metadata.actors.node_slots import NodeSlots, host_kind
from raylog.metadata.image import MetadataImage
from raylog.metadata.ledger import Ledger
from raylog.metadata.partitions.move_decisions import Moves
from raylog.metadata.records import HostKind, HostPlanned, HostRetired
from raylog.metadata.requests import (
    HostAnswer,
    HostRetirement,
    MoveReplicas,
    PlanHost,
    RetireHost,
)
from raylog.metadata.sessions import Sessions
from raylog.refusals import BrokerNotRegistered, InvalidRequest, ReplicaNotAvailable, StorageError
from raylog.types import FIRST_REPLICA_SLOT, ReplicaMove, broker_of, slot_of


class HostDecisions:
    __slots__ = ("_disks", "_ledger", "_moves", "_sessions")

    def __init__(self, ledger: Ledger, sessions: Sessions, disks: DiskHealth, moves: Moves) -> None:
        self._ledger = ledger
        self._sessions = sessions
        self._disks = disks
        self._moves = moves

    @property
    def _latest(self) -> MetadataImage:
        return self._ledger.latest

    # -------------------------------------------------------------- one more

    def plan(self, request: PlanHost) -> HostAnswer:
        try:
            directory_id = self._disk(request)
        except RaylogError as error:
            return HostAnswer(code_of(error), str(error))
        host = NodeSlots(self._latest).plan_host(request.broker_id, directory_id, request.kind)
        self._ledger.add(host)
        return HostAnswer(message=self._too_many(request.broker_id), node_id=host.node_id)

    def _disk(self, request: PlanHost) -> uuid.UUID:
        broker_id = request.broker_id
        if broker_id not in self._latest.brokers:
            raise BrokerNotRegistered(f"broker {broker_id} is not registered")
        disks = self._latest.disks_of(broker_id)
        if request.path:
            disks = [disk for disk in disks if disk.path == request.path]
        if not disks:
            have = ", ".join(disk.path for disk in self._latest.disks_of(broker_id)) or "none"
            raise InvalidRequest(f"broker {broker_id} has no disk {request.path!r}; its disks: {have}")
        working = [disk.directory_id for disk in disks if not self._disks.has_failed(disk.directory_id)]
        if not working:
            raise StorageError(f"broker {broker_id}: {disks[0].path} is offline")
        return min(working, key=lambda each: len(self._latest.hosts_of(each)))

    def _too_many(self, broker_id: int) -> str | None:
        """A word of warning where more actors than cores can only take turns."""
        planned = [node for node, host in self._latest.hosts.items() if broker_of(node) == broker_id]
        sessions = (self._sessions.of_node(node) for node in planned)
        cores = max((session.usage.cores for session in sessions if session is not None), default=0)
        busy = sum(self._latest.hosts[node].kind is HostKind.REPLICAS for node in planned)
        if not cores or busy <= cores:
            return None
        return f"broker {broker_id} has {busy} hosts for replicas now, and its machine {cores} cores: more can only take turns"

    # -------------------------------------------------------------- one less

    def retire(self, request: RetireHost, now_ms: int) -> tuple[HostRetirement, list[int]]:
        """Second: the actor, if it has lost a replica."""
        node = request.node_id
        try:
            kind = self._kind(node)
            others = self._others(node, kind)
        except RaylogError as error:
            return HostRetirement(code_of(error), str(error)), []
        if node not in self._latest.retiring and (node in self._latest.hosts or self._latest.assigned.get(node)):
            if node not in self._latest.hosts:
                self._ledger.add(HostPlanned(node, self._latest.directory_of(node), kind))
            self._ledger.add(HostRetired(node))  # before the moves: nothing is assigned to it any more
        moved, remaining = self._empty(node, others, now_ms)
        return HostRetirement(moved=moved, remaining=remaining), [node]

    def resume(self, now_ms: int) -> list[int]:
        """Move on what retired hosts still hold, as far as it can move now. The actors that have
        lost a replica.
        """
        former = []
        for node, host in sorted(self._latest.retiring.items()):
            planned = self._latest.hosts_of(host.directory_id)
            running = [
                each.node_id
                for each in planned
                if each.kind is host.kind and self._sessions.of_node(each.node_id) is not None
            ]
            if running and self._empty(node, running, now_ms)[0]:
                former.append(node)
        return former

    def _empty(
        self, node: int, others: list[int], now_ms: int
    ) -> tuple[tuple[tuple[str, int], ...], tuple[tuple[str, int, str], ...]]:
        """Give what it holds to the others. What moves, and what cannot, with the reason."""
        moved: list[tuple[str, int]] = []
        remaining: list[tuple[str, int, str]] = []
        for id in self._latest.partitions_on(node):
            name = self._latest.topics[id.topic_id].name
            target = min(others, key=lambda each: (len(self._latest.assigned.get(each, ())), each))
            move = ReplicaMove(name, id.partition, broker_of(node), target)
            outcome = self._moves.move(MoveReplicas((move,)), now_ms)[0].partitions[0]
            if outcome.error:
                remaining.append((name, id.partition, outcome.message or ""))
            else:
                moved.append((name, id.partition))
        return tuple(moved), tuple(remaining)

    def _kind(self, node: int) -> HostKind:
        image = self._latest
        host = image.hosts.get(node)
        if host is not None:
            return host.kind
        if slot_of(node) < FIRST_REPLICA_SLOT or (node not in image.actors and not image.needs(node)):
            raise InvalidRequest(f"there is no server actor {node} that holds replicas")
        ids = image.partitions_on(node)
        return host_kind(image.topics[ids[0].topic_id].name) if ids else HostKind.REPLICAS

    def _others(self, node: int, kind: HostKind) -> list[int]:
        """The actors that can take what it holds."""
        image = self._latest
        if not image.needs(node):
            return []
        directory_id = image.directory_of(node)
        planned = [host.node_id for host in image.hosts_of(directory_id) if host.kind is kind and host.node_id != node]
        if not planned:
            raise InvalidRequest(
                f"server actor {node} is the only host of its kind on {image.disks[directory_id].path}; "
                "`raylog actors add` plans another one first"
            )
        running = [each for each in planned if self._sessions.of_node(each) is not None]
        if not running and image.assigned.get(node):
            raise ReplicaNotAvailable(f"none of the other hosts of its disk is running yet: {planned}; try again")
        return running
