"""A coordinator is the leader of its partition: what it answers before, during and after, and what a successor finds."""

from __future__ import annotations

import uuid

import pytest
from group_bench import GROUP, Bench
from kio.schema.errors import ErrorCode

from raylog.coordination.coordinator import CoordinatorRole, PartitionCoordinator
from raylog.coordination.events import (
    Append,
    Appended,
    CoordinatorRequestReceived,
    Elected,
    HighWatermarkRose,
    Replayed,
    Resigned,
    TopicsKnown,
)
from raylog.groups.context import GroupConfig
from raylog.groups.group import State
from raylog.groups.machine import GroupKind
from raylog.groups.records import GroupRecord, OffsetKey, OffsetValue
from raylog.groups.requests import (
    CommittedPartition,
    DeleteGroup,
    DescribeGroup,
    GroupHeartbeat,
    LeaveGroup,
    LeavingMember,
    ListGroups,
    OffsetCommit,
    OffsetDelete,
    OffsetFetch,
    SyncGroup,
)
from raylog.types import TopicPartition

NOT_COORDINATOR = ErrorCode.not_coordinator.value
LOADING = ErrorCode.coordinator_load_in_progress.value


@pytest.mark.parametrize("is_loading", [False, True])
def test_who_does_not_lead_yet_says_so_in_the_words_that_each_client_knows(is_loading: bool) -> None:
    bench = Bench(lead=False)
    told = NOT_COORDINATOR
    if is_loading:
        bench.handle(Elected(1, 10))
        told = LOADING
    assert bench.answer(bench.join()).error == told
    assert bench.answer(bench.commit(1)).partitions[0].error == told
    assert bench.call(OffsetFetch(GROUP)).error == told
    assert bench.call(OffsetDelete(GROUP, (TopicPartition("t", 0),))).error == told
    assert bench.call(LeaveGroup(GROUP, (LeavingMember("m"),))).error == told
    assert bench.call(DescribeGroup(GROUP)).error == told
    assert bench.call(DeleteGroup(GROUP)).error == told
    sync, beat = bench.call(SyncGroup(GROUP, "m", 1)).error, bench.call(GroupHeartbeat(GROUP, "m", 1)).error
    assert sync == (ErrorCode.rebalance_in_progress.value if is_loading else told)
    assert beat == (0 if is_loading else told)
    assert bench.call(ListGroups()).error == (LOADING if is_loading else 0)


def test_it_leads_when_everything_up_to_its_election_is_applied() -> None:
    bench = Bench()
    bench.commit(5)
    successor = Bench(lead=False)
    successor.handle(Elected(2, 1))
    successor.handle(Replayed((), 0))
    assert successor.coordinator.role is CoordinatorRole.LOADING
    successor.handle(Replayed(tuple(bench.log), 1))
    assert successor.coordinator.role is CoordinatorRole.LEADING and successor.committed() == 5


def test_a_follower_that_has_read_along_leads_at_once() -> None:
    bench = Bench()
    bench.commit(5)
    follower = Bench(lead=False)
    follower.handle(Replayed(tuple(bench.log), 1))
    follower.handle(Elected(2, 1))
    assert follower.coordinator.role is CoordinatorRole.LEADING and follower.committed() == 5


def test_a_successor_finds_a_stable_group_and_its_members_notice_nothing() -> None:
    bench = Bench()
    leader, other = bench.members(2)
    bench.commit(5, other)
    bench.fail_over()
    assert bench.coordinator.machine.groups[GROUP].state is State.STABLE
    assert bench.beat(leader) == 0 and bench.beat(other) == 0
    assert bench.answer(bench.sync(other)).assignment == other.member_id.encode()
    assert bench.answer(bench.commit(6, other)).partitions[0].error == 0
    bench.join(leader.member_id)
    assert bench.beat(other) == ErrorCode.rebalance_in_progress.value


def test_members_that_died_with_the_coordinator_are_out_after_their_session_timeout() -> None:
    bench = Bench()
    leader, silent = bench.members(2)
    bench.fail_over()
    bench.pass_time(9_999)
    assert bench.beat(leader) == 0
    bench.pass_time(1)
    assert bench.beat(leader) == ErrorCode.rebalance_in_progress.value
    assert bench.beat(silent) == ErrorCode.unknown_member_id.value


def test_everyone_who_waits_is_sent_away_when_the_leadership_is_lost() -> None:
    bench = Bench()
    leader, other = bench.members(2)
    parked = bench.ask(GroupHeartbeat(GROUP, other.member_id, other.generation, park_ms=3_000, connection=1))
    bench.replicates = False
    commit = bench.commit(5, leader)
    other_group = bench.ask(DeleteGroup("nobody"))
    static = bench.join(group_instance_id="i")
    bench.resign()
    assert bench.answer(commit).partitions[0].error == NOT_COORDINATOR
    assert bench.answer(static).error == NOT_COORDINATOR
    assert bench.answer(parked).error == ErrorCode.rebalance_in_progress.value, "the newcomer began a rebalance"
    assert bench.answer(other_group).error == ErrorCode.group_id_not_found.value
    assert bench.answer(bench.join()).error == NOT_COORDINATOR
    assert bench.coordinator.next_deadline_ms() is None


def test_a_plan_under_way_is_lost_with_the_leadership_and_the_members_join_again() -> None:
    bench = Bench()
    (leader,) = bench.members(1)
    again = bench.answer(bench.join(leader.member_id))
    bench.replicates = False
    token = bench.sync(again, {again.member_id: b"new"})
    bench.fail_over()
    assert bench.answer(token).error == NOT_COORDINATOR
    assert bench.answer(bench.sync(again)).error == ErrorCode.illegal_generation.value
    assert bench.beat(leader) == 0, "the generation before is what the log knows"


def test_an_uncommitted_tail_that_survives_counts_when_it_is_replicated() -> None:
    bench = Bench()
    bench.commit(5)
    bench.replicates = False
    token = bench.commit(6)
    bench.fail_over(keep=len(bench.log))
    assert bench.answer(token).partitions[0].error == NOT_COORDINATOR
    assert bench.committed() == 6


def test_an_uncommitted_tail_that_is_cut_never_was() -> None:
    bench = Bench()
    bench.commit(5)
    bench.replicates = False
    bench.commit(6)
    bench.fail_over()
    assert bench.committed() == 5


def test_the_same_process_may_lead_again_and_reads_what_came_in_between() -> None:
    bench = Bench()
    bench.commit(5)
    bench.resign()
    assert bench.coordinator.position == 1
    bench.elect()
    bench.commit(7)
    assert bench.committed() == 7
    bench.elect()
    assert bench.committed() == 7, "elected anew without having resigned"


def test_older_epochs_change_nothing() -> None:
    bench = Bench()
    (leader,) = bench.members(1)
    bench.leader_epoch = 5
    bench.handle(Elected(5, len(bench.log)))
    assert bench.coordinator.role is CoordinatorRole.LEADING
    bench.handle(Elected(4, len(bench.log)))
    bench.handle(Resigned(4))
    assert bench.coordinator.role is CoordinatorRole.LEADING and bench.beat(leader) == 0
    bench.resign()
    bench.handle(Elected(5, len(bench.log)))
    assert bench.coordinator.role is CoordinatorRole.FOLLOWING


def test_what_became_of_an_append_of_an_older_epoch_is_nobodys_business() -> None:
    bench = Bench()
    bench.replicates = False
    token = bench.commit(5)
    bench.resign()
    bench.elect()
    before = dict(bench.answers)
    bench.handle(Appended(1, 1))
    bench.handle(HighWatermarkRose(1))
    assert bench.answers == before and bench.answer(token).partitions[0].error == NOT_COORDINATOR


def test_a_group_that_is_larger_than_its_limit_has_grown_rebalances_when_it_is_loaded() -> None:
    bench = Bench()
    joined = bench.members(3)
    bench.config = GroupConfig(group_initial_rebalance_delay_ms=0, group_max_size=2)
    bench.fail_over()
    tokens = [bench.join(each.member_id) for each in joined]
    errors = [bench.answers[token].error if token in bench.answers else 0 for token in tokens]  # type: ignore[union-attr]
    assert sorted(errors) == [0, 0, ErrorCode.group_max_size_reached.value]


def test_a_topic_deleted_while_the_log_is_read_takes_its_offsets_with_it() -> None:
    coordinator = PartitionCoordinator(GroupKind(GroupConfig(), new_uuid=uuid.uuid4).machine(0))
    stored = GroupRecord(OffsetKey("g", "t", 0), OffsetValue(5, -1, "", 0))
    coordinator.handle(Elected(1, 1), 0, 0)
    assert coordinator.handle(TopicsKnown({}, ("t",), is_whole=False), 0, 0) == []
    (append,) = coordinator.handle(Replayed((stored,), 1), 0, 0)
    assert isinstance(append, Append) and append.records == (GroupRecord(OffsetKey("g", "t", 0), None),)


OLD, NEW = uuid.UUID(int=11), uuid.UUID(int=12)


def stored(topic_id: uuid.UUID | None, offset: int = 5, topic: str = "t") -> GroupRecord:
    return GroupRecord(OffsetKey("g", topic, 0), OffsetValue(offset, -1, "", 0, topic_id=topic_id))


def tombstone(topic: str = "t") -> GroupRecord:
    return GroupRecord(OffsetKey("g", topic, 0), None)


@pytest.mark.parametrize("topics", [{}, {"t": NEW}], ids=["is gone", "was made again"])
def test_a_new_coordinator_drops_the_offsets_of_a_topic_that_was_deleted_unheard(topics: dict[str, uuid.UUID]) -> None:
    """It followed then, or was elsewhere: who coordinated had no session, or did not replicate what it dropped."""
    coordinator = PartitionCoordinator(GroupKind(GroupConfig(), new_uuid=uuid.uuid4).machine(0))
    coordinator.handle(TopicsKnown(topics), 0, 0)
    coordinator.handle(Elected(1, 2), 0, 0)
    assert coordinator.handle(Replayed((stored(OLD), stored(None, topic="u")), 2), 0, 0) == [
        Append(1, 1, (tombstone(),))
    ]
    fetched = coordinator.handle(CoordinatorRequestReceived(1, OffsetFetch("g")), 0, 0)
    assert [each.topic for each in fetched[0].reply.partitions] == ["u"], "without an id there is nothing to go by"


def test_offsets_of_the_topic_that_is_there_stay() -> None:
    coordinator = PartitionCoordinator(GroupKind(GroupConfig(), new_uuid=uuid.uuid4).machine(0))
    coordinator.handle(TopicsKnown({"t": OLD}), 0, 0)
    coordinator.handle(Elected(1, 1), 0, 0)
    assert coordinator.handle(Replayed((stored(OLD),), 1), 0, 0) == []


def test_a_coordinator_that_had_no_session_drops_them_when_it_is_told_all_topics_anew() -> None:
    bench = Bench()
    bench.handle(TopicsKnown({"t": OLD, "u": OLD}))
    bench.commit(5)
    bench.commit(6, topic="u")
    bench.handle(TopicsKnown({"t": NEW, "u": OLD}))
    assert (bench.committed(), bench.committed("u")) == (-1, 6)
    assert bench.log[-1] == tombstone()
    bench.commit(7)
    bench.handle(TopicsKnown({"t": NEW, "u": OLD}))
    bench.fail_over()
    assert bench.committed() == 7


def test_what_could_not_be_dropped_is_not_shown_and_tried_again() -> None:
    bench = Bench()
    bench.handle(TopicsKnown({"t": OLD}))
    bench.commit(5)
    bench.append_error = ErrorCode.not_enough_replicas.value
    bench.handle(TopicsKnown({"t": NEW}))
    assert bench.committed() == -1 and bench.log[-1] != tombstone()
    bench.append_error = 0
    bench.pass_time(11 * 60_000)
    assert bench.committed() == -1 and bench.log[-1] == tombstone()


def test_a_commit_on_its_way_goes_with_its_topic_too() -> None:
    bench = Bench()
    bench.handle(TopicsKnown({"t": OLD}))
    bench.replicates = False
    token = bench.ask(OffsetCommit("g", (CommittedPartition("t", 0, 5),)))
    bench.handle(TopicsKnown({"t": NEW}))
    bench.replicates = True
    bench.replicate()
    assert bench.answer(token).partitions[0].error == 0
    assert bench.committed() == -1 and bench.log[-1] == tombstone()


def test_nobody_commits_to_a_topic_that_is_not_there() -> None:
    """Else whoever reads on in a deleted topic leaves an offset for the next one of its name."""
    bench = Bench()
    bench.handle(TopicsKnown({"u": OLD}))
    answer = bench.call(OffsetCommit("g", (CommittedPartition("t", 0, 5), CommittedPartition("u", 0, 6))))
    assert [each.error for each in answer.partitions] == [ErrorCode.unknown_topic_or_partition, 0]
    assert (bench.committed(), bench.committed("u")) == (-1, 6)
