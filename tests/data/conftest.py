"""An embedded cluster on a Ray of the module's own."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from ray_clusters import PATIENCE_S, kept_environment

import raylog


@pytest.fixture(scope="module")
def cluster() -> Iterator[raylog.Cluster]:
    folder = Path(tempfile.mkdtemp(prefix="rl"))
    with kept_environment("RAY_TMPDIR", "RAY_AUTH_MODE", "RAY_DATA_DISABLE_PROGRESS_BARS"):
        os.environ["RAY_TMPDIR"] = str(folder)
        os.environ["RAY_DATA_DISABLE_PROGRESS_BARS"] = "1"
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        found = raylog.init(folder / "data", brokers=1, ray_address="local", timeout_s=PATIENCE_S)
        yield found
        found.shutdown()
    shutil.rmtree(folder, ignore_errors=True)
