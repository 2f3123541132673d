"""The simulator over many seeds: production replicas, logs and controllers under faults keep every promise (raylog.simulator.checkers).

A failing seed says how to see it again: ``make sim SEED=N`` (with ``GROUPS=1`` those with consumer groups). It joins ``failed_seeds.txt``
or ``failed_group_seeds.txt`` then.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from multiprocessing.pool import Pool
from pathlib import Path
from typing import Any

import pytest
import summary

from raylog.simulator.replay import SeedOutcome, command, pool, run_seeds
from raylog.simulator.simulation import EVENTS

pytestmark = pytest.mark.sim

BLOCK = 50
SEEDS = range(1, 301)
FURTHER_SEEDS = range(301, 1_001)
"""Slow ones: ``make test-long`` runs them."""
PROCESSES = 2
FAILED = Path(__file__).parent / "failed_seeds.txt"
AT_LEAST = 15
"""Of each thing that the runs are for; fewer mean that the simulator no longer goes there."""
MET = (
    "elections",
    "elections from the elr",
    "truncations",
    "depose a leader alive",
    "isr shrinks",
    "isr expansions",
    "unclean elections",
    "torn tails",
    "fenced controllers",
    "suspect replicas",
    "reassignments",
    "completed reassignments",
    "cancelled reassignments",
    "moves between actors",
    "moves of leaders",
    "moves refused",
    "processes killed amid a move",
    "hosts added by themselves",
    "hosts retired by themselves",
    "moves by themselves",
    "replicas released",
    "controller starts",
    "cleanings",
    "controller disks replaced",
    "disks corrupted at rest",
    "metadata copies mended",
    "metadata recoveries",
    "server starts",
    "batches given up",
    "batches split",
    "batches refused for good",
    "deletions of records acknowledged",
    "searches by time",
    "refused: an epoch that is over",
    "refused: a sequence with a gap",
    "refused: damaged or forbidden batches",
    "nights",
    "transactions committed",
    "transactions aborted",
    "transactional producers that began anew",
    "transaction coordinators that took over",
    "batches of transactions read committed",
    "copiers replaced",
    "chains of copies at rest",
    "records copied in chains",
)


@pytest.fixture(scope="module")
def processes() -> Iterator[Pool]:
    with pool(PROCESSES) as processes:
        yield processes


GROUP_SEEDS = range(1, 151)
FURTHER_GROUP_SEEDS = range(151, 401)
FAILED_WITH_GROUPS = Path(__file__).parent / "failed_group_seeds.txt"
MET_WITH_GROUPS = (
    "cleanings",
    "coordinators that took over",
    "coordinator crashes",
    "generations",
    "parts of a plan given out",
    "commits acknowledged",
    "commits refused",
    "fetches of offsets checked",
    "member crashes",
    "members that left",
    "member pauses",
    "static members fenced",
    "unclean elections",
    "completed reassignments",
    "configs of groups changed",
    "groups at rest",
    "deletions of offsets acknowledged",
)


PLAN_SEEDS = range(51, 101)
FURTHER_PLAN_SEEDS = range(101, 401)
MET_WITH_PLANS = (
    "plans of controllers",
    "controllers started by a plan",
    "controllers retired by a plan",
    "controllers deposed",
)


def once_failed(file: Path) -> list[tuple[int, int]]:
    """(seed, events) of runs that once found something."""
    rows = [line.partition("#")[0].split() for line in file.read_text().splitlines()]
    return [(int(row[0]), int(row[1])) for row in rows if row]


def run(work: Iterable[tuple[int, int]], processes: Pool, *, groups: bool = False, plans: bool = False) -> None:
    broken: list[SeedOutcome] = []
    counts = summary.of_groups if groups else summary.of_plans if plans else summary.counts
    for outcome in run_seeds(work, processes, groups=groups, plans=plans):
        if outcome.failure is None:
            summary.add(outcome.counts, counts)
        else:
            broken.append(outcome)
    if broken:
        listed = [
            f"seed {each.seed}: {each.broke}\n    {command(each.seed, each.events, groups=groups, plans=plans)}"
            for each in broken
        ]
        pytest.fail("\n".join((broken[0].failure or "", *listed)), pytrace=False)


def blocks(quick: range, slow: range) -> list[Any]:
    """The first seed of each block."""
    return [*quick[::BLOCK], *(pytest.param(first, marks=pytest.mark.slow) for first in slow[::BLOCK])]


@pytest.mark.parametrize("first", blocks(SEEDS, FURTHER_SEEDS))
def test_every_promise_is_kept_under_faults_and_the_cluster_recovers(first: int, processes: Pool) -> None:
    start = time.perf_counter()
    run(((seed, EVENTS) for seed in range(first, first + BLOCK)), processes)
    summary.counts["seconds"] += time.perf_counter() - start


def test_seeds_that_once_failed_pass(processes: Pool) -> None:
    run(once_failed(FAILED), processes)


@pytest.mark.parametrize("first", blocks(GROUP_SEEDS, FURTHER_GROUP_SEEDS))
def test_groups_keep_their_promises_while_members_and_coordinators_crash(first: int, processes: Pool) -> None:
    start = time.perf_counter()
    run(((seed, EVENTS) for seed in range(first, first + BLOCK)), processes, groups=True)
    summary.of_groups["seconds"] += time.perf_counter() - start


def test_seeds_with_groups_that_once_failed_pass(processes: Pool) -> None:
    run(once_failed(FAILED_WITH_GROUPS), processes, groups=True)


@pytest.mark.parametrize("first", blocks(PLAN_SEEDS, FURTHER_PLAN_SEEDS))
def test_controllers_that_move_amid_faults_keep_every_promise(first: int, processes: Pool) -> None:
    run(((seed, EVENTS) for seed in range(first, first + BLOCK)), processes, plans=True)


def test_the_runs_met_what_they_are_for() -> None:
    if summary.counts["seeds"] < len(SEEDS):
        pytest.skip("only part of the seeds ran")
    for name in MET:
        assert summary.counts[name] >= AT_LEAST, f"{summary.counts[name]} {name} in {summary.counts['seeds']} seeds"


def test_the_runs_with_groups_met_what_they_are_for() -> None:
    if summary.of_groups["seeds"] < len(GROUP_SEEDS):
        pytest.skip("only part of the seeds ran")
    for name in MET_WITH_GROUPS:
        met = summary.of_groups[name]
        assert met >= AT_LEAST, f"{met} {name} in {summary.of_groups['seeds']} seeds"


def test_the_runs_with_plans_met_what_they_are_for() -> None:
    if summary.of_plans["seeds"] < len(PLAN_SEEDS):
        pytest.skip("only part of the seeds ran")
    for name in MET_WITH_PLANS:
        met = summary.of_plans[name]
        assert met >= AT_LEAST, f"{met} {name} in {summary.of_plans['seeds']} seeds"
