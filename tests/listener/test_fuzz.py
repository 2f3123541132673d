"""A listener that is sent changed requests of every API and version, before and after authentication (``fuzz.py``)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.core

PROGRAM = Path(__file__).with_name("fuzz.py")


def fuzzed(frames: int, seed: int) -> str:
    """What the program prints, in a process of its own, whose memory nobody else uses. Fails with findings."""
    done = subprocess.run(
        [sys.executable, str(PROGRAM), "--frames", str(frames), "--seed", str(seed)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-6_000:] + done.stderr[-2_000:]
    return done.stdout


def test_a_short_hunt_finds_nothing() -> None:
    report = fuzzed(2_000, 1)
    assert report.rstrip().endswith("FINDINGS: none")
    for where in ("open", "sasl", "login", "decoded", "not decoded"):
        assert f" {where}\n" in report


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 3])
def test_a_long_hunt_finds_nothing(seed: int) -> None:
    assert fuzzed(500_000, seed).rstrip().endswith("FINDINGS: none")
