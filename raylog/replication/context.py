"""What the replicas of one process share: who they are, their settings, their clockwork, and where their orders go.

One ``HostContext`` exists per ``ReplicaHost``. Replicas, parked requests and fetch streams append to ``effects`` while
the host handles an event and collect in ``woken`` the parked fetches that the event may have freed; the host re-reads
those at the end of the event, once each, and hands ``effects`` to the shell.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from raylog.log.record_validation import WALKED_BYTES_MAX
from raylog.replication.events import Effect, LeaderHint
from raylog.replication.replica_traffic import ReplicaTraffic
from raylog.replication.throttle import Throttle
from raylog.replication.timing_wheel import Timer, TimingWheel
from raylog.types import ActorIdentity, TopicIdPartition

if TYPE_CHECKING:
    from raylog.replication.parked import ParkedFetch
    from raylog.replication.replica import Replica

UNKNOWN_TOPIC_OR_PARTITION = ErrorCode.unknown_topic_or_partition.value
NOT_LEADER_OR_FOLLOWER = ErrorCode.not_leader_or_follower.value
Expire = Callable[[int, int], None]  # (now_ms, wall_ms)
Deadline = Timer[Expire]


@dataclass(frozen=True, slots=True)
class HostConfig:
    """Kafka's broker settings that replication uses, under their names (``.`` becomes ``_``), and some of ours."""

    replica_lag_time_max_ms: int = 30_000
    replica_fetch_wait_max_ms: int = 500
    replica_fetch_min_bytes: int = 1
    replica_fetch_max_bytes: int = 1 << 20
    replica_fetch_response_max_bytes: int = 10 << 20
    replica_fetch_backoff_ms: int = 1_000  # the longest; the first retry comes after replica_fetch_backoff_first_ms
    replica_high_watermark_checkpoint_interval_ms: int = 5_000
    log_retention_check_interval_ms: int = 300_000
    log_cleaner_backoff_ms: int = 15_000  # where it is not set for the cluster
    fetch_max_bytes: int = 57_671_680
    replica_fetch_backoff_first_ms: int = 5
    high_watermark_news_ms: int = 5  # how long a follower's fetch waits for records that the news can go with
    alter_partition_backoff_ms: int = 100  # after the controller refused an ISR
    log_scrub_interval_ms: int = 604_800_000  # where it is not set for the cluster
    cold_read_wait_ms: int = (
        500  # how long a consumer's fetch may wait for records that have to be loaded, if its own wait is shorter
    )
    locked_log_retry_ms: int = 20  # while another process holds a replica's folder
    failed_log_retry_ms: int = 250  # after a log could not be opened, or a folder not be deleted; doubled each time
    failed_log_retry_max_ms: int = 30_000
    walked_bytes_max: int = WALKED_BYTES_MAX  # a Produce of more is checked in a thread
    awaited_leader_wait_ms: int = 5_000  # how long a request without a timeout waits for a partition that will serve
    unknown_partition_wait_ms: int = 1_000  # how long any request waits for a partition that is not known here
    awaited_bytes_max: int = 32 << 20  # of records that wait for such partitions
    awaited_requests_max: int = 10_000


class HostContext:
    """Shared by everything in one host. ``connected``: a session to the active controller is up, as far as known."""

    __slots__ = (
        "broker_id",
        "changed",
        "config",
        "connected",
        "copying_in",
        "copying_out",
        "effects",
        "failed",
        "high_watermarks_moved",
        "identity",
        "incarnation",
        "outdated",
        "released",
        "request_ids",
        "suspected",
        "traffic",
        "watched",
        "watched_topics",
        "wheel",
        "woken",
    )

    def __init__(
        self, identity: ActorIdentity, broker_id: int, config: HostConfig, watched_topics: frozenset[str]
    ) -> None:
        self.identity = identity
        self.broker_id = broker_id
        self.incarnation = identity.incarnation
        self.config = config
        self.wheel: TimingWheel[Expire] = TimingWheel()
        self.effects: list[Effect] = []
        self.woken: dict[ParkedFetch, None] = {}
        self.outdated: dict[ParkedFetch, None] = {}  # of followers that were sent an older high watermark
        self.failed: list[Replica] = []
        self.changed: dict[TopicIdPartition, None] = {}  # their assignment, role or health
        self.high_watermarks_moved = False
        self.watched_topics = watched_topics
        self.watched: dict[
            TopicIdPartition, None
        ] = {}  # replicas of those topics that may have changed (``watched.py``)
        self.suspected: list[tuple[Replica, int]] = []  # reading at that offset met damaged bytes
        self.traffic = ReplicaTraffic()
        self.copying_out = Throttle()  # as a leader
        self.copying_in = Throttle()  # as a follower
        self.released: dict[
            TopicIdPartition, LeaderHint
        ] = {}  # held by another process of the disk now; who leads, as told then
        self.connected = True
        self.request_ids = 0

    def absence(self, id: TopicIdPartition) -> tuple[int, LeaderHint | None]:
        """The error of a request for a replica that is not here, and who leads it if this process once had it."""
        hint = self.released.get(id)
        return (UNKNOWN_TOPIC_OR_PARTITION, None) if hint is None else (NOT_LEADER_OR_FOLLOWER, hint)

    def next_request_id(self) -> int:
        """For AlterPartition: unique within the process, so an answer to a forgotten request is recognised."""
        self.request_ids += 1
        return self.request_ids
