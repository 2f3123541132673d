"""Faults to be patched into what a log, its leader and its readers make of transactions, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from raylog.log import markers
from raylog.log.log import Log
from raylog.log.producers import ProducerStates
from raylog.log.transactions import Transactions
from raylog.records.aborted import AbortedTransactions
from raylog.replication import leader
from raylog.replication.leader import Leader
from raylog.replication.transaction_checks import Leave, TransactionChecks


def begin_a_transaction_without_leave(patch: pytest.MonkeyPatch) -> None:
    """Leaders ask nobody, as before KIP-890."""
    belongs = ProducerStates._belongs

    def believed(self: ProducerStates, batch: Any, where: str, confirmed: Any) -> None:
        belongs(self, batch, where, (batch.producer_id,))

    patch.setattr(ProducerStates, "_belongs", believed)
    patch.setattr(TransactionChecks, "_leave_for", lambda self, part, batch: None)


def let_a_leave_outlive_the_marker(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Leave, "outlives", lambda self, end: True)


def append_a_marker_once_more(patch: pytest.MonkeyPatch) -> None:
    """What comes again is not recognised; what is to be refused still is."""
    is_repeated = markers.is_repeated

    def forgotten(log: Any, end: Any) -> bool:
        is_repeated(log, end)
        return False

    patch.setattr(leader, "is_repeated", forgotten)


def obey_a_former_coordinator(patch: pytest.MonkeyPatch) -> None:
    """The coordinator epoch of a marker is not compared."""
    is_repeated = markers.is_repeated

    def obeyed(log: Any, end: Any) -> bool:
        state = log.producers.get(end.producer_id)
        known = end.coordinator_epoch if state is None else max(end.coordinator_epoch, state.coordinator_epoch)
        return is_repeated(log, replace(end, coordinator_epoch=known)) and known == end.coordinator_epoch

    patch.setattr(leader, "is_repeated", obeyed)


def end_the_next_transaction_by_a_late_marker(patch: pytest.MonkeyPatch) -> None:
    """In version 2 too the marker's epoch may be that of the open transaction."""
    patch.setattr(markers, "RISING_EPOCHS", 1 << 15)


def take_the_high_watermark_for_stable(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Log, "stable_end_offset", property(lambda self: self.high_watermark))


def be_stable_before_the_marker_is_committed(patch: pytest.MonkeyPatch) -> None:
    """A transaction has ended as soon as its marker is in the log, whether it is replicated or not."""

    def stable_end(self: Transactions, high_watermark: int) -> int:
        return min(high_watermark, *self._open.values()) if self._open else high_watermark

    patch.setattr(Transactions, "stable_end", stable_end)


def cut_the_list_of_aborted_transactions(patch: pytest.MonkeyPatch) -> None:
    """Those whose markers lie behind what is read are left out."""
    aborted = Transactions.aborted

    def cut(self: Transactions, offset: int, end_offset: int) -> Any:
        named = {(entry.producer_id, entry.first_offset) for entry in self.between(offset, end_offset)}
        return tuple(each for each in aborted(self, offset, end_offset) if each in named)

    patch.setattr(Transactions, "aborted", cut)


def list_aborted_transactions_by_their_markers(patch: pytest.MonkeyPatch) -> None:
    """Not sorted by where they begin."""
    aborted = Transactions.aborted

    def unsorted(self: Transactions, offset: int, end_offset: int) -> Any:
        named = set(aborted(self, offset, end_offset))
        entries = [self._entry(number) for number in range(len(self._last_offsets))]
        return tuple(
            (each.producer_id, each.first_offset) for each in entries if (each.producer_id, each.first_offset) in named
        )

    patch.setattr(Transactions, "aborted", unsorted)


def answer_a_marker_before_it_is_replicated(patch: pytest.MonkeyPatch) -> None:
    """The coordinator takes a transaction for ended whose marker may go with its leader."""
    end_transaction = Leader.end_transaction

    def hasty(self: Leader, end: Any, now_ms: int, wall_ms: int) -> Any:
        return end_transaction(self, end, now_ms, wall_ms)[0], -1

    patch.setattr(Leader, "end_transaction", hasty)


def show_what_was_aborted(patch: pytest.MonkeyPatch) -> None:
    """A reader of committed records leaves nothing out."""
    patch.setattr(AbortedTransactions, "hides", lambda self, view: False)


TRANSACTION_MUTATIONS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    mutation.__name__: mutation
    for mutation in (
        begin_a_transaction_without_leave,
        let_a_leave_outlive_the_marker,
        append_a_marker_once_more,
        obey_a_former_coordinator,
        end_the_next_transaction_by_a_late_marker,
        take_the_high_watermark_for_stable,
        be_stable_before_the_marker_is_committed,
        cut_the_list_of_aborted_transactions,
        list_aborted_transactions_by_their_markers,
        answer_a_marker_before_it_is_replicated,
        show_what_was_aborted,
    )
}
