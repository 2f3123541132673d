"""The simulator over many seeds: production replicas, logs and controller under faults keep every promise (raylog.testing.checkers).

A failing seed says how to see it again: ``python -m raylog.testing.replay --seed N --trace``. It joins ``failed_seeds.txt`` then.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import summary

from raylog.testing.replay import command
from raylog.testing.simulation import EVENTS, Simulation

pytestmark = pytest.mark.sim

SEEDS = range(1, 201)
FAILED = Path(__file__).parent / "failed_seeds.txt"


def once_failed() -> list[tuple[int, int]]:
    """(seed, events) of runs that once found something."""
    rows = [line.partition("#")[0].split() for line in FAILED.read_text().splitlines()]
    return [(int(row[0]), int(row[1])) for row in rows if row]


def run(seed: int, events: int) -> None:
    try:
        simulation = Simulation(seed, events=events)
        simulation.run()
    except Exception as error:
        error.add_note(f"seed {seed}; to see it again:\n    {command(seed, events)}")
        raise
    summary.add(simulation)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_promise_is_kept_under_faults_and_the_cluster_recovers(seed: int) -> None:
    run(seed, EVENTS)


@pytest.mark.parametrize(("seed", "events"), once_failed())
def test_seeds_that_once_failed_pass(seed: int, events: int) -> None:
    run(seed, events)


def test_the_runs_met_what_they_are_for() -> None:
    """Few of something means that the simulator no longer goes there."""
    if summary.counts["seeds"] < len(SEEDS):
        pytest.skip("only part of the seeds ran")
    for name in (
        "elections",
        "elections from the elr",
        "truncations",
        "isr shrinks",
        "isr expansions",
        "unclean elections",
        "torn tails",
        "suspect replicas",
        "reassignments",
        "completed reassignments",
        "cancelled reassignments",
        "controller starts",
        "server starts",
    ):
        assert summary.counts[name] >= 10, f"{summary.counts[name]} {name} in {summary.counts['seeds']} seeds"
