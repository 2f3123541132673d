"""What clients ask of a group's coordinator, and what it answers: plain values, no wire format.

A request is answered by the class that its docstring names. Error fields hold Kafka's codes, 0 for
none. Versions are translated outside: what a version of the protocol lacks has a default here, and
says so.
"""

from __future__ import annotations

from dataclasses import dataclass

from raylog.replication.transaction_events import NO_LEAVE, TransactionMembership
from raylog.types import TopicPartition

NO_GENERATION = -1
NO_MEMBER_ID = ""
NO_OFFSET = -1

# ------------------------------------------------------------------ membership


@dataclass(frozen=True, slots=True)
class Protocol:
    """One way of sharing out partitions that a member knows, with what it has to say for it. In the
    member's order of preference.
    """

    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinGroup:
    """→ JoinedGroup, when all members have joined or the rebalance timeout has passed.

    ``needs_member_id``: a dynamic newcomer is first only given its id (versions 4 and up).
    ``can_skip_assignment``: versions 9 and up. ``connection`` names the connection of a native
    member, whose end counts (``ConnectionClosed``); None for all others.
    """

    group_id: str
    member_id: str
    protocol_type: str
    protocols: tuple[Protocol, ...]
    session_timeout_ms: int
    rebalance_timeout_ms: int
    group_instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    needs_member_id: bool = True
    can_skip_assignment: bool = True
    connection: int | None = None


@dataclass(frozen=True, slots=True)
class JoinedMember:
    member_id: str
    group_instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinedGroup:
    """``members`` is told to the leader only. ``skip_assignment``: the leader came back to a stable
    group and shares out nothing.
    """

    error: int
    member_id: str
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()


@dataclass(frozen=True, slots=True)
class SyncGroup:
    """→ SyncedGroup, when the leader's assignments (its request has them) are replicated.

    ``protocol_type`` and ``protocol`` None: not said (before version 5).
    """

    group_id: str
    member_id: str
    generation: int
    assignments: tuple[tuple[str, bytes], ...] = ()
    group_instance_id: str | None = None
    protocol_type: str | None = None
    protocol: str | None = None
    connection: int | None = None


@dataclass(frozen=True, slots=True)
class SyncedGroup:
    error: int
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


HEARTBEAT_HELD_BACK_MS = 3_000
"""How long a coordinator holds back the answer to a native member's heartbeat. Both ends go by it,
so it is no setting.
"""


@dataclass(frozen=True, slots=True)
class GroupHeartbeat:
    """→ HeartbeatAnswer, at once, or with ``park_ms`` (native members) when a rebalance begins, at
    the latest after that time.
    """

    group_id: str
    member_id: str
    generation: int
    group_instance_id: str | None = None
    park_ms: int = 0
    connection: int | None = None


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer:
    error: int


@dataclass(frozen=True, slots=True)
class LeavingMember:
    """``member_id`` may be empty where the instance id names a static member (an operator removes
    it).
    """

    member_id: str
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class LeaveGroup:
    """→ LeftGroup."""

    group_id: str
    members: tuple[LeavingMember, ...]


@dataclass(frozen=True, slots=True)
class LeftMember:
    member_id: str
    group_instance_id: str | None
    error: int


@dataclass(frozen=True, slots=True)
class LeftGroup:
    error: int
    members: tuple[LeftMember, ...] = ()


# ------------------------------------------------------------------ offsets


@dataclass(frozen=True, slots=True)
class CommittedPartition:
    """``offset`` is the next one to read. ``commit_timestamp`` −1: now (only version 1 has
    another).
    """

    topic: str
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_timestamp: int = -1


@dataclass(frozen=True, slots=True)
class OffsetCommit:
    """→ OffsetsCommitted, when they are replicated. Generation −1 and no member id: somebody
    outside of the group's membership.

    ``retention_ms`` −1: the coordinator's own rule (versions 2–4 may have another). Whether the
    topics exist is the caller's business.
    """

    group_id: str
    partitions: tuple[CommittedPartition, ...]
    member_id: str = NO_MEMBER_ID
    generation: int = NO_GENERATION
    group_instance_id: str | None = None
    retention_ms: int = -1
    connection: int | None = None


@dataclass(frozen=True, slots=True)
class TxnOffsetCommit:
    """→ OffsetsCommitted, when they are replicated. They count when the producer's transaction is
    committed.

    Member and generation are checked if they are named (KIP-447). ``membership``: the transaction.
    ``leave`` is given when its coordinator has been asked.
    """

    group_id: str
    partitions: tuple[CommittedPartition, ...]
    producer_id: int
    producer_epoch: int
    membership: TransactionMembership
    member_id: str = NO_MEMBER_ID
    generation: int = NO_GENERATION
    group_instance_id: str | None = None
    leave: int = NO_LEAVE


@dataclass(frozen=True, slots=True)
class PartitionError:
    topic: str
    partition: int
    error: int


@dataclass(frozen=True, slots=True)
class OffsetsCommitted:
    partitions: tuple[PartitionError, ...]


@dataclass(frozen=True, slots=True)
class OffsetFetch:
    """→ OffsetsFetched: what is replicated. ``partitions`` None: all that the group has committed.

    ``require_stable``: an offset that an open transaction may replace is an error, not the old one.
    """

    group_id: str
    partitions: tuple[TopicPartition, ...] | None = None
    require_stable: bool = False


@dataclass(frozen=True, slots=True)
class FetchedOffset:
    """``offset`` −1: nothing is committed."""

    topic: str
    partition: int
    offset: int = NO_OFFSET
    leader_epoch: int = -1
    metadata: str = ""
    error: int = 0


@dataclass(frozen=True, slots=True)
class OffsetsFetched:
    error: int
    partitions: tuple[FetchedOffset, ...] = ()


@dataclass(frozen=True, slots=True)
class OffsetDelete:
    """→ OffsetsDeleted. Partitions of topics that a live member subscribes to are refused."""

    group_id: str
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class OffsetsDeleted:
    error: int
    partitions: tuple[PartitionError, ...] = ()


# ------------------------------------------------------------------ administration


@dataclass(frozen=True, slots=True)
class DescribeGroup:
    """→ GroupDescription."""

    group_id: str


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """``metadata`` and ``assignment`` are told of a stable group only."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes = b""
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class DescribedGroupState:
    """A group that does not exist is "Dead"."""

    error: int
    group_id: str
    state: str = ""
    protocol_type: str = ""
    protocol: str = ""
    members: tuple[MemberDescription, ...] = ()


@dataclass(frozen=True, slots=True)
class ListGroups:
    """→ GroupsListed, of this coordinator alone. ``states`` and ``types`` filter, whatever their
    case; empty: all.
    """

    states: tuple[str, ...] = ()
    types: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ListedGroup:
    group_id: str
    protocol_type: str
    state: str
    type: str = "classic"


@dataclass(frozen=True, slots=True)
class GroupsListed:
    error: int
    groups: tuple[ListedGroup, ...] = ()


@dataclass(frozen=True, slots=True)
class DeleteGroup:
    """→ GroupDeleted, when that is replicated. Only a group without members can be deleted."""

    group_id: str


@dataclass(frozen=True, slots=True)
class GroupDeleted:
    error: int


Request = (
    JoinGroup | SyncGroup | GroupHeartbeat | LeaveGroup | OffsetCommit | TxnOffsetCommit | OffsetFetch | OffsetDelete
    | DescribeGroup | ListGroups | DeleteGroup
)  # fmt: skip
GroupReply = (
    JoinedGroup | SyncedGroup | HeartbeatAnswer | LeftGroup | OffsetsCommitted | OffsetsFetched | OffsetsDeleted
    | DescribedGroupState | GroupsListed | GroupDeleted
)  # fmt: skip
