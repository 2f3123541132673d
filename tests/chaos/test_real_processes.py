"""SIGKILL and SIGSTOP of real processes, and a whole node away and back, under a load that knows what was acknowledged.

Victims and moments are drawn from a seed that is printed. After each fault: no acknowledged record is missing, none is there twice, the
order of every key is kept, all replicas are byte for byte the same below the high watermark, and the ISR is whole again.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
from process_faults import (
    Condition,
    Fault,
    Target,
    kill_broker,
    kill_controller,
    kill_follower,
    kill_leader,
    node_away,
    stop_controller,
    stop_follower,
    stop_leader,
)
from ray_clusters import eventually

from raylog.testing.verifiable_load import VerifiableLoad

pytestmark = pytest.mark.chaos

UnderLoad = Callable[[], AbstractContextManager[VerifiableLoad]]


def acknowledges(load: VerifiableLoad, target: Target, least: int, most: int) -> None:
    """Let the load go on: until a random number of further records is acknowledged, and no longer."""
    goal = load.ledger.acknowledged + target.dice.randint(least, most)
    eventually(lambda: load.ledger.acknowledged >= goal, f"{goal} acknowledged records, {load.ledger.acknowledged} are")


@pytest.mark.parametrize(
    "strike", [kill_leader, kill_follower, kill_controller, kill_broker], ids=lambda each: each.__name__
)
def test_a_killed_process_costs_nothing_that_was_acknowledged(
    target: Target, under_load: UnderLoad, strike: Fault
) -> None:
    with under_load() as load:
        for _ in range(2):
            acknowledges(load, target, 2_000, 15_000)
            strike(target, lambda had_effect: eventually(had_effect, "the fault is noticed"))


@pytest.mark.parametrize("strike", [stop_leader, stop_follower], ids=lambda each: each.__name__)
def test_a_process_that_fell_silent_and_wakes_up_costs_nothing_that_was_acknowledged(
    target: Target, under_load: UnderLoad, strike: Fault
) -> None:
    with under_load() as load:

        def hold(had_effect: Condition) -> None:
            eventually(had_effect, "the silent process is declared dead")
            acknowledges(load, target, 5_000, 15_000)

        acknowledges(load, target, 2_000, 15_000)
        strike(target, hold)
        acknowledges(load, target, 5_000, 15_000)


def test_a_silent_controller_stops_no_load(target: Target, under_load: UnderLoad) -> None:
    with under_load() as load:
        acknowledges(load, target, 2_000, 15_000)
        stop_controller(target, lambda _: acknowledges(load, target, 20_000, 40_000))
        acknowledges(load, target, 5_000, 15_000)


def test_a_node_that_went_and_came_back_with_its_disk_catches_up(target: Target, under_load: UnderLoad) -> None:
    with under_load() as load:

        def hold(had_effect: Condition) -> None:
            eventually(had_effect, "the node's replicas are known to be gone")
            acknowledges(load, target, 5_000, 15_000)

        acknowledges(load, target, 2_000, 15_000)
        node_away(target, hold)
        acknowledges(load, target, 5_000, 15_000)
