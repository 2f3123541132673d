"""The coordinators of one kind in one process: a ``PartitionCoordinator`` for each partition of the
kind's topic that it holds.

Owns their timer, the requests that wait for them, and the reading of what is replicated; it decides
nothing. The replicas' machine reports who leads in which epoch and how far the high watermark is
(``receive``). A coordinator's records are appended by the replica like any producer's; a process
that does not lead is refused there, by epoch.

Records are read and decoded on the loop, a bounded piece at a time; a thread first loads what is
not in memory. A follower reads all at once what is replicated ``FOLLOW_MS`` after the high watermark
has moved: nobody waits for it, but others for the processor. A request for a partition that this
process may lead any moment waits for that (``early_requests``). One for a partition that it has let
go of, or that another process leads, is answered at once: NOT_COORDINATOR.

Effects are carried out in the order in which the coordinators gave them, even where carrying out
one brings about others.

Knows no wire and no clock: the server brings requests in, and the simulator has a time of its own.
"""

from __future__ import annotations

import itertools
import logging
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, assert_never

from kio.schema.errors import ErrorCode

from raylog.control.session import Assignment, FromController, TopicsNamed
from raylog.coordination.context import KeyedT
from raylog.coordination.coordinator import CoordinatorRole, PartitionCoordinator
from raylog.coordination.early_requests import CancellableTimer, EarlyRequests
from raylog.coordination.events import (
    Append,
    Appended,
    Applicable,
    AskOthers,
    ConnectionClosed,
    CoordinatorRequestReceived,
    CoordinatorTicked,
    Effect,
    Elected,
    EndOfTransaction,
    Event,
    HighWatermarkRose,
    MarkerAppended,
    OfTransaction,
    OthersAnswered,
    OutsideAnswer,
    OutsideQuestion,
    Replayed,
    ReplyT,
    RequestT,
    Resigned,
    SendCoordinatorReply,
    TopicsKnown,
    Transactional,
)
from raylog.coordination.machine import CoordinatorKind, CoordinatorMachine
from raylog.errors import ProtocolError
from raylog.log.cleaned_transactions import marker_of
from raylog.log.files import NotInMemory
from raylog.log.log import Log
from raylog.records.batch import batches
from raylog.records.codec import LightRecord, RecordBatchBuilder, light_records
from raylog.records.control import Marker
from raylog.records.corrupt import CorruptBatch, UnsupportedMagic
from raylog.replication.events import ProducePartitionResult
from raylog.replication.leaderships import (
    HighWatermarkMoved,
    Leadership,
    LeadershipBegan,
    LeadershipEnded,
    LeadershipExpected,
    TransactionMarked,
)
from raylog.replication.transaction_events import NO_LEAVE
from raylog.types import TopicIdPartition

logger = logging.getLogger("raylog.coordination")

READ_BYTES = 16 * 1024  # decoded at once: a few milliseconds
FOLLOW_MS = 5
DAMAGE_RETRY_MS = 200  # until a damaged log is looked at again
NOT_COORDINATOR = ErrorCode.not_coordinator.value


class Replicas(Protocol):
    """What the process that holds the replicas does for its coordinators."""

    def log(self, id: TopicIdPartition) -> Log | None:
        """The replica's log, while it is open."""

    def append(
        self,
        id: TopicIdPartition,
        batch: bytes,
        leader_epoch: int,
        then: Callable[[ProducePartitionResult], None],
        leave: int,
    ) -> None:
        """Append it if this process leads in that epoch; ``then`` is called in the same turn of the
        loop, perhaps after this returns. ``leave``: to begin a transaction there (LeaveGiven).

        Appends keep their order.
        """

    def load(self, missing: NotInMemory, then: Callable[[], None]) -> None:
        """Bring bytes into memory in a thread; ``then`` is called on the loop, whatever happens."""

    def log_failed(self, id: TopicIdPartition, reason: str) -> None:
        """Reading the log met an IO error."""

    def suspect(self, id: TopicIdPartition, offset: int) -> None:
        """Reading the log at that offset met damaged bytes."""


class Clock(Protocol):
    """``now_ms`` never goes back, ``wall_ms`` is the time of day."""

    def now_ms(self) -> int: ...

    def wall_ms(self) -> int: ...

    def call_later(self, delay_ms: int, work: Callable[[], Any]) -> CancellableTimer: ...


Others = Callable[[OutsideQuestion, Callable[[OutsideAnswer], None]], None]
"""Has a question answered by other processes: calls back once, on the loop, whatever happens."""


class _Partition(Generic[RequestT, ReplyT, KeyedT]):
    __slots__ = ("coordinator", "high_watermark", "id", "is_expected", "is_loading", "leader_epoch")

    def __init__(self, id: TopicIdPartition) -> None:
        self.id = id
        self.coordinator: PartitionCoordinator[RequestT, ReplyT, KeyedT] | None = None  # once its log was open
        self.leader_epoch = -1  # in which this process leads
        self.high_watermark = -1
        self.is_expected = False  # to lead soon
        self.is_loading = False


class CoordinatorRuntime(Generic[RequestT, ReplyT, KeyedT]):
    """``hear`` takes the controller's frames, ``receive`` the replicas' effects, ``ask`` the
    requests.
    """

    def __init__(
        self,
        kind: CoordinatorKind[RequestT, ReplyT, KeyedT],
        replicas: Replicas,
        clock: Clock,
        *,
        others: Others | None = None,
    ) -> None:
        """``others`` answers the questions of a kind that has some."""
        self.kind = kind
        self._others = others
        self._replicas = replicas
        self._clock = clock
        self._partitions: dict[int, _Partition[RequestT, ReplyT, KeyedT]] = {}
        self.topics: dict[str, uuid.UUID] | None = (
            None  # those that exist, as of the control session; None: not known yet
        )
        self._arriving: dict[str, uuid.UUID] | None = None
        self._refuses = kind.machine(0)
        self._waiting: dict[int, Callable[[ReplyT], None]] = {}
        self._early: EarlyRequests[RequestT, ReplyT] = EarlyRequests(
            clock.call_later, self._answer, self._partitions.__contains__
        )
        self._tokens = itertools.count(1)
        self._orders: deque[tuple[_Partition[RequestT, ReplyT, KeyedT], Effect[ReplyT, KeyedT]]] = deque()
        self._is_ordering = False
        self._timer: CancellableTimer | None = None
        self._timer_due_ms: int | None = None
        self._is_over = False
        self._behind: dict[int, _Partition[RequestT, ReplyT, KeyedT]] = {}  # followers that have something to read

    def leading(self) -> list[CoordinatorMachine[RequestT, ReplyT, KeyedT]]:
        """The machines of the partitions that this process coordinates now. Only they change themselves."""
        found = (each.coordinator for each in self._partitions.values() if self._leads(each))
        return [coordinator.machine for coordinator in found if coordinator is not None]

    def coordinates(self, number: int) -> bool:
        """Whether this process coordinates that partition now."""
        partition = self._partitions.get(number)
        return partition is not None and self._leads(partition)

    # ------------------------------------------------------------------ the controller

    def hear(self, frame: FromController) -> None:
        """The controller says something to this process; some of it concerns coordinators."""
        if isinstance(frame, Assignment):
            self._hold(frame)
        elif isinstance(frame, TopicsNamed):
            self._take_topics(frame)

    def _hold(self, assignment: Assignment) -> None:
        """A replica is assigned to this process. The kind's settings come with it."""
        if assignment.topic != self.kind.topic:
            return
        id = assignment.id
        known = self._partitions.get(id.partition)
        if known is None or known.id != id:
            if known is not None:
                self._resign(known)  # the topic was deleted and made again
            self._partitions[id.partition] = _Partition(id)
        self.kind.configure(dict(assignment.config))

    def _take_topics(self, frame: TopicsNamed) -> None:
        """Coordinators know the topics from their start on, and receive what changes."""
        if frame.begins:
            self._arriving = {}
        is_whole = self._arriving is not None
        topics = self._arriving if self._arriving is not None else self.topics
        assert topics is not None, "a change came before the names of all topics"
        for name in frame.gone:
            topics.pop(name, None)
        topics.update(frame.topics)
        if not frame.is_complete:
            return
        self.topics, self._arriving = topics, None
        for partition in list(self._partitions.values()):
            self._handle(partition, TopicsKnown(topics, frame.gone, is_whole))
        self._set_timer()

    # ------------------------------------------------------------------ the replicas

    def receive(self, changes: Sequence[Leadership]) -> None:
        """Take in what has become of replicas; those of other topics are ignored."""
        was_ordering, self._is_ordering = self._is_ordering, True
        for change in changes:
            partition = self._partitions.get(change.id.partition)
            if partition is not None and partition.id == change.id and not self._is_over:
                self._changed(partition, change)
        self._is_ordering = was_ordering
        self._carry_on()
        moved = [change.id.partition for change in changes if isinstance(change, HighWatermarkMoved)]
        if len(moved) < len(changes):
            self._set_timer()
            return
        for number in moved:
            if (partition := self._partitions.get(number)) is not None:
                self._set_timer_for(partition)

    def _changed(self, partition: _Partition[RequestT, ReplyT, KeyedT], change: Leadership) -> None:
        match change:
            case LeadershipEnded(_, leader_epoch):
                if leader_epoch == partition.leader_epoch:
                    self._resign(partition)
            case LeadershipBegan(_, leader_epoch, start_offset):
                self._began(partition, leader_epoch, start_offset)
            case TransactionMarked(_, end_offset, end):
                ended = EndOfTransaction(end.producer_id, end.marker is Marker.COMMIT)
                self._handle(partition, MarkerAppended(end_offset, ended))
            case HighWatermarkMoved(_, high_watermark):
                self._moved(partition, high_watermark)
            case LeadershipExpected(_, is_expected):
                partition.is_expected = is_expected
                if not is_expected:
                    self._early.go_on(change.id.partition)
            case _:
                assert_never(change)

    def _began(self, partition: _Partition[RequestT, ReplyT, KeyedT], leader_epoch: int, start_offset: int) -> None:
        self._resign(partition)
        partition.leader_epoch = leader_epoch
        coordinator = partition.coordinator
        if coordinator is None or coordinator.position > start_offset:  # the log was cut below what was replicated
            self._begin_anew(partition)
        self._handle(partition, Elected(leader_epoch, start_offset))
        self._read_on(partition)

    def _moved(self, partition: _Partition[RequestT, ReplyT, KeyedT], high_watermark: int) -> None:
        partition.high_watermark = high_watermark
        coordinator = partition.coordinator
        if coordinator is None or (coordinator.position > high_watermark and partition.leader_epoch < 0):
            self._begin_anew(partition)
        elif self._leads(partition):
            self._handle(partition, HighWatermarkRose(high_watermark))
        if partition.leader_epoch >= 0:
            self._read_on(partition)
        elif partition.coordinator is not None and partition.coordinator.position < high_watermark:
            if not self._behind:
                self._clock.call_later(FOLLOW_MS, self._follow)
            self._behind[partition.id.partition] = partition

    def _follow(self) -> None:
        """Have followers read what is replicated by now."""
        behind, self._behind = self._behind, {}
        for number, partition in behind.items():
            if self._partitions.get(number) is partition:
                self._read_on(partition)
                self._set_timer_for(partition)

    def _begin_anew(self, partition: _Partition[RequestT, ReplyT, KeyedT]) -> None:
        """With a coordinator that has applied nothing."""
        log = self._replicas.log(partition.id)
        machine = self.kind.machine(log.log_start_offset if log is not None else 0)
        partition.coordinator = PartitionCoordinator(machine)
        if self.topics is not None:
            self._handle(partition, TopicsKnown(self.topics))

    def _resign(self, partition: _Partition[RequestT, ReplyT, KeyedT]) -> None:
        if partition.leader_epoch >= 0:
            leader_epoch, partition.leader_epoch = partition.leader_epoch, -1
            self._handle(partition, Resigned(leader_epoch))

    def _leads(self, partition: _Partition[RequestT, ReplyT, KeyedT]) -> bool:
        """Whether its coordinator has applied all and leads."""
        return partition.coordinator is not None and partition.coordinator.role is CoordinatorRole.LEADING

    def _read_on(self, partition: _Partition[RequestT, ReplyT, KeyedT]) -> None:
        """Give a coordinator that does not lead yet the next piece of what is replicated."""
        coordinator, log = partition.coordinator, self._replicas.log(partition.id)
        if coordinator is None or self._leads(partition) or log is None or partition.is_loading:
            return
        if coordinator.position >= log.high_watermark or self._is_over:
            return
        if coordinator.position < log.log_start_offset:
            self._handle(partition, Replayed((), log.log_start_offset))

        def loaded() -> None:
            partition.is_loading = False
            self._read_on(partition)
            self._set_timer()

        try:
            piece = log.read(coordinator.position, READ_BYTES, end_offset=log.high_watermark, in_memory=True)
        except NotInMemory as missing:
            partition.is_loading = True
            self._replicas.load(missing, loaded)
            return
        except OSError as error:
            self._replicas.log_failed(partition.id, f"read: {error}")
            return
        except (CorruptBatch, UnsupportedMagic) as error:
            # Nothing is passed over: the damaged record may count. Another replica leads soon, or
            # the log is copied anew.
            logger.error(
                "%s: the coordinator's records at offset %d are damaged: %s", log.where, coordinator.position, error
            )
            partition.is_loading = True
            self._clock.call_later(DAMAGE_RETRY_MS, loaded)
            self._replicas.suspect(partition.id, coordinator.position)
            return
        if piece.next_offset <= coordinator.position:
            return
        records = self._records_of(piece.records, coordinator.position, where=log.where)
        self._handle(partition, Replayed(records, piece.next_offset))
        if self._leads(partition):
            self._handle(partition, HighWatermarkRose(partition.high_watermark))
        elif coordinator.position < log.high_watermark:
            partition.is_loading = True
            self._clock.call_later(0, loaded)  # others get their turn in between

    def _records_of(
        self, data: bytes | bytearray | memoryview, position: int, *, where: str
    ) -> tuple[Applicable[KeyedT], ...]:
        """What whole batches say from ``position`` on. What can't be read is named in the server's
        log and passed over.

        A record that a later one with the same key replaces is not decoded, which takes six times as long
        as to find it. One in a transaction replaces nothing yet, and a tombstone leaves what stands
        before it, which may have overtaken a transaction's.
        """
        found: list[EndOfTransaction | tuple[int | None, LightRecord]] = []
        newest: dict[bytes, int] = {}
        replaced: set[int] = set()
        for batch in batches(data):
            if batch.is_control:
                marker = marker_of(batch) if batch.base_offset >= position else None
                if marker is not None:
                    found.append(EndOfTransaction(batch.producer_id, marker is Marker.COMMIT))
                continue
            producer_id = batch.producer_id if batch.is_transactional else None
            for light in light_records(batch):
                if light.offset < position:
                    continue
                if producer_id is None and light.key is not None:
                    if light.value is not None and light.key in newest:
                        replaced.add(newest[light.key])
                    newest[light.key] = len(found)
                found.append((producer_id, light))
        kept = (each for index, each in enumerate(found) if index not in replaced)
        said = (each if isinstance(each, EndOfTransaction) else self._decoded(*each, where) for each in kept)
        return tuple(each for each in said if each is not None)

    def _decoded(self, producer_id: int | None, light: LightRecord, where: str) -> Applicable[KeyedT] | None:
        """``producer_id``: of its transaction; None: it is in none."""
        try:
            record = self.kind.decode(light.key, light.value)
        except ProtocolError as error:
            logger.error("%s: offset %d is passed over: %s", where, light.offset, error)
            return None
        return record if record is None or producer_id is None else OfTransaction(producer_id, record)

    # ------------------------------------------------------------------ the coordinators

    def _handle(self, partition: _Partition[RequestT, ReplyT, KeyedT], event: Event[RequestT, KeyedT]) -> None:
        if partition.coordinator is None:
            return
        effects = partition.coordinator.handle(event, self._clock.now_ms(), self._clock.wall_ms())
        self._orders.extend((partition, effect) for effect in effects)
        self._carry_on()

    def _carry_on(self) -> None:
        """Carry out what the coordinators ordered, unless that is under way already."""
        if self._is_ordering:
            return
        self._is_ordering = True
        try:
            while self._orders:
                self._carry_out(*self._orders.popleft())
        finally:
            self._is_ordering = False

    def _carry_out(self, partition: _Partition[RequestT, ReplyT, KeyedT], effect: Effect[ReplyT, KeyedT]) -> None:
        match effect:
            case SendCoordinatorReply():
                self._waiting.pop(effect.token)(effect.reply)
            case Append():
                self._append(partition, effect)
            case AskOthers():
                self._ask_others(partition, effect)
            case _:
                assert_never(effect)

    def _append(self, partition: _Partition[RequestT, ReplyT, KeyedT], order: Append[KeyedT]) -> None:
        def appended(result: ProducePartitionResult) -> None:
            end = result.base_offset + len(order.records)
            self._handle(partition, Appended(order.sequence, end if not result.error else -1, result.error))
            self._set_timer_for(partition)

        leave = order.transactional.leave if order.transactional is not None else NO_LEAVE
        batch = self._batch_of(order.records, order.transactional)
        self._replicas.append(partition.id, batch, order.leader_epoch, appended, leave)

    def _ask_others(self, partition: _Partition[RequestT, ReplyT, KeyedT], order: AskOthers) -> None:
        assert self._others is not None, f"nobody answers {order}"
        asking = partition.coordinator

        def answered(answer: OutsideAnswer) -> None:
            if partition.coordinator is asking and not self._is_over:  # else another one has begun anew
                self._handle(partition, OthersAnswered(order.number, answer))
                self._set_timer_for(partition)

        self._others(order.question, answered)

    def _batch_of(self, records: Sequence[KeyedT], of: Transactional | None) -> bytes:
        builder = RecordBatchBuilder(is_transactional=of is not None)
        wall_ms = self._clock.wall_ms()
        for record in records:
            key, value = self.kind.encode(record)
            builder.append(timestamp_ms=wall_ms, key=key, value=value)
        if of is None:
            return bytes(builder.build())
        # Kafka's coordinators write sequence 0, too, and no broker looks at it.
        return bytes(builder.build(producer_id=of.producer_id, producer_epoch=of.producer_epoch, base_sequence=0))

    def _set_timer_for(self, partition: _Partition[RequestT, ReplyT, KeyedT]) -> None:
        """The same when only this one's deadline may have changed, whatever the number of partitions.
        One that has moved later leaves the timer early; it is set anew when it comes.
        """
        due_ms = partition.coordinator.next_deadline_ms() if partition.coordinator is not None else None
        if due_ms is not None and (self._timer_due_ms is None or due_ms < self._timer_due_ms):
            self._set_timer()

    def _set_timer(self) -> None:
        coordinators = [each.coordinator for each in self._partitions.values() if each.coordinator is not None]
        due_ms = min((due for each in coordinators if (due := each.next_deadline_ms()) is not None), default=None)
        if due_ms == self._timer_due_ms or self._is_over:
            return
        self._timer_due_ms = due_ms
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if due_ms is not None:
            self._timer = self._clock.call_later(max(0, due_ms - self._clock.now_ms()), self._due)

    def _due(self) -> None:
        """A deadline has come; sockets are read once more before any client is judged silent."""
        self._timer = self._clock.call_later(0, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._timer_due_ms = None
        now_ms = self._clock.now_ms()
        for partition in list(self._partitions.values()):
            due_ms = partition.coordinator.next_deadline_ms() if partition.coordinator is not None else None
            if due_ms is not None and due_ms <= now_ms:
                self._handle(partition, CoordinatorTicked())
        self._set_timer()

    def stop(self) -> None:
        """The process ends: no client is answered any more."""
        self._is_over = True
        self._early.stop()
        if self._timer is not None:
            self._timer.cancel()

    # ------------------------------------------------------------------ requests

    def numbers(self) -> list[int]:
        """The partitions that have a coordinator, whatever its role."""
        return [number for number, each in self._partitions.items() if each.coordinator is not None]

    def coordinated(self) -> list[int]:
        """Those that this process coordinates, or is about to: all others have nothing to list."""
        return [
            number
            for number, each in self._partitions.items()
            if each.coordinator is not None and each.coordinator.role is not CoordinatorRole.FOLLOWING
        ]

    def led(self, number: int) -> tuple[TopicIdPartition, int] | None:
        """The partition of that number and the epoch in which this process leads it, if it does."""
        partition = self._partitions.get(number)
        return (partition.id, partition.leader_epoch) if partition is not None and partition.leader_epoch >= 0 else None

    def coordinator_of(self, number: int) -> PartitionCoordinator[RequestT, ReplyT, KeyedT] | None:
        partition = self._partitions.get(number)
        return partition.coordinator if partition is not None else None

    def ask(self, number: int, request: RequestT, then: Callable[[ReplyT], None]) -> None:
        """Ask the coordinator of a partition; ``then`` is called once, perhaps before this returns,
        or never if the process ends.

        Nor is it called for a native client whose connection ends while its request waits for the
        partition.
        """
        is_patient = self.kind.partition_of(request) is not None and self._is_awaited(number)
        if not is_patient or not self._early.wait(number, request, then, self.kind.wait_ms(request)):
            self._answer(number, request, then)

    def _is_awaited(self, number: int) -> bool:
        """Whether this process may lead that partition any moment: it does not lead, and may hear
        of it yet.
        """
        partition = self._partitions.get(number)
        return not self._is_over if partition is None else partition.is_expected

    def _answer(self, number: int, request: RequestT, then: Callable[[ReplyT], None]) -> None:
        partition = self._partitions.get(number)
        if partition is None or partition.coordinator is None:
            error = self._refuses.judge(request) or NOT_COORDINATOR
            then(self._refuses.refuse(request, error))
            return
        token = next(self._tokens)
        self._waiting[token] = then
        self._handle(partition, CoordinatorRequestReceived(token, request))
        self._set_timer_for(partition)

    def connection_closed(self, connection: int) -> None:
        """The connection of native clients ended."""
        self._early.connection_closed(connection)
        for partition in list(self._partitions.values()):
            self._handle(partition, ConnectionClosed(connection))
        self._set_timer()
