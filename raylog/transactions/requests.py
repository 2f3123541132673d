"""What is asked of the coordinator of a transactional id, what it answers, and what it asks of
others itself: plain values, no wire format.

A request is answered by the class that its docstring names. Error fields hold Kafka's codes, 0 for
none; a version of the protocol that calls an error otherwise is translated outside.
"""

from __future__ import annotations

from dataclasses import dataclass

from raylog.coordination.events import OutsideAnswer, OutsideQuestion
from raylog.transactions.records import NO_EPOCH, NO_PRODUCER_ID, Participant
from raylog.types import TopicPartition

VERSION_2 = 2
"""Transactions in which the epoch rises with every end (KIP-890)."""

PartitionErrors = tuple[tuple[TopicPartition, int], ...]

# ------------------------------------------------------------------ requests


@dataclass(frozen=True, slots=True)
class InitTransactionalId:
    """→ TransactionalIdInitialised. Fences whoever used the id before.

    With ``producer_id`` and ``producer_epoch`` a producer goes on after an error, if nobody else
    has taken the id meanwhile.
    """

    transactional_id: str
    timeout_ms: int
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_EPOCH


@dataclass(frozen=True, slots=True)
class AddPartitions:
    """→ PartitionsAdded. Begins a transaction where none is under way. ``version``: of transactions,
    as the client speaks them.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: tuple[TopicPartition, ...]
    version: int = 0


@dataclass(frozen=True, slots=True)
class VerifyPartitions:
    """→ PartitionsAdded: whether the partitions are in the transaction that is under way."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class EndTransaction:
    """→ TransactionEnded, when the decision is replicated.

    ``is_shared``: asked for by the owner of a transaction of several producers, which may be empty.
    It commits what the participants in ``winners`` wrote, and keeps ``label``.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    commits: bool
    version: int = 0
    is_shared: bool = False
    winners: tuple[int, ...] = ()
    label: str = ""


@dataclass(frozen=True, slots=True)
class JoinTransaction:
    """→ TransactionJoined: a producer id for one participant of the transaction that this owner has
    under way, or begins.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class KeepTransaction:
    """→ TransactionKept. The owner lives: a transaction of several producers has its whole timeout
    anew.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class DescribeTransaction:
    """→ DescribedTransaction."""

    transactional_id: str


@dataclass(frozen=True, slots=True)
class ListTransactions:
    """→ TransactionsListed, of one partition. Empty filters let all pass. ``duration_ms``: only
    those that are under way for longer; negative: all.
    """

    states: tuple[str, ...] = ()
    producer_ids: tuple[int, ...] = ()
    duration_ms: int = -1
    id_pattern: str | None = None


TransactionRequest = (
    InitTransactionalId
    | AddPartitions
    | VerifyPartitions
    | JoinTransaction
    | KeepTransaction
    | EndTransaction
    | DescribeTransaction
    | ListTransactions
)

# ------------------------------------------------------------------ answers


@dataclass(frozen=True, slots=True)
class TransactionalIdInitialised:
    error: int
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_EPOCH


@dataclass(frozen=True, slots=True)
class PartitionsAdded:
    """The error of each partition, in the order of the request."""

    errors: PartitionErrors


@dataclass(frozen=True, slots=True)
class TransactionEnded:
    """``producer_id`` and ``producer_epoch`` are those of the next transaction (version 2)."""

    error: int
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_EPOCH


@dataclass(frozen=True, slots=True)
class TransactionJoined:
    """``producer_id`` and ``producer_epoch`` are the participant's own."""

    error: int
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_EPOCH


@dataclass(frozen=True, slots=True)
class TransactionKept:
    """``label``: of the last transaction that was committed with one."""

    error: int
    label: str = ""


@dataclass(frozen=True, slots=True)
class DescribedTransaction:
    error: int
    transactional_id: str
    state: str = ""
    timeout_ms: int = 0
    start_timestamp: int = -1
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_EPOCH
    partitions: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True, slots=True)
class ListedTransaction:
    transactional_id: str
    producer_id: int
    state: str


@dataclass(frozen=True, slots=True)
class TransactionsListed:
    error: int
    transactions: tuple[ListedTransaction, ...] = ()
    unknown_states: tuple[str, ...] = ()


TransactionReply = (
    TransactionalIdInitialised
    | PartitionsAdded
    | TransactionJoined
    | TransactionKept
    | TransactionEnded
    | DescribedTransaction
    | TransactionsListed
)

# ------------------------------------------------------------------ questions to others


@dataclass(frozen=True, slots=True)
class WantProducerIds(OutsideQuestion):
    """→ ProducerIdsGiven: a block of ids that nobody else has."""


@dataclass(frozen=True, slots=True)
class ProducerIdsGiven(OutsideAnswer):
    """``count`` ids from ``first`` on; none after an error."""

    error: int
    first: int = NO_PRODUCER_ID
    count: int = 0


@dataclass(frozen=True, slots=True)
class WriteMarkers(OutsideQuestion):
    """→ MarkersWritten: one attempt to have the end of a transaction written to these partitions by
    their leaders. Each of ``participants`` gets a marker of its own, a commit where it wins.
    """

    producer_id: int
    producer_epoch: int
    commits: bool
    coordinator_epoch: int
    version: int
    partitions: tuple[TopicPartition, ...]
    participants: tuple[Participant, ...] = ()


@dataclass(frozen=True, slots=True)
class MarkersWritten(OutsideAnswer):
    """The errors of each partition: one for each of its markers, 0 where it is written. A partition
    that is missing has not been reached.
    """

    errors: PartitionErrors
