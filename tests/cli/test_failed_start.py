"""``raylog up`` where Ray comes up halfway and fails, as it does on a machine that is too busy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from raylog.cli import cluster
from raylog.errors import RayError

pytestmark = pytest.mark.core


def test_what_came_up_of_a_ray_that_failed_to_start_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    port = 3  # nobody's: a Ray of the user is not touched
    left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", f"--gcs-address=127.0.0.1:{port}"])

    tries: list[int] = []

    def failed(*arguments: Any, **settings: Any) -> subprocess.CompletedProcess[str]:
        tries.append(1)
        return subprocess.CompletedProcess([], 1, "", "Exception: The current node timed out during startup.\n")

    monkeypatch.setattr(cluster, "_free_port", lambda wanted: port)
    monkeypatch.setattr(cluster.subprocess, "run", failed)
    try:
        with pytest.raises(RayError, match="timed out during startup"):
            cluster._start_ray(tmp_path / "data", 1, None, 1)
        assert not psutil.pid_exists(left.pid)
        assert len(tries) == cluster.RAY_START_ATTEMPTS, (
            "on a busy machine Ray is given more than one of its 30 seconds"
        )
    finally:
        left.kill()
        left.wait()
