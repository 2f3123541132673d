"""The simulator with the production coordinator of transactions, in processes of the cluster that crash, are deposed and are cut off.

A failing seed says how to see it again: ``python -m raylog.simulator --transactions --seed N --trace``.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from multiprocessing.pool import Pool

import pytest
import summary

from raylog.simulator.replay import SeedOutcome, command, pool, run_seeds
from raylog.simulator.simulation import EVENTS

pytestmark = pytest.mark.sim

SEEDS = range(1, 21)
FAILED_SEEDS = (12, 10_019)
"""What a coordinator had written was looked at after what another replica of its process did in the same turn; copies were too large
for the segments of their target."""
FURTHER_SEEDS = range(21, 151)
"""Slow ones: ``make test-long`` runs them."""
PROCESSES = 2
MET = {
    "batches of jobs committed": 10,
    "chains of copies": 1,
    "chains of copies by groups": 4,
    "committed offsets shown": 10,
    "coordinator crashes": 3,
    "coordinators that died between a decision and its markers": 2,
    "coordinators that took over": 15,
    "copiers replaced": 5,
    "elections": 50,
    "operations in histories": 200,
    "offsets in transactions refused": 5,
    "offsets in transactions stored": 20,
    "offsets that were not stable": 1,
    "records copied by groups": 100,
    "records copied in chains": 50,
    "records polled in histories": 500,
    "rows of jobs shown": 40,
    "transactions aborted": 20,
    "transactions committed": 20,
}
"""What the first seeds must have met, each so many times; fewer mean that the simulator no longer goes there."""


@pytest.fixture(scope="module")
def processes() -> Iterator[Pool]:
    with pool(PROCESSES) as processes:
        yield processes


@pytest.mark.parametrize(
    "seeds",
    [
        SEEDS,
        FAILED_SEEDS[:1],
        pytest.param(FAILED_SEEDS[1:], marks=pytest.mark.slow),
        pytest.param(FURTHER_SEEDS, marks=pytest.mark.slow),
    ],
    ids=("quick", "failed", "failed-slow", "further"),
)
def test_the_production_coordinator_keeps_its_promises_under_faults(seeds: Sequence[int], processes: Pool) -> None:
    start = time.perf_counter()
    broken: list[SeedOutcome] = []
    for outcome in run_seeds([(seed, EVENTS) for seed in seeds], processes, transactions=True):
        if outcome.failure is None:
            summary.add(outcome.counts, summary.of_transactions)
        else:
            broken.append(outcome)
    summary.of_transactions["seconds"] += time.perf_counter() - start
    if broken:
        listed = [f"{each.broke}\n    {command(each.seed, each.events, transactions=True)}" for each in broken]
        pytest.fail("\n".join((broken[0].failure or "", *listed)), pytrace=False)


def test_the_runs_met_what_they_are_for() -> None:
    if summary.of_transactions["seeds"] < len(SEEDS):
        pytest.skip("only part of the seeds ran")
    met = {name: summary.of_transactions[name] for name in MET}
    assert not {name: count for name, count in met.items() if count < MET[name]}, met
