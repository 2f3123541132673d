"""A controller: one member of the quorum, with the metadata image that its log folds to, and the
decisions while it is active.

``Controller`` owns the image and joins the two machines: ``Quorum`` says who is active and what is
committed, ``ActiveController`` decides while this one is. It knows nothing of sockets, files,
clocks or Ray; its shell carries out the effects.

==========  ===================================================  =====================================================
it is       while                                                it leaves this state when
==========  ===================================================  =====================================================
standby     it does not lead the quorum, or leads and has not    the entry that begins its own term is committed →
            committed in its term                                active
active      it leads, and has committed in its term              the quorum says that it does not lead, or in another
                                                                 term → standby
==========  ===================================================  =====================================================

A standby folds the committed entries, closes each session that is opened to it, and answers each
request NOT_CONTROLLER. When an active one becomes a standby, all sessions are closed and all
requests without a reply are answered NOT_CONTROLLER; what was decided and not committed is
forgotten with the ActiveController: the image is that of the committed log.

The active controller takes voters in and out by records, one at a time: where a lost disk was
replaced, and on the way to the brokers that a plan names (``controller_plan``). A controller that
the plan has no more use for retires.

The controller epoch is the quorum's term. A snapshot of the image replaces the log when
``snapshot_bytes`` of entries have been folded since the last.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from raylog.metadata.active import ActiveController, Outcome
from raylog.metadata.configuration.controller_config import ControllerConfig, ControllerSettings
from raylog.metadata.controllers.controller_plan import (
    QuorumStanding,
    is_retired,
    is_settled,
    missing_homes,
    next_step,
)
from raylog.metadata.controllers.history import ClusterHistory
from raylog.metadata.events import (
    CloseSession,
    ControllerTicked,
    Effect,
    Event,
    Notice,
    PeerJoined,
    PeerLeft,
    Persist,
    Persisted,
    QuorumMessage,
    RequestReceived,
    RetireController,
    SendControllerReply,
    SendQuorum,
    SessionHello,
    StartController,
)
from raylog.metadata.image import MetadataImage
from raylog.metadata.partitions.topic_decisions import Planner
from raylog.metadata.records import (
    BROKERS_CONFIGS,
    NO_TIME,
    ClusterFormatted,
    Record,
    decode_batch,
    decode_decision,
    encode_batch,
)
from raylog.metadata.requests import Refused
from raylog.raft.messages import Entry, EntryKind, NotLeader, QuorumLeadership, Snapshot, VoterChangeRefused
from raylog.raft.quorum import Quorum
from raylog.types import broker_of

START_AGAIN_MS = 5_000
"""After so long a controller that was to be started, and has not joined, is ordered again."""


class _Proposed(NamedTuple):
    """A decision of the active controller that is not committed yet."""

    entry_index: int
    sequence: int
    decided_ms: int
    records: tuple[Record, ...]


class Controller:
    def __init__(
        self,
        quorum: Quorum,
        *,
        controller_node: int,
        config: ControllerConfig,
        plan: Planner,
        new_uuid: Callable[[], uuid.UUID],
    ) -> None:
        """``quorum`` as built from the disk, not yet driven. ``start`` is the first call."""
        self.quorum = quorum
        self._controller_node = controller_node
        self._settings = ControllerSettings(config)
        self._plan = plan
        self._new_uuid = new_uuid
        self._image = image_of(quorum.log.snapshot)
        self.history = ClusterHistory()
        self.history.restored(quorum.log.snapshot.last_index)
        self._wall_ms = NO_TIME
        self._settings.follow(self._image)
        self._active: ActiveController | None = None
        self._active_term = 0
        self._proposed: deque[_Proposed] = deque()  # the active one's decisions, in order
        self._bytes_since_snapshot = 0
        self._peers: set[uuid.UUID] = set()  # the controllers that can be reached
        self._asked: dict[uuid.UUID, int] = {}  # disks whose controllers were ordered → when to order them again
        self._has_retired = False
        self.leaders_seen = 0  # controllers of which this one has learned that they lead, since it began
        self._last_leader: tuple[int, uuid.UUID] | None = None  # with its term
        self._effects: list[Effect] = []

    @property
    def active(self) -> ActiveController | None:
        """The decisions in office; None in a standby."""
        return self._active

    @property
    def image(self) -> MetadataImage:
        """The fold of the committed log; not to be changed."""
        return self._image

    @property
    def controller_epoch(self) -> int:
        return self.quorum.term

    def start(self, now_ms: int, wall_ms: int = NO_TIME) -> list[Effect]:
        """The first effects: a sole voter leads at once. ``wall_ms``: Unix time, which decisions
        are written down with.
        """
        self._wall_ms = wall_ms
        return self._drive(now_ms)

    def handle(self, event: Event, now_ms: int, wall_ms: int = NO_TIME) -> list[Effect]:
        self._wall_ms = wall_ms
        match event:
            case QuorumMessage():
                self.quorum.step(event.sender, event.message, now_ms)
            case PeerJoined():
                self._peers.add(event.peer)
                self.quorum.add_observer(event.peer, now_ms)
                self.quorum.peer_joined(now_ms)
            case PeerLeft():
                self._peers.discard(event.peer)
                self.quorum.remove_observer(event.peer, now_ms)
                if event.is_dead:
                    self.quorum.peer_lost(event.peer, now_ms)
            case Persisted():
                self.quorum.persisted(event.number, now_ms)
            case ControllerTicked():
                self._tick(now_ms)
            case _:
                if self._active is not None:
                    self._carry_out(self._active.handle(event, now_ms), now_ms)
                else:
                    self._turn_away(event)
        self._go_towards_plan(now_ms)
        delivered_index = self.quorum.delivered_index
        effects = self._drive(now_ms)
        if self.quorum.delivered_index != delivered_index:  # what was committed may be a plan, or a step
            self._go_towards_plan(now_ms)
            effects += self._drive(now_ms)
        return effects

    def next_deadline_ms(self) -> int | None:
        deadlines = [self.quorum.next_deadline_ms(), self._active.next_deadline_ms() if self._active else None]
        deadlines += self._asked.values()
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    # -------------------------------------------------------------- the quorum

    def _tick(self, now_ms: int) -> None:
        deadline = self.quorum.next_deadline_ms()
        if deadline is not None and now_ms - deadline > self._settings.now.pause_ms:
            self.quorum.restart_timers(now_ms)
        self.quorum.tick(now_ms)
        if self._active is not None and self.quorum.is_leader:
            self._carry_out(self._active.handle(ControllerTicked(), now_ms), now_ms)

    def _drive(self, now_ms: int) -> list[Effect]:
        """Give out what the quorum is ready to give, until it has nothing more.

        Notices come last: where a host dies there is one for each of hundreds of partitions, and
        neither the write nor the frames to the new leaders are to wait until they are in the
        server's log.
        """
        while ready := self.quorum.ready():
            if ready.write is not None:
                self._effects.append(Persist(ready.write))
            self._effects += [SendQuorum(to, message) for to, message in ready.messages]
            if ready.leadership is not None:
                self._follow(ready.leadership)
            if ready.restore is not None:
                assert self._active is None, "an active controller was sent a snapshot"
                self._image = image_of(ready.restore)
                self.history.restored(ready.restore.last_index)
                self._settings.follow(self._image)
            for entry in ready.committed:
                self._apply(entry, now_ms)
            self._maybe_snapshot()
        effects, self._effects = self._effects, []
        return sorted(effects, key=lambda effect: isinstance(effect, Notice)) if len(effects) > 1 else effects

    def _follow(self, leadership: QuorumLeadership) -> None:
        if leadership.leader is not None and (leadership.term, leadership.leader) != self._last_leader:
            self._last_leader = leadership.term, leadership.leader
            self.leaders_seen += 1
        if self._active is not None and (not leadership.is_leader or leadership.term != self._active_term):
            self._effects += self._active.end()
            refusal = Refused(ErrorCode.not_controller, "this controller was deposed; whether it was done is not known")
            self._effects += [SendControllerReply(token, refusal) for token in self._active.unanswered()]
            self._effects.append(Notice(f"controller of epoch {self._active_term} deposed"))
            self._active = None
            self._asked.clear()
            self._proposed.clear()

    def _apply(self, entry: Entry, now_ms: int) -> None:
        if entry.kind is EntryKind.RECORDS:
            self._bytes_since_snapshot += len(entry.data)
            if self._active is not None:
                mine = self._proposed.popleft()
                assert mine.entry_index == entry.index, f"entry {entry.index} was committed before {mine}"
                self.history.decided(entry.index, mine.decided_ms, mine.records, self._image)
                self._effects += self._active.commit(mine.sequence, now_ms)
            else:
                decided_ms, records = decode_decision(entry.data)
                self.history.decided(entry.index, decided_ms, records, self._image)
                for record in records:
                    self._image.apply(record)
                    if isinstance(record, BROKERS_CONFIGS):
                        self._settings.follow(self._image)
        elif entry.kind is EntryKind.LEADER:
            self._note_election(entry)
            if self.quorum.is_leader and entry.term == self.quorum.term:
                self._become_active(now_ms)

    def _note_election(self, entry: Entry) -> None:
        """The entry has no time: it is that of now, if the term is. Of an earlier one, whose entry
        is read again, nothing more is known.
        """
        leader = self.quorum.leader if entry.term == self.quorum.term else None
        disk = self._image.disks.get(leader) if leader is not None else None
        at_ms = self._wall_ms if leader is not None else NO_TIME
        self.history.elected(entry.index, at_ms, disk.broker_id if disk is not None else None, entry.term)

    def _become_active(self, now_ms: int) -> None:
        assert self._active is None, "active twice in one term"
        self._active_term = self.quorum.term
        self._active = ActiveController(
            self._image,
            controller_epoch=self._active_term,
            controller_node=self._controller_node,
            settings=self._settings,
            plan=self._plan,
            new_uuid=self._new_uuid,
            voters=lambda: self.quorum.voters,
        )
        self._effects.append(Notice(f"controller active, epoch {self._active_term}"))
        self._carry_out(self._active.begin(now_ms), now_ms)

    def _carry_out(self, outcome: Outcome, now_ms: int) -> None:
        self._effects += outcome.effects
        if outcome.decision is not None:
            decided = outcome.decision
            index = self.quorum.propose([encode_batch(decided.records, self._wall_ms)], now_ms)
            self._proposed.append(_Proposed(index, decided.sequence, self._wall_ms, decided.records))

    # -------------------------------------------------------------- the controllers' plan

    def _go_towards_plan(self, now_ms: int) -> None:
        """Take the next step, if one can be taken now. One that is refused is tried again later."""
        if self._active is None:
            if not self._has_retired and is_retired(self._image, self.quorum, broker_of(self._controller_node)):
                self._has_retired = True
                self._effects += [Notice("this controller is not in the plan: it retires"), RetireController()]
            return
        if is_settled(self._image, self.quorum.voters, self._peers):
            self._asked.clear()
            return
        matches = self.quorum.match_indexes()
        caught_up = [peer for peer in self._peers if matches.get(peer, 0) >= self.quorum.commit_index]
        standing = QuorumStanding(
            self.quorum.identity, self.quorum.voters, frozenset(self._peers), frozenset(caught_up)
        )
        self._start_missing(standing, now_ms)
        if self._active.latest.planned_controllers != self._image.planned_controllers:
            return  # a voter that joins now may not be one of the plan that is about to count
        step = next_step(self._image, standing)
        if step is not None:
            try:
                self.quorum.propose_voters(step.voters, now_ms)
            except (NotLeader, VoterChangeRefused):
                return
            self._effects.append(Notice(f"voters change: {step.why}"))

    def _start_missing(self, standing: QuorumStanding, now_ms: int) -> None:
        """Order the controllers that the plan lacks."""
        assert self._active is not None
        missing = missing_homes(self._image, standing, self._active.disks.reasons())
        asked, self._asked = self._asked, {}
        for disk in missing:
            again_ms = asked.get(disk.directory_id, now_ms)
            if now_ms >= again_ms:
                self._effects.append(StartController(disk.broker_id, disk.directory_id, disk.path))
                again_ms = now_ms + START_AGAIN_MS
            self._asked[disk.directory_id] = again_ms

    def _maybe_snapshot(self) -> None:
        if self._bytes_since_snapshot >= self._settings.now.snapshot_bytes:
            self._bytes_since_snapshot = 0
            self.quorum.compact(self.quorum.delivered_index, encode_batch(self._image.records()))

    # -------------------------------------------------------------- a standby

    def _turn_away(self, event: Event) -> None:
        match event:
            case SessionHello():
                self._effects.append(CloseSession(event.session_id))
            case RequestReceived():
                self._effects.append(
                    SendControllerReply(
                        event.token, Refused(ErrorCode.not_controller, "this controller is not the active one")
                    )
                )
            case _:
                pass  # the late echo of a term that is over

    def check(self) -> None:
        """Everything that must hold between two events."""
        self.quorum.check()
        self._image.check()
        if self._active is not None:
            assert self.quorum.is_leader and self.quorum.term == self._active_term, self._active_term
            assert self._active.committed is self._image
            self._active.check()
        else:
            assert not self._proposed


def image_of(snapshot: Snapshot) -> MetadataImage:
    """The image that a snapshot holds; that of formatting holds the cluster id, that of a blank
    disk nothing.
    """
    if snapshot.data:
        return MetadataImage.of(decode_batch(snapshot.data))
    return MetadataImage.of([ClusterFormatted(snapshot.cluster_id)] if snapshot.cluster_id else [])
