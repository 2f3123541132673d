"""The group machine of one partition of ``__consumer_offsets``: what its leader answers to the groups that hash to it.

Roles (``role``), how each answers, and where it goes::

    Following   NOT_COORDINATOR; no groups are listed                                          → Loading (Elected)
    Loading     COORDINATOR_LOAD_IN_PROGRESS, but to SyncGroup REBALANCE_IN_PROGRESS and to Heartbeat that all is well,
                since older clients know no better                                             → Leading, Following (Resigned)
    Leading     all requests                                                                   → Following (Resigned), Loading (Elected)

In every role the image (``image``) holds what the log says below ``position``, so a follower that is elected has only the tail left
to read: it leads when it has applied everything up to the end that its log had at its election. That end is replicated then,
so no group is restored from something that could still go away.

What a leader decides goes to its own log, and what rests on it is answered when it is replicated (``context``). Its groups'
members, generations under way and waiting requests live in memory and end with its leadership; whoever waits is sent to look
for the new coordinator, which finds each group as it was last stable or empty. A leader epoch fences: an Append of an
older one is refused by the shell, and an Elected or Resigned of an older one is dropped here. Where an unclean election cuts the
log below ``position``, the shell begins anew with another machine.

Offsets end with their topic. A coordinator that leads while a topic is deleted drops its offsets at once (``TopicsKnown``). One
that did not hear of it, because it followed or had no session, finds them by the topic's id, which is stored with each offset:
as soon as it leads, and whenever it is told all topics anew. Until they are dropped they are not shown.

No records of transactions are spoken here yet: a commit inside of a transaction is refused by the shell.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from enum import Enum
from typing import assert_never

from kio.schema.errors import ErrorCode

from raylog.groups import rebalances
from raylog.groups.context import (
    COMMIT,
    NOT_COORDINATOR,
    REBALANCE_IN_PROGRESS,
    CoordinatorContext,
    GroupConfig,
)
from raylog.groups.events import (
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
from raylog.groups.group import Group, State
from raylog.groups.image import OffsetsImage
from raylog.groups.offsets import EXPIRE, Offsets
from raylog.groups.rebalances import Rebalances
from raylog.groups.requests import (
    DeleteGroup,
    DescribeGroup,
    GroupDeleted,
    GroupDescription,
    GroupReply,
    GroupsListed,
    Heartbeat,
    HeartbeatAnswer,
    JoinedGroup,
    JoinGroup,
    LeaveGroup,
    LeftGroup,
    ListedGroup,
    ListGroups,
    MemberDescription,
    OffsetCommit,
    OffsetDelete,
    OffsetFetch,
    OffsetsCommitted,
    OffsetsDeleted,
    OffsetsFetched,
    PartitionError,
    Request,
    SyncedGroup,
    SyncGroup,
)

INVALID_GROUP_ID = ErrorCode.invalid_group_id.value
INVALID_REQUEST = ErrorCode.invalid_request.value
COORDINATOR_LOAD_IN_PROGRESS = ErrorCode.coordinator_load_in_progress.value
_NAME_BYTES_MAX = 32_000  # of anything that becomes a string of a record, with room for what is added to it
_MAY_BE_UNNAMED = (OffsetCommit, OffsetFetch, DescribeGroup, DeleteGroup)


class Role(Enum):
    FOLLOWING = "following"
    LOADING = "loading"
    LEADING = "leading"


class Coordinator:
    """``handle`` takes one event and returns what it brings about, in order."""

    __slots__ = ("_context", "_gone", "_load_end", "_offsets", "_rebalances", "_resigned_epoch", "role")

    def __init__(self, config: GroupConfig, *, new_uuid: Callable[[], uuid.UUID], position: int = 0) -> None:
        """``position``: where the log starts, or whatever the first Replayed will begin with."""
        self._context = CoordinatorContext(config, position)
        self._rebalances = Rebalances(self._context, new_uuid)
        self._offsets = Offsets(self._context, self._rebalances)
        self._load_end = 0
        self._gone: list[str] = []  # topics deleted while the log is being read
        self._resigned_epoch = -1
        self.role = Role.FOLLOWING

    @property
    def position(self) -> int:
        """The next offset that the image wants to see."""
        return self._context.position

    @property
    def image(self) -> OffsetsImage:
        return self._context.image

    @property
    def groups(self) -> dict[str, Group]:
        """The groups of a leader; nobody else changes them."""
        return self._context.groups

    def configure(self, config: GroupConfig) -> None:
        """Go by other settings from now on; what waits already keeps its time."""
        self._context.config = config

    def next_deadline_ms(self) -> int | None:
        return self._context.timers.next_ms()

    def handle(self, event: Event, now_ms: int, wall_ms: int) -> list[Effect]:
        context = self._context
        context.now_ms, context.wall_ms = now_ms, wall_ms
        match event:
            case RequestReceived():
                answer = self._request(event.token, event.request)
                if answer is not None:
                    context.reply(event.token, answer)
            case ConnectionClosed():
                self._rebalances.sessions.connection_closed(event.connection)
            case Appended():
                context.appended(event.sequence, event.end_offset, event.error)
            case HighWatermarkRose():
                if self.role is not Role.FOLLOWING:
                    context.high_watermark_rose(event.offset)
            case Replayed():
                self._replayed(event)
            case Elected():
                self._elected(event)
            case Resigned():
                if event.leader_epoch >= context.leader_epoch:
                    self._resigned_epoch = max(self._resigned_epoch, event.leader_epoch)
                    self._give_up()
            case TopicsKnown():
                context.topics = event.topics
                if self.role is Role.LEADING:
                    self._forget(event.gone, searches=event.is_whole)
                elif self.role is Role.LOADING:
                    self._gone += event.gone
            case Ticked():
                self._tick()
            case _:
                assert_never(event)
        effects, context.effects = context.effects, []
        return effects

    # -------------------------------------------------------------- roles

    def _elected(self, event: Elected) -> None:
        if event.leader_epoch <= max(self._context.leader_epoch, self._resigned_epoch):
            return
        assert event.log_end_offset >= self.position, (
            f"the log ends at {event.log_end_offset}, {self.position} is applied"
        )
        self._give_up()
        self._context.leader_epoch = event.leader_epoch
        self._load_end = event.log_end_offset
        self.role = Role.LOADING
        self._maybe_lead()

    def _give_up(self) -> None:
        context = self._context
        self._rebalances.give_up()
        context.give_up()
        context.groups.clear()
        context.timers.clear()
        self._gone.clear()
        self.role = Role.FOLLOWING

    def _replayed(self, event: Replayed) -> None:
        context = self._context
        assert self.role is not Role.LEADING, "a leader applies its own records"
        assert event.next_offset >= context.position, f"replayed to {event.next_offset}, was at {context.position}"
        for record in event.records:
            context.image.apply(record)
        context.position = event.next_offset
        self._maybe_lead()

    def _maybe_lead(self) -> None:
        context = self._context
        if self.role is not Role.LOADING or context.position < self._load_end:
            return
        self.role = Role.LEADING
        for group_id, stored in context.image.groups.items():
            context.groups[group_id] = Group.restored(group_id, stored.value)
        for group in list(context.groups.values()):
            self._rebalances.restored(group)
        context.timers.set((EXPIRE,), context.now_ms + context.config.offsets_retention_check_interval_ms)
        gone, self._gone = self._gone, []
        self._forget(gone, searches=True)

    def _forget(self, gone: Iterable[str], *, searches: bool) -> None:
        """Drop the offsets of deleted topics: of those by name, and of all whose id is not there any more."""
        for topic in gone:
            self._offsets.topic_gone(topic)
        if searches:
            self._offsets.drop_void()

    # -------------------------------------------------------------- requests

    def _request(self, token: int, request: Request) -> GroupReply | None:
        """The answer, if the request gets no further than here."""
        error = self._judge(request)
        if error:
            return _refusal(request, error)
        match request:
            case JoinGroup():
                self._rebalances.join(token, request)
            case SyncGroup():
                self._rebalances.sync(token, request)
            case Heartbeat():
                self._rebalances.heartbeat(token, request)
            case LeaveGroup():
                self._rebalances.leave(token, request)
            case OffsetCommit():
                self._offsets.commit(token, request)
            case OffsetFetch():
                self._offsets.fetch(token, request)
            case OffsetDelete():
                self._offsets.delete_offsets(token, request)
            case DeleteGroup():
                self._offsets.delete_group(token, request)
            case DescribeGroup():
                return self._describe(request.group_id)
            case ListGroups():
                return self._list(request)
            case _:
                assert_never(request)
        return None

    def _judge(self, request: Request) -> int:
        if isinstance(request, ListGroups):
            return 0
        if not request.group_id and not isinstance(request, _MAY_BE_UNNAMED):
            return INVALID_GROUP_ID
        if self.role is Role.LOADING:
            return COORDINATOR_LOAD_IN_PROGRESS
        if self.role is Role.FOLLOWING:
            return NOT_COORDINATOR
        return 0 if _fits(request) else INVALID_REQUEST

    def _describe(self, group_id: str) -> GroupDescription:
        group = self._context.groups.get(group_id)
        if group is None:
            return GroupDescription(0, group_id, State.DEAD.value)
        is_stable = group.is_in(State.STABLE)
        protocol = group.protocol if is_stable and group.protocol is not None else ""
        members = tuple(
            MemberDescription(
                member.member_id,
                member.group_instance_id,
                member.client_id,
                member.client_host,
                member.metadata(protocol) if is_stable else b"",
                member.assignment if is_stable else b"",
            )
            for member in group.members.values()
        )
        return GroupDescription(0, group_id, group.state.value, group.protocol_type or "", protocol, members)

    def _list(self, request: ListGroups) -> GroupsListed:
        states = {state.lower() for state in request.states}
        types = {type.lower() for type in request.types}
        groups = tuple(
            ListedGroup(group_id, group.protocol_type or "", group.state.value)
            for group_id, group in sorted(self._context.groups.items())
            if (not states or group.state.value.lower() in states) and (not types or "classic" in types)
        )
        return GroupsListed(COORDINATOR_LOAD_IN_PROGRESS if self.role is Role.LOADING else 0, groups)

    # -------------------------------------------------------------- time

    def _tick(self) -> None:
        context = self._context
        for _, name in context.timers.due(context.now_ms):
            if name[0] == COMMIT:
                context.commit_timed_out(name[1])
            elif name[0] == EXPIRE:
                self._offsets.expire()
                context.timers.set((EXPIRE,), context.now_ms + context.config.offsets_retention_check_interval_ms)
            else:
                assert name[0] in rebalances.KINDS, name
                self._rebalances.timer_fired(name)

    # -------------------------------------------------------------- invariants

    def check(self) -> None:
        """Raise AssertionError where an invariant is broken. For tests and the simulator: it visits everything."""
        self._context.check()
        self._rebalances.check()
        if self.role is Role.LEADING:
            missing = set(self._context.image.groups) - set(self._context.groups)
            assert not missing, f"groups {missing} are in the image alone"
        else:
            assert not self._context.groups, f"groups {list(self._context.groups)} while {self.role.value}"


def _fits(request: Request) -> bool:
    """Whether everything that may become a string of a record has room there."""
    match request:
        case JoinGroup():
            names = [request.group_id, request.member_id, request.group_instance_id or "", request.client_id]
            names += [request.client_host, request.protocol_type, *(each.name for each in request.protocols)]
        case OffsetCommit():
            names = [request.group_id, *(each.topic for each in request.partitions)]
        case _:
            return True
    return all(len(name) * 3 <= _NAME_BYTES_MAX or len(name.encode()) <= _NAME_BYTES_MAX for name in names)


def _refusal(request: Request, error: int) -> GroupReply:
    """The answer that carries an error of the whole request."""
    is_loading = error == COORDINATOR_LOAD_IN_PROGRESS
    match request:
        case JoinGroup():
            return JoinedGroup(error, request.member_id)
        case SyncGroup():
            return SyncedGroup(REBALANCE_IN_PROGRESS if is_loading else error)
        case Heartbeat():
            return HeartbeatAnswer(0 if is_loading else error)
        case LeaveGroup():
            return LeftGroup(error)
        case OffsetCommit():
            return OffsetsCommitted(
                tuple(PartitionError(each.topic, each.partition, error) for each in request.partitions)
            )
        case OffsetFetch():
            return OffsetsFetched(error)
        case OffsetDelete():
            return OffsetsDeleted(error)
        case DeleteGroup():
            return GroupDeleted(error)
        case DescribeGroup():
            return GroupDescription(error, request.group_id)
        case ListGroups():
            return GroupsListed(error)
        case _:
            assert_never(request)
