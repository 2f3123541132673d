"""SyncGroup, Heartbeat and LeaveGroup: how a plan reaches everyone, and what ends a generation."""

from __future__ import annotations

import pytest
from group_bench import GROUP, Bench, range_of
from kio.schema.errors import ErrorCode

from raylog.coordination.events import ConnectionClosed
from raylog.groups.group import State
from raylog.groups.records import GroupKey, GroupValue
from raylog.groups.requests import GroupHeartbeat, LeaveGroup, LeavingMember, SyncGroup

UNKNOWN_MEMBER_ID = ErrorCode.unknown_member_id.value
REBALANCE_IN_PROGRESS = ErrorCode.rebalance_in_progress.value
ILLEGAL_GENERATION = ErrorCode.illegal_generation.value


def test_everyone_gets_their_part_when_the_leaders_plan_is_replicated() -> None:
    bench = Bench()
    bench.replicates = False
    first = bench.answer(bench.join())
    token = bench.join()
    leader = bench.answer(bench.join(first.member_id))
    follower = bench.answer(token)
    waiting = bench.sync(follower)
    assert bench.waits(waiting)
    leading = bench.sync(leader, {leader.member_id: b"1", follower.member_id: b"2"})
    assert bench.waits(leading) and bench.waits(waiting), "not before it is replicated"
    bench.replicate()
    assert bench.answer(leading).assignment == b"1" and bench.answer(waiting).assignment == b"2"
    assert bench.answer(waiting).protocol == "range" and bench.answer(waiting).protocol_type == "consumer"
    assert bench.coordinator.machine.groups[GROUP].state is State.STABLE


def test_the_log_holds_the_stable_group_as_kafka_writes_it() -> None:
    bench = Bench()
    leader, follower = bench.members(2, client_id="me")
    record = bench.log[-1]
    assert record.key == GroupKey(GROUP) and isinstance(record.value, GroupValue)
    assert record.value.generation == leader.generation and record.value.leader == leader.member_id
    assert record.value.protocol == "range" and record.value.protocol_type == "consumer"
    by_id = {each.member_id: each for each in record.value.members}
    assert by_id.keys() == {leader.member_id, follower.member_id}
    member = by_id[follower.member_id]
    assert (member.client_id, member.client_host) == ("me", "/127.0.0.1")
    assert (member.session_timeout_ms, member.rebalance_timeout_ms) == (10_000, 60_000)
    assert member.subscription == range_of("t")[0].metadata and member.assignment == follower.member_id.encode()


def test_whom_the_leader_forgot_gets_an_empty_assignment() -> None:
    bench = Bench()
    first = bench.answer(bench.join())
    token = bench.join()
    leader = bench.answer(bench.join(first.member_id))
    waiting = bench.sync(bench.answer(token))
    bench.sync(leader, {leader.member_id: b"1", "a stranger": b"2"})
    assert bench.answer(waiting).assignment == b""
    assert not bench.answer(waiting).error


def test_a_member_of_a_stable_group_gets_its_part_again() -> None:
    bench = Bench()
    _, follower = bench.members(2)
    assert bench.answer(bench.sync(follower)).assignment == follower.member_id.encode()


def test_sync_is_refused_by_generation_member_and_protocol() -> None:
    bench = Bench()
    (leader,) = bench.members(1)
    me, now = leader.member_id, leader.generation
    assert bench.call(SyncGroup("other", me, now)).error == UNKNOWN_MEMBER_ID
    assert bench.call(SyncGroup(GROUP, "x", now)).error == UNKNOWN_MEMBER_ID
    assert bench.call(SyncGroup(GROUP, me, now - 1)).error == ILLEGAL_GENERATION
    wrong = ErrorCode.inconsistent_group_protocol.value
    assert bench.call(SyncGroup(GROUP, me, now, protocol_type="connect")).error == wrong
    assert bench.call(SyncGroup(GROUP, me, now, protocol="sticky")).error == wrong
    assert bench.call(SyncGroup(GROUP, me, now, protocol_type="consumer", protocol="range")).error == 0


def test_a_rebalance_sends_those_who_wait_for_the_plan_back_to_join() -> None:
    bench = Bench()
    first = bench.answer(bench.join())
    token = bench.join()
    leader = bench.answer(bench.join(first.member_id))
    waiting = bench.sync(bench.answer(token))
    bench.leave(leader.member_id)
    assert bench.answer(waiting).error == REBALANCE_IN_PROGRESS
    assert bench.answer(bench.sync(bench.answer(token))).error == REBALANCE_IN_PROGRESS


@pytest.mark.parametrize(
    ("log_error", "told"),
    [
        (ErrorCode.not_enough_replicas, ErrorCode.coordinator_not_available),
        (ErrorCode.not_leader_or_follower, ErrorCode.not_coordinator),
        (ErrorCode.message_too_large, ErrorCode.unknown_server_error),
    ],
)
def test_a_plan_that_cannot_be_stored_is_nobodys(log_error: ErrorCode, told: ErrorCode) -> None:
    bench = Bench()
    joined = bench.answer(bench.join())
    bench.append_error = log_error.value
    assert bench.answer(bench.sync(joined, {joined.member_id: b"1"})).error == told.value
    assert bench.coordinator.machine.groups[GROUP].state is State.PREPARING_REBALANCE


def test_a_plan_that_is_not_replicated_in_time_begins_a_rebalance() -> None:
    bench = Bench()
    joined = bench.answer(bench.join())
    bench.replicates = False
    token = bench.sync(joined, {joined.member_id: b"1"})
    bench.pass_time(4_999)
    assert bench.waits(token)
    bench.pass_time(1)
    assert bench.answer(token).error == REBALANCE_IN_PROGRESS
    bench.replicate()
    assert bench.coordinator.machine.groups[GROUP].state is State.PREPARING_REBALANCE, "too late"


def test_who_does_not_sync_within_the_rebalance_timeout_is_out() -> None:
    bench = Bench()
    first = bench.answer(bench.join(session_timeout_ms=100_000))
    token = bench.join(session_timeout_ms=100_000)
    leader = bench.answer(bench.join(first.member_id, session_timeout_ms=100_000))
    absent = bench.answer(token)
    assert bench.answer(bench.sync(leader, {}))
    bench.pass_time(60_000)
    assert bench.beat(absent) == UNKNOWN_MEMBER_ID
    assert bench.beat(leader) == REBALANCE_IN_PROGRESS


def test_a_silent_member_is_out_after_its_session_timeout() -> None:
    bench = Bench()
    leader, silent = bench.members(2)
    bench.pass_time(9_999)
    assert bench.beat(leader) == 0
    bench.pass_time(1)
    assert bench.beat(leader) == REBALANCE_IN_PROGRESS
    assert bench.beat(silent) == UNKNOWN_MEMBER_ID
    again = bench.answer(bench.join(leader.member_id))
    assert [each.member_id for each in again.members] == [leader.member_id]


def test_waiting_in_join_counts_as_being_heard() -> None:
    bench = Bench()
    leader, other = bench.members(2, rebalance_timeout_ms=300_000)
    waiting = bench.join(leader.member_id, rebalance_timeout_ms=300_000)
    for _ in range(10):
        bench.pass_time(6_000)
        assert bench.beat(other) == REBALANCE_IN_PROGRESS
    assert bench.waits(waiting)
    bench.join(other.member_id)
    assert len(bench.answer(waiting).members) == 2


def test_a_newcomer_that_waits_too_long_for_its_first_join_is_told_to_begin_again() -> None:
    bench = Bench()
    leader, _ = bench.members(2, rebalance_timeout_ms=1_000_000, session_timeout_ms=900_000)
    newcomer = bench.join(rebalance_timeout_ms=1_000_000)
    bench.join(leader.member_id, rebalance_timeout_ms=1_000_000, session_timeout_ms=900_000)
    bench.pass_time(299_999)
    assert bench.waits(newcomer)
    bench.pass_time(1)
    assert (bench.answer(newcomer).error, bench.answer(newcomer).member_id) == (UNKNOWN_MEMBER_ID, "")


def test_heartbeats_are_refused_by_generation_and_member() -> None:
    bench = Bench()
    (leader,) = bench.members(1)
    assert bench.call(GroupHeartbeat("other", leader.member_id, 1)).error == UNKNOWN_MEMBER_ID
    assert bench.call(GroupHeartbeat(GROUP, "x", leader.generation)).error == UNKNOWN_MEMBER_ID
    assert bench.call(GroupHeartbeat(GROUP, leader.member_id, leader.generation + 1)).error == ILLEGAL_GENERATION


def test_several_members_leave_at_once_each_with_an_answer_of_its_own() -> None:
    bench = Bench()
    leader, other, third = bench.members(3)
    pending = bench.answer(bench.join(needs_member_id=True))
    left = bench.leave(leader.member_id, "x", other.member_id, pending.member_id)
    assert [each.error for each in left.members] == [0, UNKNOWN_MEMBER_ID, 0, 0]
    assert list(bench.coordinator.machine.groups[GROUP].members) == [third.member_id]
    unknown = bench.call(LeaveGroup("other", (LeavingMember("x"),)))
    assert unknown.error == 0 and unknown.members[0].error == UNKNOWN_MEMBER_ID


def test_the_last_one_to_leave_empties_the_group_and_the_log_says_so() -> None:
    bench = Bench()
    (leader,) = bench.members(1)
    bench.leave(leader.member_id)
    assert bench.coordinator.machine.groups[GROUP].state is State.EMPTY
    value = bench.log[-1].value
    assert isinstance(value, GroupValue)
    assert (value.members, value.protocol, value.leader, value.generation) == ((), None, None, leader.generation + 1)
    assert value.protocol_type == "consumer"


def test_the_end_of_a_native_connection_starts_the_rebalance_after_half_a_second() -> None:
    bench = Bench()
    leader, other = bench.members(2)
    assert bench.beat(other, connection=7) == 0
    bench.handle(ConnectionClosed(7))
    bench.pass_time(499)
    assert bench.beat(leader) == 0
    bench.pass_time(1)
    assert bench.beat(leader) == REBALANCE_IN_PROGRESS
    assert list(bench.coordinator.machine.groups[GROUP].members) == [leader.member_id]


def test_a_native_member_that_comes_back_over_another_connection_stays() -> None:
    bench = Bench()
    leader, other = bench.members(2)
    bench.beat(other, connection=7)
    bench.handle(ConnectionClosed(7))
    bench.pass_time(400)
    assert bench.beat(other, connection=8) == 0
    bench.handle(ConnectionClosed(7))
    bench.pass_time(9_000)
    assert bench.beat(leader) == 0
    assert bench.beat(other, connection=8) == 0
    bench.handle(ConnectionClosed(8))
    bench.pass_time(500)
    assert bench.beat(leader) == REBALANCE_IN_PROGRESS


def test_a_native_member_that_dies_while_it_waits_does_not_hold_the_join_phase() -> None:
    bench = Bench()
    leader, other = bench.members(2)
    bench.beat(other, connection=7)
    bench.beat(leader, connection=8)
    dying = bench.join(other.member_id, connection=7, protocols=range_of("u"))
    bench.handle(ConnectionClosed(7))
    bench.pass_time(500)
    assert bench.answer(dying).error == UNKNOWN_MEMBER_ID
    again = bench.join(leader.member_id, connection=8)
    assert [each.member_id for each in bench.answer(again).members] == [leader.member_id]
    pending = bench.answer(bench.join(needs_member_id=True, connection=9))
    bench.handle(ConnectionClosed(9))
    waiting = bench.join(leader.member_id, connection=8, protocols=range_of("v"))
    assert bench.waits(waiting)
    bench.pass_time(500)
    assert not bench.answer(waiting).error
    assert bench.answer(bench.join(pending.member_id)).error == UNKNOWN_MEMBER_ID


def test_a_parked_heartbeat_hears_of_a_rebalance_at_once() -> None:
    bench = Bench()
    leader, other = bench.members(2)
    parked = bench.ask(GroupHeartbeat(GROUP, other.member_id, other.generation, park_ms=3_000, connection=1))
    assert bench.waits(parked)
    bench.join(leader.member_id)
    assert bench.answer(parked).error == REBALANCE_IN_PROGRESS


def test_a_parked_heartbeat_is_answered_at_its_time_and_counts_as_a_sign_of_life() -> None:
    bench = Bench()
    (other,) = bench.members(1)
    parked = bench.ask(GroupHeartbeat(GROUP, other.member_id, other.generation, park_ms=3_000, connection=1))
    bench.pass_time(2_999)
    assert bench.waits(parked)
    bench.pass_time(1)
    assert bench.answer(parked).error == 0
    bench.pass_time(9_999)
    assert bench.beat(other) == 0
    overtaken = bench.ask(GroupHeartbeat(GROUP, other.member_id, other.generation, park_ms=3_000, connection=1))
    late = bench.ask(GroupHeartbeat(GROUP, other.member_id, other.generation, park_ms=3_000, connection=1))
    assert bench.answer(overtaken).error == 0 and bench.waits(late)
    bench.leave(other.member_id)
    assert bench.answer(late).error == UNKNOWN_MEMBER_ID
