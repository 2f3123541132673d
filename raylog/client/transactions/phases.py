"""What a transactional producer knows of its transactional id (KIP-98, KIP-360, KIP-890).

A pure machine: it decides what may be done and what an error means, and talks to nobody
(``calls`` does, the producer's sender carries the records). Phases::

    UNINITIALISED   InitProducerId is due                            → READY, FATAL
    READY           no transaction is under way                      → OPEN
    OPEN            records and offsets may be added                 → FAILED, COMMITTING, ABORTING
    FAILED          something went wrong: it can only be aborted     → ABORTING
    COMMITTING      its records are waited for, then its end         → FAILED, READY, UNINITIALISED, FATAL
    ABORTING        what is on its way is waited for, then its end   → READY, UNINITIALISED, FATAL
    FATAL           another producer has the id: nothing goes on     → nowhere

Errors are of Kafka's three kinds. After a *retriable* one the same request is sent again: the caller
hears nothing of it. An *abortable* one ends the transaction, and the producer goes on with the next.
A *fatal* one ends the producer. INVALID_PRODUCER_EPOCH of a leader is abortable: the leader cannot
know whether the transaction has timed out or the producer is fenced. The coordinator does know, and
tells the abort that follows (KIP-588).

After an end whose answer did not come the id is initialised again by the producer id and epoch that
are known, which fails if another producer has taken it meanwhile.

Invariants: there is an identity in every phase but UNINITIALISED and FATAL; ``error`` is there in
FAILED and FATAL; ``is_known_to_coordinator`` only while a transaction is under way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from typing import Final

from kio.schema.errors import ErrorCode

from raylog.client.producer.partition_queue import ProducerIdentity
from raylog.errors import RaylogError, TransactionAbortedError, TransactionStateError, error_for
from raylog.types import TopicPartition

VERSION_2: Final = 2
"""Leaders add partitions to the transaction, and the epoch rises with every end (KIP-890)."""


def _nobody() -> None:
    """Where leaders add partitions."""


class TransactionPhase(Enum):
    UNINITIALISED = "uninitialised"
    READY = "ready"
    OPEN = "open"
    FAILED = "failed"
    COMMITTING = "committing"
    ABORTING = "aborting"
    FATAL = "fatal"


class ErrorKind(Enum):
    RETRIABLE = "retriable"
    ABORTABLE = "abortable"
    FATAL = "fatal"


_FATAL: Final = frozenset(
    {
        ErrorCode.producer_fenced,
        ErrorCode.transactional_id_authorization_failed,
        ErrorCode.cluster_authorization_failed,
        ErrorCode.unsupported_version,
        ErrorCode.unsupported_for_message_format,
    }
)


def kind_of(error: RaylogError) -> ErrorKind:
    """What an error of a transactional request, or of a record, means."""
    if error.code in _FATAL:
        return ErrorKind.FATAL
    return ErrorKind.RETRIABLE if error.retriable else ErrorKind.ABORTABLE


UNDER_WAY: Final = frozenset(
    {TransactionPhase.OPEN, TransactionPhase.FAILED, TransactionPhase.COMMITTING, TransactionPhase.ABORTING}
)
_DROPS: Final = frozenset(
    {TransactionPhase.FAILED, TransactionPhase.ABORTING, TransactionPhase.UNINITIALISED, TransactionPhase.FATAL}
)


class ProducerTransactions:
    """Of one producer. ``number`` counts its transactions."""

    __slots__ = (
        "_added",
        "_wanted",
        "error",
        "identity",
        "is_known_to_coordinator",
        "number",
        "on_wanted",
        "phase",
        "timeout_ms",
        "transactional_id",
        "version",
    )

    def __init__(self, transactional_id: str, timeout_ms: float) -> None:
        self.transactional_id = transactional_id
        self.timeout_ms = timeout_ms
        self.version = VERSION_2
        self.phase = TransactionPhase.UNINITIALISED
        self.identity: ProducerIdentity | None = None
        self.error: RaylogError | None = None
        self.is_known_to_coordinator = False
        self.number = 0
        self.on_wanted: Callable[[], None] = _nobody  # partitions have to be added (version 1)
        self._added: set[TopicPartition] = set()
        self._wanted: dict[TopicPartition, None] = {}

    @property
    def drops_records(self) -> bool:
        """Whether nothing that waits to be sent is sent any more."""
        return self.phase in _DROPS

    @property
    def leaders_add_partitions(self) -> bool:
        """Whether a Produce adds its partitions to the transaction itself."""
        return self.version >= VERSION_2

    # -------------------------------------------------------------- beginning

    def check_begin(self) -> None:
        """Raise unless a transaction may begin, once the id is initialised."""
        if self.phase is TransactionPhase.FATAL:
            raise self.fatal_error()
        if self.phase in UNDER_WAY:
            raise TransactionStateError(
                f"the producer with transactional.id {self.transactional_id!r} has a transaction under way, and one at "
                "a time: leave its with block first, or use another producer, with a transactional.id of its own"
            )

    def initialised(self, identity: ProducerIdentity) -> None:
        assert self.phase is TransactionPhase.UNINITIALISED, f"initialised while {self.phase}"
        self.identity = identity
        self.phase = TransactionPhase.READY

    def begin(self) -> int:
        """Begin the next transaction; its number."""
        assert self.phase is TransactionPhase.READY, f"begun while {self.phase}"
        self.number += 1
        self.is_known_to_coordinator = False
        self._added.clear()
        self._wanted.clear()
        self.error = None
        self.phase = TransactionPhase.OPEN
        return self.number

    # -------------------------------------------------------------- under way

    def refusal(self) -> RaylogError | None:
        """Why no record and no offset may be added now; None if it may."""
        match self.phase:
            case TransactionPhase.OPEN:
                return None
            case TransactionPhase.FAILED:
                return self.aborted_error("the transaction has failed and will be aborted")
            case TransactionPhase.FATAL:
                return self.fatal_error()
            case TransactionPhase.COMMITTING | TransactionPhase.ABORTING:
                return TransactionStateError("the transaction is being ended: nothing can be added to it")
            case TransactionPhase.UNINITIALISED | TransactionPhase.READY:
                return TransactionStateError(
                    f"this producer has a transactional.id ({self.transactional_id!r}), so all that it sends belongs to "
                    "a transaction: `with producer.transaction() as txn: txn.send(…)`"
                )

    def check_current(self, number: int) -> None:
        """Raise unless the transaction of that number takes records and offsets now."""
        refusal = self.refusal()
        if number != self.number or (self.phase not in UNDER_WAY and self.phase is not TransactionPhase.FATAL):
            raise TransactionStateError("this transaction has ended: begin another one with producer.transaction()")
        if refusal is not None:
            raise refusal

    def takes(self, key: TopicPartition) -> bool:
        """Whether the transaction takes records of that partition now. In version 1 it has to be added
        first, which ``on_wanted`` brings about.
        """
        if self.leaders_add_partitions or key in self._added:
            return True
        if key not in self._wanted:
            self._wanted[key] = None
            self.on_wanted()
        return False

    def wanted(self) -> list[TopicPartition]:
        """The partitions that are to be added."""
        return [key for key in self._wanted if key not in self._added]

    def added(self, partitions: Iterable[TopicPartition]) -> None:
        self._added.update(partitions)

    def wrote(self) -> None:
        """The coordinator may hear of this transaction from now on."""
        self.is_known_to_coordinator = True

    def failed(self, error: RaylogError) -> None:
        """Records, or a request that adds to the transaction, came to nothing."""
        if kind_of(error) is ErrorKind.FATAL:
            self.fatal(error)
        elif self.phase in (TransactionPhase.OPEN, TransactionPhase.COMMITTING):
            self.error = error
            self.phase = TransactionPhase.FAILED

    # -------------------------------------------------------------- the end

    def begin_commit(self, number: int) -> None:
        """Nothing can be added any more; what was sent is on its way. A transaction that has failed
        stays so.
        """
        if number != self.number or self.phase is not TransactionPhase.FAILED:
            self.check_current(number)
            self.phase = TransactionPhase.COMMITTING

    def begin_abort(self) -> None:
        if self.phase is not TransactionPhase.FATAL:
            assert self.phase in UNDER_WAY, f"aborted while {self.phase}"
            self.phase = TransactionPhase.ABORTING

    def ended(self, identity: ProducerIdentity | None) -> None:
        """The end is decided. ``identity``: of the next transaction, None if it stays."""
        assert self.phase in (TransactionPhase.COMMITTING, TransactionPhase.ABORTING), f"ended while {self.phase}"
        if identity is not None:
            self.identity = identity
        self.is_known_to_coordinator = False
        self.phase = TransactionPhase.READY

    def lost(self) -> None:
        """Nobody knows here how the transaction ended: the id is initialised again before the next."""
        if self.phase is not TransactionPhase.FATAL:
            self.is_known_to_coordinator = False
            self.phase = TransactionPhase.UNINITIALISED

    def fatal(self, error: RaylogError) -> None:
        if self.phase is not TransactionPhase.FATAL:
            self.error = error
            self.phase = TransactionPhase.FATAL

    # -------------------------------------------------------------- what users read

    def aborted_error(self, what: str) -> TransactionAbortedError:
        """The transaction's error, caused by what went wrong."""
        error = TransactionAbortedError(f"{what}: {self.error}" if self.error is not None else what)
        error.__cause__ = self.error
        return error

    def fatal_error(self) -> RaylogError:
        """An error of its own for each use, so that tracebacks do not mix."""
        assert self.error is not None, "fatal without an error"
        return error_for(self.error.code, str(self.error))

    def fenced_error(self, code: ErrorCode, told: str) -> RaylogError:
        """Of a producer whose id another one has. ``told``: what is known of that one."""
        mine = self.identity
        was = f"producer id {mine.producer_id}, epoch {mine.epoch}" if mine is not None else "not initialised"
        return error_for(
            code,
            f"another producer has taken transactional.id {self.transactional_id!r} over from this one ({was}){told}: "
            "only the last one may go on. What this one had not committed is aborted. Give each producer that runs at "
            "the same time an id of its own",
        )

    def check(self) -> None:
        """Raise AssertionError unless the invariants hold."""
        if self.phase not in (TransactionPhase.UNINITIALISED, TransactionPhase.FATAL):
            assert self.identity is not None, self.phase
        assert self.error is not None or self.phase not in (TransactionPhase.FAILED, TransactionPhase.FATAL)
        if self.phase not in UNDER_WAY and self.phase is not TransactionPhase.FATAL:
            assert not self.is_known_to_coordinator, self.phase
