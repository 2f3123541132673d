"""The APIs of group coordinators: what each asks of ``raylog.groups``, and how its answer is put
together.

Offsets are committed by topic name. TxnOffsetCommit names the group's member from version 3 on; from
4 on a producer knows TRANSACTION_ABORTABLE, and from 5 on the group's partition of
``__consumer_offsets`` is added to the transaction here (KIP-890). OffsetCommit up to version 4 may say how long they are kept.
OffsetFetch names several groups from version 8 on, and a null list means all that is committed.
JoinGroup gives a member its id first from version 4, and skips the assignment from 9. LeaveGroup
names several members from version 3. DescribeGroups calls an unknown group Dead, from version 6
GROUP_ID_NOT_FOUND. ListGroups tells of the groups of one coordinator process.

Each entry of ``APIS`` turns a request into those of ``raylog.groups``, one for each group that it
names (ListGroups: one, to be asked of each partition), and their answers, in that order, into the
answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from raylog.groups import requests
from raylog.groups.requests import GroupReply, Request
from raylog.kafka import table
from raylog.kafka.spec import ApiSpec
from raylog.replication.transaction_events import TransactionMembership
from raylog.security.permissions import OPERATIONS, Resource
from raylog.server.apis.api import answer
from raylog.server.apis.entities import CODES, NO_DELAY, build, milliseconds
from raylog.types import TopicPartition

NO_OPERATIONS = -(1 << 31)
ALL_OPERATIONS = sum(1 << each for each in OPERATIONS[Resource.GROUP])
GROUP_ID_NOT_FOUND = ErrorCode.group_id_not_found.value


class Caller(NamedTuple):
    """Who asks. ``connection`` is set for native clients alone, and names their connection."""

    client_id: str
    client_host: str
    connection: int | None


class GroupApi(NamedTuple):
    spec: ApiSpec
    to_requests: Callable[[Any, int, Caller], list[Request]]
    to_entity: Callable[[Any, Sequence[GroupReply], int], Any]


def _instance(body: Any) -> str | None:
    return getattr(body, "group_instance_id", None)


# ------------------------------------------------------------------ membership


def _join_request(body: Any, version: int, caller: Caller) -> list[Request]:
    session_timeout_ms = milliseconds(body.session_timeout)
    return [
        requests.JoinGroup(
            body.group_id,
            body.member_id,
            body.protocol_type,
            tuple(requests.Protocol(each.name, bytes(each.metadata)) for each in body.protocols),
            session_timeout_ms,
            milliseconds(body.rebalance_timeout) if version >= 1 else session_timeout_ms,
            _instance(body),
            caller.client_id,
            caller.client_host,
            needs_member_id=version >= 4,
            can_skip_assignment=version >= 9,
            connection=caller.connection,
        )
    ]


def _join_entity(body: Any, replies: Sequence[GroupReply], version: int) -> Any:
    (reply,) = replies
    assert isinstance(reply, requests.JoinedGroup), reply
    cls, module = answer(table.JOIN_GROUP, version)
    return build(
        cls,
        throttle_time=NO_DELAY,
        error_code=CODES[reply.error],
        generation_id=reply.generation,
        protocol_type=reply.protocol_type,
        protocol_name=reply.protocol if version >= 7 else reply.protocol or "",
        leader=reply.leader,
        skip_assignment=reply.skip_assignment,
        member_id=reply.member_id,
        members=tuple(
            build(
                module.JoinGroupResponseMember,
                member_id=each.member_id,
                group_instance_id=each.group_instance_id,
                metadata=each.metadata,
            )
            for each in reply.members
        ),
    )


def _sync_request(body: Any, version: int, caller: Caller) -> list[Request]:
    return [
        requests.SyncGroup(
            body.group_id,
            body.member_id,
            body.generation_id,
            tuple((each.member_id, bytes(each.assignment)) for each in body.assignments),
            _instance(body),
            getattr(body, "protocol_type", None),
            getattr(body, "protocol_name", None),
            caller.connection,
        )
    ]


def _sync_entity(body: Any, replies: Sequence[GroupReply], version: int) -> Any:
    (reply,) = replies
    assert isinstance(reply, requests.SyncedGroup), reply
    return build(
        answer(table.SYNC_GROUP, version)[0],
        throttle_time=NO_DELAY,
        error_code=CODES[reply.error],
        protocol_type=reply.protocol_type,
        protocol_name=reply.protocol,
        assignment=reply.assignment,
    )


def _heartbeat_request(body: Any, version: int, caller: Caller) -> list[Request]:
    park_ms = 0 if caller.connection is None else requests.HEARTBEAT_HELD_BACK_MS
    return [
        requests.GroupHeartbeat(
            body.group_id, body.member_id, body.generation_id, _instance(body), park_ms, caller.connection
        )
    ]


def _heartbeat_entity(body: Any, replies: Sequence[GroupReply], version: int) -> Any:
    (reply,) = replies
    assert isinstance(reply, requests.HeartbeatAnswer), reply
    return build(answer(table.HEARTBEAT, version)[0], throttle_time=NO_DELAY, error_code=CODES[reply.error])


def _leave_request(body: Any, version: int, caller: Caller) -> list[Request]:
    if version < 3:
        leaving: tuple[requests.LeavingMember, ...] = (requests.LeavingMember(body.member_id),)
    else:
        leaving = tuple(requests.LeavingMember(each.member_id, each.group_instance_id) for each in body.members)
    return [requests.LeaveGroup(body.group_id, leaving)]


def _leave_entity(body: Any, replies: Sequence[GroupReply], version: int) -> Any:
    (reply,) = replies
    assert isinstance(reply, requests.LeftGroup), reply
    cls, module = answer(table.LEAVE_GROUP, version)
    if version < 3:
        error = reply.error or next((each.error for each in reply.members), 0)
        return build(cls, throttle_time=NO_DELAY, error_code=CODES[error])
    members = tuple(
        module.MemberResponse(
            member_id=each.member_id, group_instance_id=each.group_instance_id, error_code=CODES[each.error]
        )
        for each in reply.members
    )
    return cls(throttle_time=NO_DELAY, error_code=CODES[reply.error], members=members)


# ------------------------------------------------------------------ offsets


def _committed(body: Any) -> tuple[requests.CommittedPartition, ...]:
    return tuple(
        requests.CommittedPartition(
            topic.name,
            each.partition_index,
            each.committed_offset,
            getattr(each, "committed_leader_epoch", -1),
            each.committed_metadata or "",
        )
        for topic in body.topics
        for each in topic.partitions
    )


def _commit_request(body: Any, version: int, caller: Caller) -> list[Request]:
    return [
        requests.OffsetCommit(
            body.group_id,
            _committed(body),
            body.member_id,
            body.generation_id_or_member_epoch,
            _instance(body),
            milliseconds(body.retention_time) if version <= 4 else -1,
            caller.connection,
        )
    ]


def _txn_commit_request(body: Any, version: int, caller: Caller) -> list[Request]:
    return [
        requests.TxnOffsetCommit(
            body.group_id,
            _committed(body),
            body.producer_id,
            body.producer_epoch,
            TransactionMembership(body.transactional_id, adds=version >= 5, is_abortable=version >= 4),
            getattr(body, "member_id", requests.NO_MEMBER_ID),
            getattr(body, "generation_id", requests.NO_GENERATION),
            _instance(body),
        )
    ]


def _commit_entity(body: Any, replies: Sequence[GroupReply], version: int) -> Any:
    return _committed_entity(table.OFFSET_COMMIT, "OffsetCommitResponse", body, replies, version)


def _txn_commit_entity(body: Any, replies: Sequence[GroupReply], version: int) -> Any:
    return _committed_entity(table.TXN_OFFSET_COMMIT, "TxnOffsetCommitResponse", body, replies, version)


def _committed_entity(spec: ApiSpec, nested: str, body: Any, replies: Sequence[GroupReply], version: int) -> Any:
    """``nested``: what the names of its nested classes begin with."""
    (reply,) = replies
    assert isinstance(reply, requests.OffsetsCommitted), reply
    cls, module = answer(spec, version)
    of_topic, of_partition = (getattr(module, f"{nested}{part}") for part in ("Topic", "Partition"))
    results = iter(reply.partitions)
    topics = tuple(
        of_topic(
            name=topic.name,
            partitions=tuple(
                of_partition(partition_index=each.partition_index, error_code=CODES[next(results).error])
                for each in topic.partitions
            ),
        )
        for topic in body.topics
    )
    return build(cls, throttle_time=NO_DELAY, topics=topics)


def _places(topics: Iterable[Any] | None) -> tuple[TopicPartition, ...] | None:
    if topics is None:
        return None
    return tuple(TopicPartition(topic.name, index) for topic in topics for index in topic.partition_indexes)


def _fetch_request(body: Any, version: int, caller: Caller) -> list[Request]:
    groups = body.groups if version >= 8 else (body,)
    stable = getattr(body, "require_stable", False)
    return [requests.OffsetFetch(each.group_id, _places(each.topics), stable) for each in groups]


def _fetch_entity(body: Any, replies: Sequence[GroupReply], version: int) -> Any:
    cls, module = answer(table.OFFSET_FETCH, version)
    if version < 8:
        (reply,) = replies
        assert isinstance(reply, requests.OffsetsFetched), reply
        topics = _fetched_topics(
            reply,
            body.topics if version < 2 else None,
            module.OffsetFetchResponseTopic,
            module.OffsetFetchResponsePartition,
        )
        return build(cls, throttle_time=NO_DELAY, error_code=CODES[reply.error], topics=topics)
    groups = []
    for asked, reply in zip(body.groups, replies, strict=True):
        assert isinstance(reply, requests.OffsetsFetched), reply
        topics = _fetched_topics(reply, None, module.OffsetFetchResponseTopics, module.OffsetFetchResponsePartitions)
        groups.append(
            module.OffsetFetchResponseGroup(group_id=asked.group_id, topics=topics, error_code=CODES[reply.error])
        )
    return cls(throttle_time=NO_DELAY, groups=tuple(groups))


def _fetched_topics(
    reply: requests.OffsetsFetched, to_blame: Iterable[Any] | None, topic_class: Any, partition_class: Any
) -> tuple[Any, ...]:
    """Gathered by topic. ``to_blame``: the topics that carry the request's error, where the answer
    has no place for it.
    """
    fetched = reply.partitions
    if reply.error and to_blame is not None:
        fetched = tuple(
            requests.FetchedOffset(place.topic, place.partition, error=reply.error) for place in _places(to_blame) or ()
        )
    by_topic: dict[str, list[Any]] = {}
    for each in fetched:
        partition = build(
            partition_class,
            partition_index=each.partition,
            committed_offset=each.offset,
            committed_leader_epoch=each.leader_epoch,
            metadata=each.metadata,
            error_code=CODES[each.error],
        )
        by_topic.setdefault(each.topic, []).append(partition)
    return tuple(topic_class(name=name, partitions=tuple(those)) for name, those in by_topic.items())


def _offset_delete_request(body: Any, version: int, caller: Caller) -> list[Request]:
    places = tuple(
        TopicPartition(topic.name, each.partition_index) for topic in body.topics for each in topic.partitions
    )
    return [requests.OffsetDelete(body.group_id, places)]


def _offset_delete_entity(body: Any, replies: Sequence[GroupReply], version: int) -> Any:
    (reply,) = replies
    assert isinstance(reply, requests.OffsetsDeleted), reply
    cls, module = answer(table.OFFSET_DELETE, version)
    by_topic: dict[str, list[Any]] = {}
    for each in reply.partitions:
        by_topic.setdefault(each.topic, []).append(
            module.OffsetDeleteResponsePartition(partition_index=each.partition, error_code=CODES[each.error])
        )
    topics = tuple(
        module.OffsetDeleteResponseTopic(name=name, partitions=tuple(those)) for name, those in by_topic.items()
    )
    return cls(error_code=CODES[reply.error], throttle_time=NO_DELAY, topics=topics)


# ------------------------------------------------------------------ administration


def _describe_request(body: Any, version: int, caller: Caller) -> list[Request]:
    return [requests.DescribeGroup(group_id) for group_id in body.groups]


def _describe_entity(body: Any, replies: Sequence[GroupReply], version: int) -> Any:
    cls, module = answer(table.DESCRIBE_GROUPS, version)
    operations = ALL_OPERATIONS if getattr(body, "include_authorized_operations", False) else NO_OPERATIONS
    groups = []
    for reply in replies:
        assert isinstance(reply, requests.DescribedGroupState), reply
        is_unknown = version >= 6 and not reply.error and reply.state == "Dead"
        members = tuple(
            build(
                module.DescribedGroupMember,
                member_id=each.member_id,
                group_instance_id=each.group_instance_id,
                client_id=each.client_id,
                client_host=each.client_host,
                member_metadata=each.metadata,
                member_assignment=each.assignment,
            )
            for each in reply.members
        )
        groups.append(
            build(
                module.DescribedGroup,
                error_code=CODES[GROUP_ID_NOT_FOUND if is_unknown else reply.error],
                error_message=f"group {reply.group_id} is not found" if is_unknown else None,
                group_id=reply.group_id,
                group_state=reply.state,
                protocol_type=reply.protocol_type,
                protocol_data=reply.protocol,
                members=members,
                authorized_operations=operations,
            )
        )
    return build(cls, throttle_time=NO_DELAY, groups=tuple(groups))


def _list_request(body: Any, version: int, caller: Caller) -> list[Request]:
    return [requests.ListGroups(tuple(getattr(body, "states_filter", ())), tuple(getattr(body, "types_filter", ())))]


def _list_entity(body: Any, replies: Sequence[GroupReply], version: int) -> Any:
    """Of the answers of all partitions: what there is, and an error if somebody is still loading."""
    cls, module = answer(table.LIST_GROUPS, version)
    error, groups = 0, []
    for reply in replies:
        assert isinstance(reply, requests.GroupsListed), reply
        error = error or reply.error
        groups += [
            build(
                module.ListedGroup,
                group_id=each.group_id,
                protocol_type=each.protocol_type,
                group_state=each.state,
                group_type=each.type,
            )
            for each in reply.groups
        ]
    return build(cls, throttle_time=NO_DELAY, error_code=CODES[error], groups=tuple(groups))


def _delete_request(body: Any, version: int, caller: Caller) -> list[Request]:
    return [requests.DeleteGroup(group_id) for group_id in body.groups_names]


def _delete_entity(body: Any, replies: Sequence[GroupReply], version: int) -> Any:
    cls, module = answer(table.DELETE_GROUPS, version)
    results = []
    for group_id, reply in zip(body.groups_names, replies, strict=True):
        assert isinstance(reply, requests.GroupDeleted), reply
        results.append(module.DeletableGroupResult(group_id=group_id, error_code=CODES[reply.error]))
    return cls(throttle_time=NO_DELAY, results=tuple(results))


APIS = (
    GroupApi(table.OFFSET_COMMIT, _commit_request, _commit_entity),
    GroupApi(table.TXN_OFFSET_COMMIT, _txn_commit_request, _txn_commit_entity),
    GroupApi(table.OFFSET_FETCH, _fetch_request, _fetch_entity),
    GroupApi(table.JOIN_GROUP, _join_request, _join_entity),
    GroupApi(table.HEARTBEAT, _heartbeat_request, _heartbeat_entity),
    GroupApi(table.LEAVE_GROUP, _leave_request, _leave_entity),
    GroupApi(table.SYNC_GROUP, _sync_request, _sync_entity),
    GroupApi(table.DESCRIBE_GROUPS, _describe_request, _describe_entity),
    GroupApi(table.LIST_GROUPS, _list_request, _list_entity),
    GroupApi(table.DELETE_GROUPS, _delete_request, _delete_entity),
    GroupApi(table.OFFSET_DELETE, _offset_delete_request, _offset_delete_entity),
)
