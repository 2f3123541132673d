"""Faults to be patched into the machines of groups, by name, as in ``mutations``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from raylog.coordination.context import CoordinatorContext
from raylog.coordination.coordinator import CoordinatorRole, PartitionCoordinator
from raylog.coordination.events import Elected
from raylog.coordination.machine import Decided
from raylog.coordination.runtime import CoordinatorRuntime
from raylog.groups.context import REBALANCE_IN_PROGRESS, GroupContext
from raylog.groups.group import Group
from raylog.groups.offsets import Offsets
from raylog.groups.rebalances import Rebalances
from raylog.groups.records import OffsetKey
from raylog.groups.requests import OffsetCommit
from raylog.types import TopicPartition

Mutation = Callable[[pytest.MonkeyPatch], None]


def acknowledge_a_commit_before_it_is_replicated(patch: pytest.MonkeyPatch) -> None:
    appended = CoordinatorContext.appended

    def hasty(self: CoordinatorContext[Any, Any], sequence: int, end_offset: int, error: int) -> None:
        appended(self, sequence, end_offset, error)
        for pending in self._pending:
            is_commit = isinstance(pending.records[0].key, OffsetKey)
            if pending.sequence == sequence and is_commit and pending.answered is not None:
                answered, pending.answered = pending.answered, None
                answered(0)

    patch.setattr(CoordinatorContext, "appended", hasty)


def forget_the_leader_epoch_of_a_coordinator(patch: pytest.MonkeyPatch) -> None:
    """Who is deposed does not notice, and when it is elected again it goes on with what it knew."""
    elected = PartitionCoordinator._elected

    def forgetful(self: PartitionCoordinator[Any, Any, Any], event: Elected) -> None:
        if self.role is CoordinatorRole.LEADING:
            self._context.leader_epoch = event.leader_epoch
        else:
            elected(self, event)

    patch.setattr(PartitionCoordinator, "_elected", forgetful)
    patch.setattr(CoordinatorRuntime, "_resign", lambda self, partition: None)


def coordinate_before_the_log_is_read(patch: pytest.MonkeyPatch) -> None:
    elected = PartitionCoordinator._elected
    patch.setattr(
        PartitionCoordinator, "_elected", lambda self, event: elected(self, Elected(event.leader_epoch, self.position))
    )


def _let_commit(patch: pytest.MonkeyPatch, change: Callable[[Group, OffsetCommit], OffsetCommit]) -> None:
    commit = Offsets.commit

    def committed(self: Offsets, request: OffsetCommit) -> Decided[Any, Any]:
        group = self._context.groups.get(request.group_id)
        return commit(self, request if group is None else change(group, request))

    patch.setattr(Offsets, "commit", committed)


def let_a_fenced_static_member_commit(patch: pytest.MonkeyPatch) -> None:
    def unfenced(group: Group, request: OffsetCommit) -> OffsetCommit:
        current = group.static_members.get(request.group_instance_id or "")
        return request if current is None else replace(request, member_id=current)

    _let_commit(patch, unfenced)


def let_members_of_an_old_generation_commit(patch: pytest.MonkeyPatch) -> None:
    def unfenced(group: Group, request: OffsetCommit) -> OffsetCommit:
        return replace(request, generation=group.generation) if request.generation >= 0 else request

    _let_commit(patch, unfenced)


def give_every_member_the_same_part(patch: pytest.MonkeyPatch) -> None:
    store = Rebalances._store_assignments

    def stored(self: Rebalances, group: Group, given: dict[str, bytes]) -> None:
        store(self, group, dict.fromkeys(given, max(given.values(), key=len, default=b"")))

    patch.setattr(Rebalances, "_store_assignments", stored)


def keep_the_offsets_of_topics_that_were_deleted_unheard(patch: pytest.MonkeyPatch) -> None:
    """Who leads when a topic is deleted drops its offsets; nobody looks for what was missed."""
    patch.setattr(GroupContext, "is_void", lambda self, topic, value: False)


def keep_a_machine_over_a_cut(patch: pytest.MonkeyPatch) -> None:
    """Its log was cut below what it has read: it goes on from there, and keeps what is in nobody's log any more."""
    began, moved = CoordinatorRuntime._began, CoordinatorRuntime._moved

    def cut(partition: Any, end: int) -> None:
        if partition.coordinator is not None:
            context = partition.coordinator.machine.context
            context.position = min(context.position, end)

    def beginning(self: CoordinatorRuntime[Any, Any, Any], partition: Any, leader_epoch: int, start: int) -> None:
        cut(partition, start)
        began(self, partition, leader_epoch, start)

    def moving(self: CoordinatorRuntime[Any, Any, Any], partition: Any, high_watermark: int) -> None:
        if partition.leader_epoch < 0:
            cut(partition, high_watermark)
        moved(self, partition, high_watermark)

    patch.setattr(CoordinatorRuntime, "_began", beginning)
    patch.setattr(CoordinatorRuntime, "_moved", moving)


def let_members_commit_during_a_rebalance(patch: pytest.MonkeyPatch) -> None:
    """In the generation that has just begun, whose plan nobody has yet."""
    judge = Offsets._judge

    def lenient(self: Offsets, group: Group, request: OffsetCommit) -> int:
        error = judge(self, group, request)
        return 0 if error == REBALANCE_IN_PROGRESS else error

    patch.setattr(Offsets, "_judge", lenient)


def expire_live_offsets(patch: pytest.MonkeyPatch) -> None:
    """By the age of the commit alone, though a member reads the partition."""

    def expired(self: Offsets, group: Group) -> list[TopicPartition]:
        context = self._context
        stored = context.image.offsets_of(group.group_id).items()
        old = context.wall_ms - context.config.offsets_retention_ms
        return sorted(place for place, value in stored if value.commit_timestamp <= old)

    patch.setattr(Offsets, "_expired", expired)


def acknowledge_a_deletion_of_offsets_before_it_is_replicated(patch: pytest.MonkeyPatch) -> None:
    appended = CoordinatorContext.appended

    def hasty(self: CoordinatorContext[Any, Any], sequence: int, end_offset: int, error: int) -> None:
        appended(self, sequence, end_offset, error)
        for pending in self._pending:
            record = pending.records[0]
            is_deletion = isinstance(record.key, OffsetKey) and record.value is None
            if pending.sequence == sequence and is_deletion and pending.answered is not None:
                answered, pending.answered = pending.answered, None
                answered(0)

    patch.setattr(CoordinatorContext, "appended", hasty)


def delete_a_group_and_keep_its_offsets(patch: pytest.MonkeyPatch) -> None:
    bury = Offsets._bury
    patch.setattr(Offsets, "_bury", lambda self, group, places: bury(self, group, ()))


GROUP_MUTATIONS: dict[str, Mutation] = {
    mutation.__name__: mutation
    for mutation in (
        acknowledge_a_commit_before_it_is_replicated,
        forget_the_leader_epoch_of_a_coordinator,
        coordinate_before_the_log_is_read,
        let_a_fenced_static_member_commit,
        let_members_of_an_old_generation_commit,
        give_every_member_the_same_part,
        keep_the_offsets_of_topics_that_were_deleted_unheard,
        keep_a_machine_over_a_cut,
        let_members_commit_during_a_rebalance,
        expire_live_offsets,
        acknowledge_a_deletion_of_offsets_before_it_is_replicated,
        delete_a_group_and_keep_its_offsets,
    )
}
