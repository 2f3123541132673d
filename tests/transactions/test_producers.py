"""Who may use a transactional id: epochs, fencing, timeouts, ids that are used up, ids that nobody uses any more."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from raylog.transactions.context import TransactionConfig
from raylog.transactions.records import TransactionKey, TransactionRecord, TransactionState, TransactionValue
from raylog.transactions.requests import (
    DescribedTransaction,
    DescribeTransaction,
    InitTransactionalId,
    ListedTransaction,
    ListTransactions,
    TransactionalIdInitialised,
    TransactionEnded,
    TransactionsListed,
)
from raylog.transactions.transaction import EPOCH_MAX, LAST_EPOCH
from raylog.types import TopicPartition
from tests.support.transaction_ends import ID, TIMEOUT_MS, TransactionEnds

CONCURRENT = ErrorCode.concurrent_transactions
FENCED = ErrorCode.producer_fenced
T0 = TopicPartition("t", 0)

versions = pytest.mark.parametrize("version", [0, 2], ids=["v1", "v2"])


def with_epoch(epoch: int, state: TransactionState = TransactionState.EMPTY) -> TransactionEnds:
    """A coordinator that finds a producer with id 5 in that epoch in its log."""
    ends = TransactionEnds()
    partitions = frozenset({T0} if state is TransactionState.ONGOING else ())
    value = TransactionValue(5, epoch, TIMEOUT_MS, state, partitions, ends.wall_ms, ends.wall_ms)
    ends.log.append(TransactionRecord(TransactionKey(ID), value))
    ends.failover()
    return ends


def test_each_producer_that_takes_the_id_raises_the_epoch() -> None:
    ends = TransactionEnds()
    first = ends.init()
    assert first == TransactionalIdInitialised(0, 7_000, 0)
    assert ends.init() == TransactionalIdInitialised(0, 7_000, 1)
    assert ends.add(7_000, 0) == FENCED and ends.add(7_000, 1) == 0


@versions
def test_a_second_producer_aborts_what_the_first_has_begun(version: int) -> None:
    ends = TransactionEnds()
    producer_id = ends.init().producer_id
    ends.add(producer_id, 0, version=version)
    assert ends.init().error == CONCURRENT, "until the markers are written"
    assert ends.state is TransactionState.PREPARE_ABORT
    asked = ends.write_markers()
    assert not asked.commits and asked.producer_epoch == 1, "a late Produce of the first is refused by epoch"
    assert ends.init() == TransactionalIdInitialised(0, producer_id, 2)
    for commits in (True, False):
        assert ends.end(producer_id, 0, commits=commits, version=version).error == FENCED
    assert ends.add(producer_id, 0, version=version) == FENCED


def test_a_producer_goes_on_after_an_error_and_its_retry_answers_the_same() -> None:
    ends = TransactionEnds()
    producer_id = ends.init().producer_id
    assert ends.init(producer_id, 0) == TransactionalIdInitialised(0, producer_id, 1)
    assert ends.init(producer_id, 0) == TransactionalIdInitialised(0, producer_id, 1), "a retry"
    assert ends.init(producer_id, 1) == TransactionalIdInitialised(0, producer_id, 2)
    assert ends.init() == TransactionalIdInitialised(0, producer_id, 3), "somebody else"
    assert ends.init(producer_id, 2).error == FENCED
    assert ends.init(producer_id + 1, 3).error == FENCED


def test_a_producer_that_has_not_heard_of_its_end_goes_on() -> None:
    """Version 2: its epoch was raised, and the answer was lost."""
    ends = TransactionEnds()
    producer_id = ends.init().producer_id
    ends.add(producer_id, 0, version=2)
    ends.end(producer_id, 0, version=2)
    ends.write_markers()
    assert ends.init(producer_id, 0) == TransactionalIdInitialised(0, producer_id, 1)


@pytest.mark.parametrize("known", [False, True], ids=["another producer", "the same one"])
def test_a_producer_whose_epochs_are_used_up_gets_another_id(known: bool) -> None:
    ends = with_epoch(LAST_EPOCH)
    assert ends.init(*((5, LAST_EPOCH) if known else ())) == TransactionalIdInitialised(0, 7_000, 0)
    assert ends.value.previous_producer_id == 5
    again = ends.init(5, LAST_EPOCH)
    assert again == (TransactionalIdInitialised(0, 7_000, 0) if known else TransactionalIdInitialised(FENCED))


def test_the_epochs_before_the_last_one_are_used() -> None:
    assert with_epoch(LAST_EPOCH - 1).init() == TransactionalIdInitialised(0, 5, LAST_EPOCH)


def test_an_end_in_the_last_epoch_gives_another_id() -> None:
    ends = with_epoch(LAST_EPOCH, TransactionState.ONGOING)
    ended = ends.end(5, LAST_EPOCH, version=2)
    assert ended == TransactionEnded(0, 7_000, 0)
    assert ends.end(5, LAST_EPOCH, version=2).error == CONCURRENT
    asked = ends.write_markers()
    assert (asked.producer_id, asked.producer_epoch) == (5, EPOCH_MAX)
    assert ends.end(5, LAST_EPOCH, version=2) == ended, "a retry"
    ends.failover()
    assert ends.end(5, LAST_EPOCH, version=2) == ended, "a retry at another coordinator"
    assert ends.add(7_000, 0, version=2) == 0
    assert ends.end(7_000, 0, version=2) == TransactionEnded(0, 7_000, 1)


def test_a_producer_fenced_in_its_last_epoch_never_goes_beyond() -> None:
    ends = with_epoch(LAST_EPOCH, TransactionState.ONGOING)
    assert ends.init().error == CONCURRENT
    assert ends.write_markers().producer_epoch == EPOCH_MAX
    for epoch in (LAST_EPOCH, EPOCH_MAX):
        assert ends.end(5, epoch, commits=False, version=2).error == FENCED
        assert ends.add(5, epoch, version=2) == FENCED
    assert ends.init() == TransactionalIdInitialised(0, 7_000, 0)


@versions
def test_a_transaction_is_aborted_when_its_timeout_is_over(version: int) -> None:
    ends = TransactionEnds()
    producer_id = ends.init(timeout_ms=5_000).producer_id
    ends.sleep(60_000)
    ends.add(producer_id, 0, version=version)
    ends.sleep(3_000)
    ends.add(producer_id, 0, TopicPartition("u", 0), version=version)
    ends.sleep(1_999)
    assert ends.state is TransactionState.ONGOING
    ends.sleep(1)
    assert ends.state is TransactionState.PREPARE_ABORT
    asked = ends.write_markers()
    assert not asked.commits and asked.producer_epoch == 1 and len(asked.partitions) == 2
    late = ends.end(producer_id, 0, version=version)
    assert late.error == (ErrorCode.invalid_txn_state if version else FENCED)
    assert ends.add(producer_id, 0, version=version) == FENCED
    assert ends.init() == TransactionalIdInitialised(0, producer_id, 2)


def test_a_timeout_is_counted_from_the_transactions_start_at_whichever_coordinator() -> None:
    ends = TransactionEnds()
    producer_id = ends.init(timeout_ms=5_000).producer_id
    ends.add(producer_id, 0)
    ends.sleep(4_000)
    ends.failover()
    ends.sleep(999)
    assert ends.state is TransactionState.ONGOING
    ends.sleep(1)
    assert ends.state is TransactionState.PREPARE_ABORT


def test_a_transaction_that_ended_in_time_is_left_alone() -> None:
    ends = TransactionEnds()
    producer_id = ends.init(timeout_ms=5_000).producer_id
    ends.add(producer_id, 0)
    ends.end(producer_id, 0)
    ends.write_markers()
    ends.sleep(4_000)
    ends.add(producer_id, 0)
    ends.sleep(4_000)
    assert ends.state is TransactionState.ONGOING


def test_a_timeout_whose_abort_cannot_be_stored_is_tried_again() -> None:
    ends = TransactionEnds()
    ends.add(ends.init(timeout_ms=5_000).producer_id, 0)
    ends.append_error = ErrorCode.not_enough_replicas
    ends.sleep(10_000)
    assert ends.state is TransactionState.ONGOING
    ends.append_error = 0
    ends.sleep(2_000)
    assert ends.state is TransactionState.PREPARE_ABORT


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_a_timeout_out_of_bounds_is_refused(timeout_ms: int) -> None:
    ends = TransactionEnds()
    assert ends.init(timeout_ms=timeout_ms).error == ErrorCode.invalid_transaction_timeout
    ends.kind.configure({"transaction.max.timeout.ms": "1000"})
    assert ends.init(timeout_ms=1_001).error == ErrorCode.invalid_transaction_timeout
    assert ends.init(timeout_ms=1_000).error == 0


def test_an_empty_id_or_half_a_producer_is_refused() -> None:
    ends = TransactionEnds()
    assert ends.reply(InitTransactionalId("", 1_000)) == TransactionalIdInitialised(ErrorCode.invalid_request)
    assert ends.init(7, -1).error == ErrorCode.invalid_request == ends.init(-1, 0).error


def test_a_request_waits_for_producer_ids() -> None:
    ends = TransactionEnds(gives_ids=False)
    first = ends.ask(InitTransactionalId(ID, TIMEOUT_MS))
    second = ends.ask(InitTransactionalId("another", TIMEOUT_MS))
    assert not ends.replies and len(ends.questions) == 1
    ends.give_ids()
    assert ends.replies[first] == TransactionalIdInitialised(0, 7_000, 0)
    assert ends.replies[second] == TransactionalIdInitialised(0, 7_001, 0)


def test_without_producer_ids_the_client_asks_again() -> None:
    ends = TransactionEnds(gives_ids=False)
    token = ends.ask(InitTransactionalId(ID, TIMEOUT_MS))
    ends.give_ids(ErrorCode.network_exception)
    assert ends.replies[token] == TransactionalIdInitialised(ErrorCode.coordinator_not_available)
    token = ends.ask(InitTransactionalId(ID, TIMEOUT_MS))
    ends.failover()
    assert ends.replies[token] == TransactionalIdInitialised(ErrorCode.not_coordinator)


def test_ids_that_nobody_uses_are_forgotten() -> None:
    ends = TransactionEnds(TransactionConfig(transactional_id_expiration_ms=10_000_000))
    ends.init()
    busy = ends.reply(InitTransactionalId("busy", 900_000))
    ends.sleep(7_200_000)
    assert ends.reply(InitTransactionalId("busy", 900_000, busy.producer_id, 0)).error == 0  # type: ignore[union-attr]
    ends.sleep(3_600_000)
    assert ends.reply(DescribeTransaction(ID)).error == ErrorCode.transactional_id_not_found  # type: ignore[union-attr]
    assert ends.log[-1] == TransactionRecord(TransactionKey(ID), None)
    assert ends.reply(DescribeTransaction("busy")).error == 0  # type: ignore[union-attr]
    assert ends.init() == TransactionalIdInitialised(0, 7_002, 0), "as if it were new"


def test_transactions_are_described_and_listed() -> None:
    ends = TransactionEnds()
    producer_id = ends.init().producer_id
    ends.add(producer_id, 0)
    started = ends.wall_ms
    ends.reply(InitTransactionalId("idle", TIMEOUT_MS))
    assert ends.reply(DescribeTransaction(ID)) == DescribedTransaction(
        0, ID, "Ongoing", TIMEOUT_MS, started, producer_id, 0, (T0,)
    )
    ends.sleep(1_000)
    idle, mine = ListedTransaction("idle", 7_001, "Empty"), ListedTransaction(ID, producer_id, "Ongoing")
    assert ends.reply(ListTransactions()) == TransactionsListed(0, (idle, mine))
    assert ends.reply(ListTransactions(states=("Ongoing", "Odd"))) == TransactionsListed(0, (mine,), ("Odd",))
    assert ends.reply(ListTransactions(states=("Odd",))) == TransactionsListed(0, (), ("Odd",))
    assert ends.reply(ListTransactions(producer_ids=(7_001,))) == TransactionsListed(0, (idle,))
    assert ends.reply(ListTransactions(duration_ms=999)) == TransactionsListed(0, (mine,))
    assert ends.reply(ListTransactions(duration_ms=1_000)) == TransactionsListed(0)
    assert ends.reply(ListTransactions(id_pattern="id.*")) == TransactionsListed(0, (idle,))
    assert ends.reply(ListTransactions(id_pattern="(")).error == ErrorCode.invalid_regular_expression  # type: ignore[union-attr]


def test_a_retry_at_another_coordinator_knows_no_last_epoch() -> None:
    """Kafka stores none either: the producer is fenced, and makes a new one."""
    ends = TransactionEnds()
    producer_id = ends.init().producer_id
    ends.init(producer_id, 0)
    ends.failover()
    assert ends.init(producer_id, 0).error == FENCED
    assert ends.value.producer_epoch == 1
