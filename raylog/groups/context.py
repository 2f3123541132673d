"""What the parts of one partition's group coordinator share: its settings, what is stored, and the
groups of a leader.

Errors of a write are those of the log; ``commit_error`` and ``group_error`` say which error a
client receives for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kio.schema.errors import ErrorCode

from raylog.configs.settings import setting, with_configs
from raylog.coordination.context import NOT_LEADER_OR_FOLLOWER, REQUEST_TIMED_OUT, CoordinatorContext
from raylog.groups.group import Group
from raylog.groups.image import OffsetsImage
from raylog.groups.records import GroupRecord, OffsetKey, OffsetValue
from raylog.groups.requests import GroupReply
from raylog.types import TopicPartition

NOT_COORDINATOR = ErrorCode.not_coordinator.value
COORDINATOR_NOT_AVAILABLE = ErrorCode.coordinator_not_available.value
REBALANCE_IN_PROGRESS = ErrorCode.rebalance_in_progress.value

_NOT_NOW = frozenset(
    (
        ErrorCode.unknown_topic_or_partition.value,
        ErrorCode.not_enough_replicas.value,
        ErrorCode.not_enough_replicas_after_append.value,
    )
)
_NOT_HERE = frozenset((NOT_LEADER_OR_FOLLOWER, ErrorCode.kafka_storage_error.value))
_TOO_LARGE = frozenset((ErrorCode.message_too_large.value, ErrorCode.record_list_too_large.value))


def commit_error(error: int) -> int:
    """The error that a client receives whose offsets could not be stored for ``error`` of the log."""
    if error in _TOO_LARGE:
        return ErrorCode.invalid_commit_offset_size.value
    return _common_error(error)


def group_error(error: int) -> int:
    """The same for a group's state."""
    if error == REQUEST_TIMED_OUT:
        return REBALANCE_IN_PROGRESS
    if error in _TOO_LARGE:
        return ErrorCode.unknown_server_error.value
    return _common_error(error)


def _common_error(error: int) -> int:
    if error in _NOT_NOW:
        return COORDINATOR_NOT_AVAILABLE
    return NOT_COORDINATOR if error in _NOT_HERE else error


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """The configs of brokers that are of groups, under their names (``.`` becomes ``_``)."""

    group_min_session_timeout_ms: int = setting("group.min.session.timeout.ms")
    group_max_session_timeout_ms: int = setting("group.max.session.timeout.ms")
    group_max_size: int = setting("group.max.size")
    group_initial_rebalance_delay_ms: int = setting("group.initial.rebalance.delay.ms")
    group_new_member_join_timeout_ms: int = setting("group.new.member.join.timeout.ms")
    group_native_return_ms: int = setting("group.native.return.ms")
    offset_metadata_max_bytes: int = setting("offset.metadata.max.bytes")
    offsets_retention_minutes: int = setting("offsets.retention.minutes")
    offsets_retention_check_interval_ms: int = setting("offsets.retention.check.interval.ms")
    offsets_commit_timeout_ms: int = setting("offsets.commit.timeout.ms")

    @property
    def offsets_retention_ms(self) -> int:
        return self.offsets_retention_minutes * 60_000


class GroupCounts:
    """What the coordinators of one process have counted since it began, for whoever asks
    (``raylog.metrics``).
    """

    __slots__ = ("completed_rebalances", "rebalances")

    def __init__(self) -> None:
        self.rebalances = 0  # begun
        self.completed_rebalances = 0


class GroupSettings:
    """The settings that all partitions' coordinators of one process go by, and what they count. They
    can change while groups exist.
    """

    __slots__ = ("_base", "config", "counts")

    def __init__(self, config: GroupConfig) -> None:
        self._base = self.config = config
        self.counts = GroupCounts()

    def configure(self, configs: Mapping[str, str]) -> None:
        self.config = with_configs(self._base, configs)


class GroupContext(CoordinatorContext[GroupReply, GroupRecord]):
    """``image`` is what the log says; ``groups`` are those of a leader, with members and requests
    that wait.
    """

    __slots__ = ("_settings", "groups", "image")

    def __init__(self, settings: GroupSettings, position: int) -> None:
        super().__init__(position)
        self._settings = settings
        self.image = OffsetsImage()
        self.groups: dict[str, Group] = {}

    @property
    def config(self) -> GroupConfig:
        return self._settings.config

    @property
    def counts(self) -> GroupCounts:
        return self._settings.counts

    @property
    def write_timeout_ms(self) -> int:
        return self.config.offsets_commit_timeout_ms

    def has_pending_offset(self, group_id: str, place: TopicPartition) -> bool:
        """Whether a write under way touches that offset."""
        return self.is_pending(OffsetKey(group_id, *place))

    def unstable(self, group_id: str) -> set[TopicPartition]:
        """The partitions whose offsets an open transaction may replace, as far as it is written."""
        on_their_way = {
            TopicPartition(record.key.topic, record.key.partition)
            for record in self.pending_in_transactions()
            if isinstance(record.key, OffsetKey) and record.key.group_id == group_id
        }
        return self.image.pending_of(group_id) | on_their_way

    def offsets_known(self, group_id: str) -> list[TopicPartition]:
        """The partitions with an offset of that group, replicated or on its way, in order."""
        places = set(self.image.offsets_of(group_id))
        for key in self.pending_keys():
            if isinstance(key, OffsetKey) and key.group_id == group_id:
                places.add(TopicPartition(key.topic, key.partition))
        return sorted(places)

    def is_void(self, topic: str, value: OffsetValue) -> bool:
        """Whether the offset was committed for a topic that no longer exists; another one may have
        its name.
        """
        if self.topics is None or value.topic_id is None:
            return False
        return self.topics.get(topic) != value.topic_id

    def void_offsets(self) -> dict[str, list[TopicPartition]]:
        """By group, the offsets of topics that no longer exist, replicated or on their way."""
        last: dict[tuple[str, TopicPartition], OffsetValue | None] = {}
        for group_id, group in self.image.groups.items():
            last.update(((group_id, place), value) for place, value in group.offsets.items())
        for record in self.pending_records():
            if isinstance(record.key, OffsetKey):
                assert record.value is None or isinstance(record.value, OffsetValue), record
                key = record.key
                last[key.group_id, TopicPartition(key.topic, key.partition)] = record.value
        found: dict[str, list[TopicPartition]] = {}
        for (group_id, place), value in sorted(last.items(), key=lambda item: item[0]):
            if value is not None and self.is_void(place.topic, value):
                found.setdefault(group_id, []).append(place)
        return found

    def check(self) -> None:
        super().check()
        self.image.check()
