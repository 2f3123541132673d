"""The simulator with the production clients: producers, consumers and members of a group keep their promises under its faults.

A failing seed says how to see it again: ``python -m raylog.simulator --clients --seed N --trace``.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from multiprocessing.pool import Pool

import pytest
import summary

from raylog.simulator.replay import SeedOutcome, command, pool, run_seeds
from raylog.simulator.simulation import EVENTS

pytestmark = pytest.mark.sim

SEEDS = range(1, 13)
FURTHER_SEEDS = range(13, 101)
"""Slow ones: ``make test-long`` runs them."""
PROCESSES = 2
MET = {
    "acknowledged by the client": 2_000,
    "batches that were retried": 10,
    "batches that a Kafka client sent again": 10,
    "batches that a Kafka client sent with others": 10,
    "commits of clients acknowledged": 100,
    "commits read through listeners": 20,
    "commits through listeners": 40,
    "elections": 20,
    "fetches in a session": 500,
    "generations of clients": 10,
    "images that a Broker folded": 500,
    "members: crash": 1,
    "members: leave": 2,
    "partitions taken over": 10,
    "partitions without an unclean election": 8,
    "records read by clients": 4_000,
    "records read through listeners": 2_000,
    "sends that failed": 1,
    "server starts": 50,
    "truncations": 1,
}
"""What the first seeds must have met, each so many times; fewer mean that the simulator no longer goes there."""


@pytest.fixture(scope="module")
def processes() -> Iterator[Pool]:
    with pool(PROCESSES) as processes:
        yield processes


@pytest.mark.parametrize(
    "seeds", [SEEDS, pytest.param(FURTHER_SEEDS, marks=pytest.mark.slow)], ids=("quick", "further")
)
def test_the_production_clients_keep_their_promises_under_faults(seeds: range, processes: Pool) -> None:
    start = time.perf_counter()
    broken: list[SeedOutcome] = []
    for outcome in run_seeds([(seed, EVENTS) for seed in seeds], processes, clients=True):
        if outcome.failure is None:
            summary.add(outcome.counts, summary.of_clients)
        else:
            broken.append(outcome)
    summary.of_clients["seconds"] += time.perf_counter() - start
    if broken:
        listed = [f"{each.broke}\n    {command(each.seed, each.events, clients=True)}" for each in broken]
        pytest.fail("\n".join((broken[0].failure or "", *listed)), pytrace=False)


def test_the_runs_met_what_they_are_for() -> None:
    if summary.of_clients["seeds"] < len(SEEDS):
        pytest.skip("only part of the seeds ran")
    met = {name: summary.of_clients[name] for name in MET}
    assert not {name: count for name, count in met.items() if count < MET[name]}, met
