"""Which server actor holds a new replica: node ids for replicas and for the planned hosts of a
disk.

Owns the choice of the slot within a broker, nothing else. A topic's ``replicas.per.actor`` decides.

- ``auto``: a planned host of the disk, of the kind that holds such topics: the one with the fewest
  replicas. Hosts that were added because others were saturated (``scaling``) take what is hot, not
  what is new; they count only where there is no other. Where the disk has no such host yet, one is
  planned. ``take_planned`` returns the records.
- An integer: an actor of the disk that already holds replicas of the same topic and is no planned
  host, while it has fewer of them than that; else a new actor.

A new actor gets the lowest free slot of its broker. A slot is free when nothing is assigned to it,
nothing waits there to be deleted, no host is planned there, and no process of it is registered.
"""

from __future__ import annotations

import uuid

from raylog.metadata.image import MetadataImage
from raylog.metadata.records import HostKind, HostPlanned, ReplicaSlot
from raylog.refusals import InvalidPartitions
from raylog.types import FIRST_REPLICA_SLOT, INTERNAL_TOPICS, SLOTS_PER_BROKER, broker_of, node_id, slot_of


def host_kind(topic: str) -> HostKind:
    """The kind of host that holds the replicas of that topic."""
    return HostKind.COORDINATOR if topic in INTERNAL_TOPICS else HostKind.REPLICAS


class NodeSlots:
    """One decision's allocations, against an image that does not change meanwhile."""

    __slots__ = ("_hosts", "_image", "_next_free", "_planned", "_room", "_taken")

    def __init__(self, image: MetadataImage) -> None:
        self._image = image
        self._taken: set[int] = set(image.assigned) | set(image.removals_of) | set(image.actors) | set(image.hosts)
        self._next_free: dict[int, int] = {}
        self._room: dict[
            tuple[uuid.UUID, uuid.UUID], dict[int, int]
        ] = {}  # (topic, disk) → node with room → replicas there
        self._hosts: dict[tuple[uuid.UUID, HostKind], dict[int, int]] = {}  # (disk, kind) → node → replicas there
        self._planned: list[HostPlanned] = []

    def allocate(
        self,
        topic_id: uuid.UUID,
        topic: str,
        broker_id: int,
        directory_id: uuid.UUID,
        *,
        replicas_per_actor: int | None,
    ) -> ReplicaSlot:
        """The slot of one more replica of that topic. ``replicas_per_actor`` None is ``auto``; otherwise it is the same for all
        replicas of the topic. Raises InvalidPartitions where the broker has no slot for a further actor.
        """
        if replicas_per_actor is None:
            nodes = self._hosts_of(broker_id, directory_id, host_kind(topic))
            node = min(nodes, key=lambda each: (nodes[each], each))
        else:
            key = (topic_id, directory_id)
            if key not in self._room:
                existing = self._existing(topic_id, directory_id)
                self._room[key] = {node: count for node, count in existing.items() if count < replicas_per_actor}
            nodes = self._room[key]
            node = next(iter(nodes)) if nodes else self._free(broker_id)
        nodes[node] = nodes.get(node, 0) + 1
        if replicas_per_actor is not None and nodes[node] >= replicas_per_actor:
            del nodes[node]
        return ReplicaSlot(broker_id, node, directory_id)

    def lowest_free(self) -> dict[int, int]:
        """By broker, for ``back_to``."""
        return dict(self._next_free)

    def back_to(self, lowest_free: dict[int, int]) -> None:
        """Give back the slots of new actors that were allocated since then, to a topic that there will not be."""
        self._next_free = lowest_free

    def plan_host(
        self, broker_id: int, directory_id: uuid.UUID, kind: HostKind, *, is_automatic: bool = False
    ) -> HostPlanned:
        """One more host of that disk."""
        host = HostPlanned(self._free(broker_id), directory_id, kind, is_automatic)
        self._planned.append(host)
        return host

    def take_planned(self) -> list[HostPlanned]:
        """The hosts planned since the last call. Their records come before those of the replicas."""
        planned, self._planned = self._planned, []
        return planned

    def _hosts_of(self, broker_id: int, directory_id: uuid.UUID, kind: HostKind) -> dict[int, int]:
        key = (directory_id, kind)
        if key not in self._hosts:
            hosts = [host for host in self._image.hosts_of(directory_id) if host.kind is kind]
            nodes = [host.node_id for host in hosts if not host.is_automatic] or [host.node_id for host in hosts]
            if not nodes:
                nodes = [self.plan_host(broker_id, directory_id, kind).node_id]
            self._hosts[key] = {node: len(self._image.assigned.get(node, ())) for node in nodes}
        return self._hosts[key]

    def _existing(self, topic_id: uuid.UUID, directory_id: uuid.UUID) -> dict[int, int]:
        topic = self._image.topics.get(topic_id)
        counts: dict[int, int] = {}
        for _, state in sorted(topic.partitions.items()) if topic is not None else ():
            for slot in state.slots:
                is_host = slot.node_id in self._image.hosts or slot.node_id in self._image.retiring
                if slot.directory_id == directory_id and not is_host:
                    counts[slot.node_id] = counts.get(slot.node_id, 0) + 1
        return counts

    def _free(self, broker_id: int) -> int:
        slot = self._next_free.get(broker_id, FIRST_REPLICA_SLOT)
        while slot < SLOTS_PER_BROKER and node_id(broker_id, slot) in self._taken:
            slot += 1
        if slot >= SLOTS_PER_BROKER:
            raise InvalidPartitions(f"broker {broker_id} has {SLOTS_PER_BROKER} actors, which is all that it can have")
        self._next_free[broker_id] = slot + 1
        node = node_id(broker_id, slot)
        assert broker_of(node) == broker_id and slot_of(node) == slot
        return node
