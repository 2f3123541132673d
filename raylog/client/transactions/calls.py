"""What a transactional producer asks of coordinators: to initialise its id, to commit offsets, to end
transactions. The decisions are those of ``phases``.

The id is initialised at the first transaction, and again after an end of which nobody knows here
how it went. With transactions of version 2 that is all that a producer asks besides the ends: leaders
and the group's coordinator add themselves to the transaction. In version 1 the producer adds
partitions and groups itself, before anything is sent to them.

Every request is repeated while its error is retriable, up to ``max.block.ms``. A coordinator that
dies is followed to the next one (``coordinator_link``). Lives in one event loop.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from kio.schema.errors import ErrorCode

from raylog.client.config import ProducerConfig
from raylog.client.groups import requests as group_requests
from raylog.client.groups.coordinator_link import CoordinatorLink
from raylog.client.groups.offset_commits import GroupMetadata, Offsets, explained, first_error
from raylog.client.links import requests
from raylog.client.links.link import ClusterLink
from raylog.client.producer.accumulator import Accumulator
from raylog.client.producer.partition_queue import ProducerIdentity
from raylog.client.producer.sender import Sender
from raylog.client.transactions.phases import (
    ErrorKind,
    ProducerTransactions,
    TransactionPhase,
    kind_of,
)
from raylog.errors import ClientTimeoutError, RaylogError, error_for
from raylog.kafka.features import TRANSACTION_VERSION
from raylog.offsets_topic import TRANSACTIONS_TOPIC

logger = logging.getLogger("raylog.client")

_DESCRIBE_MS = 1_000.0


class TransactionCalls:
    def __init__(
        self,
        config: ProducerConfig,
        link: ClusterLink,
        accumulator: Accumulator,
        sender: Sender,
        transactions: ProducerTransactions,
    ) -> None:
        self._config = config
        self._link = link
        self._accumulator = accumulator
        self._sender = sender
        self._state = transactions
        self._coordinator = CoordinatorLink(link, transactions.transactional_id, topic=TRANSACTIONS_TOPIC)
        self._groups: dict[str, CoordinatorLink] = {}
        self._knows_version = False
        self._turn = asyncio.Lock()
        self._adding: asyncio.Task[None] | None = None
        transactions.on_wanted = self._add_partitions

    # -------------------------------------------------------------- beginning

    async def begin(self) -> int:
        """Begin a transaction; its number. Initialises the id if that is due."""
        self._state.check_begin()
        async with self._turn:
            self._state.check_begin()
            if self._state.phase is TransactionPhase.UNINITIALISED:
                await self._sender.rest()
                await self._initialise()
            return self._state.begin()

    async def _initialise(self) -> None:
        state = self._state
        if not self._knows_version:
            state.version = await self._version()
            self._knows_version = True
        known = state.identity
        request = requests.init_transactional_id(
            state.transactional_id, state.timeout_ms, *((known.producer_id, known.epoch) if known else (-1, -1))
        )
        try:
            reply = await self._ask(request, "initialising")
        except RaylogError as error:
            raise await self._judged(error) from None
        state.initialised(ProducerIdentity(int(reply.producer_id), int(reply.producer_epoch)))

    async def _version(self) -> int:
        """That of transactions, which the cluster has finalized."""
        reply = await self._link.controller.request(requests.api_versions())
        levels = {each.name: int(each.max_version_level) for each in reply.finalized_features}
        return levels.get(TRANSACTION_VERSION, 0)

    # -------------------------------------------------------------- under way

    def _add_partitions(self) -> None:
        """Version 1: add those that are wanted, in this turn of the loop or while others are added."""
        if self._adding is None:
            self._adding = asyncio.get_running_loop().create_task(self._add_wanted())

    async def _add_wanted(self) -> None:
        state = self._state
        try:
            while state.phase in (TransactionPhase.OPEN, TransactionPhase.COMMITTING) and (wanted := state.wanted()):
                mine, number = state.identity, state.number
                assert mine is not None, "a transaction without an identity"
                state.wrote()
                await self._ask(
                    requests.add_partitions_to_txn(state.transactional_id, mine.producer_id, mine.epoch, wanted),
                    "adding partitions",
                )
                if number == state.number:
                    state.added(wanted)
        except RaylogError as error:
            with self._accumulator.lock:
                state.failed(error)
        finally:
            self._adding = None
        self._sender.partitions_added()

    async def commit_offsets(self, number: int, offsets: Offsets, group: GroupMetadata) -> None:
        """Have the group's offsets committed with the transaction. Raises what fails it."""
        state = self._state
        state.check_current(number)
        if not offsets:
            return
        mine = state.identity
        assert mine is not None, "a transaction without an identity"
        identity = mine.producer_id, mine.epoch
        try:
            if not state.leaders_add_partitions:
                state.wrote()
                await self._ask(
                    requests.add_offsets_to_txn(state.transactional_id, *identity, group.group_id), "adding offsets"
                )
            request = group_requests.txn_offset_commit(
                group.group_id,
                group_requests.committed_values(offsets),
                member_id=group.member_id,
                instance_id=group.group_instance_id,
                generation=group.generation,
                transactional_id=state.transactional_id,
                producer=identity,
                adds_group=state.leaders_add_partitions,
            )
            state.wrote()
            await self._coordinator_of(group.group_id).request(
                request, timeout_ms=self._config.max_block_ms, what="committing offsets", error_of=first_error
            )
        except RaylogError as error:
            failure = explained(error)
            with self._accumulator.lock:
                state.failed(failure)
            raise failure from None

    def _coordinator_of(self, group_id: str) -> CoordinatorLink:
        found = self._groups.get(group_id)
        if found is None:
            found = self._groups[group_id] = CoordinatorLink(self._link, group_id)
        return found

    # -------------------------------------------------------------- the end

    async def commit(self, number: int) -> None:
        """Wait until everything sent is acknowledged, then commit. If anything failed the transaction
        is aborted, and TransactionAbortedError raised, or the error that ends the producer.
        """
        state = self._state
        with self._accumulator.lock:
            state.begin_commit(number)
        async with self._turn:
            try:
                await self._sender.flush()
                if state.phase is not TransactionPhase.COMMITTING:
                    await self._abort()
                    raise state.aborted_error("the transaction was aborted, because something in it failed")
                await self._end(commits=True)
            except asyncio.CancelledError:
                state.lost()
                raise

    async def abort(self, number: int) -> None:
        """Drop what waits to be sent, and abort. Raises only what ends the producer."""
        state = self._state
        if number != state.number or state.phase in (TransactionPhase.READY, TransactionPhase.UNINITIALISED):
            return
        async with self._turn:
            try:
                await self._abort()
            except asyncio.CancelledError:
                state.lost()
                raise

    async def _abort(self) -> None:
        state = self._state
        with self._accumulator.lock:
            state.begin_abort()
        self._sender.wake()
        await self._sender.rest()
        if self._adding is not None:
            await asyncio.wait({self._adding})
        if state.phase is TransactionPhase.FATAL:
            raise await self._told_by_whom(state.fatal_error())
        await self._end(commits=False)

    async def _end(self, *, commits: bool) -> None:
        state = self._state
        mine = state.identity
        assert mine is not None, "a transaction without an identity"
        if not state.is_known_to_coordinator:
            state.ended(None)
            return
        raises_epoch = state.leaders_add_partitions
        request = requests.end_txn(
            state.transactional_id, mine.producer_id, mine.epoch, commits=commits, raises_epoch=raises_epoch
        )
        try:
            reply = await self._ask(request, "committing" if commits else "aborting")
        except RaylogError as error:
            await self._end_failed(error, commits=commits)
            return
        if raises_epoch and reply.producer_id >= 0:
            state.ended(ProducerIdentity(int(reply.producer_id), int(reply.producer_epoch)))
        elif commits or state.error is None:
            state.ended(None)
        else:  # sequences have a gap: the epoch has to rise
            state.lost()

    async def _end_failed(self, error: RaylogError, *, commits: bool) -> None:
        """The coordinator refused, or did not answer."""
        state = self._state
        kind = kind_of(error)
        if kind is ErrorKind.FATAL:
            raise await self._judged(error) from None
        if not commits:
            logger.warning("the abort was not confirmed, and is made sure of before the next transaction: %s", error)
            state.lost()
            return
        if kind is ErrorKind.RETRIABLE:
            state.lost()
            raise ClientTimeoutError(
                f"the commit was not confirmed within max.block.ms={self._config.max_block_ms:g}, and the transaction may "
                f"be committed or aborted: {error}"
            ) from error
        if error.code is ErrorCode.invalid_txn_state:
            late = f"its coordinator has ended it, as it does after transaction.timeout.ms={state.timeout_ms:g}"
            error = error_for(error.code, f"{error}: {late}")
        state.failed(error)
        failure = state.aborted_error("the transaction was aborted")
        await self._abort()
        raise failure

    # -------------------------------------------------------------- inside

    async def _ask(self, request: Any, what: str) -> Any:
        return await self._coordinator.request(
            request, timeout_ms=self._config.max_block_ms, what=what, error_of=_first_code
        )

    async def _judged(self, error: RaylogError) -> RaylogError:
        """The error as the user shall read it; a fatal one ends the producer."""
        if kind_of(error) is not ErrorKind.FATAL:
            return error
        told = await self._told_by_whom(error)
        with self._accumulator.lock:
            self._state.fatal(told)
        return told

    async def _told_by_whom(self, error: RaylogError) -> RaylogError:
        """Of a fenced producer: with what the coordinator knows of the one that fenced it."""
        if error.code is not ErrorCode.producer_fenced:
            return error
        state = self._state
        request = requests.describe_transactions([state.transactional_id])
        code, reply = await self._coordinator.ask(request, timeout_ms=_DESCRIBE_MS, error_of=lambda _: 0)
        told = ""
        if not code and reply.transaction_states and not reply.transaction_states[0].error_code:
            found = reply.transaction_states[0]
            told = f", which has producer id {found.producer_id}, epoch {found.producer_epoch} now"
        return state.fenced_error(error.code, told)

    async def close(self) -> None:
        """Abort what is under way, as far as that can be done."""
        if self._state.phase in (TransactionPhase.OPEN, TransactionPhase.FAILED):
            try:
                await self.abort(self._state.number)
            except RaylogError as error:
                logger.warning("a transaction was under way, and was not aborted: %s", error)
        if self._adding is not None:
            self._adding.cancel()
        self._coordinator.close()
        for group in self._groups.values():
            group.close()


def _first_code(reply: Any) -> int:
    """Of an answer with one error, or with one for each partition (AddPartitionsToTxn)."""
    if hasattr(reply, "error_code"):
        return int(reply.error_code)
    codes = [
        int(each.partition_error_code)
        for topic in reply.results_by_topic_v3_and_below
        for each in topic.results_by_partition
    ]
    return next((code for code in codes if code), 0)
