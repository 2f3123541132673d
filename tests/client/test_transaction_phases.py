"""What a transactional producer may do when, and what an error makes of its transaction: no server."""

from __future__ import annotations

import random

import pytest
from kio.schema.errors import ErrorCode

from raylog.client.producer.partition_queue import ProducerIdentity
from raylog.client.transactions.phases import (
    UNDER_WAY,
    ErrorKind,
    ProducerTransactions,
    TransactionPhase,
    kind_of,
)
from raylog.errors import (
    ClientTimeoutError,
    RaylogError,
    TransactionAbortedError,
    TransactionStateError,
    error_for,
    kafka_error,
)

FENCED = error_for(ErrorCode.producer_fenced, "PRODUCER_FENCED")
REFUSED = error_for(ErrorCode.message_too_large, "too large")
LATE = ClientTimeoutError("not within delivery.timeout.ms")


def ready() -> ProducerTransactions:
    state = ProducerTransactions("orders", 60_000)
    state.initialised(ProducerIdentity(7, 3))
    return state


def opened() -> ProducerTransactions:
    state = ready()
    state.begin()
    return state


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (ErrorCode.concurrent_transactions, ErrorKind.RETRIABLE),
        (ErrorCode.coordinator_load_in_progress, ErrorKind.RETRIABLE),
        (ErrorCode.not_coordinator, ErrorKind.RETRIABLE),
        (ErrorCode.transaction_abortable, ErrorKind.ABORTABLE),
        (ErrorCode.invalid_txn_state, ErrorKind.ABORTABLE),
        (ErrorCode.invalid_producer_epoch, ErrorKind.ABORTABLE),
        (ErrorCode.invalid_producer_id_mapping, ErrorKind.ABORTABLE),
        (ErrorCode.illegal_generation, ErrorKind.ABORTABLE),
        (ErrorCode.message_too_large, ErrorKind.ABORTABLE),
        (ErrorCode.producer_fenced, ErrorKind.FATAL),
        (ErrorCode.transactional_id_authorization_failed, ErrorKind.FATAL),
    ],
)
def test_errors_are_of_kafkas_three_kinds(code: ErrorCode, kind: ErrorKind) -> None:
    assert kind_of(error_for(code)) is kind


def test_outside_of_a_transaction_nothing_is_taken_and_the_error_shows_how() -> None:
    refusal = ready().refusal()
    assert isinstance(refusal, TransactionStateError) and "with producer.transaction() as txn" in str(refusal)
    assert opened().refusal() is None


@pytest.mark.parametrize("phase", sorted(UNDER_WAY, key=lambda phase: phase.value))
def test_a_producer_has_one_transaction_at_a_time(phase: TransactionPhase) -> None:
    state = opened()
    if phase is TransactionPhase.FAILED:
        state.failed(REFUSED)
    elif phase is TransactionPhase.COMMITTING:
        state.begin_commit(1)
    elif phase is TransactionPhase.ABORTING:
        state.begin_abort()
    with pytest.raises(TransactionStateError, match="one at a time"):
        state.check_begin()


def test_the_next_transaction_goes_on_under_the_epoch_that_the_end_brought() -> None:
    state = opened()
    state.wrote()
    state.begin_commit(1)
    state.ended(ProducerIdentity(7, 4))
    state.check()
    assert state.identity == ProducerIdentity(7, 4) and state.begin() == 2
    assert not state.is_known_to_coordinator


def test_what_has_ended_takes_nothing_though_the_next_one_is_open() -> None:
    state = opened()
    state.begin_abort()
    state.ended(None)
    with pytest.raises(TransactionStateError, match="has ended"):
        state.check_current(1)
    state.begin()
    with pytest.raises(TransactionStateError, match="has ended"):
        state.check_current(1)
    state.check_current(2)


def test_a_record_that_fails_leaves_nothing_but_an_abort() -> None:
    state = opened()
    state.failed(REFUSED)
    refusal = state.refusal()
    assert isinstance(refusal, TransactionAbortedError) and refusal.__cause__ is REFUSED and refusal.retriable
    assert state.drops_records
    state.failed(LATE)  # a second one changes nothing
    state.begin_commit(1)
    assert state.phase is TransactionPhase.FAILED and state.error is REFUSED
    state.begin_abort()
    state.ended(None)
    state.begin()
    assert state.refusal() is None


def test_a_record_that_fails_while_the_commit_waits_for_it_ends_the_commit() -> None:
    state = opened()
    state.begin_commit(1)
    state.failed(LATE)
    assert state.phase is TransactionPhase.FAILED


def test_a_fenced_producer_says_the_same_of_every_use() -> None:
    state = opened()
    state.failed(FENCED)
    state.begin_abort()
    assert state.phase is TransactionPhase.FATAL
    for use in (state.check_begin, lambda: state.check_current(1), lambda: state.begin_commit(1)):
        with pytest.raises(kafka_error(ErrorCode.producer_fenced), match="PRODUCER_FENCED"):
            use()
    state.lost()
    assert state.phase is TransactionPhase.FATAL


def test_it_says_which_producer_was_fenced_and_by_whom() -> None:
    told = str(ready().fenced_error(ErrorCode.producer_fenced, ", which has producer id 7, epoch 5 now"))
    assert "'orders'" in told and "producer id 7, epoch 3" in told and "epoch 5 now" in told


def test_after_an_end_that_nobody_confirmed_the_id_is_initialised_again() -> None:
    state = opened()
    state.wrote()
    state.begin_commit(1)
    state.lost()
    state.check()
    assert state.phase is TransactionPhase.UNINITIALISED and state.identity == ProducerIdentity(7, 3)
    state.initialised(ProducerIdentity(7, 4))
    assert state.begin() == 2


@pytest.mark.parametrize("seed", range(20))
def test_the_invariants_hold_in_any_order_of_calls(seed: int) -> None:
    chance, state = random.Random(seed), ready()
    for _ in range(200):
        number = chance.choice((state.number, state.number, state.number - 1))
        was, ended = state.phase, (TransactionPhase.COMMITTING, TransactionPhase.ABORTING)
        try:
            match chance.randrange(7):
                case 0:
                    state.check_begin()
                    if was is TransactionPhase.UNINITIALISED:
                        state.initialised(ProducerIdentity(7, chance.randrange(9)))
                    state.begin()
                case 1:
                    state.begin_commit(number)
                case 2 if was in UNDER_WAY:
                    state.begin_abort()
                case 3 if was in ended:
                    state.ended(chance.choice((None, ProducerIdentity(7, 9))))
                case 4:
                    state.failed(FENCED if chance.random() < 0.01 else chance.choice((REFUSED, LATE)))
                case 5 if was is TransactionPhase.OPEN:
                    state.wrote()
                case 6 if was in ended:
                    state.lost()
        except RaylogError:
            assert state.phase is was
        state.check()
        if was is TransactionPhase.FATAL:
            assert state.phase is was
