"""What the replicas of one process share: who they are, their settings, their clockwork, and where
their orders go.

One ``HostContext`` exists per ``ReplicaHost``. Replicas, parked requests and fetch streams append
to ``effects`` while the host handles an event and collect in ``woken`` the parked fetches that the
event may have freed; the host re-reads those at the end of the event, once each, and hands
``effects`` to the shell.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from raylog.configs.settings import setting
from raylog.replication.counts import HostCounts
from raylog.replication.events import Effect, LeaderHint
from raylog.replication.leaderships import TransactionMarked
from raylog.replication.replica_traffic import ReplicaTraffic
from raylog.replication.throttle import Throttle
from raylog.replication.timing_wheel import TimingWheel, WheelTimer
from raylog.types import ActorIdentity, TopicIdPartition

if TYPE_CHECKING:
    from raylog.replication.parked import ParkedFetch
    from raylog.replication.replica import Replica

UNKNOWN_TOPIC_OR_PARTITION = ErrorCode.unknown_topic_or_partition.value
NOT_LEADER_OR_FOLLOWER = ErrorCode.not_leader_or_follower.value
Expire = Callable[[int, int], None]  # (now_ms, wall_ms)
Deadline = WheelTimer[Expire]


@dataclass(frozen=True, slots=True)
class HostConfig:
    """The configs of brokers that are of the processes that hold replicas, under their names (``.``
    becomes ``_``).

    What the controller sends replaces those that a process was started with.
    ``log_cleaner_backoff_ms`` and ``log_scrub_interval_ms`` come with the logs instead
    (``LogConfig``); here they hold for logs that were told none.
    """

    replica_lag_time_max_ms: int = setting("replica.lag.time.max.ms")
    replica_fetch_wait_max_ms: int = setting("replica.fetch.wait.max.ms")
    replica_fetch_min_bytes: int = setting("replica.fetch.min.bytes")
    replica_fetch_max_bytes: int = setting("replica.fetch.max.bytes")
    replica_fetch_response_max_bytes: int = setting("replica.fetch.response.max.bytes")
    replica_fetch_backoff_ms: int = setting("replica.fetch.backoff.ms")
    replica_high_watermark_checkpoint_interval_ms: int = setting("replica.high.watermark.checkpoint.interval.ms")
    log_retention_check_interval_ms: int = setting("log.retention.check.interval.ms")
    log_cleaner_backoff_ms: int = setting("log.cleaner.backoff.ms")
    fetch_max_bytes: int = setting("fetch.max.bytes")
    replica_fetch_backoff_first_ms: int = setting("replica.fetch.backoff.first.ms")
    high_watermark_news_ms: int = setting("high.watermark.news.ms")
    alter_partition_backoff_ms: int = setting("alter.partition.backoff.ms")
    log_scrub_interval_ms: int = setting("log.scrub.interval.ms")
    cold_read_wait_ms: int = setting("cold.read.wait.ms")
    locked_log_retry_ms: int = setting("locked.log.retry.ms")
    failed_log_retry_ms: int = setting("failed.log.retry.ms")
    failed_log_retry_max_ms: int = setting("failed.log.retry.max.ms")
    walked_bytes_max: int = setting("walked.bytes.max")
    awaited_leader_wait_ms: int = setting("awaited.leader.wait.ms")
    unknown_partition_wait_ms: int = setting("unknown.partition.wait.ms")
    awaited_bytes_max: int = setting("awaited.bytes.max")
    awaited_requests_max: int = setting("awaited.requests.max")
    connections_max_idle_ms: int = setting("connections.max.idle.ms")
    request_slow_log_ms: int = setting("request.slow.log.ms")
    request_trace_enable: bool = setting("request.trace.enable")
    socket_request_max_bytes: int = setting("socket.request.max.bytes")
    traces_otlp_endpoint: str = setting("traces.otlp.endpoint")
    traces_spans_per_second_max: int = setting("traces.spans.per.second.max")
    authorizer_class_name: str = setting("authorizer.class.name")


class HostContext:
    """Shared by everything in one host. ``connected``: a session to the active controller is up, as
    far as known.
    """

    __slots__ = (
        "broker_id",
        "changed",
        "config",
        "connected",
        "copying_in",
        "copying_out",
        "counts",
        "effects",
        "ended_transactions",
        "failed",
        "high_watermarks_moved",
        "identity",
        "incarnation",
        "outdated",
        "released",
        "request_ids",
        "suspected",
        "traced_batches",
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
        self.ended_transactions: list[TransactionMarked] = []  # by markers in replicas of those topics, in order
        self.suspected: list[tuple[Replica, int]] = []  # reading at that offset met damaged bytes
        self.traced_batches = 0  # that wait in the leaders (``traced``)
        self.traffic = ReplicaTraffic()
        self.counts = HostCounts()
        self.copying_out = Throttle()  # as a leader
        self.copying_in = Throttle()  # as a follower
        self.released: dict[
            TopicIdPartition, LeaderHint
        ] = {}  # held by another process of the disk now; who leads, as told then
        self.connected = True
        self.request_ids = 0

    def absence(self, id: TopicIdPartition) -> tuple[int, LeaderHint | None]:
        """The error of a request for a replica that is not here, and who leads it if this process
        once had it.
        """
        hint = self.released.get(id)
        return (UNKNOWN_TOPIC_OR_PARTITION, None) if hint is None else (NOT_LEADER_OR_FOLLOWER, hint)

    def next_request_id(self) -> int:
        """For AlterPartition: unique within the process, so an answer to a forgotten request is
        recognised.
        """
        self.request_ids += 1
        return self.request_ids
