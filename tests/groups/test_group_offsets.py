"""OffsetCommit, OffsetFetch, OffsetDelete, DeleteGroups, and what expires when."""

from __future__ import annotations

import pytest
from group_bench import DAY_MS, GROUP, MINUTE_MS, Bench, range_of
from kio.schema.errors import ErrorCode

from raylog.coordination.events import TopicsKnown
from raylog.groups.context import GroupConfig
from raylog.groups.group import State
from raylog.groups.records import GroupKey, OffsetKey
from raylog.groups.requests import (
    CommittedPartition,
    DeleteGroup,
    DescribeGroup,
    ListGroups,
    OffsetCommit,
    OffsetDelete,
    OffsetFetch,
)
from raylog.types import TopicPartition

UNKNOWN_MEMBER_ID = ErrorCode.unknown_member_id.value
ILLEGAL_GENERATION = ErrorCode.illegal_generation.value
T0 = TopicPartition("t", 0)


def error_of(bench: Bench, token: int) -> int:
    error: int = bench.answer(token).partitions[0].error
    return error


def test_a_commit_is_answered_and_seen_when_it_is_replicated() -> None:
    bench = Bench()
    (member,) = bench.members(1)
    assert bench.committed() == -1
    bench.replicates = False
    token = bench.commit(5, member, metadata="m")
    assert bench.waits(token) and bench.committed() == -1
    bench.replicate()
    assert error_of(bench, token) == 0
    (fetched,) = bench.call(OffsetFetch(GROUP)).partitions
    assert (fetched.topic, fetched.partition, fetched.offset, fetched.leader_epoch, fetched.metadata) == (
        "t",
        0,
        5,
        3,
        "m",
    )


def test_a_commit_that_is_not_replicated_in_time_is_answered_and_may_still_come_true() -> None:
    bench = Bench()
    (member,) = bench.members(1)
    bench.replicates = False
    token = bench.commit(5, member)
    bench.pass_time(4_999)
    assert bench.waits(token)
    bench.pass_time(1)
    assert error_of(bench, token) == ErrorCode.request_timed_out.value
    bench.replicate()
    assert bench.committed() == 5


@pytest.mark.parametrize(
    ("log_error", "told"),
    [
        (ErrorCode.not_enough_replicas, ErrorCode.coordinator_not_available),
        (ErrorCode.kafka_storage_error, ErrorCode.not_coordinator),
        (ErrorCode.message_too_large, ErrorCode.invalid_commit_offset_size),
    ],
)
def test_a_commit_that_the_log_refuses_is_told_as_kafka_does(log_error: ErrorCode, told: ErrorCode) -> None:
    bench = Bench()
    bench.append_error = log_error.value
    assert error_of(bench, bench.commit(5)) == told.value
    assert bench.committed() == -1


def test_commits_from_outside_are_taken_while_a_group_has_no_members() -> None:
    bench = Bench()
    assert error_of(bench, bench.commit(5)) == 0 and bench.committed() == 5
    assert error_of(bench, bench.commit(6, generation=1, member_id="x")) == UNKNOWN_MEMBER_ID
    (member,) = bench.members(1)
    assert error_of(bench, bench.commit(7)) == UNKNOWN_MEMBER_ID
    bench.leave(member.member_id)
    assert error_of(bench, bench.commit(3)) == 0 and bench.committed() == 3


def test_a_generation_that_nobody_knows_is_refused() -> None:
    bench = Bench()
    assert error_of(bench, bench.commit(5, generation=0, member_id="x")) == ILLEGAL_GENERATION
    assert GROUP not in bench.coordinator.machine.groups


def test_members_commit_in_their_generation_but_not_between_the_phases() -> None:
    bench = Bench()
    leader, other = bench.members(2)
    assert error_of(bench, bench.commit(1, other)) == 0
    token = bench.join(leader.member_id)
    assert error_of(bench, bench.commit(2, other)) == 0, "while others join, the partitions are still its own"
    other_token = bench.join(other.member_id)
    assert bench.answer(token).generation == other.generation + 1
    assert error_of(bench, bench.commit(3, other)) == ILLEGAL_GENERATION
    newer = bench.answer(other_token)
    assert error_of(bench, bench.commit(3, newer)) == ErrorCode.rebalance_in_progress.value
    assert bench.committed() == 2


def test_a_commit_is_a_sign_of_life() -> None:
    bench = Bench()
    (member,) = bench.members(1)
    bench.pass_time(9_000)
    bench.commit(1, member)
    bench.pass_time(9_999)
    assert bench.beat(member) == 0


def test_metadata_over_the_limit_is_refused_partition_by_partition() -> None:
    bench = Bench()
    small, large = (
        CommittedPartition("t", 0, 1, metadata="x" * 4_096),
        CommittedPartition("t", 1, 1, metadata="x" * 4_097),
    )
    answer = bench.call(OffsetCommit(GROUP, (small, large)))
    assert [each.error for each in answer.partitions] == [0, ErrorCode.offset_metadata_too_large.value]
    fetched = bench.call(OffsetFetch(GROUP, (T0, TopicPartition("t", 1))))
    assert [each.offset for each in fetched.partitions] == [1, -1]
    assert bench.call(OffsetCommit(GROUP, (large,))).partitions[0].error


def test_offsets_of_an_unknown_group_are_none() -> None:
    bench = Bench()
    assert bench.committed() == -1
    assert bench.call(OffsetFetch("other")).partitions == ()


def test_offsets_are_deleted_where_no_live_member_reads_the_topic() -> None:
    bench = Bench()
    for topic in ("t", "u"):
        bench.commit(5, topic=topic)
    bench.members(1, protocols=range_of("t"))
    answer = bench.call(OffsetDelete(GROUP, (T0, TopicPartition("u", 0), TopicPartition("v", 0))))
    subscribed = ErrorCode.group_subscribed_to_topic.value
    assert answer.error == 0 and [each.error for each in answer.partitions] == [subscribed, 0, 0]
    assert bench.committed() == 5 and bench.committed("u") == -1
    assert bench.log[-1].key == OffsetKey(GROUP, "u", 0) and bench.log[-1].value is None
    assert bench.call(OffsetDelete("other", (T0,))).error == ErrorCode.group_id_not_found.value


def test_offsets_of_a_group_of_another_kind_stay_while_it_has_members() -> None:
    bench = Bench()
    bench.members(1, protocol_type="connect")
    assert bench.call(OffsetDelete(GROUP, (T0,))).error == ErrorCode.non_empty_group.value


def test_an_empty_group_is_deleted_with_its_offsets() -> None:
    bench = Bench()
    (member,) = bench.members(1)
    bench.commit(5, member)
    assert bench.call(DeleteGroup(GROUP)).error == ErrorCode.non_empty_group.value
    bench.leave(member.member_id)
    assert bench.call(DeleteGroup(GROUP)).error == 0
    assert [(each.key, each.value) for each in bench.log[-2:]] == [
        (OffsetKey(GROUP, "t", 0), None),
        (GroupKey(GROUP), None),
    ]
    assert bench.call(DescribeGroup(GROUP)).state == "Dead" and bench.committed() == -1
    assert bench.call(DeleteGroup(GROUP)).error == ErrorCode.group_id_not_found.value
    assert not bench.coordinator.machine.image.groups


def test_while_its_deletion_is_replicated_a_group_answers_nobody_and_if_it_fails_it_is_back() -> None:
    bench = Bench()
    (member,) = bench.members(1)
    bench.commit(5, member)
    bench.leave(member.member_id)
    bench.replicates = False
    token = bench.ask(DeleteGroup(GROUP))
    not_now = ErrorCode.coordinator_not_available.value
    assert bench.answer(bench.join()).error == not_now and error_of(bench, bench.commit(6)) == not_now
    bench.replicate()
    assert bench.answer(token).error == 0
    bench.replicates = True
    bench.commit(7)
    bench.append_error = ErrorCode.not_enough_replicas.value
    assert bench.call(DeleteGroup(GROUP)).error == not_now
    assert bench.coordinator.machine.groups[GROUP].state is State.EMPTY and bench.committed() == 7


def test_a_commit_on_its_way_is_deleted_with_its_group() -> None:
    bench = Bench()
    bench.replicates = False
    bench.commit(5)
    token = bench.ask(DeleteGroup(GROUP))
    bench.replicate()
    assert bench.answer(token).error == 0 and not bench.coordinator.machine.image.groups


def test_the_offsets_of_a_deleted_topic_go_with_it() -> None:
    bench = Bench()
    bench.commit(5)
    bench.commit(6, topic="u")
    bench.handle(TopicsKnown({}, ("t",), is_whole=False))
    assert bench.committed() == -1 and bench.committed("u") == 6


def test_an_empty_group_expires_a_week_after_it_became_empty() -> None:
    bench = Bench()
    (member,) = bench.members(1, session_timeout_ms=1_800_000)
    bench.commit(5, member)
    for _ in range(20):
        bench.pass_time(25 * MINUTE_MS)
        bench.beat(member)
    bench.leave(member.member_id)
    bench.pass_time(7 * DAY_MS - 11 * MINUTE_MS)
    assert bench.committed() == 5
    bench.pass_time(21 * MINUTE_MS)
    assert bench.committed() == -1
    assert not bench.coordinator.machine.groups and not bench.coordinator.machine.image.groups


def test_a_live_group_keeps_what_its_members_read_and_loses_the_rest_a_week_after_the_commit() -> None:
    bench = Bench()
    bench.commit(5)
    bench.commit(6, topic="u")
    (member,) = bench.members(1, protocols=range_of("t"), session_timeout_ms=1_800_000)
    for _ in range(8 * 58):
        bench.pass_time(25 * MINUTE_MS)
        bench.beat(member)
    assert bench.committed() == 5 and bench.committed("u") == -1


def test_offsets_of_a_group_without_members_expire_a_week_after_their_commit() -> None:
    bench = Bench()
    bench.commit(5)
    bench.pass_time(4 * DAY_MS)
    bench.commit(6, topic="u")
    bench.pass_time(3 * DAY_MS + 11 * MINUTE_MS)
    assert bench.committed() == -1 and bench.committed("u") == 6
    bench.pass_time(4 * DAY_MS)
    assert not bench.coordinator.machine.groups


def test_a_retention_of_its_own_wins() -> None:
    bench = Bench()
    bench.commit(5, retention_ms=60_000)
    bench.commit(6, topic="u", retention_ms=30 * DAY_MS)
    bench.pass_time(11 * MINUTE_MS)
    assert bench.committed() == -1 and bench.committed("u") == 6
    bench.pass_time(20 * DAY_MS)
    assert bench.committed("u") == 6


def test_an_offset_with_a_commit_on_its_way_does_not_expire() -> None:
    bench = Bench(GroupConfig(offsets_retention_minutes=1, offsets_retention_check_interval_ms=60_000))
    bench.commit(5)
    bench.pass_time(59_000)
    bench.replicates = False
    token = bench.commit(6)
    bench.pass_time(1_000)
    bench.replicate()
    assert error_of(bench, token) == 0 and bench.committed() == 6


def test_an_empty_group_without_offsets_goes_at_the_next_look() -> None:
    bench = Bench()
    bench.answer(bench.join(needs_member_id=True))
    assert GROUP in bench.coordinator.machine.groups
    bench.pass_time(10 * MINUTE_MS)
    assert not bench.coordinator.machine.groups and not bench.log, "it never was in the log"


def test_groups_are_described_in_full_only_while_stable() -> None:
    bench = Bench()
    leader, other = bench.members(2, client_id="me")
    stable = bench.call(DescribeGroup(GROUP))
    assert (stable.state, stable.protocol_type, stable.protocol) == ("Stable", "consumer", "range")
    assert [(each.member_id, each.client_id, each.client_host) for each in stable.members] == [
        (leader.member_id, "me", "/127.0.0.1"),
        (other.member_id, "me", "/127.0.0.1"),
    ]
    assert stable.members[1].assignment == other.member_id.encode()
    assert stable.members[1].metadata == range_of("t")[0].metadata
    bench.join(leader.member_id)
    moving = bench.call(DescribeGroup(GROUP))
    assert (moving.state, moving.protocol) == ("PreparingRebalance", "")
    assert [each.assignment + each.metadata for each in moving.members] == [b"", b""]


def test_groups_are_listed_by_state_and_type() -> None:
    bench = Bench()
    bench.members(1)
    bench.call(OffsetCommit("other", (CommittedPartition("t", 0, 1),)))
    listed = bench.call(ListGroups()).groups
    assert [(each.group_id, each.protocol_type, each.state, each.type) for each in listed] == [
        (GROUP, "consumer", "Stable", "classic"),
        ("other", "", "Empty", "classic"),
    ]
    assert [each.group_id for each in bench.call(ListGroups(states=("EMPTY",))).groups] == ["other"]
    assert bench.call(ListGroups(types=("consumer",))).groups == ()
    assert len(bench.call(ListGroups(types=("Classic",))).groups) == 2
