"""All replicas of one server process: a table, and the dispatch of events to them.

``ReplicaHost`` is the machine that a shell drives (the actor, the in-process cluster, the simulator)::

    effects = host.handle(event, now_ms, wall_ms)    carry out, in order; orders for one partition's log never overtake each other
    host.next_deadline_ms()                          when to come back with Ticked, at the latest
    host.status()                                    for hello

Requests name any number of partitions. What can be answered at once is; the rest is parked (``parked.py``). All parked
fetches that an event wakes are read once, when the event has been dealt with.

A Produce whose records take long to check is held until a thread has checked them (``produce_requests.py``). Requests for a partition
that this process may lead any moment wait for that (``awaited.py``). Reading never waits for the disk (``fetch_requests.py``).

Fencing: every frame of a controller carries its epoch; one lower than the highest seen here comes from a deposed
controller and is refused (TV-25). ``admit_controller`` decides that for each frame that reaches the host; the session
client has asked a guard of its own before (``session_frames.ControllerEpochGuard``).

Invariants: ``check`` asks every part for its own; tests and the simulator call it after every event.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import assert_never

from kio.schema.errors import ErrorCode

from raylog.configs.settings import with_configs
from raylog.control.session import Assignment, Release, Removal, ReplicaLoad, ReplicaStatus
from raylog.log.files import NotInMemory
from raylog.log.log import Log
from raylog.replication.awaited import Awaited, Deferrable, Deferred, LateAppend, Waiter
from raylog.replication.checkpoint_rounds import CheckpointRounds, arm_housekeeping, hasten_housekeeping
from raylog.replication.cleaning_rounds import CleaningRounds
from raylog.replication.cold_reads import Lacking, Loads, is_patient
from raylog.replication.context import HostConfig, HostContext
from raylog.replication.events import (
    AlterPartitionAnswered,
    Assigned,
    Buffer,
    Cancelled,
    CleaningEnded,
    CloseLog,
    ConfigsGiven,
    ControlSessionChanged,
    CopyRatesGiven,
    DamageReported,
    DamageSuspected,
    DeleteRecordsPartitionResult,
    DeleteRecordsReceived,
    DeleteRecordsReply,
    DiskEvent,
    Effect,
    EpochEndPartitionResult,
    Event,
    FetchAnswered,
    FetchFailed,
    FetchPartition,
    FetchPartitionResult,
    FetchReceived,
    FlushCompleted,
    FolderRemoved,
    LeaderHint,
    ListOffsetsPartitionResult,
    ListOffsetsReceived,
    ListOffsetsReply,
    Loaded,
    LogClosed,
    LogFailed,
    LogOpened,
    OffsetForLeaderEpochReceived,
    OffsetForLeaderEpochReply,
    OwnAppend,
    ProducePartitionResult,
    ProduceReceived,
    RecordsChecked,
    Released,
    Removed,
    Reply,
    ScrubEnded,
    Ticked,
    Token,
)
from raylog.replication.fetch_requests import FetchRequests
from raylog.replication.fetch_streams import FetchStreams
from raylog.replication.folders import Folders
from raylog.replication.listed_offsets import list_offset
from raylog.replication.parked import Parked, ParkedFetch, ParkedListOffsets, ParkedProduce
from raylog.replication.produce_requests import ProduceRequests
from raylog.replication.replica import Replica
from raylog.replication.replication_quota import CopyingOut
from raylog.replication.scrubbing import ScrubRounds
from raylog.replication.transaction_events import LeaveWanted, MarkersReceived, TransactionVerified
from raylog.replication.watched import WatchedReplicas
from raylog.types import ActorIdentity, TopicIdPartition

__all__ = ["HostConfig", "ReplicaHost"]


class ReplicaHost:
    """The replicas of one process on one disk (DESIGN §3, "Hosts")."""

    def __init__(
        self,
        identity: ActorIdentity,
        broker_id: int,
        config: HostConfig | None = None,
        *,
        watched_topics: Iterable[str] = (),
    ) -> None:
        """``watched_topics``: those whose leaderships and high watermarks the shell wants to know (``watched.py``)."""
        self._started_with = config or HostConfig()
        self.context = HostContext(identity, broker_id, self._started_with, frozenset(watched_topics))
        self.replicas: dict[TopicIdPartition, Replica] = {}
        self.controller_epoch = 0
        self.refused_frames = 0  # from deposed controllers
        self._folders = Folders(self.context, self.replicas)
        self._awaited = Awaited(self.context, self.replicas, self._ready)
        self._parked = Parked(self.context, lambda late: self._produces.give_up(late))
        self._produces = ProduceRequests(self.context, self.replicas, self._parked, self._awaited)
        self._loads = Loads(self.context)
        self._streams = FetchStreams(self.context)
        self._copying_out = CopyingOut(self.context)
        self._fetches = FetchRequests(self.context, self.replicas, self._parked, self._loads, self._copying_out)
        self._checkpoints = CheckpointRounds(self.context, self.replicas)
        self._cleanings = CleaningRounds(self.context, self.replicas)
        self._scrubs = ScrubRounds(self.context, self.replicas)
        self._watched = WatchedReplicas(self.context, self.replicas)

    # -------------------------------------------------------------- the shell's side

    def handle(self, event: Event, now_ms: int, wall_ms: int) -> list[Effect]:
        """Take in one fact; returns the orders that follow from it."""
        effects = self._begin(now_ms)
        match event:
            case ProduceReceived():
                self._produces.received(event, now_ms, wall_ms)
            case RecordsChecked() | OwnAppend() | MarkersReceived() | TransactionVerified() | LeaveWanted():
                self._produces.handle(event, now_ms, wall_ms)
            case FetchReceived():
                if event.replica_id >= 0 or not self._defer_unknown(event, now_ms):
                    self._fetches.received(event, now_ms)
            case FetchAnswered():
                self._streams.answered(event, now_ms, wall_ms)
            case FlushCompleted():
                self._flush_completed(event, now_ms)
            case Ticked():
                for deadline in self.context.wheel.advance(now_ms):
                    deadline.payload(now_ms, wall_ms)
            case FetchFailed():
                self._streams.failed(event, now_ms)
            case ListOffsetsReceived() | OffsetForLeaderEpochReceived() | DeleteRecordsReceived():
                if not self._defer(event, now_ms):
                    self._answer(event, now_ms)
            case Cancelled():
                self._cancel(event.token)
            case Assigned():
                self._assign(event.assignment, now_ms)
            case Removed():
                self._remove(event.removal)
            case Released():
                self._release(event.release)
            case AlterPartitionAnswered():
                self._alter_partition_answered(event, now_ms)
            case ControlSessionChanged():
                self._session_changed(event.connected, now_ms)
            case CopyRatesGiven():
                self._set_rates(event, now_ms)
            case ConfigsGiven():
                if self.admit_controller(event.controller_epoch):
                    self._configs_given(dict(event.configs), now_ms)
            case (
                LogOpened()
                | LogClosed()
                | LogFailed()
                | FolderRemoved()
                | Loaded()
                | CleaningEnded()
                | ScrubEnded()
                | DamageReported()
                | DamageSuspected()
            ):
                self._disk_reported(event, now_ms)
            case _:
                assert_never(event)
        self._follow_up(now_ms, wall_ms)
        return effects

    def _configs_given(self, configs: dict[str, str], now_ms: int) -> None:
        """What holds from now on, for what is waited for already, too."""
        before, self.context.config = self.context.config, with_configs(self._started_with, configs)
        hasten_housekeeping(self.context, self.replicas.values(), now_ms)
        if self.context.config.replica_lag_time_max_ms != before.replica_lag_time_max_ms:
            for replica in self.replicas.values():
                if replica.leader is not None:
                    replica.leader.lag_time_changed(now_ms)

    def _disk_reported(self, event: DiskEvent, now_ms: int) -> None:
        """What a thread has done on the disk, or found there."""
        match event:
            case LogOpened():
                self._log_opened(event, now_ms)
            case LogClosed():
                self._folders.closed(event.id)
            case FolderRemoved():
                self._folders.removed(event, now_ms)
            case LogFailed():
                failed = self.replicas.get(event.id)
                if failed is not None and failed.log is not None:
                    failed.fail(event.reason)
            case Loaded():
                self._loaded(event)
            case CleaningEnded():
                self._cleanings.ended(event, now_ms)
                if event.fault is not None:
                    self._scrubs.hurry(event.id, now_ms)
            case ScrubEnded():
                self._scrubs.ended(event, now_ms)
            case DamageReported():
                self._scrubs.reported(event)
            case DamageSuspected():
                suspected = self.replicas.get(event.id)
                if suspected is not None:
                    self._scrubs.suspected(suspected, event.offset)
            case _:
                assert_never(event)

    def append_at_once(
        self, id: TopicIdPartition, acks: int, records: Buffer, now_ms: int, wall_ms: int
    ) -> tuple[ProducePartitionResult, list[Effect]] | None:
        """What ``handle`` does with a Produce of one small batch for which nobody is waited; without a token, since this is the answer.

        None, and nothing is done, where anything is otherwise: then it is an event like others.
        """
        effects = self._begin(now_ms)
        result = self._produces.at_once(id, acks, records, now_ms, wall_ms)
        if result is None:
            return None
        self._follow_up(now_ms, wall_ms)
        return result, effects

    def read_at_once(
        self, part: FetchPartition, terms: FetchReceived, now_ms: int, wall_ms: int
    ) -> tuple[FetchPartitionResult, list[Effect]] | None:
        """The same of a consumer's fetch from one partition that has enough for it in memory.

        ``terms``: the fetch, whose token and partitions don't count.
        """
        effects = self._begin(now_ms)
        result = self._fetches.at_once(part, terms)
        if result is None:
            return None
        self._follow_up(now_ms, wall_ms)
        return result, effects

    def _begin(self, now_ms: int) -> list[Effect]:
        """Where the effects of an event will stand."""
        context = self.context
        effects: list[Effect] = []
        context.effects = effects
        context.copying_out.advance(now_ms)
        context.copying_in.advance(now_ms)
        return effects

    def _follow_up(self, now_ms: int, wall_ms: int) -> None:
        """Deal with what an event has set going in other parts. Outdated fetches come before woken ones, which may be answered."""
        context = self.context
        while context.changed:
            changed = list(context.changed)
            context.changed.clear()
            self._watched.note(changed)
            self._awaited.changed(changed, now_ms, wall_ms)
        if context.outdated:
            self._fetches.tell_soon(now_ms)
        if context.woken:
            self._fetches.answer_woken(now_ms)
        while context.suspected:
            self._scrubs.suspected(*context.suspected.pop())
        if context.failed:
            for replica in context.failed:
                self._streams.drop(replica.id)
            context.failed.clear()
        if context.high_watermarks_moved:
            context.high_watermarks_moved = False
            self._checkpoints.wake(now_ms)
        if context.watched or context.changed:
            self._watched.note(context.changed)
            self._watched.announce()

    def holds(self, token: Token) -> bool:
        """Whether a Produce is not appended yet: its records are checked first, or a partition of it does not serve yet."""
        return self._produces.holds(token)

    def awaits(self, token: Token) -> bool:
        """Whether a request, or a part of it, waits until a partition serves."""
        return self._awaited.holds(token)

    def works_on(self, token: Token) -> bool:
        """Whether a request waits for a thread or for a transaction coordinator, which have all the time
        that they need.
        """
        return self._produces.checks(token) or isinstance(self._parked.by_token.get(token), ParkedListOffsets)

    def next_deadline_ms(self) -> int | None:
        """When Ticked has something to do; None while nothing waits for the time."""
        return self.context.wheel.next_due_ms()

    def status(self) -> tuple[ReplicaStatus, ...]:
        """The replicas whose logs are open, for ``hello``."""
        return tuple(replica.status() for replica in self.replicas.values() if replica.log is not None)

    def take_loads(self) -> tuple[ReplicaLoad, ...]:
        """The replicas' traffic since the last call, for the heartbeat."""
        return self.context.traffic.take()

    def unopened(self) -> tuple[TopicIdPartition, ...]:
        """The replicas whose logs are not open: they are being opened, or that has failed. For ``hello``."""
        return tuple(id for id, replica in self.replicas.items() if replica.log is None)

    def admit_controller(self, controller_epoch: int) -> bool:
        """Whether a frame of that controller epoch may be obeyed; a higher one is remembered."""
        if controller_epoch < self.controller_epoch:
            self.refused_frames += 1
            return False
        self.controller_epoch = controller_epoch
        return True

    # -------------------------------------------------------------- requests for partitions that will serve

    def _defer(self, event: Deferrable, now_ms: int) -> bool:
        """Whether it waits for partitions that this process may lead soon."""
        wait_ms = event.timeout_ms if isinstance(event, DeleteRecordsReceived) else self._wait_ms
        awaited = self._awaited.awaited_among(event) if wait_ms > 0 else []
        if awaited:
            self._awaited.defer(event, awaited, wait_ms, now_ms)
        return bool(awaited)

    def _defer_unknown(self, event: FetchReceived, now_ms: int) -> bool:
        """Whether a consumer's fetch waits for partitions that are not assigned here yet. Others are there, if empty."""
        if event.max_wait_ms <= 0 or all(part.id in self.replicas for part in event.partitions):
            return False
        awaited = [id for id in self._awaited.awaited_among(event) if id not in self.replicas]
        if awaited:
            self._awaited.defer(event, awaited, event.max_wait_ms, now_ms)
        return bool(awaited)

    @property
    def _wait_ms(self) -> int:
        return self.context.config.awaited_leader_wait_ms

    def _ready(self, waiter: Waiter, now_ms: int, wall_ms: int) -> None:
        if isinstance(waiter, LateAppend):
            self._produces.ready(waiter, now_ms, wall_ms)
            return
        assert isinstance(waiter, Deferred), waiter
        left_ms = max(0, waiter.due_ms - now_ms)
        match waiter.request:
            case FetchReceived():
                self._fetches.received(replace(waiter.request, max_wait_ms=left_ms), now_ms)
            case DeleteRecordsReceived():
                self._answer(replace(waiter.request, timeout_ms=left_ms), now_ms)
            case _:
                self._answer(waiter.request, now_ms)

    def _answer(
        self, event: ListOffsetsReceived | OffsetForLeaderEpochReceived | DeleteRecordsReceived, now_ms: int
    ) -> None:
        match event:
            case ListOffsetsReceived():
                self._list_offsets(event)
            case OffsetForLeaderEpochReceived():
                self._epoch_ends(event)
            case DeleteRecordsReceived():
                self._delete_records(event, now_ms)
            case _:
                assert_never(event)

    def _cancel(self, token: Token) -> None:
        self._awaited.cancel(token)
        cancelled = self._parked.cancel(token)
        if isinstance(cancelled, ParkedFetch):
            self._fetches.cancelled(cancelled)
        elif isinstance(cancelled, ParkedListOffsets):
            self._loads.forget(cancelled)
        elif isinstance(cancelled, ParkedProduce):
            for late in cancelled.late:
                self._awaited.forget(late)

    # -------------------------------------------------------------- other requests

    def _list_offsets(self, event: ListOffsetsReceived) -> None:
        results, lacking = self._search(event, in_memory=True)
        if lacking:
            search = ParkedListOffsets(event)
            self._parked.park_list_offsets(search)
            self._loads.wait(search, self._loads.order(lacking))
        else:
            self.context.effects.append(Reply(event.token, ListOffsetsReply(tuple(results))))

    def _search_again(self, search: ParkedListOffsets) -> None:
        results, lacking = self._search(search.request, in_memory=is_patient(search))
        self._loads.wait(search, self._loads.order(lacking))
        if not lacking:
            self._parked.unpark_list_offsets(search)
            self.context.effects.append(Reply(search.token, ListOffsetsReply(tuple(results))))

    def _search(
        self, event: ListOffsetsReceived, *, in_memory: bool
    ) -> tuple[list[ListOffsetsPartitionResult], Lacking]:
        """The answer as of now, and what has to be loaded to make it whole."""
        results: list[ListOffsetsPartitionResult] = []
        lacking: Lacking = []
        for part in event.partitions:
            replica = self.replicas.get(part.id)
            if replica is None:
                results.append(ListOffsetsPartitionResult(part.id, self.context.absence(part.id)[0]))
            else:
                try:
                    results.append(list_offset(replica, part, event, in_memory=in_memory))
                except NotInMemory as missing:
                    lacking.append((part.id, missing))
        return results, lacking

    def _epoch_ends(self, event: OffsetForLeaderEpochReceived) -> None:
        results = []
        for part in event.partitions:
            replica = self.replicas.get(part.id)
            if replica is None:
                results.append(EpochEndPartitionResult(part.id, self.context.absence(part.id)[0]))
            else:
                results.append(replica.epoch_end(part))
        self.context.effects.append(Reply(event.token, OffsetForLeaderEpochReply(tuple(results))))

    def _delete_records(self, event: DeleteRecordsReceived, now_ms: int) -> None:
        results: list[DeleteRecordsPartitionResult] = []
        waits: list[tuple[int, Replica, int]] = []
        for index, part in enumerate(event.partitions):
            replica = self.replicas.get(part.id)
            if replica is None:
                results.append(DeleteRecordsPartitionResult(part.id, self.context.absence(part.id)[0]))
            elif replica.leader is None:
                results.append(DeleteRecordsPartitionResult(part.id, replica.refusal()))
            else:
                error, low_watermark, required_start = replica.leader.delete_records(part.offset)
                results.append(DeleteRecordsPartitionResult(part.id, error, low_watermark))
                if not error and low_watermark < required_start:
                    waits.append((index, replica, required_start))
        if waits and event.timeout_ms > 0:
            self._parked.park_deletion(event.token, event.timeout_ms, results, waits, now_ms=now_ms)
            return
        for index, replica, _ in waits:
            results[index] = DeleteRecordsPartitionResult(replica.id, ErrorCode.request_timed_out.value)
        self.context.effects.append(Reply(event.token, DeleteRecordsReply(tuple(results))))

    # -------------------------------------------------------------- the controller's frames

    def _assign(self, assignment: Assignment, now_ms: int) -> None:
        if not self.admit_controller(assignment.controller_epoch):
            return
        self._folders.assigned(assignment.id)
        self._awaited.assigned(assignment)
        replica = self.replicas.get(assignment.id)
        if replica is None:
            replica = self.replicas[assignment.id] = Replica(self.context, assignment)
            self.context.changed[assignment.id] = None
            self._folders.open(replica)
        elif replica.assign(assignment, now_ms):
            self._checkpoints.wake(now_ms)  # in a new epoch there is something to report
            self._streams.update(replica, now_ms)
            self._configured(replica, now_ms)

    def _remove(self, removal: Removal) -> None:
        if not self.admit_controller(removal.controller_epoch):
            return
        id = TopicIdPartition(removal.topic_id, removal.partition)
        self.context.released.pop(id, None)
        self._streams.drop(id)
        self._folders.remove(removal)
        self._awaited.removed(id)
        self.context.changed[id] = None

    def _release(self, release: Release) -> None:
        if not self.admit_controller(release.controller_epoch):
            return
        id = TopicIdPartition(release.topic_id, release.partition)
        self._streams.drop(id)
        self.context.released[id] = LeaderHint(release.leader_node, release.leader_epoch, release.leader_endpoint)
        self._folders.release(id)
        self._awaited.removed(id)
        self.context.changed[id] = None

    def _log_opened(self, event: LogOpened, now_ms: int) -> None:
        replica = self.replicas.get(event.id)
        if replica is None or not replica.is_opening:
            if event.log is not None:
                self.context.effects.append(CloseLog(event.id, event.log, delete=False))
            return
        if not self._folders.opened(replica, event, now_ms) or event.log is None:
            return
        replica.log_opened(event.log, now_ms)
        self._streams.update(replica, now_ms)
        arm_housekeeping(self.context, replica, now_ms)
        self._checkpoints.begin(now_ms)
        self._checkpoints.wake(now_ms)
        self._configured(replica, now_ms)

    def _configured(self, replica: Replica, now_ms: int) -> None:
        self._cleanings.opened(replica.log, now_ms)
        self._scrubs.opened(replica.id, replica.log, now_ms)

    def _alter_partition_answered(self, event: AlterPartitionAnswered, now_ms: int) -> None:
        answer = event.answer
        if not self.admit_controller(answer.controller_epoch):
            return
        replica = self.replicas.get(TopicIdPartition(answer.topic_id, answer.partition))
        if replica is not None and replica.leader is not None:
            replica.leader.alter_partition_answered(answer, now_ms)

    def _session_changed(self, connected: bool, now_ms: int) -> None:
        self.context.connected = connected
        self._checkpoints.session_changed(now_ms)
        for replica in self.replicas.values():
            if replica.leader is not None:
                replica.leader.session_changed(now_ms)

    def _set_rates(self, event: CopyRatesGiven, now_ms: int) -> None:
        if not self.admit_controller(event.controller_epoch):
            return
        if event.rates.as_leader != self.context.copying_out.rate:
            self._copying_out.set_rate(event.rates.as_leader, now_ms)
        if event.rates.as_follower != self.context.copying_in.rate:
            self.context.copying_in.set_rate(event.rates.as_follower, now_ms)
            self._streams.rates_changed(now_ms)

    # -------------------------------------------------------------- disk

    def _flush_completed(self, event: FlushCompleted, now_ms: int) -> None:
        if event.took_ns is not None:
            self.context.counts.flushes.add(event.took_ns)
        replica = self.replicas.get(event.id)
        if replica is None or (event.log is not None and event.log is not replica.log):
            return
        replica.flush_completed(event)
        if replica.log is not None and not replica.flushing.held:
            self._streams.flush_completed(replica, now_ms)

    def _loaded(self, event: Loaded) -> None:
        waiters = self._loads.loaded(event)
        replica = self.replicas.get(event.id)
        if event.error is not None and replica is not None and replica.log is not None:
            replica.fail(f"read: {event.error}")
        for waiter in waiters:
            if isinstance(waiter, ParkedFetch):
                self.context.woken[waiter] = None
            else:
                self._search_again(waiter)

    def logs(self) -> list[Log]:
        """The open logs."""
        return [replica.log for replica in self.replicas.values() if replica.log is not None]

    def close(self) -> list[Effect]:
        """The process ends of its own will: orders to close every log cleanly. The host must not be used afterwards."""
        self.context.effects = []
        for replica in self.replicas.values():
            replica.close(delete=False, clean=True)
        return self.context.effects

    # -------------------------------------------------------------- invariants

    def check(self) -> None:
        """Raise AssertionError where an invariant is broken. For tests and the simulator: it visits everything."""
        for id, replica in self.replicas.items():
            assert replica.id == id
            replica.check()
            known = replica.follower.leader if replica.follower is not None else None
            assert (id in self._streams.node_of) == (known is not None), f"{id}: follows {known}"
        assert not self.context.woken, "an event ended with woken fetches that nobody read"
        assert not self.context.outdated, "an event ended with followers whom nobody will tell"
        self._streams.check()
        self._parked.check()
        self._fetches.check()
        self._produces.check()
        self._awaited.check()
        self._loads.check()
        self._copying_out.check()
        self._cleanings.check()
        self._folders.check()
        self._scrubs.check()
        self._watched.check()
        for request in self._parked.by_token.values():
            if isinstance(request, ParkedFetch | ParkedListOffsets):
                waits = [request in self._loads.in_flight.get(place, ()) for place in sorted(request.lacks)]
                assert all(waits), f"request {request.token} lacks {request.lacks}, which nobody loads"
        self.context.wheel.check()
        traced = sum(len(each.leader.traced or ()) for each in self.replicas.values() if each.leader is not None)
        assert traced == self.context.traced_batches, f"{traced} traced batches wait, not {self.context.traced_batches}"
