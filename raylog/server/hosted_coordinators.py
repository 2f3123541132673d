"""All coordinators of a process that holds replicas: those of groups, and those of transactions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from raylog.control.session import FromController, ImageChanged
from raylog.coordination.runtime import CoordinatorRuntime, Replicas
from raylog.groups.context import GroupConfig
from raylog.kafka import table
from raylog.kafka.spec import ApiSpec
from raylog.offsets_topic import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from raylog.replication.leaderships import Leadership
from raylog.server.apis import shared_transactions
from raylog.server.apis.shared_transactions import SharedTransactionApi
from raylog.server.apis.transactions import APIS, TransactionApi
from raylog.server.driver import LoopClock
from raylog.server.gathered_parts import gathering
from raylog.server.group_coordinator import GroupCoordinators, WantLeave
from raylog.server.transaction_questions import TransactionQuestions
from raylog.transactions.context import TransactionConfig
from raylog.transactions.machine import TransactionKind
from raylog.transactions.records import TransactionRecord
from raylog.transactions.requests import AddPartitions, TransactionReply, TransactionRequest
from raylog.wire.frames import Entity, RequestHeader
from raylog.wire.request import Request

COORDINATED_TOPICS = (OFFSETS_TOPIC, TRANSACTIONS_TOPIC)
TransactionRuntime = CoordinatorRuntime[TransactionRequest, TransactionReply, TransactionRecord]


class HostedCoordinators:
    """``handlers`` and ``private_handlers`` go into the server's table, ``coordinating`` serves its
    door; the rest is what the process hears.
    """

    def __init__(
        self,
        replicas: Replicas,
        questions: TransactionQuestions,
        want_leave: WantLeave,
        *,
        groups: GroupConfig | None = None,
        transactions: TransactionConfig | None = None,
    ) -> None:
        """In the running event loop and its time."""
        self.groups = GroupCoordinators.on(replicas, want_leave, config=groups)
        kind = TransactionKind(transactions)
        self.transaction_counts = kind.counts
        self.transactions: TransactionRuntime = CoordinatorRuntime(kind, replicas, LoopClock(), others=questions.ask)
        self._questions = questions
        self._in_transactions = {
            api.spec.key: (api, self._handler(api)) for api in APIS if api.spec in table.IN_TRANSACTIONS
        }

    def handlers(self) -> dict[ApiSpec, Callable[[Request], None]]:
        return self.groups.handlers() | {api.spec: self._handler(api) for api in APIS}

    def private_handlers(self) -> dict[int, Callable[[Request], None]]:
        """Of raylog's own APIs, by key."""
        return {api.api_key: self._private_handler(api) for api in shared_transactions.APIS}

    def _private_handler(self, api: SharedTransactionApi) -> Callable[[Request], None]:
        return gathering(self.transactions, lambda request: [api.to_request(request.body)], api.to_response)

    def _handler(self, api: TransactionApi) -> Callable[[Request], None]:
        return gathering(
            self.transactions, lambda request: api.to_requests(request.body, request.version), api.to_entity
        )

    def coordinating(self, header: RequestHeader, body: Entity) -> Callable[[Request], None] | None:
        """What serves a client's request in a transaction, if this process coordinates the transaction
        now and the partitions that the request names exist; None if not.
        """
        found = self._in_transactions.get(header.api_key)
        if found is None:
            return None
        api, handler = found
        split = api.spec.groups
        if split is not None and header.version >= split.first_version:
            return None
        (asked,) = api.to_requests(body, header.version)
        number = self.transactions.kind.partition_of(asked)
        if number is None or not self.transactions.coordinates(number):
            return None
        is_known = not isinstance(asked, AddPartitions) or self._questions.are_there(asked.partitions)
        return handler if is_known else None

    def hear(self, frame: FromController) -> None:
        """The controller says something; some of it concerns coordinators."""
        if isinstance(frame, ImageChanged):
            self._questions.hear(frame)
            return
        self.groups.runtime.hear(frame)
        self.transactions.hear(frame)

    def receive(self, changes: Sequence[Leadership]) -> None:
        """Take in what has become of replicas."""
        self.groups.runtime.receive(changes)
        self.transactions.receive(changes)

    def stop(self) -> None:
        """The process ends: no client is answered any more."""
        self.groups.runtime.stop()
        self.transactions.stop()
        self._questions.close()
