"""Leave to begin a transaction in a log: what leaders ask transaction coordinators before they append
(KIP-890).

A batch of a transaction that is open in this log is appended as any other. For the first one the
coordinator is asked whether the partition belongs to the producer's open transaction, and a *leave*
is kept until a batch has used it. A marker voids it, whatever the coordinator said before: the
transaction to which it was given has ended (in version 2 by the epoch: the marker of the transaction
before may come after the leave was asked for). So a Produce that comes late is never appended::

    asked      a question is under way; batches of the same producer and epoch wait for the same answer
    granted    the next batch may begin the transaction
    refused    nothing may, until the coordinator is asked again

A coordinator that promises to end a transaction here sends a marker for it, even if nothing came
here. So a leave that is never used is voided, too, and needs no time limit of its own.

The lowest sequence for which the coordinator was asked is remembered. Where nothing is known of the
producer any sequence would be taken, so a batch behind one that was refused would leave a gap.

A request that waits for an answer is *set aside*, before its records are checked
(``produce_requests``): others' batches for the same partition pass it. Those of the same producer
for the same partition stay behind it.

Invariants (``check``): a request set aside stands once in the line of each of its producers'
partitions, and waits for an answer or for another request; a question has somebody who waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Final

from kio.schema.errors import ErrorCode

from raylog.log.markers import TransactionEnd
from raylog.log.producers import OutOfOrderSequence
from raylog.records.batch import (
    ATTRIBUTES_LOW_POSITION,
    CURRENT_MAGIC,
    HEADER_SIZE,
    MAGIC_POSITION,
    TRANSACTIONAL_MASK,
    BatchView,
)
from raylog.records.corrupt import CorruptBatch
from raylog.replication.context import NOT_LEADER_OR_FOLLOWER, HostContext
from raylog.replication.events import Buffer, ProducePartition, ProduceReceived, Reply, Token
from raylog.replication.transaction_events import (
    NO_LEAVE,
    LeaveGiven,
    LeaveWanted,
    TransactionMembership,
    TransactionVerified,
    VerifyTransaction,
)
from raylog.types import TopicIdPartition

if TYPE_CHECKING:
    from raylog.replication.leader import Leader
    from raylog.replication.replica import Replica

LEAVES_MAX: Final = 1_000
"""Of one leader, for producers that have nothing open there. Beyond it the oldest are forgotten and
asked for again.
"""
INVALID_TXN_STATE = ErrorCode.invalid_txn_state.value
_ABORTABLE = ErrorCode.transaction_abortable.value
_CANNOT_BE_ASKED = frozenset(
    code.value
    for code in (
        ErrorCode.concurrent_transactions,
        ErrorCode.network_exception,
        ErrorCode.request_timed_out,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
    )
)


class LeaveState(Enum):
    ASKED = "asked"
    GRANTED = "granted"
    REFUSED = "refused"


def error_for_producer(error: int, membership: TransactionMembership) -> int:
    """What a producer hears of a coordinator's answer. That it can't be asked is a reason to try
    again.
    """
    if error == ErrorCode.producer_fenced.value:
        return ErrorCode.invalid_producer_epoch.value
    if error == _ABORTABLE and not membership.is_abortable:
        return INVALID_TXN_STATE
    return ErrorCode.not_enough_replicas.value if error in _CANNOT_BE_ASKED else error


class Leave:
    """Of one producer to begin a transaction in the log of one leader."""

    __slots__ = ("error", "leader", "lowest_sequence", "number", "producer_epoch", "producer_id", "state", "waiters")

    def __init__(
        self, number: int, leader: Leader, producer_id: int, producer_epoch: int, lowest_sequence: int
    ) -> None:
        self.number = number
        self.leader = leader
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.lowest_sequence = lowest_sequence
        self.state = LeaveState.ASKED
        self.error = 0
        self.waiters: list[_SetAside | _Wanted] = []

    @property
    def is_void(self) -> bool:
        """Whether a marker has come, or the leadership has ended."""
        return self.leader.leaves.get(self.producer_id) is not self

    def outlives(self, end: TransactionEnd) -> bool:
        """Whether it is for a transaction after the one that the marker ends. In version 2 a marker
        bears the epoch of the next one, whose first batch may come before it.
        """
        return end.version >= 2 and self.producer_epoch >= end.producer_epoch

    @property
    def holds(self) -> bool:
        return self.state is LeaveState.GRANTED and not self.is_void

    def refusal(self, part: ProducePartition, leader: Leader) -> int:
        """The error with which its answer, if it is one, refuses the batch; 0 where it is the log
        that judges.
        """
        if self.leader is not leader:
            return NOT_LEADER_OR_FOLLOWER  # it was asked for by a leader whose epoch has ended
        assert part.membership is not None, part.id
        return error_for_producer(self.error, part.membership)

    def words(self) -> str:
        """What was asked, for the error's message."""
        return f"the coordinator of producer {self.producer_id} was asked about its transaction: {ErrorCode(self.error).name.upper()}"

    def admit(self, batch: BatchView) -> None:
        """Raise OUT_OF_ORDER_SEQUENCE_NUMBER if the batch would be the first one known of the
        producer, and one before it was refused.
        """
        state = self.leader.log.producers.get(batch.producer_id)
        is_first = state is None or state.epoch != batch.producer_epoch or not state.batches
        if is_first and batch.base_sequence > self.lowest_sequence:
            raise OutOfOrderSequence(
                f"{self.leader.log.where}: producer {self.producer_id} sent sequence {batch.base_sequence} after "
                f"{self.lowest_sequence} was refused."
            )


class _Wanted:
    """A LeaveWanted that waits."""

    __slots__ = ("membership", "token")

    def __init__(self, token: Token, membership: TransactionMembership) -> None:
        self.token = token
        self.membership = membership


class _SetAside:
    """A Produce that waits for ``pending`` answers. ``leaves`` by index in the request."""

    __slots__ = ("keys", "leaves", "pending", "request")

    def __init__(self, request: ProduceReceived, keys: tuple[_Key, ...]) -> None:
        self.request = request
        self.keys = keys
        self.leaves: dict[int, Leave] = {}
        self.pending = 0


_Key = tuple[TopicIdPartition, int]
Leaves = Mapping[int, Leave]
"""By index in a Produce."""
NO_LEAVES: Leaves = {}
Admit = Callable[[ProduceReceived, Leaves, int, int], None]


class TransactionChecks:
    """``admit`` is called once for each Produce that was set aside, with its leaves."""

    __slots__ = ("_admit", "_aside", "_context", "_last_number", "_lines", "_questions", "_replicas")

    def __init__(self, context: HostContext, replicas: Mapping[TopicIdPartition, Replica], admit: Admit) -> None:
        self._context = context
        self._replicas = replicas
        self._admit = admit
        self._aside: dict[Token, _SetAside] = {}
        self._lines: dict[_Key, deque[_SetAside]] = {}
        self._questions: dict[int, tuple[Leave, TransactionMembership]] = {}
        self._last_number = NO_LEAVE

    def holds(self, token: Token) -> bool:
        """Whether that Produce is set aside."""
        return token in self._aside

    # -------------------------------------------------------------- produce requests

    def take(self, request: ProduceReceived) -> Mapping[int, Leave] | None:
        """The leaves with which the request may go on, by index; None if it is set aside."""
        batches = [_transactional(part.records) for part in request.partitions]
        keys = {(part.id, batch.producer_id): None for part, batch in _zipped(request, batches)}
        if not keys:
            return NO_LEAVES
        aside = _SetAside(request, tuple(keys))
        for index, (part, batch) in enumerate(zip(request.partitions, batches, strict=True)):
            leave = self._leave_for(part, batch) if batch is not None else None
            if leave is not None:
                aside.leaves[index] = leave
                if leave.state is LeaveState.ASKED:
                    leave.waiters.append(aside)
                    aside.pending += 1
        if not aside.pending and not any(key in self._lines for key in keys):
            return aside.leaves
        self._aside[request.token] = aside
        for key in keys:
            self._lines.setdefault(key, deque()).append(aside)
        return None

    def _leave_for(self, part: ProducePartition, batch: BatchView) -> Leave | None:
        """The leave that the batch needs; None if it needs none, or can't have one and is refused at
        its append.
        """
        replica = self._replicas.get(part.id)
        leader = replica.leader if replica is not None else None
        if leader is None or part.membership is None:
            return None
        producers = leader.log.producers
        state = producers.get(batch.producer_id)
        if state is not None and state.epoch > batch.producer_epoch:
            return None
        if producers.has_open(batch.producer_id, batch.producer_epoch) or producers.repeats(batch):
            return None
        lowest = 0 if part.membership.adds else batch.base_sequence  # each transaction of version 2 begins with 0
        return self._asked(leader, part.membership, batch.producer_id, batch.producer_epoch, lowest)

    def _asked(
        self, leader: Leader, membership: TransactionMembership, producer_id: int, epoch: int, lowest_sequence: int
    ) -> Leave:
        """The leave of that producer, which is asked for unless it is granted or being asked for."""
        known = leader.leaves.get(producer_id)
        if known is not None and known.producer_epoch == epoch:
            lowest_sequence = min(lowest_sequence, known.lowest_sequence)
            known.lowest_sequence = lowest_sequence
            if known.state is not LeaveState.REFUSED:
                return known
        self._last_number = number = self._last_number + 1
        leave = Leave(number, leader, producer_id, epoch, lowest_sequence)
        leader.leaves.pop(producer_id, None)
        while len(leader.leaves) >= LEAVES_MAX:
            del leader.leaves[next(iter(leader.leaves))]
        leader.leaves[producer_id] = leave
        self._questions[number] = leave, membership
        topic, partition = leader.replica.assignment.topic, leader.replica.id.partition
        self._context.effects.append(VerifyTransaction(number, topic, partition, membership, producer_id, epoch))
        return leave

    # -------------------------------------------------------------- appends of this process's own

    def wanted(self, event: LeaveWanted) -> None:
        """Answer when the coordinator has been asked, if it has to be."""
        replica = self._replicas.get(event.id)
        leader = replica.leader if replica is not None else None
        if leader is None or leader.leader_epoch != event.leader_epoch:
            self._give(event.token, NOT_LEADER_OR_FOLLOWER, NO_LEAVE)
        elif leader.log.producers.has_open(event.producer_id, event.producer_epoch):
            self._give(event.token, 0, NO_LEAVE)
        else:
            leave = self._asked(leader, event.membership, event.producer_id, event.producer_epoch, 0)
            if leave.state is LeaveState.ASKED:
                leave.waiters.append(_Wanted(event.token, event.membership))
            else:
                self._give(event.token, 0, leave.number)

    def _give(self, token: Token, error: int, leave: int) -> None:
        self._context.effects.append(Reply(token, LeaveGiven(error, leave)))

    # -------------------------------------------------------------- answers

    def verified(self, event: TransactionVerified, now_ms: int, wall_ms: int) -> None:
        leave, _ = self._questions.pop(event.question)
        leave.state = LeaveState.REFUSED if event.error else LeaveState.GRANTED
        leave.error = event.error
        waiters, leave.waiters = leave.waiters, []
        candidates: deque[_SetAside] = deque()
        for waiter in waiters:
            if isinstance(waiter, _Wanted):
                self._give(waiter.token, error_for_producer(event.error, waiter.membership), leave.number)
            else:
                waiter.pending -= 1
                candidates.append(waiter)
        self._go_on(candidates, now_ms, wall_ms)

    def _go_on(self, candidates: deque[_SetAside], now_ms: int, wall_ms: int) -> None:
        """Admit those that wait for nothing any more, and those that stood behind them."""
        while candidates:
            aside = candidates.popleft()
            if aside.request.token not in self._aside:  # it was the next one in two lines
                continue
            if aside.pending or any(self._lines[key][0] is not aside for key in aside.keys):
                continue
            del self._aside[aside.request.token]
            for key in aside.keys:
                line = self._lines[key]
                line.popleft()
                if line:
                    candidates.append(line[0])
                else:
                    del self._lines[key]
            self._admit(aside.request, aside.leaves, now_ms, wall_ms)

    # -------------------------------------------------------------- invariants

    def check(self) -> None:
        """Raise AssertionError where an invariant is broken."""
        for token, aside in self._aside.items():
            assert token == aside.request.token
            assert all(list(self._lines[key]).count(aside) == 1 for key in aside.keys), f"request {token}"
            is_first = all(self._lines[key][0] is aside for key in aside.keys)
            assert aside.pending or not is_first, f"request {token} waits for nothing"
            asked = [leave for leave, _ in self._questions.values() if aside in leave.waiters]
            waits = sum(leave.waiters.count(aside) for leave in asked)
            assert waits == aside.pending, f"request {token} waits for {aside.pending} answers, {waits} come"
        for leave, _ in self._questions.values():
            assert leave.state is LeaveState.ASKED and leave.waiters, f"question {leave.number} is of no use"
        assert all(self._lines.values())


def _zipped(request: ProduceReceived, batches: list[BatchView | None]) -> Iterator[tuple[ProducePartition, BatchView]]:
    for part, batch in zip(request.partitions, batches, strict=True):
        if batch is not None:
            yield part, batch


def _transactional(records: Buffer) -> BatchView | None:
    """The batch, if its header says that it belongs to a transaction. Whether it is sound is found
    out later.
    """
    if len(records) < HEADER_SIZE or not records[ATTRIBUTES_LOW_POSITION] & TRANSACTIONAL_MASK:
        return None
    if records[MAGIC_POSITION] != CURRENT_MAGIC:
        return None
    try:
        batch = BatchView(records)
    except CorruptBatch:
        return None
    return batch if not batch.is_control and batch.producer_id >= 0 else None
