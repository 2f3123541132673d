"""Faults to be patched into the machines of groups, by name, as in ``mutations``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from raylog.actors.coordinated_partitions import CoordinatedPartitions
from raylog.groups.context import CoordinatorContext
from raylog.groups.coordinator import Coordinator, Role
from raylog.groups.events import Elected
from raylog.groups.group import Group
from raylog.groups.offsets import Offsets
from raylog.groups.rebalances import Rebalances
from raylog.groups.records import OffsetKey
from raylog.groups.requests import OffsetCommit

Mutation = Callable[[pytest.MonkeyPatch], None]


def acknowledge_a_commit_before_it_is_replicated(patch: pytest.MonkeyPatch) -> None:
    appended = CoordinatorContext.appended

    def hasty(self: CoordinatorContext, sequence: int, end_offset: int, error: int) -> None:
        appended(self, sequence, end_offset, error)
        for pending in self._pending:
            is_commit = isinstance(pending.records[0].key, OffsetKey)
            if pending.sequence == sequence and is_commit and pending.answered is not None:
                answered, pending.answered = pending.answered, None
                answered(0)

    patch.setattr(CoordinatorContext, "appended", hasty)


def forget_the_leader_epoch_of_a_coordinator(patch: pytest.MonkeyPatch) -> None:
    """Who is deposed does not notice, and when it is elected again it goes on with what it knew."""
    elected = Coordinator._elected

    def forgetful(self: Coordinator, event: Elected) -> None:
        if self.role is Role.LEADING:
            self._context.leader_epoch = event.leader_epoch
        else:
            elected(self, event)

    patch.setattr(Coordinator, "_elected", forgetful)
    patch.setattr(CoordinatedPartitions, "_resign", lambda self, partition: None)


def coordinate_before_the_log_is_read(patch: pytest.MonkeyPatch) -> None:
    elected = Coordinator._elected
    patch.setattr(
        Coordinator, "_elected", lambda self, event: elected(self, Elected(event.leader_epoch, self.position))
    )


def _let_commit(patch: pytest.MonkeyPatch, change: Callable[[Group, OffsetCommit], OffsetCommit]) -> None:
    commit = Offsets.commit

    def committed(self: Offsets, token: int, request: OffsetCommit) -> None:
        group = self._context.groups.get(request.group_id)
        commit(self, token, request if group is None else change(group, request))

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


GROUP_MUTATIONS: dict[str, Mutation] = {
    mutation.__name__: mutation
    for mutation in (
        acknowledge_a_commit_before_it_is_replicated,
        forget_the_leader_epoch_of_a_coordinator,
        coordinate_before_the_log_is_read,
        let_a_fenced_static_member_commit,
        let_members_of_an_old_generation_commit,
        give_every_member_the_same_part,
    )
}
