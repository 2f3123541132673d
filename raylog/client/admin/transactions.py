"""What an admin client can learn of transactions and do about those that hang, as Kafka's does:
ListTransactions, DescribeTransactions and WriteTxnMarkers (KIP-664).

A transaction *hangs* if a partition holds it open and no coordinator will end it: it is older than
any transaction may be, and its coordinator does not know that the partition belongs to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from kio.schema.errors import ErrorCode

from raylog.client.admin.inspection import ProducerInfo
from raylog.client.config import AdminConfig
from raylog.client.groups.coordinator_link import CoordinatorLink
from raylog.client.links import requests
from raylog.client.links.leader_requests import LeaderRequests
from raylog.client.links.link import ClusterLink
from raylog.errors import kafka_error
from raylog.offsets_topic import TRANSACTIONS_TOPIC
from raylog.types import TopicPartition, broker_of

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TransactionListing:
    """``coordinator``: the broker that answered."""

    transactional_id: str
    coordinator: int
    producer_id: int
    state: str


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """``start_ms``: since 1970, None while no transaction is under way."""

    transactional_id: str
    coordinator: int
    producer_id: int
    producer_epoch: int
    state: str
    timeout_ms: int
    start_ms: int | None
    partitions: tuple[TopicPartition, ...]


class AsyncTransactionInspection:
    """Mixed into ``AsyncAdminClient``."""

    _config: AdminConfig

    def _opened(self) -> ClusterLink:
        raise NotImplementedError

    async def list_transactions(
        self, *, states: Iterable[str] = (), producer_ids: Iterable[int] = (), longer_than_ms: int = -1
    ) -> list[TransactionListing]:
        """All transactional ids, by name: in these states, of these producer ids, with a transaction
        that has been under way for longer. Raises where a coordinator does not answer.
        """
        link = self._opened()
        try:
            views = await link.metadata.refresh([TRANSACTIONS_TOPIC], timeout_ms=self._config.default_api_timeout_ms)
        except kafka_error(ErrorCode.unknown_topic_or_partition):
            return []
        request = requests.list_transactions(states, producer_ids, longer_than_ms)
        nodes = {
            part.leader.node: index
            for view in views
            for index, part in enumerate(view.partitions)
            if part.leader.endpoint
        }
        found = await asyncio.gather(*(self._listed_by(link, index, request) for index in nodes.values()))
        return sorted({each.transactional_id: each for part in found for each in part}.values(), key=_name)

    async def _listed_by(self, link: ClusterLink, partition: int, request: Any) -> list[TransactionListing]:
        coordinator = CoordinatorLink(link, "", partition=partition, topic=TRANSACTIONS_TOPIC)
        reply = await coordinator.request(request, timeout_ms=self._config.default_api_timeout_ms, what="the list")
        broker = broker_of(coordinator.node)
        return [
            TransactionListing(str(each.transactional_id), broker, int(each.producer_id), each.transaction_state)
            for each in reply.transaction_states
        ]

    async def describe_transactions(self, transactional_ids: Iterable[str]) -> dict[str, TransactionDescription]:
        """Transactional ids by name. Raises TransactionalIdNotFoundError."""
        names = list(dict.fromkeys(transactional_ids))
        return dict(zip(names, await asyncio.gather(*map(self._described, names)), strict=True))

    async def _described(self, transactional_id: str) -> TransactionDescription:
        coordinator = CoordinatorLink(self._opened(), transactional_id, topic=TRANSACTIONS_TOPIC)
        reply = await coordinator.request(
            requests.describe_transactions([transactional_id]),
            timeout_ms=self._config.default_api_timeout_ms,
            what="the description",
            error_of=lambda reply: int(reply.transaction_states[0].error_code),
        )
        found = reply.transaction_states[0]
        started = found.transaction_start_time
        start_ms = round(started.timestamp() * 1000) if started is not None else 0
        return TransactionDescription(
            transactional_id,
            broker_of(coordinator.node),
            int(found.producer_id),
            int(found.producer_epoch),
            found.transaction_state,
            round(found.transaction_timeout.total_seconds() * 1000),
            start_ms if start_ms > 0 else None,
            tuple(TopicPartition(str(each.topic), int(number)) for each in found.topics for number in each.partitions),
        )

    async def find_hanging_transactions(
        self, partitions: Iterable[TopicPartition], *, older_than_ms: int, now_ms: int
    ) -> list[tuple[TopicPartition, ProducerInfo]]:
        """Those of these partitions that no coordinator will end. ``now_ms``: since 1970."""
        asked = [TopicPartition(*each) for each in partitions]
        producers = await LeaderRequests(self._opened()).describe_producers(asked, self._config.default_api_timeout_ms)
        old = [
            (key, each)
            for key in sorted(producers)
            for each in producers[key]
            if each.transaction_start_offset is not None and each.last_timestamp < now_ms - older_than_ms
        ]
        if not old:
            return []
        listed = await self.list_transactions(producer_ids={each.producer_id for _, each in old})
        names = {each.producer_id: each.transactional_id for each in listed}
        known = await self.describe_transactions(names.values())
        return [
            (key, each)
            for key, each in old
            if each.producer_id not in names or key not in known[names[each.producer_id]].partitions
        ]

    async def abort_transaction(
        self, partition: TopicPartition, *, producer_id: int, producer_epoch: int, coordinator_epoch: int
    ) -> None:
        """Have the partition's leader write the marker of an abort. Only for a transaction that hangs:
        one whose coordinator still lives is torn by it.
        """
        key = TopicPartition(*partition)
        request = requests.write_txn_marker(key, producer_id, producer_epoch, coordinator_epoch)
        await LeaderRequests(self._opened()).end_transaction(key, request, self._config.default_api_timeout_ms)


class TransactionInspection:
    """The same with blocking calls. Mixed into ``AdminClient``."""

    _client: AsyncTransactionInspection

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        raise NotImplementedError

    def list_transactions(
        self, *, states: Iterable[str] = (), producer_ids: Iterable[int] = (), longer_than_ms: int = -1
    ) -> list[TransactionListing]:
        """See ``AsyncAdminClient.list_transactions``."""
        return self._run(
            self._client.list_transactions(states=states, producer_ids=producer_ids, longer_than_ms=longer_than_ms)
        )

    def describe_transactions(self, transactional_ids: Iterable[str] | str) -> dict[str, TransactionDescription]:
        """See ``AsyncAdminClient.describe_transactions``."""
        names = [transactional_ids] if isinstance(transactional_ids, str) else transactional_ids
        return self._run(self._client.describe_transactions(names))

    def find_hanging_transactions(
        self, partitions: Iterable[TopicPartition], *, older_than_ms: int, now_ms: int
    ) -> list[tuple[TopicPartition, ProducerInfo]]:
        """See ``AsyncAdminClient.find_hanging_transactions``."""
        return self._run(self._client.find_hanging_transactions(partitions, older_than_ms=older_than_ms, now_ms=now_ms))

    def abort_transaction(
        self, partition: TopicPartition, *, producer_id: int, producer_epoch: int, coordinator_epoch: int
    ) -> None:
        """See ``AsyncAdminClient.abort_transaction``."""
        self._run(
            self._client.abort_transaction(
                partition,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                coordinator_epoch=coordinator_epoch,
            )
        )


def _name(listing: TransactionListing) -> str:
    return listing.transactional_id
