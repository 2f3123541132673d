"""Offsets that are committed in transactions: TxnOffsetCommit, what its markers do, and who may see what meanwhile."""

from __future__ import annotations

import random
import uuid

import pytest
from group_bench import DAY_MS, GROUP, Bench
from kio.schema.errors import ErrorCode

from raylog.coordination.events import (
    Append,
    CoordinatorRequestReceived,
    Elected,
    EndOfTransaction,
    MarkerAppended,
    OfTransaction,
    TopicsKnown,
)
from raylog.groups.image import OffsetsImage
from raylog.groups.records import GroupRecord, OffsetKey, OffsetValue
from raylog.groups.requests import (
    CommittedPartition,
    DeleteGroup,
    DescribeGroup,
    FetchedOffset,
    LeaveGroup,
    LeavingMember,
    OffsetDelete,
    OffsetFetch,
    TxnOffsetCommit,
)
from raylog.replication.transaction_events import TransactionMembership
from raylog.types import TopicPartition

T0 = TopicPartition("t", 0)
UNSTABLE = ErrorCode.unstable_offset_commit.value


def error_of(bench: Bench, token: int) -> int:
    error: int = bench.answer(token).partitions[0].error
    return error


def stable(bench: Bench) -> FetchedOffset:
    """What a consumer gets that reads committed records only."""
    found: FetchedOffset = bench.call(OffsetFetch(GROUP, (T0,), require_stable=True)).partitions[0]
    return found


@pytest.mark.parametrize("commit", [True, False])
def test_an_offset_counts_from_the_commit_of_its_transaction_on(commit: bool) -> None:
    bench = Bench()
    bench.commit(3)
    token = bench.commit_in_transaction(5)
    assert error_of(bench, token) == 0
    assert bench.committed() == 3 and stable(bench).error == UNSTABLE
    bench.end_transaction(1, commit=commit)
    expected = 5 if commit else 3
    assert bench.committed() == stable(bench).offset == expected and stable(bench).error == 0


def test_a_commit_is_answered_and_its_marker_counts_when_they_are_replicated() -> None:
    bench = Bench()
    bench.replicates = False
    token = bench.commit_in_transaction(5)
    assert bench.waits(token) and stable(bench).error == UNSTABLE  # though nothing is applied yet
    bench.replicate()
    assert error_of(bench, token) == 0
    bench.end_transaction(1)
    assert bench.committed() == -1 and stable(bench).error == UNSTABLE
    bench.replicate()
    assert bench.committed() == 5 and stable(bench).error == 0


def test_a_marker_counts_in_its_place_among_the_records() -> None:
    """Appended between two commits of the same producer, before any of them is replicated."""
    bench = Bench()
    bench.replicates = False
    bench.commit_in_transaction(5)
    bench.end_transaction(1, commit=False)
    bench.commit_in_transaction(7)
    bench.replicate()
    assert bench.committed() == -1
    bench.end_transaction(1)
    bench.replicate()
    assert bench.committed() == 7


def test_a_marker_that_overtakes_a_write_counts_before_it() -> None:
    """The coordinator has ordered the append, and the marker is appended first."""
    bench = Bench()
    bench.commit_in_transaction(5)
    partitions = (CommittedPartition("t", 0, 7),)
    request = TxnOffsetCommit(GROUP, partitions, 1, 0, TransactionMembership("x"))
    bench.asked.append(99)
    now = bench.now_ms, bench.wall_ms
    (order,) = bench.coordinator.handle(CoordinatorRequestReceived(99, request), *now)
    assert isinstance(order, Append)
    bench.end_transaction(1, commit=False)
    bench._append(order)
    assert error_of(bench, 99) == 0 and stable(bench).error == UNSTABLE
    bench.end_transaction(1)
    assert bench.committed() == 7


def test_offsets_of_other_producers_and_a_plain_fetch_are_not_held_up() -> None:
    bench = Bench()
    bench.commit_in_transaction(5, 1)
    bench.commit_in_transaction(6, 2, topic="u")
    bench.end_transaction(2)
    assert bench.committed("u") == 6 and bench.committed() == -1
    (found,) = bench.call(OffsetFetch(GROUP, (TopicPartition("u", 0),), require_stable=True)).partitions
    assert (found.offset, found.error) == (6, 0)
    assert stable(bench).error == UNSTABLE


def test_the_commit_that_stands_last_in_the_log_counts() -> None:
    """As in Kafka, where each offset knows its record's place."""
    bench = Bench()
    bench.commit_in_transaction(5, 1)
    bench.commit(8)
    bench.end_transaction(1)
    assert bench.committed() == 8
    bench.commit_in_transaction(9, 1)
    bench.commit_in_transaction(10, 2)
    bench.end_transaction(2)
    bench.end_transaction(1)
    assert bench.committed() == 10
    bench.commit_in_transaction(11, 1)
    bench.commit_in_transaction(12, 2)
    bench.commit_in_transaction(13, 1)
    bench.end_transaction(2)
    bench.end_transaction(1)
    assert bench.committed() == 13


@pytest.mark.parametrize("how", ["fail over", "resign"])
def test_another_coordinator_knows_what_is_pending(how: str) -> None:
    bench = Bench()
    bench.commit(3)
    bench.commit_in_transaction(5)
    if how == "resign":
        bench.resign()
        bench.elect()
    else:
        bench.fail_over()
    assert bench.committed() == 3 and stable(bench).error == UNSTABLE
    bench.end_transaction(1)
    assert bench.committed() == 5
    bench.fail_over()
    assert bench.committed() == 5 and stable(bench).error == 0


def test_a_marker_that_came_while_the_log_was_read_counts_once() -> None:
    bench = Bench()
    bench.commit_in_transaction(5)
    bench.resign()
    bench.coordinator = bench._new()
    bench.leader_epoch += 1
    bench.handle(Elected(bench.leader_epoch, len(bench.log)))
    end = EndOfTransaction(1, True)
    bench.log.append(end)
    bench.handle(MarkerAppended(len(bench.log), end))
    bench.replicate()
    assert bench.coordinator.position == 0
    bench.replay()
    assert bench.committed() == 5
    bench.commit(6)
    assert bench.committed() == 6


# ------------------------------------------------------------------ who may


def test_a_member_commits_in_its_generation_only() -> None:
    bench = Bench()
    (member,) = bench.members(1)
    assert error_of(bench, bench.commit_in_transaction(5, 1, member)) == 0
    old = bench.commit_in_transaction(6, 1, member, generation=member.generation - 1)
    assert error_of(bench, old) == ErrorCode.illegal_generation.value
    stranger = bench.commit_in_transaction(6, 1, member, member_id="nobody")
    assert error_of(bench, stranger) == ErrorCode.unknown_member_id.value
    fenced = bench.commit_in_transaction(6, 1, member, member_id="nobody", group_instance_id="i")
    assert error_of(bench, fenced) == ErrorCode.unknown_member_id.value
    assert error_of(bench, bench.commit_in_transaction(6, 1)) == 0  # versions before 3 name no member
    bench.end_transaction(1)
    assert bench.committed() == 6


def test_a_replaced_static_member_is_fenced() -> None:
    bench = Bench()
    (member,) = bench.members(1, group_instance_id="i")
    bench.join(group_instance_id="i")
    token = bench.commit_in_transaction(5, 1, member, group_instance_id="i")
    assert error_of(bench, token) == ErrorCode.fenced_instance_id.value


def test_a_group_that_is_not_there_has_no_generation() -> None:
    bench = Bench()
    token = bench.commit_in_transaction(5, 1, generation=4, member_id="m")
    assert error_of(bench, token) == ErrorCode.illegal_generation.value
    assert error_of(bench, bench.commit_in_transaction(5)) == 0


def test_a_rebalance_under_way_refuses_no_transaction() -> None:
    """Unlike a plain commit, as in Kafka: what it commits was read under the generation that it names."""
    bench = Bench()
    (member,) = bench.members(1)
    newcomer = bench.join()
    joined = bench.answer(bench.join(member.member_id))
    bench.answer(newcomer)
    assert bench.call(DescribeGroup(GROUP)).state == "CompletingRebalance"
    assert error_of(bench, bench.commit(5, joined)) == ErrorCode.rebalance_in_progress.value
    assert error_of(bench, bench.commit_in_transaction(5, 1, joined)) == 0


def test_unknown_topics_are_refused_and_the_others_written() -> None:
    bench = Bench()
    bench.handle(TopicsKnown({"t": uuid.UUID(int=1)}))
    partitions = tuple(CommittedPartition(topic, 0, 5) for topic in ("gone", "t"))
    reply = bench.call(TxnOffsetCommit(GROUP, partitions, 1, 0, TransactionMembership("x")))
    unknown = ErrorCode.unknown_topic_or_partition.value
    assert [each.error for each in reply.partitions] == [unknown, 0]


def test_what_the_log_refuses_leaves_nothing() -> None:
    bench = Bench()
    bench.append_error = ErrorCode.invalid_txn_state.value
    assert error_of(bench, bench.commit_in_transaction(5)) == ErrorCode.invalid_txn_state.value
    assert stable(bench) == FetchedOffset("t", 0)


def test_the_batch_is_its_producers_and_goes_with_leave() -> None:
    bench = Bench()
    request = TxnOffsetCommit(GROUP, (CommittedPartition("t", 0, 5),), 9, 3, TransactionMembership("x"), leave=42)
    (order,) = bench.coordinator.handle(CoordinatorRequestReceived(1, request), 1_000, bench.wall_ms)
    assert isinstance(order, Append) and order.transactional is not None
    assert (order.transactional.producer_id, order.transactional.producer_epoch, order.transactional.leave) == (
        9,
        3,
        42,
    )


# ------------------------------------------------------------------ deletion and expiry


def test_deletions_leave_what_is_pending() -> None:
    bench = Bench()
    bench.commit(3)
    bench.commit_in_transaction(5)
    assert bench.call(OffsetDelete(GROUP, (T0,))).partitions[0].error == 0
    assert bench.committed() == -1 and stable(bench).error == UNSTABLE
    assert bench.call(DeleteGroup(GROUP)).error == 0
    assert stable(bench).error == UNSTABLE
    bench.end_transaction(1)
    assert bench.committed() == 5


def test_nothing_expires_that_is_pending() -> None:
    bench = Bench()
    bench.commit(3)
    bench.commit_in_transaction(5)
    bench.pass_time(30 * DAY_MS)
    assert bench.committed() == 3 and stable(bench).error == UNSTABLE
    bench.end_transaction(1, commit=False)
    bench.pass_time(DAY_MS)
    assert bench.committed() == -1 and bench.call(DescribeGroup(GROUP)).state == "Dead"


def test_a_group_that_has_only_pending_offsets_ends_with_their_abort() -> None:
    bench = Bench()
    bench.commit_in_transaction(5)
    bench.pass_time(30 * DAY_MS)
    assert bench.call(DescribeGroup(GROUP)).state == "Empty"
    bench.end_transaction(1, commit=False)
    bench.pass_time(DAY_MS)
    assert bench.call(DescribeGroup(GROUP)).state == "Dead"


def test_members_that_leave_take_nothing_pending_with_them() -> None:
    bench = Bench()
    (member,) = bench.members(1)
    bench.commit_in_transaction(5, 1, member)
    bench.call(LeaveGroup(GROUP, (LeavingMember(member.member_id),)))
    bench.end_transaction(1)
    assert bench.committed() == 5


# ------------------------------------------------------------------ the image against the definition


@pytest.mark.parametrize("seed", range(40))
def test_the_image_is_what_the_log_says(seed: int) -> None:
    """A partition's offset is that of the last record in the log that counts; a tombstone takes what counts then."""
    chance = random.Random(seed)
    image = OffsetsImage()
    log: list[GroupRecord | OfTransaction[GroupRecord] | EndOfTransaction] = []
    for number in range(120):
        producer, group = chance.randrange(3), chance.choice("gh")
        key = OffsetKey(group, "t", chance.randrange(2))
        value = OffsetValue(number, -1, "", 0)
        entry: GroupRecord | OfTransaction[GroupRecord] | EndOfTransaction = chance.choices(
            (
                GroupRecord(key, value),
                OfTransaction(producer, GroupRecord(key, value)),
                EndOfTransaction(producer, chance.random() < 0.6),
                GroupRecord(key, None),
            ),
            (2, 6, 3, 1),
        )[0]
        log.append(entry)
        match entry:
            case OfTransaction(producer_id, record):
                image.apply_in_transaction(producer_id, record)
            case EndOfTransaction(producer_id, is_committed):
                image.transaction_ended(producer_id, is_committed=is_committed)
            case _:
                image.apply(entry)
        image.check()
        for name in "gh":
            offsets, pending = read(log, name)
            found = {place.partition: each.offset for place, each in image.offsets_of(name).items()}
            assert found == offsets, (seed, number)
            assert {place.partition for place in image.pending_of(name)} == pending, (seed, number)


def read(
    log: list[GroupRecord | OfTransaction[GroupRecord] | EndOfTransaction], group: str
) -> tuple[dict[int, int], set[int]]:
    """By the definition: of each partition the last offset that counts, and where some is open."""
    counting: dict[int, tuple[int, int]] = {}  # partition → its record's place, offset
    newest: dict[int, int] = {}  # partition → the place of the last record that has counted, deleted or not
    open_: dict[int, dict[int, tuple[int, int]]] = {}

    def count(partition: int, at: int, offset: int) -> None:
        if newest.get(partition, -1) < at:
            newest[partition] = at
            counting[partition] = at, offset

    for at, entry in enumerate(log):
        if isinstance(entry, EndOfTransaction):
            for partition, (written, offset) in open_.pop(entry.producer_id, {}).items():
                if entry.is_committed:
                    count(partition, written, offset)
            continue
        record = entry.record if isinstance(entry, OfTransaction) else entry
        assert isinstance(record.key, OffsetKey)
        if record.key.group_id != group:
            continue
        if isinstance(entry, OfTransaction):
            assert isinstance(record.value, OffsetValue)
            open_.setdefault(entry.producer_id, {})[record.key.partition] = at, record.value.offset
        elif record.value is None:
            counting.pop(record.key.partition, None)
        else:
            assert isinstance(record.value, OffsetValue)
            count(record.key.partition, at, record.value.offset)
    return (
        {partition: offset for partition, (_, offset) in counting.items()},
        {partition for offsets in open_.values() for partition in offsets},
    )
