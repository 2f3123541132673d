"""Transactions as users hold them: ``AsyncTransaction`` for coroutines, ``Transaction`` for everybody
else. Both are views of their producer: what the producer itself sends while one is open belongs to it
as well.

Leaving the block commits, once every record is acknowledged; an exception aborts. Then nothing of it
is ever read with ``isolation.level=read_committed``, and no offset of it is committed.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from raylog.client.background import background
from raylog.client.groups.offset_commits import GroupMetadata, HandedOut, to_commit
from raylog.client.producer.deliveries import BatchDelivery, Delivery, RecordMetadata
from raylog.client.transactions.calls import TransactionCalls
from raylog.client.transactions.phases import ProducerTransactions, TransactionPhase
from raylog.errors import ConfigError, RaylogError

logger = logging.getLogger("raylog.client")

T = TypeVar("T")


class TransactionalCore(Protocol):
    """What a transaction needs of its producer's core."""

    transactions: ProducerTransactions | None
    transaction_calls: TransactionCalls | None


class HandsOut(Protocol):
    """A consumer: how far it has handed records out."""

    def handed_out(self) -> HandedOut:
        """Positions, and the membership under which they may be committed."""
        ...


class _Sends(Protocol):
    """A ``Producer``, whose options these calls hand on."""

    @property
    def send(self) -> Callable[..., Delivery]: ...

    @property
    def send_batch(self) -> Callable[..., BatchDelivery]: ...

    @property
    def send_arrow(self) -> Callable[..., BatchDelivery]: ...


class _AsyncSends(Protocol):
    """An ``AsyncProducer``."""

    @property
    def send(self) -> Callable[..., Awaitable[Delivery]]: ...

    @property
    def send_and_wait(self) -> Callable[..., Awaitable[RecordMetadata]]: ...

    @property
    def send_batch(self) -> Callable[..., Awaitable[BatchDelivery]]: ...

    @property
    def send_arrow(self) -> Callable[..., Awaitable[BatchDelivery]]: ...


class _OfProducer:
    """What both kinds have in common. ``number``: which one of its producer's."""

    def __init__(self, core: TransactionalCore, transactional_id: str | None) -> None:
        if core.transactions is None or core.transaction_calls is None:
            assert transactional_id is None, "a transactional core without transactions"
            raise ConfigError("this producer has no transactional.id: producer(transactional_id='…') has transactions")
        self._state = core.transactions
        self._calls = core.transaction_calls
        self._number = 0

    def _check(self) -> None:
        state = self._state
        if state.phase is not TransactionPhase.OPEN or state.number != self._number:
            state.check_current(self._number)

    @property
    def _is_over(self) -> bool:
        return self._state.number != self._number or self._state.phase in (
            TransactionPhase.READY,
            TransactionPhase.UNINITIALISED,
        )

    def __repr__(self) -> str:
        phase = "over" if self._is_over else self._state.phase.value
        return f"<transaction {self._number} of transactional.id {self._state.transactional_id!r}: {phase}>"


def _offsets(source: HandsOut | Mapping[Any, Any], group: GroupMetadata | str | None) -> HandedOut:
    if not isinstance(source, Mapping):
        if group is not None:
            raise ConfigError("commit_offsets(consumer) knows the consumer's group: leave group out")
        return source.handed_out()
    if isinstance(group, str):
        group = GroupMetadata(group, "", -1)
    if group is None:
        raise ConfigError("commit_offsets({partition: offset}) needs group=consumer.group_metadata(), or a group.id")
    return HandedOut(to_commit(source), group)


def _abort_failed(error: RaylogError, cause: BaseException | None) -> RaylogError | None:
    """The error that the program shall see instead of ``cause``, which had the transaction aborted.

    An error of the cluster may be only the first sign of the fatal one; a program's own exception
    is not replaced, and the next transaction raises the fatal error again.
    """
    if cause is None or isinstance(cause, RaylogError):
        return error
    logger.warning("the transaction is over, but not by this producer's abort: %s", error)
    return None


class Transaction(_OfProducer):
    """A transaction of a ``Producer``.

    ::

        with producer.transaction() as txn:
            txn.send("invoices", b"one")
            txn.send_batch("ledger", [b"two", b"three"])
            txn.commit_offsets(consumer)
    """

    def __init__(self, producer: _Sends, core: TransactionalCore, transactional_id: str | None) -> None:
        super().__init__(core, transactional_id)
        self._producer = producer

    def begin(self) -> Self:
        """Begin it. The first one of a producer fences whoever used the transactional.id before.

        Raises TransactionStateError if the producer has one under way, and ProducerFencedError if
        another producer has taken the id.
        """
        self._number = self._run(self._calls.begin())
        return self

    def send(self, topic: str, value: Any = None, **options: Any) -> Delivery:
        """``Producer.send``, in the transaction."""
        self._check()
        return self._producer.send(topic, value, **options)

    def send_batch(self, topic: str, values: Any, **options: Any) -> BatchDelivery:
        """``Producer.send_batch``, in the transaction."""
        self._check()
        return self._producer.send_batch(topic, values, **options)

    def send_arrow(self, topic: str, table: Any, **options: Any) -> BatchDelivery:
        """``Producer.send_arrow``, in the transaction."""
        self._check()
        return self._producer.send_arrow(topic, table, **options)

    def commit_offsets(self, source: HandsOut | Mapping[Any, Any], *, group: GroupMetadata | str | None = None) -> None:
        """Commit how far a consumer has come with the transaction, or ``{partition: offset}`` of a
        group: all that the consumer has handed out by now.

        The consumer has ``enable_auto_commit=False``. An error fails the transaction: leave the
        block with it. IllegalGenerationError and UnknownMemberIdError say that the partitions belong
        to another member by now.
        """
        self._check()
        handed_out = _offsets(source, group)
        self._run(self._calls.commit_offsets(self._number, handed_out.offsets, handed_out.group))

    def commit(self) -> None:
        """Wait until all of it is acknowledged, and commit it. Raises TransactionAbortedError if
        anything failed: the transaction is aborted then, and its ``__cause__`` says why.

        ClientTimeoutError says that nobody knows whether it was committed.
        """
        self._run(self._calls.commit(self._number))

    def abort(self) -> None:
        """Abort it. What was not sent yet is never sent."""
        self._run(self._calls.abort(self._number))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return background().run(work)

    def __enter__(self) -> Self:
        return self.begin()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_over:
            return
        if error is None:
            self.commit()
            return
        try:
            self.abort()
        except RaylogError as fatal:
            if (shown := _abort_failed(fatal, error)) is not None:
                raise shown from error


class AsyncTransaction(_OfProducer):
    """A transaction of an ``AsyncProducer``; ``Transaction`` describes each call.

    ::

        async with producer.transaction() as txn:
            await txn.send("invoices", b"one")
            await txn.commit_offsets(consumer)
    """

    def __init__(self, producer: _AsyncSends, core: TransactionalCore, transactional_id: str | None) -> None:
        super().__init__(core, transactional_id)
        self._producer = producer

    async def begin(self) -> Self:
        """Begin it."""
        self._number = await self._calls.begin()
        return self

    async def send(self, topic: str, value: Any = None, **options: Any) -> Delivery:
        """``AsyncProducer.send``, in the transaction."""
        self._check()
        return await self._producer.send(topic, value, **options)

    async def send_and_wait(self, topic: str, value: Any = None, **options: Any) -> RecordMetadata:
        """``send``, then wait until the record is acknowledged."""
        self._check()
        return await self._producer.send_and_wait(topic, value, **options)

    async def send_batch(self, topic: str, values: Any, **options: Any) -> BatchDelivery:
        """``AsyncProducer.send_batch``, in the transaction."""
        self._check()
        return await self._producer.send_batch(topic, values, **options)

    async def send_arrow(self, topic: str, table: Any, **options: Any) -> BatchDelivery:
        """``AsyncProducer.send_arrow``, in the transaction."""
        self._check()
        return await self._producer.send_arrow(topic, table, **options)

    async def commit_offsets(
        self, source: HandsOut | Mapping[Any, Any], *, group: GroupMetadata | str | None = None
    ) -> None:
        """Commit how far a consumer has come with the transaction, or ``{partition: offset}`` of a
        group.
        """
        self._check()
        handed_out = _offsets(source, group)
        await self._calls.commit_offsets(self._number, handed_out.offsets, handed_out.group)

    async def commit(self) -> None:
        """Wait until all of it is acknowledged, and commit it."""
        await self._calls.commit(self._number)

    async def abort(self) -> None:
        """Abort it."""
        await self._calls.abort(self._number)

    async def __aenter__(self) -> Self:
        return await self.begin()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_over:
            return
        if error is None:
            await self.commit()
            return
        try:
            await self.abort()
        except RaylogError as fatal:
            if (shown := _abort_failed(fatal, error)) is not None:
                raise shown from error
