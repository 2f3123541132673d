"""Members of the groups of a simulated cluster: the production ``GroupMember`` in a process that
can be killed.

A member finds its coordinator as any client finds a leader, shares out partitions with the
production assignors and commits what it owns, each time another offset. What the real consumer's
thread does between two polls happens after a random delay here. Half of the members are native
ones, whose coordinator sees the end of their connection; the others speak as through a Broker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, assert_never

from kio.schema.errors import ErrorCode

from raylog.client.groups import subscriptions
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
from raylog.client.groups.subscriptions import Remembered
from raylog.groups.assignors import ASSIGNORS
from raylog.groups.consumer_protocol import PROTOCOL_TYPE, decode_assignment
from raylog.groups.requests import (
    CommittedPartition,
    GroupHeartbeat,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    OffsetCommit,
    OffsetFetch,
    OffsetsCommitted,
    Request,
    SyncGroup,
)
from raylog.simulator.coordinator_processes import CoordinatorCall
from raylog.simulator.processes import Machine
from raylog.simulator.scheduler import Timer
from raylog.simulator.workload import Client
from raylog.types import TopicIdPartition, TopicPartition

if TYPE_CHECKING:
    from raylog.simulator.simulation import Simulation

NETWORK_EXCEPTION = ErrorCode.network_exception.value
COORDINATOR_NOT_AVAILABLE = ErrorCode.coordinator_not_available.value
NOT_COORDINATOR = ErrorCode.not_coordinator.value
PARKED_MS = 1_000
_HAVE_A_CONNECTION = (JoinGroup, SyncGroup, GroupHeartbeat, OffsetCommit)


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """A group: where it is coordinated, what its members read, and how they share that out."""

    group_id: str
    topic: str
    id: TopicIdPartition
    partitions: tuple[TopicPartition, ...]
    assignors: tuple[str, ...]


class SimulatedMember(Client):
    """Joins at once. ``kill`` is a crash; ``retire`` leaves as one should, and ends the process."""

    session_ms, rebalance_ms, heartbeat_ms = 6_000, 8_000, 1_500

    def __init__(
        self,
        name: str,
        simulation: Simulation,
        machine: Machine,
        group: GroupSpec,
        instance: str | None,
        next_offset: Callable[[], int],
    ) -> None:
        """``next_offset``: for a commit; no other one has it."""
        super().__init__(name, simulation, machine)
        self.group = group
        self._next_offset = next_offset
        self.instance = instance
        self.is_native = self.scheduler.chance(0.5)
        self._session_ms = self.session_ms * simulation.calm
        self._rebalance_ms = (
            self.rebalance_ms * simulation.calm
        )  # longer than a heartbeat's interval, or rebalances never end
        self.owned: tuple[TopicPartition, ...] = ()
        self.is_over = False
        self._commits = True
        self._assignors = tuple(ASSIGNORS[name] for name in group.assignors)
        self._is_cooperative = subscriptions.is_cooperative(self._assignors)
        self._remembered = Remembered()
        self._identity = ("", -1)
        self._former: tuple[str, int] | None = None  # member id and generation before the present ones
        self._member = GroupMember(
            MemberConfig(
                self._session_ms,
                self.heartbeat_ms * simulation.calm,
                self._rebalance_ms,
                100,
                1_000,
                instance is not None,
            )
        )
        self._polled_ms: int | None = None  # when a user that is stuck polled last; None: it polls all the time
        self._timer: Timer | None = None
        self.later(1 + self.scheduler.between(0, 200_000), lambda: self._carry_out(self._member.join()), "joins")
        self.later(self.scheduler.skewed_us(400_000), self._commit_some, f"{name} commits")

    @property
    def is_stable(self) -> bool:
        return self._member.state is MembershipState.STABLE

    def stop(self) -> None:
        """Commit nothing more."""
        self._commits = False

    def retire(self) -> None:
        if not self.paused:
            self.run(self._retire)

    def get_stuck(self, ms: int) -> None:
        """The user works on one record for so long; heartbeats go on."""
        self._polled_ms = self.now_ms

        def polls_again() -> None:
            self._polled_ms = None
            self._look_again()

        self.later(ms * 1_000, polls_again, f"{self.name} polls again")

    def _retire(self) -> None:
        if self.owned and self.scheduler.chance(0.5):
            self._commit(self.scheduler.rng.choice(self.owned))
        self._carry_out(self._member.leave("it was told to"))
        self.owned = ()
        self.is_over = True
        self.later(500_000, self.kill, f"{self.name} ends")

    def after_work(self) -> None:
        self._member.check()

    # ---------------------------------------------------------------- the way to the coordinator

    def ask_coordinator(
        self, request: Request, on_answer: Callable[[CoordinatorAnswer], None], *, timeout_ms: int = 4_000
    ) -> None:
        """One attempt."""
        leader = self.leader
        if leader is None:
            self.find_leader(self.group.topic, self.group.id, newer_than=-1)
            delay_us = self.scheduler.between(1_000, 50_000)
            self.later(
                delay_us, lambda: on_answer(CoordinatorAnswer(COORDINATOR_NOT_AVAILABLE)), f"{self.name} finds nobody"
            )
            return

        def answered(reply: Any) -> None:
            error = NETWORK_EXCEPTION if reply is None else error_of(reply)
            if error in (NETWORK_EXCEPTION, NOT_COORDINATOR) and self.leader == leader:
                self.leader = None
                newer_than = leader.epoch if self.scheduler.chance(0.5) else -1
                self.find_leader(self.group.topic, self.group.id, newer_than=newer_than)
            if self.alive:
                on_answer(CoordinatorAnswer(error, reply))

        self.ask(
            leader.endpoint, CoordinatorCall(self.group.id, request, self.is_native), answered, timeout_ms=timeout_ms
        )

    # ---------------------------------------------------------------- the member's orders

    def _carry_out(self, orders: Iterable[Order]) -> None:
        for order in orders:
            match order:
                case Prepare():
                    delay_us = self.scheduler.skewed_us(5_000)
                    self.later(delay_us, lambda o=order: self._prepare(o), f"{self.name} gives up")  # type: ignore[misc]
                case SendJoin():
                    self._send_join(order)
                case MakePlan():
                    delay_us = self.scheduler.skewed_us(2_000)
                    self.later(delay_us, lambda o=order: self._make_plan(o), f"{self.name} plans")  # type: ignore[misc]
                case SendSync():
                    self._send_sync(order)
                case PartitionsAssigned():
                    self._take_over(order)
                case SendHeartbeat():
                    self._send_heartbeat(order)
                case SendLeave():
                    self.simulation.counts["members that left"] += 1
                    leaving = LeavingMember(order.member_id)
                    self.ask_coordinator(LeaveGroup(self.group.group_id, (leaving,)), lambda answer: None)
                case Fail():
                    self.simulation.trace(f"{self.name} fails with {ErrorCode(order.error).name} {order.doing}")
                    self.is_over = True
                    self.later(1, self.kill, f"{self.name} has failed")
                case _:
                    assert_never(order)
        self._look_again()

    def _prepare(self, order: Prepare) -> None:
        if self._member.state is not MembershipState.PREPARING:
            return
        if order.is_lost:
            self.owned = ()
        elif not self._is_cooperative:
            if self.owned and self._commits and self.scheduler.chance(0.5):
                self._commit(self.scheduler.rng.choice(self.owned))
            self.owned = ()
        self._carry_out(self._member.prepared())

    def _send_join(self, order: SendJoin) -> None:
        owned = self.owned if self._is_cooperative else ()
        topics = sorted({each.topic for each in self.group.partitions})
        generation = self._remembered.generation if owned else -1
        said = subscriptions.protocols(self._assignors, topics, owned, generation, self._remembered)
        request = JoinGroup(
            self.group.group_id,
            order.member_id,
            PROTOCOL_TYPE,
            said,
            self._session_ms,
            self._rebalance_ms,
            self.instance,
            client_id=self.name,
        )
        self.ask_coordinator(
            request,
            lambda answer: self._carry_out(self._member.joined(order.attempt, answer, self.now_ms)),
            timeout_ms=self._rebalance_ms + 4_000,
        )

    def _make_plan(self, order: MakePlan) -> None:
        members = subscriptions.subscriptions_of(order.members)
        counts: dict[str, int] = {}
        for each in self.group.partitions:
            counts[each.topic] = max(counts.get(each.topic, 0), each.partition + 1)
        plan = () if order.is_known else subscriptions.plan(ASSIGNORS[order.protocol], members, counts)
        self._carry_out(self._member.planned(order.attempt, plan))

    def _send_sync(self, order: SendSync) -> None:
        request = SyncGroup(
            self.group.group_id,
            order.member_id,
            order.generation,
            order.assignments,
            self.instance,
            PROTOCOL_TYPE,
            order.protocol,
        )
        self.ask_coordinator(
            request,
            lambda answer: self._carry_out(self._member.synced(order.attempt, answer, self.now_ms)),
            timeout_ms=self._rebalance_ms + 4_000,
        )

    def _take_over(self, order: PartitionsAssigned) -> None:
        if self._remembered.generation >= 0:
            self._former = (self._identity[0], self._remembered.generation)
        self._identity = (self._member.member_id, order.generation)
        had, self.owned = self.owned, decode_assignment(order.assignment).partitions
        self._remembered = Remembered(self.owned, order.generation)
        if set(self.owned) - set(had):  # where to begin
            self.ask_coordinator(OffsetFetch(self.group.group_id), lambda answer: None)
        if self._is_cooperative and set(had) - set(self.owned):
            self._carry_out(self._member.join())

    def _send_heartbeat(self, order: SendHeartbeat) -> None:
        parked_ms = PARKED_MS * self.simulation.calm if self.is_native else 0
        request = GroupHeartbeat(self.group.group_id, order.member_id, order.generation, self.instance, parked_ms)
        self.ask_coordinator(
            request,
            lambda answer: self._carry_out(self._member.heartbeat_answered(order, answer, self.now_ms)),
            timeout_ms=self._session_ms,
        )

    # ---------------------------------------------------------------- commits

    def fetch_offsets(self, then: Callable[[], None]) -> None:
        """``then``: when the coordinator has shown them."""
        self.ask_coordinator(OffsetFetch(self.group.group_id), lambda answer: None if answer.error else then())

    def _commit_some(self) -> None:
        if self.is_over or not self._commits:
            return
        if self.owned and self._member.generation >= 0:
            self._commit(self.scheduler.rng.choice(self.owned))
        elif self.scheduler.chance(0.3):
            self.ask_coordinator(OffsetFetch(self.group.group_id), lambda answer: None)
        self.simulation.rhythm.later(self.later, 200_000, self._commit_some, f"{self.name} commits")

    def _commit(self, place: TopicPartition) -> None:
        """Now and then as who this was before the last rebalance: a thread of the user's has taken
        its time.
        """
        member_id, generation = self._member.member_id, self._member.generation
        if self._former is not None and self.scheduler.chance(0.05):
            member_id, generation = self._former
        part = CommittedPartition(place.topic, place.partition, self._next_offset())
        request = OffsetCommit(self.group.group_id, (part,), member_id, generation, self.instance)

        def answered(answer: CoordinatorAnswer) -> None:
            if answer.error and (member_id, generation) == (self._member.member_id, self._member.generation):
                refusals = (ErrorCode.unknown_member_id, ErrorCode.illegal_generation, ErrorCode.fenced_instance_id)
                if answer.error in refusals or answer.error == ErrorCode.rebalance_in_progress:
                    self._carry_out(self._member.refused(answer.error))

        self.ask_coordinator(request, answered)

    # ---------------------------------------------------------------- time

    def _look_again(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        polled_ms = self.now_ms if self._polled_ms is None else self._polled_ms
        due_ms = self._member.next_deadline_ms(polled_ms)
        if due_ms is not None and self.alive:
            delay_us = max(0, int(due_ms - self.now_ms)) * 1_000 + 1_000
            self._timer = self.later(delay_us, self._tick, f"{self.name} ticks")

    def _tick(self) -> None:
        self._timer = None
        polled_ms = self.now_ms if self._polled_ms is None else self._polled_ms
        self._carry_out(self._member.tick(self.now_ms, polled_ms))


def error_of(reply: Any) -> int:
    """The error of a coordinator's answer; of a commit's parts, the first."""
    if isinstance(reply, OffsetsCommitted):
        return next((each.error for each in reply.partitions if each.error), 0)
    return int(reply.error)


def on_connection(request: Request, connection: int) -> Request:
    """A native member's request, on the connection whose end is to count."""
    return replace(request, connection=connection) if isinstance(request, _HAVE_A_CONNECTION) else request
