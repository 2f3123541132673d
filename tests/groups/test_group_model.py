"""Groups under crashes of members and coordinators: seeds of ``group_model``, which says what must hold.

A failing seed prints as the test's parameter; ``pytest tests/groups/test_group_model.py -k seed`` replays it.
"""

from __future__ import annotations

import pytest
from group_model import World


@pytest.mark.parametrize("seed", range(8))
def test_no_partition_has_two_owners_and_no_committed_offset_goes_back(seed: int) -> None:
    world = World(seed)
    world.run(400)
    world.heal()


@pytest.mark.sim
@pytest.mark.parametrize("first", range(0, 200, 20))
def test_many_worlds_hold_together(first: int) -> None:
    seen = [0, 0, 0]
    for seed in range(first + 1_000, first + 1_020):
        world = World(seed)
        try:
            world.run(1_500)
            world.heal()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        seen = [
            a + b for a, b in zip(seen, (world.rebalances, world.failovers, world.commits_acknowledged), strict=True)
        ]
    assert all(each > 50 for each in seen), f"the worlds were too quiet: {seen}"
