"""How a transactional id goes from state to state: each step makes the value that the log is to
hold next. ::

    Empty            → Ongoing (partitions are added), Empty (another producer)
    Ongoing          → Ongoing (more partitions), PrepareCommit, PrepareAbort
    PrepareCommit    → CompleteCommit (every leader has written its marker)
    PrepareAbort     → CompleteAbort
    CompleteCommit   → Ongoing, Empty; PrepareAbort (version 2: an abort of nothing)
    CompleteAbort    → as CompleteCommit

Prepare is the decision: what follows it can only be delayed. In version 2 the epoch rises with it,
so a Produce or an EndTxn of the transaction that ends is late whenever it arrives after (KIP-890).
In version 1 it stays. Whoever fences a producer raises it in both.

The last epoch that a producer is ever given is ``LAST_EPOCH``. One more is left for the markers of
its transaction; then the producer goes on with another id, from epoch 0.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from raylog.transactions import participants
from raylog.transactions.records import NO_EPOCH, NO_PRODUCER_ID, NO_TIMESTAMP, TransactionState, TransactionValue
from raylog.types import TopicPartition

EPOCH_MAX = (1 << 15) - 1
LAST_EPOCH = EPOCH_MAX - 1

PREPARED = (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)
COMPLETE = (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)
AT_REST = (TransactionState.EMPTY, *COMPLETE)


def first_producer(producer_id: int, timeout_ms: int, wall_ms: int) -> TransactionValue:
    """A transactional id that nobody has used before."""
    return TransactionValue(producer_id, 0, timeout_ms, TransactionState.EMPTY, last_update_timestamp=wall_ms)


def next_producer(value: TransactionValue, epoch: int, timeout_ms: int, wall_ms: int) -> TransactionValue:
    """A producer takes the id over, or goes on with it, in that epoch. Participants have to join
    again.
    """
    assert value.state in AT_REST and NO_EPOCH < epoch <= LAST_EPOCH, f"{value} to epoch {epoch}"
    return replace(
        value,
        producer_epoch=epoch,
        timeout_ms=timeout_ms,
        state=TransactionState.EMPTY,
        partitions=frozenset(),
        start_timestamp=NO_TIMESTAMP,
        last_update_timestamp=wall_ms,
        previous_producer_id=value.producer_id,
        participants=participants.released(value.participants, used=True, last_epoch=LAST_EPOCH),
    )


def rotated(value: TransactionValue, producer_id: int, timeout_ms: int, wall_ms: int) -> TransactionValue:
    """The same with another producer id, because the epochs of the old one are used up."""
    return replace(next_producer(value, 0, timeout_ms, wall_ms), producer_id=producer_id)


def with_partitions(
    value: TransactionValue, partitions: frozenset[TopicPartition], version: int, wall_ms: int
) -> TransactionValue:
    """More partitions, in the transaction that is under way or in one that begins."""
    is_under_way = value.state is TransactionState.ONGOING
    assert is_under_way or value.state in AT_REST, value
    return replace(
        value,
        state=TransactionState.ONGOING,
        partitions=value.partitions | partitions if is_under_way else partitions,
        start_timestamp=value.start_timestamp if is_under_way else wall_ms,
        last_update_timestamp=wall_ms,
        previous_producer_id=value.producer_id,
        client_version=version,
    )


def prepared(
    value: TransactionValue,
    *,
    commits: bool,
    raises_epoch: bool,
    version: int,
    wall_ms: int,
    next_producer_id: int = NO_PRODUCER_ID,
    winners: Collection[int] = (),
    label: str = "",
) -> TransactionValue:
    """The decision. ``next_producer_id``: where the epochs of this one are used up. ``winners``: the
    participants with which it is committed; ``label``: kept with the commit.
    """
    assert commits or not (winners or label), "an abort with winners"
    epoch = value.producer_epoch + raises_epoch
    assert epoch <= EPOCH_MAX and value.state not in PREPARED, f"{value} to epoch {epoch}"
    is_under_way = value.state is TransactionState.ONGOING
    return replace(
        value,
        producer_epoch=epoch,
        state=TransactionState.PREPARE_COMMIT if commits else TransactionState.PREPARE_ABORT,
        partitions=value.partitions if is_under_way else frozenset(),
        start_timestamp=value.start_timestamp if is_under_way else wall_ms,
        last_update_timestamp=wall_ms,
        previous_producer_id=value.producer_id,
        next_producer_id=next_producer_id,
        client_version=version,
        participants=participants.decided(value, winners),
        label=label or value.label,
    )


def completed(value: TransactionValue, wall_ms: int) -> TransactionValue:
    """Every marker is written."""
    assert value.state in PREPARED, value
    commits = value.state is TransactionState.PREPARE_COMMIT
    producer_id, epoch = continuation(value)
    return replace(
        value,
        producer_id=producer_id,
        producer_epoch=epoch,
        state=TransactionState.COMPLETE_COMMIT if commits else TransactionState.COMPLETE_ABORT,
        partitions=frozenset(),
        last_update_timestamp=wall_ms,
        previous_producer_id=value.producer_id,
        next_producer_id=NO_PRODUCER_ID,
        participants=participants.released(value.participants, used=False, last_epoch=LAST_EPOCH),
    )


def continuation(value: TransactionValue) -> tuple[int, int]:
    """The producer id and epoch of the transaction after one that is prepared or complete."""
    if value.next_producer_id != NO_PRODUCER_ID:
        return value.next_producer_id, 0
    return value.producer_id, value.producer_epoch
