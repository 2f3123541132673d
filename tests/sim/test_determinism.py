"""A seed is a run: the same trace in two processes with different hash seeds, and with and without tracing."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import pytest

from raylog.simulator.simulation import Simulation

pytestmark = pytest.mark.sim

SEEDS = (11, 12, 13)
EVENTS = 800
PROGRAM = """
import hashlib, sys
from raylog.simulator.hosted_transactions import TransactionSimulation
from raylog.simulator.simulated_clients import ClientSimulation
from raylog.simulator.simulated_groups import GroupSimulation
from raylog.simulator.simulation import Simulation
for seed in map(int, sys.argv[2:]):
    for kind in (Simulation, GroupSimulation, ClientSimulation, TransactionSimulation):
        lines = []
        kind(seed, events=int(sys.argv[1]), night_minutes=seed % 3, tracing=True, on_line=lines.append).run()
        print(seed, len(lines), hashlib.sha256("\\n".join(lines).encode()).hexdigest())
"""


def traced(hash_seed: str) -> str:
    arguments = [sys.executable, "-c", PROGRAM, str(EVENTS), *map(str, SEEDS)]
    environment = os.environ | {"PYTHONHASHSEED": hash_seed}
    return subprocess.run(arguments, env=environment, capture_output=True, text=True, check=True).stdout


def test_a_seed_gives_the_same_trace_under_two_hash_seeds() -> None:
    first, second = traced("1"), traced("4242")
    assert first == second and len(first.splitlines()) == 4 * len(SEEDS)


def test_tracing_changes_nothing() -> None:
    plain = Simulation(SEEDS[0], events=EVENTS)
    plain.run()
    traced_run = Simulation(SEEDS[0], events=EVENTS, tracing=True)
    traced_run.run()
    assert (plain.scheduler.now_us, plain.scheduler.steps, plain.counts) == (
        traced_run.scheduler.now_us,
        traced_run.scheduler.steps,
        traced_run.counts,
    )


def test_different_seeds_give_different_runs() -> None:
    ends = set()
    for seed in SEEDS:
        simulation = Simulation(seed, events=EVENTS)
        simulation.run()
        ends.add(hashlib.sha256(repr((simulation.scheduler.now_us, simulation.counts)).encode()).hexdigest())
    assert len(ends) == len(SEEDS)
