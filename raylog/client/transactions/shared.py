"""Transactions of several producers, as a job's driver holds them (``raylog.transactions.participants``).

A job whose tasks write in parallel has one ``SharedTransactions``, the owner of a transactional id.
``begin`` returns a ticket, which goes to the tasks; each attempt at one writes with a
``ParticipantProducer`` of its own and returns its ``producer_id``. ``commit`` names those whose
attempt counts: all that they wrote is committed by one decision, together with a label, and all
that other attempts wrote is aborted. ::

    with SharedTransactions(address, "nightly-export") as transactions:
        ticket = transactions.begin()
        ...  # in each task: with ParticipantProducer(ticket, address) as producer: …; producer.finish()
        transactions.commit(winners=[…], label="batch 7")

While a transaction is under way the owner tells the coordinator that it lives. If it dies, the
transaction is aborted by the next owner at once, or after ``transaction.timeout.ms``. The next owner
reads in ``label`` how far the last one came.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar

from kio.schema.errors import ErrorCode

from raylog.client.background import background
from raylog.client.config import ProducerConfig
from raylog.client.groups.coordinator_link import CoordinatorLink
from raylog.client.links import requests
from raylog.client.links.address import ClusterAddress
from raylog.client.links.link import ClusterLink
from raylog.client.producer.partition_queue import ProducerIdentity
from raylog.client.producer.producer import ProducerCore
from raylog.client.sync import Producer
from raylog.errors import ClientTimeoutError, RaylogError, TransactionStateError, error_for
from raylog.offsets_topic import TRANSACTIONS_TOPIC
from raylog.wire.private_transactions import EndSharedTransactionRequest, JoinTransactionRequest, KeepTransactionRequest

logger = logging.getLogger("raylog.client")

T = TypeVar("T")
_KEPT_IN_A_TIMEOUT = 4  # times


@dataclass(frozen=True, slots=True)
class TransactionTicket:
    """With it a task joins the transaction. Pickles."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


class AsyncSharedTransactions:
    """The owner, in one event loop. ``label``: that of the last transaction that was committed with
    one, by this owner or an earlier one; empty: there was none.
    """

    def __init__(self, address: ClusterAddress, config: ProducerConfig) -> None:
        assert config.transactional_id is not None, "shared transactions without an id"
        self.label = ""
        self._config = config
        self._id = config.transactional_id
        self._link = ClusterLink(address, config)
        self._coordinator = CoordinatorLink(self._link, self._id, topic=TRANSACTIONS_TOPIC)
        self._identity: ProducerIdentity | None = None
        self._keeping: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Take the id over: the owner before is fenced, and what it had under way is aborted."""
        await self._initialise(-1, -1, "initialising")
        self.label = str((await self._ask(self._keep_request(), "reading the label")).label)

    def begin(self) -> TransactionTicket:
        """Begin a transaction."""
        if self._keeping is not None:
            raise TransactionStateError(f"{self._id!r} has a transaction under way: commit or abort it first")
        mine = self._mine()
        self._keeping = asyncio.get_running_loop().create_task(self._keep())
        return TransactionTicket(self._id, mine.producer_id, mine.epoch)

    async def commit(self, winners: Collection[int], label: str) -> None:
        """Commit what these producers wrote, abort the rest, and keep the label."""
        await self._end(committed=True, winners=tuple(winners), label=label)
        self.label = label or self.label

    async def settle(self) -> None:
        """Wait until readers see how the last transaction ended: all its markers are written."""
        mine = self._mine()
        await self._initialise(mine.producer_id, mine.epoch, "waiting for the markers")

    async def abort(self) -> None:
        """Abort what is under way, if anything is."""
        if self._keeping is not None:
            await self._end(committed=False)

    async def close(self) -> None:
        """Abort what is under way, as far as that can be done."""
        if self._keeping is not None:
            try:
                await self.abort()
            except RaylogError as error:
                logger.warning("a transaction was under way, and was not aborted: %s", error)
        self._coordinator.close()
        await self._link.close()

    # -------------------------------------------------------------- inside

    async def _initialise(self, producer_id: int, epoch: int, what: str) -> None:
        """Go on from an epoch, once the transaction before has its markers. −1: from any."""
        request = requests.init_transactional_id(self._id, self._config.transaction_timeout_ms, producer_id, epoch)
        reply = await self._ask(request, what)
        self._identity = ProducerIdentity(int(reply.producer_id), int(reply.producer_epoch))

    def _mine(self) -> ProducerIdentity:
        if self._identity is None:
            raise TransactionStateError(
                f"nobody knows here how the last transaction of {self._id!r} ended: take the id over again"
            )
        return self._identity

    async def _end(self, *, committed: bool, winners: tuple[int, ...] = (), label: str = "") -> None:
        if self._keeping is None:
            raise TransactionStateError(f"{self._id!r} has no transaction under way: begin one")
        mine = self._mine()
        request = EndSharedTransactionRequest(self._id, mine.producer_id, mine.epoch, committed, winners, label)
        self._keeping.cancel()
        self._keeping = self._identity = None
        reply = await self._ask(request, "committing" if committed else "aborting")
        self._identity = ProducerIdentity(reply.producer_id, reply.producer_epoch)

    async def _keep(self) -> None:
        """Until the transaction ends. What fails here the end will tell."""
        pause_s = self._config.transaction_timeout_ms / 1000 / _KEPT_IN_A_TIMEOUT
        while True:
            await asyncio.sleep(pause_s)
            with suppress(RaylogError):
                await self._coordinator.ask(self._keep_request(), timeout_ms=pause_s * 1000)

    def _keep_request(self) -> KeepTransactionRequest:
        mine = self._mine()
        return KeepTransactionRequest(self._id, mine.producer_id, mine.epoch)

    async def _ask(self, request: Any, what: str) -> Any:
        try:
            return await self._coordinator.request(request, timeout_ms=self._config.max_block_ms, what=what)
        except ClientTimeoutError:
            raise
        except RaylogError as error:
            if error.code not in (ErrorCode.producer_fenced, ErrorCode.invalid_producer_epoch):
                raise
            timeout_s = self._config.transaction_timeout_ms / 1000
            raise error_for(
                error.code,
                f"{what} of {self._id!r}: another owner has taken the id over, or nothing was heard of this one for "
                f"transaction.timeout.ms ({timeout_s:g} s); what it had under way is aborted",
            ) from None


class SharedTransactions:
    """The same for everybody else. Takes the id over when it is made."""

    def __init__(
        self, address: ClusterAddress, transactional_id: str, config: Mapping[str, Any] | None = None, /, **options: Any
    ) -> None:
        parsed = ProducerConfig.parse({**(config or {}), "transactional.id": transactional_id}, options)
        self._core = self._run(_opened(address, parsed))

    @property
    def label(self) -> str:
        """That of the last transaction that was committed with one; empty: there was none."""
        return self._core.label

    def begin(self) -> TransactionTicket:
        """Begin a transaction."""
        return self._run(_begun(self._core))

    def commit(self, winners: Collection[int], label: str = "") -> None:
        """Commit what these producers wrote, abort the rest, and keep the label.

        ProducerFencedError if another owner has taken the id; ClientTimeoutError if nobody knows
        whether it was committed, which the next owner's ``label`` tells.
        """
        self._run(self._core.commit(winners, label))

    def settle(self) -> None:
        """Wait until readers see how the last transaction ended, for up to ``max.block.ms``."""
        self._run(self._core.settle())

    def abort(self) -> None:
        """Abort what is under way, if anything is."""
        self._run(self._core.abort())

    def close(self) -> None:
        """Abort what is under way, and let go of the connections."""
        self._run(self._core.close())

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return background().run(work)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


async def _opened(address: ClusterAddress, config: ProducerConfig) -> AsyncSharedTransactions:
    core = AsyncSharedTransactions(address, config)
    try:
        await core.open()
    except BaseException:
        await core.close()
        raise
    return core


async def _begun(core: AsyncSharedTransactions) -> TransactionTicket:
    return core.begin()


class ParticipantProducer(Producer):
    """A producer of one task's attempt. It joins the transaction when it first sends, or at ``join``."""

    def __init__(
        self,
        ticket: TransactionTicket,
        address: ClusterAddress,
        config: Mapping[str, Any] | None = None,
        /,
        **options: Any,
    ) -> None:
        super().__init__(address, {**(config or {}), "transactional.id": ticket.transactional_id}, **options)
        self._ticket = ticket

    def __reduce__(self) -> Any:
        raise TypeError("a ParticipantProducer belongs to one attempt at a task: make it there, with the ticket")

    def join(self) -> int:
        """Join the transaction now, if that has not been done. The ``producer_id``, by which the owner
        names the participant.
        """
        transactions = self._core().transactions
        assert transactions is not None and transactions.identity is not None, "a participant that has not joined"
        return transactions.identity.producer_id

    def finish(self) -> int:
        """Wait until everything sent is acknowledged; the ``producer_id``. Raises
        TransactionAbortedError if anything failed: then the attempt may not count.
        """
        self.flush()
        transactions = self._core().transactions
        assert transactions is not None, "a participant without transactions"
        if transactions.error is not None:
            raise transactions.aborted_error("this attempt's records are aborted")
        return self.join()

    async def _made(self) -> ProducerCore:
        core = ProducerCore(self._address, self._config, is_participant=True)
        try:
            await _join(core, self._ticket)
        except BaseException:
            await core.close(0)
            raise
        return core


async def _join(core: ProducerCore, ticket: TransactionTicket) -> None:
    coordinator = CoordinatorLink(core.link, ticket.transactional_id, topic=TRANSACTIONS_TOPIC)
    request = JoinTransactionRequest(ticket.transactional_id, ticket.producer_id, ticket.producer_epoch)
    try:
        reply = await coordinator.request(request, timeout_ms=core.config.max_block_ms, what="joining a transaction")
    finally:
        coordinator.close()
    assert core.transactions is not None, "a participant without transactions"
    core.transactions.initialised(ProducerIdentity(reply.producer_id, reply.producer_epoch))
    core.transactions.begin()
