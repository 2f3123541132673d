"""The checkers can fail: each fault patched into the machines (``mutations``) is found by the ordinary random run within a few seeds."""

from __future__ import annotations

import pytest
import summary
from hunts import ALL, hunt

pytestmark = pytest.mark.sim

SEEDS_MAX = 100


@pytest.mark.parametrize("name", ALL)
def test_a_mutated_machine_is_caught(name: str) -> None:
    catch = hunt(name, SEEDS_MAX)
    assert catch.broke is not None, f"{name} passed {SEEDS_MAX} seeds"
    summary.further.append(f"caught after {catch.seeds:3d} seeds: {name}: {catch.broke.splitlines()[0][:120]}")
