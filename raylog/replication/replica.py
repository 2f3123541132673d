"""One replica of one partition: which role it plays, and what it answers in each.

Roles (``role``), how each answers requests, and where it goes::

    Opening    a consumer's fetch as if it were empty, if it may lead   → Leader, Follower (LogOpened), Offline (LogOpened with a reason)
               soon; else NOT_LEADER_OR_FOLLOWER with a hint
    Leader     all requests, from its log                               → Leader (new epoch), Follower (Assigned), Offline (an IO error)
    Follower   a consumer's fetch, up to the high watermark it knows;   → Leader, Follower (new epoch), Offline
               else NOT_LEADER_OR_FOLLOWER with a hint
    Offline    everything: KAFKA_STORAGE_ERROR                          → Opening (LogOpened, where the log could not be opened before);
                                                                          after an IO error of an open log nowhere in this process

While it may lead soon (``may_lead_soon``) the host holds what only a leader can answer
(``awaited``).

It leads when the assignment names its broker as leader *and* this very process (incarnation) as
that broker's replica; a leader epoch that belongs to another incarnation of this broker is not ours
to lead (DESIGN §6). Assignments whose leader or partition epoch is older than what is known are
dropped; equal ones may bring another incarnation or address of a replica.

A replica knows no socket, no clock and no other replica; it reads its log and gives orders through
its ``HostContext``. ``leader.py`` and ``follower.py`` hold what belongs to one role; here is what
outlives it: the log, flushing, those who wait, reading.

Damage (``damaged``): bytes of the log have changed on the disk. The replica tells the controller
and goes on in its role; what is damaged it refuses, with KAFKA_STORAGE_ERROR where another replica
in sync can take over, else with CORRUPT_MESSAGE. When an epoch begins in which it follows and is in
neither ISR nor ELR, it drops its log from the damage on and copies it from the leader.

Invariants (``check``): log start ≤ high watermark ≤ log end; exactly one of leader and follower is
set in the role of that name; within a leader epoch the high watermark goes back only where
truncation takes the records away (unclean election).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from raylog.configs import replication_quotas as throttled_replicas
from raylog.configs.replication_quotas import FOLLOWERS, LEADERS
from raylog.control.session import (
    AssignedReplica,
    Assignment,
    ReplicaDamaged,
    ReplicaFailed,
    ReplicaMended,
    ReplicaOpened,
    ReplicaStatus,
)
from raylog.errors import KafkaError
from raylog.log import scrubbing
from raylog.log.config import LogConfig
from raylog.log.scrubbing import Damage
from raylog.records.corrupt import CorruptBatch, UnsupportedMagic
from raylog.replication.context import Deadline, HostContext
from raylog.replication.events import (
    Buffer,
    CloseLog,
    EpochEndPartition,
    EpochEndPartitionResult,
    FetchPartition,
    FetchPartitionResult,
    FetchReceived,
    FlushCompleted,
    LeaderHint,
    ProducePartitionResult,
    Tell,
)
from raylog.replication.flushing import Flushing
from raylog.replication.follower import Follower
from raylog.replication.leader import FollowerProgress, Leader
from raylog.replication.parked import Watchers
from raylog.types import NO_LEADER, TopicIdPartition, future_id, is_future

if TYPE_CHECKING:
    from raylog.log.log import Log

OFFSET_OUT_OF_RANGE = ErrorCode.offset_out_of_range.value
NOT_LEADER_OR_FOLLOWER = ErrorCode.not_leader_or_follower.value
FENCED_LEADER_EPOCH = ErrorCode.fenced_leader_epoch.value
UNKNOWN_LEADER_EPOCH = ErrorCode.unknown_leader_epoch.value
OFFSET_NOT_AVAILABLE = ErrorCode.offset_not_available.value
KAFKA_STORAGE_ERROR = ErrorCode.kafka_storage_error.value
READ_COMMITTED = 1  # an isolation level
CORRUPT_MESSAGE = ErrorCode.corrupt_message.value


class Role(Enum):
    OPENING = "opening"
    LEADER = "leader"
    FOLLOWER = "follower"
    OFFLINE = "offline"


_NEXT: dict[Role, tuple[Role, ...]] = {
    Role.OPENING: (Role.LEADER, Role.FOLLOWER, Role.OFFLINE),
    Role.LEADER: (Role.LEADER, Role.FOLLOWER, Role.OFFLINE),
    Role.FOLLOWER: (Role.LEADER, Role.FOLLOWER, Role.OFFLINE),
    Role.OFFLINE: (Role.OPENING,),
}


class Replica:
    """The machine of one partition. ``leader`` and ``follower`` are the current role's object, None
    in the others.
    """

    __slots__ = (
        "assignment",
        "checkpointed",
        "context",
        "counts",
        "damage",
        "failed_openings",
        "flushing",
        "follower",
        "hint",
        "history",
        "housekeeping",
        "id",
        "is_opening",
        "is_watched",
        "leader",
        "log",
        "me",
        "reason",
        "role",
        "throttles_copying_in",
        "throttles_copying_out",
        "watchers",
    )

    flushing: Flushing  # set with the log

    def __init__(self, context: HostContext, assignment: Assignment) -> None:
        self.context = context
        self.id: TopicIdPartition = assignment.id
        self.assignment = assignment
        self.me = _own_id(assignment, context)
        self.counts = context.counts.of_topic(assignment.topic)
        self.role = Role.OPENING
        self.log: Log | None = None
        self.leader: Leader | None = None
        self.follower: Follower | None = None
        self.hint = _hint_of(assignment)
        self._note_throttles()
        self.reason: str | None = None  # why it is offline
        self.is_opening = False  # an OpenLog is under way
        self.is_watched = assignment.topic in context.watched_topics
        self.failed_openings = 0
        self.damage: Damage | None = None  # in its log, as long as it has not been dropped
        self.watchers = Watchers(self.id, context.woken, context.outdated)
        self.housekeeping: Deadline | None = None
        self.checkpointed = -1  # the high watermark that a checkpoint was last ordered for
        self.history: deque[str] = deque(maxlen=16)

    def open_log(self) -> Log:
        """The log, in the roles that have one."""
        assert self.log is not None, f"{self.id} has no open log as {self.role.value}"
        return self.log

    # -------------------------------------------------------------- roles

    @property
    def may_lead_soon(self) -> bool:
        """Whether it does not lead, and the next election may be its own.

        Nobody leads, or a former process of this broker is still named as the leader, and this
        replica is in the ISR or ELR.
        """
        if self.role is Role.LEADER or self.role is Role.OFFLINE:
            return False
        assignment, me = self.assignment, self.me
        return assignment.leader in (NO_LEADER, me) and (me in assignment.isr or me in assignment.elr)

    @property
    def holds_appends(self) -> bool:
        """Whether it leads and lets records wait, except those with acks=all."""
        return self.leader is not None and self.leader.holds(0)

    @property
    def is_unled(self) -> bool:
        """Whether it has just come: its log is not open, or nobody has led the partition yet."""
        return self.log is None or self.assignment.leader_epoch < 0

    def assign(self, assignment: Assignment, now_ms: int) -> bool:
        """Take over an assignment; False if it is older than what is known."""
        known = self.assignment
        if assignment.leader_epoch < known.leader_epoch or assignment.partition_epoch < known.partition_epoch:
            return False
        self.assignment = assignment
        self.me = _own_id(assignment, self.context)
        self.context.changed[self.id] = None
        self.hint = _hint_of(assignment)
        self._note_throttles()
        if self.role is Role.OFFLINE:
            self._tell_failure()  # the controller may not have heard
        elif self.role is not Role.OPENING:
            if assignment.config != known.config:
                self._configure()
            if self.log is not None:
                self._take_role(now_ms)
        return True

    def log_opened(self, log: Log, now_ms: int) -> None:
        if self.role is Role.OFFLINE and self.failed_openings:
            self._enter(Role.OPENING)
        assert self.role is Role.OPENING, f"{self.id}: a log was opened as {self.role.value}; {list(self.history)}"
        self.log = log
        self.context.changed[self.id] = None
        self.reason = None
        self.flushing = Flushing(self.context, self.id, log)
        self.context.effects.append(Tell(ReplicaOpened(self.status())))
        self._take_role(now_ms)

    def _note_throttles(self) -> None:
        """Whether this replica is throttled as a follower now, and those who follow it, apart from
        the ISR.
        """
        assignment, me = self.assignment, self.me
        config = dict(assignment.config)
        partition = assignment.partition
        self.throttles_copying_out = throttled_replicas.names(config.get(LEADERS, ""), partition, me)
        self.throttles_copying_in = is_future(me) or (
            me not in assignment.isr and throttled_replicas.names(config.get(FOLLOWERS, ""), partition, me)
        )

    def _take_role(self, now_ms: int) -> None:
        assignment = self.assignment
        leading = self.leader
        assigned = _assigned_to(assignment, assignment.leader)
        me = self.me
        if assignment.leader == me and assigned is not None and assigned.incarnation == self.context.incarnation:
            if leading is not None and leading.leader_epoch == assignment.leader_epoch:
                leading.reassigned(assignment, now_ms)
                return
            self._leave_role()
            self._enter(Role.LEADER)
            log = self.open_log()
            log.high_watermark = max(log.high_watermark, log.log_start_offset)
            if not self._on_disk(log.trust):
                return
            self._tell_damage()
            self.leader = Leader(self, assignment, now_ms)
            self.watchers.wake_all()
            return
        reachable = (
            assigned if assigned is not None and assigned.endpoint is not None and assigned.broker_id != me else None
        )
        if self.follower is not None and self.follower.leader_epoch == assignment.leader_epoch:
            self.follower.leader = reachable
            return
        self._leave_role()
        self._enter(Role.FOLLOWER)
        if self.damage is not None and not self._on_disk(self._mend):
            return
        self.follower = Follower(self, assignment.leader_epoch, reachable)
        self.watchers.refuse_all(NOT_LEADER_OR_FOLLOWER, hint=self.hint)
        self.watchers.wake_all()

    def _enter(self, role: Role) -> None:
        assert role in _NEXT[self.role], f"{self.id}: {self.role.value} → {role.value}; before: {list(self.history)}"
        self.history.append(f"{self.role.value} → {role.value} in epoch {self.assignment.leader_epoch}")
        self.role = role

    def _leave_role(self) -> None:
        if self.leader is not None:
            self.leader.close()
        self.leader = self.follower = None

    def fail(self, reason: str) -> None:
        """An IO error, or a log that cannot be trusted: answer nothing more from it in this
        process.

        Or a log that could not be opened: answer nothing until it can be.
        """
        if self.role is Role.OFFLINE:
            if reason != self.reason:
                self.reason = reason
                self._tell_failure()
            return
        self._leave_role()
        self._enter(Role.OFFLINE)
        self.context.changed[self.id] = None
        self.reason = reason
        self.watchers.refuse_all(KAFKA_STORAGE_ERROR, reason)
        self.watchers.wake_all()
        self._tell_failure()
        self.close(delete=False)
        self.context.failed.append(self)

    def _tell_failure(self) -> None:
        topic_id, partition = self.id
        self.context.effects.append(Tell(ReplicaFailed(topic_id, partition, self.reason or "unknown")))

    def damaged(self, damage: Damage) -> None:
        """Its log is damaged: tell the controller, who takes this replica out of the ISR as soon as
        another one there can lead.

        Of several places the first one counts: the log is cut there.
        """
        is_first = self.damage is None or damage.offset < self.damage.offset
        if is_first and self.log is not None:
            self.damage = damage
            self._tell_damage()

    def _tell_damage(self) -> None:
        if self.damage is not None:
            frame = ReplicaDamaged(*self.id, self.assignment.leader_epoch, self.damage.words())
            self.context.effects.append(Tell(frame))

    def _mend(self) -> None:
        """Another epoch begins: drop the damage, if nobody counts on this log, before the first
        fetch in it says where it ends.
        """
        assignment, me = self.assignment, self.me
        if me in assignment.isr or me in assignment.elr:
            self._tell_damage()  # it was decided for another reason
            return
        assert self.damage is not None, self.id
        log = self.open_log()
        scrubbing.drop(log, self.damage)
        log.high_watermark = max(log.log_start_offset, min(log.high_watermark, log.log_end_offset))
        self.flushing.truncated()
        self.damage = None
        self.context.effects.append(Tell(ReplicaMended(*self.id)))

    def refusal_of_damage(self, offset: int) -> int:
        """The error code of a read that met damaged bytes: ask again where another replica can take
        over, else give up.
        """
        self.context.suspected.append((self, offset))
        me, assignment = self.me, self.assignment
        others = [each for each in assignment.replicas if each.broker_id in assignment.isr and each.broker_id != me]
        return KAFKA_STORAGE_ERROR if any(each.incarnation for each in others) else CORRUPT_MESSAGE

    def remove(self) -> None:
        """It is no longer this actor's: end what waits and delete the folder."""
        self._leave_role()
        self.watchers.refuse_all(NOT_LEADER_OR_FOLLOWER)
        self.watchers.wake_all()
        self.close(delete=True)

    def let_go(self) -> None:
        """Another process of the disk holds it now: end what waits, close the log cleanly and leave
        the folder.
        """
        self._leave_role()
        self.watchers.refuse_all(NOT_LEADER_OR_FOLLOWER, hint=self.context.released[self.id])
        self.watchers.wake_all()
        self.close(delete=False, clean=True, reports=True)

    def close(self, *, delete: bool, clean: bool = False, reports: bool = False) -> None:
        """Stop the timers and order the log closed."""
        self.context.changed[self.id] = None
        if self.housekeeping is not None:
            self.housekeeping.cancel()
            self.housekeeping = None
        if self.log is not None:
            self.flushing.close()
            self.context.effects.append(CloseLog(self.id, self.log, delete, clean, reports))
            self.log = None

    def _configure(self) -> None:
        config = LogConfig.from_topic_configs(dict(self.assignment.config))
        if self._on_disk(lambda: self.open_log().update_config(config)):
            self.flushing.configured()

    def _on_disk(self, work: Callable[[], None]) -> bool:
        """Do ``work``; an IO error takes the replica offline, and the answer is False."""
        try:
            work()
        except OSError as error:
            self.fail(str(error))
            return False
        return True

    # -------------------------------------------------------------- events

    def flush_completed(self, event: FlushCompleted) -> None:
        if self.log is None:
            return
        if event.reason is not None:
            self.fail(f"flush: {event.reason}")
        elif self.flushing.flushed(event.log_end_offset):
            self.watchers.completed(self.flushing.completed_end)
            if self.leader is not None:
                self.leader.advance_high_watermark()

    # -------------------------------------------------------------- answers

    def lacks_replicas(self) -> bool:
        return self.leader is not None and self.leader.lacks_replicas()

    def refusal(self) -> int:
        """The error code of a request that only a leader can serve."""
        return KAFKA_STORAGE_ERROR if self.role is Role.OFFLINE else NOT_LEADER_OR_FOLLOWER

    def refused_produce(self) -> ProducePartitionResult:
        hint = self.hint if self.role is not Role.OFFLINE else None
        return ProducePartitionResult(self.id, self.refusal(), message=self.reason, hint=hint)

    def judge_epoch(self, current_leader_epoch: int) -> int:
        """The error code for a request that believes in that leader epoch; 0 if it is right or says
        nothing.
        """
        if current_leader_epoch == -1 or current_leader_epoch == self.assignment.leader_epoch:
            return 0
        return FENCED_LEADER_EPOCH if current_leader_epoch < self.assignment.leader_epoch else UNKNOWN_LEADER_EPOCH

    def refused_fetch(self, error: int) -> FetchPartitionResult:
        """An error, with the offsets that help the other side and a hint where the leader is in
        question.
        """
        hint = self.hint if error in (NOT_LEADER_OR_FOLLOWER, FENCED_LEADER_EPOCH) else None
        log = self.log
        if log is None:
            return FetchPartitionResult(self.id, error, hint=hint)
        return FetchPartitionResult(
            self.id, error, log.high_watermark, log.stable_end_offset, log.log_start_offset, hint=hint
        )

    def validate_fetch(self, request: FetchPartition, *, follower: bool) -> FetchPartitionResult | None:
        """What is wrong with a fetch (an error or a diverging epoch), or None if it can be read."""
        log = self.log
        if log is None or (follower and self.leader is None):
            return self.refused_fetch(self.refusal())
        if request.current_leader_epoch != -1:
            if request.current_leader_epoch != self.assignment.leader_epoch:
                return self.refused_fetch(self.judge_epoch(request.current_leader_epoch))
            if not follower and self.leader is None and self.me not in self.assignment.isr:
                # Nobody knows how far it lags behind. Who names no epoch wants this replica, as it
                # is.
                return self.refused_fetch(NOT_LEADER_OR_FOLLOWER)
        offset = request.fetch_offset
        if offset < log.log_start_offset:
            return self.refused_fetch(OFFSET_OUT_OF_RANGE)
        last_epoch = request.last_fetched_epoch
        if last_epoch >= 0 and last_epoch != log.leader_epochs.latest_epoch:
            diverging = self._divergence(last_epoch, offset)
            if diverging is not None:
                return diverging
        end = log.log_end_offset
        if offset > end:
            if last_epoch >= 0 and self.leader is not None:  # the last epoch is shared and ends here
                return self._diverging(last_epoch, end)
            # A follower may lag behind what the consumer read elsewhere (KIP-392).
            return self.refused_fetch(OFFSET_OUT_OF_RANGE if self.leader is not None else OFFSET_NOT_AVAILABLE)
        return None

    def _divergence(self, last_epoch: int, offset: int) -> FetchPartitionResult | None:
        log = self.open_log()
        if self.leader is not None:
            epoch, end = self.leader.end_offset_for(last_epoch)
            if epoch < 0:
                return self.refused_fetch(OFFSET_OUT_OF_RANGE)
        else:
            epoch, end = log.leader_epochs.end_offset_for(last_epoch, log.log_end_offset)
            if epoch < 0:
                return None
        return self._diverging(epoch, end) if epoch < last_epoch or end < offset else None

    def _diverging(self, epoch: int, end: int) -> FetchPartitionResult:
        log = self.open_log()
        return FetchPartitionResult(
            self.id, 0, log.high_watermark, log.stable_end_offset, log.log_start_offset, diverging_epoch=(epoch, end)
        )

    def follower_progress(self, request: FetchReceived) -> FollowerProgress | None:
        """The follower that sends this fetch, if it is the process that the assignment names: its
        broker's replica, or the future one.
        """
        assert self.leader is not None
        followers, incarnation = self.leader.followers, request.replica_incarnation
        progress = followers.get(request.replica_id)
        if progress is None or progress.incarnation != incarnation:
            progress = followers.get(future_id(request.replica_id)) if self.leader.has_futures else None
        if progress is None or progress.incarnation != incarnation or not incarnation:
            return None
        return progress

    def has_records_behind(self, offset: int) -> bool:
        return self.log is not None and offset < self.log.log_end_offset

    def read(
        self, request: FetchPartition, max_bytes: int, of: FetchReceived, *, at_least_one: bool, in_memory: bool
    ) -> FetchPartitionResult:
        """Records from the fetch offset on: up to the log end for a follower, to the high watermark
        for a consumer, to the last stable offset for one that reads committed records only.

        The request has been validated. ``max_bytes`` ≤ 0 reads nothing. ``in_memory``: raises
        NotInMemory rather than wait for the disk.
        """
        log = self.open_log()
        high_watermark, stable_end = log.high_watermark, log.stable_end_offset
        is_committed = of.replica_id < 0 and of.isolation_level == READ_COMMITTED
        end = log.log_end_offset if of.replica_id >= 0 else stable_end if is_committed else high_watermark
        records: Buffer = b""
        aborted: tuple[tuple[int, int], ...] = ()
        if request.fetch_offset < end and max_bytes > 0:
            try:
                found = log.read(
                    request.fetch_offset, max_bytes, end_offset=end, at_least_one=at_least_one, in_memory=in_memory
                )
                records = found.records
                if is_committed:
                    aborted = log.transactions.aborted(request.fetch_offset, found.next_offset)
            except (CorruptBatch, UnsupportedMagic):
                return self.refused_fetch(self.refusal_of_damage(request.fetch_offset))
            except KafkaError as error:
                return self.refused_fetch(error.code.value)
            except OSError as error:
                self.fail(f"read: {error}")
                return self.refused_fetch(KAFKA_STORAGE_ERROR)
        return FetchPartitionResult(
            self.id,
            0,
            high_watermark,
            stable_end,
            log.log_start_offset,
            None,
            records,
            aborted=aborted if is_committed else None,
        )

    def epoch_end(self, request: EpochEndPartition) -> EpochEndPartitionResult:
        """OffsetForLeaderEpoch; a leader's answer only."""
        if self.leader is None:
            return EpochEndPartitionResult(self.id, self.refusal())
        error = self.judge_epoch(request.current_leader_epoch)
        if error:
            return EpochEndPartitionResult(self.id, error)
        epoch, end = self.leader.end_offset_for(request.leader_epoch)
        return EpochEndPartitionResult(self.id, 0, epoch, end)

    def status(self) -> ReplicaStatus:
        """What ``hello`` says of it."""
        log = self.open_log()
        return ReplicaStatus(
            *self.id,
            log.condition,
            log.log_start_offset,
            log.log_end_offset,
            log.high_watermark,
            log.leader_epochs.latest_epoch,
            self.assignment.leader_epoch,
            self.assignment.partition_epoch,
            log.recovery.scanned_bytes,
            log.recovery.cut_bytes,
            self.damage.words() if self.damage is not None else "",
        )

    # -------------------------------------------------------------- invariants

    def check(self) -> None:
        """Raise AssertionError where an invariant is broken."""
        assert (self.leader is not None) == (self.role is Role.LEADER), (self.role, self.leader)
        assert (self.follower is not None) == (self.role is Role.FOLLOWER), (self.role, self.follower)
        log = self.log
        if log is None:
            assert self.role in (Role.OPENING, Role.OFFLINE), self.role
            return
        assert 0 <= log.log_start_offset <= log.high_watermark <= log.log_end_offset, (
            f"{self.id}: start {log.log_start_offset}, high watermark {log.high_watermark}, end {log.log_end_offset}"
        )
        self.flushing.check()
        if self.leader is not None:
            self.leader.check()
        if self.follower is not None:
            self.follower.check()


def _assigned_to(assignment: Assignment, broker_id: int) -> AssignedReplica | None:
    for replica in assignment.replicas:
        if replica.broker_id == broker_id:
            return replica
    return None


def _own_id(assignment: Assignment, context: HostContext) -> int:
    """What the leader calls the replica of this process: the broker's id, or that of its future
    copy.
    """
    own = (each.broker_id for each in assignment.replicas if each.node_id == context.identity.node_id)
    return next(own, context.broker_id)


def _hint_of(assignment: Assignment) -> LeaderHint:
    leader = _assigned_to(assignment, assignment.leader)
    if leader is None or leader.endpoint is None:
        return LeaderHint(NO_LEADER, assignment.leader_epoch, None)
    return LeaderHint(leader.node_id, assignment.leader_epoch, leader.endpoint)
