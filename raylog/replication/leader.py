"""What a replica does while it leads one leader epoch: append, count the followers, move the high
watermark, keep the ISR.

*Followers* are known by what they fetch: a fetch from offset n promises that everything below n is
appended there. It counts only if it comes from the process (incarnation) that the assignment names
and if the follower's log does not diverge from this one; anybody else may read.

*High watermark* = the least end among the members of the maximal ISR (``isr.py``), this replica's
own end being what is complete here (``flushing.py``). It stands still while the committed ISR is
smaller than the minimum, and never goes back. A follower of which nothing is known yet in this
epoch holds it.

*ISR.* A member that has not been caught up with the log end within ``replica.lag.time.max.ms`` is
asked out; a burst that it digests in that time does nothing (TV-23). A replica that has reached the
high watermark and this epoch's start is asked in. A copy on its way from another disk is counted
before that, and while one of this very replica arrives, records that nobody waits for are held
(``arrival``).

*Transactions.* Leaves to begin one (``transaction_checks``) are given in one epoch and end with it.
Markers of transactions' ends are appended once.

*Epochs.* This epoch enters the log's epoch list with its first append. Until then
``end_offset_for`` answers for it here.

Invariants (``check``): the high watermark is at most every known end of a maximal ISR member that
was counted in; this replica is in its ISR. Only an arrival may be asked in under the id of a future
copy.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from raylog.control.session import AlterPartition, AlterPartitionAnswer, AssignedReplica, Assignment
from raylog.errors import KafkaError
from raylog.log.config import NEVER
from raylog.log.markers import TransactionEnd, append_marker, is_repeated
from raylog.log.record_validation import CheckedRecords
from raylog.log.results import AppendResult
from raylog.records.batch import BatchView
from raylog.replication.arrival import NEAR_MS, REST_MS, Arrival
from raylog.replication.context import Deadline
from raylog.replication.events import Buffer, FetchPartition, ProducePartitionResult, Tell
from raylog.replication.isr import InSyncReplicas
from raylog.replication.leaderships import TransactionMarked
from raylog.replication.traced import TracedBatches
from raylog.types import INTERNAL_TOPICS, future_id, is_future

if TYPE_CHECKING:
    from raylog.replication.follower_sessions import FollowerSession
    from raylog.replication.replica import Replica
    from raylog.replication.transaction_checks import Leave

NOT_ENOUGH_REPLICAS = ErrorCode.not_enough_replicas.value
NOT_ENOUGH_REPLICAS_AFTER_APPEND = ErrorCode.not_enough_replicas_after_append.value
OFFSET_OUT_OF_RANGE = ErrorCode.offset_out_of_range.value
POLICY_VIOLATION = ErrorCode.policy_violation.value
UNKNOWN = -1
LONG_AGO_MS = -(1 << 62)


class FollowerProgress:
    """One follower as this leader has seen it in this epoch.

    ``log_end_offset`` and ``log_start_offset`` are −1 until a fetch of the named incarnation was
    counted. ``sent_*`` is what the last answer told it; a parked fetch returns when those are
    outdated. Only answers to ``newest_fetch``, or in ``session``, count: a follower that asks again
    has given up what it asked before, and drops the answer.
    """

    __slots__ = (
        "broker_id",
        "fetched_at_ms",
        "fetched_leader_end",
        "incarnation",
        "last_caught_up_ms",
        "log_end_offset",
        "log_start_offset",
        "newest_fetch",
        "sent_high_watermark",
        "sent_log_start_offset",
        "session",
    )

    def __init__(self, broker_id: int, incarnation: int, last_caught_up_ms: int) -> None:
        self.broker_id = broker_id
        self.incarnation = incarnation
        self.last_caught_up_ms = last_caught_up_ms
        self.log_end_offset = UNKNOWN
        self.log_start_offset = UNKNOWN
        self.fetched_at_ms = LONG_AGO_MS
        self.fetched_leader_end = 1 << 62
        self.newest_fetch = UNKNOWN  # its token
        self.session: FollowerSession | None = None  # in which it follows this partition
        self.forget_sent()

    def forget_sent(self) -> None:
        """The follower may not have got what it was sent."""
        self.sent_high_watermark = UNKNOWN
        self.sent_log_start_offset = UNKNOWN

    def appended(self, end: int) -> None:
        """Records come behind ``end``. A follower that had all below it was caught up at the last
        fetch of its session, whether that named this partition or not.
        """
        session = self.session
        if session is not None and self.log_end_offset >= end:
            self.last_caught_up_ms = self.fetched_at_ms = session.fetched_at_ms
            self.fetched_leader_end = end


class Leader:
    """The leading role. It ends with its epoch: a new epoch makes a new Leader, also on the same
    replica.
    """

    __slots__ = (
        "_isr_followers",
        "_rests_until_ms",
        "arrival",
        "epoch_start_offset",
        "followers",
        "has_futures",
        "isr",
        "lag_timer",
        "leader_epoch",
        "leaves",
        "log",
        "min_isr",
        "replica",
        "traced",
    )

    def __init__(self, replica: Replica, assignment: Assignment, now_ms: int) -> None:
        self.replica = replica
        self.log = replica.open_log()
        self.leader_epoch = assignment.leader_epoch
        self.epoch_start_offset = self.log.log_end_offset
        self.min_isr = assignment.min_isr
        self.isr = InSyncReplicas(assignment.isr, assignment.partition_epoch)
        self.followers: dict[int, FollowerProgress] = {}
        self._isr_followers: list[FollowerProgress | None] = []
        self.arrival: Arrival | None = None
        self._rests_until_ms = LONG_AGO_MS  # no arrival begins before
        self.lag_timer: Deadline | None = None
        self.leaves: dict[int, Leave] = {}  # to begin a transaction, by producer id
        self.traced: TracedBatches | None = None  # once there was one
        self._meet_followers(assignment.replicas, now_ms)
        self._arm_lag_timer(now_ms)
        self.advance_high_watermark()

    def close(self) -> None:
        if self.lag_timer is not None:
            self.lag_timer.cancel()
        if self.arrival is not None:
            self.arrival.deadline.cancel()
        if self.traced is not None:
            self.traced.close()

    # -------------------------------------------------------------- assignment

    def reassigned(self, assignment: Assignment, now_ms: int) -> None:
        """The same leader epoch, but another ISR, minimum, set of replicas or incarnation."""
        self.min_isr = assignment.min_isr
        before = len(self.isr.committed)
        self.isr.adopt(assignment.isr, assignment.partition_epoch)
        self._count_isr_change(len(self.isr.committed) - before)
        self._meet_followers(assignment.replicas, now_ms)
        self._end_arrival()
        self._arm_lag_timer(now_ms)
        self.advance_high_watermark()
        if self.lacks_replicas():
            self.replica.watchers.refuse_uncommitted(NOT_ENOUGH_REPLICAS_AFTER_APPEND)
        self.replica.watchers.wake_followers()  # a fetch that was not counted comes again and is
        self._low_watermark_may_rise()

    def _count_isr_change(self, more: int) -> None:
        counts = self.replica.context.counts
        counts.isr_expands += more > 0
        counts.isr_shrinks += more < 0

    def _meet_followers(self, replicas: Iterable[AssignedReplica], now_ms: int) -> None:
        known, self.followers = self.followers, {}
        self.has_futures = False
        for assigned in replicas:
            broker_id = assigned.broker_id
            if broker_id == self.replica.me:
                continue
            self.has_futures |= is_future(broker_id)
            progress = known.get(broker_id)
            future = known.get(future_id(broker_id))
            if future is not None and future.incarnation == assigned.incarnation and not is_future(broker_id):
                progress = future  # it is the broker's replica now
                progress.broker_id = broker_id
            if progress is None or progress.incarnation != assigned.incarnation:
                caught_up_ms = now_ms if broker_id in self.isr.committed else LONG_AGO_MS
                progress = FollowerProgress(broker_id, assigned.incarnation, caught_up_ms)
            self.followers[broker_id] = progress
        self._note_isr()

    def _note_isr(self) -> None:
        me = self.replica.me
        self._isr_followers = [self.followers.get(member) for member in self.isr.maximal if member != me]
        if self.arrival is not None and self.arrival.id not in self.isr.maximal:
            self._isr_followers.append(self.followers.get(self.arrival.id))
        for progress in self.followers.values():
            if progress.session is not None:
                progress.session.note_isr(self.replica.id, is_member=progress.broker_id in self.isr.maximal)

    # -------------------------------------------------------------- append

    def completes_at_once(self, acks: int) -> bool:
        """Whether an append with these acks is answered when it is done: no flush and no other
        replica is waited for.
        """
        if self.replica.flushing.flush_messages != NEVER or self.replica.flushing.held or self.holds(acks):
            return False
        return acks == 1 or (acks == -1 and not self._isr_followers)

    def append(
        self,
        records: Buffer,
        acks: int,
        now_ms: int,
        wall_ms: int,
        checked: CheckedRecords | None = None,
        *,
        sound: BatchView | None = None,
        leave: Leave | None = None,
        is_own: bool = False,
    ) -> tuple[ProducePartitionResult, int]:
        """The result for the client, and the offset at which the append is complete (−1 after an
        error).

        ``checked``: what was found of the records before (``Log.append_as_leader``). ``sound``: the
        records, found sound (``Log.append_sound``). ``leave``: to begin a transaction, if that is
        what the batch does. ``is_own``: of a coordinator of this process.
        """
        assert not self.holds(acks), f"{self.replica.id}: acks {acks} while a copy of it arrives"
        counts = self.replica.counts
        counts.produces += 1
        if acks == -1 and len(self.isr.committed) < self.min_isr:
            counts.failed_produces += 1
            return self._too_few_replicas()
        log, epoch, is_followed = self.log, self.leader_epoch, bool(self.followers)
        confirmed: tuple[int, ...] = ()
        try:
            if leave is not None and leave.holds:
                leave.admit(BatchView(records))
                confirmed = (leave.producer_id,)
            if sound is not None:
                appended = log.append_sound(sound, epoch, wall_ms, is_followed)
            else:
                appended = log.append_as_leader(
                    records,
                    leader_epoch=epoch,
                    wall_ms=wall_ms,
                    from_coordinator=is_own,
                    confirmed=confirmed,
                    is_followed=is_followed,
                    checked=checked,
                )
        except (KafkaError, OSError) as error:
            counts.failed_produces += 1
            return self._not_appended(error)
        counts.bytes_in += len(records)
        counts.messages_in += appended.last_offset - appended.base_offset + 1
        if confirmed:
            del self.leaves[confirmed[0]]
        return self._appended(appended, now_ms)

    def end_transaction(self, end: TransactionEnd, now_ms: int, wall_ms: int) -> tuple[ProducePartitionResult, int]:
        """Append a marker, unless it is there; the same results. Replicas are waited for as with
        acks=all.
        """
        if len(self.isr.committed) < self.min_isr:
            return self._too_few_replicas()
        log, replica = self.log, self.replica
        try:
            is_there = is_repeated(log, end)
            leave = self.leaves.get(end.producer_id)
            if leave is not None and not leave.outlives(end):
                del self.leaves[end.producer_id]
            if is_there:
                return ProducePartitionResult(replica.id, 0), log.log_end_offset
            appended = append_marker(
                log, end, leader_epoch=self.leader_epoch, wall_ms=wall_ms, is_followed=bool(self.followers)
            )
        except (KafkaError, OSError) as error:
            return self._not_appended(error)
        if replica.is_watched:
            replica.context.ended_transactions.append(TransactionMarked(replica.id, appended.last_offset + 1, end))
            replica.context.watched[replica.id] = None
        return self._appended(appended, now_ms)

    def _too_few_replicas(self) -> tuple[ProducePartitionResult, int]:
        short = f"{len(self.isr.committed)} in-sync replicas, {self.min_isr} needed"
        return ProducePartitionResult(self.replica.id, NOT_ENOUGH_REPLICAS, message=short), -1

    def _not_appended(self, error: KafkaError | OSError) -> tuple[ProducePartitionResult, int]:
        replica = self.replica
        if isinstance(error, KafkaError):
            code = error.code.value
            return ProducePartitionResult(replica.id, code, message=str(error), record_errors=error.record_errors), -1
        replica.fail(f"append: {error}")
        return replica.refused_produce(), -1

    def _appended(self, appended: AppendResult, now_ms: int) -> tuple[ProducePartitionResult, int]:
        replica = self.replica
        if not appended.duplicate:
            for progress in self.followers.values():
                progress.appended(appended.base_offset)
            replica.flushing.appended(now_ms)
            replica.watchers.wake_followers()
            self.advance_high_watermark()
        result = ProducePartitionResult(
            replica.id, 0, appended.base_offset, appended.log_append_time_ms, appended.log_start_offset
        )
        return result, appended.last_offset + 1

    def follow(self, trace: object, base_offset: int, end: int) -> None:
        """The batch from ``base_offset`` to ``end`` was appended: report how far it comes (``traced``)."""
        if self.traced is None:
            self.traced = TracedBatches(self.replica.context)
        self.traced.appended(trace, base_offset, end, self.log.high_watermark)

    def lacks_replicas(self) -> bool:
        """The committed ISR is smaller than the minimum: acks=all is refused and the high watermark
        stands still.
        """
        return len(self.isr.committed) < self.min_isr

    def advance_high_watermark(self) -> None:
        """Move it to the least end of the maximal ISR, if that is ahead and the ISR large enough."""
        if len(self.isr.committed) < self.min_isr:
            return
        end = self.replica.flushing.completed_end
        for progress in self._isr_followers:
            if progress is None:
                return
            if progress.log_end_offset < end:
                end = progress.log_end_offset
        if end > self.log.high_watermark:
            self.log.high_watermark = end
            self.replica.context.high_watermarks_moved = True
            if self.traced is not None:
                self.traced.high_watermark_rose(end)
            if self.replica.is_watched:
                self.replica.context.watched[self.replica.id] = None
            self.replica.watchers.high_watermark_rose(end)

    # -------------------------------------------------------------- followers

    def end_offset_for(self, leader_epoch: int) -> tuple[int, int]:
        """The answer to OffsetForLeaderEpoch: (epoch, end offset), (−1, −1) when nothing is known
        of it.
        """
        log = self.log
        latest = log.leader_epochs.latest_epoch
        if 0 <= leader_epoch < latest:
            return log.leader_epochs.end_offset_for(leader_epoch, log.log_end_offset)
        if leader_epoch < 0 or leader_epoch > self.leader_epoch:
            return UNKNOWN, UNKNOWN
        # At or above the last epoch with records: its end is the log end, and this epoch starts
        # there.
        known = leader_epoch if leader_epoch == self.leader_epoch or latest < 0 else latest
        return known, log.log_end_offset

    def count_fetch(self, progress: FollowerProgress, request: FetchPartition, now_ms: int) -> None:
        """A valid fetch of the named incarnation: everything below its offset is appended there."""
        end = self.log.log_end_offset
        offset = request.fetch_offset
        is_near = offset >= min(end, progress.fetched_leader_end)
        if offset >= end:
            progress.last_caught_up_ms = now_ms
        elif offset >= progress.fetched_leader_end:
            # It has all that there was at its previous fetch, so it was caught up then.
            progress.last_caught_up_ms = max(progress.last_caught_up_ms, progress.fetched_at_ms)
        progress.fetched_at_ms = now_ms
        progress.fetched_leader_end = end
        if request.log_start_offset > progress.log_start_offset:
            progress.log_start_offset = request.log_start_offset
            self._low_watermark_may_rise()
        if offset > progress.log_end_offset:  # a fetch that was overtaken by a later one takes nothing back
            progress.log_end_offset = offset
            if progress in self._isr_followers:
                self.advance_high_watermark()
        if progress.broker_id in self.isr.maximal:
            return
        if is_future(progress.broker_id):
            self._maybe_take_in(progress, now_ms, is_near=is_near)
        else:
            self._maybe_expand(progress, now_ms)

    # -------------------------------------------------------------- ISR

    def _maybe_expand(self, progress: FollowerProgress, now_ms: int) -> None:
        caught_up = progress.log_end_offset >= max(self.log.high_watermark, self.epoch_start_offset)
        if caught_up and self.replica.context.connected and self.isr.may_ask(now_ms):
            self._ask((*self.isr.maximal, progress.broker_id))

    def _is_lagging(self, progress: FollowerProgress, now_ms: int) -> bool:
        if progress.log_end_offset >= self.log.log_end_offset:
            return False
        return now_ms - progress.last_caught_up_ms > self.replica.context.config.replica_lag_time_max_ms

    def _in_sync_members(self, now_ms: int) -> tuple[int, ...]:
        members = []
        for member in self.isr.maximal:
            progress = self.followers.get(member)
            if member == self.replica.me or (progress and not self._is_lagging(progress, now_ms)):
                members.append(member)
        return tuple(members)

    def reconsider_isr(self, now_ms: int) -> None:
        """Ask out who lags; ask again what a lost session left open."""
        if not self.replica.context.connected or not self.isr.may_ask(now_ms):
            return
        members = self._in_sync_members(now_ms)
        if self.isr.uncertain or members != self.isr.committed:
            self._ask(members)

    def _ask(self, members: tuple[int, ...]) -> None:
        context = self.replica.context
        request_id = context.next_request_id()
        self.isr.asked(request_id, members)
        self._note_isr()
        pairs = tuple((member, self._incarnation_of(member)) for member in members)
        topic_id, partition = self.replica.id
        context.effects.append(
            Tell(AlterPartition(request_id, topic_id, partition, self.leader_epoch, self.isr.partition_epoch, pairs))
        )

    def _incarnation_of(self, member: int) -> int:
        if member == self.replica.me:
            return self.replica.context.incarnation
        return self.followers[member].incarnation

    def alter_partition_answered(self, answer: AlterPartitionAnswer, now_ms: int) -> None:
        """A late answer is dropped; a refusal shrinks the maximal ISR back, so the high watermark
        may move.
        """
        backoff_ms = self.replica.context.config.alter_partition_backoff_ms
        if self.isr.answered(answer, now_ms, backoff_ms=backoff_ms):
            self._note_isr()
            self._end_arrival()
            self.advance_high_watermark()

    def session_changed(self, now_ms: int) -> None:
        self.isr.session_changed()
        self.reconsider_isr(now_ms)

    def lag_time_changed(self, now_ms: int) -> None:
        """Another ``replica.lag.time.max.ms`` holds."""
        self._arm_lag_timer(now_ms)

    def _arm_lag_timer(self, now_ms: int) -> None:
        if self.lag_timer is not None:
            self.lag_timer.cancel()
            self.lag_timer = None
        config = self.replica.context.config
        pause_ms = config.replica_lag_time_max_ms // 2
        due_ms = now_ms + pause_ms if any(progress is not None for progress in self._isr_followers) else None
        for progress in self._isr_followers:
            if progress is not None and progress.log_end_offset < self.log.log_end_offset:
                lags_at_ms = progress.last_caught_up_ms + config.replica_lag_time_max_ms + 1
                if lags_at_ms <= now_ms:  # asked out already, or the question has to wait
                    lags_at_ms = now_ms + min(pause_ms, config.alter_partition_backoff_ms)
                due_ms = lags_at_ms if due_ms is None else min(due_ms, lags_at_ms)
        if due_ms is not None:
            self.lag_timer = self.replica.context.wheel.add(max(due_ms, now_ms + 1), self._lag_timer_expired)

    def _lag_timer_expired(self, now_ms: int, wall_ms: int) -> None:
        self.lag_timer = None
        self.reconsider_isr(now_ms)
        self._arm_lag_timer(now_ms)

    # -------------------------------------------------------------- copies from other disks

    def holds(self, acks: int) -> bool:
        """Whether records with these acks may not be appended now: a copy of this replica arrives,
        which might lack them when it leads.
        """
        return self.arrival is not None and self.arrival.is_own and acks != -1

    def _maybe_take_in(self, progress: FollowerProgress, now_ms: int, *, is_near: bool) -> None:
        """A future copy has fetched: let it arrive if it is near, ask it in if it has reached its
        goal.
        """
        context = self.replica.context
        if not context.connected or not self.isr.may_ask(now_ms):
            return
        if self.arrival is None and is_near and now_ms >= self._rests_until_ms:
            deadline = context.wheel.add(now_ms + NEAR_MS, self._arrival_is_late)
            is_own = progress.broker_id == future_id(self.replica.me)
            self.arrival = Arrival(progress.broker_id, self.log.log_end_offset, deadline, is_own=is_own)
            self._note_isr()
        arrival = self.arrival
        if arrival is not None and arrival.id == progress.broker_id and progress.log_end_offset >= arrival.goal:
            self._ask((*self.isr.maximal, arrival.id))

    def _arrival_is_late(self, now_ms: int, wall_ms: int) -> None:
        assert self.arrival is not None
        if self.arrival.id not in self.isr.maximal:
            self._rests_until_ms = now_ms + REST_MS
            self._end_arrival()
            self.advance_high_watermark()

    def _end_arrival(self) -> None:
        """Unless the copy may have been taken in: count it no longer, and let go on what was held."""
        arrival = self.arrival
        if arrival is not None and arrival.id not in self.isr.maximal:
            arrival.deadline.cancel()
            self.arrival = None
            self._note_isr()
            self.replica.context.changed[self.replica.id] = None

    # -------------------------------------------------------------- deletion of records

    def delete_records(self, offset: int) -> tuple[int, int, int]:
        """(error, low watermark now, log start that every live replica must reach)."""
        log = self.log
        if self.replica.assignment.topic in INTERNAL_TOPICS:
            return ErrorCode.invalid_topic_exception.value, -1, -1
        if not log.config.deletes:
            return POLICY_VIOLATION, -1, -1
        target = log.high_watermark if offset == -1 else offset
        if target < 0 or target > log.high_watermark:
            return OFFSET_OUT_OF_RANGE, -1, -1
        if target > log.log_start_offset:
            try:
                log.advance_log_start(target)
            except OSError as error:
                self.replica.fail(f"delete records: {error}")
                return ErrorCode.kafka_storage_error.value, -1, -1
            self.replica.watchers.wake_followers()
        return 0, self.low_watermark(), target

    def low_watermark(self) -> int:
        """The least log start among this replica and the live ones; −1 while one of them is
        unknown.

        Also −1 while there are eligible leaders (ELR): whoever died may lead again, and would bring
        back what was deleted without it.
        """
        if self.replica.assignment.elr:
            return -1
        low = self.log.log_start_offset
        for progress in self.followers.values():
            if progress.incarnation and progress.log_start_offset < low:
                low = progress.log_start_offset
        return low

    def _low_watermark_may_rise(self) -> None:
        if self.replica.watchers.deletions:
            self.replica.watchers.low_watermark_rose(self.low_watermark())

    # -------------------------------------------------------------- invariants

    def check(self) -> None:
        """Raise AssertionError where an invariant is broken."""
        me = self.replica.me
        self.isr.check()
        assert me in self.isr.committed, f"{self.replica.id}: leader {me} is not in its ISR {self.isr.committed}"
        assert me not in self.followers
        arriving = self.arrival.id if self.arrival is not None else None
        assert all(member == arriving for member in self.isr.maximal if is_future(member)), (arriving, self.isr.maximal)
        assert self.epoch_start_offset <= self.log.log_end_offset
        for progress in self.followers.values():
            assert progress.log_end_offset <= self.log.log_end_offset, (
                f"{self.replica.id}: follower {progress.broker_id} promised {progress.log_end_offset}, "
                f"the log ends at {self.log.log_end_offset}"
            )
            assert progress.sent_high_watermark <= self.log.high_watermark
