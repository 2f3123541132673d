"""What goes into the replication machines and what comes out of them.

Events are facts that the shell reports; effects are orders that it carries out. A *token* is the shell's own name for one
request that waits for a reply; the machines hand it back untouched. Times are the shell's monotonic clock in milliseconds
(``now_ms``), given with each event as a separate argument; timestamps of records are wall-clock milliseconds (``wall_ms``).
Error fields hold Kafka's error codes, 0 for none. Records are bytes of whole record batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from raylog.control.session import (
    AlterPartition,
    AlterPartitionAnswer,
    Assignment,
    CopyRates,
    HighWatermarks,
    Release,
    Removal,
    ReplicaDamaged,
    ReplicaFailed,
    ReplicaMended,
    ReplicaOpened,
    ReplicaReleased,
    ReplicaRemoved,
)
from raylog.errors import RecordError
from raylog.replication.leaderships import LeadershipsChanged
from raylog.replication.traced import TraceReached
from raylog.replication.transaction_events import (
    NO_LEAVE,
    LeaveGiven,
    TransactionEvent,
    TransactionMembership,
    VerifyTransaction,
)
from raylog.types import Endpoint, TopicIdPartition

if TYPE_CHECKING:
    from raylog.log.cleaning import Cleaning
    from raylog.log.config import LogConfig
    from raylog.log.log import Log
    from raylog.log.record_validation import CheckedRecords
    from raylog.log.scrubbing import Scrubbing

Token = int
Buffer = bytes | bytearray | memoryview

# ------------------------------------------------------------------ requests and their replies


@dataclass(frozen=True, slots=True)
class ProducePartition:
    id: TopicIdPartition
    records: Buffer
    membership: TransactionMembership | None = None  # of the transaction that the request names
    trace: object | None = None  # the shell's own, of a batch that it follows (``traced``)


@dataclass(frozen=True, slots=True)
class ProduceReceived:
    """``acks`` 0, 1 or −1. With acks 0 no reply is made (the shell sends none)."""

    token: Token
    acks: int
    timeout_ms: int
    partitions: tuple[ProducePartition, ...]


@dataclass(frozen=True, slots=True)
class OwnAppend:
    """One batch of this process's own, for a partition of an internal topic that it leads.

    Answered at once by a ProduceReply with one result, as soon as it is appended; ``HighWatermarkMoved`` says when it is replicated.
    Refused unless this process leads in ``leader_epoch``, and without enough replicas. ``leave``: a LeaveGiven's, to begin a transaction.
    """

    token: Token
    partition: ProducePartition
    leader_epoch: int
    leave: int = NO_LEAVE


@dataclass(frozen=True, slots=True)
class LeaderHint:
    """KIP-951: who leads now, as far as this replica knows. ``leader_node`` −1: nobody known."""

    leader_node: int
    leader_epoch: int
    endpoint: Endpoint | None


@dataclass(frozen=True, slots=True)
class ProducePartitionResult:
    id: TopicIdPartition
    error: int
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    message: str | None = None
    hint: LeaderHint | None = None
    record_errors: tuple[RecordError, ...] = ()


@dataclass(frozen=True, slots=True)
class ProduceReply:
    partitions: tuple[ProducePartitionResult, ...]


@dataclass(frozen=True, slots=True)
class FetchPartition:
    """``current_leader_epoch`` −1: not checked. ``last_fetched_epoch`` −1: no divergence check (consumers)."""

    id: TopicIdPartition
    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int = -1
    last_fetched_epoch: int = -1
    log_start_offset: int = -1


@dataclass(frozen=True, slots=True)
class FetchReceived:
    """``replica_id`` is the follower's broker id, −1 for a consumer; ``replica_incarnation`` its process.

    ``wants_all``: the follower may have missed an answer, so what it was last told counts for nothing; a session may
    begin. ``session_epoch``: from 1 on, how many fetches of session ``session_id`` there were; ``partitions`` are those
    whose question has changed since the one before (``follower_sessions``).
    """

    token: Token
    replica_id: int
    replica_incarnation: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    partitions: tuple[FetchPartition, ...]
    wants_all: bool = False
    session_id: int = 0
    session_epoch: int = 0


@dataclass(frozen=True, slots=True)
class FetchPartitionResult:
    """``diverging_epoch`` is (epoch, end offset) where the follower's log has to be cut; then there are no records.
    ``aborted`` are the (producer id, first offset) of the aborted transactions among the records; None unless the fetch was to
    read committed records only.
    """

    id: TopicIdPartition
    error: int
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    diverging_epoch: tuple[int, int] | None = None
    records: Buffer = b""
    hint: LeaderHint | None = None
    aborted: tuple[tuple[int, int], ...] | None = None


@dataclass(frozen=True, slots=True)
class FetchReply:
    partitions: tuple[FetchPartitionResult, ...]
    session_id: int = 0  # a follower's, whose next fetch may name the changes only
    error: int = 0  # of the fetch as a whole


@dataclass(frozen=True, slots=True)
class ListOffsetsPartition:
    """``timestamp``: −1 latest, −2 earliest, −3 largest timestamp … (``replica``), else wall-clock milliseconds."""

    id: TopicIdPartition
    timestamp: int
    current_leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class ListOffsetsReceived:
    token: Token
    replica_id: int
    isolation_level: int
    partitions: tuple[ListOffsetsPartition, ...]


@dataclass(frozen=True, slots=True)
class ListOffsetsPartitionResult:
    id: TopicIdPartition
    error: int
    timestamp: int = -1
    offset: int = -1
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class ListOffsetsReply:
    partitions: tuple[ListOffsetsPartitionResult, ...]


@dataclass(frozen=True, slots=True)
class EpochEndPartition:
    id: TopicIdPartition
    leader_epoch: int
    current_leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class OffsetForLeaderEpochReceived:
    token: Token
    replica_id: int
    partitions: tuple[EpochEndPartition, ...]


@dataclass(frozen=True, slots=True)
class EpochEndPartitionResult:
    id: TopicIdPartition
    error: int
    leader_epoch: int = -1
    end_offset: int = -1


@dataclass(frozen=True, slots=True)
class OffsetForLeaderEpochReply:
    partitions: tuple[EpochEndPartitionResult, ...]


@dataclass(frozen=True, slots=True)
class DeleteRecordsPartition:
    """``offset`` −1 means the high watermark."""

    id: TopicIdPartition
    offset: int


@dataclass(frozen=True, slots=True)
class DeleteRecordsReceived:
    token: Token
    timeout_ms: int
    partitions: tuple[DeleteRecordsPartition, ...]


@dataclass(frozen=True, slots=True)
class DeleteRecordsPartitionResult:
    id: TopicIdPartition
    error: int
    low_watermark: int = -1


@dataclass(frozen=True, slots=True)
class DeleteRecordsReply:
    partitions: tuple[DeleteRecordsPartitionResult, ...]


Replied = ProduceReply | FetchReply | ListOffsetsReply | OffsetForLeaderEpochReply | DeleteRecordsReply | LeaveGiven

# ------------------------------------------------------------------ further events


@dataclass(frozen=True, slots=True)
class Assigned:
    assignment: Assignment


@dataclass(frozen=True, slots=True)
class Removed:
    removal: Removal


@dataclass(frozen=True, slots=True)
class Released:
    release: Release


@dataclass(frozen=True, slots=True)
class LogOpened:
    """The answer to OpenLog. Exactly one of ``log`` and ``reason`` is set. What failed is tried again, later and later.
    ``locked``: another process holds the folder, the one before this that is still dying or stopped; it is tried again soon.
    """

    id: TopicIdPartition
    log: Log | None
    reason: str | None = None
    locked: bool = False


@dataclass(frozen=True, slots=True)
class FetchAnswered:
    """The answer to SendFetch, for the stream to that leader."""

    leader_node: int
    leader_incarnation: int
    fetch_id: int
    partitions: tuple[FetchPartitionResult, ...]
    session_id: int = 0


@dataclass(frozen=True, slots=True)
class FetchFailed:
    """The connection to that leader broke, or its answer could not be used."""

    leader_node: int
    leader_incarnation: int
    fetch_id: int


@dataclass(frozen=True, slots=True)
class AlterPartitionAnswered:
    answer: AlterPartitionAnswer


@dataclass(frozen=True, slots=True)
class ControlSessionChanged:
    """The session to the active controller came up or went away; AlterPartition requests in flight are void."""

    connected: bool


@dataclass(frozen=True, slots=True)
class CopyRatesGiven:
    """The controller said how fast this process may copy, in its Welcome or later."""

    controller_epoch: int
    rates: CopyRates


@dataclass(frozen=True, slots=True)
class ConfigsGiven:
    """The controller said which configs of this process are set, in its Welcome or later; all others have their default."""

    controller_epoch: int
    configs: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The client of a parked request went away."""

    token: Token


@dataclass(frozen=True, slots=True)
class RecordsChecked:
    """The end of a CheckRecords."""

    token: Token
    index: int
    checked: CheckedRecords


@dataclass(frozen=True, slots=True)
class FlushCompleted:
    """Everything below ``log_end_offset`` is on the disk, or ``reason`` says why not (the disk goes offline). ``log`` is the
    one that was flushed: the replica may have been removed and opened again since. None: the replica's.
    """

    id: TopicIdPartition
    log_end_offset: int
    reason: str | None = None
    log: Log | None = None
    took_ns: int | None = None  # None: nobody looked at a clock


@dataclass(frozen=True, slots=True)
class FolderRemoved:
    """The end of a RemoveFolder, or of a CloseLog that deletes: the folder is gone, or ``error`` says why it is not.
    ``locked``: another process, or a log of this one that is just being closed, has it open.
    """

    id: TopicIdPartition
    error: str | None = None
    locked: bool = False


@dataclass(frozen=True, slots=True)
class LogClosed:
    """The end of a CloseLog that ``reports``: the folder is unlocked, and stays."""

    id: TopicIdPartition


@dataclass(frozen=True, slots=True)
class Loaded:
    """The end of a Load: the bytes are in memory, for now, or the file is gone; or ``error`` says why the disk has failed."""

    id: TopicIdPartition
    path: str
    position: int
    size: int
    error: str | None = None


@dataclass(frozen=True, slots=True)
class LogFailed:
    """Housekeeping or a checkpoint met an IO error: the replica goes offline."""

    id: TopicIdPartition
    reason: str


@dataclass(frozen=True, slots=True)
class CleaningEnded:
    """A compaction that was ordered is over, done or not. ``fault``: the log is damaged and stays as it is; ``error``: the
    disk failed, the replica goes offline.
    """

    id: TopicIdPartition
    log: Log
    cleaning: Cleaning
    fault: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class ScrubEnded:
    """A log that was to be read through was, up to its end or its first damage; or ``error`` says why the disk has failed."""

    id: TopicIdPartition
    log: Log
    scrubbing: Scrubbing
    error: str | None = None


@dataclass(frozen=True, slots=True)
class DamageSuspected:
    """Somebody in this process read a log at that offset and met damaged bytes: the log is read through there."""

    id: TopicIdPartition
    offset: int


@dataclass(frozen=True, slots=True)
class DamageReported:
    """Somebody who has compared this replica with the others says that it is wrong from ``offset`` on."""

    id: TopicIdPartition
    offset: int
    reason: str


@dataclass(frozen=True, slots=True)
class Ticked:
    """A deadline that ``next_deadline_ms`` announced may have come."""


DiskEvent = (
    LogOpened | LogClosed | LogFailed | FolderRemoved | Loaded | CleaningEnded | ScrubEnded | DamageReported | DamageSuspected
)  # fmt: skip
ProduceEvent = ProduceReceived | RecordsChecked | OwnAppend | TransactionEvent
Event = (
    DiskEvent | ProduceEvent | Assigned | Removed | Released | FetchReceived | ListOffsetsReceived | OffsetForLeaderEpochReceived
    | DeleteRecordsReceived | FetchAnswered | FetchFailed | AlterPartitionAnswered | ControlSessionChanged | CopyRatesGiven
    | ConfigsGiven | Cancelled | FlushCompleted | Ticked
)  # fmt: skip

# ------------------------------------------------------------------ effects


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer the request of that token."""

    token: Token
    reply: Replied


@dataclass(frozen=True, slots=True)
class OpenLog:
    """Open (recover, or create) the replica's log in a thread and report LogOpened."""

    assignment: Assignment


@dataclass(frozen=True, slots=True)
class CloseLog:
    """Close in a thread; with ``delete`` its folder goes too, and FolderRemoved reports what became of it.
    With ``reports`` the folder stays, and LogClosed says when it is unlocked, whatever happened. Without
    ``clean`` the next opening recovers it: after an IO error nobody vouches for what is on the disk.
    """

    id: TopicIdPartition
    log: Log
    delete: bool
    clean: bool = False
    reports: bool = False


@dataclass(frozen=True, slots=True)
class RemoveFolder:
    """Delete in a thread the folder of a replica that has no log open here (``remove_folder``) and report FolderRemoved."""

    removal: Removal


@dataclass(frozen=True, slots=True)
class Flush:
    """fsync the log in a thread and report FlushCompleted with the log end offset that was taken before the call."""

    id: TopicIdPartition
    log: Log
    log_end_offset: int


@dataclass(frozen=True, slots=True)
class CheckRecords:
    """Judge the records of one partition of a Produce (``record_validation.checked``) in a thread and report RecordsChecked.
    ``index`` is the partition's place in the request; ``config`` the topic's, ``wall_ms`` when the request came.
    """

    token: Token
    index: int
    records: Buffer
    config: LogConfig
    wall_ms: int
    where: str


@dataclass(frozen=True, slots=True)
class Load:
    """Bring a range of one of the replica's files into memory (``Files.load``) in a thread and report Loaded, whatever happens."""

    id: TopicIdPartition
    path: str
    position: int
    size: int


@dataclass(frozen=True, slots=True)
class SendFetch:
    """Fetch from a leader, for what FetchReceived says; at most one is in flight per leader."""

    leader_node: int
    leader_incarnation: int
    endpoint: Endpoint
    fetch_id: int
    replica_id: int
    replica_incarnation: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    partitions: tuple[FetchPartition, ...]
    wants_all: bool = False
    session_id: int = 0
    session_epoch: int = 0


@dataclass(frozen=True, slots=True)
class Tell:
    """Send a frame over the control session (dropped by the shell if there is none)."""

    frame: (
        AlterPartition
        | HighWatermarks
        | ReplicaOpened
        | ReplicaFailed
        | ReplicaDamaged
        | ReplicaMended
        | ReplicaRemoved
        | ReplicaReleased
    )


@dataclass(frozen=True, slots=True)
class RunHousekeeping:
    """Retention for one log, and in a thread its checkpoint and the deletion of renamed files. Without
    ``retention`` only the checkpoint is due. LogFailed reports an IO error; success needs no event.
    """

    id: TopicIdPartition
    log: Log
    retention: bool = True


@dataclass(frozen=True, slots=True)
class Clean:
    """Compact the log: do ``cleaning.step()`` until it returns None, each where the one before said, the first in a thread.
    CleaningEnded reports the end, whatever it is.
    """

    id: TopicIdPartition
    log: Log
    cleaning: Cleaning


@dataclass(frozen=True, slots=True)
class Scrub:
    """Read the log through: do ``scrubbing.step()`` in a thread until it returns False, or raises OSError.
    At most so fast as ``log.scrub.io.max.bytes.per.second`` says, an urgent one at once. ScrubEnded reports the end, whatever it is.
    """

    id: TopicIdPartition
    log: Log
    scrubbing: Scrubbing


Effect = (
    Reply | OpenLog | CloseLog | RemoveFolder | Flush | CheckRecords | Load | SendFetch | Tell | RunHousekeeping | Clean | Scrub
    | VerifyTransaction | LeadershipsChanged | TraceReached
)  # fmt: skip
