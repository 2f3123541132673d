"""Plain values that every layer shares: names of partitions, nodes and processes.

Imports nothing of raylog. A *broker* is a fault domain with an integer id. A *server actor* is one
process of it, named by its *node id*: ``broker_id << 16 | slot``. Slot 0 is the Broker itself, 1
the Controller, 2 and up hold replicas. Inside links speak of node ids wherever Kafka's protocol has
a broker's node id (``Metadata.brokers``, ``leader_id``, ``replica_nodes``), because every server
actor has an address of its own; ``broker_of`` gives back what a person calls the broker. A
follower's Fetch carries its broker id as ``replica_id`` and its incarnation as ``replica_epoch``.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

NO_LEADER = -1
BROKER_SLOT = 0
CONTROLLER_SLOT = 1
CONTROLLER_COUNTS = (1, 3, 5)
"""How many controllers a cluster may have: of an even number no more may be away than of one less."""
FIRST_REPLICA_SLOT = 2
SLOTS_PER_BROKER = 1 << 16
_FUTURE = 1 << 16  # above all broker ids

INTERNAL_TOPICS = ("__consumer_offsets", "__transaction_state")
METADATA_TOPIC = "__cluster_metadata"
"""The controllers' log: it looks like a topic to Kafka's tools, and none may have its name, nor its
folder.
"""

SERVER_PROCESS = "RAYLOG_SERVER_PROCESS"
"""An environment variable that says: this process is a server actor of raylog's."""


class TopicPartition(NamedTuple):
    """A partition as people name it."""

    topic: str
    partition: int


class ReplicaMove(NamedTuple):
    """A replica, by the broker that has it, and the server actor of the same disk, by its node id,
    that shall hold it.
    """

    topic: str
    partition: int
    broker: int
    actor: int


class TopicIdPartition(NamedTuple):
    """A partition as the servers name it: a topic that is deleted and created again has another id."""

    topic_id: uuid.UUID
    partition: int


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a process listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    @classmethod
    def of(cls, text: str) -> Endpoint:
        """The endpoint that ``str`` made this text of."""
        host, _, port = text.rpartition(":")
        return cls(host, int(port))


def node_id(broker_id: int, slot: int) -> int:
    """The id of one server actor of a broker."""
    assert 0 <= broker_id < 1 << 15 and 0 <= slot < SLOTS_PER_BROKER, (broker_id, slot)
    return broker_id << 16 | slot


def broker_of(node: int) -> int:
    """The broker that a server actor belongs to; −1 stays −1 ("nobody")."""
    return node >> 16 if node >= 0 else node


def future_id(broker_id: int) -> int:
    """What a leader calls the copy that takes the place of that broker's replica (``disk_moves``):
    no broker has such an id.
    """
    return broker_id | _FUTURE


def is_future(broker_id: int) -> bool:
    return broker_id >= _FUTURE


def broker_of_future(id: int) -> int:
    """The inverse of ``future_id``."""
    assert is_future(id), id
    return id - _FUTURE


def slot_of(node: int) -> int:
    """The slot of a server actor within its broker."""
    return node & 0xFFFF


class Condition(Enum):
    """What an actor found when it opened a replica's log (DESIGN §6, "Who may lead")."""

    CLEAN = "clean"  # closed by a clean stop
    WHOLE = "whole"  # same boot, or flushed on every append; at most one torn batch at the tail was cut
    SUSPECT = "suspect"  # acknowledged bytes may be gone
    MISSING = "missing"  # no log was there


@dataclass(frozen=True, slots=True)
class ActorIdentity:
    """One process of one server actor. ``incarnation`` is drawn at each process start, positive,
    below 2**63.
    """

    cluster_id: str
    node_id: int
    directory_id: uuid.UUID
    incarnation: int


@dataclass(frozen=True, slots=True)
class ClusterEvent:
    """Something that has happened to the cluster. ``index`` is that of its entry in the metadata
    log, ``number`` counts the events of that entry from 0. ``at_ms``: Unix time of the decision, −1
    where it is not known. ``kind`` is for scripts, ``subject`` and ``text`` for people.
    """

    index: int
    number: int
    at_ms: int
    kind: str
    subject: str
    text: str

    @property
    def position(self) -> tuple[int, int]:
        return self.index, self.number
