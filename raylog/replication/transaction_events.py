"""What the machines of replicas take in and order about transactions (``events.py`` has the rest).

A leader appends the first batch of a transaction only with its coordinator's leave, so that a late
Produce of one that has ended is never appended (KIP-890). ``VerifyTransaction`` orders the
question, ``TransactionVerified`` brings the answer. ``MarkersReceived`` ends transactions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from raylog.log.markers import TransactionEnd
from raylog.types import TopicIdPartition

# ------------------------------------------------------------------ events


@dataclass(frozen=True, slots=True)
class PartitionMarker:
    id: TopicIdPartition
    end: TransactionEnd


@dataclass(frozen=True, slots=True)
class MarkersReceived:
    """→ ProduceReply with a result for each, in this order, when all are replicated (acks=all)."""

    token: int
    timeout_ms: int
    markers: tuple[PartitionMarker, ...]


@dataclass(frozen=True, slots=True)
class TransactionVerified:
    """The end of a VerifyTransaction. ``error``: that of the coordinator's answer, NETWORK_EXCEPTION
    where there was none.
    """

    question: int
    error: int


@dataclass(frozen=True, slots=True)
class LeaveWanted:
    """Somebody of this process wants to append a batch of a transaction to a partition that it leads
    in that epoch. → LeaveGiven.
    """

    token: int
    id: TopicIdPartition
    leader_epoch: int
    membership: TransactionMembership
    producer_id: int
    producer_epoch: int


TransactionEvent = MarkersReceived | TransactionVerified | LeaveWanted

# ------------------------------------------------------------------ replies


@dataclass(frozen=True, slots=True)
class LeaveGiven:
    """``leave`` goes with the append. It is void once a marker of that producer has come."""

    error: int
    leave: int


NO_LEAVE: Final = 0
"""The transaction is open: nobody had to be asked."""

# ------------------------------------------------------------------ values


@dataclass(frozen=True, slots=True)
class TransactionMembership:
    """Which transaction a batch is to belong to.

    ``adds``: the client leaves it to the leader to add the partition (transactions of version 2).
    Others have added it themselves, and the leader only asks whether they have. ``is_abortable``:
    the client knows TRANSACTION_ABORTABLE.
    """

    transactional_id: str
    adds: bool = False
    is_abortable: bool = False


# ------------------------------------------------------------------ effects


@dataclass(frozen=True, slots=True)
class VerifyTransaction:
    """Ask the coordinator of that transactional id whether the partition is in the producer's open
    transaction, or to add it (AddPartitionsToTxn), and report TransactionVerified, whatever comes of
    it.
    """

    question: int
    topic: str
    partition: int
    membership: TransactionMembership
    producer_id: int
    producer_epoch: int
