"""A client on another Python, without Ray, and a cluster on this one: the wire is raylog's own."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OTHERS = "3.13", "3.14"

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def matrix() -> types.ModuleType:
    spec = importlib.util.spec_from_file_location("matrix", ROOT / "tests" / "matrix" / "matrix.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["matrix"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def other(matrix: types.ModuleType, wheel: Path, version: str, tmp_path: Path) -> Path:
    """The interpreter of an environment with a plain install, of another Python than this one."""
    found = matrix.python(version)
    known = subprocess.run(
        [sys.executable, "-m", "uv", "python", "find", "--no-python-downloads", found], capture_output=True
    )
    if known.returncode:
        pytest.skip(f"this machine has no Python {version}")
    home = tmp_path / "env"
    assert matrix.make(home, found, wheel, (), ()) is None
    python: Path = home / "bin" / "python"
    return python


@pytest.mark.parametrize("version", OTHERS)
def test_a_client_on_another_python_without_ray_reaches_a_cluster(other: Path, version: str) -> None:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("RAY")}
    done = subprocess.run(
        [sys.executable, ROOT / "tests" / "matrix" / "smoke_across.py", other],
        env=environment | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr
    assert f"a client on Python {version} without Ray, by folder and by listener" in done.stderr
