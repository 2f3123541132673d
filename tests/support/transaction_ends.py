"""A transaction coordinator without a cluster: its log is a list, and what it asks of others waits until a test answers.

``ask`` returns the token of a request; ``replies`` has the answers by token. What is appended is replicated at once, unless
``is_replicating`` is off. ``failover`` goes on with another machine that has read the same log.
"""

from __future__ import annotations

import uuid

from raylog.coordination.coordinator import PartitionCoordinator
from raylog.coordination.events import (
    Append,
    Appended,
    AskOthers,
    CoordinatorRequestReceived,
    CoordinatorTicked,
    Elected,
    Event,
    HighWatermarkRose,
    OthersAnswered,
    OutsideAnswer,
    OutsideQuestion,
    Replayed,
    Resigned,
    SendCoordinatorReply,
    TopicsKnown,
)
from raylog.transactions.context import TransactionConfig
from raylog.transactions.machine import TransactionCoordinator, TransactionKind
from raylog.transactions.records import TransactionRecord, TransactionState, TransactionValue
from raylog.transactions.requests import (
    AddPartitions,
    EndTransaction,
    InitTransactionalId,
    MarkersWritten,
    PartitionsAdded,
    ProducerIdsGiven,
    TransactionalIdInitialised,
    TransactionEnded,
    TransactionReply,
    TransactionRequest,
    WantProducerIds,
    WriteMarkers,
)
from raylog.types import TopicPartition

ID = "payments"
TIMEOUT_MS = 60_000
NOT_LEADER_OR_FOLLOWER = 6


class TransactionEnds:
    def __init__(self, config: TransactionConfig | None = None, *, gives_ids: bool = True) -> None:
        self.kind = TransactionKind(config)
        self.gives_ids = gives_ids  # at once
        self.is_replicating = True
        self.append_error = 0
        self.now_ms = 1_000
        self.wall_ms = 1_700_000_000_000
        self.epoch = 0
        self.log: list[TransactionRecord] = []
        self.replies: dict[int, TransactionReply] = {}
        self.questions: dict[int, OutsideQuestion] = {}
        self.topics = {name: uuid.uuid5(uuid.NAMESPACE_URL, name) for name in ("t", "u", "__consumer_offsets")}
        self._next_token = 0
        self._next_id = 7_000
        self.coordinator: TransactionCoordinator = PartitionCoordinator(self.kind.machine(0))
        self.lead()

    def lead(self) -> None:
        self.epoch += 1
        self.handle(TopicsKnown(self.topics))
        self.handle(Elected(self.epoch, len(self.log)))
        if self.coordinator.position < len(self.log):
            self.handle(Replayed(tuple(self.log[self.coordinator.position :]), len(self.log)))

    def failover(self) -> None:
        """Another process takes over, after this one has heard of it."""
        self.handle(Resigned(self.epoch))
        self.questions.clear()
        self.kind = TransactionKind(self.kind._settings.config)
        self.coordinator = PartitionCoordinator(self.kind.machine(0))
        self.lead()

    def handle(self, event: Event[TransactionRequest, TransactionRecord]) -> None:
        orders = self.coordinator.handle(event, self.now_ms, self.wall_ms)
        for order in orders:
            match order:
                case SendCoordinatorReply(token, reply):
                    assert token not in self.replies, f"{token} is answered twice"
                    self.replies[token] = reply
                case Append():
                    self._append(order)
                case AskOthers(number, question):
                    self.questions[number] = question
                    if isinstance(question, WantProducerIds) and self.gives_ids:
                        self.give_ids()
        self.coordinator.check()

    def _append(self, order: Append[TransactionRecord]) -> None:
        if self.append_error:
            self.handle(Appended(order.sequence, -1, self.append_error))
            return
        for record in order.records:
            decoded = self.kind.decode(*self.kind.encode(record))
            assert decoded == record, f"{decoded} was {record}"
        self.log += order.records
        self.handle(Appended(order.sequence, len(self.log)))
        if self.is_replicating:
            self.replicate()

    def replicate(self) -> None:
        self.handle(HighWatermarkRose(len(self.log)))

    def sleep(self, ms: int) -> None:
        """Time passes, tick by tick."""
        end_ms = self.now_ms + ms
        while (due_ms := self.coordinator.next_deadline_ms()) is not None and due_ms <= end_ms:
            self._to(max(due_ms, self.now_ms))
            self.handle(CoordinatorTicked())
        self._to(end_ms)

    def _to(self, now_ms: int) -> None:
        self.wall_ms += now_ms - self.now_ms
        self.now_ms = now_ms

    # ------------------------------------------------------------------ requests

    def ask(self, request: TransactionRequest) -> int:
        self._next_token += 1
        self.handle(CoordinatorRequestReceived(self._next_token, request))
        return self._next_token

    def reply(self, request: TransactionRequest) -> TransactionReply:
        return self.replies[self.ask(request)]

    def init(
        self, producer_id: int = -1, producer_epoch: int = -1, *, timeout_ms: int = TIMEOUT_MS
    ) -> TransactionalIdInitialised:
        found = self.reply(InitTransactionalId(ID, timeout_ms, producer_id, producer_epoch))
        assert isinstance(found, TransactionalIdInitialised)
        return found

    def add(self, producer_id: int, epoch: int, *partitions: TopicPartition, version: int = 0) -> int:
        """The error of all partitions."""
        found = self.reply(AddPartitions(ID, producer_id, epoch, partitions or (TopicPartition("t", 0),), version))
        assert isinstance(found, PartitionsAdded)
        (error,) = {error for _, error in found.errors}
        return error

    def end(self, producer_id: int, epoch: int, *, commits: bool = True, version: int = 0) -> TransactionEnded:
        found = self.reply(EndTransaction(ID, producer_id, epoch, commits, version))
        assert isinstance(found, TransactionEnded)
        return found

    # ------------------------------------------------------------------ others

    def markers(self) -> WriteMarkers:
        """The one question about markers that waits."""
        (found,) = [each for each in self.questions.values() if isinstance(each, WriteMarkers)]
        return found

    def answer(self, kind: type[OutsideQuestion], answer: OutsideAnswer) -> None:
        number = next(number for number, question in self.questions.items() if isinstance(question, kind))
        del self.questions[number]
        self.handle(OthersAnswered(number, answer))

    def write_markers(self, error: int = 0) -> WriteMarkers:
        """The leaders answer: all alike."""
        asked = self.markers()
        self.answer(WriteMarkers, MarkersWritten(tuple((each, error) for each in asked.partitions)))
        return asked

    def give_ids(self, error: int = 0) -> None:
        first, self._next_id = self._next_id, self._next_id + 1_000
        self.answer(WantProducerIds, ProducerIdsGiven(error) if error else ProducerIdsGiven(0, first, 1_000))

    @property
    def value(self) -> TransactionValue:
        machine = self.coordinator.machine
        return machine.image[ID]  # type: ignore[attr-defined,no-any-return]

    @property
    def state(self) -> TransactionState:
        return self.value.state
