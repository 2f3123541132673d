"""raylog as a wheel, built from a copy of the checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout, so that this one stays clean."""
    source = tmp_path_factory.mktemp("source")
    ignore = shutil.ignore_patterns("__pycache__", "*.so")
    for name in ("pyproject.toml", "README.md", "LICENSE", "MANIFEST.in", "build_kernel.py"):
        shutil.copy(ROOT / name, source)
    for name in ("raylog", "actors", "placement"):
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=ignore)
    return source


def _build(source: Path, outdir: Path, **environment: str) -> tuple[Path, str]:
    """The wheel, and what the build said."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "build",
            "--wheel",
            "--no-isolation",
            "--skip-dependency-check",
            "--outdir",
            outdir,
            source,
        ],
        check=True,
        capture_output=True,
        text=True,
        env=os.environ | environment,
    )
    (built,) = outdir.glob("*.whl")
    return built, done.stdout + done.stderr


@pytest.fixture(scope="session")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _build(source, tmp_path_factory.mktemp("dist"))[0]


@pytest.fixture(scope="session")
def build_wheel() -> Callable[..., tuple[Path, str]]:
    """Builds a wheel of a source folder into another folder, with additions to the environment."""
    return _build
