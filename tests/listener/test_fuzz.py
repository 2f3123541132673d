"""A listener that is sent changed requests of every API and version, before and after authentication (``fuzz.py``)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from fed_frames import session

pytestmark = pytest.mark.core

PROGRAM = Path(__file__).with_name("fuzz.py")


def fuzzed(frames: int, seed: int, kept: Path) -> str:
    """What the program prints, in a process of its own, whose memory nobody else uses. Fails with findings."""
    done = subprocess.run(
        [sys.executable, str(PROGRAM), "--frames", str(frames), "--seed", str(seed), "--corpus", str(kept)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-6_000:] + done.stderr[-2_000:]
    return done.stdout


def test_a_short_hunt_finds_nothing(tmp_path: Path) -> None:
    (tmp_path / "kept").write_bytes(session("open", [b"\0\x12\0\0\0\0\0\x01\0\4kept"]))
    report = fuzzed(2_000, 1, tmp_path)
    assert report.rstrip().endswith("FINDINGS: none")
    for where in ("open", "sasl", "login", "decoded", "not decoded"):
        assert f" {where}\n" in report


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 3])
def test_a_long_hunt_finds_nothing(seed: int, tmp_path: Path) -> None:
    assert fuzzed(500_000, seed, tmp_path).rstrip().endswith("FINDINGS: none")
