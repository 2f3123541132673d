"""A consumer's part in its group: runs the pure ``GroupMember``, and keeps what the user reads in
step with it.

Two threads meet here. Everything that talks (joining, heartbeats, offsets) happens in the loop,
whatever the user does. What changes the user's partitions is done at a poll, on the user's thread:
it is a *duty* that waits until the next poll, which it wakes. So a partition is never taken from
under a record that is being worked on, and listeners may commit and seek.

A duty has three parts: ``before`` (in the loop: commit before revocation), the listener's call (the
user's thread), ``after`` (in the loop: the change itself, and what the member does next)::

    Revoked(partitions)   given up, still this member's: commit, on_revoked, stop reading them
    Lost(partitions)      somebody else's already: on_lost, stop reading them
    Assigned(partitions)  read them from the committed offset on (or by ``auto.offset.reset``), then on_assigned

*Eager* members (all assignors but cooperative-sticky) give up everything before they join.
*Cooperative* ones keep all of it, and when the plan takes something away they give that up and join
again (KIP-429), so that the others are given it by the next plan.

Commits: with ``enable.auto.commit`` what was handed out by earlier polls is committed every
``auto.commit.interval.ms`` at a poll, before a revocation, and at the end.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, assert_never

from kio.schema.errors import ErrorCode

from raylog.client.config import ConsumerConfig
from raylog.client.consumer.fetcher import Fetcher
from raylog.client.groups import requests as group_requests
from raylog.client.groups import subscriptions
from raylog.client.groups.coordinator_link import CoordinatorLink
from raylog.client.groups.member import (
    CoordinatorAnswer,
    Fail,
    GroupMember,
    MakePlan,
    MemberConfig,
    MembershipState,
    Order,
    PartitionsAssigned,
    Prepare,
    SendHeartbeat,
    SendJoin,
    SendLeave,
    SendSync,
)
from raylog.client.groups.offset_commits import GroupMetadata, Identity, OffsetAndMetadata, OffsetCommits
from raylog.client.groups.subscribed_topics import SubscribedTopics
from raylog.client.groups.subscriptions import Remembered, Wanted
from raylog.client.links.link import ClusterLink
from raylog.clock import clock_of
from raylog.errors import ConfigError, ProtocolError, RaylogError, error_for
from raylog.groups.consumer_protocol import decode_assignment
from raylog.groups.requests import HEARTBEAT_HELD_BACK_MS
from raylog.types import TopicPartition

logger = logging.getLogger("raylog.client")

_JOIN_SLACK_MS = 5_000
_LEAVE_MS = 5_000


class RebalanceListener:
    """Told at a poll, on its thread, of what the consumer reads. Subclass it; for ``AsyncConsumer``
    methods may be coroutines.
    """

    def on_assigned(self, partitions: list[TopicPartition]) -> Any:
        """These are read from now on, in addition to what was kept. ``seek`` them here if their
        offsets are kept elsewhere.
        """

    def on_revoked(self, partitions: list[TopicPartition]) -> Any:
        """These go to somebody else after this call: the last moment to commit what was done."""

    def on_lost(self, partitions: list[TopicPartition]) -> Any:
        """These have gone to somebody else already. Unless overridden: ``on_revoked``."""
        return self.on_revoked(partitions)


class _Functions(RebalanceListener):
    def __init__(self, on_assigned: Any, on_revoked: Any, on_lost: Any) -> None:
        self._functions = (on_assigned, on_revoked, on_lost or on_revoked)

    def on_assigned(self, partitions: list[TopicPartition]) -> Any:
        return self._functions[0](partitions) if self._functions[0] is not None else None

    def on_revoked(self, partitions: list[TopicPartition]) -> Any:
        return self._functions[1](partitions) if self._functions[1] is not None else None

    def on_lost(self, partitions: list[TopicPartition]) -> Any:
        return self._functions[2](partitions) if self._functions[2] is not None else None


def listener_of(
    listener: RebalanceListener | None, on_assigned: Any, on_revoked: Any, on_lost: Any
) -> RebalanceListener | None:
    """What ``subscribe`` was given, as a listener."""
    if on_assigned is None and on_revoked is None and on_lost is None:
        return listener
    if listener is not None:
        raise ConfigError("give either a listener or functions, not both")
    return _Functions(on_assigned, on_revoked, on_lost)


@dataclass(frozen=True, slots=True)
class Duty:
    """``kind``: what the listener's method is called after ``on_``. ``then``: what the member waits
    for.
    """

    kind: str  # "assigned", "revoked", "lost", "prepare", "prepare_lost"
    partitions: tuple[TopicPartition, ...] = ()
    then_rejoin: bool = False


class GroupMembership:
    def __init__(self, config: ConsumerConfig, link: ClusterLink, fetcher: Fetcher) -> None:
        assert config.group_id is not None, "a membership without a group"
        self._config = config
        self._loop = asyncio.get_running_loop()
        self._clock = clock_of(self._loop)
        self._fetcher = fetcher
        self._assignors = subscriptions.assignors_of(config.partition_assignment_strategy)
        self._is_cooperative = subscriptions.is_cooperative(self._assignors)
        self._member = GroupMember(
            MemberConfig(
                config.session_timeout_ms,
                # A longer interval would leave times in which nobody could tell it of a rebalance.
                min(config.heartbeat_interval_ms, HEARTBEAT_HELD_BACK_MS),
                config.max_poll_interval_ms,
                config.retry_backoff_ms,
                config.retry_backoff_max_ms,
                config.group_instance_id is not None,
            )
        )
        self._coordinator = CoordinatorLink(link, config.group_id)
        self._topics = SubscribedTopics(config, link, self._topics_changed)
        self.commits = OffsetCommits(
            self._coordinator,
            instance_id=config.group_instance_id,
            identity=self._identity,
            refused=self._commit_refused,
            require_stable=config.reads_committed,
        )
        self.listener: RebalanceListener | None = None
        self.is_subscribed = False
        self._duties: deque[Duty] = deque()
        self._duties_lock = threading.Lock()
        self._is_performing = False  # a duty was taken by the user's thread and is not done
        self._remembered = Remembered()
        self._error: RaylogError | None = None
        self._polled_at = self._clock.monotonic_s()
        self._is_polling = False
        self._commit_at = self._clock.monotonic_s() + config.auto_commit_interval_ms / 1000
        self._committing: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_closed = False
        fetcher.has_duty = self.has_duty
        fetcher.committed = self._committed_positions

    # -------------------------------------------------------------- what the user wants (in the loop)

    def subscribe(self, wanted: Wanted, listener: RebalanceListener | None) -> None:
        if not self.is_subscribed and self._fetcher.partitions:
            raise ConfigError("this consumer assigns its own partitions: assign([]) before subscribe()")
        self.listener = listener
        self.is_subscribed = True
        self._error = None
        self.polled()
        self._topics.want(wanted)

    def metadata(self) -> GroupMetadata:
        assert self._config.group_id is not None
        identity = self._identity()
        return GroupMetadata(
            self._config.group_id, identity.member_id, identity.generation, self._config.group_instance_id
        )

    def subscription(self) -> list[str]:
        return list(self._topics.names or ())

    def _topics_changed(self) -> None:
        """What the subscription means has changed: topics, or for the leader the number of
        partitions.
        """
        if self.is_subscribed and not self._is_closed:
            self._carry_out(self._member.join())

    async def leave(self, reason: str) -> None:
        """After the last duty is done: say so to the coordinator, and read nothing any more."""
        self.is_subscribed = False
        self._duties.clear()
        self._topics.forget()
        for order in self._member.leave(reason):
            if isinstance(order, SendLeave):
                await self._send_leave(order)
        self._look_again()

    def last_duty(self) -> Duty | None:
        """What a consumer that unsubscribes or closes does first."""
        owned = self._owned()
        if not self.is_subscribed or not owned:
            return None
        return Duty("revoked" if self._member.generation >= 0 else "lost", owned)

    # -------------------------------------------------------------- polls (the user's thread)

    def polled(self) -> None:
        self._polled_at = self._clock.monotonic_s()

    def set_polling(self, is_polling: bool) -> None:
        """A poll waits: that is as good as polling all the time."""
        self._polled_at = self._clock.monotonic_s()
        self._is_polling = is_polling

    def has_duty(self) -> bool:
        return bool(self._duties) or self._error is not None or self._commit_is_due()

    def next_duty(self) -> Duty | None:
        """Raises what ended the membership."""
        if self._error is not None:
            raise self._error
        if self._commit_is_due():
            self._commit_automatically()
        if not self._duties:
            return None
        with self._duties_lock:
            self._is_performing = True
            return self._duties.popleft()

    def call_of(self, duty: Duty) -> Any:
        """The listener's method for a duty, if there is anything to call."""
        if self.listener is None or duty.kind.startswith("prepare"):
            return None
        if not duty.partitions and duty.kind != "assigned":
            return None
        return getattr(self.listener, f"on_{duty.kind}")

    # -------------------------------------------------------------- duties (in the loop)

    async def before(self, duty: Duty) -> None:
        if duty.kind == "revoked" and self._config.auto_commits:
            await self._commit_now(duty.partitions)
        elif duty.kind == "assigned":
            owned = dict.fromkeys((*self._fetcher.partitions, *duty.partitions))
            self._fetcher.assign(owned)

    async def after(self, duty: Duty) -> None:
        """Whatever became of the listener's call."""
        self._is_performing = False
        match duty.kind:
            case "revoked" | "lost":
                gone = set(duty.partitions)
                self._fetcher.assign([key for key in self._fetcher.partitions if key not in gone])
                if duty.then_rejoin:
                    self._carry_out(self._member.join())
            case "prepare" | "prepare_lost":
                given_up = self._given_up(is_lost=duty.kind == "prepare_lost")
                if given_up:
                    kind = "lost" if duty.kind == "prepare_lost" else "revoked"
                    with self._duties_lock:
                        self._duties.extendleft((duty, Duty(kind, given_up)))
                else:
                    self._carry_out(self._member.prepared())

    def _given_up(self, *, is_lost: bool) -> tuple[TopicPartition, ...]:
        owned = self._owned()
        if is_lost or not self._is_cooperative:
            return owned
        names = set(self._topics.names or ())
        return tuple(key for key in owned if key.topic not in names)

    def _needs_user(self) -> bool:
        """Whether a join has to wait for the user: the first one, and one that takes something away
        or comes on top of other duties.
        """
        is_busy = bool(self._duties) or self._is_performing
        return self._member.generation < 0 or is_busy or bool(self._given_up(is_lost=False))

    def _owned(self) -> tuple[TopicPartition, ...]:
        return tuple(self._fetcher.partitions) if self.is_subscribed else ()

    def _add_duty(self, duty: Duty) -> None:
        with self._duties_lock:
            if duty.kind.startswith("prepare") and self._duties and self._duties[-1].kind.startswith("prepare"):
                former = self._duties.pop()
                duty = duty if duty.kind == "prepare_lost" else former
            self._duties.append(duty)
        self._fetcher.notify()

    # -------------------------------------------------------------- the member's orders

    def _carry_out(self, orders: Iterable[Order]) -> None:
        for order in orders:
            match order:
                case Prepare():
                    if order.is_lost or self._needs_user():
                        self._add_duty(Duty("prepare_lost" if order.is_lost else "prepare"))
                    else:
                        self._carry_out(self._member.prepared())
                case SendJoin():
                    self._spawn(self._send_join(order))
                case MakePlan():
                    self._spawn(self._make_plan(order))
                case SendSync():
                    self._spawn(self._send_sync(order))
                case PartitionsAssigned():
                    self._take_over(order)
                case SendHeartbeat():
                    self._spawn(self._send_heartbeat(order))
                case SendLeave():
                    logger.warning("leaving group %r: %s", self._config.group_id, order.reason)
                    self._spawn(self._send_leave(order))
                case Fail():
                    self._fail(order)
                case _:
                    assert_never(order)
        self._look_again()

    async def _send_join(self, order: SendJoin) -> None:
        config = self._config
        assert config.group_id is not None
        names = await self._topics.resolved()
        owned = self._owned() if self._is_cooperative else ()
        generation = self._member.generation if self._member.generation >= 0 else self._generation_owned(owned)
        said = subscriptions.protocols(self._assignors, names, owned, generation, self._remembered)
        request = group_requests.join_group(
            config.group_id,
            order.member_id,
            config.group_instance_id,
            said,
            session_timeout_ms=config.session_timeout_ms,
            rebalance_timeout_ms=config.max_poll_interval_ms,
        )
        wait_ms = max(config.request_timeout_ms, config.max_poll_interval_ms + _JOIN_SLACK_MS)
        code, reply = await self._coordinator.ask(request, timeout_ms=wait_ms)
        answer = CoordinatorAnswer(code, None if reply is None else group_requests.joined(reply))
        orders = self._member.joined(order.attempt, answer, self._now_ms())
        if any(isinstance(each, SendSync) for each in orders):
            self._topics.follow()
        self._carry_out(orders)

    def _generation_owned(self, owned: tuple[TopicPartition, ...]) -> int:
        return self._remembered.generation if owned else -1

    async def _make_plan(self, order: MakePlan) -> None:
        assignor = next((each for each in self._assignors if each.name == order.protocol), None)
        if assignor is None:
            self._carry_out(self._member.plan_failed(order.attempt, ErrorCode.inconsistent_group_protocol))
            return
        try:
            members = subscriptions.subscriptions_of(order.members)
            topics = sorted({topic for member in members for topic in member.subscription.topics})
            counts = await self._topics.partition_counts(topics)
            assignments = () if order.is_known else subscriptions.plan(assignor, members, counts)
        except ProtocolError as error:
            logger.error("cannot assign the partitions of group %r: %s", self._config.group_id, error)
            self._carry_out(self._member.plan_failed(order.attempt, ErrorCode.inconsistent_group_protocol))
            return
        except (
            RaylogError
        ) as error:  # nobody to ask: the others wait for a plan, so join again rather than give an empty one
            logger.warning("the plan of group %r is late: %s", self._config.group_id, error)
            answer = CoordinatorAnswer(ErrorCode.coordinator_not_available)
            self._carry_out(self._member.synced(order.attempt, answer, self._now_ms()))
            return
        self._carry_out(self._member.planned(order.attempt, assignments))

    async def _send_sync(self, order: SendSync) -> None:
        config = self._config
        assert config.group_id is not None
        request = group_requests.sync_group(
            config.group_id,
            order.member_id,
            config.group_instance_id,
            order.generation,
            order.protocol,
            order.assignments,
        )
        wait_ms = max(config.request_timeout_ms, config.max_poll_interval_ms + _JOIN_SLACK_MS)
        code, reply = await self._coordinator.ask(request, timeout_ms=wait_ms)
        answer = CoordinatorAnswer(code, None if reply is None else group_requests.synced(reply))
        self._carry_out(self._member.synced(order.attempt, answer, self._now_ms()))

    async def _send_heartbeat(self, order: SendHeartbeat) -> None:
        config = self._config
        assert config.group_id is not None
        request = group_requests.heartbeat(config.group_id, order.member_id, config.group_instance_id, order.generation)
        code, reply = await self._coordinator.ask(request, timeout_ms=config.session_timeout_ms)
        self._carry_out(self._member.heartbeat_answered(order, CoordinatorAnswer(code, reply), self._now_ms()))

    async def _send_leave(self, order: SendLeave) -> None:
        assert self._config.group_id is not None
        request = group_requests.leave_group(self._config.group_id, [(order.member_id, None)], order.reason)
        try:
            await self._coordinator.request(
                request, timeout_ms=min(_LEAVE_MS, self._config.request_timeout_ms), what="leaving"
            )
        except RaylogError as error:
            logger.debug("%s", error)  # the coordinator finds out by itself

    def _take_over(self, order: PartitionsAssigned) -> None:
        try:
            assigned = decode_assignment(order.assignment).partitions
        except ProtocolError as error:
            logger.error("group %r: %s", self._config.group_id, error)
            assigned = ()
        self._remembered = Remembered(assigned, order.generation)
        owned = set(self._owned())
        gone = tuple(key for key in self._owned() if key not in set(assigned))
        if gone:
            self._add_duty(Duty("revoked", gone, then_rejoin=self._is_cooperative))
        self._add_duty(Duty("assigned", tuple(key for key in assigned if key not in owned)))

    def _fail(self, order: Fail) -> None:
        code = ErrorCode(order.error)
        hint = {
            ErrorCode.fenced_instance_id: f": another consumer has group.instance.id={self._config.group_instance_id!r}",
            ErrorCode.inconsistent_group_protocol: ": its members have no common partition.assignment.strategy",
            ErrorCode.invalid_session_timeout: ": session.timeout.ms is outside of what the coordinator takes",
        }.get(code, "")
        told = f"{order.doing} group {self._config.group_id!r}: {code.name.upper()}{hint}"
        self._error = self._coordinator.refusal or error_for(code, told)
        self._fetcher.notify()

    # -------------------------------------------------------------- commits

    def _identity(self) -> Identity:
        if not self.is_subscribed:
            return Identity()
        return Identity(self._member.member_id, self._member.generation)

    def _commit_refused(self, identity: Identity, code: int) -> None:
        if identity == self._identity() and self.is_subscribed:
            self._carry_out(self._member.refused(code))

    def positions(self, partitions: Iterable[TopicPartition] | None = None) -> dict[TopicPartition, OffsetAndMetadata]:
        """What has been handed out, as far as anything is known."""
        chosen = None if partitions is None else set(partitions)
        found: dict[TopicPartition, OffsetAndMetadata] = {}
        for key, partition in list(self._fetcher.partitions.items()):
            if partition.position is not None and (chosen is None or key in chosen):
                is_all_read = partition.position == partition.fetch_offset
                epoch = partition.last_epoch if is_all_read else -1
                found[key] = OffsetAndMetadata(partition.position, "", epoch)
        return found

    def _commit_is_due(self) -> bool:
        return (
            self._config.auto_commits
            and self._clock.monotonic_s() >= self._commit_at
            and bool(self._fetcher.partitions)
        )

    def _commit_automatically(self) -> None:
        """At a poll: everything that earlier ones have handed out is done with."""
        self._commit_at = self._clock.monotonic_s() + self._config.auto_commit_interval_ms / 1000
        offsets = self.positions()
        if offsets:
            self._loop.call_soon_threadsafe(self._begin_commit, offsets)

    def _begin_commit(self, offsets: dict[TopicPartition, OffsetAndMetadata]) -> None:
        if self._committing is None or self._committing.done():
            self._committing = self._spawn(self._commit_or_warn(offsets, self._config.auto_commit_interval_ms))
        self._look_again()

    async def _commit_now(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Before a revocation and at the end."""
        self._commit_at = self._clock.monotonic_s() + self._config.auto_commit_interval_ms / 1000
        limit_ms = min(self._config.default_api_timeout_ms, self._config.max_poll_interval_ms, 10_000)
        await self._commit_or_warn(self.positions(partitions), limit_ms)

    async def _commit_or_warn(self, offsets: dict[TopicPartition, OffsetAndMetadata], limit_ms: float) -> None:
        try:
            await self.commits.commit(offsets, max(limit_ms, 1_000))
        except RaylogError as error:
            logger.warning("automatic commit of group %r: %s", self._config.group_id, error)

    async def _committed_positions(self, keys: list[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        found = await self.commits.committed(keys, self._config.default_api_timeout_ms)
        return {key: (each.offset, each.leader_epoch) for key, each in found.items()}

    # -------------------------------------------------------------- time

    def _now_ms(self) -> float:
        return self._clock.monotonic_s() * 1000

    def _polled_ms(self) -> float:
        return self._now_ms() if self._is_polling else self._polled_at * 1000

    def _look_again(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._is_closed:
            return
        due_ms = self._member.next_deadline_ms(self._polled_ms())
        if self._config.auto_commits and self._fetcher.partitions:
            commit_ms = max(self._commit_at * 1000, self._now_ms() + 50)
            due_ms = commit_ms if due_ms is None else min(due_ms, commit_ms)
        if due_ms is not None:
            self._timer = self._loop.call_later(max(0.0, due_ms - self._now_ms()) / 1000, self._tick)

    def _tick(self) -> None:
        self._timer = None
        if self._commit_is_due():
            self._fetcher.notify()
        self._carry_out(self._member.tick(self._now_ms(), self._polled_ms()))

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("group %r", self._config.group_id, exc_info=task.exception())

    # -------------------------------------------------------------- the end

    async def close(self) -> None:
        """Commit what automatic commits owe, and leave."""
        if self._is_closed:
            return
        if self._config.auto_commits and self._fetcher.partitions and self._member.state is not MembershipState.FAILED:
            await self._commit_now()
        await self.leave("the consumer was closed")
        self._is_closed = True
        self._topics.close()
        self._coordinator.close()
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()
