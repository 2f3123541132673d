"""What the log of one partition of ``__consumer_offsets`` says: fold(apply, records), and nothing
that is not replicated.

``apply`` is the only mutator. A follower's image follows its high watermark; a leader's own records
reach it when they are replicated. Members' requests and timers are no part of it: those live with
the leader (``group``) and go with it.

Invariant: a group that is here has a value or an offset.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from raylog.groups.records import GroupRecord, GroupValue, OffsetKey, OffsetValue
from raylog.types import TopicPartition


@dataclass(slots=True)
class StoredGroup:
    value: GroupValue | None = None
    offsets: dict[TopicPartition, OffsetValue] = field(default_factory=dict)


class OffsetsImage:
    __slots__ = ("groups",)

    def __init__(self) -> None:
        self.groups: dict[str, StoredGroup] = {}

    def apply(self, record: GroupRecord) -> None:
        key, value = record.key, record.value
        group = self.groups.get(key.group_id)
        if group is None:
            if value is None:
                return
            group = self.groups[key.group_id] = StoredGroup()
        if isinstance(key, OffsetKey):
            place = TopicPartition(key.topic, key.partition)
            if value is None:
                group.offsets.pop(place, None)
            else:
                assert isinstance(value, OffsetValue), record
                group.offsets[place] = value
        else:
            assert value is None or isinstance(value, GroupValue), record
            group.value = value
        if group.value is None and not group.offsets:
            del self.groups[key.group_id]

    def offsets_of(self, group_id: str) -> dict[TopicPartition, OffsetValue]:
        group = self.groups.get(group_id)
        return group.offsets if group is not None else {}

    def check(self) -> None:
        for group_id, group in self.groups.items():
            assert group.value is not None or group.offsets, f"group {group_id} holds nothing"
