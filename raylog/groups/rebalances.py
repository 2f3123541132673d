"""Who is in a group, and the two phases of a rebalance: JoinGroup, SyncGroup, Heartbeat,
LeaveGroup.

Follows Apache Kafka's GroupCoordinator (3.6–3.9), state by state (``group``), with its errors. In
short:

- *Join.* A dynamic newcomer first gets an id (MEMBER_ID_REQUIRED) and is *pending* until it comes
  with it. Joining an empty group begins the initial phase, which lasts
  ``group.initial.rebalance.delay.ms`` and as long again for every newcomer, up to the rebalance
  timeout. Any other join phase ends when everyone has joined or the longest rebalance timeout has
  passed; dynamic members that have not joined by then are out, static ones stay. A follower that
  joins a stable group unchanged is only told what is.
- *Sync.* The leader's assignments go to the log; when they are replicated everyone gets theirs. Who
  has not synced when the rebalance timeout passes is out.
- *Static members* are known by their instance id: who comes with it and no member id takes the old
  one's place and fences it (FENCED_INSTANCE_ID); in a stable group that changes nothing for the
  others.
- *Liveness* is ``sessions``' business; whose session ends is out. A native heartbeat may be parked;
  the beginning of a rebalance answers it.

Each request of a member that waits is answered exactly once: one that is overtaken by another of
its kind with REBALANCE_IN_PROGRESS.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable

from kio.schema.errors import ErrorCode

from raylog.groups.context import (
    COORDINATOR_NOT_AVAILABLE,
    NOT_COORDINATOR,
    REBALANCE_IN_PROGRESS,
    GroupContext,
    group_error,
)
from raylog.groups.group import Group, Member, State
from raylog.groups.records import GroupKey, GroupRecord
from raylog.groups.requests import (
    NO_MEMBER_ID,
    GroupHeartbeat,
    HeartbeatAnswer,
    JoinedGroup,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    LeftGroup,
    LeftMember,
    SyncedGroup,
    SyncGroup,
)
from raylog.groups.sessions import PARKED, PENDING, SESSION, MemberSessions

JOIN, SYNC = "join", "sync"
KINDS = (SESSION, PENDING, PARKED, JOIN, SYNC)

UNKNOWN_MEMBER_ID = ErrorCode.unknown_member_id.value
FENCED_INSTANCE_ID = ErrorCode.fenced_instance_id.value
ILLEGAL_GENERATION = ErrorCode.illegal_generation.value
INCONSISTENT_GROUP_PROTOCOL = ErrorCode.inconsistent_group_protocol.value

_CLIENT_ID_CHARACTERS_MAX = 255  # of a client id, inside a member id


class Rebalances:
    __slots__ = ("_context", "_new_uuid", "sessions")

    def __init__(self, context: GroupContext, new_uuid: Callable[[], uuid.UUID]) -> None:
        self._context = context
        self._new_uuid = new_uuid
        self.sessions = MemberSessions(context)

    # -------------------------------------------------------------- join

    def join(self, token: int, request: JoinGroup) -> None:
        context, config = self._context, self._context.config
        member_id = request.member_id
        group = context.groups.get(request.group_id)
        if not config.group_min_session_timeout_ms <= request.session_timeout_ms <= config.group_max_session_timeout_ms:
            context.reply(token, JoinedGroup(ErrorCode.invalid_session_timeout.value, member_id))
            return
        if group is None:
            if member_id != NO_MEMBER_ID:
                context.reply(token, JoinedGroup(UNKNOWN_MEMBER_ID, member_id))
                return
            group = context.groups[request.group_id] = Group(request.group_id)
        if not group.accepts(member_id, config.group_max_size):
            context.reply(token, JoinedGroup(ErrorCode.group_max_size_reached.value, NO_MEMBER_ID))
            if member_id in group.members:
                self._drop(group, group.members[member_id])
            group.remove(member_id)
        elif error := self._judge_joining(group, request):
            context.reply(token, JoinedGroup(error, member_id))
        elif member_id == NO_MEMBER_ID:
            self._join_unnamed(group, token, request)
        elif member_id in group.pending:
            self._add(group, member_id, token, request)
        else:
            self._join_again(group, group.members[member_id], token, request)
        self._maybe_complete_join(group)

    def _judge_joining(self, group: Group, request: JoinGroup) -> int:
        if group.is_in(State.DEAD):
            return COORDINATOR_NOT_AVAILABLE
        if not group.supports(request.protocol_type, request.protocols):
            return INCONSISTENT_GROUP_PROTOCOL
        if request.member_id == NO_MEMBER_ID or (
            request.member_id in group.pending and request.group_instance_id is None
        ):
            return 0
        return self._judge(group, request.member_id, request.group_instance_id)

    def _join_unnamed(self, group: Group, token: int, request: JoinGroup) -> None:
        context = self._context
        instance = request.group_instance_id
        stem = request.client_id[:_CLIENT_ID_CHARACTERS_MAX] if instance is None else instance
        member_id = f"{stem}-{self._new_uuid()}"
        if instance is not None:
            former = group.static_members.get(instance)
            if former is None:
                self._add(group, member_id, token, request)
            else:
                self._replace_static(group, instance, former, member_id, token, request)
        elif request.needs_member_id:
            group.pending[member_id] = request.connection
            self.sessions.note_connection(group, member_id, request.connection)
            context.timers.set((PENDING, group.group_id, member_id), context.now_ms + request.session_timeout_ms)
            context.reply(token, JoinedGroup(ErrorCode.member_id_required.value, member_id))
        else:
            self._add(group, member_id, token, request)

    def _add(self, group: Group, member_id: str, token: int, request: JoinGroup) -> None:
        context = self._context
        member = Member(
            member_id,
            request.group_instance_id,
            request.client_id,
            request.client_host,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            session_timeout_ms=request.session_timeout_ms,
            protocols=request.protocols,
        )
        member.is_new = True
        member.join_token = token
        if group.is_in(State.PREPARING_REBALANCE) and group.generation == 0:
            group.newcomer_seen = True
        group.add(member, request.protocol_type)
        context.timers.cancel((PENDING, group.group_id, member_id))
        self.sessions.heard(
            group, member, request.connection, timeout_ms=context.config.group_new_member_join_timeout_ms
        )
        self._maybe_rebalance(group)

    def _join_again(self, group: Group, member: Member, token: int, request: JoinGroup) -> None:
        is_leader = group.leader == member.member_id
        is_unchanged = member.protocols == request.protocols
        self.sessions.back(group, member, request.connection)
        match group.state:
            case State.COMPLETING_REBALANCE if is_unchanged:
                self._tell_joined(group, member.member_id, token, as_leader=is_leader)
            case State.STABLE if is_unchanged and not is_leader:
                self._tell_joined(group, member.member_id, token, as_leader=False)
            case State.EMPTY | State.DEAD:
                raise AssertionError(f"member {member.member_id} of {group.group_id}, which is {group.state.value}")
            case _:
                self._update(group, member, token, request)
                self._maybe_rebalance(group)

    def _update(self, group: Group, member: Member, token: int, request: JoinGroup) -> None:
        """The member as it presents itself now, waiting to have joined."""
        if member.join_token is not None:
            self._context.reply(member.join_token, JoinedGroup(REBALANCE_IN_PROGRESS, member.member_id))
        member.protocols = request.protocols
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        member.session_timeout_ms = request.session_timeout_ms
        member.join_token = token

    def _tell_joined(
        self,
        group: Group,
        member_id: str,
        token: int,
        *,
        as_leader: bool,
        leader: str | None = None,
        skip: bool = False,
    ) -> None:
        views = group.member_views() if as_leader else ()
        reply = JoinedGroup(
            0,
            member_id,
            group.generation,
            group.protocol_type,
            group.protocol,
            leader or group.leader or "",
            skip,
            views,
        )
        self._context.reply(token, reply)

    # -------------------------------------------------------------- static members

    def _replace_static(
        self, group: Group, instance: str, former: str, member_id: str, token: int, request: JoinGroup
    ) -> None:
        context = self._context
        former_leader = group.leader
        old = group.members[former]
        self._answer_waiting(old, FENCED_INSTANCE_ID)
        self.sessions.forget_timers(group, former)
        self.sessions.forget_connection(group, old)
        before = (old.protocols, old.rebalance_timeout_ms, old.session_timeout_ms)
        member = group.rename_static(instance, former, member_id)
        if former in group.pending_sync:
            del group.pending_sync[former]
            group.pending_sync[member_id] = None
        self._update(group, member, token, request)
        self.sessions.heard(group, member, request.connection)
        if group.is_in(State.COMPLETING_REBALANCE):
            self._prepare_rebalance(group)  # the leader may have been told of the old member id already
        elif group.is_in(State.STABLE) and group.select_protocol() != group.protocol:
            self._maybe_rebalance(group)
        elif group.is_in(State.STABLE):
            is_leader = group.leader == member_id

            def answered(error: int) -> None:
                if member.join_token != token:
                    return  # another request of this member's has answered it
                member.join_token = None
                if not error:
                    leader = None if request.can_skip_assignment else former_leader
                    as_leader = is_leader and request.can_skip_assignment
                    self._tell_joined(group, member_id, token, as_leader=as_leader, leader=leader, skip=as_leader)
                    self.sessions.heard(group, member, request.connection)
                    return
                if group.static_members.get(instance) == member_id and not group.is_in(State.DEAD):
                    self.sessions.forget_timers(group, member_id)
                    self.sessions.forget_connection(group, member)
                    group.rename_static(instance, member_id, former)
                    member.protocols, member.rebalance_timeout_ms, member.session_timeout_ms = before
                    self.sessions.heard(group, member, None)
                context.reply(token, JoinedGroup(group_error(error), NO_MEMBER_ID, group.generation))

            assignments = {each.member_id: each.assignment for each in group.members.values()}
            record = GroupRecord(GroupKey(group.group_id), group.value(assignments))
            context.write((record,), answered)

    # -------------------------------------------------------------- the join phase

    def _maybe_rebalance(self, group: Group) -> None:
        if group.can_rebalance:
            self._prepare_rebalance(group)

    def _prepare_rebalance(self, group: Group) -> None:
        context = self._context
        if group.is_in(State.COMPLETING_REBALANCE):
            for member in group.members.values():
                member.assignment = b""
            self._propagate(group, REBALANCE_IN_PROGRESS)
        group.pending_sync.clear()
        context.timers.cancel((SYNC, group.group_id))
        is_initial = group.is_in(State.EMPTY)
        group.enter(State.PREPARING_REBALANCE, context.wall_ms)
        context.counts.rebalances += 1
        for member in group.members.values():
            self._answer_heartbeat(member, REBALANCE_IN_PROGRESS)
        if is_initial:
            delay_ms = context.config.group_initial_rebalance_delay_ms
            group.initial_join_left_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
            if delay_ms > 0:
                context.timers.set((JOIN, group.group_id), context.now_ms + delay_ms)
            else:
                self._join_time_over(group)
        else:
            group.initial_join_left_ms = None
            context.timers.set((JOIN, group.group_id), context.now_ms + group.rebalance_timeout_ms)
            self._maybe_complete_join(group)

    def _maybe_complete_join(self, group: Group) -> None:
        if group.is_in(State.PREPARING_REBALANCE) and group.initial_join_left_ms is None and group.have_all_joined:
            self._complete_join(group)

    def _join_time_over(self, group: Group) -> None:
        context = self._context
        left_ms = group.initial_join_left_ms
        if left_ms and group.newcomer_seen:
            group.newcomer_seen = False
            delay_ms = min(context.config.group_initial_rebalance_delay_ms, left_ms)
            group.initial_join_left_ms = left_ms - delay_ms
            context.timers.set((JOIN, group.group_id), context.now_ms + delay_ms)
            return
        self._complete_join(group)

    def _complete_join(self, group: Group) -> None:
        context = self._context
        context.timers.cancel((JOIN, group.group_id))
        group.initial_join_left_ms = None
        group.newcomer_seen = False
        for member in list(group.members.values()):
            if not member.is_awaiting_join and member.group_instance_id is None:
                self._drop(group, member)
                group.remove(member.member_id)
        if group.members and not group.elect_joined_leader():
            # Static members alone, and none of them has come back: wait until they do or their
            # sessions end.
            context.timers.set((JOIN, group.group_id), context.now_ms + group.rebalance_timeout_ms)
            return
        group.next_generation(context.wall_ms)
        if not group.members:
            context.write((GroupRecord(GroupKey(group.group_id), group.value({})),))
            return
        for member in group.members.values():
            if member.join_token is not None:
                token, member.join_token = member.join_token, None
                self._tell_joined(group, member.member_id, token, as_leader=group.leader == member.member_id)
            self.sessions.heard(group, member, None)
            member.is_new = False
            group.pending_sync[member.member_id] = None
        context.timers.set((SYNC, group.group_id), context.now_ms + group.rebalance_timeout_ms)

    # -------------------------------------------------------------- sync

    def sync(self, token: int, request: SyncGroup) -> None:
        context = self._context
        group = context.groups.get(request.group_id)
        error = UNKNOWN_MEMBER_ID if group is None else self._judge_generation(group, request)
        if not error and group is not None:
            said_type, said = request.protocol_type, request.protocol
            if said_type not in (None, group.protocol_type) or said not in (None, group.protocol):
                error = INCONSISTENT_GROUP_PROTOCOL
            elif group.is_in(State.EMPTY):
                error = UNKNOWN_MEMBER_ID
            elif group.is_in(State.PREPARING_REBALANCE):
                error = REBALANCE_IN_PROGRESS
        if error or group is None:
            context.reply(token, SyncedGroup(error))
            return
        member = group.members[request.member_id]
        self._note_synced(group, member)
        self.sessions.back(group, member, request.connection)
        if group.is_in(State.STABLE):
            context.reply(token, SyncedGroup(0, group.protocol_type, group.protocol, member.assignment))
            self.sessions.heard(group, member, request.connection)
            return
        if member.sync_token is not None:
            context.reply(member.sync_token, SyncedGroup(REBALANCE_IN_PROGRESS))
        member.sync_token = token
        if group.leader == member.member_id:
            self._store_assignments(group, dict(request.assignments))

    def _store_assignments(self, group: Group, given: dict[str, bytes]) -> None:
        generation = group.generation
        assignments = {member_id: given.get(member_id, b"") for member_id in group.members}

        def answered(error: int) -> None:
            if not group.is_in(State.COMPLETING_REBALANCE) or group.generation != generation:
                return  # a later rebalance has answered everyone
            for member in group.members.values():
                member.assignment = b"" if error else assignments[member.member_id]
            if error:
                self._propagate(group, group_error(error))
                self._maybe_rebalance(group)
            else:
                self._propagate(group, 0)
                group.enter(State.STABLE, self._context.wall_ms)
                self._context.counts.completed_rebalances += 1

        record = GroupRecord(GroupKey(group.group_id), group.value(assignments))
        self._context.write((record,), answered)

    def _propagate(self, group: Group, error: int) -> None:
        for member in group.members.values():
            if member.sync_token is not None:
                token, member.sync_token = member.sync_token, None
                reply = SyncedGroup(error)
                if not error:
                    reply = SyncedGroup(0, group.protocol_type, group.protocol, member.assignment)
                self._context.reply(token, reply)
                self.sessions.heard(group, member, None)

    def _note_synced(self, group: Group, member: Member) -> None:
        group.pending_sync.pop(member.member_id, None)
        if not group.pending_sync:
            self._context.timers.cancel((SYNC, group.group_id))

    def _sync_time_over(self, group: Group) -> None:
        if not group.pending_sync or not group.is_in(State.COMPLETING_REBALANCE, State.STABLE):
            return
        for member_id in list(group.pending_sync):
            self._drop(group, group.members[member_id])
            group.remove(member_id)
        self._prepare_rebalance(group)

    # -------------------------------------------------------------- heartbeat

    def heartbeat(self, token: int, request: GroupHeartbeat) -> None:
        context = self._context
        group = context.groups.get(request.group_id)
        error = UNKNOWN_MEMBER_ID if group is None else self._judge_generation(group, request)
        if error or group is None or group.is_in(State.EMPTY):
            context.reply(token, HeartbeatAnswer(error or UNKNOWN_MEMBER_ID))
            return
        member = group.members[request.member_id]
        self.sessions.heard(group, member, request.connection)
        self._answer_heartbeat(member, REBALANCE_IN_PROGRESS if group.is_in(State.PREPARING_REBALANCE) else 0)
        if group.is_in(State.PREPARING_REBALANCE):
            context.reply(token, HeartbeatAnswer(REBALANCE_IN_PROGRESS))
        elif request.park_ms > 0:
            park_ms = min(request.park_ms, member.session_timeout_ms // 2)
            member.heartbeat_token = token
            context.timers.set((PARKED, group.group_id, member.member_id), context.now_ms + park_ms)
        else:
            context.reply(token, HeartbeatAnswer(0))

    def _answer_heartbeat(self, member: Member, error: int) -> None:
        if member.heartbeat_token is not None:
            token, member.heartbeat_token = member.heartbeat_token, None
            self._context.reply(token, HeartbeatAnswer(error))

    # -------------------------------------------------------------- leave

    def leave(self, token: int, request: LeaveGroup) -> None:
        context = self._context
        group = context.groups.get(request.group_id)
        if group is not None and group.is_in(State.DEAD):
            context.reply(token, LeftGroup(COORDINATOR_NOT_AVAILABLE))
            return
        left = tuple(
            LeftMember(
                each.member_id,
                each.group_instance_id,
                UNKNOWN_MEMBER_ID if group is None else self._leave(group, each),
            )
            for each in request.members
        )
        context.reply(token, LeftGroup(0, left))

    def _leave(self, group: Group, leaving: LeavingMember) -> int:
        member_id, instance = leaving.member_id, leaving.group_instance_id
        if member_id == NO_MEMBER_ID:
            named = group.static_members.get(instance) if instance is not None else None
            if named is None:
                return UNKNOWN_MEMBER_ID
            member_id = named
        elif member_id in group.pending:
            self._remove_pending(group, member_id)
            return 0
        else:
            error = self._judge(group, member_id, instance)
            if error:
                return error
        self._remove(group, group.members[member_id])
        return 0

    def _remove(self, group: Group, member: Member) -> None:
        """The member is out: whoever is left shares out again."""
        self._drop(group, member)
        group.remove(member.member_id)
        if group.is_in(State.STABLE, State.COMPLETING_REBALANCE):
            self._maybe_rebalance(group)
        else:
            self._maybe_complete_join(group)

    def _remove_pending(self, group: Group, member_id: str) -> None:
        self.forget_pending(group, member_id)
        self._maybe_complete_join(group)

    def forget_pending(self, group: Group, member_id: str) -> None:
        """Its group goes away; when it comes with its id it will be told to begin again."""
        self._context.timers.cancel((PENDING, group.group_id, member_id))
        group.remove(member_id)

    def _drop(self, group: Group, member: Member) -> None:
        """Answer what waits of a member that is about to be removed, and forget its timers."""
        self._answer_waiting(member, UNKNOWN_MEMBER_ID, member_id=NO_MEMBER_ID)
        self.sessions.forget_timers(group, member.member_id)
        self.sessions.forget_connection(group, member)

    def _answer_waiting(self, member: Member, error: int, *, member_id: str | None = None) -> None:
        if member.join_token is not None:
            token, member.join_token = member.join_token, None
            self._context.reply(token, JoinedGroup(error, member.member_id if member_id is None else member_id))
        if member.sync_token is not None:
            token, member.sync_token = member.sync_token, None
            self._context.reply(token, SyncedGroup(error))
        self._answer_heartbeat(member, error)

    # -------------------------------------------------------------- judging

    def _judge(self, group: Group, member_id: str, instance: str | None) -> int:
        """Whether a request speaks for a member of this group; 0 if it does."""
        if instance is not None:
            current = group.static_members.get(instance)
            if current is None:
                return UNKNOWN_MEMBER_ID
            if current != member_id:
                return FENCED_INSTANCE_ID
        return 0 if member_id in group.members else UNKNOWN_MEMBER_ID

    def _judge_generation(self, group: Group, request: SyncGroup | GroupHeartbeat) -> int:
        return self.judge_member(group, request.member_id, request.group_instance_id, request.generation)

    def judge_member(self, group: Group, member_id: str, instance: str | None, generation: int) -> int:
        """Whether a request speaks for a member of this generation; 0 if it does."""
        if group.is_in(State.DEAD):
            return COORDINATOR_NOT_AVAILABLE
        error = self._judge(group, member_id, instance)
        if error:
            return error
        return 0 if generation == group.generation else ILLEGAL_GENERATION

    # -------------------------------------------------------------- time

    def timer_fired(self, name: tuple[str, ...]) -> None:
        """One of the deadlines of ``KINDS`` has come."""
        kind = name[0]
        group = self._context.groups.get(name[1])
        if group is None or group.is_in(State.DEAD):
            return
        if kind == JOIN:
            if group.is_in(State.PREPARING_REBALANCE):
                self._join_time_over(group)
        elif kind == SYNC:
            self._sync_time_over(group)
        elif kind == PENDING:
            if name[2] in group.pending:
                self._remove_pending(group, name[2])
        elif (member := group.members.get(name[2])) is not None:
            if kind == PARKED:
                self.sessions.heard(group, member, None)
                self._answer_heartbeat(member, 0)
            elif member.is_new or member.is_gone or (member.join_token is None and member.sync_token is None):
                self._remove(group, member)

    # -------------------------------------------------------------- beginning and end of a leadership

    def restored(self, group: Group) -> None:
        """A group that the log brought: each member has its session timeout to be heard of."""
        for member in group.members.values():
            self.sessions.heard(group, member, None)
        if len(group.members) > self._context.config.group_max_size:
            self._prepare_rebalance(group)

    def give_up(self) -> None:
        """The leadership is lost: everyone who waits looks for the new coordinator."""
        for group in self._context.groups.values():
            if not group.is_in(State.DEAD):
                group.enter(State.DEAD, self._context.wall_ms)
            for member in group.members.values():
                self._answer_waiting(member, NOT_COORDINATOR)
        self.sessions.clear()

    def check(self) -> None:
        timers = self._context.timers
        for group_id, group in self._context.groups.items():
            group.check()
            if group.is_in(State.PREPARING_REBALANCE):
                assert (JOIN, group_id) in timers, f"group {group_id} could prepare for ever"
                assert group.initial_join_left_ms is not None or not group.have_all_joined, (
                    f"{group_id}: all have joined"
                )
            if group.pending_sync and group.is_in(State.COMPLETING_REBALANCE, State.STABLE):
                assert (SYNC, group_id) in timers, f"group {group_id} could wait for syncs for ever"
            for member_id in group.pending:
                assert (PENDING, group_id, member_id) in timers, f"{member_id} could be pending for ever"
            for member in group.members.values():
                if group.is_in(State.DEAD):
                    continue
                name = (SESSION, group_id, member.member_id)
                assert name in timers or member.join_token is not None or member.sync_token is not None, (
                    f"{member.member_id} of {group_id} could be silent for ever"
                )
                if member.heartbeat_token is not None:
                    assert (PARKED, group_id, member.member_id) in timers
