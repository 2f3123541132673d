"""The requests about transactions of several producers (``raylog.transactions.participants``), which
Kafka's protocol has no API for. As those of ``private``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from raylog.wire.private import END_SHARED_TRANSACTION, JOIN_TRANSACTION, KEEP_TRANSACTION, reply_to, request_of


@request_of(JOIN_TRANSACTION)
@dataclass(frozen=True, slots=True)
class JoinTransactionRequest:
    """Asks the coordinator for a producer id with which a task writes in the transaction of this owner
    (``raylog.transactions.participants``).
    """

    API_KEY: ClassVar[int]
    transactional_id: str
    producer_id: int
    producer_epoch: int


@reply_to(JOIN_TRANSACTION)
@dataclass(frozen=True, slots=True)
class JoinTransactionResponse:
    """``producer_id`` and ``producer_epoch`` are the task's own."""

    API_KEY: ClassVar[int]
    error_code: int
    producer_id: int = -1
    producer_epoch: int = -1


@request_of(KEEP_TRANSACTION)
@dataclass(frozen=True, slots=True)
class KeepTransactionRequest:
    """Tells the coordinator that the owner of a transaction of several producers lives: its timeout
    begins anew.
    """

    API_KEY: ClassVar[int]
    transactional_id: str
    producer_id: int
    producer_epoch: int


@reply_to(KEEP_TRANSACTION)
@dataclass(frozen=True, slots=True)
class KeepTransactionResponse:
    """``label``: of the id's last transaction that was committed with one."""

    API_KEY: ClassVar[int]
    error_code: int
    label: str = ""


@request_of(END_SHARED_TRANSACTION)
@dataclass(frozen=True, slots=True)
class EndSharedTransactionRequest:
    """Asks the coordinator to end a transaction of several producers: to commit what the
    ``winners``, producer ids, wrote, and abort the rest; ``label`` is kept with a commit.
    """

    API_KEY: ClassVar[int]
    transactional_id: str
    producer_id: int
    producer_epoch: int
    committed: bool
    winners: tuple[int, ...] = ()
    label: str = ""


@reply_to(END_SHARED_TRANSACTION)
@dataclass(frozen=True, slots=True)
class EndSharedTransactionResponse:
    """``producer_id`` and ``producer_epoch`` are the owner's in its next transaction."""

    API_KEY: ClassVar[int]
    error_code: int
    producer_id: int = -1
    producer_epoch: int = -1
