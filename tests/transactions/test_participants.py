"""Transactions of several producers: who joins, who wins, and what becomes of everybody when owners and coordinators die."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from raylog.transactions import participants, records
from raylog.transactions.records import (
    Participant,
    Participation,
    TransactionKey,
    TransactionRecord,
    TransactionState,
    TransactionValue,
)
from raylog.transactions.requests import (
    EndTransaction,
    InitTransactionalId,
    JoinTransaction,
    KeepTransaction,
    MarkersWritten,
    TransactionalIdInitialised,
    TransactionEnded,
    TransactionJoined,
    TransactionKept,
    WriteMarkers,
)
from raylog.transactions.transaction import LAST_EPOCH
from raylog.types import TopicPartition
from tests.support.shared_jobs import SharedEnds, SharedJob
from tests.support.transaction_ends import ID, TIMEOUT_MS

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
CONCURRENT = ErrorCode.concurrent_transactions
FENCED = ErrorCode.producer_fenced
INVALID_STATE = ErrorCode.invalid_txn_state
NO_SUCH_PRODUCER = ErrorCode.invalid_producer_id_mapping
NOT_LEADER = ErrorCode.not_leader_or_follower


def marked(question: WriteMarkers) -> dict[int, tuple[int, bool]]:
    """The epoch and the verdict of each participant's marker."""
    return {each.producer_id: (each.producer_epoch, each.part is Participation.WINS) for each in question.participants}


def test_winners_are_committed_and_all_others_aborted_by_one_decision() -> None:
    ends = SharedEnds()
    one, other, third = ends.joined(), ends.joined(), ends.joined()
    assert len({one[0], other[0], third[0], ends.owner[0]}) == 4
    assert ends.add(*one, T0, version=2) == ends.add(*other, T0, version=2) == ends.add(*other, U0, version=2) == 0
    assert ends.share(one[0], third[0], label="batch 7").error == 0
    asked = ends.write_markers()
    assert asked.partitions == (T0, U0) and asked.commits
    assert marked(asked) == {one[0]: (1, True), other[0]: (1, False), third[0]: (1, True)}
    assert ends.state is TransactionState.COMPLETE_COMMIT and ends.keep() == TransactionKept(0, "batch 7")
    assert {each.part for each in ends.value.participants} == {Participation.SPARE}


def test_an_abort_aborts_everybody_and_keeps_the_label_of_the_last_commit() -> None:
    ends = SharedEnds()
    one = ends.joined()
    ends.add(*one, T0, version=2)
    ends.share(one[0], label="batch 1")
    ends.write_markers()
    again = ends.joined()
    assert again == (one[0], 1), "the same id, in the epoch of its marker"
    ends.add(*again, T0, version=2)
    assert ends.share(commits=False).error == 0
    assert marked(ends.write_markers()) == {one[0]: (2, False)} and ends.keep().label == "batch 1"


def test_a_transaction_without_records_keeps_its_label() -> None:
    ends = SharedEnds()
    one = ends.joined()
    assert ends.share(one[0], label="batch 1").error == 0
    assert ends.state is TransactionState.COMPLETE_COMMIT and ends.keep().label == "batch 1"
    assert ends.share(label="batch 2").error == 0 and ends.keep().label == "batch 2", "and one without anybody"
    assert ends.end(*ends.owner, version=2).error == INVALID_STATE, "any other commit of nothing is refused"


def test_who_is_not_in_the_transaction_neither_wins_nor_writes() -> None:
    ends = SharedEnds()
    one = ends.joined()
    ends.add(*one, T0, version=2)
    assert ends.share(one[0], 4_711).error == INVALID_STATE and ends.state is TransactionState.ONGOING
    ends.share(one[0])
    assert ends.add(*one, T1, version=2) == FENCED, "its transaction is decided"
    ends.write_markers()
    assert ends.add(*one, T1, version=2) == ends.add(one[0], 1, T1, version=2) == FENCED, "spare"
    assert ends.add(4_711, 0, T1, version=2) == NO_SUCH_PRODUCER
    assert ends.share(one[0]).error == INVALID_STATE, "it has not joined this one"


def test_the_next_owner_aborts_what_was_under_way_and_participants_join_again() -> None:
    ends = SharedEnds()
    one, idle = ends.joined(), ends.joined()
    ends.add(*one, T0, version=2)
    stale = ends.owner
    assert ends.take_over() == CONCURRENT
    assert marked(ends.write_markers()) == {one[0]: (1, False), idle[0]: (1, False)}
    assert ends.take_over() == 0 and ends.owner > stale
    assert ends.reply(JoinTransaction(ID, *stale)) == TransactionJoined(FENCED)
    assert ends.reply(EndTransaction(ID, *stale, True, 2, True, (one[0],), "late")) == TransactionEnded(FENCED)
    assert ends.reply(KeepTransaction(ID, *stale)) == TransactionKept(FENCED)
    assert ends.add(*one, T0, version=2) == FENCED


def test_an_owner_that_dies_before_anything_was_written_leaves_no_epoch_behind() -> None:
    ends = SharedEnds()
    one = ends.joined()
    assert ends.take_over() == 0
    assert ends.add(*one, T0, version=2) == FENCED
    assert ends.joined() == (one[0], one[1] + 1)


def test_a_commit_that_was_decided_is_completed_for_the_next_owner_who_reads_its_label() -> None:
    ends = SharedEnds()
    one = ends.joined()
    ends.add(*one, T0, version=2)
    ends.is_replicating = False
    ends.ask(EndTransaction(ID, *ends.owner, True, 2, True, (one[0],), "batch 1"))
    ends.replicate()
    ends.is_replicating = True
    ends.failover()
    assert ends.take_over() == CONCURRENT
    asked = ends.write_markers()
    assert marked(asked) == {one[0]: (1, True)} and asked.coordinator_epoch == ends.epoch
    assert ends.take_over() == 0 and ends.keep().label == "batch 1"


def test_a_retried_end_has_the_same_answer() -> None:
    ends = SharedEnds()
    one = ends.joined()
    ends.add(*one, T0, version=2)
    asked = EndTransaction(ID, *ends.owner, True, 2, True, (one[0],), "batch 1")
    first = ends.reply(asked)
    assert ends.reply(asked) == TransactionEnded(CONCURRENT)
    ends.write_markers()
    assert ends.reply(asked) == first


def test_joining_waits_until_the_last_transaction_is_complete() -> None:
    ends = SharedEnds()
    one = ends.joined()
    ends.add(*one, T0, version=2)
    ends.share(one[0])
    early = ends.ask(JoinTransaction(ID, *ends.owner))
    assert early not in ends.replies
    ends.write_markers()
    assert ends.replies[early] == TransactionJoined(0, one[0], 1)
    ends.add(one[0], 1, T0, version=2)
    ends.share(one[0])
    late = ends.ask(JoinTransaction(ID, *ends.owner))
    ends.sleep(50)
    assert ends.replies[late] == TransactionJoined(CONCURRENT)


def test_an_owner_that_goes_on_waits_until_readers_see_how_the_last_transaction_ended() -> None:
    ends = SharedEnds()
    one = ends.joined()
    ends.add(*one, T0, version=2)
    ends.share(one[0])
    goes_on = InitTransactionalId(ID, TIMEOUT_MS, *ends.owner)
    early = ends.ask(goes_on)
    assert early not in ends.replies
    ends.write_markers()
    assert ends.replies[early] == TransactionalIdInitialised(0, ends.owner[0], ends.owner[1] + 1)
    ends.owner = (ends.owner[0], ends.owner[1] + 1)
    ends.add(*ends.joined(), T0, version=2)
    ends.share()
    late = ends.ask(InitTransactionalId(ID, TIMEOUT_MS, *ends.owner))
    ends.sleep(50)
    assert ends.replies[late] == TransactionalIdInitialised(CONCURRENT)
    assert ends.take_over() == CONCURRENT, "anybody else asks again"


def test_those_who_join_at_once_are_given_different_ids() -> None:
    ends = SharedEnds()
    ends.is_replicating = False
    tokens = [ends.ask(JoinTransaction(ID, *ends.owner)) for _ in range(4)]
    for _ in tokens:
        ends.replicate()
    found = [ends.replies[token] for token in tokens]
    assert len({each.producer_id for each in found if isinstance(each, TransactionJoined) and not each.error}) == 4


def test_a_partition_is_done_when_each_of_its_markers_is_written() -> None:
    ends = SharedEnds()
    one, other = ends.joined(), ends.joined()
    ends.add(*one, T0, version=2)
    ends.add(*other, U0, version=2)
    ends.share(one[0], other[0])
    errors = ((T0, 0), (T0, NOT_LEADER), (T0, 0), (U0, 0), (U0, ErrorCode.invalid_producer_epoch), (U0, 0))
    ends.answer(WriteMarkers, MarkersWritten(errors))
    assert ends.state is TransactionState.PREPARE_COMMIT
    ends.sleep(20)
    assert ends.write_markers().partitions == (T0,) and ends.state is TransactionState.COMPLETE_COMMIT


def test_an_owner_that_is_heard_of_keeps_its_transaction() -> None:
    ends = SharedEnds()
    one = ends.joined()
    ends.add(*one, T0, version=2)
    for _ in range(5):
        ends.sleep(TIMEOUT_MS - 1)
        assert ends.keep().error == 0
    ends.failover()
    ends.sleep(TIMEOUT_MS - 1)
    assert ends.state is TransactionState.ONGOING, "a new coordinator gives it the whole time"
    ends.sleep(1)
    assert ends.state is TransactionState.PREPARE_ABORT and ends.keep().error == FENCED
    assert marked(ends.write_markers()) == {one[0]: (1, False)}


def test_a_producer_alone_has_its_timeout_whatever_is_heard_of_it() -> None:
    ends = SharedEnds()
    ends.add(*ends.owner, T0, version=2)
    ends.sleep(TIMEOUT_MS - 1)
    ends.keep()
    ends.sleep(1)
    assert ends.state is TransactionState.PREPARE_ABORT


def test_epochs_that_are_used_up_give_way_to_another_id() -> None:
    used_up = Participant(7, LAST_EPOCH, Participation.JOINED)
    value = TransactionValue(1, 0, 1_000, TransactionState.ONGOING, frozenset((T0,)), participants=(used_up,))
    at_end = participants.decided(value, (7,))
    assert at_end == (Participant(7, LAST_EPOCH + 1, Participation.WINS),)
    assert participants.released(at_end, used=False, last_epoch=LAST_EPOCH) == ()


def test_no_more_than_a_thousand_join() -> None:
    ends = SharedEnds()
    several = tuple(Participant(50_000 + each, 0) for each in range(participants.PARTICIPANTS_MAX))
    ends.log.append(
        TransactionRecord(
            TransactionKey(ID), TransactionValue(*ends.owner, TIMEOUT_MS, TransactionState.EMPTY, participants=several)
        )
    )
    ends.failover()
    assert ends.join().error == ErrorCode.policy_violation


def test_participants_and_label_survive_their_bytes() -> None:
    value = TransactionValue(
        7, 3, 1_000, TransactionState.PREPARE_COMMIT, frozenset((T0,)), 5, 4, client_version=2,
        participants=(Participant(8, 2, Participation.WINS), Participant(9, 0, Participation.SPARE)), label="Straße 9",
    )  # fmt: skip
    record = TransactionRecord(TransactionKey(ID), value)
    assert records.decode(*records.encode(record)) == record


@pytest.mark.parametrize("seed", range(60))
def test_every_batch_is_committed_once_whoever_dies_between_any_two_steps(seed: int) -> None:
    SharedJob(seed).run()
