"""Faults to be patched into how topics are created and how requests wait for their first leaders, by name, as in ``mutations``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from raylog.metadata.partitions.creation_waits import CreationWaits
from raylog.replication.awaited import Awaited, Waiter
from raylog.replication.parked import ParkedProduce
from raylog.types import TopicIdPartition


def answer_a_creation_at_its_commit(patch: pytest.MonkeyPatch) -> None:
    """As if its partitions had leaders by then."""
    patch.setattr(CreationWaits, "_is_settled", lambda self, id: True)


def acknowledge_late_records_before_they_are_committed(patch: pytest.MonkeyPatch) -> None:
    """What waited for a leader does not wait for its followers, too."""
    patch.setattr(ParkedProduce, "wait_for", _only_those_in_time(ParkedProduce.wait_for))


def _only_those_in_time(wait_for: Callable[..., None]) -> Callable[..., None]:
    def waits(self: ParkedProduce, index: int, replica: Any, required_end: int) -> None:
        if not any(late.index == index for late in self.late):
            wait_for(self, index, replica, required_end)

    return waits


def let_late_records_overtake_each_other(patch: pytest.MonkeyPatch) -> None:
    """Who came last is served first."""
    changed = Awaited.changed

    def backwards(self: Awaited, ids: Iterable[TopicIdPartition], now_ms: int, wall_ms: int) -> None:
        ids = list(ids)
        for id in ids:
            if id in self._waiting:
                self._waiting[id] = dict(reversed(self._waiting[id].items()))
        changed(self, ids, now_ms, wall_ms)

    patch.setattr(Awaited, "changed", backwards)


def wait_for_a_leader_without_end(patch: pytest.MonkeyPatch) -> None:
    """A request that waits for a leader forgets its own timeout."""
    wait = Awaited.wait

    def endless(self: Awaited, waiter: Waiter, wait_ms: int, now_ms: int) -> None:
        wait(self, waiter, 1_000_000, now_ms)

    patch.setattr(Awaited, "wait", endless)


CREATION_MUTATIONS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    mutation.__name__: mutation
    for mutation in (
        answer_a_creation_at_its_commit,
        acknowledge_late_records_before_they_are_committed,
        let_late_records_overtake_each_other,
        wait_for_a_leader_without_end,
    )
}
