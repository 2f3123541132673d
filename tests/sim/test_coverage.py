"""How much of the machines the simulator alone reaches, measured on some seeds in a process of its own, printed at the end."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import summary

pytestmark = pytest.mark.sim

SEEDS = 26
DISK_SEEDS = 8  # of brokers with two disks each; moves between disks are made nowhere else
FLOOR_PERCENT = 87
MACHINES = (("raylog/replication",), ("raylog/metadata", "raylog/raft"))
"""Packages that are measured together."""
NOT_SIMULATED = ("metadata/configuration/acl_", "metadata/users/", "resource_configs")
"""The simulator sends no requests about ACLs, users and clients' metrics yet."""


def test_the_simulator_alone_covers_the_machines(tmp_path: Path) -> None:
    coverage = [sys.executable, "-m", "coverage"]
    source = ",".join(package.replace("/", ".") for packages in MACHINES for package in packages)
    replay = ["-m", "raylog.simulator", "--processes", "1", "--keep-going"]
    for of_kind in (["--seeds", str(SEEDS)], ["--seeds", str(DISK_SEEDS), "--disks", "--events", "2000"]):
        # Seeds that fail are another test's business.
        measured = [*coverage, "run", "--append", f"--source={source}", *replay, *of_kind]
        subprocess.run(measured, cwd=tmp_path, check=False, capture_output=True)
    subprocess.run([*coverage, "json", "-q", "-o", "report.json"], cwd=tmp_path, check=True)
    files = json.loads((tmp_path / "report.json").read_text())["files"]
    for packages in MACHINES:
        parts = [
            entry["summary"]
            for name, entry in files.items()
            if any(package in name for package in packages) and not any(each in name for each in NOT_SIMULATED)
        ]
        percent = 100 * sum(part["covered_lines"] for part in parts) / sum(part["num_statements"] for part in parts)
        summary.further.append(
            f"line coverage of {' and '.join(packages)} by {SEEDS + DISK_SEEDS} seeds of the simulator alone: {percent:.1f} %"
        )
        assert percent >= FLOOR_PERCENT, packages
