"""What a producer promises over failovers: the real queue and the real producer states, in a random model."""

from __future__ import annotations

import pytest
from producer_failovers import Failovers
from queue_mutations import QUEUE_MUTATIONS

RUNS = 300


def broken(seeds: range) -> list[str]:
    found = [(seed, Failovers(seed).run()) for seed in seeds]
    return [f"seed {seed}: {what}" for seed, what in found if what is not None]


@pytest.mark.parametrize("first", range(0, 4 * RUNS, RUNS))
def test_nothing_acknowledged_is_lost_doubled_reordered_or_elsewhere(first: int) -> None:
    assert not broken(range(first, first + RUNS))


@pytest.mark.core
@pytest.mark.slow
@pytest.mark.parametrize("first", range(2_000, 32_000, 5_000))
def test_nothing_acknowledged_is_lost_in_many_runs(first: int) -> None:
    assert not broken(range(first, first + 5_000))


@pytest.mark.parametrize("name", QUEUE_MUTATIONS)
def test_the_model_finds_a_broken_queue(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    QUEUE_MUTATIONS[name](monkeypatch)
    assert any(Failovers(seed).run() is not None for seed in range(2 * RUNS))
