"""The active controller: one term's decisions, from the commit that begins it until it is deposed.

``ActiveController`` turns events into decisions (batches of records for the quorum to commit) and, when they are committed, into
what the world is told. It is built from the committed image and holds everything that is not in the log: sessions, liveness,
parked requests, creations under way. A deposed controller drops it whole; the next one builds its own. It knows nothing of Raft,
of files or of sockets.

The rules:

- An event is decided against the latest image, i.e. with all decisions before it, committed or not. Replies and frames that rest
  on decisions wait for the commit (``ledger``). Only questions about the committed image are answered at once.
- Everything that one event brings about is one batch: a death and the elections of all its partitions commit together.
- A session's hello registers its process. The same incarnation coming back raises nothing; another one ends the leaderships of
  the one before it, in the same batch. A process that was replaced is told to exit.
- Being declared dead is a record, so the commit that a majority gives it is also the confirmation that this controller may judge.

Invariants (``check``): the images fold right; a session's process is the registered one; each leader's epoch is of its registered
process; nobody can be silent, expected or waited for without a deadline.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import assert_never

from kio.schema.errors import ErrorCode

from raylog.control.session import (
    AlterPartition,
    AlterPartitionAnswer,
    DisksChecked,
    Exit,
    FailedDisk,
    Heartbeat,
    Hello,
    HighWatermarks,
    NodeLeaving,
    ReplicaDamaged,
    ReplicaFailed,
    ReplicaMended,
    ReplicaOpened,
    ReplicaReleased,
    ReplicaRemoved,
    Welcome,
)
from raylog.metadata.actors.actor_removals import Departures
from raylog.metadata.actors.actor_starts import START, Starts, may_create_need
from raylog.metadata.actors.admission import Admission, admit
from raylog.metadata.actors.disk_health import DiskHealth, replicas_on
from raylog.metadata.actors.disk_requests import MoveToDisks
from raylog.metadata.actors.host_decisions import HostDecisions
from raylog.metadata.actors.liveness import KINDS as LIVENESS_KINDS
from raylog.metadata.actors.liveness import Liveness
from raylog.metadata.actors.scaling import Scaling
from raylog.metadata.configuration.acl_decisions import AclDecisions
from raylog.metadata.configuration.acl_requests import CreateAcls, DeleteAcls, DescribeAcls
from raylog.metadata.configuration.config_alterations import ConfigAlterations
from raylog.metadata.configuration.config_requests import AlterConfigs, DescribeConfigs, SetStaticConfigs
from raylog.metadata.configuration.controller_config import ControllerSettings
from raylog.metadata.controllers.controller_plan import decide_plan
from raylog.metadata.events import (
    ActiveEffect,
    ActiveEvent,
    ActorStarted,
    ActorStartFailed,
    CloseSession,
    ControllerTicked,
    Dialed,
    RequestAbandoned,
    RequestReceived,
    SendControllerReply,
    SendFrame,
    SessionClosed,
    SessionFrame,
    SessionHello,
    warning,
)
from raylog.metadata.image import MetadataImage, RemovalKey
from raylog.metadata.ledger import Created, Decision, Greet, Held, Ledger, LetGo
from raylog.metadata.partitions.announcements import Announcements
from raylog.metadata.partitions.creation_waits import CREATION, CreationWaits
from raylog.metadata.partitions.high_watermark_record import HIGH_WATERMARKS, HighWatermarkRecord
from raylog.metadata.partitions.leader_waits import AWAIT, LeaderWaits
from raylog.metadata.partitions.leadership import IMBALANCE, Leadership
from raylog.metadata.partitions.move_decisions import Moves
from raylog.metadata.partitions.partition_decisions import WAITS, PartitionDecisions
from raylog.metadata.partitions.reassignment_decisions import Reassignments
from raylog.metadata.partitions.topic_decisions import Planner
from raylog.metadata.producer_ids import ProducerIds
from raylog.metadata.questions import Questions
from raylog.metadata.records import SHAPES_SETTINGS, DiskRegistered, RemovalConfirmed, RemovalPending, TopicDeleted
from raylog.metadata.requests import (
    AllocateProducerIds,
    AlterReassignments,
    AwaitLeader,
    ClusterStatus,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    DescribeCluster,
    DescribeTopics,
    DrainBroker,
    ElectLeaders,
    InitProducerId,
    ListReassignments,
    MoveReplicas,
    PlanControllers,
    PlanHost,
    RegisterDisk,
    RetireHost,
    UnregisterBroker,
)
from raylog.metadata.sessions import Session, Sessions
from raylog.metadata.topic_changes import TopicChanges
from raylog.metadata.users.credential_requests import AlterUserScramCredentials, DescribeUserScramCredentials
from raylog.metadata.users.decisions import decide_users
from raylog.metadata.users.quota_requests import AlterClientQuotas, DescribeClientQuotas
from raylog.metadata.users.token_requests import DescribeDelegationTokens, TokenChange
from raylog.timers import Timers
from raylog.types import BROKER_SLOT, TopicIdPartition, TopicPartition, broker_of, slot_of

_CHANGES_NO_PLACE = (Heartbeat, HighWatermarks)
"""Frames after which nothing can move that could not move before."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one event brings about: at most one decision to commit, and effects that need not wait for it."""

    decision: Decision | None
    effects: list[ActiveEffect]


class ActiveController:
    def __init__(
        self,
        image: MetadataImage,
        *,
        controller_epoch: int,
        controller_node: int,
        settings: ControllerSettings,
        plan: Planner,
        new_uuid: Callable[[], uuid.UUID],
        voters: Callable[[], Iterable[uuid.UUID]],
    ) -> None:
        """``image`` becomes this object's committed image: nobody else applies to it while this term lasts."""
        self._voters = voters
        self._epoch = controller_epoch
        self._settings = settings
        settings.follow(image)
        self._effects: list[ActiveEffect] = []
        notice = self._effects.append
        self._timers = Timers()
        self._ledger = Ledger(image)
        self._sessions = Sessions()
        self._liveness = Liveness(settings, self._timers, first_dial_id=(controller_epoch << 32) + 1)
        self._starts = Starts(settings, self._timers)
        self._waits = LeaderWaits(image, self._timers, self._is_live)
        self._creations = CreationWaits(image, self._timers)
        self._announcements = Announcements(image, self._sessions, settings, controller_epoch)
        self._producer_ids = ProducerIds(self._ledger)
        self.disks = DiskHealth()
        self._topics = TopicChanges(self._ledger, settings, self.disks, self._creations, plan=plan, new_uuid=new_uuid)
        known = self._sessions, self._liveness, self._starts, self.disks
        self._questions = Questions(
            image, settings, *known, controller_node=controller_node, controller_epoch=controller_epoch
        )
        self._partitions = PartitionDecisions(
            self._ledger,
            self._sessions,
            self._timers,
            settings,
            notice=notice,
            unstartable=self._starts.has_failed,
            has_failed=self.disks.has_failed,
        )
        self._high_watermarks = HighWatermarkRecord(self._ledger, self._partitions, self._timers, settings)
        parts = self._ledger, self._sessions, self._liveness, self._starts, self._partitions
        self._departures = Departures(*parts, controller_epoch=controller_epoch, emit=notice)
        self._leadership = Leadership(self._ledger, self._partitions, self._timers, settings)
        self._configs = ConfigAlterations(self._ledger, self._sessions, self._partitions, self._leadership)
        self._acls = AclDecisions(self._ledger, new_uuid)
        self._reassignments = Reassignments(self._ledger, self._partitions, self.disks)
        self._moves = Moves(self._ledger, self._sessions, self._partitions, self.disks)
        self._hosts = HostDecisions(self._ledger, self._sessions, self.disks, self._moves)
        self.scaling = Scaling(
            self._ledger,
            self._sessions,
            self._hosts,
            self._moves,
            moved_away=self._departures.moved_away,
            notice=notice,
        )

    # -------------------------------------------------------------- the outside

    @property
    def committed(self) -> MetadataImage:
        return self._ledger.committed

    @property
    def latest(self) -> MetadataImage:
        return self._ledger.latest

    def begin(self, now_ms: int) -> Outcome:
        """The first call: dial every registered process, none of which has said hello to this controller yet."""
        for node_id, actor in sorted(self.latest.actors.items()):
            if actor.alive:
                self._effects.append(self._liveness.unheard(node_id, actor.endpoint, actor.incarnation, now_ms))
        self._leadership.begin(now_ms)
        self.scaling.begin(now_ms)
        return self._close_event(now_ms)

    def handle(self, event: ActiveEvent, now_ms: int) -> Outcome:
        match event:
            case SessionFrame():
                self._frame(event, now_ms)
            case RequestReceived():
                self._request(event, now_ms)
            case SessionHello():
                self._hello(event.session_id, event.hello, now_ms)
            case SessionClosed():
                self._session_closed(event.session_id, now_ms)
            case Dialed():
                if self._liveness.dialed(event, now_ms):
                    self._departures.declare_dead([event.node_id], now_ms, why=event.outcome.words)
            case ActorStarted():
                self._starts.started(event.node_id, now_ms)
            case ActorStartFailed():
                self._start_failed(event, now_ms)
            case RequestAbandoned():
                self._waits.forget(event.token)
                self._creations.forget(event.token)
                self._ledger.drop_reply(event.token)
            case ControllerTicked():
                self._tick(now_ms)
            case _:
                assert_never(event)
        if self.latest.retiring and not (
            isinstance(event, SessionFrame) and isinstance(event.frame, _CHANGES_NO_PLACE)
        ):
            self._departures.moved_away(self._hosts.resume(now_ms))
        return self._close_event(now_ms)

    def commit(self, sequence: int, now_ms: int) -> list[ActiveEffect]:
        """The quorum has committed that decision, the next one in order: tell the world."""
        decision = self._ledger.commit(sequence)
        touched = self._announcements.touched(decision.records)
        if any(isinstance(record, SHAPES_SETTINGS) for record in decision.records):
            self._follow_settings(now_ms)
        self._effects += self._announcements.copy_rates(decision.records)
        self._effects += self._announcements.changes(decision.records)
        self._effects += self._announcements.topics(decision.records)
        for id in touched:
            self._effects += self._announcements.of_partition(id)
        for record in decision.records:
            if isinstance(record, TopicDeleted):
                self._effects += self._announcements.removals(record.topic_id)
                gone = [id for id in self._creations.partitions() if id.topic_id == record.topic_id]
                self._effects += self._creations.deleted(gone)
                self._effects += self._waits.topic_deleted()
            elif isinstance(record, RemovalPending):
                key = RemovalKey(record.topic_id, record.partition, record.node_id)
                self._effects += self._announcements.removal(key)
            elif isinstance(record, DiskRegistered):
                if record.replaced_by is not None:
                    self._starts.disk_lost(record.directory_id)
                self._effects += self._announcements.disks_of(record.broker_id)
        self._departures.dismiss_idle(decision.records)
        self._release(decision.held, touched)
        for id in touched:
            self._wake_waiting(id)
        self._starts.is_due |= any(may_create_need(record) for record in decision.records)
        outcome = self._close_event(now_ms)
        assert outcome.decision is None, f"a commit decided {outcome.decision}"
        return outcome.effects

    def end(self) -> list[ActiveEffect]:
        """Deposed: sessions are closed, and who waits is told elsewhere (``unanswered``), but for what is known to be created."""
        closed: list[ActiveEffect] = [CloseSession(session_id) for session_id in self._sessions.ids()]
        return closed + list(self._creations.deposed())

    def unanswered(self) -> list[int]:
        """The tokens of all requests that have no reply yet."""
        return sorted(self._ledger.unanswered() + self._waits.tokens())

    def next_deadline_ms(self) -> int | None:
        return self._timers.next_ms()

    # -------------------------------------------------------------- the end of an event

    def _close_event(self, now_ms: int) -> Outcome:
        decision, free = self._ledger.seal()
        self._release(free, ())
        if self._starts.is_due:
            self._effects += self._starts.missing(self.committed, self._sessions, now_ms)
        effects = list(self._effects)
        self._effects.clear()
        return Outcome(decision, effects)

    def _release(self, held: Sequence[Held], already_sent: Sequence[TopicIdPartition]) -> None:
        for effect in held:
            if isinstance(effect, Created):
                self._effects += self._creations.committed(effect.token)
                continue
            if not isinstance(effect, Greet | LetGo):
                self._effects.append(effect)
                continue
            session = self._sessions.current(effect.session_id)
            if session is None:
                continue
            if isinstance(effect, LetGo):
                self._effects += self._announcements.release(session, effect.id)
            else:
                self._effects += self._announcements.to_session(session, already_sent=already_sent)
                for id in self.committed.partitions_on(session.node_id):
                    self._wake_waiting(id)

    def _follow_settings(self, now_ms: int) -> None:
        """A config of brokers or a quota was committed: it holds for this controller and for every process."""
        before = self._settings.now
        self._settings.follow(self.committed)
        if self._settings.now.session_timeout_ms != before.session_timeout_ms:
            self._liveness.timeout_changed(now_ms)
        self._effects += self._announcements.settings()

    def _wake_waiting(self, id: TopicIdPartition) -> None:
        topic = self.committed.topics.get(id.topic_id)
        if topic is not None:
            self._effects += self._waits.changed(TopicPartition(topic.name, id.partition))
            self._effects += self._creations.changed(id)

    # -------------------------------------------------------------- sessions

    def _hello(self, session_id: int, hello: Hello, now_ms: int) -> None:
        identity = hello.identity
        node_id = identity.node_id
        admission = admit(self.latest, hello)
        if isinstance(admission, str):
            self._effects.append(SendFrame(session_id, Exit(self._epoch, admission)))
            self._effects.append(CloseSession(session_id))
            self._departures.exited(node_id, identity.incarnation)
            if self._departures.is_idle(node_id):
                self._starts.sent_away(node_id)
            return
        if admission.registration is not None:
            self._ledger.add(admission.registration)
        session = Session(
            session_id,
            node_id,
            identity.incarnation,
            rates=self._announcements.rates_of(node_id),
            settings=self._announcements.settings_of(node_id),
        )
        replaced = self._sessions.open(session)
        if replaced is not None:
            if replaced.incarnation != identity.incarnation:
                self._ledger.hold(SendFrame(replaced.session_id, Exit(self._epoch, "a newer process has taken over")))
            self._ledger.hold(CloseSession(replaced.session_id))
        self._liveness.connected(node_id, hello.endpoint, identity.incarnation, now_ms)
        self._starts.said_hello(node_id, now_ms)
        self._effects.append(
            SendFrame(
                session_id,
                Welcome(
                    self._epoch,
                    session.settings.heartbeat_interval_ms,
                    self._settings.now.session_timeout_ms,
                    session.rates,
                    session.settings.configs,
                ),
            )
        )
        self._take_stock(session, hello, admission)
        self._partitions.settle(self.latest.partitions_on(node_id), now_ms)
        if slot_of(node_id) == BROKER_SLOT:
            self._disks_checked(session, hello.failed_disks, now_ms)
        session.failed.clear()  # a new session is a new chance to open what was dropped
        self._ledger.hold(Greet(session_id))

    def _take_stock(self, session: Session, hello: Hello, admission: Admission) -> None:
        """What the process brings along. A replica that it led and no longer holds has failed there."""
        assigned = set(self.latest.partitions_on(session.node_id))
        if admission.former:
            self._partitions.restarted(session, admission.former)
        for status in hello.replicas:
            if status.id in assigned:
                session.opened[status.id] = self._partitions.weighed(status)
                if status.damage:
                    self._partitions.note_damage(session, status.id, status.assigned_leader_epoch, status.damage)
        for id in sorted(assigned):
            if id in session.opened:
                self._partitions.judge(session, session.opened[id])
            elif admission.came_back and self._leads(session, id):
                session.failed[id] = "its process dropped it"
        held = [status.id for status in hello.replicas] + [TopicIdPartition(*each) for each in hello.unopened]
        session.releasing.update(id for id in held if id not in assigned and not self._is_to_delete(session, id))

    def _leads(self, session: Session, id: TopicIdPartition) -> bool:
        state = self.latest.partition(id)
        assert state is not None
        leads = state.node_of(state.leader) == session.node_id
        return leads and state.leader_incarnation == session.incarnation

    def _frame(self, event: SessionFrame, now_ms: int) -> None:
        session = self._sessions.current(event.session_id)
        if session is None:
            return  # replaced, refused or closed: whatever it says comes too late
        self._liveness.heard(session.node_id, now_ms)
        frame = event.frame
        match frame:
            case Heartbeat():
                session.usage = frame
                self.scaling.reported(session, frame, now_ms)
            case AlterPartition():
                self._alter_partition(session, frame, now_ms)
                self.scaling.progressed(TopicIdPartition(frame.topic_id, frame.partition), now_ms)
            case HighWatermarks():
                self._high_watermarks.reported(session, frame, now_ms)
            case ReplicaOpened():
                if self._holds(session, frame.status.id):
                    had_failed = frame.status.id in session.failed
                    self._partitions.opened(session, frame.status, now_ms)
                    if had_failed:  # it was told nothing since
                        self._effects += self._announcements.one(session, frame.status.id)
                elif not self._is_to_delete(session, frame.status.id):
                    session.releasing.add(frame.status.id)
                    self._ledger.hold(LetGo(session.session_id, frame.status.id))
                self.scaling.progressed(frame.status.id, now_ms)
            case ReplicaFailed():
                id = TopicIdPartition(frame.topic_id, frame.partition)
                if self._holds(session, id):
                    self._partitions.failed(session, id, frame.reason, now_ms)
            case ReplicaDamaged():
                id = TopicIdPartition(frame.topic_id, frame.partition)
                if self._holds(session, id) and id in session.opened:
                    self._partitions.damaged(session, id, frame.leader_epoch, frame.damage, now_ms)
            case ReplicaMended():
                id = TopicIdPartition(frame.topic_id, frame.partition)
                if self._holds(session, id):
                    self._partitions.damaged(session, id, -1, "", now_ms)
            case NodeLeaving():
                if slot_of(session.node_id) == BROKER_SLOT:
                    self._leadership.leave(broker_of(session.node_id), session.incarnation, now_ms)
            case DisksChecked():
                self._disks_checked(session, frame.failed, now_ms)
            case ReplicaRemoved():
                key = (frame.topic_id, frame.partition, session.node_id)
                if key in self.latest.removals:
                    self._ledger.add(RemovalConfirmed(*key))
            case ReplicaReleased():
                self._departures.released(session, TopicIdPartition(frame.topic_id, frame.partition))
                self.scaling.progressed(TopicIdPartition(frame.topic_id, frame.partition), now_ms)
            case Hello():
                self._effects.append(SendFrame(event.session_id, Exit(self._epoch, "two hellos in one session")))
                self._effects.append(CloseSession(event.session_id))
            case _:
                assert_never(frame)

    def _disks_checked(self, session: Session, failed: Iterable[FailedDisk], now_ms: int) -> None:
        changed = self.disks.told(self.latest, broker_of(session.node_id), failed)
        self._effects += self.disks.notices(self.latest, changed)
        self._partitions.settle(replicas_on(self.latest, changed), now_ms)

    def _holds(self, session: Session, id: TopicIdPartition) -> bool:
        return id in self.latest.assigned.get(session.node_id, ())

    def _is_to_delete(self, session: Session, id: TopicIdPartition) -> bool:
        return (id.topic_id, id.partition, session.node_id) in self.latest.removals

    def _alter_partition(self, session: Session, frame: AlterPartition, now_ms: int) -> None:
        error = self._partitions.alter(session, frame, now_ms)
        id = TopicIdPartition(frame.topic_id, frame.partition)
        state = self.latest.partition(id)
        partition_epoch = state.partition_epoch if state is not None else -1
        answer = AlterPartitionAnswer(self._epoch, frame.request_id, *id, partition_epoch, error)
        if error is not ErrorCode.none:
            # Somebody who asks in vain has missed something, or is about to hear of it.
            self._effects += self._announcements.one(session, id)
        self._ledger.hold(SendFrame(session.session_id, answer))

    def _session_closed(self, session_id: int, now_ms: int) -> None:
        session = self._sessions.close(session_id)
        if session is None:
            return
        if session.exiting:
            self._departures.exited(session.node_id, session.incarnation)
        else:
            self._effects.append(self._liveness.lost(session.node_id, now_ms))

    def _start_failed(self, event: ActorStartFailed, now_ms: int) -> None:
        self._starts.start_failed(event.node_id, event.reason, now_ms)
        self._effects.append(warning(f"server actor {event.node_id} could not be created: {event.reason}"))
        self._partitions.settle(self.latest.partitions_on(event.node_id), now_ms)

    # -------------------------------------------------------------- time

    def _tick(self, now_ms: int) -> None:
        liveness = []
        for deadline, name in self._timers.due(now_ms):
            if name[0] in LIVENESS_KINDS:
                liveness.append((deadline, name))
            elif name[0] == AWAIT:
                self._effects += self._waits.timed_out(name[1])
            elif name[0] == CREATION:
                self._effects += self._creations.timed_out(name[1])
                self._ledger.drop_reply(name[1])
            elif name[0] == START:
                self._starts.timed_out(name[1], now_ms)
            elif name[0] == IMBALANCE:
                self._leadership.restore_balance(now_ms)
            elif name[0] == HIGH_WATERMARKS:
                self._high_watermarks.write(now_ms)
            else:
                assert name[0] in WAITS, name
                self._partitions.waited(name, now_ms)
        verdicts = self._liveness.judge(liveness, now_ms)
        if verdicts.paused:
            self._effects.append(warning("the controller was paused; it gives everybody their time again"))
        self._effects += verdicts.dials
        self._departures.declare_dead(verdicts.dead, now_ms, why="it has been silent for broker.session.timeout.ms")

    # -------------------------------------------------------------- requests

    def _request(self, event: RequestReceived, now_ms: int) -> None:
        request = event.request
        token = event.token
        match request:
            case AwaitLeader():
                self._effects += self._waits.ask(token, request, now_ms)
            case (
                DescribeTopics() | DescribeCluster() | DescribeConfigs() | ClusterStatus()
                | DescribeUserScramCredentials() | DescribeClientQuotas() | DescribeDelegationTokens()
            ):  # fmt: skip
                self._effects.append(SendControllerReply(token, self._questions.answer(request)))
            case CreateTopics():
                self._topics.create(token, request, now_ms)
            case CreatePartitions():
                self._topics.grow(token, request, now_ms)
            case DeleteTopics():
                self._topics.delete(token, request)
            case AlterConfigs():
                self._configs.alter(token, request, now_ms)
            case SetStaticConfigs():
                self._configs.set_static(token, request, now_ms)
            case ElectLeaders():
                self._ledger.hold(SendControllerReply(token, self._leadership.elect(request)))
            case AlterReassignments():
                self._ledger.hold(SendControllerReply(token, self._reassignments.alter(request, now_ms)))
            case ListReassignments():
                self._effects.append(SendControllerReply(token, self._reassignments.list(request)))
            case DescribeAcls() | CreateAcls() | DeleteAcls():
                self._ledger.hold(SendControllerReply(token, self._acls.answer(request)))
            case DrainBroker():
                self._ledger.hold(SendControllerReply(token, self._leadership.drain(request, now_ms)))
            case MoveReplicas():
                moved, former = self._moves.move(request, now_ms)
                self._departures.moved_away(former)
                self._ledger.hold(SendControllerReply(token, moved))
            case MoveToDisks():
                self._ledger.hold(SendControllerReply(token, self._reassignments.move_to_disks(request, now_ms)))
            case PlanHost():
                self._ledger.hold(SendControllerReply(token, self._hosts.plan(request)))
            case RetireHost():
                retired, former = self._hosts.retire(request, now_ms)
                self._departures.moved_away(former)
                self._ledger.hold(SendControllerReply(token, retired))
            case UnregisterBroker():
                self._departures.unregister(token, request, voters=self._voters())
            case RegisterDisk():
                self._departures.register_disk(token, request, now_ms, plans_hosts=self._settings.now.plans_hosts)
            case PlanControllers():
                failed = self.disks.reasons()
                self._ledger.answer(token, *decide_plan(self.latest, request, voters=self._voters(), failed=failed))
            case AlterUserScramCredentials() | AlterClientQuotas() | TokenChange():
                self._ledger.answer(token, *decide_users(self.latest, request))
            case InitProducerId() | AllocateProducerIds():
                self._ledger.hold(SendControllerReply(token, self._producer_ids.answer(request)))
            case _:
                assert_never(request)

    # -------------------------------------------------------------- what it knows

    def _is_live(self, node_id: int) -> bool:
        session = self._sessions.of_node(node_id)
        actor = self.committed.actors.get(node_id)
        return session is not None and actor is not None and session.incarnation == actor.incarnation

    def check(self) -> None:
        """Everything that must hold between two events."""
        parts = self._ledger, self._sessions, self._liveness, self._starts, self._waits, self._creations
        for part in (*parts, self._timers, self._partitions, self._high_watermarks, self.scaling):
            part.check()
        for session in self._sessions.all():
            actor = self.latest.actors.get(session.node_id)
            assert actor is not None and actor.alive and actor.incarnation == session.incarnation, f"{session}: {actor}"
        for node_id, actor in self.latest.actors.items():
            assert actor.alive == self._liveness.watches(node_id), f"{actor} is watched: {not actor.alive}"
