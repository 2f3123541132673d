"""The server actors of a simulated cluster: shells around the production machines, as
``raylog.actors`` are in a real one.

A ``ReplicaProcess`` is a ``ReplicaHost`` with its control session (``simulated_sessions``), its
listener and its connections to leaders; a ``BrokerProcess`` has a session only. They carry out
effects as the real shells do: what those do in threads happens after a random delay here, in
between anything else, and dies with the process. Logs lie on the machine's simulated disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, assert_never

from raylog.control.session import (
    AlterPartition,
    AlterPartitionAnswer,
    Assignment,
    BrokerDisks,
    CopyRatesChanged,
    FromActor,
    Heartbeat,
    ImageChanged,
    Release,
    Removal,
    ReplicaStatus,
    SettingsChanged,
    TopicsNamed,
    Welcome,
)
from raylog.errors import DiskLockedError, RaylogError
from raylog.log.cleaning import Turn
from raylog.log.config import LogConfig
from raylog.log.log import Log
from raylog.log.open_files import FILES_PER_SEGMENT, OpenFiles
from raylog.log.record_validation import checked
from raylog.log.removal import remove_folder
from raylog.records.corrupt import CorruptBatch, UnsupportedMagic
from raylog.replication.cleaning_rounds import ended
from raylog.replication.events import (
    AlterPartitionAnswered,
    Assigned,
    Cancelled,
    CheckRecords,
    Clean,
    CloseLog,
    ConfigsGiven,
    ControlSessionChanged,
    CopyRatesGiven,
    DeleteRecordsReceived,
    Effect,
    Event,
    FetchAnswered,
    FetchFailed,
    FetchReceived,
    FetchReply,
    Flush,
    FlushCompleted,
    FolderRemoved,
    ListOffsetsReceived,
    Load,
    Loaded,
    LogClosed,
    LogFailed,
    LogOpened,
    OffsetForLeaderEpochReceived,
    ProduceReceived,
    ProduceReply,
    RecordsChecked,
    Released,
    Removed,
    RunHousekeeping,
    Scrub,
    ScrubEnded,
    SendFetch,
    Ticked,
)
from raylog.replication.host import ReplicaHost
from raylog.replication.leaderships import Leadership
from raylog.replication.traced import TraceReached
from raylog.replication.transaction_events import MarkersReceived, TransactionVerified, VerifyTransaction
from raylog.server.driver import Driver
from raylog.server.replica_effects import carry_out
from raylog.simulator.checkers import Violation
from raylog.simulator.messages import Answer, Call, SimulatedCaller
from raylog.simulator.processes import Machine
from raylog.simulator.simulated_network import Link
from raylog.simulator.simulated_sessions import ActorSpec, OneSaid, ProcessClock, ServerEnd, ServerProcess
from raylog.types import TopicIdPartition, broker_of

if TYPE_CHECKING:
    from raylog.simulator.simulation import Simulation

OPEN_SEGMENTS = 2  # of all logs of a process: hardly any, so that files are closed and opened again all the time
OPEN_BESIDES = 2 + FILES_PER_SEGMENT  # a scrubbing, and a cleaning: what it reads and what it writes
BOUND_SLACK_MS = 1_000  # for the records of a Produce to be checked
EventWithToken = (
    ProduceReceived
    | FetchReceived
    | ListOffsetsReceived
    | OffsetForLeaderEpochReceived
    | DeleteRecordsReceived
    | MarkersReceived
)


class BrokerProcess(ServerProcess):
    """The Broker actor, as far as the controller sees it."""


class ReplicaProcess(ServerProcess):
    """A process that holds replicas."""

    def __init__(self, simulation: Simulation, machine: Machine, spec: ActorSpec) -> None:
        super().__init__(simulation, machine, spec)
        self.host = ReplicaHost(
            self.identity, broker_of(spec.node_id), simulation.host_config, watched_topics=simulation.coordinated_topics
        )
        self.open_files = OpenFiles(OPEN_SEGMENTS)
        self.touched: dict[TopicIdPartition, None] = {}
        self._tokens = 0
        self._waiting: dict[int, tuple[ServerEnd, Link, int]] = {}
        self._alone: set[int] = set()  # the tokens of Produces with acks=1
        self._due_ms: dict[int, tuple[int, int]] = {}  # when a request has to be answered at the latest, and its bound
        self._leaders: dict[tuple[int, int], SimulatedCaller] = {}
        self._has_ticked = False
        self._replica_driver: Driver[Event, Effect] = Driver(
            ProcessClock(self),
            step=self._step,
            tick=self._tick,
            next_deadline_ms=self.host.next_deadline_ms,
            carry_out=partial(carry_out, self, self),
            settled=self._settled,
        )

    def statuses(self) -> tuple[ReplicaStatus, ...]:
        return self.host.status()

    def unopened(self) -> tuple[TopicIdPartition, ...]:
        return self.host.unopened()

    def heartbeat(self) -> Heartbeat:
        self.host.take_loads()
        held = [id for id, replica in self.host.replicas.items() if replica.log is not None]
        return self.simulation.scaling.heartbeat(self, held)

    def session_changed(self, connected: bool) -> None:
        self.handle(ControlSessionChanged(connected))

    def controller_said(self, frame: OneSaid) -> None:
        match frame:
            case Assignment():
                self.handle(Assigned(frame))
            case Removal():
                self.handle(Removed(frame))
            case Release():
                self.handle(Released(frame))
            case AlterPartitionAnswer():
                self.handle(AlterPartitionAnswered(frame))
            case Welcome():
                self.handle(CopyRatesGiven(frame.controller_epoch, frame.rates))
                self.handle(ConfigsGiven(frame.controller_epoch, frame.configs))
            case CopyRatesChanged():
                self.handle(CopyRatesGiven(frame.controller_epoch, frame.rates))
            case SettingsChanged():
                self.handle(ConfigsGiven(frame.controller_epoch, frame.configs))
            case BrokerDisks() | ImageChanged() | TopicsNamed():
                pass
            case _:
                assert_never(frame)

    # ---------------------------------------------------------------- the machine

    def handle(self, event: Event) -> None:
        if self.alive:
            self._replica_driver.handle(event)

    def _step(self, event: Event, now_ms: int, wall_ms: int) -> list[Effect]:
        if not self.alive:
            return []
        self.simulation.trace_event(self.name, event)
        return self.host.handle(event, now_ms, wall_ms)

    def _tick(self, now_ms: int, wall_ms: int) -> list[Effect]:
        self._has_ticked = True
        return self._step(Ticked(), now_ms, wall_ms)

    def _settled(self) -> None:
        if self._has_ticked and self.alive:
            self._has_ticked = False
            self._check_bounds()

    def after_work(self) -> None:
        super().after_work()
        self.simulation.observer.check_host(self)

    def send_fetch(self, order: SendFetch) -> None:
        self._fetch(order)

    def tell(self, frame: FromActor) -> None:
        if isinstance(frame, AlterPartition):
            self.simulation.trace_event(self.name, frame)
        self.send(frame)

    def verify_transaction(self, order: VerifyTransaction) -> None:
        question = order.question
        answered = lambda error: self.handle(TransactionVerified(question, error))  # noqa: E731
        self.simulation.transactions.verify(self, order, answered)

    def leaderships_changed(self, changes: Sequence[Leadership]) -> None:
        """What has become of a replica of ``Simulation.coordinated_topics``."""

    def trace_reached(self, reached: TraceReached) -> None:
        """Nothing is traced here."""

    def answer(self, token: int, reply: object) -> None:
        """Send what the machine replies, unless nobody waits for it any more."""
        if token in self._alone and isinstance(reply, ProduceReply):
            self._alone.discard(token)
            for part in reply.partitions:
                replica = self.host.replicas.get(part.id)
                if replica is not None and replica.leader is not None and not part.error:
                    self.simulation.acknowledged_alone(part.id, replica.leader.leader_epoch, part.base_offset)
        waiting = self._waiting.pop(token, None)
        if waiting is not None:
            end, link, correlation = waiting
            end.tokens.pop(token, None)
            link.send(self, Answer(correlation, reply))

    def new_token(self) -> int:
        self._tokens += 1
        return self._tokens

    def in_thread(self, typical_us: int, work: object, label: str) -> None:
        self.later(self.scheduler.skewed_us(typical_us), work, f"{self.name} {label}")  # type: ignore[arg-type]

    # ---------------------------------------------------------------- the listener

    def serve(self, end: ServerEnd, call: Call) -> bool:
        request = call.request
        if not isinstance(request, EventWithToken):
            return False
        token = self.new_token()
        event = self.simulation.with_token(request, token)
        if call.correlation:
            assert end.link is not None
            end.tokens[token] = None
            self._waiting[token] = (end, end.link, call.correlation)
        bound_ms = self._bound_ms(event)
        self._due_ms[token] = self.now_ms + bound_ms, bound_ms
        if isinstance(event, ProduceReceived) and event.acks == 1:
            self._alone.add(token)
        self.handle(event)
        if self.host.awaits(token):
            self.simulation.counts["requests held until somebody leads"] += 1
        return True

    def _bound_ms(self, event: EventWithToken) -> int:
        """How long a request may take by its own word, once it is not being worked on."""
        config = self.host.context.config
        match event:
            case ProduceReceived() | DeleteRecordsReceived() | MarkersReceived():
                return event.timeout_ms
            case FetchReceived():
                return event.max_wait_ms + config.cold_read_wait_ms
            case ListOffsetsReceived() | OffsetForLeaderEpochReceived():
                return config.awaited_leader_wait_ms
            case _:
                assert_never(event)

    def _check_bounds(self) -> None:
        """Every deadline that has come has been looked at: nobody waits for longer than it allowed."""
        for token, (due_ms, bound_ms) in list(self._due_ms.items()):
            if token not in self._waiting:
                del self._due_ms[token]
            elif self.host.works_on(token):
                self._due_ms[token] = self.now_ms + bound_ms, bound_ms  # which counts from the end of that
            elif due_ms < self.now_ms - BOUND_SLACK_MS:
                raise Violation(f"{self.name} holds request {token} for {self.now_ms - due_ms} ms more than it allows")

    def abandoned(self, token: int) -> None:
        if self._waiting.pop(token, None) is not None:
            self.handle(Cancelled(token))

    # ---------------------------------------------------------------- leaders

    def _fetch(self, effect: SendFetch) -> None:
        key = (effect.leader_node, effect.leader_incarnation)
        caller = self._leaders.get(key)
        if caller is None or caller.endpoint != effect.endpoint:
            for old in [each for each in self._leaders if each[0] == effect.leader_node]:
                self._leaders.pop(old).close()
            caller = self._leaders[key] = SimulatedCaller(self, self.simulation.network, effect.endpoint, key)
        request = FetchReceived(
            0,
            effect.replica_id,
            effect.replica_incarnation,
            effect.max_wait_ms,
            effect.min_bytes,
            effect.max_bytes,
            0,
            effect.partitions,
            effect.wants_all,
            effect.session_id,
            effect.session_epoch,
        )
        self.simulation.trace_event(self.name, effect)
        caller.call(request, lambda reply: self._fetched(effect, reply), timeout_ms=effect.max_wait_ms + 3_000)

    def _fetched(self, effect: SendFetch, reply: object | None) -> None:
        key = (effect.leader_node, effect.leader_incarnation)
        assert reply is None or isinstance(reply, FetchReply), reply
        if reply is None or reply.error:
            self.handle(FetchFailed(*key, effect.fetch_id))
        else:
            event = FetchAnswered(*key, effect.fetch_id, reply.partitions, reply.session_id)
            self.handle(event)
            if self.scheduler.chance(0.01):
                # A stale answer: the same once more, when the machine has long gone on.
                self.later(self.scheduler.skewed_us(5_000), lambda: self.handle(event), "stale answer")

    # ---------------------------------------------------------------- logs

    def check_open_files(self) -> None:
        """However many replicas it holds, and whatever they do."""
        self.open_files.check()
        allowed = FILES_PER_SEGMENT * OPEN_SEGMENTS + OPEN_BESIDES
        assert self.files.open_handles <= allowed, (
            f"{self.name} holds {self.files.open_handles} files open, > {allowed}"
        )

    def open_log(self, assignment: Assignment) -> None:
        self.in_thread(2_000, lambda: self.handle(self._open(assignment)), "open")

    def close_log(self, order: CloseLog) -> None:
        self.in_thread(1_000, lambda: self._close(order), "close")

    def remove_folder(self, removal: Removal) -> None:
        self.in_thread(1_000, lambda: self._remove_folder(removal), "remove a folder")

    def flush_log(self, order: Flush) -> None:
        self.in_thread(1_000, lambda: self._flush(order), "flush")

    def check_records(self, order: CheckRecords) -> None:
        self.in_thread(1_000, lambda: self._check_records(order), "check records")

    def load_range(self, order: Load) -> None:
        self.in_thread(1_000, lambda: self._load(order), "load")

    def clean_log(self, order: Clean) -> None:
        self.in_thread(1_000, lambda: self._clean(order), "clean")

    def scrub_log(self, order: Scrub) -> None:
        self.in_thread(2_000, lambda: self._scrub(order), "scrub")

    def _open(self, assignment: Assignment) -> LogOpened:
        directory = f"{self.spec.path}/{assignment.topic}-{assignment.partition}"
        try:
            log = Log.open(
                directory,
                files=self.files,
                config=LogConfig.from_topic_configs(dict(assignment.config)),
                topic=assignment.topic,
                partition=assignment.partition,
                topic_id=assignment.topic_id,
                now_ms=self.machine.wall_ms(),
                boot_id=self.machine.boot_id,
                open_files=self.open_files,
            )
        except (OSError, RaylogError) as error:
            self.simulation.trace(f"{self.name} cannot open {directory}: {error}")
            return LogOpened(assignment.id, None, str(error), locked=isinstance(error, DiskLockedError))
        self.simulation.observer.log_opened(self, assignment, log)
        return LogOpened(assignment.id, log)

    def _close(self, effect: CloseLog) -> None:
        failure = None
        try:
            if effect.delete:
                effect.log.delete()
                self.simulation.observer.log_deleted(self, effect.id)
            else:
                effect.log.close(clean=effect.clean)
        except (OSError, RaylogError) as error:
            self.simulation.trace(f"{self.name} cannot close {effect.id}: {error}")
            failure = str(error)
        if effect.delete:
            self.handle(FolderRemoved(effect.id, failure))
        elif effect.reports:
            self.simulation.observer.log_released(self, effect.id)
            self.handle(LogClosed(effect.id))

    def _remove_folder(self, removal: Removal) -> None:
        id = TopicIdPartition(removal.topic_id, removal.partition)
        try:
            remove_folder(self.files, f"{self.spec.path}/{removal.topic}-{removal.partition}", removal.topic_id)
        except (OSError, DiskLockedError) as error:
            self.simulation.trace(f"{self.name} cannot remove {removal}: {error}")
            self.handle(FolderRemoved(id, str(error), locked=isinstance(error, DiskLockedError)))
            return
        self.simulation.observer.log_deleted(self, id)
        self.handle(FolderRemoved(id))

    def _flush(self, effect: Flush) -> None:
        try:
            effect.log.flush()
        except OSError as error:
            self.handle(FlushCompleted(effect.id, effect.log_end_offset, str(error), log=effect.log))
            return
        done = FlushCompleted(effect.id, effect.log_end_offset, log=effect.log)
        self.later(self.scheduler.skewed_us(200), lambda: self.handle(done), f"{self.name} flushed")

    def _check_records(self, effect: CheckRecords) -> None:
        self.simulation.counts["checks apart"] += 1
        verdict = checked(effect.records, config=effect.config, wall_ms=effect.wall_ms, where=effect.where)
        self.handle(RecordsChecked(effect.token, effect.index, verdict))

    def _load(self, effect: Load) -> None:
        self.simulation.counts["cold reads"] += 1
        error = None
        try:
            self.files.load(effect.path, effect.position, effect.size)
        except OSError as broken:
            error = str(broken)
        self.handle(Loaded(effect.id, effect.path, effect.position, effect.size, error))

    def keep_house(self, order: RunHousekeeping) -> None:
        wall_ms = self.machine.wall_ms()
        order.log.forget_committed()
        if order.retention:
            try:
                order.log.delete_old_segments(wall_ms)
            except OSError as error:
                self.handle(LogFailed(order.id, str(error)))
                return
            order.log.expire_producers(wall_ms)
        self.in_thread(1_000, lambda: self._tidy(order, wall_ms), "tidy")

    def _clean(self, effect: Clean) -> None:
        """One step; a step on the loop comes as an event of its own, like one in a thread."""
        try:
            turn = effect.cleaning.step()
        except (OSError, CorruptBatch, UnsupportedMagic) as error:
            self.simulation.trace(f"{self.name} cannot clean {effect.log.where}: {error}")
            self.handle(ended(effect, error))
            return
        if turn is None:
            report = effect.cleaning.report
            if report.end_offset >= 0:
                self.simulation.counts["cleanings"] += 1
                self.simulation.counts["records compacted away"] += report.records_before - report.records_after
            self.simulation.trace(f"{self.name} cleaned {effect.log.where}: {report}")
            self.handle(ended(effect))
        else:
            typical_us = 3_000 if turn is Turn.THREAD else 200
            self.in_thread(typical_us, lambda: self._clean(effect), f"clean ({turn.value})")

    def _scrub(self, effect: Scrub) -> None:
        try:
            goes_on = effect.scrubbing.step()
        except OSError as error:
            self.handle(ScrubEnded(effect.id, effect.log, effect.scrubbing, str(error)))
            return
        if goes_on:
            self.in_thread(2_000, lambda: self._scrub(effect), "scrub")
        else:
            self.simulation.counts["scrubs"] += 1
            self.handle(ScrubEnded(effect.id, effect.log, effect.scrubbing))

    def _tidy(self, effect: RunHousekeeping, wall_ms: int) -> None:
        try:
            effect.log.checkpoint_in_thread()
            effect.log.delete_renamed_files(wall_ms)
        except OSError as error:
            self.handle(LogFailed(effect.id, str(error)))

    def exit(self) -> None:
        for effect in self.host.close():
            assert isinstance(effect, CloseLog), effect
            self._close(effect)
        self.kill()
