"""Produce requests of one host: appended in the order of their arrival, those with much to check
after a thread has checked them.

What a leader checks in a batch may take long (``raylog.log.record_validation``), and the loop must
not wait for it. Such a request is *held*: ``CheckRecords`` orders the work, ``RecordsChecked``
reports its end, and then the request is appended as any other. What the thread found depends on the
bytes and the topic's configuration only. Whether this replica still leads, whether the batch is a
repeat, how many replicas are in sync: all that is judged at the append.

Order. A request that names a partition of a held one waits behind it, in that partition's line; a
request leaves when its own checks are done and it is first in every line that it stands in. So the
batches of each partition are appended as they came, while requests for other partitions pass. A
held request is a request on its way: it ends by its append, whatever becomes of its client.

Transactions. A Produce that begins one waits first until its coordinator has been asked
(``transaction_checks``). Markers are appended as they come: what is held behind a check and belongs
to the transaction that one ends is refused in its turn.

Late appends. Records for a partition that will serve any moment (``awaited``) are appended when it
does, while the request's other records are not held up. The request is parked meanwhile. In its
turn the partition's share goes the way of a request of its own, under a token that the machine made
up. What no longer waits for it, because the client went away or the time is up, is not appended.

Invariants (``check``): every held request stands in the line of each of its partitions, once; a
request that is first in all its lines waits for a check.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import assert_never

from kio.schema.errors import ErrorCode

from raylog.log.record_validation import CheckedRecords, sound_batch, takes_long
from raylog.records.batch import HEADER_SIZE, peek_size
from raylog.replication.awaited import Awaited, LateAppend
from raylog.replication.context import NOT_LEADER_OR_FOLLOWER, HostContext
from raylog.replication.events import (
    Buffer,
    CheckRecords,
    OwnAppend,
    ProduceEvent,
    ProducePartition,
    ProducePartitionResult,
    ProduceReceived,
    ProduceReply,
    RecordsChecked,
    Reply,
    Token,
)
from raylog.replication.parked import Parked, ParkedProduce
from raylog.replication.replica import Replica
from raylog.replication.transaction_checks import Leave, Leaves, TransactionChecks
from raylog.replication.transaction_events import NO_LEAVE, LeaveWanted, MarkersReceived, TransactionVerified
from raylog.types import INTERNAL_TOPICS, TopicIdPartition

REQUEST_TIMED_OUT = ErrorCode.request_timed_out.value
INVALID_REQUIRED_ACKS = ErrorCode.invalid_required_acks.value
INVALID_RECORD = ErrorCode.invalid_record.value
INVALID_TOPIC_EXCEPTION = ErrorCode.invalid_topic_exception.value

_SEVERAL_BATCHES = (
    "a Produce holds one record batch for each of its partitions; send the others in requests of their own"
)
_ARRIVES = "the partition's leader is just moving to another disk; try again"
_NOTHING_CHECKED: Mapping[int, CheckedRecords] = {}


def _holds_several_batches(records: Buffer) -> bool:
    """Whether more follows a first batch. Kafka refuses that, too: so many small batches could hold
    up the loop.
    """
    size = peek_size(records)
    return size is not None and HEADER_SIZE <= size < len(records)


class _HeldProduce:
    """``checked`` has the verdicts so far, by index in the request; ``pending`` are still to come."""

    __slots__ = ("checked", "ids", "leaves", "pending", "request")

    def __init__(self, request: ProduceReceived, leaves: Leaves, pending: int) -> None:
        self.request = request
        self.leaves = leaves
        self.pending = pending
        self.checked: dict[int, CheckedRecords] = {}
        self.ids = tuple(dict.fromkeys(part.id for part in request.partitions))


class ProduceRequests:
    __slots__ = (
        "_awaited", "_context", "_held", "_last_late", "_late", "_lines", "_parked", "_replicas", "_transactions"
    )  # fmt: skip

    def __init__(
        self, context: HostContext, replicas: Mapping[TopicIdPartition, Replica], parked: Parked, awaited: Awaited
    ) -> None:
        self._awaited = awaited
        self._late: dict[Token, LateAppend] = {}  # those whose records are being checked, by their made-up tokens
        self._last_late = 0
        self._context = context
        self._replicas = replicas
        self._parked = parked
        self._held: dict[Token, _HeldProduce] = {}
        self._lines: dict[TopicIdPartition, deque[_HeldProduce]] = {}
        self._transactions = TransactionChecks(context, replicas, self._admit)

    def handle(self, event: ProduceEvent, now_ms: int, wall_ms: int) -> None:
        match event:
            case ProduceReceived():
                self.received(event, now_ms, wall_ms)
            case RecordsChecked():
                self._checked(event, now_ms, wall_ms)
            case OwnAppend():
                result = self._own_append(event, now_ms, wall_ms)
                self._context.effects.append(Reply(event.token, ProduceReply((result,))))
            case MarkersReceived():
                self._end_transactions(event, now_ms, wall_ms)
            case TransactionVerified():
                self._transactions.verified(event, now_ms, wall_ms)
            case LeaveWanted():
                self._transactions.wanted(event)
            case _:
                assert_never(event)

    def at_once(
        self, id: TopicIdPartition, acks: int, records: Buffer, now_ms: int, wall_ms: int
    ) -> ProducePartitionResult | None:
        """Append a small batch that nothing is unusual about and that waits for nobody; the result
        is the whole answer.

        None, and nothing is done, where anything is otherwise: ``received`` takes it.
        """
        replica = self._replicas.get(id)
        if replica is None or self._lines or len(records) > self._context.config.walked_bytes_max:
            return None
        leader = replica.leader
        if leader is None or not leader.completes_at_once(acks) or replica.assignment.topic in INTERNAL_TOPICS:
            return None
        sound = sound_batch(records, leader.log.config, wall_ms)
        if sound is None:
            return None
        self._context.traffic.wrote(id, len(records))
        return leader.append(records, acks, now_ms, wall_ms, sound=sound)[0]

    def received(self, request: ProduceReceived, now_ms: int, wall_ms: int) -> None:
        if len(request.partitions) == 1:
            part = request.partitions[0]
            is_plain = part.trace is None
            result = self.at_once(part.id, request.acks, part.records, now_ms, wall_ms) if is_plain else None
            if result is not None:
                self._context.effects.append(Reply(request.token, ProduceReply((result,))))
                return
        if request.acks not in (-1, 0, 1):
            refused = tuple(ProducePartitionResult(part.id, INVALID_REQUIRED_ACKS) for part in request.partitions)
            self._context.effects.append(Reply(request.token, ProduceReply(refused)))
            return
        leaves = self._transactions.take(request)
        if leaves is not None:
            self._admit(request, leaves, now_ms, wall_ms)

    def _admit(self, request: ProduceReceived, leaves: Leaves, now_ms: int, wall_ms: int) -> None:
        """Nobody has to be asked about the transactions that the request begins, any more."""
        orders = self._orders(request, wall_ms)
        if orders or (self._lines and any(part.id in self._lines for part in request.partitions)):
            held = self._held[request.token] = _HeldProduce(request, leaves, len(orders))
            for id in held.ids:
                self._lines.setdefault(id, deque()).append(held)
            self._context.effects += orders
        else:
            self._append_request(request, _NOTHING_CHECKED, leaves, now_ms, wall_ms)

    def _append_request(
        self,
        request: ProduceReceived,
        checked: Mapping[int, CheckedRecords],
        leaves: Leaves,
        now_ms: int,
        wall_ms: int,
    ) -> None:
        late = self._late.pop(request.token, None)
        if late is not None:
            self._append_late(late, checked.get(0), leaves.get(0), now_ms, wall_ms)
        else:
            self._append_all(request, checked, leaves, now_ms, wall_ms)

    def _checked(self, event: RecordsChecked, now_ms: int, wall_ms: int) -> None:
        """A check is done: append what waited for nothing else."""
        held = self._held[event.token]
        held.checked[event.index] = event.checked
        held.pending -= 1
        candidates = deque((held,))
        while candidates:
            held = candidates.popleft()
            if held.request.token not in self._held:  # it was the next one in two lines
                continue
            if held.pending or any(self._lines[id][0] is not held for id in held.ids):
                continue
            del self._held[held.request.token]
            for id in held.ids:
                line = self._lines[id]
                line.popleft()
                if line:
                    candidates.append(line[0])
                else:
                    del self._lines[id]
            self._append_request(held.request, held.checked, held.leaves, now_ms, wall_ms)

    def holds(self, token: Token) -> bool:
        """Whether the request is not appended yet, or not all of it."""
        if token in self._held or self._transactions.holds(token):
            return True
        parked = self._parked.by_token.get(token)
        return isinstance(parked, ParkedProduce) and any(not late.settled for late in parked.late)

    def checks(self, token: Token) -> bool:
        """Whether its records are being checked by a thread, or a coordinator is asked about its
        transactions, or it stands behind others of which that is so.
        """
        return token in self._held or self._transactions.holds(token)

    def ready(self, late: LateAppend, now_ms: int, wall_ms: int) -> None:
        """Its partition serves, or is not awaited any more."""
        if late.settled:
            return
        self._last_late -= 1
        request = ProduceReceived(self._last_late, late.produce.acks, 0, (late.part,))
        self._late[request.token] = late
        leaves = self._transactions.take(request)
        if leaves is not None:
            self._admit(request, leaves, now_ms, wall_ms)

    def give_up(self, late: LateAppend) -> None:
        """The time of its request is up: it is refused, and not appended."""
        self._awaited.forget(late)
        replica = self._replicas.get(late.part.id)
        if replica is None:
            error, hint = self._context.absence(late.part.id)
            late.produce.was_late(late, ProducePartitionResult(late.part.id, error, hint=hint))
        elif replica.leader is not None:
            late.produce.was_late(late, ProducePartitionResult(late.part.id, REQUEST_TIMED_OUT))
        else:
            late.produce.was_late(late, replica.refused_produce())

    def _append_late(
        self, late: LateAppend, checked: CheckedRecords | None, leave: Leave | None, now_ms: int, wall_ms: int
    ) -> None:
        if late.settled:
            return
        produce = late.produce
        replica = self._replicas.get(late.part.id)
        result, required_end = self._append_one(late.part, replica, produce.acks, checked, leave, now_ms, wall_ms)
        if required_end >= 0 and produce.acks:
            assert replica is not None
            produce.wait_for(late.index, replica, required_end)
        produce.was_late(late, result)

    def _orders(self, request: ProduceReceived, wall_ms: int) -> list[CheckRecords]:
        """The checks that belong in a thread."""
        orders: list[CheckRecords] = []
        for index, part in enumerate(request.partitions):
            replica = self._replicas.get(part.id)
            if replica is None or replica.leader is None or replica.assignment.topic in INTERNAL_TOPICS:
                continue
            if _holds_several_batches(part.records):
                continue
            log = replica.leader.log
            if takes_long(part.records, log.config, wall_ms, self._context.config.walked_bytes_max):
                orders.append(CheckRecords(request.token, index, part.records, log.config, wall_ms, log.where))
        return orders

    # -------------------------------------------------------------- appending

    def _own_append(self, event: OwnAppend, now_ms: int, wall_ms: int) -> ProducePartitionResult:
        """Append a batch of this process's own, without waiting for replicas."""
        id, records = event.partition.id, event.partition.records
        replica = self._replicas.get(id)
        leader = replica.leader if replica is not None else None
        if leader is None or leader.leader_epoch != event.leader_epoch:
            return ProducePartitionResult(id, NOT_LEADER_OR_FOLLOWER)
        leave = None
        if event.leave != NO_LEAVE:
            leave = next((each for each in leader.leaves.values() if each.number == event.leave), None)
        self._context.traffic.wrote(id, len(records))
        return leader.append(records, -1, now_ms, wall_ms, leave=leave, is_own=True)[0]

    def _end_transactions(self, event: MarkersReceived, now_ms: int, wall_ms: int) -> None:
        """Append markers, also to internal topics: a group's offsets belong to transactions, too."""
        results: list[ProducePartitionResult] = []
        waits: list[tuple[int, Replica, int]] = []
        for index, marker in enumerate(event.markers):
            replica = self._replicas.get(marker.id)
            if replica is None:
                error, hint = self._context.absence(marker.id)
                result, required_end = ProducePartitionResult(marker.id, error, hint=hint), -1
            elif replica.leader is None:
                result, required_end = replica.refused_produce(), -1
            else:
                result, required_end = replica.leader.end_transaction(marker.end, now_ms, wall_ms)
            results.append(result)
            if replica is not None and replica.log is not None and replica.log.high_watermark < required_end:
                waits.append((index, replica, required_end))
        if waits:
            self._parked.park_produce(event.token, event.timeout_ms, results, waits, acks=-1, now_ms=now_ms)
        else:
            self._context.effects.append(Reply(event.token, ProduceReply(tuple(results))))

    def _append(
        self,
        part: ProducePartition,
        replica: Replica | None,
        acks: int,
        now_ms: int,
        wall_ms: int,
        checked: CheckedRecords | None,
        leave: Leave | None,
    ) -> tuple[ProducePartitionResult, int]:
        """The result, and the offset at which the append is complete (−1 after an error)."""
        if replica is None:
            error, hint = self._context.absence(part.id)
            return ProducePartitionResult(part.id, error, hint=hint), -1
        if replica.leader is None:
            return replica.refused_produce(), -1
        if replica.leader.holds(acks):
            return ProducePartitionResult(part.id, REQUEST_TIMED_OUT, message=_ARRIVES), -1
        if leave is not None and (refused := leave.refusal(part, replica.leader)):
            return ProducePartitionResult(part.id, refused, message=leave.words()), -1
        self._context.traffic.wrote(part.id, len(part.records))
        leader = replica.leader
        result, end = leader.append(part.records, acks, now_ms, wall_ms, checked, leave=leave)
        if part.trace is not None and not result.error:
            leader.follow(part.trace, result.base_offset, end)
        return result, end

    def _append_all(
        self,
        request: ProduceReceived,
        checked: Mapping[int, CheckedRecords],
        leaves: Leaves,
        now_ms: int,
        wall_ms: int,
    ) -> None:
        acks = request.acks
        results: list[ProducePartitionResult] = []
        waits: list[tuple[int, Replica, int]] = []
        late: list[tuple[int, ProducePartition]] = []
        for index, part in enumerate(request.partitions):
            replica = self._replicas.get(part.id)
            if self._must_wait(request, part, replica):
                late.append((index, part))
                results.append(ProducePartitionResult(part.id, 0))
                continue
            result, required_end = self._append_one(
                part, replica, acks, checked.get(index), leaves.get(index), now_ms, wall_ms
            )
            results.append(result)
            if required_end >= 0:
                assert replica is not None
                waits.append((index, replica, required_end))
        if late:
            produce = self._parked.park_produce(
                request.token, request.timeout_ms, results, waits if acks else [], late, acks=acks, now_ms=now_ms
            )
            for each in produce.late:
                self._awaited.wait(each, request.timeout_ms + 1, now_ms)  # ``produce.expired`` comes first
        elif waits and acks:
            self._parked.park_produce(request.token, request.timeout_ms, results, waits, acks=acks, now_ms=now_ms)
        elif acks:
            self._context.effects.append(Reply(request.token, ProduceReply(tuple(results))))

    def _must_wait(self, request: ProduceReceived, part: ProducePartition, replica: Replica | None) -> bool:
        if replica is not None and replica.leader is not None and not replica.leader.holds(request.acks):
            return False
        awaited = self._awaited
        return request.timeout_ms > 0 and awaited.holds_appends(part.id) and awaited.has_room(len(part.records))

    def _append_one(
        self,
        part: ProducePartition,
        replica: Replica | None,
        acks: int,
        checked: CheckedRecords | None,
        leave: Leave | None,
        now_ms: int,
        wall_ms: int,
    ) -> tuple[ProducePartitionResult, int]:
        """The result, and the offset that has to be reached before it holds; −1 where it holds
        already, or is an error.
        """
        if replica is not None and replica.assignment.topic in INTERNAL_TOPICS:
            return ProducePartitionResult(part.id, INVALID_TOPIC_EXCEPTION), -1
        if replica is not None and replica.leader is not None and _holds_several_batches(part.records):
            return ProducePartitionResult(part.id, INVALID_RECORD, message=_SEVERAL_BATCHES), -1
        result, required_end = self._append(part, replica, acks, now_ms, wall_ms, checked, leave)
        if required_end >= 0 and replica is not None and replica.log is not None:
            reached = replica.log.high_watermark if acks == -1 else replica.flushing.completed_end
            if reached < required_end:
                return result, required_end
        return result, -1

    # -------------------------------------------------------------- invariants

    def check(self) -> None:
        """Raise AssertionError where an invariant is broken."""
        self._transactions.check()
        assert all(token in self._held or self._transactions.holds(token) for token in self._late), self._late
        for token, held in self._held.items():
            assert token == held.request.token and held.pending >= 0
            assert all(list(self._lines[id]).count(held) == 1 for id in held.ids), f"request {token}: {held.ids}"
            is_first = all(self._lines[id][0] is held for id in held.ids)
            assert held.pending or not is_first, f"request {token} waits for nothing"
        for id, line in self._lines.items():
            assert line and all(self._held.get(held.request.token) is held for held in line), id
