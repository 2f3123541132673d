"""What a replica does while it follows one leader epoch: ask the leader for records, cut its log
where the two diverge, append.

Two states. *Truncating*, from the start of the epoch: the log may hold records that the leader does
not have. The fetch names the epoch of the last record here; if that epoch ends earlier at the
leader, the answer is a diverging epoch instead of records, the log is cut, and the next fetch asks
again (KIP-595; at most one round per epoch that the logs do not share). *Fetching*, after the first
answer without divergence: everything here is in the leader's log too. Nothing is ever cut by the
high watermark (TV-21, TV-22).

A fetch offset promises that everything below is appended, so a fetch leaves only after the append,
and where ``flush.messages`` demands a flush, after that. After each answer the high watermark is
min(log end, leader's high watermark), never going back, and the log start follows the leader's. A
log that was found suspect or missing is trusted again (``Log.trust``) when it is known to hold all
that was committed: it has a record of this epoch and reaches the leader's high watermark, or the
leader has nothing more.

A compacted log that was cut when it was opened, below what had been compacted, lacks older records
whose place newer ones had taken: those went with the cut, and the leader may have lost them in an
unclean election. It is copied from the start.

The leader's answers, and what they lead to::

    records                    append, then fetch on
    diverging epoch            cut, then fetch on
    OFFSET_OUT_OF_RANGE        below the leader's log start: drop everything, start there; else the replica has failed
    THROTTLING_QUOTA_EXCEEDED  ask again: the leader keeps the fetch until it may send records
    FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH, NOT_LEADER_OR_FOLLOWER, …     one of the two has not heard the news: pause, ask again
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from raylog.control.session import AssignedReplica
from raylog.errors import KafkaError
from raylog.records.corrupt import CorruptBatch, UnsupportedMagic
from raylog.replication.events import FetchPartition, FetchPartitionResult

if TYPE_CHECKING:
    from raylog.replication.replica import Replica

THROTTLED = ErrorCode.throttling_quota_exceeded.value
OFFSET_OUT_OF_RANGE = ErrorCode.offset_out_of_range.value


class Step(Enum):
    """What the stream does next with a partition whose answer was taken in."""

    FETCH = "fetch"
    PAUSE = "pause"
    STALE = "stale"  # the answer was to a question that nobody asks any more
    FAILED = "failed"  # the replica went offline


class Follower:
    """The following role. It ends with its epoch; ``leader`` is None while nobody leads or the
    leader's address is unknown.
    """

    __slots__ = (
        "failures",
        "leader",
        "leader_epoch",
        "leader_high_watermark",
        "log",
        "replica",
        "retry_at_ms",
        "truncating",
    )

    def __init__(self, replica: Replica, leader_epoch: int, leader: AssignedReplica | None) -> None:
        self.replica = replica
        self.log = replica.open_log()
        self.leader_epoch = leader_epoch
        self.leader = leader
        self.leader_high_watermark = -1  # as the leader said last
        self.truncating = True
        self.failures = 0
        self.retry_at_ms = 0

    @property
    def lag(self) -> int:
        """How many records it lacks of those that the leader knew to be committed; −1: it has not
        said yet.
        """
        return -1 if self.leader_high_watermark < 0 else max(0, self.leader_high_watermark - self.log.log_end_offset)

    def next_request(self, bytes_max: int) -> FetchPartition:
        """The question for the leader, as the log stands now, for about ``bytes_max`` bytes at
        most.
        """
        log = self.log
        return FetchPartition(
            self.replica.id,
            log.log_end_offset,
            min(self.replica.context.config.replica_fetch_max_bytes, bytes_max),
            self.leader_epoch,
            log.leader_epochs.latest_epoch,
            log.log_start_offset,
        )

    def take(self, request: FetchPartition, result: FetchPartitionResult, now_ms: int, wall_ms: int) -> Step:
        """Take in the leader's answer to ``request``."""
        log = self.log
        if request.current_leader_epoch != self.leader_epoch or request.fetch_offset != log.log_end_offset:
            return Step.STALE
        try:
            if result.error:
                return self._take_error(result, now_ms)
            if result.diverging_epoch is not None:
                self._cut(*result.diverging_epoch)
                return Step.FETCH
            self.truncating = False
            self.failures = 0
            if log.compaction.compacted_end > log.log_end_offset:
                self._restart_at(log.log_start_offset)
                return Step.FETCH
            if len(result.records):
                if self._is_all_deleted(result):
                    self._restart_at(result.log_start_offset)
                log.append_as_follower(result.records, wall_ms=wall_ms)
                self.replica.flushing.appended(now_ms)
            self._follow_offsets(result)
            if not log.is_proven and self._holds_all(result.high_watermark):
                log.trust()
        except KafkaError:  # what came is damaged: fetch it again
            return self._pause(now_ms)
        except OSError as error:
            self.replica.fail(f"replication: {error}")
            return Step.FAILED
        return Step.FETCH

    def _is_all_deleted(self, result: FetchPartitionResult) -> bool:
        """Whether the leader's log starts where this one ends, inside the batch that came.

        Then this log has another batch there. The leader cannot see it: its epochs are known from
        its start on.
        """
        log = self.log
        if log.log_end_offset != result.log_start_offset or not log.size_bytes:
            return False
        return int.from_bytes(memoryview(result.records)[:8]) < log.log_end_offset  # the first batch's base offset

    def _follow_offsets(self, result: FetchPartitionResult) -> None:
        log = self.log
        self.leader_high_watermark = result.high_watermark
        high_watermark = min(log.log_end_offset, result.high_watermark)
        if high_watermark > log.high_watermark:
            log.high_watermark = high_watermark
            self.replica.context.high_watermarks_moved = True
            if self.replica.is_watched:
                self.replica.context.watched[self.replica.id] = None
            self.replica.watchers.high_watermark_rose(high_watermark)
        start = min(result.log_start_offset, log.high_watermark)
        if start > log.log_start_offset:
            log.advance_log_start(start)

    def _holds_all(self, leader_high_watermark: int) -> bool:
        """All that is committed is here. With a record of this epoch it has what the leader had
        when the epoch began.
        """
        log = self.log
        return log.leader_epochs.latest_epoch == self.leader_epoch and log.log_end_offset >= leader_high_watermark

    def caught_up(self, request: FetchPartition) -> bool:
        """The leader had nothing behind ``request``: if the log still ends there, it has all that
        the leader has.

        False if the disk failed.
        """
        log = self.log
        is_current = request.current_leader_epoch == self.leader_epoch and request.fetch_offset == log.log_end_offset
        if not log.is_proven and is_current and not self.truncating:
            try:
                log.trust()
            except OSError as error:
                self.replica.fail(f"checkpoint: {error}")
                return False
        return True

    def _take_error(self, result: FetchPartitionResult, now_ms: int) -> Step:
        if result.error == THROTTLED:
            return Step.FETCH  # the leader keeps the next fetch until it may copy
        if result.error != OFFSET_OUT_OF_RANGE or result.log_start_offset < 0:
            return self._pause(now_ms)
        log = self.log
        leader_start = result.log_start_offset
        if log.log_end_offset == leader_start:
            return self._pause(now_ms)
        if log.log_end_offset < leader_start or log.log_end_offset == log.log_start_offset:
            # Nothing here is in the leader's log any more, or nothing is here.
            self._restart_at(leader_start)
            return Step.FETCH
        self.replica.fail(
            f"the leader of epoch {self.leader_epoch} knows nothing of epoch {log.leader_epochs.latest_epoch}, in which this log "
            f"ends at {log.log_end_offset}: not cutting it"
        )
        return Step.FAILED

    def _cut(self, leader_epoch: int, leader_end: int) -> None:
        """Cut the log to the last offset that it may share with the leader's, given where
        ``leader_epoch`` ends there.
        """
        log = self.log
        epoch, end = log.leader_epochs.end_offset_for(leader_epoch, log.log_end_offset)
        if epoch == leader_epoch:
            end = min(end, leader_end)  # both have it: the shorter one ends it
        elif epoch < 0:
            end = leader_end
        self._truncate(min(end, log.log_end_offset))

    def _truncate(self, offset: int) -> None:
        log = self.log
        if offset < log.log_start_offset:
            self._restart_at(offset)
            return
        try:
            log.truncate_to(offset)
        except (CorruptBatch, UnsupportedMagic):  # nothing is cut: where that would be cannot be found
            self.replica.context.suspected.append((self.replica, offset))
            raise
        self._truncated()

    def _restart_at(self, offset: int) -> None:
        self.log.truncate_fully_and_start_at(offset)
        self._truncated()

    def _truncated(self) -> None:
        log = self.log
        log.high_watermark = max(log.log_start_offset, min(log.high_watermark, log.log_end_offset))
        self.replica.flushing.truncated()
        if self.replica.is_watched:
            self.replica.context.watched[self.replica.id] = None

    def _pause(self, now_ms: int) -> Step:
        config = self.replica.context.config
        pause_ms = min(config.replica_fetch_backoff_first_ms << min(self.failures, 16), config.replica_fetch_backoff_ms)
        self.failures += 1
        self.retry_at_ms = now_ms + pause_ms
        return Step.PAUSE

    def check(self) -> None:
        """Raise AssertionError where an invariant is broken."""
        assert self.log.leader_epochs.latest_epoch <= self.leader_epoch or self.truncating, (
            f"{self.replica.id}: fetching in epoch {self.leader_epoch} with records of {self.log.leader_epochs.latest_epoch}"
        )
