"""Transactions of several producers: the participants of a transactional id.

Sequence numbers belong to a producer id, so the tasks of a job that write at once need one each, and
all that they wrote has to be committed by one decision. The *owner* has the transactional id, as any
transactional producer has its own: InitProducerId gives it a producer id and fences the owner before.
With them each task *joins*, and is given a producer id of its own; what it writes under the owner's
transactional id belongs to the owner's transaction. The owner ends it and names the participants that
*win*: their records are committed, those of the others (attempts that failed, or that another one
overtook) are aborted. The Prepare record says all of it, so nothing lies between the two.

Ids are used again: a transactional id has as many as have ever been in one transaction of it. No
producer id and epoch is given to two participants: whoever joined is spare again in a higher epoch,
so a late Produce is fenced by its epoch, as in version 2 of any transaction.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from raylog.transactions.records import Participant, Participation, TransactionState, TransactionValue

PARTICIPANTS_MAX = 1_000
"""Of one transaction: a leader writes a marker for each of them."""


def participant_of(value: TransactionValue, producer_id: int) -> Participant | None:
    """The one with that producer id."""
    return next((each for each in value.participants if each.producer_id == producer_id), None)


def joined(value: TransactionValue) -> tuple[Participant, ...]:
    """Those who write, or have written, in the transaction."""
    return tuple(each for each in value.participants if each.part is not Participation.SPARE)


def spare(value: TransactionValue) -> Participant | None:
    """One that can join."""
    return next((each for each in value.participants if each.part is Participation.SPARE), None)


def with_joined(value: TransactionValue, participant: Participant, wall_ms: int) -> TransactionValue:
    """The participant, a spare or a new one, writes in the transaction from now on."""
    others = tuple(each for each in value.participants if each.producer_id != participant.producer_id)
    return replace(
        value, participants=(*others, replace(participant, part=Participation.JOINED)), last_update_timestamp=wall_ms
    )


def decided(value: TransactionValue, winners: Collection[int]) -> tuple[Participant, ...]:
    """As Prepare has them, in the epochs of their markers."""
    return tuple(
        each
        if each.part is Participation.SPARE
        else Participant(
            each.producer_id,
            each.producer_epoch + 1,
            Participation.WINS if each.producer_id in winners else Participation.JOINED,
        )
        for each in value.participants
    )


def released(participants: tuple[Participant, ...], *, used: bool, last_epoch: int) -> tuple[Participant, ...]:
    """All of them spare. ``used``: their epochs may be known to somebody; those of markers are not.
    Whose epochs are used up is left out.
    """
    free = (
        each
        if each.part is Participation.SPARE
        else Participant(each.producer_id, each.producer_epoch + used, Participation.SPARE)
        for each in participants
    )
    return tuple(each for each in free if each.producer_epoch <= last_epoch)


def check(value: TransactionValue) -> None:
    """Raise AssertionError where an invariant is broken."""
    ids = [each.producer_id for each in value.participants]
    assert len(set(ids)) == len(ids) and value.producer_id not in ids, f"an id is there twice: {value}"
    for each in value.participants:
        assert each.part is not Participation.WINS or value.state is TransactionState.PREPARE_COMMIT, (
            f"a winner: {value}"
        )
