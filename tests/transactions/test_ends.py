"""A transaction from its first partition to its last marker, in both versions of the protocol, and what answers meanwhile."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest
from kio.schema.errors import ErrorCode

from raylog.coordination.events import AskOthers, HighWatermarkRose, SendCoordinatorReply
from raylog.transactions.records import TransactionState
from raylog.transactions.requests import (
    AddPartitions,
    EndTransaction,
    MarkersWritten,
    PartitionsAdded,
    TransactionEnded,
    VerifyPartitions,
    WriteMarkers,
)
from raylog.types import TopicPartition
from tests.support.transaction_ends import ID, TransactionEnds

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
CONCURRENT = ErrorCode.concurrent_transactions
FENCED = ErrorCode.producer_fenced
INVALID_STATE = ErrorCode.invalid_txn_state
NO_SUCH_PRODUCER = ErrorCode.invalid_producer_id_mapping
NOT_COORDINATOR = ErrorCode.not_coordinator
NOT_LEADER = ErrorCode.not_leader_or_follower

versions = pytest.mark.parametrize("version", [0, 2], ids=["v1", "v2"])
ways = pytest.mark.parametrize("commits", [True, False], ids=["commit", "abort"])


def begun(version: int, *partitions: TopicPartition) -> tuple[TransactionEnds, int]:
    """A coordinator with a transaction under way, and the producer's id; its epoch is 0."""
    ends = TransactionEnds()
    producer_id = ends.init().producer_id
    assert ends.add(producer_id, 0, *(partitions or (T0, U0)), version=version) == 0
    return ends, producer_id


@versions
@ways
def test_a_transaction_ends_with_markers_at_every_partition(version: int, commits: bool) -> None:
    ends, producer_id = begun(version, T0, U0, T1)
    reply = ends.end(producer_id, 0, commits=commits, version=version)
    raised = 1 if version else 0
    assert reply == TransactionEnded(0, producer_id, raised)
    assert ends.state is (TransactionState.PREPARE_COMMIT if commits else TransactionState.PREPARE_ABORT)
    asked = ends.write_markers()
    assert asked == WriteMarkers(producer_id, raised, commits, ends.epoch, version, (T0, T1, U0))
    assert ends.state is (TransactionState.COMPLETE_COMMIT if commits else TransactionState.COMPLETE_ABORT)
    assert ends.value.partitions == frozenset() and not ends.questions
    assert ends.add(producer_id, raised, version=version) == 0 and ends.state is TransactionState.ONGOING


@versions
def test_an_end_after_partitions_without_a_produce_succeeds(version: int) -> None:
    """Leaders that have never heard of the producer write its marker, too."""
    ends, producer_id = begun(version)
    assert ends.end(producer_id, 0, version=version).error == 0
    ends.write_markers()
    assert ends.state is TransactionState.COMPLETE_COMMIT


@versions
def test_the_end_is_answered_when_it_is_replicated(version: int) -> None:
    ends, producer_id = begun(version)
    ends.is_replicating = False
    token = ends.ask(EndTransaction(ID, producer_id, 0, True, version))
    assert token not in ends.replies and not ends.questions
    ends.replicate()
    assert ends.replies[token] == TransactionEnded(0, producer_id, 1 if version else 0) and ends.markers()


@versions
def test_the_end_is_answered_before_anything_is_done_for_its_markers(version: int) -> None:
    ends, producer_id = begun(version)
    ends.is_replicating = False
    ends.ask(EndTransaction(ID, producer_id, 0, True, version))
    orders = ends.coordinator.handle(HighWatermarkRose(len(ends.log)), ends.now_ms, ends.wall_ms)
    assert [type(order) for order in orders] == [SendCoordinatorReply, AskOthers]


@versions
def test_an_end_while_the_last_one_completes_is_concurrent(version: int) -> None:
    ends, producer_id = begun(version)
    ends.is_replicating = False
    ends.ask(EndTransaction(ID, producer_id, 0, True, version))
    assert ends.end(producer_id, 0, version=version).error == CONCURRENT
    ends.is_replicating = True
    ends.replicate()
    assert ends.end(producer_id, 0, version=version).error == CONCURRENT
    assert ends.end(producer_id, 0, commits=False, version=version).error == INVALID_STATE
    assert ends.init().error == CONCURRENT


@versions
def test_the_next_transaction_waits_a_moment_for_the_last_one(version: int) -> None:
    ends, producer_id = begun(version)
    ends.end(producer_id, 0, version=version)
    epoch = 1 if version else 0
    begins = AddPartitions(ID, producer_id, epoch, (T1, U0), version)
    first, second = ends.ask(begins), ends.ask(replace(begins, partitions=(T0,)))
    assert first not in ends.replies and ends.state is TransactionState.PREPARE_COMMIT
    ends.write_markers()
    assert ends.state is TransactionState.ONGOING and ends.value.partitions == {T0, T1, U0}
    assert ends.replies[first] == PartitionsAdded(((T1, 0), (U0, 0)))
    assert ends.replies[second] == PartitionsAdded(((T0, 0),)), "behind the first"
    ends.end(producer_id, epoch, version=version)
    late = ends.ask(replace(begins, producer_epoch=epoch + 1 if version else epoch))
    ends.sleep(49)
    assert late not in ends.replies
    ends.sleep(1)
    assert ends.replies[late] == PartitionsAdded(((T1, CONCURRENT), (U0, CONCURRENT)))
    lost = ends.ask(replace(begins, producer_epoch=epoch + 1 if version else epoch))
    ends.failover()
    assert ends.replies[lost] == PartitionsAdded(((T1, NOT_COORDINATOR), (U0, NOT_COORDINATOR)))


def test_partitions_that_several_leaders_add_at_once_are_all_added() -> None:
    ends = TransactionEnds()
    producer_id = ends.init().producer_id
    ends.is_replicating = False
    tokens = [ends.ask(AddPartitions(ID, producer_id, 0, (each,), 2)) for each in (T0, T1, U0)]
    ends.replicate()
    ends.is_replicating = True
    ends.replicate()
    assert [ends.replies[each] for each in tokens] == [PartitionsAdded(((each, 0),)) for each in (T0, T1, U0)]
    assert ends.value.partitions == {T0, T1, U0}


def test_whoever_waits_while_the_transaction_is_decided_is_fenced() -> None:
    ends, producer_id = begun(2)
    ends.is_replicating = False
    ends.ask(EndTransaction(ID, producer_id, 0, True, 2))
    late = ends.ask(AddPartitions(ID, producer_id, 0, (T1,), 2))
    assert late not in ends.replies
    ends.replicate()
    assert ends.replies[late] == PartitionsAdded(((T1, FENCED),))


def test_a_late_produce_of_the_transaction_that_ends_does_not_wait() -> None:
    ends, producer_id = begun(2)
    ends.end(producer_id, 0, version=2)
    assert ends.add(producer_id, 0, T1, version=2) == FENCED


@versions
@ways
def test_a_repeated_end_answers_the_same(version: int, commits: bool) -> None:
    ends, producer_id = begun(version)
    first = ends.end(producer_id, 0, commits=commits, version=version)
    ends.write_markers()
    repeated = ends.end(producer_id, 0, commits=commits, version=version)
    assert repeated.error == 0 and not ends.questions
    if version:
        assert repeated == first
    assert ends.end(producer_id, 0, commits=not commits, version=version).error == INVALID_STATE


def test_an_end_of_version_2_that_is_late_is_fenced() -> None:
    """The next transaction is under way: its epoch is another one."""
    ends, producer_id = begun(2)
    ends.end(producer_id, 0, version=2)
    ends.write_markers()
    assert ends.add(producer_id, 1, version=2) == 0
    assert ends.end(producer_id, 0, version=2).error == FENCED
    assert ends.add(producer_id, 0, version=2) == FENCED
    assert ends.state is TransactionState.ONGOING


@versions
def test_an_end_of_nothing(version: int) -> None:
    ends = TransactionEnds()
    producer_id = ends.init().producer_id
    assert ends.end(producer_id, 0, version=version).error == INVALID_STATE
    aborted = ends.end(producer_id, 0, commits=False, version=version)
    if version:  # makes sure that nothing of this epoch can follow
        assert aborted == TransactionEnded(0, producer_id, 1) and ends.state is TransactionState.COMPLETE_ABORT
        assert not ends.questions
    else:  # an abort during the first Produce, whose partition never came to be added
        assert aborted.error == 0 and ends.state is TransactionState.EMPTY
        ends.add(producer_id, 0)
        ends.end(producer_id, 0)
        ends.write_markers()
        assert ends.end(producer_id, 0, commits=False).error == INVALID_STATE, "it could mean what was committed"


@versions
def test_strangers_end_nothing(version: int) -> None:
    ends, producer_id = begun(version)
    assert ends.end(producer_id + 1, 0, version=version).error == NO_SUCH_PRODUCER
    assert ends.end(producer_id, 1, version=version).error == FENCED
    assert ends.add(producer_id + 1, 0, T1) == NO_SUCH_PRODUCER
    assert ends.add(producer_id, 1, T1) == FENCED
    assert ends.state is TransactionState.ONGOING and ends.value.partitions == {T0, U0}
    unknown = ends.reply(EndTransaction("another", producer_id, 0, True, version))
    assert unknown == TransactionEnded(NO_SUCH_PRODUCER)


def test_markers_are_asked_for_until_each_leader_has_answered() -> None:
    ends, producer_id = begun(0)
    ends.end(producer_id, 0)
    for _ in range(8):
        ends.write_markers(NOT_LEADER)
        assert not ends.questions and ends.state is TransactionState.PREPARE_COMMIT
        ends.sleep(1_000)
    ends.answer(WriteMarkers, MarkersWritten(((T0, 0),)))  # nothing was heard of u-0
    ends.sleep(1_000)
    assert ends.write_markers().partitions == (U0,)
    assert ends.state is TransactionState.COMPLETE_COMMIT


def test_partitions_of_deleted_topics_need_no_marker() -> None:
    ends, producer_id = begun(0)
    ends.end(producer_id, 0)
    ends.write_markers(ErrorCode.unknown_topic_or_partition)
    del ends.topics["t"], ends.topics["u"]
    ends.sleep(1_000)
    assert ends.state is TransactionState.COMPLETE_COMMIT and not ends.questions


def test_a_topic_that_the_coordinator_has_not_heard_of_is_not_added() -> None:
    """Or it would take it for a deleted one when the transaction ends, and send it no marker."""
    ends, producer_id = begun(2)
    new = TopicPartition("new", 0)
    late = AddPartitions(ID, producer_id, 0, (T0, new), version=2)
    added = ends.reply(late)
    assert isinstance(added, PartitionsAdded) and set(added.errors) == {(T0, 3), (new, 3)}
    ends.topics["new"] = uuid.uuid4()
    assert ends.reply(late) == PartitionsAdded(((T0, 0), (new, 0)))


def test_a_partition_that_has_seen_a_later_epoch_needs_no_marker() -> None:
    ends, producer_id = begun(0)
    ends.end(producer_id, 0)
    ends.write_markers(ErrorCode.invalid_producer_epoch)
    assert ends.state is TransactionState.COMPLETE_COMMIT


@ways
def test_a_new_leader_finishes_what_is_prepared(commits: bool) -> None:
    ends, producer_id = begun(2)
    ends.end(producer_id, 0, commits=commits, version=2)
    ends.failover()
    asked = ends.write_markers()
    assert asked == WriteMarkers(producer_id, 1, commits, 2, 2, (T0, U0)), "in the new leader's epoch"
    assert ends.state is (TransactionState.COMPLETE_COMMIT if commits else TransactionState.COMPLETE_ABORT)
    assert ends.end(producer_id, 0, commits=commits, version=2) == TransactionEnded(0, producer_id, 1)


def test_a_transaction_under_way_survives_its_coordinator() -> None:
    ends, producer_id = begun(0)
    ends.failover()
    assert ends.state is TransactionState.ONGOING
    assert ends.end(producer_id, 0).error == 0 and ends.write_markers().partitions == (T0, U0)


def test_a_decision_that_was_not_stored_changes_nothing() -> None:
    ends, producer_id = begun(2)
    ends.append_error = ErrorCode.not_enough_replicas
    assert ends.end(producer_id, 0, version=2).error == ErrorCode.coordinator_not_available
    ends.append_error = 0
    assert ends.state is TransactionState.ONGOING and not ends.questions
    assert ends.end(producer_id, 0, commits=False, version=2) == TransactionEnded(0, producer_id, 1)


def test_complete_is_written_until_it_is_stored() -> None:
    ends, producer_id = begun(0)
    ends.end(producer_id, 0)
    ends.append_error = ErrorCode.not_enough_replicas
    ends.write_markers()
    ends.sleep(5_000)
    assert ends.state is TransactionState.PREPARE_COMMIT
    ends.append_error = 0
    ends.sleep(5_000)
    assert ends.state is TransactionState.COMPLETE_COMMIT and not ends.questions


def test_a_partition_is_verified_by_the_transaction_under_way() -> None:
    ends, producer_id = begun(0)

    def verified(producer_id: int, epoch: int) -> dict[TopicPartition, int]:
        reply = ends.reply(VerifyPartitions(ID, producer_id, epoch, (T0, T1)))
        return dict(reply.errors)  # type: ignore[union-attr]

    assert verified(producer_id, 0) == {T0: 0, T1: ErrorCode.transaction_abortable}
    assert verified(producer_id, 1) == {T0: FENCED, T1: FENCED}
    assert verified(producer_id + 1, 0) == {T0: NO_SUCH_PRODUCER, T1: NO_SUCH_PRODUCER}
    ends.end(producer_id, 0)
    assert verified(producer_id, 0) == {T0: CONCURRENT, T1: CONCURRENT}
    ends.write_markers()
    assert verified(producer_id, 0) == {T0: ErrorCode.transaction_abortable, T1: ErrorCode.transaction_abortable}


def test_partitions_that_are_in_the_transaction_are_not_written_again() -> None:
    ends, producer_id = begun(0)
    written = len(ends.log)
    assert ends.add(producer_id, 0, U0) == 0 and len(ends.log) == written
    assert ends.add(producer_id, 0, U0, T1) == 0 and ends.value.partitions == {T0, T1, U0}
