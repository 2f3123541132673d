"""The control session: what a server actor and the active controller say to each other, as values.

One TCP connection per server actor carries msgpack frames both ways (the shell encodes them with
``to_frame`` and ``from_frame``). The actor opens with ``Hello`` and keeps sending ``Heartbeat``;
the controller answers ``Welcome`` and then an ``Assignment`` for every replica that the actor shall
hold. Every frame from the controller carries its controller epoch; an actor refuses a frame with a
lower epoch than it has seen (TV-25).

Byte layout of a frame: ``{"t": <class name>, "v": 1, ...fields}`` in msgpack, UUIDs as 16 bytes. A
frame of a newer version is refused by name.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from raylog.control.high_watermarks import TopicHighWatermarks
from raylog.security.protocols import AdvertisedListener
from raylog.types import NO_LEADER, ActorIdentity, Condition, Endpoint, TopicIdPartition


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """One replica as its actor holds it now. Offsets are exclusive ends; epochs are −1 where there
    is none.

    ``scanned_bytes`` and ``cut_bytes`` are what recovery read and cut off when the log was opened.
    """

    topic_id: uuid.UUID
    partition: int
    condition: Condition
    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    last_epoch: int  # of the last batch in the log
    assigned_leader_epoch: int  # the highest that this process was told
    assigned_partition_epoch: int
    scanned_bytes: int = 0
    cut_bytes: int = 0
    damage: str = ""  # in words: the log's file, the byte, the offset, what is wrong; empty: none is known

    @property
    def id(self) -> TopicIdPartition:
        return TopicIdPartition(self.topic_id, self.partition)


# ------------------------------------------------------------------ actor → controller


@dataclass(frozen=True, slots=True)
class FailedDisk:
    directory_id: uuid.UUID
    reason: str


@dataclass(frozen=True, slots=True)
class Hello:
    """Opens a session. ``replicas`` are those that are open; ``failed_disks`` are what a Broker has
    found of its disks.

    ``listeners`` are where clients outside the cluster reach a Broker; ``listener`` is the first of
    them for clients without TLS, if there is one. Both are empty if it has no outside listener.
    ``unopened`` are the replicas, topic id and partition, that the process was assigned earlier and
    whose logs it has not open: it may still be at it.
    """

    identity: ActorIdentity
    endpoint: Endpoint
    boot_id: str
    replicas: tuple[ReplicaStatus, ...] = ()
    rack: str | None = None
    pid: int = 0  # of the process, for people and for tests that kill it
    failed_disks: tuple[FailedDisk, ...] = ()
    listener: Endpoint | None = None
    unopened: tuple[tuple[uuid.UUID, int], ...] = ()
    listeners: tuple[AdvertisedListener, ...] = ()


REQUEST_COST_BYTES = 16_384
"""One request keeps a host's loop busy for about as long as so many bytes of records do."""


@dataclass(frozen=True, slots=True)
class ReplicaLoad:
    """One replica's traffic since the last heartbeat: requests that moved records, and the bytes of
    these records.
    """

    topic_id: uuid.UUID
    partition: int
    requests: int
    bytes_in: int
    bytes_out: int

    @property
    def id(self) -> TopicIdPartition:
        return TopicIdPartition(self.topic_id, self.partition)

    @property
    def cost(self) -> int:
        """Its weight among the replicas of its host."""
        return self.requests * REQUEST_COST_BYTES + self.bytes_in + self.bytes_out


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """What the process has used since the last one: of one core, in thousandths; and its memory.
    −1: not measured.

    ``cores`` are those of its machine that it may use. ``busy_per_mille`` is the share of the time
    in which its event loop ran on a core, less the time in which it waited for one. ``loads`` are the replicas with the most traffic; those
    without any are left out. Both are from version 2 on.
    """

    cpu_per_mille: int = -1
    memory_bytes: int = -1
    cores: int = 0
    busy_per_mille: int = -1
    loads: tuple[ReplicaLoad, ...] = ()


@dataclass(frozen=True, slots=True)
class ReplicaOpened:
    """Answers the first Assignment of a replica, once its log is open (recovery done). Until then
    it is not live.
    """

    status: ReplicaStatus


@dataclass(frozen=True, slots=True)
class ReplicaFailed:
    """A replica's log could not be opened, or its disk failed under it. The actor drops the
    replica.
    """

    topic_id: uuid.UUID
    partition: int
    reason: str


@dataclass(frozen=True, slots=True)
class ReplicaDamaged:
    """Bytes of an open replica's log have changed on the disk. Said in ``leader_epoch``, again in
    later ones until it is mended.

    The actor serves what is whole, and drops nothing before an Assignment of a later epoch names it
    neither in the ISR nor in the ELR. ``damage`` names file, byte, offset and reason.
    """

    topic_id: uuid.UUID
    partition: int
    leader_epoch: int
    damage: str


@dataclass(frozen=True, slots=True)
class ReplicaMended:
    """The damaged part of the log was dropped; what is gone is being copied from the leader."""

    topic_id: uuid.UUID
    partition: int


@dataclass(frozen=True, slots=True)
class ReplicaRemoved:
    """Answers a Removal: the replica is closed and its folder is gone (or was not there)."""

    topic_id: uuid.UUID
    partition: int


@dataclass(frozen=True, slots=True)
class ReplicaReleased:
    """Answers a Release: the log is closed and its folder unlocked (or the process did not have
    it).
    """

    topic_id: uuid.UUID
    partition: int


@dataclass(frozen=True, slots=True)
class NodeLeaving:
    """A Broker has heard from Ray that its node is about to be taken away. True for as long as its
    process lives.
    """


@dataclass(frozen=True, slots=True)
class DisksChecked:
    """A Broker has tried all its disks out, and these have failed; sent when that is news."""

    failed: tuple[FailedDisk, ...]


@dataclass(frozen=True, slots=True)
class AlterPartition:
    """A leader asks for another ISR. ``isr`` pairs broker id with the incarnation that the leader
    has seen fetching.
    """

    request_id: int
    topic_id: uuid.UUID
    partition: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class HighWatermarks:
    """A process reports the high watermarks, of partitions that it leads, that have moved since its
    last report in this session.
    """

    topics: tuple[TopicHighWatermarks, ...]


# ------------------------------------------------------------------ controller → actor


@dataclass(frozen=True, slots=True)
class CopyRates:
    """A process's share of its broker's replication throttles, in bytes per second; None: no limit."""

    as_leader: int | None = None
    as_follower: int | None = None


@dataclass(frozen=True, slots=True)
class Welcome:
    controller_epoch: int
    heartbeat_interval_ms: int
    session_timeout_ms: int
    rates: CopyRates = CopyRates()
    configs: tuple[tuple[str, str], ...] = ()  # those of its process that are set; from version 2 on


@dataclass(frozen=True, slots=True)
class CopyRatesChanged:
    """From now on these, instead of those of the Welcome."""

    controller_epoch: int
    rates: CopyRates


@dataclass(frozen=True, slots=True)
class SettingsChanged:
    """From now on these, instead of those of the Welcome."""

    controller_epoch: int
    heartbeat_interval_ms: int
    configs: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class BrokerDisk:
    directory_id: uuid.UUID
    path: str


@dataclass(frozen=True, slots=True)
class BrokerDisks:
    """To a Broker: these are its disks, to be locked and looked after."""

    controller_epoch: int
    disks: tuple[BrokerDisk, ...]


@dataclass(frozen=True, slots=True)
class ImageChanged:
    """To a Broker, and to a process that coordinates transactions: committed records, one decision or a part of all there is
    (``records.encode_batch``), in the order of the log.

    ``begins``: what the process has is void, an image begins that counts from the frame that
    ``is_complete`` on.
    """

    controller_epoch: int
    batch: bytes
    begins: bool = False
    is_complete: bool = True


@dataclass(frozen=True, slots=True)
class AssignedReplica:
    """One replica of a partition. ``incarnation`` 0 and ``endpoint`` None: no live process."""

    broker_id: int
    node_id: int
    directory_id: uuid.UUID
    incarnation: int
    endpoint: Endpoint | None


@dataclass(frozen=True, slots=True)
class Assignment:
    """The committed state of one partition, sent to each actor that holds a replica of it, whenever
    it changes.

    ``leader`` and ``isr`` are broker ids; ``leader`` −1 means that nobody leads. ``min_isr`` is
    already min(min.insync.replicas, assigned replicas without those being added). ``config`` holds
    the topic's effective configs as strings.
    """

    controller_epoch: int
    topic_id: uuid.UUID
    topic: str
    partition: int
    leader: int
    leader_epoch: int
    partition_epoch: int
    replicas: tuple[AssignedReplica, ...]
    isr: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]
    min_isr: int
    config: tuple[tuple[str, str], ...]
    elr: tuple[int, ...] = ()

    @property
    def id(self) -> TopicIdPartition:
        return TopicIdPartition(self.topic_id, self.partition)


@dataclass(frozen=True, slots=True)
class AssignedPartition:
    """An Assignment among others. ``topic``, ``replicas`` and ``config`` are positions in the
    tables of the frame.
    """

    topic: int
    partition: int
    leader: int
    leader_epoch: int
    partition_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]
    min_isr: int
    config: int
    elr: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Assignments:
    """Many Assignments, in order: what they have in common is said once (``assignment_batches``)."""

    controller_epoch: int
    topics: tuple[tuple[uuid.UUID, str], ...]
    replicas: tuple[AssignedReplica, ...]
    configs: tuple[tuple[tuple[str, str], ...], ...]
    partitions: tuple[AssignedPartition, ...]


@dataclass(frozen=True, slots=True)
class Removal:
    """The replica is not this actor's any more (topic deleted, or moved away): close and delete its
    folder.

    A process that has not opened it deletes the folder ``<topic>-<partition>`` of its disk, if
    ``partition.metadata`` there names this topic id. Either way ``ReplicaRemoved`` follows; until
    then the Removal is repeated in each new session.
    """

    controller_epoch: int
    topic_id: uuid.UUID
    partition: int
    topic: str = ""


@dataclass(frozen=True, slots=True)
class Release:
    """Another actor of the same disk holds the replica from now on: close the log cleanly, unlock
    its folder and leave it there.

    ``ReplicaReleased`` follows. The controller sends this to each process that holds, or is
    opening, what is not assigned to it and what it was not told to delete; so it is repeated in
    each new session until the process has let go. The rest says who leads, for those whose requests
    are refused; −1: nobody.
    """

    controller_epoch: int
    topic_id: uuid.UUID
    partition: int
    leader_node: int = NO_LEADER
    leader_epoch: int = -1
    leader_endpoint: Endpoint | None = None


@dataclass(frozen=True, slots=True)
class TopicsNamed:
    """To a process that holds partitions of ``__consumer_offsets`` or ``__transaction_state``:
    committed topics, name and id; those that ``gone`` names were deleted.

    All topics come before the first Assignment of such a partition in a session, in one or more
    frames; then each change, in the order of the log. ``begins``: what the process knew is void,
    and what begins counts from the frame that ``is_complete``.
    """

    controller_epoch: int
    topics: tuple[tuple[str, uuid.UUID], ...]
    gone: tuple[str, ...] = ()
    begins: bool = False
    is_complete: bool = True


@dataclass(frozen=True, slots=True)
class AlterPartitionAnswer:
    """``error`` is a Kafka error code, 0 when done. ``partition_epoch`` is what holds by now, −1 of a
    partition that is gone. The state itself comes as an Assignment, sent before this; a process that
    another one has replaced gets no Assignment any more.
    """

    controller_epoch: int
    request_id: int
    topic_id: uuid.UUID
    partition: int
    partition_epoch: int
    error: int


SHUT_DOWN = "the cluster is shut down"
"""The reason of an Exit after a Shutdown request."""


@dataclass(frozen=True, slots=True)
class Exit:
    """The process was declared dead and replaced, or is not wanted any more: close logs cleanly and
    end.
    """

    controller_epoch: int
    reason: str


FromActor = (
    Hello
    | Heartbeat
    | ReplicaOpened
    | ReplicaFailed
    | ReplicaDamaged
    | ReplicaMended
    | ReplicaRemoved
    | ReplicaReleased
    | NodeLeaving
    | DisksChecked
    | AlterPartition
    | HighWatermarks
)
FromController = (
    Welcome
    | CopyRatesChanged
    | SettingsChanged
    | BrokerDisks
    | ImageChanged
    | Assignment
    | Assignments
    | Removal
    | Release
    | TopicsNamed
    | AlterPartitionAnswer
    | Exit
)
