"""A transaction coordinator in a world without mercy: producers of both versions that forget, retry and return, coordinators that die
with what of their log was not replicated, leaders that refuse markers. Everything is drawn from one seed.

- No producer id and epoch is given to two producers.
- Whatever was answered is what the markers say: a transaction whose commit was acknowledged has no marker of an abort, and the other
  way round.
- Nothing that was acknowledged is forgotten: every partition that was added to a committed transaction gets its marker.
- Once the world heals, every transaction ends.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from raylog.transactions.records import TransactionState
from raylog.transactions.requests import (
    AddPartitions,
    EndTransaction,
    InitTransactionalId,
    MarkersWritten,
    PartitionsAdded,
    TransactionalIdInitialised,
    TransactionEnded,
    TransactionRequest,
    WriteMarkers,
)
from raylog.transactions.transaction import PREPARED
from raylog.types import TopicPartition
from tests.support.transaction_ends import ID, TransactionEnds

PARTITIONS = tuple(TopicPartition(topic, number) for topic in "tu" for number in range(3))
NOT_LEADER_OR_FOLLOWER = 6


@dataclass
class Producing:
    """One client. ``version`` of the protocol; ``added``: partitions of which it knows that they are in its transaction."""

    version: int
    producer_id: int = -1
    epoch: int = -1
    added: set[TopicPartition] = field(default_factory=set)
    wants: bool | None = None  # how it ends the transaction, until it is answered
    token: int | None = None
    asked: TransactionRequest | None = None
    is_away: bool = False  # it was fenced, and returns some day


class World(TransactionEnds):
    def __init__(self, seed: int) -> None:
        super().__init__()
        self.rng = random.Random(seed)
        self.producers = [Producing(self.rng.choice((0, 2))) for _ in range(3)]
        self.given: dict[tuple[int, int], Producing] = {}
        self.promised: dict[tuple[int, int, int], tuple[bool, frozenset[TopicPartition]]] = {}
        self.rounds: dict[tuple[int, int], int] = {}
        self.marked: dict[tuple[int, int], dict[TopicPartition, bool]] = {}
        self.is_healed = False
        self.ended = 0

    # ------------------------------------------------------------------ producers

    def step_producer(self) -> None:
        one = self.rng.choice(self.producers)
        if one.token is not None:
            if one.token in self.replies:
                self.answered(one, self.replies.pop(one.token))
            elif self.rng.random() < 0.2:  # it heard nothing: its connection is gone, it asks again
                assert one.asked is not None
                one.token = self.ask(one.asked)
            return
        if one.producer_id < 0 or self.rng.random() < 0.005:
            if one.is_away and self.rng.random() < 0.98:
                return
            one.producer_id, one.added, one.wants, one.is_away = -1, set(), None, False
            self.send(one, InitTransactionalId(ID, self.rng.choice((5_000, 60_000))))
        elif one.wants is not None:
            self.send(one, EndTransaction(ID, one.producer_id, one.epoch, one.wants, one.version))
        elif not one.added or self.rng.random() < 0.5:
            asked = tuple(self.rng.sample(PARTITIONS, self.rng.randint(1, 3)))
            self.send(one, AddPartitions(ID, one.producer_id, one.epoch, asked, one.version))
        else:
            one.wants = self.rng.random() < 0.6

    def send(self, one: Producing, request: TransactionRequest) -> None:
        one.asked, one.token = request, self.ask(request)

    def answered(self, one: Producing, reply: object) -> None:
        asked, one.token, one.asked = one.asked, None, None
        match reply:
            case TransactionalIdInitialised(0, producer_id, epoch):
                assert self.given.setdefault((producer_id, epoch), one) is one, f"{producer_id}, {epoch} is given twice"
                one.producer_id, one.epoch = producer_id, epoch
            case PartitionsAdded(errors) if not any(error for _, error in errors):
                assert isinstance(asked, AddPartitions)
                one.added |= set(asked.partitions)
            case TransactionEnded(0, producer_id, epoch):
                assert isinstance(asked, EndTransaction)
                self.acknowledged(one, asked)
                if one.version:
                    assert (producer_id, epoch) != (one.producer_id, one.epoch)
                    assert self.given.setdefault((producer_id, epoch), one) is one
                    one.producer_id, one.epoch = producer_id, epoch
                one.added, one.wants = set(), None
            case TransactionalIdInitialised() | PartitionsAdded() | TransactionEnded():
                errors = {error for _, error in reply.errors} if isinstance(reply, PartitionsAdded) else {reply.error}
                if not errors <= {14, 15, 16, 51}:  # loading, not available, elsewhere, concurrent: it asks again
                    one.producer_id, one.is_away = -1, True  # fenced, or what it wants makes no sense any more
            case _:
                raise AssertionError(reply)

    def acknowledged(self, one: Producing, asked: EndTransaction) -> None:
        """Its markers are those of the epoch that the decision raised, if it did."""
        if one.added:
            epoch = one.epoch + (1 if one.version else 0)
            key = (one.producer_id, epoch)
            self.rounds[key] = self.rounds.get(key, 0) + 1
            self.promised[*key, self.rounds[key]] = (asked.commits, frozenset(one.added))
            self.ended += 1

    # ------------------------------------------------------------------ leaders and coordinators

    def step_leaders(self) -> None:
        for number, question in list(self.questions.items()):
            if isinstance(question, WriteMarkers) and (self.is_healed or self.rng.random() < 0.5):
                errors = []
                for partition in question.partitions:
                    error = 0 if self.is_healed or self.rng.random() < 0.6 else NOT_LEADER_OR_FOLLOWER
                    errors.append((partition, error))
                    if not error or self.rng.random() < 0.5:  # it was written, and the answer is lost
                        self.mark(question, partition)
                if self.questions.get(number) is question:
                    self.answer(WriteMarkers, MarkersWritten(tuple(errors)))

    def mark(self, question: WriteMarkers, partition: TopicPartition) -> None:
        marked = self.marked.setdefault((question.producer_id, question.producer_epoch), {})
        if question.version or partition not in marked:
            assert marked.setdefault(partition, question.commits) == question.commits, f"{question} after {marked}"

    def step_coordinator(self) -> None:
        kind = self.rng.random()
        if kind < 0.3:
            self.is_replicating = self.rng.random() < 0.7
            if self.is_replicating:
                self.replicate()
        elif kind < 0.5:
            self.append_error = self.rng.choice((0, 0, 0, 0, 19))
        elif kind < 0.55:
            del self.log[self.coordinator.position :]  # what was not replicated is lost
            self.failover()
        else:
            self.sleep(self.rng.choice((1, 20, 60, 1_000)))

    # ------------------------------------------------------------------ a run

    def run(self) -> None:
        for _ in range(1_500):
            self.rng.choices((self.step_producer, self.step_leaders, self.step_coordinator), (6, 3, 2))[0]()
        self.heal()

    def heal(self) -> None:
        self.is_healed, self.append_error, self.is_replicating = True, 0, True
        self.replicate()
        for _ in range(200):
            self.step_leaders()
            self.sleep(1_000)
        if ID in self.coordinator.machine.image:  # type: ignore[attr-defined]
            assert self.state not in (*PREPARED, TransactionState.ONGOING), self.value
        for (producer_id, epoch, _), (commits, partitions) in self.promised.items():
            if self.rounds[producer_id, epoch] == 1:
                marked = self.marked.get((producer_id, epoch), {})
                wrong = {each: marked.get(each) for each in partitions if marked.get(each) is not commits}
                assert not wrong, (
                    f"{producer_id}, {epoch}: {'commit' if commits else 'abort'} was promised, not {wrong}"
                )
