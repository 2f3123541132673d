"""What there is to say about one Kafka API, as a value.

An ``ApiSpec`` says which versions are spoken where, who answers, what an authorizer will ask, how
a request is split over several processes, and where an error stands that refuses it whole.
``table`` has one for each API; everything that lists APIs is computed from those.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, NamedTuple

from raylog.security.permissions import Operation, Resource

NOT_SPOKEN = range(0)


class ApiOwner(enum.Enum):
    """Who answers an API. The value is what the documentation says."""

    SERVER = "each server itself"
    BROKER = "the Broker itself"
    LEADER = "the replicas that lead the partitions"
    REPLICA = "the replicas of this broker"
    PROCESSES = "all processes of this broker"
    CONTROLLER = "the active controller"
    GROUP_COORDINATOR = "the processes of this broker that coordinate the groups"
    TRANSACTION_COORDINATOR = "the processes of this broker that coordinate the transactions"


class ServerKind(enum.Enum):
    """The kinds of server that speak Kafka's APIs. The value names one in an error."""

    BROKER = "a Broker's listener"
    REPLICAS = "a process that holds replicas"
    CONTROLLER = "a controller"


class Permission(NamedTuple):
    """Is asked for every resource of this kind that a request names.

    CLUSTER beside another kind is asked for what names none of those, and grants the others, as in
    Apache Kafka.
    """

    operation: Operation
    resource: Resource


class ErrorPlace(enum.Enum):
    """Where the error stands in an answer that refuses the whole request. Clients look for it where
    Kafka's brokers put it.
    """

    ITEMS = "on each innermost item; further out only where there are no items"
    OUTERMOST = "as far out as the answer has a place for it; there are no items"
    EVERYWHERE = "on each item and further out, too"


@dataclass(frozen=True, slots=True)
class PartitionSplit:
    """How a request is taken apart by partition, and its answers are put together again.

    ``topics`` is the request's list of topics, ``partitions`` the list in each of those, ``number``
    a partition's number there, "" where that list holds bare numbers. What starts with ``replied``
    is called so in the answer: two lists, the classes of their items, and the number.
    ``has_timeout``: the request says itself how long it may take.
    """

    topics: str
    partitions: str
    number: str
    replied_topics: str
    replied_topic: str
    replied_partitions: str
    replied_partition: str
    replied_number: str
    has_timeout: bool = False

    def number_of(self, partition: Any) -> int:
        """The number of a request's partition, which may be all that there is."""
        return int(getattr(partition, self.number) if self.number else partition)


@dataclass(frozen=True, slots=True)
class GroupSplit:
    """How a request that names several groups, or transactional ids, is taken apart: their lists in
    request and answer.

    ``group_id`` is the field of a group's id, "" where the request holds bare ids. Versions before
    ``first_version`` name one group.
    """

    asked: str
    replied: str
    group_id: str = ""
    first_version: int = 0

    def id_of(self, group: Any) -> str:
        """The id of a request's group, which may be all that there is."""
        return str(getattr(group, self.group_id) if self.group_id else group)


@dataclass(frozen=True, slots=True, eq=False)
class ApiSpec:
    """One Kafka API. There is one value for each, which is equal to itself alone.

    ``versions`` are those that Brokers speak outside. Between the cluster's own processes
    ``inside`` is spoken, and the same ones where that says nothing; but what Brokers answer
    themselves is spoken inside only if ``inside`` says so. There the controller answers it, whose
    image theirs is a copy of. ``claimed`` is what ApiVersions says outside instead of what is
    spoken.

    ``also``: who else answers the API, of requests that say so by what they name.

    ``keeps_frame``: a Broker keeps the request's bytes, which may go on to its owner undecoded.
    """

    key: int
    name: str
    owner: ApiOwner
    versions: range
    authorised_by: tuple[Permission, ...]
    inside: range | None = None
    claimed: range | None = None
    keeps_frame: bool = False
    partitions: PartitionSplit | None = None
    groups: GroupSplit | None = None
    refused_at: ErrorPlace = ErrorPlace.ITEMS
    also: ApiOwner | None = None

    def __str__(self) -> str:
        return f"{self.name} ({self.key})"

    @property
    def spoken_inside(self) -> range:
        """The versions between the cluster's own processes."""
        if self.inside is not None:
            return self.inside
        return NOT_SPOKEN if self.owner is ApiOwner.BROKER else self.versions

    def spoken_by(self, server: ServerKind) -> range:
        """The versions that this kind of server speaks; empty where it does not serve the API."""
        if self.owner is ApiOwner.SERVER:
            return self.versions
        is_controllers = self.owner in (ApiOwner.BROKER, ApiOwner.CONTROLLER)
        match server:
            case ServerKind.BROKER:
                return self.versions
            case ServerKind.CONTROLLER:
                return self.spoken_inside if is_controllers else NOT_SPOKEN
            case ServerKind.REPLICAS:
                return NOT_SPOKEN if is_controllers and self.also is None else self.spoken_inside
