"""The Kafka requests of consumer groups, built from plain values, and their answers read into those
of ``raylog.groups.requests``.

One function per API, each bound to the version that the inside links speak. With ``requests.py``
the only module of the clients that knows kio's class names; they are imported when first used and
taken as untyped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from raylog.client.links.requests import Reply, Request, by_topic
from raylog.client.links.requests import _ms as milliseconds
from raylog.client.links.requests import _schema as schema
from raylog.groups.consumer_protocol import PROTOCOL_TYPE
from raylog.groups.requests import (
    CommittedPartition,
    FetchedOffset,
    JoinedGroup,
    JoinedMember,
    Protocol,
    SyncedGroup,
)
from raylog.types import TopicPartition

# ------------------------------------------------------------------ membership


def join_group(
    group_id: str,
    member_id: str,
    instance_id: str | None,
    protocols: Sequence[Protocol],
    *,
    session_timeout_ms: float,
    rebalance_timeout_ms: float,
) -> Request:
    module = schema("join_group.v9")
    return module.JoinGroupRequest(
        group_id=group_id,
        session_timeout=milliseconds(session_timeout_ms),
        rebalance_timeout=milliseconds(rebalance_timeout_ms),
        member_id=member_id,
        group_instance_id=instance_id,
        protocol_type=PROTOCOL_TYPE,
        protocols=tuple(module.JoinGroupRequestProtocol(name=each.name, metadata=each.metadata) for each in protocols),
        reason=None,
    )


def joined(reply: Reply) -> JoinedGroup:
    return JoinedGroup(
        int(reply.error_code),
        reply.member_id,
        int(reply.generation_id),
        reply.protocol_type,
        reply.protocol_name,
        reply.leader,
        bool(reply.skip_assignment),
        tuple(JoinedMember(each.member_id, each.group_instance_id, bytes(each.metadata)) for each in reply.members),
    )


def sync_group(
    group_id: str,
    member_id: str,
    instance_id: str | None,
    generation: int,
    protocol: str,
    assignments: Iterable[tuple[str, bytes]],
) -> Request:
    module = schema("sync_group.v5")
    return module.SyncGroupRequest(
        group_id=group_id,
        generation_id=generation,
        member_id=member_id,
        group_instance_id=instance_id,
        protocol_type=PROTOCOL_TYPE,
        protocol_name=protocol,
        assignments=tuple(
            module.SyncGroupRequestAssignment(member_id=member, assignment=data) for member, data in assignments
        ),
    )


def synced(reply: Reply) -> SyncedGroup:
    return SyncedGroup(int(reply.error_code), reply.protocol_type, reply.protocol_name, bytes(reply.assignment))


def heartbeat(group_id: str, member_id: str, instance_id: str | None, generation: int) -> Request:
    return schema("heartbeat.v4").HeartbeatRequest(
        group_id=group_id, generation_id=generation, member_id=member_id, group_instance_id=instance_id
    )


def leave_group(group_id: str, members: Iterable[tuple[str, str | None]], reason: str) -> Request:
    module = schema("leave_group.v5")
    return module.LeaveGroupRequest(
        group_id=group_id,
        members=tuple(
            module.MemberIdentity(member_id=member_id, group_instance_id=instance_id, reason=reason)
            for member_id, instance_id in members
        ),
    )


# ------------------------------------------------------------------ offsets


def offset_commit(
    group_id: str,
    offsets: Iterable[CommittedPartition],
    *,
    member_id: str,
    instance_id: str | None,
    generation: int,
) -> Request:
    module = schema("offset_commit.v8")
    return module.OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        group_instance_id=instance_id,
        topics=_committed(offsets, module.OffsetCommitRequestTopic, module.OffsetCommitRequestPartition),
    )


def _committed(offsets: Iterable[CommittedPartition], of_topic: Any, of_partition: Any) -> tuple[Any, ...]:
    """The topics of a commit, made of the schema's classes."""
    topics = by_topic({TopicPartition(each.topic, each.partition): each for each in offsets})
    return tuple(
        of_topic(
            name=topic,
            partitions=tuple(
                of_partition(
                    partition_index=partition,
                    committed_offset=each.offset,
                    committed_leader_epoch=each.leader_epoch,
                    committed_metadata=each.metadata,
                )
                for partition, each in partitions
            ),
        )
        for topic, partitions in topics.items()
    )


def partition_errors(reply: Reply) -> dict[TopicPartition, int]:
    """Of an OffsetCommit or OffsetDelete."""
    return {
        TopicPartition(str(topic.name), int(part.partition_index)): int(part.error_code)
        for topic in reply.topics
        for part in topic.partitions
    }


def txn_offset_commit(
    group_id: str,
    offsets: Iterable[CommittedPartition],
    *,
    member_id: str,
    instance_id: str | None,
    generation: int,
    transactional_id: str,
    producer: tuple[int, int],
    adds_group: bool,
) -> Request:
    """Offsets that count once the producer's transaction is committed: TxnOffsetCommit v5, whose
    coordinator adds the group to the transaction, or v4, before which it has been added.
    """
    module = schema("txn_offset_commit.v5" if adds_group else "txn_offset_commit.v4")
    return module.TxnOffsetCommitRequest(
        transactional_id=transactional_id,
        group_id=group_id,
        producer_id=producer[0],
        producer_epoch=producer[1],
        generation_id=generation,
        member_id=member_id,
        group_instance_id=instance_id,
        topics=_committed(offsets, module.TxnOffsetCommitRequestTopic, module.TxnOffsetCommitRequestPartition),
    )


def offset_fetch(
    group_id: str, partitions: Iterable[TopicPartition] | None, *, require_stable: bool = False
) -> Request:
    """None: all that the group has committed."""
    module = schema("offset_fetch.v7")
    topics = None
    if partitions is not None:
        topics = tuple(
            module.OffsetFetchRequestTopic(name=topic, partition_indexes=tuple(number for number, _ in numbers))
            for topic, numbers in by_topic(dict.fromkeys(partitions)).items()
        )
    return module.OffsetFetchRequest(group_id=group_id, topics=topics, require_stable=require_stable)


def fetched_offsets(reply: Reply) -> dict[TopicPartition, FetchedOffset]:
    return {
        TopicPartition(str(topic.name), int(part.partition_index)): FetchedOffset(
            str(topic.name),
            int(part.partition_index),
            int(part.committed_offset),
            int(part.committed_leader_epoch),
            part.metadata or "",
            int(part.error_code),
        )
        for topic in reply.topics
        for part in topic.partitions
    }


def offset_delete(group_id: str, partitions: Iterable[TopicPartition]) -> Request:
    module = schema("offset_delete.v0")
    return module.OffsetDeleteRequest(
        group_id=group_id,
        topics=tuple(
            module.OffsetDeleteRequestTopic(
                name=topic,
                partitions=tuple(module.OffsetDeleteRequestPartition(partition_index=number) for number, _ in numbers),
            )
            for topic, numbers in by_topic(dict.fromkeys(partitions)).items()
        ),
    )


# ------------------------------------------------------------------ administration


def list_groups(states: Iterable[str]) -> Request:
    return schema("list_groups.v4").ListGroupsRequest(states_filter=tuple(states))


def describe_group(group_id: str) -> Request:
    return schema("describe_groups.v5").DescribeGroupsRequest(groups=(group_id,), include_authorized_operations=False)


def delete_group(group_id: str) -> Request:
    return schema("delete_groups.v2").DeleteGroupsRequest(groups_names=(group_id,))


def committed_values(offsets: Mapping[TopicPartition, Any]) -> tuple[CommittedPartition, ...]:
    """Offsets with their metadata, as a commit carries them. A value has ``offset``, ``metadata``
    and ``leader_epoch``.
    """
    return tuple(
        CommittedPartition(key.topic, key.partition, each.offset, each.leader_epoch, each.metadata)
        for key, each in offsets.items()
    )
