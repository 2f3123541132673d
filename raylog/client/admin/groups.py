"""Groups as an administrator sees them: who is in them, how far they have come, and to change that.

``AsyncGroupCalls`` and ``GroupCalls`` are the parts of the admin clients that speak of groups. Each
call asks the coordinators of the groups that it names; a list of all groups is put together from
the processes that lead partitions of ``__consumer_offsets``. Offsets of a group can be altered
while it has no members, and deleted where no member reads the topic.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from kio.schema.errors import ErrorCode

from raylog.client.config import AdminConfig
from raylog.client.groups import requests as group_requests
from raylog.client.groups.coordinator_link import CoordinatorLink, whole_error
from raylog.client.groups.offset_commits import Identity, OffsetAndMetadata, OffsetCommits, to_commit
from raylog.client.links.link import ClusterLink
from raylog.errors import ProtocolError, RaylogError, error_for, kafka_error
from raylog.groups.consumer_protocol import PROTOCOL_TYPE, decode_assignment
from raylog.offsets_topic import OFFSETS_TOPIC
from raylog.types import TopicPartition, broker_of

T = TypeVar("T")

_HAS_MEMBERS = frozenset({ErrorCode.unknown_member_id, ErrorCode.non_empty_group, ErrorCode.rebalance_in_progress})


@dataclass(frozen=True, slots=True)
class GroupListing:
    group_id: str
    protocol_type: str
    state: str


@dataclass(frozen=True, slots=True)
class GroupMemberInfo:
    """``assignment``: what it reads, told of a stable group of consumers."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    host: str
    assignment: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """``state``: Empty, PreparingRebalance, CompletingRebalance, Stable, or Dead (there is none).
    ``coordinator`` is a broker.
    """

    group_id: str
    state: str
    protocol_type: str
    protocol: str
    coordinator: int
    members: tuple[GroupMemberInfo, ...] = ()

    @property
    def has_members(self) -> bool:
        return self.state not in ("Empty", "Dead")


class AsyncGroupCalls:
    """What an admin client can do with groups. Mixed into ``AsyncAdminClient``."""

    _config: AdminConfig

    def _opened(self) -> ClusterLink:
        raise NotImplementedError

    async def list_groups(self, *, states: Iterable[str] = ()) -> list[GroupListing]:
        """All groups, or those in these states, by name. Raises where a coordinator does not
        answer: the list would not be whole.
        """
        link = self._opened()
        try:
            views = await link.metadata.refresh([OFFSETS_TOPIC], timeout_ms=self._config.default_api_timeout_ms)
        except kafka_error(ErrorCode.unknown_topic_or_partition):
            return []
        asked = tuple(states)
        nodes = {
            part.leader.node: index
            for view in views
            for index, part in enumerate(view.partitions)
            if part.leader.endpoint
        }
        replies = await asyncio.gather(*(self._list_of(link, index, asked) for index in nodes.values()))
        found = {
            str(each.group_id): GroupListing(str(each.group_id), each.protocol_type, each.group_state)
            for reply in replies
            for each in reply.groups
        }
        return [found[name] for name in sorted(found)]

    async def _list_of(self, link: ClusterLink, partition: int, states: tuple[str, ...]) -> Any:
        """The groups of the process that leads that partition now."""
        coordinator = CoordinatorLink(link, "", partition=partition)
        return await coordinator.request(
            group_requests.list_groups(states), timeout_ms=self._config.default_api_timeout_ms, what="the list"
        )

    async def describe_groups(self, group_ids: Iterable[str]) -> dict[str, GroupDescription]:
        """Groups by name. One that does not exist is "Dead"."""
        names = list(dict.fromkeys(group_ids))
        return dict(zip(names, await asyncio.gather(*map(self._describe, names)), strict=True))

    async def _describe(self, group_id: str) -> GroupDescription:
        coordinator = CoordinatorLink(self._opened(), group_id)
        reply = await coordinator.request(
            group_requests.describe_group(group_id),
            timeout_ms=self._config.default_api_timeout_ms,
            what="the description",
            error_of=lambda reply: int(reply.groups[0].error_code),
        )
        found = reply.groups[0]
        return GroupDescription(
            group_id,
            found.group_state,
            found.protocol_type,
            found.protocol_data,
            broker_of(coordinator.node),
            tuple(_member_of(each, found.protocol_type) for each in found.members),
        )

    async def delete_groups(self, group_ids: Iterable[str]) -> None:
        """Delete groups with all their offsets. Raises NonEmptyGroupError for one that has members,
        GroupIdNotFoundError.
        """
        names = list(dict.fromkeys(group_ids))
        done = await asyncio.gather(*map(self._delete, names), return_exceptions=True)
        for failure in done:
            if isinstance(failure, BaseException):
                raise failure

    async def _delete(self, group_id: str) -> None:
        await CoordinatorLink(self._opened(), group_id).request(
            group_requests.delete_group(group_id),
            timeout_ms=self._config.default_api_timeout_ms,
            what="deletion",
            error_of=lambda reply: int(reply.results[0].error_code),
        )

    async def list_group_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition | tuple[str, int]] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """What a group has committed, of these partitions or of all; those without a commit are
        left out.
        """
        asked = None if partitions is None else [TopicPartition(*key) for key in partitions]
        return await self._offsets(group_id).committed(asked, self._config.default_api_timeout_ms)

    async def alter_group_offsets(self, group_id: str, offsets: Mapping[Any, Any]) -> None:
        """Set where a group continues: ``{partition: offset or (offset, metadata)}``. Only while it
        has no members.
        """
        try:
            await self._offsets(group_id).commit(to_commit(offsets), self._config.default_api_timeout_ms)
        except RaylogError as error:
            if error.code in _HAS_MEMBERS:
                raise error_for(error.code, f"group {group_id!r} has members: stop them first") from None
            raise

    async def delete_group_offsets(self, group_id: str, partitions: Iterable[TopicPartition | tuple[str, int]]) -> None:
        """Forget what a group has committed of these partitions. Raises GroupSubscribedToTopicError
        where a member reads the topic.
        """
        request = group_requests.offset_delete(group_id, [TopicPartition(*key) for key in partitions])
        await CoordinatorLink(self._opened(), group_id).request(
            request, timeout_ms=self._config.default_api_timeout_ms, what="deleting offsets", error_of=_delete_error
        )

    def _offsets(self, group_id: str) -> OffsetCommits:
        return OffsetCommits(
            CoordinatorLink(self._opened(), group_id),
            instance_id=None,
            identity=Identity,
            refused=lambda identity, code: None,
        )


class GroupCalls:
    """The same with blocking calls. Mixed into ``AdminClient``."""

    _client: AsyncGroupCalls

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        raise NotImplementedError

    def list_groups(self, *, states: Iterable[str] = ()) -> list[GroupListing]:
        """See ``AsyncAdminClient.list_groups``."""
        return self._run(self._client.list_groups(states=states))

    def describe_groups(self, group_ids: Iterable[str] | str) -> dict[str, GroupDescription]:
        """See ``AsyncAdminClient.describe_groups``."""
        return self._run(self._client.describe_groups([group_ids] if isinstance(group_ids, str) else group_ids))

    def delete_groups(self, group_ids: Iterable[str] | str) -> None:
        """See ``AsyncAdminClient.delete_groups``."""
        self._run(self._client.delete_groups([group_ids] if isinstance(group_ids, str) else group_ids))

    def list_group_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition | tuple[str, int]] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """See ``AsyncAdminClient.list_group_offsets``."""
        return self._run(self._client.list_group_offsets(group_id, partitions))

    def alter_group_offsets(self, group_id: str, offsets: Mapping[Any, Any]) -> None:
        """See ``AsyncAdminClient.alter_group_offsets``."""
        self._run(self._client.alter_group_offsets(group_id, offsets))

    def delete_group_offsets(self, group_id: str, partitions: Iterable[TopicPartition | tuple[str, int]]) -> None:
        """See ``AsyncAdminClient.delete_group_offsets``."""
        self._run(self._client.delete_group_offsets(group_id, partitions))


def _member_of(member: Any, protocol_type: str) -> GroupMemberInfo:
    assignment: tuple[TopicPartition, ...] = ()
    if protocol_type == PROTOCOL_TYPE:
        try:
            assignment = decode_assignment(bytes(member.member_assignment)).partitions
        except ProtocolError:
            pass  # of an assignor of somebody's own
    return GroupMemberInfo(member.member_id, member.group_instance_id, member.client_id, member.client_host, assignment)


def _delete_error(reply: Any) -> int:
    if code := whole_error(reply):
        return code
    return next((code for code in group_requests.partition_errors(reply).values() if code), 0)
