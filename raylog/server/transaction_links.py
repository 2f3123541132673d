"""Questions of a process that leads partitions to the coordinators of transactions: whether a
partition belongs to a transaction, or to add it (AddPartitionsToTxn, KIP-890).

The coordinator of a transactional id is the leader of its partition of ``__transaction_state``. It
is found as a client finds a group's (``coordinator_link``). There is one request at a time to each;
what is asked meanwhile goes with the next one, together. A request names a transactional id once,
so what differs in producer or kind waits for the one after.

Each question is answered exactly once, by ``on_event``. Where a coordinator is just moving, or ends
the transaction before, the question is put again for a moment: the client would only ask again. The
last error is the answer then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final, NamedTuple

from kio.schema.errors import ErrorCode

from raylog.client.groups.coordinator_link import CoordinatorLink
from raylog.client.links.address import ClusterAddress
from raylog.client.links.link import ClusterLink
from raylog.client.links.link_config import ServerLinkConfig
from raylog.disks.disk import Disk
from raylog.offsets_topic import TRANSACTIONS_TOPIC, partition_for
from raylog.replication.transaction_events import TransactionVerified, VerifyTransaction
from raylog.types import Endpoint

TIMEOUT_MS: Final = 10_000
TOGETHER_MAX: Final = 1_000
RETRY_S: Final = 0.02
RETRIES_MS: Final[dict[int, int]] = {
    ErrorCode.concurrent_transactions.value: 100,
    ErrorCode.unknown_topic_or_partition.value: 1_000,  # this leader knows it, so the coordinator soon will
    ErrorCode.not_coordinator.value: 1_000,
    ErrorCode.coordinator_load_in_progress.value: 1_000,
    ErrorCode.coordinator_not_available.value: 1_000,
}
"""For how long a question is put again after such an answer. The first one is Kafka's
add.partitions.to.txn.retry.backoff.max.ms.
"""


class _Group(NamedTuple):
    """Questions that stand in a request as one transaction."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    adds: bool


class _OpenQuestion:
    __slots__ = ("order", "since_s")

    def __init__(self, order: VerifyTransaction, since_s: float) -> None:
        self.order = order
        self.since_s = since_s

    @property
    def group(self) -> _Group:
        order = self.order
        return _Group(order.membership.transactional_id, order.producer_id, order.producer_epoch, order.membership.adds)


class TransactionLinks:
    """On the event loop. ``controller``: the active one's broker and address, as far as is known."""

    def __init__(
        self,
        disk: Disk,
        controller: Callable[[], tuple[int, Endpoint] | None],
        on_event: Callable[[TransactionVerified], None],
    ) -> None:
        self._disk = disk
        self._controller = controller
        self._on_event = on_event
        self._link: ClusterLink | None = None
        self._queues: dict[int, list[_OpenQuestion]] = {}  # by partition of ``__transaction_state``
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._coordinators: dict[int, CoordinatorLink] = {}
        self._closing: asyncio.Task[None] | None = None

    def ask(self, order: VerifyTransaction) -> None:
        """Put the question that the order names."""
        loop = asyncio.get_running_loop()
        partition = partition_for(order.membership.transactional_id)
        self._queues.setdefault(partition, []).append(_OpenQuestion(order, loop.time()))
        if partition not in self._tasks:
            self._tasks[partition] = loop.create_task(self._work(partition))

    def close(self) -> None:
        """Ask nothing more, and answer nothing."""
        for task in self._tasks.values():
            task.cancel()
        for coordinator in self._coordinators.values():
            coordinator.close()
        if self._link is not None:
            self._closing = asyncio.get_running_loop().create_task(self._link.close())

    async def _work(self, partition: int) -> None:
        """Until nothing waits for that coordinator any more."""
        while queue := self._queues.pop(partition, []):
            together, later = _request_of(queue)
            again = await self._put(partition, together)
            if again:
                await asyncio.sleep(RETRY_S)
            waiting = again + later + self._queues.pop(partition, [])
            if waiting:
                self._queues[partition] = waiting
        del self._tasks[partition]

    async def _put(self, partition: int, together: dict[_Group, list[_OpenQuestion]]) -> list[_OpenQuestion]:
        """Those that are to be asked again."""
        code, reply = await self._coordinator(partition).ask(_entity(together), timeout_ms=TIMEOUT_MS)
        found = _errors(reply) if reply is not None and not code else {}
        now_s = asyncio.get_running_loop().time()
        again = []
        for asked in [each for those in together.values() for each in those]:
            order = asked.order
            missing = code or ErrorCode.network_exception.value
            error = found.get((order.membership.transactional_id, order.topic, order.partition), missing)
            if (now_s - asked.since_s) * 1_000 < RETRIES_MS.get(error, 0):
                again.append(asked)
            else:
                self._on_event(TransactionVerified(order.question, error))
        return again

    def _address(self) -> ClusterAddress:
        active = self._controller()
        bootstrap = (*((active[1],) if active is not None else ()), *self._disk.controllers)
        return ClusterAddress("raylog", "raylog", self._disk.cluster_id, bootstrap, self._disk.link_secret)

    def _coordinator(self, partition: int) -> CoordinatorLink:
        if self._link is None:
            self._link = ClusterLink(self._address(), ServerLinkConfig("raylog-transactions"))
        found = self._coordinators.get(partition)
        if found is None:
            found = CoordinatorLink(self._link, "", topic=TRANSACTIONS_TOPIC, partition=partition)
            self._coordinators[partition] = found
        return found


def _request_of(queue: list[_OpenQuestion]) -> tuple[dict[_Group, list[_OpenQuestion]], list[_OpenQuestion]]:
    """What one request can ask, and what has to wait for the next."""
    together: dict[_Group, list[_OpenQuestion]] = {}
    groups: dict[str, _Group] = {}
    later = []
    for number, asked in enumerate(queue):
        group = asked.group
        if number >= TOGETHER_MAX or groups.setdefault(group.transactional_id, group) != group:
            later.append(asked)
        else:
            together.setdefault(group, []).append(asked)
    return together, later


def _entity(together: dict[_Group, list[_OpenQuestion]]) -> Any:
    schema: Any = import_module("kio.schema.add_partitions_to_txn.v5.request")
    transactions = []
    for group, asked in together.items():
        topics: dict[str, dict[int, None]] = {}
        for each in asked:
            topics.setdefault(each.order.topic, {})[each.order.partition] = None
        transactions.append(
            schema.AddPartitionsToTxnTransaction(
                transactional_id=group.transactional_id,
                producer_id=group.producer_id,
                producer_epoch=group.producer_epoch,
                verify_only=not group.adds,
                topics=tuple(
                    schema.AddPartitionsToTxnTopic(name=name, partitions=tuple(numbers))
                    for name, numbers in topics.items()
                ),
            )
        )
    return schema.AddPartitionsToTxnRequest(transactions=tuple(transactions))


def _errors(reply: Any) -> dict[tuple[str, str, int], int]:
    return {
        (transaction.transactional_id, topic.name, each.partition_index): int(each.partition_error_code)
        for transaction in reply.results_by_transaction
        for topic in transaction.topic_results
        for each in topic.results_by_partition
    }
