"""Ray clusters for the tests: each module's own, in a short temporary folder, ended by the module."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from ray_clusters import PATIENCE_S, kept_environment

import raylog


@pytest.fixture(scope="module")
def short_folder() -> Iterator[Path]:
    """A folder with a short name (Ray's sockets live below it), Ray's temporary folder while the module runs."""
    folder = Path(tempfile.mkdtemp(prefix="rl"))
    with kept_environment("RAY_TMPDIR", "RAY_AUTH_MODE"):
        os.environ["RAY_TMPDIR"] = str(folder)
        yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def embedded(short_folder: Path) -> Iterator[raylog.Cluster]:
    """Three brokers on a Ray of the module's own."""
    cluster = raylog.init(
        short_folder / "data", ray_address="local", configs={"log.roll.ms": 86_400_000}, timeout_s=PATIENCE_S
    )
    yield cluster
    cluster.shutdown()
