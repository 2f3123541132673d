"""Faults to be patched into core rules of the transactions' coordinator, by name; hunted where it runs in a cluster
(``test_transaction_seeds``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from raylog.transactions import machine, transaction
from raylog.transactions.ending import Endings
from raylog.transactions.machine import TransactionMachine
from raylog.transactions.records import TransactionValue
from raylog.transactions.requests import EndTransaction


def complete_a_transaction_without_its_markers(patch: pytest.MonkeyPatch) -> None:
    go_on = Endings._go_on

    def hasty(self: Endings, transactional_id: str) -> None:
        if transactional_id in self._endings:
            self._endings[transactional_id].missing.clear()
        go_on(self, transactional_id)

    patch.setattr(Endings, "_go_on", hasty)


def answer_an_end_before_it_is_stored(patch: pytest.MonkeyPatch) -> None:
    decide_on = TransactionMachine.decide_on

    def hasty(self: TransactionMachine, token: int, request: Any) -> None:
        if isinstance(request, EndTransaction) and (decided := self.decide(token, request)) is not None:
            self.context.reply(token, decided.reply(0))
            self.context.write(decided.records, settled=decided.settled)
            return
        decide_on(self, token, request)

    patch.setattr(TransactionMachine, "decide_on", hasty)


def give_a_new_producer_the_epoch_of_the_last(patch: pytest.MonkeyPatch) -> None:
    next_producer = transaction.next_producer

    def same(value: TransactionValue, epoch: int, timeout_ms: int, wall_ms: int) -> TransactionValue:
        return next_producer(value, value.producer_epoch, timeout_ms, wall_ms)

    patch.setattr(transaction, "next_producer", same)


def let_a_producer_of_any_epoch_write(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(machine, "_stranger", lambda value, producer_id, producer_epoch: 0)


def leave_what_was_prepared_before_a_failover(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Endings, "began", lambda self: None)
    patch.setattr(Endings, "check", lambda self, *, leads: None)


HOSTED_MUTATIONS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    mutation.__name__: mutation
    for mutation in (
        complete_a_transaction_without_its_markers,
        answer_an_end_before_it_is_stored,
        give_a_new_producer_the_epoch_of_the_last,
        let_a_producer_of_any_epoch_write,
        leave_what_was_prepared_before_a_failover,
    )
}
