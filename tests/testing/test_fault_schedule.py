"""The soak's schedule: whatever the dice say and however long faults last, each kind comes as often as it must."""

from __future__ import annotations

import random

import pytest
from fault_schedule import FaultSchedule

KINDS = [*(f"kill {number}" for number in range(5)), *(f"stop {number}" for number in range(4))]
KINDS += [f"machine {number}" for number in range(7)]
GROUPS = {kind: kind.split()[0] for kind in KINDS if not kind.startswith("kill")}
LASTS_S = {"kill": (1, 14), "stop": (1, 14), "machine": (1, 18)}


def played(seed: int, seconds: float = 600.0, every_s: float = 5.0) -> tuple[FaultSchedule, list[str]]:
    """A soak without a cluster: the order in which the faults came."""
    dice = random.Random(seed)
    schedule = FaultSchedule(KINDS, GROUPS, least=5, dice=dice)
    ends: dict[str, float] = {}
    order: list[str] = []
    now_s = 0.0
    while now_s < seconds:
        lasting = {kind for kind, end in ends.items() if end > now_s}
        kind = schedule.next(now_s / seconds, lasting)
        if kind is not None:
            assert GROUPS.get(kind, kind) not in {GROUPS.get(each, each) for each in lasting}
            order.append(kind)
            ends[kind] = now_s + dice.uniform(*LASTS_S[kind.split()[0]])
        now_s += every_s
    return schedule, order


@pytest.mark.parametrize("seed", range(50))
def test_each_kind_comes_at_least_five_times_in_ten_minutes(seed: int) -> None:
    schedule, order = played(seed)
    assert min(schedule.counts.values()) >= 5, schedule.counts
    assert len(order) == 120, "a fault every five seconds"


def test_the_order_is_drawn() -> None:
    assert len({tuple(played(seed)[1][:8]) for seed in range(10)}) == 10


def test_nothing_is_struck_while_a_fault_of_every_group_lasts() -> None:
    schedule = FaultSchedule(["one", "other"], {"one": "machine", "other": "machine"}, least=5, dice=random.Random(1))
    assert schedule.next(0.5, {"one"}) is None
    assert schedule.next(0.5, set()) is not None
