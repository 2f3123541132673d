"""Faults to be patched into the coordinator of transactions, by name; hunted in worlds without a cluster (``coordinator_worlds``)."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import pytest

from raylog.transactions import ending, machine, participants, transaction
from raylog.transactions.ending import Endings
from raylog.transactions.machine import TransactionMachine
from raylog.transactions.records import TransactionState, TransactionValue


def commit_those_who_did_not_win(patch: pytest.MonkeyPatch) -> None:
    """A commit commits all that was written, whoever the owner names."""
    decided = participants.decided

    def generous(value: TransactionValue, winners: Collection[int]) -> Any:
        everybody = {each.producer_id for each in participants.joined(value)}
        return decided(value, everybody if winners else ())

    patch.setattr(participants, "decided", generous)


def mark_participants_in_the_epoch_in_which_they_wrote(patch: pytest.MonkeyPatch) -> None:
    """Their epochs do not rise with the decision."""
    decided = participants.decided

    def flat(value: TransactionValue, winners: Collection[int]) -> Any:
        return tuple(replace(each, producer_epoch=each.producer_epoch - 1) for each in decided(value, winners))

    patch.setattr(participants, "decided", flat)


def give_the_epoch_of_a_dead_owners_participant_again(patch: pytest.MonkeyPatch) -> None:
    released = participants.released
    patch.setattr(
        participants, "released", lambda those, *, used, last_epoch: released(those, used=False, last_epoch=last_epoch)
    )


def let_a_participant_write_in_a_later_transaction(patch: pytest.MonkeyPatch) -> None:
    """The epoch of a participant is not compared."""
    stranger = machine._stranger

    def trusting(value: TransactionValue, producer_id: int, producer_epoch: int) -> int:
        known = participants.participant_of(value, producer_id)
        return stranger(value, producer_id, producer_epoch if known is None else known.producer_epoch)

    patch.setattr(machine, "_stranger", trusting)


def let_a_former_owner_commit(patch: pytest.MonkeyPatch) -> None:
    """The epoch of an end is not compared."""
    patch.setattr(machine, "_is_current", lambda value, request, *, is_retry: True)


def forget_the_label(patch: pytest.MonkeyPatch) -> None:
    prepared = transaction.prepared
    patch.setattr(transaction, "prepared", lambda value, **how: prepared(value, **how | {"label": ""}))


def finish_a_partition_with_its_first_marker(patch: pytest.MonkeyPatch) -> None:
    """The markers of its other participants may be missing."""
    answered = Endings._answered

    def hasty(self: Endings, transactional_id: str, answer: Any) -> None:
        begun = {partition for partition, error in answer.errors if not error}
        errors = tuple((partition, 0 if partition in begun else error) for partition, error in answer.errors)
        answered(self, transactional_id, replace(answer, errors=errors))

    patch.setattr(Endings, "_answered", hasty)


def take_a_marker_for_written_that_was_refused(patch: pytest.MonkeyPatch) -> None:
    """What a former leader refuses is not tried again."""
    patch.setattr(ending, "_NEEDS_NO_MARKER", ending._NEEDS_NO_MARKER | {6})


def take_a_partition_for_done_that_was_not_reached(patch: pytest.MonkeyPatch) -> None:
    answered = Endings._answered

    def hasty(self: Endings, transactional_id: str, answer: Any) -> None:
        reached = {partition for partition, _ in answer.errors}
        silent = tuple((each, 0) for each in self._endings[transactional_id].missing if each not in reached)
        answered(self, transactional_id, replace(answer, errors=answer.errors + silent))

    patch.setattr(Endings, "_answered", hasty)


def hear_nothing_of_an_owner(patch: pytest.MonkeyPatch) -> None:
    """A transaction of several producers has its timeout, and not more."""
    patch.setattr(Endings, "keep", lambda self, transactional_id, value: None)


def give_an_owner_what_is_left_of_its_time(patch: pytest.MonkeyPatch) -> None:
    """After a failover the time counts from the transaction's first partition on, as a single producer's does."""
    watch = Endings.watch

    def impatient(self: Endings, transactional_id: str) -> None:
        watch(self, transactional_id)
        context = self._context
        value = context.image[transactional_id]
        left_ms = max(0, min(value.timeout_ms, value.start_timestamp + value.timeout_ms - context.wall_ms))
        context.timers.set((ending.TIMEOUT, transactional_id), context.now_ms + left_ms)

    patch.setattr(Endings, "watch", impatient)


def know_no_retry_of_an_end(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(machine, "_is_retry", lambda value, request: False)


def answer_a_retry_by_what_it_asks_for(patch: pytest.MonkeyPatch) -> None:
    """Whatever became of the transaction."""
    end_of_nothing = TransactionMachine._end_of_nothing

    def agreeable(self: TransactionMachine, token: int, request: Any, value: Any, *, is_retry: bool) -> Any:
        if is_retry and value.state is not TransactionState.EMPTY:
            request = replace(request, commits=value.state is TransactionState.COMPLETE_COMMIT)
        return end_of_nothing(self, token, request, value, is_retry=is_retry)

    patch.setattr(TransactionMachine, "_end_of_nothing", agreeable)


def abort_without_fencing(patch: pytest.MonkeyPatch) -> None:
    """The epoch does not rise where a transaction takes too long, or another producer begins."""
    prepared = transaction.prepared

    def flat(value: TransactionValue, *, commits: bool, version: int, **how: Any) -> TransactionValue:
        raises_epoch = how.pop("raises_epoch") and (commits or "winners" in how)
        return prepared(value, commits=commits, version=version, raises_epoch=raises_epoch, **how)

    patch.setattr(transaction, "prepared", flat)


def forget_the_partitions_that_were_added_before(patch: pytest.MonkeyPatch) -> None:
    with_partitions = transaction.with_partitions

    def forgetful(value: TransactionValue, partitions: Any, version: int, wall_ms: int) -> TransactionValue:
        return replace(with_partitions(value, partitions, version, wall_ms), partitions=partitions)

    patch.setattr(transaction, "with_partitions", forgetful)


COORDINATOR_MUTATIONS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    mutation.__name__: mutation
    for mutation in (
        commit_those_who_did_not_win,
        mark_participants_in_the_epoch_in_which_they_wrote,
        give_the_epoch_of_a_dead_owners_participant_again,
        let_a_participant_write_in_a_later_transaction,
        let_a_former_owner_commit,
        forget_the_label,
        finish_a_partition_with_its_first_marker,
        take_a_marker_for_written_that_was_refused,
        take_a_partition_for_done_that_was_not_reached,
        hear_nothing_of_an_owner,
        give_an_owner_what_is_left_of_its_time,
        know_no_retry_of_an_end,
        answer_a_retry_by_what_it_asks_for,
        abort_without_fencing,
        forget_the_partitions_that_were_added_before,
    )
}
