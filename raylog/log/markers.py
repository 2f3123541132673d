"""Markers that a transaction coordinator has a leader append: the ends of transactions in one log.

A marker is appended once. Coordinators send it again when the answer got lost, or when another
process takes over the coordinator, so a repeat is recognised and does nothing::

    coordinator epoch below the last marker's       TRANSACTION_COORDINATOR_FENCED: a newer coordinator has ended transactions here
    producer epoch below the known one              INVALID_PRODUCER_EPOCH: a newer instance of the producer has written here
    the same, of a version 2 transaction            INVALID_PRODUCER_EPOCH too while a transaction is open: its own end has a higher epoch
    no transaction open, epochs as at the last end  a repeat: it is in the log
    anything else                                   it ends the transaction, or keeps older epochs out where none is open

From version 2 of transactions on (KIP-890) the epoch rises with each end and the marker has the
risen one, so a late marker can't end the next transaction. A producer that has reached the greatest
epoch can't be told apart that way, and is let pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kio.schema.errors import ErrorCode

from raylog.errors import kafka_error
from raylog.log.producers import InvalidProducerEpoch
from raylog.records.control import Marker, control_batch

if TYPE_CHECKING:
    from raylog.log.log import Log
    from raylog.log.results import AppendResult

TransactionCoordinatorFenced = kafka_error(ErrorCode.transaction_coordinator_fenced)
EPOCH_MAX: Final = (1 << 15) - 1
RISING_EPOCHS: Final = 2
"""The version of transactions in which each end raises the producer's epoch."""


@dataclass(frozen=True, slots=True)
class TransactionEnd:
    """What a coordinator decided about the transaction of one producer. ``version``: that of
    transactions, as WriteTxnMarkers names it.
    """

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    marker: Marker
    version: int = 0


def is_repeated(log: Log, end: TransactionEnd) -> bool:
    """Whether that marker is in the log already. Raises the KafkaError that the coordinator shall
    get.
    """
    state = log.producers.get(end.producer_id)
    if state is None:
        return False
    who = f"{log.where}: producer {end.producer_id}"
    if end.coordinator_epoch < state.coordinator_epoch:
        raise TransactionCoordinatorFenced(
            f"{who}: the coordinator of epoch {end.coordinator_epoch} was replaced; {state.coordinator_epoch} has ended a "
            "transaction here."
        )
    if end.producer_epoch < state.epoch:
        raise InvalidProducerEpoch(
            f"{who} has epoch {state.epoch} now; a marker of {end.producer_epoch} comes too late."
        )
    is_same_epoch = end.producer_epoch == state.epoch
    if state.is_in_transaction:
        if is_same_epoch and end.version >= RISING_EPOCHS and end.producer_epoch < EPOCH_MAX:
            raise InvalidProducerEpoch(
                f"{who}: the open transaction has the marker's epoch {state.epoch}, and its end a higher one."
            )
        return False
    return is_same_epoch and (end.version >= RISING_EPOCHS or end.coordinator_epoch == state.coordinator_epoch)


def append_marker(
    log: Log, end: TransactionEnd, *, leader_epoch: int, wall_ms: int, is_followed: bool = False
) -> AppendResult:
    """Append the marker, which is no repeat. Raises OSError."""
    batch = control_batch(
        end.marker,
        producer_id=end.producer_id,
        producer_epoch=end.producer_epoch,
        coordinator_epoch=end.coordinator_epoch,
        timestamp_ms=wall_ms,
    )
    return log.append_as_leader(
        batch, leader_epoch=leader_epoch, wall_ms=wall_ms, from_coordinator=True, is_followed=is_followed
    )
