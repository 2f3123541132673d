"""One member of a group as a machine, against the real group machine of ``raylog.groups`` on its bench."""

from __future__ import annotations

from typing import Any

import pytest
from group_bench import GROUP, Bench
from kio.schema.errors import ErrorCode

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
from raylog.client.groups.subscriptions import Remembered, plan, protocols, subscriptions_of
from raylog.groups.assignors import ASSIGNORS
from raylog.groups.consumer_protocol import decode_assignment
from raylog.groups.requests import GroupHeartbeat, JoinGroup, LeaveGroup, LeavingMember, SyncGroup
from raylog.types import TopicPartition

NETWORK = int(ErrorCode.network_exception)


class Mate:
    """A member whose orders are carried out on the bench at once; its user gives up everything when it is asked to."""

    def __init__(
        self, bench: Bench, *, instance: str | None = None, partitions: int = 4, strategy: str = "range"
    ) -> None:
        self.bench = bench
        self.instance = instance
        self.partitions = partitions
        self.strategy = strategy
        config = MemberConfig(10_000, 3_000, 60_000, 100, 1_000, instance is not None)
        self.machine = GroupMember(config)
        self.owned: list[TopicPartition] = []
        self.polled_ms = bench.now_ms
        self.waiting: list[tuple[Order, int]] = []  # requests and their tokens
        self.beats = 0
        self.lost = 0
        self.error: Fail | None = None
        self.is_away = False  # nothing that it sends arrives
        self.user_is_there = True
        self.prepares: list[bool] = []
        self.left: list[str] = []

    def join(self) -> Mate:
        self.carry_out(self.machine.join())
        return self

    def carry_out(self, orders: list[Order]) -> None:
        for order in orders:
            self.machine.check()
            match order:
                case Prepare():
                    self.prepares.append(order.is_lost)
                    if self.user_is_there:
                        self.prepare()
                case SendJoin():
                    said = protocols([ASSIGNORS[self.strategy]], ["t"], (), -1, Remembered())
                    request: Any = JoinGroup(
                        GROUP, order.member_id, "consumer", said, 10_000, 60_000, self.instance, "c", "/h"
                    )
                    self.send(order, request)
                case MakePlan():
                    members = subscriptions_of(order.members)
                    shares = () if order.is_known else plan(ASSIGNORS[order.protocol], members, {"t": self.partitions})
                    self.carry_out(self.machine.planned(order.attempt, shares))
                case SendSync():
                    request = SyncGroup(
                        GROUP, order.member_id, order.generation, order.assignments, self.instance, "consumer"
                    )
                    self.send(order, request)
                case SendHeartbeat():
                    self.beats += 1
                    self.send(order, GroupHeartbeat(GROUP, order.member_id, order.generation, self.instance))
                case SendLeave():
                    self.left.append(order.reason)
                    self.bench.call(LeaveGroup(GROUP, (LeavingMember(order.member_id),)))
                case PartitionsAssigned():
                    self.owned = list(decode_assignment(order.assignment).partitions)
                case Fail():
                    self.error = order
        self.machine.check()

    def prepare(self) -> None:
        if self.prepares:
            self.lost += self.prepares[-1]
        self.owned = []
        self.carry_out(self.machine.prepared())

    def send(self, order: Order, request: Any) -> None:
        if self.is_away:
            self.waiting.append((order, -1))
        else:
            self.waiting.append((order, self.bench.ask(request)))

    def receive(self) -> bool:
        """Take the answers that are there; whether there were any."""
        ready = [(order, token) for order, token in self.waiting if token < 0 or not self.bench.waits(token)]
        self.waiting = [each for each in self.waiting if each not in ready]
        for order, token in ready:
            reply = None if token < 0 else self.bench.answer(token)
            answer = CoordinatorAnswer(NETWORK if reply is None else reply.error, reply)
            now_ms = self.bench.now_ms
            match order:
                case SendJoin():
                    self.carry_out(self.machine.joined(order.attempt, answer, now_ms))
                case SendSync():
                    self.carry_out(self.machine.synced(order.attempt, answer, now_ms))
                case SendHeartbeat():
                    self.carry_out(self.machine.heartbeat_answered(order, answer, now_ms))
        return bool(ready)


def settle(*mates: Mate) -> None:
    """Until nobody has anything to receive."""
    for _ in range(200):
        received = [mate.receive() for mate in mates]
        if not any(received):
            return
    raise AssertionError("they never settle")


def pass_time(bench: Bench, ms: int, *mates: Mate) -> None:
    """Time passes in small steps; users poll all the while, if they are there."""
    for _ in range(0, ms, 100):
        bench.pass_time(100)
        for mate in mates:
            if mate.user_is_there:
                mate.polled_ms = bench.now_ms
            due_ms = mate.machine.next_deadline_ms(mate.polled_ms)
            if due_ms is not None and due_ms <= bench.now_ms:
                mate.carry_out(mate.machine.tick(bench.now_ms, mate.polled_ms))
        settle(*mates)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def stable(bench: Bench, count: int, **options: Any) -> list[Mate]:
    mates = []
    for _ in range(count):
        mates.append(Mate(bench, **options).join())
        settle(*mates)
        pass_time(bench, 4_000, *mates)
    assert all(mate.machine.state is MembershipState.STABLE for mate in mates), [mate.machine.state for mate in mates]
    return mates


def test_a_member_joins_gets_its_id_and_everything(bench: Bench) -> None:
    (mate,) = stable(bench, 1)
    assert mate.machine.member_id and mate.machine.generation == 1
    assert [key.partition for key in mate.owned] == [0, 1, 2, 3]


def test_members_share_out_and_no_partition_is_anybody_elses(bench: Bench) -> None:
    mates = stable(bench, 3)
    assert sorted(key.partition for mate in mates for key in mate.owned) == [0, 1, 2, 3]
    assert len({mate.machine.generation for mate in mates}) == 1


def test_a_heartbeat_goes_every_interval_and_one_at_a_time(bench: Bench) -> None:
    (mate,) = stable(bench, 1)
    before = mate.beats
    pass_time(bench, 30_000, mate)
    assert 9 <= mate.beats - before <= 11


def test_a_member_hears_of_a_newcomer_by_its_heartbeat(bench: Bench) -> None:
    (first,) = stable(bench, 1)
    second = Mate(bench).join()
    settle(first, second)
    assert second.machine.state is MembershipState.JOINING, "the newcomer waits for the other one"
    pass_time(bench, 3_100, first, second)
    assert first.machine.state is second.machine.state is MembershipState.STABLE
    assert first.lost == 0 and first.machine.generation == 2


def test_heartbeats_go_on_while_the_user_is_asked_to_give_up(bench: Bench) -> None:
    (first,) = stable(bench, 1)
    first.user_is_there = False
    second = Mate(bench).join()
    pass_time(bench, 25_000, first, second)
    assert first.machine.state is MembershipState.PREPARING
    assert first.machine.member_id in bench.coordinator.machine.groups[GROUP].members, "its session is alive"
    first.prepare()
    settle(first, second)
    assert {len(first.owned), len(second.owned)} == {2}


def test_a_member_that_is_not_polled_leaves_and_comes_back_with_a_poll(bench: Bench) -> None:
    first, second = stable(bench, 2)
    first.user_is_there = False
    pass_time(bench, 70_000, first, second)
    assert first.left and "max.poll.interval.ms=60000" in first.left[0]
    assert first.machine.state is MembershipState.PREPARING and first.prepares[-1] is True
    assert len(second.owned) == 4
    first.user_is_there = True
    first.prepare()
    pass_time(bench, 4_000, first, second)
    assert len(first.owned) == len(second.owned) == 2 and first.lost == 1


def test_a_member_that_was_away_too_long_has_lost_its_partitions(bench: Bench) -> None:
    first, second = stable(bench, 2)
    first.is_away = True
    pass_time(bench, 15_000, first, second)
    assert len(second.owned) == 4 and first.lost == 0
    first.is_away = False
    pass_time(bench, 8_000, first, second)
    assert first.lost == 1 and len(first.owned) == len(second.owned) == 2


def test_a_lost_coordinator_is_found_again_and_nothing_changes(bench: Bench) -> None:
    (mate,) = stable(bench, 1)
    generation, owned = mate.machine.generation, mate.owned
    bench.fail_over()
    pass_time(bench, 10_000, mate)
    assert (mate.machine.generation, mate.owned, mate.lost) == (generation, owned, 0)


@pytest.mark.parametrize(
    "error", ["not_coordinator", "coordinator_not_available", "coordinator_load_in_progress", "network_exception"]
)
def test_a_join_is_tried_again_after_a_pause_that_grows(bench: Bench, error: str) -> None:
    mate = Mate(bench)
    mate.is_away = True
    mate.join()
    pauses, last = [], 0.0
    for _ in range(6):
        order, _ = mate.waiting.pop()
        assert isinstance(order, SendJoin)
        mate.carry_out(mate.machine.joined(order.attempt, CoordinatorAnswer(ErrorCode[error]), last))
        due_ms = mate.machine.next_deadline_ms(0)
        assert due_ms is not None
        pauses.append(due_ms - last)
        assert not mate.machine.tick(due_ms - 1, due_ms), "not before its time"
        mate.carry_out(mate.machine.tick(due_ms, due_ms))
        last = due_ms
    assert pauses == [20, 100, 200, 400, 800, 1000]


def test_a_member_whose_id_is_unknown_loses_everything_and_joins_as_a_new_one(bench: Bench) -> None:
    (mate,) = stable(bench, 1)
    was = mate.machine.member_id
    bench.leave(was)
    pass_time(bench, 4_000, mate)
    assert mate.lost == 1 and mate.machine.member_id not in ("", was)
    assert mate.machine.state is MembershipState.STABLE and len(mate.owned) == 4


def test_an_illegal_generation_loses_the_partitions_but_not_the_id(bench: Bench) -> None:
    (mate,) = stable(bench, 1)
    was = mate.machine.member_id
    mate.carry_out(mate.machine.refused(ErrorCode.illegal_generation))
    settle(mate)
    assert mate.lost == 1 and mate.machine.member_id == was and mate.machine.state is MembershipState.STABLE


def test_a_static_member_that_restarts_is_given_what_it_had_without_a_rebalance(bench: Bench) -> None:
    first, second = stable(bench, 1, instance="a") + [Mate(bench, instance="b").join()]
    settle(first, second)
    pass_time(bench, 4_000, first, second)
    generation, owned = second.machine.generation, second.owned
    assert not second.machine.leave("restart"), "a static member does not say that it leaves"
    again = Mate(bench, instance="b").join()
    settle(first, again)
    pass_time(bench, 4_000, first, again)
    assert (again.machine.generation, again.owned) == (generation, owned)
    assert first.machine.generation == generation


def test_a_static_leader_that_restarts_plans_nothing(bench: Bench) -> None:
    first = Mate(bench, instance="a").join()
    settle(first)
    generation, owned = first.machine.generation, first.owned
    first.machine.leave("restart")
    again = Mate(bench, instance="a", partitions=9).join()
    settle(again)
    assert (again.machine.generation, again.owned) == (generation, owned)


def test_a_fenced_instance_fails_for_good(bench: Bench) -> None:
    first = Mate(bench, instance="a").join()
    settle(first)
    second = Mate(bench, instance="a").join()
    settle(second)
    pass_time(bench, 4_000, first, second)
    assert first.error is not None and first.error.error == ErrorCode.fenced_instance_id
    assert first.machine.state is MembershipState.FAILED and second.machine.state is MembershipState.STABLE
    assert first.machine.next_deadline_ms(0) is None
    assert first.machine.join() == [Prepare(is_lost=True)], "unless it is wanted anew"


def test_members_without_a_common_strategy_fail(bench: Bench) -> None:
    (first,) = stable(bench, 1)
    second = Mate(bench, strategy="sticky").join()
    settle(first, second)
    assert second.error is not None and second.error.error == ErrorCode.inconsistent_group_protocol
    assert first.machine.state is MembershipState.STABLE


def test_a_member_that_leaves_says_so_and_the_others_take_over(bench: Bench) -> None:
    first, second = stable(bench, 2)
    second.carry_out(second.machine.leave("closed"))
    pass_time(bench, 4_000, first)
    assert len(first.owned) == 4 and second.machine.state is MembershipState.OUT


def test_a_subscription_that_changes_while_joining_is_joined_with_again(bench: Bench) -> None:
    (first,) = stable(bench, 1)
    second = Mate(bench).join()
    settle(second)
    assert second.machine.state is MembershipState.JOINING
    assert second.machine.join() == []
    assert len(second.prepares) == 1
    pass_time(bench, 8_000, first, second)
    assert len(second.prepares) == 2 and second.machine.state is MembershipState.STABLE


def test_an_answer_to_an_older_attempt_changes_nothing(bench: Bench) -> None:
    mate = Mate(bench)
    mate.is_away = True
    mate.join()
    assert mate.machine.joined(0, CoordinatorAnswer(ErrorCode.fenced_instance_id), 0) == []
    assert mate.machine.state is MembershipState.JOINING
    stale = SendHeartbeat("gone", 7)
    assert mate.machine.heartbeat_answered(stale, CoordinatorAnswer(ErrorCode.unknown_member_id), 0) == []


def test_a_sync_that_is_overtaken_joins_again_without_losing_anything(bench: Bench) -> None:
    mate = Mate(bench)
    mate.join()
    mate.receive()
    mate.receive()
    assert mate.machine.state is MembershipState.SYNCING
    (order, _), mate.waiting = mate.waiting[0], []
    assert isinstance(order, SendSync)
    mate.carry_out(mate.machine.synced(order.attempt, CoordinatorAnswer(ErrorCode.rebalance_in_progress), bench.now_ms))
    settle(mate)
    assert mate.machine.state is MembershipState.STABLE and mate.lost == 0


def test_who_leaves_while_a_join_is_to_be_tried_again_tries_no_more() -> None:
    machine = GroupMember(MemberConfig(10_000, 3_000, 60_000, 100, 1_000, is_static=False))
    machine.join()
    (join,) = machine.prepared()
    assert isinstance(join, SendJoin)
    assert machine.joined(join.attempt, CoordinatorAnswer(int(ErrorCode.not_coordinator)), 0) == []
    assert machine.next_deadline_ms(0) is not None
    assert machine.leave("enough") == []
    machine.check()
    assert machine.next_deadline_ms(0) is None and machine.tick(1e6, 1e6) == []
