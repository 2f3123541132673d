"""What the log of one partition of ``__consumer_offsets`` says: fold(apply, records), and nothing
that is not replicated.

``apply`` and its two siblings for transactions are the only mutators. A follower's image follows
its high watermark; a leader's own records reach it when they are replicated. Members' requests and
timers are no part of it: those live with the leader (``group``) and go with it.

Offsets of an open transaction are *pending*. Its commit makes them count, unless a commit that
stands behind them in the log counts already; its abort drops them. Tombstones leave them alone.

Invariants: a group that is here has a value, an offset or a pending one; ``_groups_of`` names the
groups where a producer has pending offsets.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from raylog.groups.records import GroupRecord, GroupValue, OffsetKey, OffsetValue
from raylog.types import TopicPartition


class PendingOffset(NamedTuple):
    """``value`` None: a later commit has overtaken it. ``number``: its place in the log, among those
    of this image.
    """

    value: OffsetValue | None
    number: int


@dataclass(slots=True)
class StoredGroup:
    """``pending``: by producer id."""

    value: GroupValue | None = None
    offsets: dict[TopicPartition, OffsetValue] = field(default_factory=dict)
    pending: dict[int, dict[TopicPartition, PendingOffset]] = field(default_factory=dict)

    def overtake(self, place: TopicPartition, number: int) -> None:
        """A commit that stands there in the log counts: pending ones in front of it never will."""
        for offsets in self.pending.values():
            found = offsets.get(place)
            if found is not None and found.number < number:
                offsets[place] = PendingOffset(None, found.number)

    @property
    def is_empty(self) -> bool:
        return self.value is None and not self.offsets and not self.pending


class OffsetsImage:
    __slots__ = ("_groups_of", "_last_number", "groups")

    def __init__(self) -> None:
        self.groups: dict[str, StoredGroup] = {}
        self._groups_of: dict[int, dict[str, None]] = {}  # by producer id
        self._last_number = 0

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
                group.overtake(place, self._last_number + 1)
        else:
            assert value is None or isinstance(value, GroupValue), record
            group.value = value
        if group.is_empty:
            del self.groups[key.group_id]

    def apply_in_transaction(self, producer_id: int, record: GroupRecord) -> None:
        """An offset that counts if the producer's transaction is committed. Nothing else is written in
        transactions.
        """
        key, value = record.key, record.value
        if not isinstance(key, OffsetKey) or not isinstance(value, OffsetValue):
            return
        self._last_number += 1
        group = self.groups.setdefault(key.group_id, StoredGroup())
        place = TopicPartition(key.topic, key.partition)
        group.pending.setdefault(producer_id, {})[place] = PendingOffset(value, self._last_number)
        self._groups_of.setdefault(producer_id, {})[key.group_id] = None

    def transaction_ended(self, producer_id: int, *, is_committed: bool) -> None:
        for group_id in self._groups_of.pop(producer_id, ()):
            group = self.groups[group_id]
            for place, pending in group.pending.pop(producer_id).items():
                if is_committed and pending.value is not None:
                    group.offsets[place] = pending.value
                    group.overtake(place, pending.number)
            if group.is_empty:
                del self.groups[group_id]

    def offsets_of(self, group_id: str) -> dict[TopicPartition, OffsetValue]:
        group = self.groups.get(group_id)
        return group.offsets if group is not None else {}

    def pending_of(self, group_id: str) -> set[TopicPartition]:
        """The partitions for which open transactions have offsets."""
        group = self.groups.get(group_id)
        return {place for offsets in group.pending.values() for place in offsets} if group is not None else set()

    def check(self) -> None:
        groups_of: dict[int, set[str]] = {}
        for group_id, group in self.groups.items():
            assert not group.is_empty, f"group {group_id} holds nothing"
            for producer_id, offsets in group.pending.items():
                assert offsets, f"group {group_id}: nothing is pending of producer {producer_id}"
                groups_of.setdefault(producer_id, set()).add(group_id)
        assert groups_of == {producer: set(groups) for producer, groups in self._groups_of.items()}, self._groups_of
