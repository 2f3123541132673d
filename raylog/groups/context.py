"""What the parts of one coordinator share: its settings, the moment, its groups, its log, its timers and its orders.

``CoordinatorContext`` exists once per ``Coordinator``. ``now_ms`` and ``wall_ms`` are those of the event that is being handled.

``append`` gives out records for the log. Whoever appends says what shall happen when: ``answered(error)`` is called exactly once, when
the records are replicated (0), when they are not and never will be, or when ``offsets.commit.timeout.ms`` has passed (they may still be);
``settled(error)`` exactly once when their fate is known, before ``answered`` if both fall together. Replicated records are applied to the
image before either. Errors are those of the log; ``commit_error`` and ``group_error`` say what a client is told of them.

Invariants: what is pending is in log order; its appends' ends grow.
"""

from __future__ import annotations

import uuid
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace

from kio.schema.errors import ErrorCode

from raylog.groups.events import Append, Effect, Reply
from raylog.groups.group import Group
from raylog.groups.image import OffsetsImage
from raylog.groups.records import GroupRecord, OffsetKey, OffsetValue
from raylog.groups.requests import GroupReply
from raylog.timers import Timers
from raylog.types import TopicPartition

COMMIT = "commit"
Outcome = Callable[[int], None]

NOT_COORDINATOR = ErrorCode.not_coordinator.value
COORDINATOR_NOT_AVAILABLE = ErrorCode.coordinator_not_available.value
REBALANCE_IN_PROGRESS = ErrorCode.rebalance_in_progress.value
REQUEST_TIMED_OUT = ErrorCode.request_timed_out.value
NOT_LEADER_OR_FOLLOWER = ErrorCode.not_leader_or_follower.value

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
    """What a client is told whose offsets could not be stored for ``error`` of the log."""
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
    """Kafka's broker settings for groups, under their names (``.`` becomes ``_``), and three of ours."""

    group_min_session_timeout_ms: int = 6_000
    group_max_session_timeout_ms: int = 1_800_000
    group_max_size: int = (1 << 31) - 1
    group_initial_rebalance_delay_ms: int = 3_000
    offset_metadata_max_bytes: int = 4_096
    offsets_retention_minutes: int = 10_080
    offsets_retention_check_interval_ms: int = 600_000
    offsets_commit_timeout_ms: int = 5_000
    new_member_join_timeout_ms: int = (
        300_000  # how long a newcomer waits for its first join phase to end (Kafka's constant)
    )
    native_return_ms: int = 500  # how long a native member may be away after its connection ended
    native_heartbeat_park_ms: int = 30_000  # the longest that a native member's heartbeat is parked

    def with_configs(self, configs: Mapping[str, str]) -> GroupConfig:
        """These settings, but for those that are named there as Kafka names them."""
        names = {field.name: field.name.replace("_", ".") for field in fields(self)}
        return replace(self, **{field: int(configs[name]) for field, name in names.items() if name in configs})

    @property
    def offsets_retention_ms(self) -> int:
        return self.offsets_retention_minutes * 60_000


class _Pending:
    __slots__ = ("answered", "end_offset", "records", "sequence", "settled")

    def __init__(self, sequence: int, records: tuple[GroupRecord, ...], answered: Outcome, settled: Outcome) -> None:
        self.sequence = sequence
        self.records = records
        self.answered: Outcome | None = answered
        self.settled = settled
        self.end_offset = -1


def ignore(error: int) -> None:
    """For outcomes that change nothing."""


class CoordinatorContext:
    """``position``: everything below it is in the image. ``pending_offsets`` counts the appends under way that touch an offset."""

    __slots__ = (
        "_high_watermark",
        "_last_sequence",
        "_pending",
        "config",
        "effects",
        "groups",
        "image",
        "leader_epoch",
        "now_ms",
        "pending_offsets",
        "position",
        "timers",
        "topics",
        "wall_ms",
    )

    def __init__(self, config: GroupConfig, position: int) -> None:
        self.config = config
        self.image = OffsetsImage()
        self.groups: dict[str, Group] = {}
        self.timers = Timers()
        self.effects: list[Effect] = []
        self.now_ms = 0
        self.wall_ms = 0
        self.leader_epoch = -1
        self.topics: Mapping[str, uuid.UUID] | None = None  # that there are; None: nobody has said it
        self.position = position
        self.pending_offsets: Counter[tuple[str, TopicPartition]] = Counter()
        self._pending: deque[_Pending] = deque()
        self._last_sequence = 0
        self._high_watermark = position

    def reply(self, token: int, reply: GroupReply) -> None:
        self.effects.append(Reply(token, reply))

    # -------------------------------------------------------------- the log

    def append(
        self, records: tuple[GroupRecord, ...], answered: Outcome = ignore, *, settled: Outcome = ignore
    ) -> None:
        """Put records into the log, as one batch."""
        assert records
        self._last_sequence += 1
        pending = _Pending(self._last_sequence, records, answered, settled)
        self._pending.append(pending)
        self._count(records, 1)
        self.timers.set((COMMIT, pending.sequence), self.now_ms + self.config.offsets_commit_timeout_ms)
        self.effects.append(Append(pending.sequence, self.leader_epoch, records))

    def appended(self, sequence: int, end_offset: int, error: int) -> None:
        """What became of an append; an answer to one that was given up is dropped."""
        pending = next((each for each in self._pending if each.sequence == sequence), None)
        if pending is None:
            return
        if error:
            self._pending.remove(pending)
            self._settle(pending, error)
            return
        pending.end_offset = end_offset
        self._complete()

    def high_watermark_rose(self, offset: int) -> None:
        if offset > self._high_watermark:
            self._high_watermark = offset
            self._complete()

    def _complete(self) -> None:
        while self._pending and 0 <= self._pending[0].end_offset <= self._high_watermark:
            pending = self._pending.popleft()
            for record in pending.records:
                self.image.apply(record)
            self.position = pending.end_offset
            self._settle(pending, 0)

    def commit_timed_out(self, sequence: int) -> None:
        for pending in self._pending:
            if pending.sequence == sequence and pending.answered is not None:
                answered, pending.answered = pending.answered, None
                answered(REQUEST_TIMED_OUT)
                return

    def give_up(self) -> None:
        """The leadership is lost: what is pending may be replicated one day or never; nobody here will know."""
        while self._pending:
            self._settle(self._pending.popleft(), NOT_LEADER_OR_FOLLOWER)

    def _settle(self, pending: _Pending, error: int) -> None:
        self.timers.cancel((COMMIT, pending.sequence))
        self._count(pending.records, -1)
        pending.settled(error)
        if pending.answered is not None:
            pending.answered(error)

    def _count(self, records: tuple[GroupRecord, ...], step: int) -> None:
        for record in records:
            if isinstance(record.key, OffsetKey):
                place = (record.key.group_id, TopicPartition(record.key.topic, record.key.partition))
                self.pending_offsets[place] += step
                if not self.pending_offsets[place]:
                    del self.pending_offsets[place]

    def offsets_known(self, group_id: str) -> list[TopicPartition]:
        """The partitions with an offset of that group, replicated or on its way, in order."""
        places = set(self.image.offsets_of(group_id))
        places.update(place for group, place in self.pending_offsets if group == group_id)
        return sorted(places)

    def is_void(self, topic: str, value: OffsetValue) -> bool:
        """Whether the offset was committed for a topic that is not there any more; another one may have its name."""
        if self.topics is None or value.topic_id is None:
            return False
        return self.topics.get(topic) != value.topic_id

    def void_offsets(self) -> dict[str, list[TopicPartition]]:
        """By group, the offsets of topics that are not there any more, replicated or on their way."""
        last: dict[tuple[str, TopicPartition], OffsetValue | None] = {}
        for group_id, group in self.image.groups.items():
            last.update(((group_id, place), value) for place, value in group.offsets.items())
        for pending in self._pending:
            for record in pending.records:
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
        self.image.check()
        self.timers.check()
        sequences = [pending.sequence for pending in self._pending]
        assert sequences == sorted(sequences), f"{sequences}"
        ends = [pending.end_offset for pending in self._pending if pending.end_offset >= 0]
        assert ends == sorted(ends) and all(end > self.position for end in ends), f"{ends} from {self.position}"
        for pending in self._pending:
            if pending.answered is not None:
                assert (COMMIT, pending.sequence) in self.timers, f"append {pending.sequence} could wait for ever"
