"""A Python that leaves assertions out (``-O``, PYTHONOPTIMIZE) runs no server: invariants would go unchecked."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.core


@pytest.mark.parametrize(
    ("program", "environment"),
    [
        ("import sys, raylog; raylog.init(sys.argv[1])", {"PYTHONOPTIMIZE": "1"}),
        (
            "import sys; from raylog.cli.main import main; sys.argv[:] = ['raylog', 'up', sys.argv[1]]; main()",
            {"PYTHONOPTIMIZE": "1"},
        ),
    ],
    ids=["init", "raylog up"],
)
def test_it_is_refused_before_anything_starts(program: str, environment: dict[str, str], tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    run = subprocess.run(
        [sys.executable, "-c", program, str(folder)], capture_output=True, text=True, env=os.environ | environment
    )
    assert run.returncode == 1, run
    assert "run it without -O, and unset PYTHONOPTIMIZE" in run.stderr
    assert not folder.exists()
