"""The load of the failover benchmarks sees what is lost, and measures pauses where they are."""

from __future__ import annotations

import importlib.util
import sys
from array import array
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def paced_load() -> ModuleType:
    path = Path(__file__).resolve().parents[2] / "benchmarks" / "paced_load.py"
    spec = importlib.util.spec_from_file_location("paced_load", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["paced_load"] = module
    spec.loader.exec_module(module)
    return module


def log_of(*sequences: int) -> list[tuple[int, bytes]]:
    return [(offset, sequence.to_bytes(8, "big") + b"...") for offset, sequence in enumerate(sequences)]


def test_a_readback_finds_what_is_lost_there_twice_elsewhere_or_out_of_order(paced_load: ModuleType) -> None:
    ledger = paced_load.Ledger()
    for sequence in range(4):
        ledger.note(sequence, sequence, None)
    ledger.note(4, None, "refused")
    told = ledger.times

    def found(*sequences: int) -> tuple[int, int, int, int]:
        result = paced_load.held_against(ledger, log_of(*sequences))
        assert len(result.lost_at) == result.lost and set(result.lost_at) <= set(told)
        return result.lost, result.twice, result.misplaced, result.disordered

    assert found(0, 1, 2, 3) == (0, 0, 0, 0)
    assert found(0, 1, 2, 3, 4) == (0, 0, 0, 0)  # one that was refused may be there
    assert found(0, 1, 2) == (1, 0, 0, 0)
    assert found(0, 1, 2, 3, 3) == (0, 1, 1, 1)
    assert found(0, 2, 1, 3) == (0, 0, 2, 1)
    assert (ledger.failed, ledger.failures) == (1, ["4: refused"])


def test_the_longest_gap_of_a_time_is_one_that_ended_in_it(paced_load: ModuleType) -> None:
    times = array("d", [0.0, 0.1, 0.2, 5.0, 5.1])
    assert paced_load.longest_gap(times, 0.0, 1.0) == pytest.approx(0.1)  # not the gap in whose midst it ends
    assert paced_load.longest_gap(times, 1.0, 6.0) == pytest.approx(4.8)
    assert paced_load.longest_gap(times, 1.0, 2.0) == 1.0  # nothing came at all
