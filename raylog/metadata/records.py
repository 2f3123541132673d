"""The records of the metadata log: what the controller has decided, and nothing else.

An entry of the quorum's log is one decision: a batch of records that is applied whole or not at
all. Its bytes::

    msgpack array [ <Unix time in ms>, {"t": <record name>, "v": <version>, <field>: <value>, ...}, ... ]

The time is the active controller's when it decided. Snapshots, and decisions of older releases,
have none.

UUIDs are 16 bytes, inner dataclasses arrays of their fields (``packing``). A record of a newer
version, or of an unknown name, is refused by name: a controller that cannot read a decision must
not lead or follow past it.

``PartitionChanged`` carries the whole state of the partition after the change, so that folding is
plain assignment.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, cast, get_args

import msgpack

from raylog.control.high_watermarks import TopicHighWatermarks
from raylog.errors import ProtocolError
from raylog.packing import LEFT_OUT, Packing, unpack_plain
from raylog.security.acl import AclBinding
from raylog.security.protocols import AdvertisedListener, SecurityProtocol
from raylog.security.quotas import Entity
from raylog.security.scram import ScramCredential, ScramMechanism
from raylog.security.tokens import DelegationToken
from raylog.types import NO_LEADER, Endpoint, TopicIdPartition

ADMITTED_ELSEWHERE = -1


@dataclass(frozen=True, slots=True)
class ReplicaSlot:
    """Where one replica of a partition lives, as assigned.

    ``admitted`` is the incarnation whose log was last judged fit to be (or to come back) in sync,
    or a former one that may have opened it unheard; 0: no process has opened this replica yet. A
    suspect or missing log of another incarnation than this one costs the replica its ISR and ELR
    seats; of this one it has already been judged (``elections.opened``). ``ADMITTED_ELSEWHERE``: it
    was a process of the actor that held the replica before a move (``moves``).
    """

    broker_id: int
    node_id: int
    directory_id: uuid.UUID
    admitted: int = 0


@dataclass(frozen=True, slots=True)
class PartitionState:
    """One partition as decided. Brokers are named by broker id; ``replicas`` stand in assignment
    order.

    Invariants: ``leader`` is −1 or in ``isr``; ``isr`` and ``elr`` are disjoint and within
    ``replicas``; ``leader_incarnation`` is 0 exactly when nobody leads; ``adding`` and ``removing``
    (``reassignments``) are disjoint parts of ``replicas`` and neither is all of them;
    ``leader_epoch`` is −1 until somebody has led, and each epoch has one leader and one
    incarnation; ``partition_epoch`` grows with every change of leader, isr, elr, replicas or
    minimum ISR.

    ``futures`` (``disk_moves``) are copies on other disks of brokers that have a replica, at most
    one of each broker: they follow the leader, and are none of the ``replicas`` yet.
    """

    replicas: tuple[ReplicaSlot, ...]
    isr: tuple[int, ...]
    leader: int = NO_LEADER
    leader_incarnation: int = 0
    leader_epoch: int = -1
    partition_epoch: int = 0
    elr: tuple[int, ...] = ()
    last_known_leader: int = NO_LEADER
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    unclean_elections: int = 0
    futures: tuple[ReplicaSlot, ...] = field(default=(), metadata=LEFT_OUT)

    @property
    def slots(self) -> tuple[ReplicaSlot, ...]:
        """Where there is a copy: the replicas, then the future ones."""
        return self.replicas + self.futures if self.futures else self.replicas

    @property
    def brokers(self) -> tuple[int, ...]:
        return tuple(slot.broker_id for slot in self.replicas)

    def slot(self, broker_id: int) -> ReplicaSlot | None:
        return next((slot for slot in self.replicas if slot.broker_id == broker_id), None)

    def future(self, broker_id: int) -> ReplicaSlot | None:
        """The copy of that broker that is to take its replica's place."""
        return next((slot for slot in self.futures if slot.broker_id == broker_id), None)

    def node_of(self, broker_id: int) -> int:
        """The node that holds the replica of that broker; −1 for nobody."""
        slot = self.slot(broker_id)
        return -1 if slot is None else slot.node_id

    def check(self) -> None:
        brokers, isr, elr = self.brokers, set(self.isr), set(self.elr)
        assert self.replicas and len(set(brokers)) == len(brokers), f"replicas {brokers}"
        assert len(isr) == len(self.isr) and len(elr) == len(self.elr), f"isr {self.isr}, elr {self.elr}"
        adding, removing = set(self.adding), set(self.removing)
        assert adding < set(brokers) and removing < set(brokers) and not adding & removing, f"{self}"
        assert isr <= set(brokers) and elr <= set(brokers) and not isr & elr, f"{self}"
        assert self.leader == NO_LEADER or self.leader in isr, f"leader {self.leader} is not in the ISR {self.isr}"
        assert (self.leader == NO_LEADER) == (self.leader_incarnation == 0), f"{self}"
        assert self.leader == NO_LEADER or self.leader_epoch >= 0, f"{self}"
        assert self.partition_epoch >= 0 and self.leader_epoch >= -1, f"{self}"
        assert len({slot.broker_id for slot in self.futures}) == len(self.futures), f"{self}"
        for future in self.futures:
            slot = self.slot(future.broker_id)
            assert slot is not None and slot.directory_id != future.directory_id, f"{future} beside {slot}"


@dataclass(frozen=True, slots=True)
class ClusterFormatted:
    """The first record of every metadata log."""

    cluster_id: str


@dataclass(frozen=True, slots=True)
class BrokerRegistered:
    broker_id: int
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class BrokerDrainChanged:
    """Whether a broker is being emptied of leaders, until somebody says otherwise; a restart of it
    changes nothing.
    """

    broker_id: int
    is_draining: bool


@dataclass(frozen=True, slots=True)
class BrokerLeaving:
    """The node under that process of the Broker is about to be taken away: it is emptied of leaders
    as a drained one is, until another process of the Broker says hello.
    """

    broker_id: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class BrokerUnregistered:
    """The broker holds no replica and is gone, with its disks, server actors, and whatever still
    waited to be deleted there.
    """

    broker_id: int


@dataclass(frozen=True, slots=True)
class DiskRegistered:
    """A disk of a broker. ``replaced_by`` names the disk that was found in its place: it is lost,
    and its replicas are on the other one from here on, where they begin with nothing. What was to
    be deleted on it is gone.
    """

    directory_id: uuid.UUID
    broker_id: int
    path: str
    replaced_by: uuid.UUID | None = None


@dataclass(frozen=True, slots=True)
class ControllersPlanned:
    """The brokers that shall hold a controller each; an earlier plan is void. The quorum goes there
    voter by voter (``controller_plan``), and is nowhere else from then on.
    """

    broker_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ActorRegistered:
    """A process of a server actor said hello. ``former`` names its predecessors, newest first: they
    are told to exit.

    ``listeners`` (from version 2 on) are where clients outside the cluster reach a Broker, and
    ``listener`` is the first of them for clients without TLS, if there is one. In version 1 it is
    the only one, and its name is PLAINTEXT.
    """

    node_id: int
    directory_id: uuid.UUID
    incarnation: int
    endpoint: Endpoint
    boot_id: str
    former: tuple[int, ...] = ()
    pid: int = 0
    alive: bool = True
    listener: Endpoint | None = None
    listeners: tuple[AdvertisedListener, ...] = ()

    @property
    def advertised(self) -> tuple[AdvertisedListener, ...]:
        """All of a Broker's, whichever version the record has."""
        if self.listeners or self.listener is None:
            return self.listeners
        return (AdvertisedListener(SecurityProtocol.PLAINTEXT.value, SecurityProtocol.PLAINTEXT, self.listener),)


@dataclass(frozen=True, slots=True)
class ActorDied:
    """``reason``: how the controller knows (from version 2 on)."""

    node_id: int
    incarnation: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ActorRemoved:
    """Nothing is assigned to the actor any more and its process is gone: the node id is free."""

    node_id: int


class HostKind(Enum):
    """What a host holds: replicas of users' topics, or of the internal ones."""

    REPLICAS = "replicas"
    COORDINATOR = "coordinator"


@dataclass(frozen=True, slots=True)
class HostPlanned:
    """A server actor of that disk runs from now on, whether or not it holds anything.

    New replicas of topics whose `replicas.per.actor` is `auto` go to a planned host of their disk.
    ``is_automatic`` (from version 2 on): the controller added it because another one was saturated,
    and retires it when it is idle (``scaling``).
    """

    node_id: int
    directory_id: uuid.UUID
    kind: HostKind
    is_automatic: bool = False


@dataclass(frozen=True, slots=True)
class HostRetired:
    """The server actor is no planned host any more. It gives away what it holds, and ends when
    nothing is assigned to it.
    """

    node_id: int


@dataclass(frozen=True, slots=True)
class TopicCreated:
    topic_id: uuid.UUID
    name: str


@dataclass(frozen=True, slots=True)
class TopicDeleted:
    """Each replica of the topic that a process may have opened becomes a removal that its actor has
    to confirm.
    """

    topic_id: uuid.UUID


@dataclass(frozen=True, slots=True)
class PartitionChanged:
    topic_id: uuid.UUID
    partition: int
    state: PartitionState

    @property
    def id(self) -> TopicIdPartition:
        return TopicIdPartition(self.topic_id, self.partition)


@dataclass(frozen=True, slots=True)
class HighWatermarksNoted:
    """These partitions' high watermarks are at least so far. Changes no partition's state; Brokers
    are not sent it.
    """

    topics: tuple[TopicHighWatermarks, ...]


@dataclass(frozen=True, slots=True)
class RemovalPending:
    """A replica's folder on a disk is to be deleted by that node. Written where a replica moves
    away and by snapshots; TopicDeleted implies it.
    """

    topic_id: uuid.UUID
    partition: int
    node_id: int
    directory_id: uuid.UUID
    topic: str


@dataclass(frozen=True, slots=True)
class RemovalConfirmed:
    """The folder is gone."""

    topic_id: uuid.UUID
    partition: int
    node_id: int


@dataclass(frozen=True, slots=True)
class TopicConfigChanged:
    """``value`` None: back to the default."""

    topic_id: uuid.UUID
    key: str
    value: str | None


@dataclass(frozen=True, slots=True)
class BrokerConfigChanged:
    """``broker_id`` None: for all brokers that have no value of their own. ``value`` None: back to
    the default.
    """

    broker_id: int | None
    key: str
    value: str | None


class ConfiguredKind(Enum):
    """What has configs besides topics and brokers. The number is Kafka's, of its kind of resource."""

    CLIENT_METRICS = 16


@dataclass(frozen=True, slots=True)
class ResourceConfigChanged:
    """KRaft's ConfigRecord, of a subscription to client metrics. ``value`` None: back to the
    default. A resource that nothing is set of is not there.
    """

    kind: ConfiguredKind
    name: str
    key: str
    value: str | None


class StaticSource(Enum):
    """Who said a static config: the disks of the nodes, or the command that started the cluster."""

    NODES = 0
    START = 1


@dataclass(frozen=True, slots=True)
class StaticConfigsChanged:
    """All that this source says of all brokers' configs, as (name, value); what it said before is
    void.
    """

    source: StaticSource
    configs: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class ProducerIdsAllocated:
    """All producer ids below ``next_producer_id`` have been handed to somebody, used or not."""

    next_producer_id: int


class OfSecurity:
    """A record about ACLs, users, their quotas or delegation tokens."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class AclCreated(OfSecurity):
    """KRaft's AccessControlEntryRecord. ``id`` names the ACL from here on."""

    id: uuid.UUID
    acl: AclBinding


@dataclass(frozen=True, slots=True)
class AclDeleted(OfSecurity):
    """KRaft's RemoveAccessControlEntryRecord."""

    id: uuid.UUID


@dataclass(frozen=True, slots=True)
class UserScramCredentialSet(OfSecurity):
    """A user can authenticate by this mechanism. An earlier credential of the two is void."""

    user: str
    mechanism: ScramMechanism
    credential: ScramCredential


@dataclass(frozen=True, slots=True)
class UserScramCredentialRemoved(OfSecurity):
    user: str
    mechanism: ScramMechanism


@dataclass(frozen=True, slots=True)
class ClientQuotaSet(OfSecurity):
    """KRaft's ClientQuotaRecord. An earlier value of the two is void."""

    entity: Entity
    key: str
    value: float


@dataclass(frozen=True, slots=True)
class ClientQuotaRemoved(OfSecurity):
    entity: Entity
    key: str


@dataclass(frozen=True, slots=True)
class DelegationTokenSet(OfSecurity):
    """KRaft's DelegationTokenRecord: a token is there, or lasts until another time. Its HMAC is
    nowhere.
    """

    token: DelegationToken


@dataclass(frozen=True, slots=True)
class DelegationTokenRemoved(OfSecurity):
    token_id: str


Record = (
    ClusterFormatted | BrokerRegistered | BrokerDrainChanged | StaticConfigsChanged | BrokerConfigChanged
    | ResourceConfigChanged | ControllersPlanned | DiskRegistered | HostPlanned
    | TopicCreated | TopicConfigChanged | PartitionChanged | HighWatermarksNoted | HostRetired | RemovalPending
    | ActorRegistered | BrokerLeaving | ProducerIdsAllocated | AclCreated | UserScramCredentialSet
    | ClientQuotaSet | DelegationTokenSet
    | BrokerUnregistered | ActorDied | ActorRemoved | TopicDeleted | RemovalConfirmed | AclDeleted | UserScramCredentialRemoved
    | ClientQuotaRemoved | DelegationTokenRemoved
)  # fmt: skip
"""In the order in which a snapshot has them: each kind after those that it names."""

KINDS: tuple[type[Record], ...] = get_args(Record)
BROKERS_CONFIGS = StaticConfigsChanged | BrokerConfigChanged
SHAPES_SETTINGS = BROKERS_CONFIGS | ClientQuotaSet | ClientQuotaRemoved

_PACKING = Packing("metadata record", KINDS, {ActorRegistered: 2, ActorDied: 2, HostPlanned: 2})


NO_TIME = -1


def encode_batch(records: Iterable[Record], decided_ms: int = NO_TIME) -> bytes:
    """The bytes of one decision."""
    plain: list[Any] = [] if decided_ms == NO_TIME else [decided_ms]
    plain += [_PACKING.to_map(record) for record in records]
    packed: bytes = msgpack.packb(plain)
    return packed


def decode_decision(data: bytes | memoryview) -> tuple[int, tuple[Record, ...]]:
    """When a decision was made (Unix time in ms, or NO_TIME), and its records. Raises ProtocolError
    naming what cannot be read.
    """
    plain = unpack_plain(data, "batch of metadata records")
    if not isinstance(plain, list):
        raise ProtocolError("not a batch of metadata records: no array")
    decided_ms = plain.pop(0) if plain and isinstance(plain[0], int) else NO_TIME
    return decided_ms, tuple(cast(Record, _PACKING.from_map(each)) for each in plain)


def decode_batch(data: bytes | memoryview) -> tuple[Record, ...]:
    """The records alone."""
    return decode_decision(data)[1]
