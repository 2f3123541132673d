"""The group machine of one partition of ``__consumer_offsets``: how its coordinator decides about
the groups that hash to it.

What decisions store is in the image (``image``), which follows the replicated log on every replica.
Members, generations under way and waiting requests live in memory and end with the leadership.
Whoever waits then is sent to find the new coordinator, which finds each group as it was last stable
or empty.

Offsets end with their topic. A coordinator that leads while a topic is deleted drops its offsets at
once. One that missed the deletion, because it followed or had no session, finds them by the topic's
id, which is stored with each offset: as soon as it leads, and whenever it receives all topics anew.
Until they are dropped they are not shown.

Offsets that are committed in a transaction count when its marker in this log says so. The markers
come through the log, like the records (``coordination``).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Any, assert_never

from kio.schema.errors import ErrorCode

from raylog.coordination.coordinator import COORDINATOR_LOAD_IN_PROGRESS, PartitionCoordinator
from raylog.coordination.events import EndOfTransaction
from raylog.coordination.machine import CoordinatorMachine, Decided
from raylog.groups import rebalances, records
from raylog.groups.context import REBALANCE_IN_PROGRESS, GroupConfig, GroupContext, GroupSettings
from raylog.groups.group import Group, State
from raylog.groups.image import OffsetsImage
from raylog.groups.offsets import EXPIRE, Offsets
from raylog.groups.rebalances import Rebalances
from raylog.groups.records import GroupRecord, UnknownKey
from raylog.groups.requests import (
    DeleteGroup,
    DescribedGroupState,
    DescribeGroup,
    GroupDeleted,
    GroupHeartbeat,
    GroupReply,
    GroupsListed,
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
    TxnOffsetCommit,
)
from raylog.offsets_topic import OFFSETS_TOPIC, partition_for

INVALID_GROUP_ID = ErrorCode.invalid_group_id.value
INVALID_REQUEST = ErrorCode.invalid_request.value
_NAME_BYTES_MAX = 32_000  # of anything that becomes a string of a record, with room for what is added to it
_MAY_BE_UNNAMED = (OffsetCommit, OffsetFetch, DescribeGroup, DeleteGroup)

GroupDecision = Decided[GroupReply, GroupRecord]
GroupCoordinator = PartitionCoordinator[Request, GroupReply, GroupRecord]


class GroupMachine(CoordinatorMachine[Request, GroupReply, GroupRecord]):
    __slots__ = ("_offsets", "_rebalances", "context")

    def __init__(self, settings: GroupSettings, new_uuid: Callable[[], uuid.UUID], position: int) -> None:
        self.context: GroupContext = GroupContext(settings, position)
        self._rebalances = Rebalances(self.context, new_uuid)
        self._offsets = Offsets(self.context, self._rebalances)

    @property
    def image(self) -> OffsetsImage:
        return self.context.image

    @property
    def groups(self) -> dict[str, Group]:
        """The groups of a leader; no other code changes them."""
        return self.context.groups

    def apply(self, record: GroupRecord) -> None:
        self.context.image.apply(record)

    def apply_in_transaction(self, producer_id: int, record: GroupRecord) -> None:
        self.context.image.apply_in_transaction(producer_id, record)

    def transaction_ended(self, end: EndOfTransaction) -> None:
        self.context.image.transaction_ended(end.producer_id, is_committed=end.is_committed)

    # -------------------------------------------------------------- beginning and end of a leadership

    def began(self) -> None:
        context = self.context
        for group_id, stored in context.image.groups.items():
            context.groups[group_id] = Group.restored(group_id, stored.value)
        for group in list(context.groups.values()):
            self._rebalances.restored(group)
        self._expire_later()

    def ended(self) -> None:
        self._rebalances.give_up()
        self.context.groups.clear()

    def topics_changed(self, gone: tuple[str, ...], *, is_whole: bool) -> None:
        """Drop the offsets of deleted topics: those of ``gone`` by name, and if any may have gone,
        all whose id no longer exists.
        """
        for topic in gone:
            self._offsets.topic_gone(topic)
        if is_whole:
            self._offsets.drop_void()

    def connection_closed(self, connection: int) -> None:
        self._rebalances.sessions.connection_closed(connection)

    # -------------------------------------------------------------- requests

    def judge(self, request: Request) -> int:
        if isinstance(request, ListGroups):
            return 0
        if not request.group_id and not isinstance(request, _MAY_BE_UNNAMED):
            return INVALID_GROUP_ID
        return 0 if _fits(request) else INVALID_REQUEST

    def decide(self, token: int, request: Request) -> GroupDecision | None:
        match request:
            case JoinGroup():
                self._rebalances.join(token, request)
            case SyncGroup():
                self._rebalances.sync(token, request)
            case GroupHeartbeat():
                self._rebalances.heartbeat(token, request)
            case LeaveGroup():
                self._rebalances.leave(token, request)
            case OffsetCommit():
                return self._offsets.commit(request)
            case TxnOffsetCommit():
                return self._offsets.commit_in_transaction(request)
            case OffsetFetch():
                return self._offsets.fetch(request)
            case OffsetDelete():
                return self._offsets.delete_offsets(request)
            case DeleteGroup():
                return self._offsets.delete_group(request)
            case DescribeGroup():
                description = self._describe(request.group_id)
                return Decided(lambda error: description)
            case ListGroups():
                groups = self._list(request)
                return Decided(lambda error: groups)
            case _:
                assert_never(request)
        return None

    def refuse(self, request: Request, error: int) -> GroupReply:
        return _refusal(request, error)

    def _describe(self, group_id: str) -> DescribedGroupState:
        group = self.context.groups.get(group_id)
        if group is None:
            return DescribedGroupState(0, group_id, State.DEAD.value)
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
        return DescribedGroupState(0, group_id, group.state.value, group.protocol_type or "", protocol, members)

    def _list(self, request: ListGroups) -> GroupsListed:
        states = {state.lower() for state in request.states}
        types = {type.lower() for type in request.types}
        groups = tuple(
            ListedGroup(group_id, group.protocol_type or "", group.state.value)
            for group_id, group in sorted(self.context.groups.items())
            if (not states or group.state.value.lower() in states) and (not types or "classic" in types)
        )
        return GroupsListed(0, groups)

    # -------------------------------------------------------------- time

    def timer_fired(self, name: tuple[Any, ...]) -> None:
        if name[0] == EXPIRE:
            self._offsets.expire()
            self._expire_later()
        else:
            assert name[0] in rebalances.KINDS, name
            self._rebalances.timer_fired(name)

    def _expire_later(self) -> None:
        context = self.context
        context.timers.set((EXPIRE,), context.now_ms + context.config.offsets_retention_check_interval_ms)

    # -------------------------------------------------------------- invariants

    def check(self, *, leads: bool) -> None:
        self._rebalances.check()
        if leads:
            missing = set(self.image.groups) - set(self.groups)
            assert not missing, f"groups {missing} are in the image alone"
        else:
            assert not self.groups, f"groups {list(self.groups)} without leading"


class GroupKind:
    """Consumer groups as a runtime is given them (``coordination.machine.CoordinatorKind``)."""

    topic = OFFSETS_TOPIC

    def __init__(self, config: GroupConfig | None = None, *, new_uuid: Callable[[], uuid.UUID]) -> None:
        self._settings = GroupSettings(config or GroupConfig())
        self.counts = self._settings.counts
        self._new_uuid = new_uuid

    def machine(self, position: int) -> GroupMachine:
        return GroupMachine(self._settings, self._new_uuid, position)

    def encode(self, record: GroupRecord) -> tuple[bytes, bytes | None]:
        return records.encode(record)

    def decode(self, key: bytes | None, value: bytes | None) -> GroupRecord | None:
        record = records.decode(key, value)
        return None if isinstance(record, UnknownKey) else record

    def partition_of(self, request: Request) -> int | None:
        return None if isinstance(request, ListGroups) else partition_for(request.group_id)

    def wait_ms(self, request: Request) -> int | None:
        if isinstance(request, TxnOffsetCommit):
            return 0  # its leave is of the leader whom it reached
        return request.rebalance_timeout_ms if isinstance(request, JoinGroup) else None

    def configure(self, configs: Mapping[str, str]) -> None:
        self._settings.configure(configs)


def _fits(request: Request) -> bool:
    """Whether everything that may become a string of a record has room there."""
    match request:
        case JoinGroup():
            names = [request.group_id, request.member_id, request.group_instance_id or "", request.client_id]
            names += [request.client_host, request.protocol_type, *(each.name for each in request.protocols)]
        case OffsetCommit() | TxnOffsetCommit():
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
        case GroupHeartbeat():
            return HeartbeatAnswer(0 if is_loading else error)
        case LeaveGroup():
            return LeftGroup(error)
        case OffsetCommit() | TxnOffsetCommit():
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
            return DescribedGroupState(error, request.group_id)
        case ListGroups():
            return GroupsListed(error if is_loading else 0)  # a process lists what it coordinates
        case _:
            assert_never(request)
