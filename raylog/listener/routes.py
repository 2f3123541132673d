"""Where a partition is served, according to the Broker's copy of the image.

Either a process of this broker serves it or the client gets a ``Redirect``. Requests for a partition
that another broker leads are not forwarded: the answer names the leader (KIP-951), and the client
goes there. So two brokers that cannot reach each other do not affect a client that reaches both.

There is one exception. A broker whose own listener is away (its Broker has died and is not back, or
it never had one) still leads its partitions and groups. Meanwhile another broker's listener is its
*stand-in*: clients see that broker as the leader, and it forwards to the processes of the first. The
choice follows from the image alone, so all Brokers name the same stand-in; while their copies differ,
a client is redirected once more. Leadership and leader epochs do not change.

A partition that has never had a leader counts as led by its first one (``new_partitions``). That
process holds requests until it leads; while it is still starting, the Broker holds them
(``LeaderStarting``, ``arrivals``).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from kio.schema.errors import ErrorCode

from raylog.listener.owners import Owner
from raylog.metadata.image import MetadataImage, Topic
from raylog.metadata.partitions import new_partitions
from raylog.metadata.records import PartitionState
from raylog.security.protocols import AdvertisedListener
from raylog.types import BROKER_SLOT, NO_LEADER, Endpoint, broker_of, node_id, slot_of

NO_EPOCH = -1


@dataclass(frozen=True, slots=True)
class Redirect:
    """Why this broker does not serve a partition, and the leader as far as the image has one."""

    error: ErrorCode
    leader: int = NO_LEADER
    leader_epoch: int = NO_EPOCH


@dataclass(frozen=True, slots=True)
class LeaderStarting(Redirect):
    """The partition is new, this broker will lead it, and the process for it is still starting."""


UNKNOWN_NAME = Redirect(ErrorCode.unknown_topic_or_partition)
UNKNOWN_ID = Redirect(ErrorCode.unknown_topic_id)


@dataclass(frozen=True, slots=True)
class BrokerListener:
    """Where clients reach a broker: one endpoint for each of its listeners that it advertises."""

    broker_id: int
    advertised: tuple[AdvertisedListener, ...]
    rack: str | None

    def at(self, listener: str) -> Endpoint | None:
        """For clients of that listener; None if the broker has none of that name."""
        return next((each.endpoint for each in self.advertised if each.name == listener), None)


class Routes:
    """Finds the process or the broker that serves a partition. ``image`` returns the current copy."""

    def __init__(self, broker_id: int, image: Callable[[], MetadataImage]) -> None:
        self.broker_id = broker_id
        self._image = image

    @property
    def image(self) -> MetadataImage:
        return self._image()

    # ------------------------------------------------------------------ partitions

    def leader(self, topic: Any, number: int) -> Owner | Redirect:
        """Return the process that leads a partition, if this broker serves it.

        ``topic``: an entity with a name or an id.
        """
        return self.leader_of(_named(topic), number)

    def leader_of(self, topic: str | uuid.UUID, number: int) -> Owner | Redirect:
        """Return the same, given the topic's name or id."""
        found = self._state(topic, number)
        if isinstance(found, Redirect):
            return found
        leader = new_partitions.leader_or_next(self.image, found)
        stand_in = leader if leader == self.broker_id else self.stand_in_of(leader)
        if stand_in != self.broker_id:
            return Redirect(ErrorCode.not_leader_or_follower, stand_in, found.leader_epoch)
        owner = self.owner(found.node_of(leader))
        if owner is not None:
            return owner
        absent = LeaderStarting if new_partitions.is_new(found) else Redirect
        return absent(ErrorCode.not_leader_or_follower, NO_LEADER, found.leader_epoch)

    def leading_process(self, topic: str, number: int) -> Owner | None:
        """Return the process that leads a partition, whichever broker it belongs to; None while there
        is none.
        """
        found = self._state(topic, number)
        if isinstance(found, Redirect):
            return None
        return self.owner(found.node_of(new_partitions.leader_or_next(self.image, found)))

    def reader(self, topic: Any, number: int) -> Owner | Redirect:
        """Return the process of this broker that a consumer in its rack may read from: leader or
        follower (KIP-392).
        """
        found = self._find(topic, number)
        if isinstance(found, Redirect):
            return found
        node = found.node_of(self.broker_id)
        owner = self.owner(node) if node >= 0 else None
        return owner or self.leader(topic, number)

    def leading_broker(self, topic: str, number: int) -> int:
        """Return the broker whose live process leads a partition; −1 if there is none."""
        found = self.image.topic_named(topic)
        state = found.partitions.get(number) if found is not None else None
        if state is None or self.owner(state.node_of(state.leader)) is None:
            return NO_LEADER
        return state.leader

    def is_new(self, topic: str, number: int) -> bool:
        """Return whether the partition exists and has never had a leader."""
        found = self._state(topic, number)
        return not isinstance(found, Redirect) and new_partitions.is_new(found)

    def has_leaders(self, topic: str) -> bool:
        """Return whether the topic exists and each of its partitions has had a leader."""
        found = self.image.topic_named(topic)
        return found is not None and not any(map(new_partitions.is_new, found.partitions.values()))

    def nearer(self, topic: Any, number: int, rack: str) -> int | None:
        """Return a broker in that rack with an in-sync replica, if this broker leads and is in
        another rack.
        """
        found = self._find(topic, number)
        if isinstance(found, Redirect) or found.leader != self.broker_id or self._rack(self.broker_id) == rack:
            return None
        brokers = (each for each in found.brokers if each in found.isr and self._rack(each) == rack)
        return next((each for each in brokers if self.listener(each) is not None), None)

    def _rack(self, broker_id: int) -> str | None:
        broker = self.image.brokers.get(broker_id)
        return broker.rack if broker is not None else None

    def replica_processes(self) -> list[Owner]:
        """Return the live processes of this broker that hold replicas."""
        nodes = sorted(node for node in self.image.actors if broker_of(node) == self.broker_id)
        owners = (self.owner(node) for node in nodes if slot_of(node) != BROKER_SLOT)
        return [owner for owner in owners if owner is not None]

    def owner(self, node: int) -> Owner | None:
        """Return a node's live process; None while it has none."""
        actor = self.image.actors.get(node)
        return Owner(node, actor.incarnation, actor.endpoint) if actor is not None and actor.alive else None

    def _find(self, topic: Any, number: int) -> PartitionState | Redirect:
        return self._state(_named(topic), number)

    def _state(self, topic: str | uuid.UUID, number: int) -> PartitionState | Redirect:
        found: Topic | None
        if isinstance(topic, str):
            found = self.image.topic_named(topic)
        else:
            found = self.image.topics.get(topic)
            if found is None:
                return UNKNOWN_ID
        state = found.partitions.get(number) if found is not None else None
        return state if state is not None else UNKNOWN_NAME

    # ------------------------------------------------------------------ brokers

    def listener(self, broker_id: int, *, dead_too: bool = False) -> BrokerListener | None:
        """Return a broker's address for clients; None without a listener, or while its Broker is
        dead and only live ones are wanted.
        """
        actor = self.image.actors.get(node_id(broker_id, BROKER_SLOT)) if broker_id >= 0 else None
        if actor is None or not (actor.alive or dead_too) or not actor.advertised:
            return None
        broker = self.image.brokers.get(broker_id)
        return BrokerListener(broker_id, actor.advertised, broker.rack if broker is not None else None)

    def listener_or_stand_in(self, broker_id: int) -> BrokerListener | None:
        """Return where clients reach the partitions that a broker leads: its own listener, or its
        stand-in's; None if there is neither.
        """
        own = self.listener(broker_id)
        if own is not None or broker_id < 0:
            return own
        others = self.listeners()
        return others[broker_id % len(others)] if others else None

    def stand_in_of(self, broker_id: int) -> int:
        """Return the broker that clients see as the leader of that broker's partitions; −1 if there
        is none.
        """
        stand_in = self.listener_or_stand_in(broker_id)
        return stand_in.broker_id if stand_in is not None else NO_LEADER

    def listeners(self, *, dead_too: bool = False) -> list[BrokerListener]:
        """Return the addresses of all brokers that clients can reach, by id.

        A broker without the listener that a client came in by is among them: that client is told
        of LISTENER_NOT_FOUND, as in Kafka.
        """
        found = (self.listener(broker_id, dead_too=dead_too) for broker_id in sorted(self.image.brokers))
        return [each for each in found if each is not None]

    def endpoints(self, module: ModuleType, brokers: Iterable[int], listener: str) -> tuple[Any, ...]:
        """Return the ``node_endpoints`` of an answer that names these leaders to a client of that
        listener; empty for older versions.
        """
        if not hasattr(module, "NodeEndpoint"):
            return ()
        found = (self.listener(broker_id) for broker_id in sorted(set(brokers)))
        return tuple(
            module.NodeEndpoint(node_id=each.broker_id, host=endpoint.host, port=endpoint.port, rack=each.rack)
            for each in found
            if each is not None and (endpoint := each.at(listener)) is not None
        )


def _named(topic: Any) -> str | uuid.UUID:
    """Return the name of an entity's topic, looked up by id if it has one."""
    named: str | uuid.UUID | None = getattr(topic, "topic_id", None)
    return named if named is not None else getattr(topic, "name", None) or getattr(topic, "topic", None) or ""
