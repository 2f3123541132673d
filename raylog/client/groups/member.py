"""One member of a consumer group, from its own side: a machine that is told what happened and says
what to do.

It knows no socket, clock, topic or user: time comes in as ``now_ms``, answers come as
``CoordinatorAnswer``s, and what is to be done goes out as orders. It follows the Java client's
coordinator (3.6–3.9). States, and where each goes::

    OUT         no part of the group: not wanted, or it left                                → PREPARING (wanted)
    PREPARING   waits until the user has given up what a join takes away; heartbeats go on  → JOINING (prepared)
    JOINING     JoinGroup is under way, or is tried again after a pause                     → SYNCING (joined), PREPARING (id lost), FAILED
    SYNCING     the plan is being made (by the group's leader), or SyncGroup is under way   → STABLE, PREPARING, FAILED
    STABLE      owns an assignment; heartbeats                                              → PREPARING, OUT (left), FAILED
    FAILED      an error that trying again does not mend                                    → OUT (leave), PREPARING (wanted anew)

Answers:

- REBALANCE_IN_PROGRESS: join again with the same id; what is owned stays owned until then.
- ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID: what was owned is *lost*, somebody else may have it. The
  second loses the id, too.
- MEMBER_ID_REQUIRED: join at once with the id that came along.
- NOT_COORDINATOR, COORDINATOR_NOT_AVAILABLE, COORDINATOR_LOAD_IN_PROGRESS, a lost connection, no
  answer: the same again, after a pause.
- Everything else (FENCED_INSTANCE_ID, INCONSISTENT_GROUP_PROTOCOL, …): FAILED.

Who does not poll for ``max.poll.interval.ms`` leaves, and joins again with its next poll. A static
member (``group.instance.id``) never says that it leaves: it falls silent.

Invariants: at most one JoinGroup or SyncGroup is awaited (``attempt`` names it; answers to others
are dropped), and one heartbeat; ``generation`` >= 0 only in PREPARING, SYNCING and STABLE, and with
a member id.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from raylog.groups.requests import NO_GENERATION, NO_MEMBER_ID, JoinedGroup, JoinedMember, SyncedGroup

FIRST_RETRY_MS = 20


class MembershipState(Enum):
    OUT = "out"
    PREPARING = "preparing"
    JOINING = "joining"
    SYNCING = "syncing"
    STABLE = "stable"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class MemberConfig:
    session_timeout_ms: float
    heartbeat_interval_ms: float
    max_poll_interval_ms: float
    retry_backoff_ms: float
    retry_backoff_max_ms: float
    is_static: bool


class CoordinatorAnswer(NamedTuple):
    """An error code (0: none; NETWORK_EXCEPTION: no answer came) and the reply that had it."""

    error: int
    reply: Any = None


# ------------------------------------------------------------------ orders


@dataclass(frozen=True, slots=True)
class Prepare:
    """Let the user give up what a join takes away, then call ``prepared``. ``is_lost``: it is
    somebody else's already.
    """

    is_lost: bool


@dataclass(frozen=True, slots=True)
class SendJoin:
    attempt: int
    member_id: str


@dataclass(frozen=True, slots=True)
class MakePlan:
    """This member leads: share out the partitions, then call ``planned``.

    ``is_known``: a static leader came back to a stable group; it only notes what the plan rests on,
    and plans nothing.
    """

    attempt: int
    protocol: str
    members: tuple[JoinedMember, ...]
    is_known: bool


@dataclass(frozen=True, slots=True)
class SendSync:
    attempt: int
    member_id: str
    generation: int
    protocol: str
    assignments: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class PartitionsAssigned:
    generation: int
    protocol: str
    assignment: bytes


@dataclass(frozen=True, slots=True)
class SendHeartbeat:
    member_id: str
    generation: int


@dataclass(frozen=True, slots=True)
class SendLeave:
    member_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Fail:
    """Every poll tells the user so."""

    error: int
    doing: str


Order = Prepare | SendJoin | MakePlan | SendSync | PartitionsAssigned | SendHeartbeat | SendLeave | Fail

_AGAIN = frozenset(
    {
        ErrorCode.not_coordinator,
        ErrorCode.coordinator_not_available,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.network_exception,
        ErrorCode.request_timed_out,
    }
)
_CAN_HEARTBEAT = (MembershipState.PREPARING, MembershipState.STABLE)


class GroupMember:
    """``handle`` methods return the orders that follow, to be carried out in order."""

    __slots__ = (
        "_attempt",
        "_config",
        "_failures",
        "_heartbeat_due_ms",
        "_heartbeat_sent_ms",
        "_rejoins",
        "_retry_at_ms",
        "generation",
        "member_id",
        "protocol",
        "state",
    )

    def __init__(self, config: MemberConfig) -> None:
        self._config = config
        self.state = MembershipState.OUT
        self.member_id = NO_MEMBER_ID
        self.generation = NO_GENERATION
        self.protocol = ""
        self._attempt = 0
        self._failures = 0  # of the join under way, in a row
        self._retry_at_ms: float | None = None  # when JoinGroup is sent again
        self._heartbeat_due_ms = 0.0
        self._heartbeat_sent_ms: float | None = None
        self._rejoins = False  # another join was asked for while one is under way

    # -------------------------------------------------------------- the user's wishes

    def join(self) -> list[Order]:
        """Be in the group; where it is already, join again, since what it wants has changed."""
        match self.state:
            case MembershipState.OUT | MembershipState.STABLE:
                return self._prepare(is_lost=False)
            case MembershipState.FAILED:
                return self._prepare(is_lost=True)
            case MembershipState.JOINING | MembershipState.SYNCING:
                self._rejoins = True
        return []

    def prepared(self) -> list[Order]:
        """The user has given up what the join takes away."""
        if self.state is not MembershipState.PREPARING:
            return []
        self.state = MembershipState.JOINING
        self._failures = 0
        return self._send_join()

    def leave(self, reason: str) -> list[Order]:
        """Leave the group, if it is in; static members fall silent instead."""
        was = self.state
        member_id = self.member_id
        self._forget(and_id=True)
        self.state = MembershipState.OUT
        self._rejoins = False
        if was is MembershipState.OUT or not member_id or self._config.is_static:
            return []
        return [SendLeave(member_id, reason)]

    # -------------------------------------------------------------- answers

    def joined(self, attempt: int, answer: CoordinatorAnswer, now_ms: float) -> list[Order]:
        if self.state is not MembershipState.JOINING or attempt != self._attempt:
            return []
        if answer.error == ErrorCode.member_id_required:
            self.member_id = answer.reply.member_id
            return self._send_join()
        if answer.error:
            return self._join_failed(answer.error, now_ms)
        reply: JoinedGroup = answer.reply
        self.member_id, self.generation = reply.member_id, reply.generation
        self.protocol = reply.protocol or ""
        self.state = MembershipState.SYNCING
        self._failures = 0
        self._heartbeat_sent_ms = None
        self._attempt += 1
        if reply.leader == reply.member_id:
            return [MakePlan(self._attempt, self.protocol, reply.members, reply.skip_assignment)]
        return [SendSync(self._attempt, self.member_id, self.generation, self.protocol, ())]

    def _join_failed(self, error: int, now_ms: float) -> list[Order]:
        if error in _AGAIN:
            self._failures += 1
            self._retry_at_ms = now_ms + self._pause_ms(self._failures)
            return []
        if error == ErrorCode.rebalance_in_progress:
            self._retry_at_ms = now_ms + self._pause_ms(2)
            return []
        if error in (ErrorCode.unknown_member_id, ErrorCode.illegal_generation):
            self._forget(and_id=error == ErrorCode.unknown_member_id)
            return self._prepare(is_lost=True)
        return self._fail(error, "joining")

    def planned(self, attempt: int, assignments: tuple[tuple[str, bytes], ...]) -> list[Order]:
        """The plan of a leader, by member id."""
        if self.state is not MembershipState.SYNCING or attempt != self._attempt:
            return []
        return [SendSync(attempt, self.member_id, self.generation, self.protocol, assignments)]

    def plan_failed(self, attempt: int, error: int) -> list[Order]:
        if self.state is not MembershipState.SYNCING or attempt != self._attempt:
            return []
        return self._fail(error, "sharing out the partitions")

    def synced(self, attempt: int, answer: CoordinatorAnswer, now_ms: float) -> list[Order]:
        if self.state is not MembershipState.SYNCING or attempt != self._attempt:
            return []
        error = answer.error
        if not error:
            reply: SyncedGroup = answer.reply
            self.state = MembershipState.STABLE
            self._heartbeat_due_ms = now_ms
            orders: list[Order] = [PartitionsAssigned(self.generation, self.protocol, reply.assignment)]
            if self._rejoins:
                orders += self._prepare(is_lost=False)
            return orders
        if error in _AGAIN or error == ErrorCode.rebalance_in_progress:
            # The generation is over or its outcome unknown: the coordinator knows, and what is
            # owned is still this member's.
            self._heartbeat_due_ms = now_ms
            return self._prepare(is_lost=False)
        if error in (ErrorCode.unknown_member_id, ErrorCode.illegal_generation):
            self._forget(and_id=error == ErrorCode.unknown_member_id)
            return self._prepare(is_lost=True)
        return self._fail(error, "taking over its part")

    def heartbeat_answered(self, sent: SendHeartbeat, answer: CoordinatorAnswer, now_ms: float) -> list[Order]:
        if (sent.member_id, sent.generation) != (self.member_id, self.generation) or self._heartbeat_sent_ms is None:
            return []
        sent_ms, self._heartbeat_sent_ms = self._heartbeat_sent_ms, None
        error = answer.error
        if not error or error == ErrorCode.rebalance_in_progress:
            self._heartbeat_due_ms = max(now_ms, sent_ms + self._config.heartbeat_interval_ms)
            return self._prepare(is_lost=False) if error and self.state is MembershipState.STABLE else []
        if error in _AGAIN:
            self._heartbeat_due_ms = now_ms + min(self._config.retry_backoff_ms, self._config.heartbeat_interval_ms)
            return []
        return self.refused(error)

    def refused(self, error: int) -> list[Order]:
        """The coordinator said so to a heartbeat or a commit of the present generation."""
        if self.state not in _CAN_HEARTBEAT or self.generation < 0:
            return []
        if error in (ErrorCode.unknown_member_id, ErrorCode.illegal_generation):
            self._forget(and_id=error == ErrorCode.unknown_member_id)
            return self._prepare(is_lost=True)
        if error == ErrorCode.rebalance_in_progress:
            return self._prepare(is_lost=False) if self.state is MembershipState.STABLE else []
        return self._fail(error, "staying in the group")

    # -------------------------------------------------------------- time

    def tick(self, now_ms: float, polled_ms: float) -> list[Order]:
        """``polled_ms``: when the user last polled, ``now_ms`` while a poll waits."""
        orders: list[Order] = []
        if self.state in _CAN_HEARTBEAT and now_ms - polled_ms > self._config.max_poll_interval_ms:
            if self.generation < 0:
                return []
            orders = self.leave(
                f"no poll for max.poll.interval.ms={self._config.max_poll_interval_ms:g}: "
                "handle fewer records per poll (max.poll.records) or give it more time"
            )
            return [*orders, *self._prepare(is_lost=True)]
        if self.state is MembershipState.JOINING and self._retry_at_ms is not None and now_ms >= self._retry_at_ms:
            return self._send_join()
        if self._may_heartbeat and now_ms >= self._heartbeat_due_ms:
            self._heartbeat_sent_ms = now_ms
            return [SendHeartbeat(self.member_id, self.generation)]
        return orders

    def next_deadline_ms(self, polled_ms: float) -> float | None:
        """When ``tick`` is wanted. None: only after something else."""
        deadlines: list[float] = []
        if self.state is MembershipState.JOINING and self._retry_at_ms is not None:
            deadlines.append(self._retry_at_ms)
        if self._may_heartbeat:
            deadlines.append(self._heartbeat_due_ms)
        if self.state in _CAN_HEARTBEAT and self.generation >= 0:
            deadlines.append(polled_ms + self._config.max_poll_interval_ms + 1)
        return min(deadlines, default=None)

    @property
    def _may_heartbeat(self) -> bool:
        return self.state in _CAN_HEARTBEAT and self.generation >= 0 and self._heartbeat_sent_ms is None

    # -------------------------------------------------------------- inside

    def _prepare(self, *, is_lost: bool) -> list[Order]:
        self.state = MembershipState.PREPARING
        self._rejoins = False
        self._retry_at_ms = None
        return [Prepare(is_lost)]

    def _send_join(self) -> list[Order]:
        self._attempt += 1
        self._retry_at_ms = None
        return [SendJoin(self._attempt, self.member_id)]

    def _fail(self, error: int, doing: str) -> list[Order]:
        self._forget(and_id=True)
        self.state = MembershipState.FAILED
        return [Fail(error, doing)]

    def _forget(self, *, and_id: bool) -> None:
        self.generation = NO_GENERATION
        self._heartbeat_sent_ms = None
        self._retry_at_ms = None
        self._attempt += 1
        if and_id:
            self.member_id = NO_MEMBER_ID

    def _pause_ms(self, failures: int) -> float:
        if failures <= 1:
            return FIRST_RETRY_MS
        backoff = self._config.retry_backoff_ms * 2 ** min(failures - 2, 16)
        return float(min(backoff, max(self._config.retry_backoff_ms, self._config.retry_backoff_max_ms)))

    def check(self) -> None:
        """Raise AssertionError where an invariant is broken."""
        assert self.generation < 0 or self.member_id, f"generation {self.generation} of nobody"
        if self.generation >= 0:
            assert self.state in (
                MembershipState.PREPARING,
                MembershipState.JOINING,
                MembershipState.SYNCING,
                MembershipState.STABLE,
            ), self.state
        if self.state is MembershipState.STABLE:
            assert self.generation >= 0, "stable without a generation"
        if self._retry_at_ms is not None:
            assert self.state is MembershipState.JOINING, f"a join is due while {self.state.value}"
