"""Faults to be patched into core rules of the transactions' coordinator, and into what a group's coordinator makes of offsets in
transactions, by name; hunted where both run in a cluster (``hosted_transactions``)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from raylog.groups.context import GroupContext
from raylog.groups.image import OffsetsImage, PendingOffset
from raylog.groups.machine import GroupMachine
from raylog.groups.offsets import Offsets
from raylog.groups.requests import TxnOffsetCommit
from raylog.log.producers import ProducerStates
from raylog.offsets_topic import OFFSETS_TOPIC
from raylog.server.group_coordinator import GroupCoordinators
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


def show_offsets_that_are_not_stable(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(GroupContext, "unstable", lambda self, group_id: set())


def count_offsets_before_their_transaction_ends(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(OffsetsImage, "apply_in_transaction", lambda self, producer_id, record: self.apply(record))


def count_offsets_of_aborted_transactions(patch: pytest.MonkeyPatch) -> None:
    transaction_ended = OffsetsImage.transaction_ended

    def kind(self: OffsetsImage, producer_id: int, *, is_committed: bool) -> None:
        transaction_ended(self, producer_id, is_committed=True)

    patch.setattr(OffsetsImage, "transaction_ended", kind)


def store_offsets_of_any_generation(patch: pytest.MonkeyPatch) -> None:
    commit_in_transaction = Offsets.commit_in_transaction

    def anybody(self: Offsets, request: TxnOffsetCommit) -> Any:
        return commit_in_transaction(self, replace(request, generation=-1, member_id="", group_instance_id=None))

    patch.setattr(Offsets, "commit_in_transaction", anybody)


def forget_the_pending_offsets_of_a_former_leader(patch: pytest.MonkeyPatch) -> None:
    began = GroupMachine.began

    def forgetful(self: GroupMachine) -> None:
        for group in self.image.groups.values():
            for offsets in group.pending.values():
                offsets.update({place: PendingOffset(None, each.number) for place, each in offsets.items()})
        began(self)

    patch.setattr(GroupMachine, "began", forgetful)


def store_offsets_without_asking_for_their_transaction(patch: pytest.MonkeyPatch) -> None:
    """As before KIP-890. In the second version nobody adds the partition then."""
    patch.setattr(GroupCoordinators, "ask", lambda self, number, part, then: self.runtime.ask(number, part, then))
    belongs = ProducerStates._belongs

    def believed(self: ProducerStates, batch: Any, where: str, confirmed: Any) -> None:
        belongs(self, batch, where, (batch.producer_id,) if where.startswith(OFFSETS_TOPIC) else confirmed)

    patch.setattr(ProducerStates, "_belongs", believed)


HOSTED_MUTATIONS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    mutation.__name__: mutation
    for mutation in (
        complete_a_transaction_without_its_markers,
        answer_an_end_before_it_is_stored,
        give_a_new_producer_the_epoch_of_the_last,
        let_a_producer_of_any_epoch_write,
        leave_what_was_prepared_before_a_failover,
        show_offsets_that_are_not_stable,
        count_offsets_before_their_transaction_ends,
        count_offsets_of_aborted_transactions,
        store_offsets_of_any_generation,
        forget_the_pending_offsets_of_a_former_leader,
        store_offsets_without_asking_for_their_transaction,
    )
}
