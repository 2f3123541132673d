"""Decisions about single partitions: elections as replicas come and go, and the ISR changes that
leaders ask for.

Brings together the rules (``elections``), the latest image and what is known of the processes
(``sessions``); adds the records that follow to the ledger. It knows nothing of frames to be sent:
those follow from the commit.

The standing of a replica is that of its log in its process: LIVE when its node's current session
has opened it, DEAD when the process was declared dead, when the log failed in this process, when
its disk is offline, or when its first process could not be created; else ABSENT.

**Moves.** A replica that led, was its partition's preferred one and was moved to another actor of
its disk leads again as soon as it is in sync. A new controller does not know of that; then the
leaders' balance brings the leadership back (``leadership``).

**Waiting.** Two elections may wait: the first one of a partition for its preferred leader, and one
after an unclean stop for the logs of those who may still come up (``elections``). Each wait has a
timer by the partition, which ends it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable

from kio.schema.errors import ErrorCode

from raylog.configs import topic_configs
from raylog.control.session import AlterPartition, ReplicaStatus
from raylog.metadata.actors import disk_moves
from raylog.metadata.configuration import effective_configs
from raylog.metadata.configuration.controller_config import ControllerSettings
from raylog.metadata.events import Notice, NoticeLevel
from raylog.metadata.image import Topic, may_hold_folder
from raylog.metadata.ledger import Ledger, LetGo
from raylog.metadata.partitions import elections, moves, reassignments
from raylog.metadata.partitions.elections import Candidate, Candidates, Standing
from raylog.metadata.records import PartitionChanged, PartitionState, RemovalPending, ReplicaSlot
from raylog.metadata.requests import ElectionType
from raylog.metadata.sessions import Session, Sessions
from raylog.timers import Name, Timers
from raylog.types import NO_LEADER, Condition, TopicIdPartition, broker_of

FIRST_LEADER = "first-leader"
AWAITED_LOGS = "unclean.shutdown.election.wait.ms"
WAITS = (FIRST_LEADER, AWAITED_LOGS)
"""The kinds of timers whose end is told to ``waited``."""


class PartitionDecisions:
    __slots__ = ("_has_failed", "_ledger", "_notice", "_returning", "_sessions", "_settings", "_timers", "_unstartable")

    def __init__(
        self,
        ledger: Ledger,
        sessions: Sessions,
        timers: Timers,
        settings: ControllerSettings,
        *,
        notice: Callable[[Notice], None],
        unstartable: Callable[[int], bool],
        has_failed: Callable[[uuid.UUID], bool],
    ) -> None:
        """``unstartable`` says of a node that its last creation failed, ``has_failed`` of a disk
        that it is offline.
        """
        self._has_failed = has_failed
        self._ledger = ledger
        self._sessions = sessions
        self._timers = timers
        self._settings = settings
        self._notice = notice
        self._unstartable = unstartable
        self._returning: dict[TopicIdPartition, int] = {}  # the broker that led before it was moved, and is preferred

    def min_isr(self, topic: Topic, state: PartitionState) -> int:
        return elections.effective_min_isr(state, self._min_insync_replicas(topic))

    def _min_insync_replicas(self, topic: Topic) -> int:
        return effective_configs.integer(self._ledger.latest, topic, "min.insync.replicas")

    def serves(self, id: TopicIdPartition) -> bool:
        """Whether it takes writes with ``acks=all``: somebody leads, and enough replicas are in
        sync.
        """
        topic = self._ledger.latest.topics[id.topic_id]
        state = topic.partitions[id.partition]
        return state.leader != NO_LEADER and len(state.isr) >= self.min_isr(topic, state)

    def minimums(self, topic_ids: Iterable[uuid.UUID]) -> dict[TopicIdPartition, int]:
        """The minimum ISR of each partition of these topics, in a fixed order."""
        return {
            TopicIdPartition(topic_id, partition): self.min_isr(topic, state)
            for topic_id in sorted(topic_ids)
            for topic in [self._ledger.latest.topics[topic_id]]
            for partition, state in sorted(topic.partitions.items())
        }

    # -------------------------------------------------------------- standings

    def candidate(self, id: TopicIdPartition, state: PartitionState, broker_id: int) -> Candidate:
        slot = state.slot(broker_id)
        assert slot is not None, f"broker {broker_id} holds no replica of {id}"
        return self._candidate_in(slot, id)

    def _candidate_in(self, slot: ReplicaSlot, id: TopicIdPartition) -> Candidate:
        actor = self._ledger.latest.actors.get(slot.node_id)
        if actor is None:
            return Candidate(Standing.DEAD if self._unstartable(slot.node_id) else Standing.ABSENT)
        if not actor.alive:
            return Candidate(Standing.DEAD, actor.incarnation)
        if self._has_failed(slot.directory_id):
            return Candidate(Standing.DEAD, actor.incarnation, may_come_up=False)
        session = self._sessions.of_node(slot.node_id)
        if session is None:
            return Candidate(Standing.ABSENT, actor.incarnation)
        assert session.incarnation == actor.incarnation, f"{session} is not of {actor}"
        if id in session.failed:
            return Candidate(Standing.DEAD, actor.incarnation, may_come_up=False)
        status = session.opened.get(id)
        if status is None:
            return Candidate(Standing.ABSENT, actor.incarnation)
        judged = slot.admitted == actor.incarnation
        return Candidate(
            Standing.LIVE,
            actor.incarnation,
            Condition.CLEAN if judged else status.condition,
            status.last_epoch,
            status.log_end_offset,
            self._ledger.latest.is_draining(slot.broker_id),
            status.high_watermark,
            damaged_in=session.damaged[id][0] if id in session.damaged else -1,
        )

    def _candidates(self, id: TopicIdPartition, state: PartitionState) -> dict[int, Candidate]:
        return {slot.broker_id: self._candidate_in(slot, id) for slot in state.replicas}

    # -------------------------------------------------------------- elections

    def waited(self, name: Name, now_ms: int) -> None:
        """The time has come to elect a leader of that partition without those who were awaited."""
        kind, id = name
        self.settle([id], now_ms, waited_for_preferred=kind == FIRST_LEADER, waited_for_logs=kind == AWAITED_LOGS)

    def settle(
        self,
        ids: Iterable[TopicIdPartition],
        now_ms: int,
        *,
        waited_for_preferred: bool = False,
        waited_for_logs: bool = False,
    ) -> None:
        """Bring these partitions to the state that follows from how their replicas stand.

        ``waited_for_preferred``, ``waited_for_logs``: for long enough.
        """
        for id in sorted(ids):
            topic = self._ledger.latest.topics.get(id.topic_id)
            state = topic.partitions.get(id.partition) if topic is not None else None
            if topic is None or state is None:
                self._returning.pop(id, None)
                continue
            state = self._without_lost_futures(topic, id, state)
            candidates = self._candidates(id, state)
            state = self._drop_short_logs(topic, id, state, candidates)
            after = elections.settled(
                state,
                candidates,
                min_isr=self.min_isr(topic, state),
                unclean_allowed=effective_configs.boolean(self._ledger.latest, topic, "unclean.leader.election.enable"),
                wait_for_preferred=not waited_for_preferred,
                wait_for_logs=not waited_for_logs,
                noted=self._ledger.latest.high_watermarks.get(id),
            )
            self._tell_of_short_logs(topic, id, state, after, candidates)
            after = reassignments.completed(
                after,
                candidates,
                min_insync_replicas=self._min_insync_replicas(topic),
            )
            if id in self._returning:
                after = self._returned(topic, id, after, candidates)
            self._change(topic, id, state, after)
            if after.leader_epoch < 0 and any(each.standing is Standing.LIVE for each in candidates.values()):
                if (FIRST_LEADER, id) not in self._timers and not waited_for_preferred:
                    self._timers.set((FIRST_LEADER, id), now_ms + self._settings.now.first_leader_wait_ms)
            elif after.leader_epoch >= 0:
                self._timers.cancel((FIRST_LEADER, id))
            if not elections.awaits_logs(after, candidates):
                self._timers.cancel((AWAITED_LOGS, id))
            elif (AWAITED_LOGS, id) not in self._timers:
                self._await_logs(topic, id, after, candidates, now_ms)

    def _without_lost_futures(self, topic: Topic, id: TopicIdPartition, state: PartitionState) -> PartitionState:
        """A future copy whose log or disk has failed is given up."""
        after = state
        for future in state.futures:
            session = self._sessions.of_node(future.node_id)
            reason = "its disk is offline" if self._has_failed(future.directory_id) else None
            if reason is None and session is not None:
                reason = session.failed.get(id)
            if reason is not None:
                self._notice(
                    Notice(
                        f"{topic.name}-{id.partition}: broker {future.broker_id} keeps it on its disk: {reason}",
                        NoticeLevel.WARNING,
                    )
                )
                after = disk_moves.given_up(after, future.broker_id)
        self._change(topic, id, state, after)
        return after

    def _returned(
        self, topic: Topic, id: TopicIdPartition, state: PartitionState, candidates: Candidates
    ) -> PartitionState:
        """The state led by its preferred replica, if that has been moved and is in sync again."""
        if state.brokers[0] == self._returning[id]:
            state = elections.preferred(state, candidates, min_isr=self.min_isr(topic, state))
        if state.leader == self._returning[id] or state.brokers[0] != self._returning[id]:
            del self._returning[id]
        return state

    def _drop_short_logs(
        self, topic: Topic, id: TopicIdPartition, state: PartitionState, candidates: Candidates
    ) -> PartitionState:
        after = elections.without_short_logs(state, candidates)
        for broker_id in state.isr + state.elr:
            if broker_id not in after.isr + after.elr:
                self._notice(
                    Notice(
                        f"{topic.name}-{id.partition}: the log of broker {broker_id} ends at "
                        f"{candidates[broker_id].log_end_offset} and lacks records that another replica knows to be committed; "
                        "it is no longer in sync",
                        NoticeLevel.WARNING,
                    )
                )
        self._change(topic, id, state, after)
        return after

    def _tell_of_short_logs(
        self, topic: Topic, id: TopicIdPartition, before: PartitionState, after: PartitionState, candidates: Candidates
    ) -> None:
        """Of those that are no longer in sync: which logs lie below the record of high watermarks."""
        noted = self._ledger.latest.high_watermarks.get(id)
        for broker_id in before.isr + before.elr:
            candidate = candidates[broker_id]
            is_unproven = candidate.standing is Standing.LIVE and not elections.is_proven(before, candidate)
            has_left = broker_id not in after.isr + after.elr
            if noted is not None and has_left and is_unproven and elections.is_below(candidate, noted):
                self._notice(
                    Notice(
                        f"{topic.name}-{id.partition}: the log of broker {broker_id} ends at {candidate.log_end_offset} and "
                        f"lacks committed records, up to {noted.offset} by the controllers' record; it is no longer in sync",
                        NoticeLevel.WARNING,
                    )
                )

    def _await_logs(
        self, topic: Topic, id: TopicIdPartition, state: PartitionState, candidates: Candidates, now_ms: int
    ) -> None:
        wait_ms = self._settings.in_image(self._ledger.latest).unclean_shutdown_election_wait_ms
        self._timers.set((AWAITED_LOGS, id), now_ms + wait_ms)
        awaited = [broker for broker in state.isr + state.elr if candidates[broker].standing is not Standing.LIVE]
        self._notice(
            Notice(
                f"{topic.name}-{id.partition}: its replicas come back from an unclean stop; the election waits up to "
                f"{wait_ms} ms for the logs of brokers {awaited}",
                NoticeLevel.WARNING,
            )
        )

    def opened(self, session: Session, status: ReplicaStatus, now_ms: int) -> None:
        """A process has opened a log, or brings it along in its hello."""
        status = self.weighed(status)
        session.opened[status.id] = status
        session.failed.pop(status.id, None)
        session.damaged.pop(status.id, None)
        self.judge(session, status)
        self.settle([status.id], now_ms)

    def restarted(self, session: Session, former: int) -> None:
        """That session's process is another than ``former``, the last one that the node had;
        ``judge`` has to follow.
        """
        for id in self._ledger.latest.partitions_on(session.node_id):
            topic = self._ledger.latest.topics[id.topic_id]
            state = topic.partitions[id.partition]
            if state.node_of(broker_of(session.node_id)) != session.node_id:
                continue  # it holds a future copy
            self._change(topic, id, state, elections.restarted(state, broker_of(session.node_id), former))

    def weighed(self, status: ReplicaStatus) -> ReplicaStatus:
        """The status as it is to be taken, now that it has come (``elections.weighed``)."""
        return elections.weighed(status, self._ledger.latest.high_watermarks.get(status.id))

    def judge(self, session: Session, status: ReplicaStatus) -> None:
        """What the condition of a log, found by this process, costs its replica."""
        topic = self._ledger.latest.topics[status.topic_id]
        state = topic.partitions[status.partition]
        broker_id = broker_of(session.node_id)
        if state.node_of(broker_id) != session.node_id:
            return  # a future copy: it has promised nothing yet
        after = elections.opened(state, broker_id, session.incarnation, status)
        if broker_id in state.isr + state.elr and broker_id not in after.isr + after.elr:
            self._notice(
                Notice(
                    f"{topic.name}-{status.partition}: the log of broker {broker_id} is {status.condition.value}; "
                    "it is no longer in sync and copies from the leader",
                    NoticeLevel.WARNING,
                )
            )
        self._change(topic, status.id, state, after)

    def damaged(self, session: Session, id: TopicIdPartition, leader_epoch: int, damage: str, now_ms: int) -> None:
        """A process has found damaged bytes in a log that it has open; ``damage`` empty: it has
        dropped them.
        """
        self.note_damage(session, id, leader_epoch, damage)
        self.settle([id], now_ms)

    def note_damage(self, session: Session, id: TopicIdPartition, leader_epoch: int, damage: str) -> None:
        """The same, of one replica among those of a hello; ``settle`` has to follow."""
        topic = self._ledger.latest.topics[id.topic_id]
        where = f"{topic.name}-{id.partition}: the log of broker {broker_of(session.node_id)}"
        known = session.damaged.pop(id, None)
        if damage:
            session.damaged[id] = (leader_epoch, damage)
            if known is None or known[1] != damage:
                self._notice(Notice(f"{where} is damaged: {damage}", NoticeLevel.ERROR))
        elif known is not None:
            session.mended[id] = known[1]
            self._notice(Notice(f"{where} was cut where it is damaged, and is copied from the leader: {known[1]}"))

    def failed(self, session: Session, id: TopicIdPartition, reason: str, now_ms: int) -> None:
        """A process has dropped a replica whose log could not be opened or whose disk failed."""
        session.opened.pop(id, None)
        session.damaged.pop(id, None)
        session.failed[id] = reason
        topic = self._ledger.latest.topics[id.topic_id]
        text = f"{topic.name}-{id.partition}: broker {broker_of(session.node_id)} lost it: {reason}"
        self._notice(Notice(text, NoticeLevel.ERROR))
        self.settle([id], now_ms)

    def change_minimum(self, id: TopicIdPartition) -> None:
        """The topic's minimum ISR has changed: the ELR was a promise about the old one."""
        topic = self._ledger.latest.topics[id.topic_id]
        state = topic.partitions[id.partition]
        after = elections.with_other_minimum(state, min_isr=self.min_isr(topic, state))
        self._change(topic, id, state, after)

    def reassign(self, id: TopicIdPartition, after: PartitionState) -> None:
        """Another set of replicas, as ``reassignments`` has worked out; ``settle`` has to follow."""
        topic = self._ledger.latest.topics[id.topic_id]
        self._change(topic, id, topic.partitions[id.partition], after)

    def move(self, id: TopicIdPartition, slot: ReplicaSlot, node_id: int, now_ms: int) -> None:
        """Another actor of the same disk holds the replica in that slot from now on (``moves``)."""
        latest = self._ledger.latest
        topic = latest.topics[id.topic_id]
        state = topic.partitions[id.partition]
        after = moves.moved(
            state,
            slot.broker_id,
            node_id,
            self._candidates(id, state),
            has_run=slot.node_id in latest.actors,
            min_isr=self.min_isr(topic, state),
        )
        if state.leader == slot.broker_id == state.brokers[0]:
            self._returning[id] = slot.broker_id
        self._notice(
            Notice(
                f"{topic.name}-{id.partition}: broker {slot.broker_id} moves it from actor {slot.node_id} to {node_id}"
            )
        )
        self._change(topic, id, state, after)
        self.settle([id], now_ms)

    def _change(self, topic: Topic, id: TopicIdPartition, before: PartitionState, after: PartitionState) -> None:
        if after is before:
            return
        after = disk_moves.without_homeless(after)
        assert after.leader_epoch >= before.leader_epoch and after.partition_epoch >= before.partition_epoch, (
            before,
            after,
        )
        if after.leader != before.leader:
            name = f"{topic.name}-{id.partition}"
            if after.leader == NO_LEADER:
                text = f"{name}: nobody leads; in sync were {list(after.isr)}, eligible {list(after.elr)}"
                self._notice(Notice(text, NoticeLevel.WARNING))
            elif after.unclean_elections > before.unclean_elections:
                text = f"{name}: UNCLEAN election of {after.leader}: acknowledged records may be lost"
                self._notice(Notice(text, NoticeLevel.ERROR))
            elif before.leader_epoch >= 0:
                self._notice(Notice(f"{name}: broker {after.leader} leads, epoch {after.leader_epoch}"))
        for slot in after.replicas:
            if before.future(slot.broker_id) is not None and after.future(slot.broker_id) is None:
                disk = self._ledger.latest.disks[slot.directory_id]
                self._notice(Notice(f"{topic.name}-{id.partition}: broker {slot.broker_id} has it on {disk.path} now"))
        if reassignments.is_under_way(before) and not reassignments.is_under_way(after):
            self._notice(Notice(f"{topic.name}-{id.partition}: its replicas are now {list(after.brokers)}"))
        self._ledger.add(PartitionChanged(id.topic_id, id.partition, after))
        kept = {slot.node_id for slot in after.slots}
        for slot in before.slots:
            if slot.node_id not in kept:
                stays = after.slot(slot.broker_id)
                if stays is None or stays.directory_id != slot.directory_id:
                    self._dismiss(topic, id, slot)
                else:
                    self._let_go(id, slot)

    def _let_go(self, id: TopicIdPartition, slot: ReplicaSlot) -> None:
        """Another actor holds the replica now: its process closes the log and leaves the folder."""
        session = self._sessions.of_node(slot.node_id)
        if session is not None:
            session.forget(id)
            session.releasing.add(id)
            self._ledger.hold(LetGo(session.session_id, id))

    def _dismiss(self, topic: Topic, id: TopicIdPartition, slot: ReplicaSlot) -> None:
        """A replica has moved away: its folder is to be deleted, and if it ever comes back to that
        process it has to open anew.
        """
        session = self._sessions.of_node(slot.node_id)
        if session is not None:
            session.forget(id)
        if may_hold_folder(self._ledger.latest, slot):
            self._ledger.add(RemovalPending(id.topic_id, id.partition, slot.node_id, slot.directory_id, topic.name))

    def elect(self, id: TopicIdPartition, type: ElectionType) -> tuple[ErrorCode, str | None]:
        """An election by hand, of the preferred leader or an unclean one where nobody leads: the
        error and its reason.
        """
        topic = self._ledger.latest.topics[id.topic_id]
        state = topic.partitions[id.partition]
        candidates = self._candidates(id, state)
        minimum = self.min_isr(topic, state)
        first = state.brokers[0]
        match type:
            case ElectionType.PREFERRED:
                if state.leader == first:
                    return ErrorCode.election_not_needed, f"the preferred leader, broker {first}, leads already"
                after = elections.preferred(state, candidates, min_isr=minimum)
                code = ErrorCode.preferred_leader_not_available
                reason = "is not in sync" if first not in state.isr else "is not live"
                reason = "is being drained" if candidates[first].is_draining else reason
                failure = f"the preferred leader, broker {first}, {reason}"
            case ElectionType.UNCLEAN:
                if state.leader != NO_LEADER:
                    return ErrorCode.election_not_needed, f"broker {state.leader} leads"
                after = elections.settled(
                    state,
                    candidates,
                    min_isr=minimum,
                    unclean_allowed=True,
                    wait_for_logs=True,
                    noted=self._ledger.latest.high_watermarks.get(id),
                )
                code = ErrorCode.eligible_leaders_not_available
                failure = "no replica is live, or one that holds more may still return"
        self._change(topic, id, state, after)
        return (code, failure) if after is state else (ErrorCode.none, None)

    # -------------------------------------------------------------- ISR changes

    def alter(self, session: Session, request: AlterPartition, now_ms: int) -> ErrorCode:
        """Decide a leader's request for another ISR (KIP-841, 903). The error, or none when it is
        decided.

        NEW_LEADER_ELECTED: it is decided, and ended the asker's leadership, since it completed a
        reassignment or there is now somebody to take over from a broker that is being drained.
        """
        topic = self._ledger.latest.topics.get(request.topic_id)
        state = topic.partitions.get(request.partition) if topic is not None else None
        if topic is None or state is None:
            return ErrorCode.unknown_topic_or_partition
        if request.leader_epoch < state.leader_epoch:
            return ErrorCode.fenced_leader_epoch
        if request.leader_epoch > state.leader_epoch or request.partition_epoch > state.partition_epoch:
            return ErrorCode.not_controller  # it has heard of decisions that this controller does not know
        if state.node_of(state.leader) != session.node_id or state.leader_incarnation != session.incarnation:
            return ErrorCode.invalid_request
        if request.partition_epoch < state.partition_epoch:
            return ErrorCode.invalid_update_version
        members, arrivals = disk_moves.apart(request.isr)
        isr = tuple(broker for broker, _ in members)
        if len(set(isr)) != len(isr) or not set(isr) <= set(state.brokers) or state.leader not in isr:
            return ErrorCode.invalid_request
        id = TopicIdPartition(request.topic_id, request.partition)
        for broker, incarnation in members:
            if not self._may_be_in_sync(state, broker, incarnation, self.candidate(id, state, broker)):
                return ErrorCode.ineligible_replica
        for broker, incarnation in arrivals:
            if not self._may_arrive(id, state, broker, incarnation):
                return ErrorCode.ineligible_replica
        joined = {broker: incarnation for broker, incarnation in members if broker not in state.isr}
        after = elections.with_isr(elections.admitted(state, joined), isr, min_isr=self.min_isr(topic, state))
        for broker, incarnation in arrivals:
            after = disk_moves.arrived(after, broker, incarnation)
        self._change(topic, id, state, after)
        self.settle([id], now_ms)
        latest = self._ledger.latest.partition(id)
        assert latest is not None, id
        return ErrorCode.none if latest.leader_epoch == state.leader_epoch else ErrorCode.new_leader_elected

    def _may_arrive(self, id: TopicIdPartition, state: PartitionState, broker: int, incarnation: int) -> bool:
        """Whether a future copy can take its broker's place: live, of the incarnation that was seen
        fetching. A broker that is being drained gets no replica into the ISR that had none there.
        """
        future = state.future(broker)
        if future is None:
            return False
        candidate = self._candidate_in(future, id)
        if candidate.is_damaged or (candidate.is_draining and broker not in state.isr):
            return False
        return candidate.standing is Standing.LIVE and candidate.incarnation == incarnation

    @staticmethod
    def _may_be_in_sync(state: PartitionState, broker: int, incarnation: int, candidate: Candidate) -> bool:
        """A newcomer has to be live, of the incarnation that was seen fetching, and not being
        drained; a member may be out of sight.
        """
        if candidate.standing is Standing.DEAD:
            return False
        if broker in state.isr and candidate.standing is Standing.ABSENT:
            return incarnation in (0, candidate.incarnation)
        if (candidate.is_draining or candidate.is_damaged) and broker not in state.isr:
            return False
        return candidate.standing is Standing.LIVE and incarnation == candidate.incarnation

    def check(self) -> None:
        """Each leader's epoch is of its registered process; nothing is configured that is not
        known.
        """
        latest = self._ledger.latest
        for topic in latest.topics.values():
            assert topic_configs.TOPIC_CONFIGS.keys() >= topic.configs.keys(), topic
            for partition, state in topic.partitions.items():
                if state.leader_incarnation:
                    leader = latest.actors[state.node_of(state.leader)]
                    assert leader.alive and leader.incarnation == state.leader_incarnation, (
                        f"{topic.name}-{partition} is led by {leader}: {state}"
                    )
