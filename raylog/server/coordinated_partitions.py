"""The group machines of one process: one ``Coordinator`` for each partition of ``__consumer_offsets`` that it holds.

Owns the machines' timer, the requests that wait for them, and the reading of what followers have replicated; it decides nothing. After
each event of the replicas it looks at what became of its partitions: who leads in which epoch, how far the high watermark is. A
machine's records are appended by the replica as those of any producer; a process that does not lead is refused there, in its epoch.

Records are read and decoded on the loop, a bounded piece at a time; what is not in memory is loaded by a thread first. A request for a
partition that this process may lead any moment waits for that (``early_group_requests``); one for a partition that it has let go of, or
that another leads, is answered at once: NOT_COORDINATOR.

Knows no wire and no clock: ``group_coordinator`` brings requests in, the simulator (``raylog.testing``) has a time of its own.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from kio.schema.errors import ErrorCode

from raylog.control.session import Assignment, FromController, TopicsNamed
from raylog.errors import ProtocolError
from raylog.groups.context import GroupConfig
from raylog.groups.coordinator import Coordinator, Role
from raylog.groups.events import (
    Append,
    Appended,
    ConnectionClosed,
    Effect,
    Elected,
    Event,
    HighWatermarkRose,
    Replayed,
    RequestReceived,
    Resigned,
    Ticked,
    TopicsKnown,
)
from raylog.groups.offsets_topic import OFFSETS_TOPIC
from raylog.groups.records import GroupRecord, UnknownKey, decode, encode
from raylog.groups.requests import ListGroups, Request
from raylog.log.files import NotInMemory
from raylog.log.log import Log
from raylog.records.batch import batches
from raylog.records.codec import RecordBatchBuilder, light_records
from raylog.records.corrupt import CorruptBatch, UnsupportedMagic
from raylog.replication.events import ProducePartitionResult
from raylog.replication.replica import Replica
from raylog.server.early_group_requests import EarlyGroupRequests, OnReply, Timer
from raylog.types import TopicIdPartition

logger = logging.getLogger("raylog.groups")

READ_BYTES = 16 * 1024  # decoded at once: a few milliseconds
DAMAGE_RETRY_MS = 200  # until a damaged log is looked at again
NOT_ENOUGH_REPLICAS = ErrorCode.not_enough_replicas.value
NOT_LEADER_OR_FOLLOWER = ErrorCode.not_leader_or_follower.value


class Replicas(Protocol):
    """What the process that holds the replicas does for its coordinators."""

    def replica(self, id: TopicIdPartition) -> Replica | None: ...

    def append(self, id: TopicIdPartition, batch: bytes, then: Callable[[ProducePartitionResult], None]) -> None:
        """Append it, if this process leads; ``then`` is called before this returns."""

    def load(self, missing: NotInMemory, then: Callable[[], None]) -> None:
        """Bring bytes into memory in a thread; ``then`` is called on the loop, whatever happens."""

    def log_failed(self, id: TopicIdPartition, reason: str) -> None:
        """Reading the log met an IO error."""

    def suspect(self, id: TopicIdPartition, offset: int) -> None:
        """Reading the log at that offset met damaged bytes."""


class _Partition:
    __slots__ = ("epoch", "high_watermark", "id", "is_loading", "machine")

    def __init__(self, id: TopicIdPartition) -> None:
        self.id = id
        self.machine: Coordinator | None = None  # from the moment that its log is open
        self.epoch = -1  # in which the machine believes to lead
        self.high_watermark = -1  # the last one that the leading machine was told
        self.is_loading = False


class Clock(Protocol):
    """``now_ms`` never goes back, ``wall_ms`` is what people call the time."""

    def now_ms(self) -> int: ...

    def wall_ms(self) -> int: ...

    def call_later(self, delay_ms: int, work: Callable[[], Any]) -> Timer: ...


class LoopClock:
    """The running event loop's."""

    def now_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def call_later(self, delay_ms: int, work: Callable[[], Any]) -> Timer:
        return asyncio.get_running_loop().call_later(delay_ms / 1_000, work)


class CoordinatedPartitions:
    """``hear`` and ``look`` are called by the process that holds the replicas."""

    def __init__(
        self,
        replicas: Replicas,
        *,
        config: GroupConfig | None = None,
        clock: Clock | None = None,
        new_uuid: Callable[[], uuid.UUID] = uuid.uuid4,
    ) -> None:
        self._replicas = replicas
        self._base = self._config = config or GroupConfig()
        self._clock = clock or LoopClock()
        self._new_uuid = new_uuid
        self._partitions: dict[int, _Partition] = {}
        self.topics: dict[str, uuid.UUID] | None = (
            None  # that there are, as of the control session; None: not known yet
        )
        self._arriving: dict[str, uuid.UUID] | None = None
        self._nobody = self._machine(0)
        self._waiting: dict[int, OnReply] = {}
        self.early = EarlyGroupRequests(self._clock.call_later, self._answer, self._partitions.__contains__)
        self._tokens = itertools.count(1)
        self._timer: Timer | None = None
        self._timer_due_ms: int | None = None
        self._is_looking = False
        self._looks_again = False
        self._is_over = False

    def _machine(self, position: int) -> Coordinator:
        machine = Coordinator(self._config, new_uuid=self._new_uuid, position=position)
        if self.topics is not None:
            machine.handle(TopicsKnown(self.topics), self._clock.now_ms(), self._clock.wall_ms())
        return machine

    # ------------------------------------------------------------------ replicas

    def hear(self, frame: FromController) -> None:
        """The controller says something to this process; some of it concerns groups."""
        if isinstance(frame, Assignment):
            self.hold(frame)
        elif isinstance(frame, TopicsNamed):
            self._take_topics(frame)

    def hold(self, assignment: Assignment) -> None:
        """A replica is assigned to this process; it is nobody's business here unless it is one of ``__consumer_offsets``.

        The settings of groups come with it.
        """
        if assignment.topic != OFFSETS_TOPIC:
            return
        id = assignment.id
        known = self._partitions.get(id.partition)
        if known is None or known.id != id:
            if known is not None:
                self._resign(known)  # the topic was deleted and made again
            self._partitions[id.partition] = _Partition(id)
        config = self._base.with_configs(dict(assignment.config))
        if config != self._config:
            self._config = config
            for partition in self._partitions.values():
                if partition.machine is not None:
                    partition.machine.configure(config)

    def look(self) -> None:
        """Something happened to the replicas."""
        if not self._partitions or self._is_over:
            return
        self._looks_again = True
        if self._is_looking:
            return
        self._is_looking = True
        try:
            while self._looks_again:
                self._looks_again = False
                for partition in list(self._partitions.values()):
                    self._look_at(partition)
                for number in self.early.partitions():
                    if not self._is_awaited(number):
                        self.early.go_on(number)
        finally:
            self._is_looking = False
        self._set_timer()

    def _look_at(self, partition: _Partition) -> None:
        replica = self._replicas.replica(partition.id)
        log = replica.log if replica is not None else None
        machine = partition.machine
        if replica is None or log is None:
            self._resign(partition)
            return
        if machine is None or (machine.position > log.high_watermark and replica.leader is None):
            self._resign(partition)  # the log was cut below what was replicated: begin anew
            machine = partition.machine = self._machine(log.log_start_offset)
        leader = replica.leader
        if leader is None:
            self._resign(partition)
        elif leader.leader_epoch != partition.epoch:
            self._resign(partition)
            if machine.position > leader.epoch_start_offset:
                machine = partition.machine = self._machine(log.log_start_offset)
            partition.epoch, partition.high_watermark = leader.leader_epoch, -1
            self._tell(partition, Elected(leader.leader_epoch, leader.epoch_start_offset))
        if machine.role is not Role.LEADING:
            self._read_on(partition, machine, log)
        elif partition.high_watermark != log.high_watermark:
            partition.high_watermark = log.high_watermark
            self._tell(partition, HighWatermarkRose(log.high_watermark))

    def _resign(self, partition: _Partition) -> None:
        if partition.epoch >= 0:
            epoch, partition.epoch = partition.epoch, -1
            self._tell(partition, Resigned(epoch))

    def _read_on(self, partition: _Partition, machine: Coordinator, log: Log) -> None:
        """Give the machine the next piece of what is replicated."""
        if partition.is_loading or machine.position >= log.high_watermark:
            return
        if machine.position < log.log_start_offset:
            self._tell(partition, Replayed((), log.log_start_offset))

        def loaded() -> None:
            partition.is_loading = False
            self.look()

        try:
            piece = log.read(machine.position, READ_BYTES, end_offset=log.high_watermark, in_memory=True)
        except NotInMemory as missing:
            partition.is_loading = True
            self._replicas.load(missing, loaded)
            return
        except OSError as error:
            self._replicas.log_failed(partition.id, f"read: {error}")
            return
        except (CorruptBatch, UnsupportedMagic) as error:
            # Nothing is read over: what is damaged may be a commit. Another replica leads soon, or the log is copied anew.
            logger.error("%s: the groups' records at offset %d are damaged: %s", log.where, machine.position, error)
            partition.is_loading = True
            self._clock.call_later(DAMAGE_RETRY_MS, loaded)
            self._replicas.suspect(partition.id, machine.position)
            return
        if piece.next_offset <= machine.position:
            return
        records = records_of(piece.records, machine.position, where=log.where)
        self._tell(partition, Replayed(records, piece.next_offset))
        if machine.position < log.high_watermark:
            self._clock.call_later(0, self.look)  # others get their turn in between

    def _append(self, partition: _Partition, append: Append) -> None:
        replica = self._replicas.replica(partition.id)
        if replica is None or replica.leader is None or replica.leader.leader_epoch != append.leader_epoch:
            self._tell(partition, Appended(append.sequence, -1, NOT_LEADER_OR_FOLLOWER))
            return
        if replica.lacks_replicas():
            self._tell(partition, Appended(append.sequence, -1, NOT_ENOUGH_REPLICAS))
            return

        def appended(result: ProducePartitionResult) -> None:
            end = result.base_offset + len(append.records)
            self._tell(partition, Appended(append.sequence, end if not result.error else -1, result.error))

        self._replicas.append(partition.id, batch_of(append.records, self._clock.wall_ms()), appended)

    # ------------------------------------------------------------------ the machines

    def _tell(self, partition: _Partition, event: Event) -> None:
        machine = partition.machine
        if machine is not None:
            self._run(partition, machine.handle(event, self._clock.now_ms(), self._clock.wall_ms()))

    def _run(self, partition: _Partition | None, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Append):
                assert partition is not None, "a machine that leads nothing appends nothing"
                self._append(partition, effect)
            else:
                self._waiting.pop(effect.token)(effect.reply)

    def _set_timer(self) -> None:
        machines = [each.machine for each in self._partitions.values() if each.machine is not None]
        due_ms = min((due for each in machines if (due := each.next_deadline_ms()) is not None), default=None)
        if due_ms == self._timer_due_ms or self._is_over:
            return
        self._timer_due_ms = due_ms
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if due_ms is not None:
            self._timer = self._clock.call_later(max(0, due_ms - self._clock.now_ms()), self._due)

    def _due(self) -> None:
        """A deadline has come; sockets are read once more before anybody is judged silent."""
        self._timer = self._clock.call_later(0, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._timer_due_ms = None
        now_ms = self._clock.now_ms()
        for partition in list(self._partitions.values()):
            machine = partition.machine
            due_ms = machine.next_deadline_ms() if machine is not None else None
            if due_ms is not None and due_ms <= now_ms:
                self._tell(partition, Ticked())
        self._set_timer()

    def stop(self) -> None:
        """The process ends: nobody is answered any more."""
        self._is_over = True
        self.early.stop()
        if self._timer is not None:
            self._timer.cancel()

    # ------------------------------------------------------------------ requests

    def numbers(self) -> list[int]:
        """The partitions that have a machine, whatever its role."""
        return [number for number, each in self._partitions.items() if each.machine is not None]

    def machine_of(self, number: int) -> Coordinator | None:
        partition = self._partitions.get(number)
        return partition.machine if partition is not None else None

    def ask(self, number: int, request: Request, then: OnReply) -> None:
        """Ask the machine of a partition; ``then`` is called once, perhaps before this returns, or never if the process ends.

        Nor is it called for a native member whose connection ends while its request waits for the partition.
        """
        if (
            isinstance(request, ListGroups)
            or not self._is_awaited(number)
            or not self.early.wait(number, request, then)
        ):
            self._answer(number, request, then)

    def _is_awaited(self, number: int) -> bool:
        """Whether this process may lead that partition any moment: it leads not, and is not known to have nothing to do with it."""
        partition = self._partitions.get(number)
        if partition is None:
            return not self._is_over
        replica = self._replicas.replica(partition.id)
        return replica is not None and replica.may_lead_soon

    def _answer(self, number: int, request: Request, then: OnReply) -> None:
        token = next(self._tokens)
        self._waiting[token] = then
        event = RequestReceived(token, request)
        partition = self._partitions.get(number)
        if partition is not None and partition.machine is not None:
            self._tell(partition, event)
        else:
            self._run(None, self._nobody.handle(event, self._clock.now_ms(), self._clock.wall_ms()))
        self._set_timer()

    def _take_topics(self, frame: TopicsNamed) -> None:
        """Machines know the topics from their start on, and hear of what changes."""
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
            self._tell(partition, TopicsKnown(topics, frame.gone, is_whole))
        self._set_timer()

    def connection_closed(self, connection: int) -> None:
        """The connection of native members ended."""
        self.early.connection_closed(connection)
        for partition in list(self._partitions.values()):
            self._tell(partition, ConnectionClosed(connection))
        self._set_timer()


def records_of(data: bytes | bytearray | memoryview, position: int, *, where: str) -> tuple[GroupRecord, ...]:
    """The group records of whole batches from ``position`` on. What cannot be read is named in the log of the server and passed over."""
    records = []
    for batch in batches(data):
        if batch.is_control:
            continue
        for light in light_records(batch):
            if light.offset < position:
                continue
            try:
                record = decode(light.key, light.value)
            except ProtocolError as error:
                logger.error("%s: offset %d is passed over: %s", where, light.offset, error)
                continue
            if not isinstance(record, UnknownKey):
                records.append(record)
    return tuple(records)


def batch_of(records: Sequence[GroupRecord], wall_ms: int) -> bytes:
    """One record batch of them all."""
    builder = RecordBatchBuilder()
    for record in records:
        key, value = encode(record)
        builder.append(timestamp_ms=wall_ms, key=key, value=value)
    return bytes(builder.build())
