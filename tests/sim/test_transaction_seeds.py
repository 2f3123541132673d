"""The simulator with the production coordinator of transactions, in processes of the cluster that crash, are deposed and are cut off.

A failing seed says how to see it again: ``python -m raylog.simulator --transactions --seed N --trace``.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from multiprocessing.pool import Pool
from pathlib import Path

import pytest
import summary

sys.path.insert(0, str(Path(__file__).parent))

from coordinator_mutations import COORDINATOR_MUTATIONS
from hosted_mutations import HOSTED_MUTATIONS

from raylog.simulator.replay import SeedOutcome, command, pool, run_seed, run_seeds
from raylog.simulator.simulation import EVENTS

pytestmark = pytest.mark.sim

SEEDS = range(1, 11)
FAILED_SEEDS = (90, 10_019)
"""An unclean election had taken the marker of a transaction; copies were too large for the segments of their target, and took a
sequence for a batch instead of one for a record."""
FURTHER_SEEDS = range(11, 151)
"""Slow ones: ``make test-long`` runs them."""
PROCESSES = 2
MET = {
    "chains of copies": 2,
    "coordinator crashes": 3,
    "coordinators that took over": 15,
    "copiers replaced": 8,
    "elections": 50,
    "operations in histories": 200,
    "records copied in chains": 100,
    "records polled in histories": 500,
    "transactions aborted": 20,
    "transactions committed": 20,
}
"""What the first seeds must have met, each so many times; fewer mean that the simulator no longer goes there."""
HUNT = range(10_001, 10_006)
"""Where mutations are hunted."""
SLOWLY_CAUGHT = ("leave_what_was_prepared_before_a_failover",)
"""Clients go on asking until the run gives up."""


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


def first_broken(name: str) -> SeedOutcome | None:
    """With that mutation patched in."""
    with pytest.MonkeyPatch.context() as patch:
        (HOSTED_MUTATIONS | COORDINATOR_MUTATIONS)[name](patch)
        outcomes = (run_seed(seed, transactions=True) for seed in HUNT)
        return next((outcome for outcome in outcomes if outcome.broke is not None), None)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in SLOWLY_CAUGHT else ()) for name in HOSTED_MUTATIONS]
)
def test_a_mutated_coordinator_is_caught_in_a_cluster(name: str) -> None:
    outcome = first_broken(name)
    assert outcome is not None, f"{name} passed {len(HUNT)} seeds"
    assert outcome.by_checker, outcome.failure


if __name__ == "__main__":
    for name in sys.argv[1:] or HOSTED_MUTATIONS:
        start = time.perf_counter()
        found = first_broken(name)
        told = (found.seed, str(found.broke)[:200]) if found is not None else None
        print(f"{name}: {told} in {time.perf_counter() - start:.0f} s", flush=True)
