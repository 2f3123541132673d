"""What clients, tools and the launcher ask of the controller, and what it answers: plain values, no
wire format.

A request is answered by the reply class that its docstring names, or by ``Refused`` if it could not
be looked at as a whole (this controller is not the active one, or ceased to be before the decision
was committed). Error fields hold Kafka's codes, 0 for none, and ``message`` a sentence for a
person. Replies to changes are given when the change is committed. ``configuration.config_requests``
has those about configs.

Nodes are server actors (``raylog.types``): a partition's replicas, leader and ISR are named by node
id in replies, because that is whom a client talks to; ``broker_of`` gives the broker.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from enum import Enum

from raylog.metadata.actors.disk_requests import DiskMove, MoveToDisks, MovingToDisks
from raylog.metadata.actors.opened_logs import OpenedLogs
from raylog.metadata.configuration.acl_requests import (
    AclsCreated,
    AclsDeleted,
    AclsDescribed,
    CreateAcls,
    DeleteAcls,
    DescribeAcls,
)
from raylog.metadata.configuration.config_requests import (
    AlterConfigs,
    ConfigsAltered,
    ConfigsDescribed,
    DescribeConfigs,
    SetStaticConfigs,
)
from raylog.metadata.records import HostKind
from raylog.metadata.users.credential_requests import (
    AlterUserScramCredentials,
    DescribeUserScramCredentials,
    UserScramCredentialsAltered,
    UserScramCredentialsDescribed,
)
from raylog.metadata.users.quota_requests import (
    AlterClientQuotas,
    ClientQuotasAltered,
    ClientQuotasDescribed,
    DescribeClientQuotas,
)
from raylog.metadata.users.token_requests import (
    CreateDelegationToken,
    DelegationTokenAnswer,
    DelegationTokensDescribed,
    DelegationTokensRemoved,
    DescribeDelegationTokens,
    ExpireDelegationToken,
    RemoveExpiredTokens,
    RenewDelegationToken,
)
from raylog.security.protocols import AdvertisedListener
from raylog.types import Endpoint, ReplicaMove

# ------------------------------------------------------------------ topics


@dataclass(frozen=True, slots=True)
class RequestedTopic:
    """−1 partitions or replication factor: the cluster's default. ``assignment`` names brokers by
    partition; then both are −1.
    """

    name: str
    partitions: int = -1
    replication_factor: int = -1
    assignment: tuple[tuple[int, tuple[int, ...]], ...] = ()
    configs: tuple[tuple[str, str | None], ...] = ()


@dataclass(frozen=True, slots=True)
class CreateTopics:
    """→ TopicsCreated. Each topic succeeds or fails by itself, but that all are refused where they
    have more partitions than one request makes (POLICY_VIOLATION). ``validate_only`` decides and
    changes nothing.

    The reply waits up to ``timeout_ms`` until all partitions have leaders (``creation_waits``).
    None: for the commit alone.
    """

    topics: tuple[RequestedTopic, ...]
    validate_only: bool = False
    timeout_ms: int | None = None


@dataclass(frozen=True, slots=True)
class TopicCreation:
    name: str
    error: int = 0
    message: str | None = None
    topic_id: uuid.UUID | None = None
    partitions: int = -1
    replication_factor: int = -1
    configs: tuple[
        tuple[str, str, int], ...
    ] = ()  # all of them, as effective: name, value, Kafka's number of its source


@dataclass(frozen=True, slots=True)
class TopicsCreated:
    topics: tuple[TopicCreation, ...]


@dataclass(frozen=True, slots=True)
class DeleteTopics:
    """→ TopicsDeleted, in the order names, then ids."""

    names: tuple[str, ...] = ()
    topic_ids: tuple[uuid.UUID, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicDeletion:
    name: str | None
    topic_id: uuid.UUID | None
    error: int = 0
    message: str | None = None


@dataclass(frozen=True, slots=True)
class TopicsDeleted:
    topics: tuple[TopicDeletion, ...]


@dataclass(frozen=True, slots=True)
class PartitionGrowth:
    """``count`` is the new total. ``assignments`` names the brokers of the new partitions only, in
    order; None: planned.
    """

    name: str
    count: int
    assignments: tuple[tuple[int, ...], ...] | None = None


@dataclass(frozen=True, slots=True)
class CreatePartitions:
    """→ PartitionsCreated. ``timeout_ms`` and POLICY_VIOLATION as in CreateTopics."""

    topics: tuple[PartitionGrowth, ...]
    validate_only: bool = False
    timeout_ms: int | None = None


@dataclass(frozen=True, slots=True)
class TopicOutcome:
    name: str
    error: int = 0
    message: str | None = None


@dataclass(frozen=True, slots=True)
class PartitionsCreated:
    topics: tuple[TopicOutcome, ...]


# ------------------------------------------------------------------ views


@dataclass(frozen=True, slots=True)
class DescribeTopics:
    """→ TopicsDescribed. ``names`` and ``topic_ids`` both None: every topic."""

    names: tuple[str, ...] | None = None
    topic_ids: tuple[uuid.UUID, ...] | None = None


@dataclass(frozen=True, slots=True)
class NodeView:
    """A server actor that can be talked to, dead ones left out."""

    node_id: int
    endpoint: Endpoint
    rack: str | None


@dataclass(frozen=True, slots=True)
class DescribedPartition:
    """``leader_node`` −1: nobody leads, or the leader's process is dead (``error`` says
    LEADER_NOT_AVAILABLE).

    A partition that nobody has led yet is shown with the process that will lead it, in leader epoch
    −1.
    """

    partition: int
    error: int
    leader_node: int
    leader_epoch: int
    partition_epoch: int
    replica_nodes: tuple[int, ...]
    isr_nodes: tuple[int, ...]
    elr_nodes: tuple[int, ...]
    offline_nodes: tuple[int, ...]
    last_known_leader_node: int


@dataclass(frozen=True, slots=True)
class DescribedTopic:
    name: str | None
    topic_id: uuid.UUID | None
    error: int = 0
    is_internal: bool = False
    partitions: tuple[DescribedPartition, ...] = ()
    configs: tuple[tuple[str, str], ...] = ()  # those that were set


@dataclass(frozen=True, slots=True)
class TopicsDescribed:
    """Everything that a Metadata reply needs."""

    cluster_id: str
    controller_node: int
    nodes: tuple[NodeView, ...]
    topics: tuple[DescribedTopic, ...]


@dataclass(frozen=True, slots=True)
class DescribeCluster:
    """→ ClusterDescribed."""


@dataclass(frozen=True, slots=True)
class BrokerView:
    """``last_endpoint`` is where its Broker listens, or listened before it died; None if it never
    came.
    """

    broker_id: int
    rack: str | None
    directories: tuple[tuple[uuid.UUID, str], ...]
    nodes: tuple[NodeView, ...]
    is_draining: bool = False
    last_endpoint: Endpoint | None = None
    is_live: bool = False
    listener: Endpoint | None = None  # where Kafka clients reach it without TLS, while its Broker lives
    listeners: tuple[AdvertisedListener, ...] = ()  # and all of them


@dataclass(frozen=True, slots=True)
class ClusterDescribed:
    cluster_id: str
    controller_node: int
    controller_epoch: int
    brokers: tuple[BrokerView, ...]


@dataclass(frozen=True, slots=True)
class AwaitLeader:
    """→ LeaderFound: a live leader of an epoch above ``newer_than_epoch`` as soon as there is one.

    After ``timeout_ms`` a live leader of any epoch (the asker may only have lost its connection),
    else LEADER_NOT_AVAILABLE. A dead leader is never named.
    """

    topic: str
    partition: int
    newer_than_epoch: int
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class LeaderFound:
    error: int
    leader_node: int = -1
    leader_epoch: int = -1
    endpoint: Endpoint | None = None
    topic_id: uuid.UUID | None = None


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """→ ClusterStatusReport: what an operator wants to know at once."""


@dataclass(frozen=True, slots=True)
class ActorStatus:
    node_id: int
    incarnation: int
    endpoint: Endpoint | None
    pid: int
    state: str  # "live", "silent" (being dialled), "dead", "starting"
    replicas: int
    failures: tuple[tuple[str, int, str], ...]  # topic, partition, reason
    damaged: tuple[tuple[str, int, str], ...] = ()  # logs with damaged bytes: file, byte, offset, reason
    mended: tuple[
        tuple[str, int, str], ...
    ] = ()  # the last damage of each that was cut off, and copied from the leader
    kind: str = "replicas"  # or "broker", "coordinator"
    removals: int = 0  # folders that it has yet to delete
    path: str = ""  # of its disk
    host: HostKind | None = None  # what it is planned to hold; None: it was started for its replicas alone
    leaders: int = 0
    cpu_per_mille: int = -1  # of one core, lately; −1: it has not said
    memory_bytes: int = -1
    busy_per_mille: int = -1  # of the time its event loop ran, lately
    is_automatic: bool = False  # a host that the controller added


@dataclass(frozen=True, slots=True)
class ClusterStatusReport:
    cluster_id: str
    controller_node: int
    controller_epoch: int
    brokers: int
    topics: int
    partitions: int
    leaderless: tuple[tuple[str, int], ...]
    under_replicated: tuple[tuple[str, int], ...]
    under_min_isr: tuple[tuple[str, int], ...]
    unclean_elections: int
    removals_pending: int
    actors: tuple[ActorStatus, ...]
    logs: OpenedLogs
    failed_disks: tuple[tuple[uuid.UUID, str], ...] = ()  # directory id, reason
    disk_moves: tuple[DiskMove, ...] = ()


@dataclass(frozen=True, slots=True)
class PartitionTarget:
    """The brokers that shall hold a partition, preferred leader first. ``brokers`` None: cancel
    what is under way.
    """

    topic: str
    partition: int
    brokers: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class AlterReassignments:
    """→ ReassignmentsAltered. The moves themselves go on after the reply."""

    partitions: tuple[PartitionTarget, ...]
    allow_replication_factor_change: bool = True


@dataclass(frozen=True, slots=True)
class ReassignmentsAltered:
    partitions: tuple[PartitionOutcome, ...]


@dataclass(frozen=True, slots=True)
class ListReassignments:
    """→ ReassignmentsListed. ``partitions`` None: all that are under way."""

    partitions: tuple[tuple[str, int], ...] | None = None


@dataclass(frozen=True, slots=True)
class OngoingReassignment:
    """``replicas`` are all brokers that hold one now, those being added and removed included."""

    topic: str
    partition: int
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReassignmentsListed:
    partitions: tuple[OngoingReassignment, ...]


@dataclass(frozen=True, slots=True)
class DrainBroker:
    """→ BrokerDrained. Idempotent. Draining moves every leader away that somebody else can lead,
    now and later; false ends it.
    """

    broker_id: int
    is_draining: bool = True


@dataclass(frozen=True, slots=True)
class BrokerDrained:
    """``moved`` are the partitions that this request took away from the broker, ``remaining`` those
    that nobody else can lead yet.
    """

    error: int = 0
    message: str | None = None
    moved: tuple[tuple[str, int], ...] = ()
    remaining: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class MoveReplicas:
    """→ ReplicasMoved. Other actors of the same disks hold these replicas from now on. Nothing is
    copied.
    """

    moves: tuple[ReplicaMove, ...]


@dataclass(frozen=True, slots=True)
class ReplicasMoved:
    """One outcome for each move, in their order. A replica that the actor holds already has been
    moved.
    """

    partitions: tuple[PartitionOutcome, ...]


@dataclass(frozen=True, slots=True)
class PlanHost:
    """→ HostAnswer. One more actor on a disk of that broker: the one at ``path``, or the one with
    the fewest. It holds nothing yet.
    """

    broker_id: int
    path: str = ""
    kind: HostKind = HostKind.REPLICAS


@dataclass(frozen=True, slots=True)
class HostAnswer:
    """``message`` beside no error is something to be said: the broker has more actors than its
    machine has cores.
    """

    error: int = 0
    message: str | None = None
    node_id: int = -1


@dataclass(frozen=True, slots=True)
class RetireHost:
    """→ HostRetirement. The actor's replicas move to the other hosts of its disk and kind, and it
    ends when it has let go of all.

    What cannot move yet moves later by itself. Idempotent: asked again it says what remains.
    """

    node_id: int


@dataclass(frozen=True, slots=True)
class HostRetirement:
    """``moved`` are partitions that this request took away; ``remaining`` those that cannot move
    now, and why.
    """

    error: int = 0
    message: str | None = None
    moved: tuple[tuple[str, int], ...] = ()
    remaining: tuple[tuple[str, int, str], ...] = ()


@dataclass(frozen=True, slots=True)
class UnregisterBroker:
    """→ BrokerUnregistration. Forgets a broker that holds no replica: its server actors end, its
    disks are no longer the cluster's.
    """

    broker_id: int


@dataclass(frozen=True, slots=True)
class BrokerUnregistration:
    error: int = 0
    message: str | None = None


@dataclass(frozen=True, slots=True)
class PlanControllers:
    """→ ControllersPlan. The brokers that shall hold a controller each; or ``count`` of them, those
    that have one first. The quorum goes there after the reply. Idempotent.
    """

    broker_ids: tuple[int, ...] = ()
    count: int = 0


@dataclass(frozen=True, slots=True)
class ControllersPlan:
    """``broker_ids`` are those of the plan, in order."""

    error: int = 0
    message: str | None = None
    broker_ids: tuple[int, ...] = ()


class ElectionType(Enum):
    PREFERRED = 0
    UNCLEAN = 1


@dataclass(frozen=True, slots=True)
class ElectLeaders:
    """→ LeadersElected. ``partitions`` None: every partition where there is something to do."""

    type: ElectionType
    partitions: tuple[tuple[str, int], ...] | None = None


@dataclass(frozen=True, slots=True)
class PartitionOutcome:
    topic: str
    partition: int
    error: int = 0
    message: str | None = None


@dataclass(frozen=True, slots=True)
class LeadersElected:
    partitions: tuple[PartitionOutcome, ...]


# ------------------------------------------------------------------ producer ids, brokers and disks


@dataclass(frozen=True, slots=True)
class InitProducerId:
    """→ ProducerIdAssigned: a producer id of an idempotent producer (no transactional id).
    ``producer_id`` −1: a new one.
    """

    producer_id: int = -1
    producer_epoch: int = -1


@dataclass(frozen=True, slots=True)
class ProducerIdAssigned:
    error: int
    producer_id: int = -1
    producer_epoch: int = -1


@dataclass(frozen=True, slots=True)
class AllocateProducerIds:
    """→ ProducerIdsBlock: producer ids for a process that gives them out itself."""


@dataclass(frozen=True, slots=True)
class ProducerIdsBlock:
    """``count`` ids from ``first`` on, which nobody else has."""

    error: int
    first: int = -1
    count: int = 0


@dataclass(frozen=True, slots=True)
class RegisterDisk:
    """→ DiskOutcome. Idempotent; registers the broker too. A known disk may move its path, never
    its broker.
    """

    cluster_id: str
    broker_id: int
    directory_id: uuid.UUID
    path: str
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class DiskOutcome:
    error: int
    message: str | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """The answer to any request that this controller cannot decide."""

    error: int
    message: str


Request = (
    CreateTopics | DeleteTopics | CreatePartitions | AlterConfigs | SetStaticConfigs | DescribeConfigs | DescribeTopics
    | DescribeCluster | AwaitLeader | ClusterStatus | ElectLeaders | AlterReassignments
    | ListReassignments | DrainBroker | MoveReplicas | PlanHost | RetireHost | UnregisterBroker | InitProducerId | AllocateProducerIds
    | MoveToDisks | RegisterDisk | PlanControllers | DescribeAcls | CreateAcls | DeleteAcls | AlterUserScramCredentials
    | DescribeUserScramCredentials | AlterClientQuotas | DescribeClientQuotas | CreateDelegationToken | RenewDelegationToken
    | ExpireDelegationToken | RemoveExpiredTokens | DescribeDelegationTokens
)  # fmt: skip

ControllerReply = (
    TopicsCreated | TopicsDeleted | PartitionsCreated | ConfigsAltered | ConfigsDescribed | TopicsDescribed
    | ClusterDescribed | LeaderFound | ClusterStatusReport | LeadersElected | ReassignmentsAltered
    | ReassignmentsListed | BrokerDrained | ReplicasMoved | HostAnswer | HostRetirement | BrokerUnregistration | ProducerIdAssigned
    | MovingToDisks | ProducerIdsBlock
    | DiskOutcome | ControllersPlan | AclsDescribed | AclsCreated | AclsDeleted | UserScramCredentialsAltered
    | UserScramCredentialsDescribed | ClientQuotasAltered | ClientQuotasDescribed | DelegationTokenAnswer
    | DelegationTokensRemoved | DelegationTokensDescribed | Refused
)  # fmt: skip
