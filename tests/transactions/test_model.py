"""Producers of one transactional id, through many seeds of a world without mercy (``transaction_world``)."""

from __future__ import annotations

import pytest

from tests.support.transaction_world import World

SEEDS = range(150)


@pytest.mark.parametrize("first", SEEDS[::30])
def test_what_was_promised_holds_and_everything_ends(first: int) -> None:
    ended = 0
    for seed in range(first, first + 30):
        world = World(seed)
        try:
            world.run()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        ended += world.ended
    assert ended > 100, f"only {ended} transactions were ended"
