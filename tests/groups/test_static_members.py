"""Static membership (KIP-345): a member with an instance id comes back without a rebalance; a second one of its name fences it."""

from __future__ import annotations

from typing import Any

from group_bench import GROUP, Bench, range_of
from kio.schema.errors import ErrorCode

from raylog.coordination.events import ConnectionClosed
from raylog.groups.group import State
from raylog.groups.records import GroupValue
from raylog.groups.requests import GroupHeartbeat, JoinedGroup, LeaveGroup, LeavingMember, Protocol, SyncGroup

FENCED = ErrorCode.fenced_instance_id.value
UNKNOWN_MEMBER_ID = ErrorCode.unknown_member_id.value
REBALANCE_IN_PROGRESS = ErrorCode.rebalance_in_progress.value


def static_pair(bench: Bench, **fields: Any) -> tuple[JoinedGroup, JoinedGroup]:
    """A stable group of the leader "i" and the follower "j"."""
    first = bench.answer(bench.join(group_instance_id="i", **fields))
    token = bench.join(group_instance_id="j", **fields)
    leader = bench.answer(bench.join(first.member_id, group_instance_id="i", **fields))
    follower = bench.answer(token)
    plan = {leader.member_id: b"1", follower.member_id: b"2"}
    bench.sync(leader, plan, group_instance_id="i")
    assert bench.answer(bench.sync(follower, group_instance_id="j")).assignment == b"2"
    return leader, follower


def test_a_static_newcomer_needs_no_second_join_and_is_named_after_its_instance() -> None:
    bench = Bench()
    joined = bench.answer(bench.join(group_instance_id="i", needs_member_id=True))
    assert joined.error == 0 and joined.member_id.startswith("i-")
    assert joined.members[0].group_instance_id == "i"


def test_a_static_member_that_restarts_changes_nothing_for_the_others() -> None:
    bench = Bench()
    leader, follower = static_pair(bench)
    back = bench.answer(bench.join(group_instance_id="j"))
    assert back.error == 0 and back.member_id != follower.member_id
    assert (back.generation, back.leader, back.skip_assignment) == (leader.generation, leader.member_id, False)
    assert bench.answer(bench.sync(back, group_instance_id="j")).assignment == b"2"
    assert bench.beat(leader, group_instance_id="i") == 0
    value = bench.log[-1].value
    assert isinstance(value, GroupValue)
    assert {each.member_id: each.assignment for each in value.members} == {leader.member_id: b"1", back.member_id: b"2"}


def test_a_static_leader_that_restarts_leads_on_and_shares_out_nothing() -> None:
    bench = Bench()
    leader, _ = static_pair(bench)
    back = bench.answer(bench.join(group_instance_id="i"))
    assert back.leader == back.member_id != leader.member_id
    assert back.skip_assignment and len(back.members) == 2
    older = Bench()
    leader, _ = static_pair(older)
    back = older.answer(older.join(group_instance_id="i", can_skip_assignment=False))
    assert back.leader == leader.member_id != back.member_id, "it must not take itself for the leader"
    assert not back.skip_assignment and not back.members


def test_the_new_member_id_is_told_when_it_is_replicated() -> None:
    bench = Bench()
    static_pair(bench)
    bench.replicates = False
    token = bench.join(group_instance_id="j")
    assert bench.waits(token)
    bench.replicate()
    assert bench.answer(token).error == 0


def test_if_it_cannot_be_stored_the_old_member_id_stays() -> None:
    bench = Bench()
    _, follower = static_pair(bench)
    bench.append_error = ErrorCode.not_enough_replicas.value
    refused = bench.answer(bench.join(group_instance_id="j"))
    assert (refused.error, refused.member_id) == (ErrorCode.coordinator_not_available.value, "")
    assert bench.beat(follower, group_instance_id="j") == 0


def test_the_old_member_id_is_fenced_everywhere() -> None:
    bench = Bench()
    leader, follower = static_pair(bench)
    bench.answer(bench.join(group_instance_id="j"))
    assert bench.beat(follower, group_instance_id="j") == FENCED
    assert bench.answer(bench.sync(follower, group_instance_id="j")).error == FENCED
    assert bench.answer(bench.join(follower.member_id, group_instance_id="j")).error == FENCED
    assert bench.answer(bench.commit(5, follower, group_instance_id="j")).partitions[0].error == FENCED
    left = bench.call(LeaveGroup(GROUP, (LeavingMember(follower.member_id, "j"),)))
    assert left.members[0].error == FENCED
    assert bench.beat(leader, group_instance_id="nobody") == UNKNOWN_MEMBER_ID


def test_requests_of_the_old_one_that_wait_are_fenced_at_once() -> None:
    bench = Bench()
    leader, follower = static_pair(bench)
    parked = bench.ask(GroupHeartbeat(GROUP, follower.member_id, follower.generation, "j", park_ms=3_000, connection=4))
    bench.join(group_instance_id="j")
    assert bench.answer(parked).error == FENCED
    waiting = bench.join(leader.member_id, group_instance_id="i")
    assert bench.waits(waiting)
    bench.join(group_instance_id="i")
    assert bench.answer(waiting).error == FENCED


def test_a_static_member_that_returns_while_the_plan_is_awaited_begins_a_rebalance() -> None:
    bench = Bench()
    first = bench.answer(bench.join(group_instance_id="i"))
    token = bench.join(group_instance_id="j")
    leader = bench.answer(bench.join(first.member_id, group_instance_id="i"))
    follower = bench.answer(token)
    waiting = bench.ask(SyncGroup(GROUP, follower.member_id, follower.generation, group_instance_id="j"))
    back = bench.join(group_instance_id="j")
    assert bench.answer(waiting).error == FENCED
    assert bench.waits(back)
    assert bench.beat(leader, group_instance_id="i") == REBALANCE_IN_PROGRESS


def test_a_static_member_that_returns_with_another_protocol_begins_a_rebalance() -> None:
    bench = Bench()
    both = (range_of("t")[0], Protocol("sticky", b"\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff"))
    leader, _ = static_pair(bench, protocols=both)
    back = bench.join(group_instance_id="j", protocols=(both[1],))
    assert bench.waits(back)
    assert bench.beat(leader, group_instance_id="i") == REBALANCE_IN_PROGRESS
    assert bench.answer(bench.join(leader.member_id, group_instance_id="i", protocols=both)).protocol == "sticky"


def test_static_members_that_do_not_join_stay_until_their_session_ends() -> None:
    bench = Bench()
    leader, follower = static_pair(bench, session_timeout_ms=100_000, rebalance_timeout_ms=20_000)
    again = bench.join(leader.member_id, group_instance_id="i", session_timeout_ms=100_000, rebalance_timeout_ms=20_000)
    bench.pass_time(20_000)
    assert {each.group_instance_id for each in bench.answer(again).members} == {"i", "j"}
    assert follower.member_id in bench.coordinator.machine.groups[GROUP].members


def test_a_group_of_static_members_that_are_all_away_waits_for_them() -> None:
    bench = Bench()
    leader, follower = static_pair(bench, session_timeout_ms=100_000, rebalance_timeout_ms=20_000)
    token = bench.join(leader.member_id, group_instance_id="i", session_timeout_ms=100_000, rebalance_timeout_ms=20_000)
    bench.call(LeaveGroup(GROUP, (LeavingMember("", "i"),)))
    assert bench.answer(token).error == UNKNOWN_MEMBER_ID
    bench.pass_time(25_000)
    group = bench.coordinator.machine.groups[GROUP]
    assert group.state is State.PREPARING_REBALANCE and list(group.members) == [follower.member_id]
    bench.pass_time(80_000)
    assert group.state is State.EMPTY


def test_an_operator_removes_a_static_member_by_its_instance_id() -> None:
    bench = Bench()
    leader, _ = static_pair(bench)
    left = bench.call(LeaveGroup(GROUP, (LeavingMember("", "j"), LeavingMember("", "k"), LeavingMember(""))))
    assert [each.error for each in left.members] == [0, UNKNOWN_MEMBER_ID, UNKNOWN_MEMBER_ID]
    assert bench.beat(leader, group_instance_id="i") == REBALANCE_IN_PROGRESS


def test_the_end_of_a_static_members_connection_leaves_it_its_session_timeout() -> None:
    bench = Bench()
    leader, follower = static_pair(bench)
    bench.beat(follower, group_instance_id="j", connection=3)
    bench.handle(ConnectionClosed(3))
    bench.pass_time(9_999)
    assert bench.beat(leader, group_instance_id="i") == 0
    bench.pass_time(1)
    assert bench.beat(leader, group_instance_id="i") == REBALANCE_IN_PROGRESS
