"""How far a group has come: OffsetCommit, OffsetFetch, OffsetDelete, DeleteGroups, and the expiry
of what nobody needs.

A commit is answered, and seen by a fetch, when it is replicated. One for a topic that is not there
is refused. Commits of one partition reach the image in the order of the log.

*Who may commit*: a member of the current generation, except between the two phases of a rebalance;
and somebody outside of the membership (generation −1: a tool, or a consumer that assigns its own
partitions) while the group has no members.

*Transactions.* Offsets that a producer commits in its transaction are pending until that ends
(``image``). Who may write them: a member of the current generation (KIP-447), or somebody who names
neither; what a rebalance under way makes of the group does not matter. Deletions and expiry leave
them alone, and a group that has some stays.

*Expiry* (Kafka's KIP-211), ``offsets.retention.minutes`` after

- the group became empty, where it has had members;
- the last commit of a partition, where the group is stable and its members do not read the topic (a
  "consumer" group only), or where the group never had members.

An offset that carries an expiry of its own (commits of versions 2–4) goes by that. An empty group
goes with its last offset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kio.schema.errors import ErrorCode

from raylog.coordination.context import Outcome
from raylog.coordination.events import Transactional
from raylog.coordination.machine import Decided
from raylog.groups.consumer_protocol import PROTOCOL_TYPE
from raylog.groups.context import COORDINATOR_NOT_AVAILABLE, REBALANCE_IN_PROGRESS, GroupContext, commit_error
from raylog.groups.group import Group, State
from raylog.groups.rebalances import ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID, Rebalances
from raylog.groups.records import NO_LEADER_EPOCH, NO_TIMESTAMP, GroupKey, GroupRecord, OffsetKey, OffsetValue
from raylog.groups.requests import (
    NO_MEMBER_ID,
    CommittedPartition,
    DeleteGroup,
    FetchedOffset,
    GroupDeleted,
    GroupReply,
    OffsetCommit,
    OffsetDelete,
    OffsetFetch,
    OffsetsCommitted,
    OffsetsDeleted,
    OffsetsFetched,
    PartitionError,
    TxnOffsetCommit,
)
from raylog.types import TopicPartition

EXPIRE = "expire"
UNSTABLE_OFFSET_COMMIT = ErrorCode.unstable_offset_commit.value
UNKNOWN_TOPIC_OR_PARTITION = ErrorCode.unknown_topic_or_partition.value
OFFSET_METADATA_TOO_LARGE = ErrorCode.offset_metadata_too_large.value
GROUP_ID_NOT_FOUND = ErrorCode.group_id_not_found.value
NON_EMPTY_GROUP = ErrorCode.non_empty_group.value
GROUP_SUBSCRIBED_TO_TOPIC = ErrorCode.group_subscribed_to_topic.value


OffsetDecision = Decided[GroupReply, GroupRecord]


class Offsets:
    __slots__ = ("_context", "_rebalances")

    def __init__(self, context: GroupContext, rebalances: Rebalances) -> None:
        self._context = context
        self._rebalances = rebalances

    # -------------------------------------------------------------- commit

    def commit(self, request: OffsetCommit) -> OffsetDecision:
        context = self._context
        group = context.groups.get(request.group_id)
        if group is None:
            error = 0 if request.generation < 0 else ILLEGAL_GENERATION
            if not error:
                group = context.groups[request.group_id] = Group(request.group_id)
        else:
            error = self._judge(group, request)
        if error or group is None:
            return Decided(lambda _: _same_for_all(request.partitions, error))
        if group.is_in(State.STABLE, State.PREPARING_REBALANCE):
            self._rebalances.sessions.heard(group, group.members[request.member_id], request.connection)
        return self._store(request)

    def commit_in_transaction(self, request: TxnOffsetCommit) -> OffsetDecision:
        context = self._context
        group = context.groups.get(request.group_id)
        error = 0
        if group is None:
            error = 0 if request.generation < 0 else ILLEGAL_GENERATION
            if not error:
                context.groups[request.group_id] = Group(request.group_id)
        elif group.is_in(State.DEAD):
            error = COORDINATOR_NOT_AVAILABLE
        elif request.generation >= 0 or request.member_id != NO_MEMBER_ID or request.group_instance_id is not None:
            error = self._rebalances.judge_member(
                group, request.member_id, request.group_instance_id, request.generation
            )
        if error:
            return Decided(lambda _: _same_for_all(request.partitions, error))
        transactional = Transactional(request.producer_id, request.producer_epoch, request.leave)
        return self._store(request, transactional=transactional)

    def _judge(self, group: Group, request: OffsetCommit) -> int:
        if group.is_in(State.DEAD):
            return COORDINATOR_NOT_AVAILABLE
        if request.generation < 0 and group.is_in(State.EMPTY):
            return 0
        if request.generation < 0 and request.member_id == NO_MEMBER_ID and request.group_instance_id is None:
            return UNKNOWN_MEMBER_ID  # only members commit while there are any
        error = self._rebalances.judge_member(group, request.member_id, request.group_instance_id, request.generation)
        if not error and group.is_in(State.COMPLETING_REBALANCE):
            return REBALANCE_IN_PROGRESS
        return error

    def _store(
        self, request: OffsetCommit | TxnOffsetCommit, *, transactional: Transactional | None = None
    ) -> OffsetDecision:
        refusals = [self._refusal(each) for each in request.partitions]
        retention_ms = request.retention_ms if isinstance(request, OffsetCommit) else NO_TIMESTAMP
        records = tuple(
            GroupRecord(OffsetKey(request.group_id, each.topic, each.partition), self._value(each, retention_ms))
            for each, refusal in zip(request.partitions, refusals, strict=True)
            if not refusal
        )

        def reply(error: int) -> OffsetsCommitted:
            common = commit_error(error)
            return OffsetsCommitted(
                tuple(
                    PartitionError(each.topic, each.partition, refusal or common)
                    for each, refusal in zip(request.partitions, refusals, strict=True)
                )
            )

        return Decided(reply, records, transactional=transactional)

    def _refusal(self, partition: CommittedPartition) -> int:
        """The error of a partition whose offset cannot be stored; 0 if it can."""
        topics = self._context.topics
        if topics is not None and partition.topic not in topics:
            return UNKNOWN_TOPIC_OR_PARTITION  # a topic of that name may come one day, and is not what was read
        too_large = len(partition.metadata) > self._context.config.offset_metadata_max_bytes
        return OFFSET_METADATA_TOO_LARGE if too_large else 0

    def _value(self, partition: CommittedPartition, retention_ms: int) -> OffsetValue:
        wall_ms = self._context.wall_ms
        committed = wall_ms if partition.commit_timestamp == NO_TIMESTAMP else partition.commit_timestamp
        expires = NO_TIMESTAMP if retention_ms < 0 else committed + retention_ms
        if expires != NO_TIMESTAMP:  # such a record has no room for a leader epoch, nor for a topic id
            return OffsetValue(partition.offset, NO_LEADER_EPOCH, partition.metadata, committed, expires)
        topics = self._context.topics
        topic_id = topics.get(partition.topic) if topics is not None else None
        return OffsetValue(partition.offset, partition.leader_epoch, partition.metadata, committed, topic_id=topic_id)

    # -------------------------------------------------------------- fetch

    def fetch(self, request: OffsetFetch) -> OffsetDecision:
        """In any state of the group: somebody who is no member of it may keep offsets here."""
        is_void = self._context.is_void
        stored = {
            place: value
            for place, value in self._context.image.offsets_of(request.group_id).items()
            if not is_void(place.topic, value)
        }
        places = sorted(stored) if request.partitions is None else request.partitions
        unstable = self._context.unstable(request.group_id) if request.require_stable else ()
        fetched = []
        for place in places:
            value = stored.get(place)
            if place in unstable:
                fetched.append(FetchedOffset(place.topic, place.partition, error=UNSTABLE_OFFSET_COMMIT))
            elif value is None:
                fetched.append(FetchedOffset(place.topic, place.partition))
            else:
                fetched.append(
                    FetchedOffset(place.topic, place.partition, value.offset, value.leader_epoch, value.metadata)
                )
        return Decided(lambda _: OffsetsFetched(0, tuple(fetched)))

    # -------------------------------------------------------------- deletion

    def delete_offsets(self, request: OffsetDelete) -> OffsetDecision:
        context = self._context
        group = context.groups.get(request.group_id)
        if group is None or group.is_in(State.DEAD):
            return Decided(lambda _: OffsetsDeleted(GROUP_ID_NOT_FOUND))
        if not group.is_in(State.EMPTY) and group.protocol_type != PROTOCOL_TYPE:
            return Decided(lambda _: OffsetsDeleted(NON_EMPTY_GROUP))
        is_read = [not group.is_in(State.EMPTY) and group.reads(place.topic) for place in request.partitions]
        known = set(context.offsets_known(request.group_id))
        records = tuple(
            _tombstone(request.group_id, place)
            for place, refused in zip(request.partitions, is_read, strict=True)
            if place in known and not refused
        )

        def reply(error: int) -> OffsetsDeleted:
            common = commit_error(error)
            return OffsetsDeleted(
                0,
                tuple(
                    PartitionError(place.topic, place.partition, GROUP_SUBSCRIBED_TO_TOPIC if refused else common)
                    for place, refused in zip(request.partitions, is_read, strict=True)
                ),
            )

        return Decided(reply, records)

    def delete_group(self, request: DeleteGroup) -> OffsetDecision:
        context = self._context
        group = context.groups.get(request.group_id)
        if group is None or group.is_in(State.DEAD):
            return Decided(lambda _: GroupDeleted(GROUP_ID_NOT_FOUND))
        if not group.is_in(State.EMPTY):
            return Decided(lambda _: GroupDeleted(NON_EMPTY_GROUP))
        records, settled = self._bury(group, context.offsets_known(request.group_id))
        return Decided(lambda error: GroupDeleted(commit_error(error)), records, settled)

    def _bury(self, group: Group, places: Iterable[TopicPartition]) -> tuple[tuple[GroupRecord, ...], Outcome]:
        """The records that delete an empty group with all that it has, and what to do when their
        fate is known.

        Until they are replicated the group is dead; if they never are it is empty again.
        """
        context = self._context
        group_id = group.group_id
        for member_id in list(group.pending):
            self._rebalances.forget_pending(group, member_id)
        buried = group.value({})
        group.enter(State.DEAD, context.wall_ms)
        stored = context.image.groups.get(group_id)
        records = [_tombstone(group_id, place) for place in places]
        if group.generation > 0 or (stored is not None and stored.value is not None):
            records.append(GroupRecord(GroupKey(group_id), None))

        def settled(error: int) -> None:
            if context.groups.get(group_id) is not group:
                return
            del context.groups[group_id]
            if error:
                context.groups[group_id] = Group.restored(group_id, buried)
            elif group_id in context.image.groups:  # a transaction that is open has offsets of it
                context.groups[group_id] = Group(group_id)

        return tuple(records), settled

    def topic_gone(self, topic: str) -> None:
        """A topic was deleted: so is every group's progress there."""
        for group_id in sorted(self._context.groups):
            places = [place for place in self._context.offsets_known(group_id) if place.topic == topic]
            if places:
                self._context.write(tuple(_tombstone(group_id, place) for place in places))

    def drop_void(self) -> None:
        """Delete the offsets of topics that are not there any more. What cannot be deleted now is
        tried again by ``expire``.
        """
        for group_id, places in self._context.void_offsets().items():
            self._context.write(tuple(_tombstone(group_id, place) for place in places))

    # -------------------------------------------------------------- expiry

    def expire(self) -> None:
        context = self._context
        self.drop_void()
        for group_id, group in sorted(context.groups.items()):
            if group.is_in(State.DEAD):
                continue
            expired = self._expired(group)
            known = context.offsets_known(group_id)
            stays = group.pending or context.unstable(group_id)
            if group.is_in(State.EMPTY) and not stays and len(expired) == len(known):
                records, settled = self._bury(group, expired)
                if records:
                    context.write(records, settled=settled)
                else:
                    settled(0)
            elif expired:
                context.write(tuple(_tombstone(group_id, place) for place in expired))

    def _expired(self, group: Group) -> list[TopicPartition]:
        context = self._context
        since = group.current_state_timestamp
        if group.protocol_type is None:
            since = NO_TIMESTAMP
            may_expire: Callable[[str], bool] = _any_topic
        elif group.is_in(State.EMPTY):
            may_expire = _any_topic
        elif group.protocol_type == PROTOCOL_TYPE and group.is_in(State.STABLE) and group.subscribed_topics is not None:
            since = NO_TIMESTAMP
            may_expire = lambda topic: not group.reads(topic)  # noqa: E731
        else:
            return []
        expired = []
        unstable = context.unstable(group.group_id)
        for place, value in context.image.offsets_of(group.group_id).items():
            is_pending = place in unstable or context.has_pending_offset(group.group_id, place)
            if not may_expire(place.topic) or is_pending:
                continue
            if value.expire_timestamp != NO_TIMESTAMP:
                is_over = context.wall_ms >= value.expire_timestamp
            else:
                base = value.commit_timestamp if since == NO_TIMESTAMP else since
                is_over = context.wall_ms - base >= context.config.offsets_retention_ms
            if is_over:
                expired.append(place)
        return sorted(expired)


def _any_topic(topic: str) -> bool:
    return True


def _tombstone(group_id: str, place: TopicPartition) -> GroupRecord:
    return GroupRecord(OffsetKey(group_id, place.topic, place.partition), None)


def _same_for_all(partitions: Iterable[CommittedPartition], error: int) -> OffsetsCommitted:
    return OffsetsCommitted(tuple(PartitionError(each.topic, each.partition, error) for each in partitions))
