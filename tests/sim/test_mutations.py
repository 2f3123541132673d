"""The checkers can fail: each fault patched into the machines (``mutations``) is found by the ordinary random run within a few seeds.

Those that take more than a few seeds, as ``mutations.md`` has it, are slow, and so are those that make clients stand still: they go
on asking until the run gives up. What the random run cannot find is found by a unit test (``unit_tests``), which is run with the
fault patched in.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing.pool import Pool
from pathlib import Path

import pytest
import summary
from hunts import HUNTED, PROCESSES, TABLE, hunt, kind_of, last_catches, table
from unit_tests import UNIT_TESTS

from raylog.simulator.replay import pool

pytestmark = pytest.mark.sim

SEEDS_MAX = 200
QUICK_SEEDS = 3
CATCHES = last_catches()


def is_quick(name: str) -> bool:
    catch = CATCHES.get(name)
    if catch is None or catch.broke is None:
        return False
    if kind_of(name) == "coordinator":
        return True  # its seeds take milliseconds
    if catch.seeds > QUICK_SEEDS:
        return False
    return "no progress" not in catch.broke


def test_the_table_names_every_mutation_that_is_hunted_and_no_other() -> None:
    assert set(CATCHES) == set(HUNTED)
    assert table(CATCHES) == TABLE.read_text()


@pytest.fixture(scope="module")
def processes() -> Iterator[Pool]:
    with pool(PROCESSES) as processes:
        yield processes


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if is_quick(name) else pytest.mark.slow) for name in HUNTED],
)
def test_a_mutated_machine_is_caught(name: str, processes: Pool) -> None:
    catch = hunt(name, SEEDS_MAX, processes)
    assert catch.broke is not None, f"{name} passed {SEEDS_MAX} seeds"
    summary.further.append(f"caught after {catch.seeds:3d} seeds: {name}: {catch.broke.splitlines()[0][:120]}")


@pytest.mark.slow
@pytest.mark.parametrize("name", UNIT_TESTS)
def test_what_the_simulator_cannot_find_a_unit_test_does(name: str) -> None:
    here = Path(__file__).parent
    path = os.pathsep.join(filter(None, (str(here), os.environ.get("PYTHONPATH"))))
    outcome = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "mutation_plugin", UNIT_TESTS[name].test],
        cwd=here.parent.parent,
        env=os.environ | {"PYTHONPATH": path, "RAYLOG_MUTATION": name},
        capture_output=True,
        text=True,
    )
    assert outcome.returncode == pytest.ExitCode.TESTS_FAILED, outcome.stdout + outcome.stderr
