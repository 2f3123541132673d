"""JoinGroup: who gets in, how long the coordinator waits, what the leader and the others are told."""

from __future__ import annotations

import pytest
from group_bench import GROUP, Bench, range_of
from kio.schema.errors import ErrorCode

from raylog.groups.context import GroupConfig
from raylog.groups.group import State
from raylog.groups.requests import JoinGroup, Protocol

UNKNOWN_MEMBER_ID = ErrorCode.unknown_member_id.value


def protocols(*names: str) -> tuple[Protocol, ...]:
    return tuple(Protocol(name, range_of("t")[0].metadata) for name in names)


def test_a_newcomer_is_given_an_id_first_and_comes_back_with_it() -> None:
    bench = Bench()
    first = bench.answer(bench.join(needs_member_id=True))
    assert first.error == ErrorCode.member_id_required.value
    assert first.member_id == "c-00000000-0000-0000-0000-000000000001"
    assert bench.coordinator.machine.groups[GROUP].state is State.EMPTY
    second = bench.answer(bench.join(first.member_id, needs_member_id=True))
    assert (second.error, second.member_id, second.generation) == (0, first.member_id, 1)
    assert second.leader == first.member_id and second.protocol == "range" and second.protocol_type == "consumer"


def test_an_id_that_is_not_used_is_forgotten_after_the_session_timeout() -> None:
    bench = Bench()
    first = bench.answer(bench.join(needs_member_id=True))
    bench.pass_time(10_000)
    assert bench.answer(bench.join(first.member_id)).error == UNKNOWN_MEMBER_ID


def test_a_pending_member_holds_the_join_phase_until_it_comes_or_expires() -> None:
    bench = Bench()
    leader = bench.members(1)[0]
    pending = bench.answer(bench.join(needs_member_id=True))
    again = bench.join(leader.member_id)
    assert bench.waits(again), "the group is stable until the leader joins, and then waits for the pending one"
    bench.pass_time(10_000)
    assert bench.answer(again).generation == 2
    assert bench.answer(bench.join(pending.member_id)).error == UNKNOWN_MEMBER_ID


def test_an_unknown_member_of_an_unknown_group_is_refused_and_makes_none() -> None:
    bench = Bench()
    assert bench.answer(bench.join("somebody")).error == UNKNOWN_MEMBER_ID
    assert not bench.coordinator.machine.groups


@pytest.mark.parametrize("timeout_ms", [5_999, 1_800_001])
def test_session_timeouts_outside_of_the_bounds_are_refused(timeout_ms: int) -> None:
    bench = Bench()
    assert bench.answer(bench.join(session_timeout_ms=timeout_ms)).error == ErrorCode.invalid_session_timeout.value


def test_a_group_without_a_name_is_refused() -> None:
    bench = Bench()
    request = JoinGroup("", "", "consumer", range_of("t"), 10_000, 60_000)
    assert bench.call(request).error == ErrorCode.invalid_group_id.value


def test_names_that_no_record_has_room_for_are_refused() -> None:
    bench = Bench()
    assert bench.answer(bench.join(client_id="x" * 33_000)).error == ErrorCode.invalid_request.value


def test_the_first_join_phase_lasts_the_initial_delay_and_as_long_again_for_each_newcomer() -> None:
    bench = Bench(GroupConfig())
    first = bench.join()
    bench.pass_time(2_999)
    second = bench.join()
    bench.pass_time(3_000)
    assert bench.waits(first) and bench.waits(second), "the newcomer put it off"
    bench.pass_time(1)
    assert bench.answer(first).generation == 1 and bench.answer(second).generation == 1
    assert len(bench.answer(first).members) == 2


def test_newcomers_put_the_first_phase_off_to_the_rebalance_timeout_at_most() -> None:
    bench = Bench(GroupConfig())
    tokens = [bench.join(rebalance_timeout_ms=7_000)]
    bench.pass_time(2_000)
    for _ in range(4):
        tokens.append(bench.join(rebalance_timeout_ms=7_000))
        bench.pass_time(1_200)
        assert bench.waits(tokens[0])
    bench.pass_time(200)
    assert all(bench.answer(token).generation == 1 for token in tokens)


def test_only_the_leader_is_told_the_members_and_what_they_said() -> None:
    bench = Bench()
    first = bench.answer(bench.join())
    second = bench.join(protocols=range_of("t", "u"))
    again = bench.join(first.member_id)
    leader, follower = bench.answer(again), bench.answer(second)
    assert leader.leader == follower.leader == first.member_id
    assert {each.member_id: each.metadata for each in leader.members} == {
        leader.member_id: range_of("t")[0].metadata,
        follower.member_id: range_of("t", "u")[0].metadata,
    }
    assert follower.members == ()
    assert leader.generation == follower.generation == 2


def test_the_join_phase_ends_at_the_longest_rebalance_timeout_without_those_who_did_not_come() -> None:
    bench = Bench()
    leader, absent = bench.members(2, session_timeout_ms=100_000)
    newcomer = bench.join(rebalance_timeout_ms=30_000, session_timeout_ms=100_000)
    again = bench.join(leader.member_id, session_timeout_ms=100_000, rebalance_timeout_ms=5_000)
    bench.pass_time(59_999)
    assert bench.waits(newcomer) and bench.waits(again)
    bench.pass_time(1)
    assert {each.member_id for each in bench.answer(again).members} == {
        leader.member_id,
        bench.answer(newcomer).member_id,
    }
    assert bench.answer(bench.join(absent.member_id)).error == UNKNOWN_MEMBER_ID


def test_the_leadership_goes_to_somebody_who_came() -> None:
    bench = Bench()
    leader, other = bench.members(2, session_timeout_ms=100_000)
    newcomer = bench.join()
    again = bench.join(other.member_id, session_timeout_ms=100_000)
    bench.pass_time(60_000)
    joined = bench.answer(again)
    assert joined.leader == other.member_id and len(joined.members) == 2
    assert bench.answer(newcomer).members == ()
    assert leader.member_id not in bench.coordinator.machine.groups[GROUP].members


def test_the_protocol_is_one_that_all_know_with_most_votes() -> None:
    bench = Bench()
    tokens = [bench.join(protocols=protocols("range", "sticky"))]
    first = bench.answer(tokens[0])
    tokens = [bench.join(protocols=protocols("sticky", "range", "other")) for _ in range(2)]
    again = bench.join(first.member_id, protocols=protocols("range", "sticky"))
    assert bench.answer(again).protocol == "sticky"
    assert all(bench.answer(token).protocol == "sticky" for token in tokens)


def test_who_shares_no_protocol_with_the_others_is_refused() -> None:
    bench = Bench()
    bench.members(1)
    inconsistent = ErrorCode.inconsistent_group_protocol.value
    assert bench.answer(bench.join(protocols=protocols("sticky"))).error == inconsistent
    assert bench.answer(bench.join(protocol_type="connect")).error == inconsistent
    empty = Bench()
    assert empty.answer(empty.join(protocols=())).error == inconsistent
    assert empty.answer(empty.join(protocol_type="")).error == inconsistent


def test_somebody_who_joins_when_all_have_left_the_first_join_phase_is_taken() -> None:
    bench = Bench(GroupConfig())
    named = bench.answer(bench.join(needs_member_id=True))
    bench.join(named.member_id)
    bench.leave(named.member_id)
    group = bench.coordinator.machine.groups[GROUP]
    assert group.state is State.PREPARING_REBALANCE and not group.members
    assert bench.answer(bench.join(protocols=())).error == ErrorCode.inconsistent_group_protocol.value
    newcomer = bench.join(protocols=protocols("sticky"))
    bench.pass_time(6_000)
    told = bench.answer(newcomer)
    assert (told.error, told.protocol, told.leader) == (0, "sticky", told.member_id)


def test_a_follower_that_joins_a_stable_group_unchanged_is_only_told_what_is() -> None:
    bench = Bench()
    leader, follower = bench.members(2)
    told = bench.answer(bench.join(follower.member_id))
    assert (told.error, told.generation, told.leader, told.members) == (0, leader.generation, leader.member_id, ())
    assert bench.beat(leader) == 0


def test_a_leader_that_joins_or_a_changed_follower_begins_a_rebalance() -> None:
    for index in (0, 1):
        bench = Bench()
        joined = bench.members(2)
        who, other = joined[index], joined[1 - index]
        token = bench.join(who.member_id, protocols=range_of("t", "u"))
        assert bench.waits(token)
        assert bench.beat(other) == ErrorCode.rebalance_in_progress.value
        bench.join(other.member_id)
        assert bench.answer(token).generation == other.generation + 1


def test_a_member_that_missed_the_answer_to_its_join_gets_it_again() -> None:
    bench = Bench()
    first = bench.answer(bench.join())
    second = bench.join()
    leader = bench.answer(bench.join(first.member_id))
    assert bench.answer(bench.join(first.member_id)) == leader
    assert bench.answer(bench.join(bench.answer(second).member_id)) == bench.answer(second)
    changed = bench.join(first.member_id, protocols=range_of("other"))
    assert bench.waits(changed), "with other metadata it is a new rebalance"


def test_a_join_that_is_overtaken_by_another_of_the_same_member_is_answered() -> None:
    bench = Bench()
    leader, _ = bench.members(2)
    early = bench.join(leader.member_id)
    late = bench.join(leader.member_id)
    assert bench.answer(early).error == ErrorCode.rebalance_in_progress.value
    assert bench.waits(late)


def test_a_newcomer_that_joins_again_keeps_its_five_minutes() -> None:
    bench = Bench(GroupConfig(group_initial_rebalance_delay_ms=100_000))
    token = bench.join(session_timeout_ms=6_000, rebalance_timeout_ms=300_000)
    member_id = next(iter(bench.coordinator.machine.groups[GROUP].members))
    again = bench.join(member_id, session_timeout_ms=6_000, rebalance_timeout_ms=300_000)
    bench.pass_time(100_000)
    assert bench.answer(again).generation == 1 and bench.answer(token).error


def test_a_group_takes_no_more_members_than_its_limit() -> None:
    bench = Bench(GroupConfig(group_initial_rebalance_delay_ms=0, group_max_size=1))
    leader = bench.members(1)[0]
    refused = bench.answer(bench.join())
    assert (refused.error, refused.member_id) == (ErrorCode.group_max_size_reached.value, "")
    assert bench.beat(leader) == 0


def test_an_emptied_group_waits_the_initial_delay_again() -> None:
    bench = Bench(GroupConfig())
    token = bench.join()
    bench.pass_time(3_000)
    bench.leave(bench.answer(token).member_id)
    assert bench.coordinator.machine.groups[GROUP].state is State.EMPTY
    token = bench.join()
    bench.pass_time(2_999)
    assert bench.waits(token)
    bench.pass_time(1)
    assert bench.answer(token).generation == 3, "the empty generation counts"
