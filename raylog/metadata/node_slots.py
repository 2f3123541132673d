"""Which server actor holds a new replica: node ids for replicas, packed by ``replicas.per.actor``.

Owns the choice of the slot within a broker, nothing else. A replica joins an actor that already holds replicas of the same
topic on the same disk while that actor has fewer than ``replicas.per.actor``; else it gets the lowest free slot of its broker.
A slot is free when nothing is assigned to it, nothing waits there to be deleted, and no process of it is registered.
"""

from __future__ import annotations

import uuid

from raylog.metadata.image import MetadataImage
from raylog.metadata.records import ReplicaSlot
from raylog.types import FIRST_REPLICA_SLOT, SLOTS_PER_BROKER, broker_of, node_id, slot_of


class NodeSlots:
    """One decision's allocations, against an image that does not change meanwhile."""

    __slots__ = ("_image", "_next_free", "_room", "_taken")

    def __init__(self, image: MetadataImage) -> None:
        self._image = image
        self._taken: set[int] = set(image.assigned) | set(image.removals_of) | set(image.actors)
        self._next_free: dict[int, int] = {}
        self._room: dict[tuple[uuid.UUID, uuid.UUID], dict[int, int]] = {}  # (topic, disk) → node → replicas there

    def allocate(
        self, topic_id: uuid.UUID, broker_id: int, directory_id: uuid.UUID, *, replicas_per_actor: int
    ) -> ReplicaSlot:
        nodes = self._room.get((topic_id, directory_id))
        if nodes is None:
            nodes = self._room[topic_id, directory_id] = self._existing(topic_id, directory_id)
        node = next((node for node, count in nodes.items() if count < replicas_per_actor), None)
        if node is None:
            node = self._free(broker_id)
        nodes[node] = nodes.get(node, 0) + 1
        return ReplicaSlot(broker_id, node, directory_id)

    def _existing(self, topic_id: uuid.UUID, directory_id: uuid.UUID) -> dict[int, int]:
        topic = self._image.topics.get(topic_id)
        counts: dict[int, int] = {}
        for _, state in sorted(topic.partitions.items()) if topic is not None else ():
            for slot in state.replicas:
                if slot.directory_id == directory_id:
                    counts[slot.node_id] = counts.get(slot.node_id, 0) + 1
        return counts

    def _free(self, broker_id: int) -> int:
        slot = self._next_free.get(broker_id, FIRST_REPLICA_SLOT)
        while node_id(broker_id, slot) in self._taken:
            slot += 1
            assert slot < SLOTS_PER_BROKER, f"broker {broker_id} has no free slot"
        self._next_free[broker_id] = slot + 1
        node = node_id(broker_id, slot)
        assert broker_of(node) == broker_id and slot_of(node) == slot
        return node
