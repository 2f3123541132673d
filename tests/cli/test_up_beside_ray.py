"""What ``raylog up`` does while Ray starts: it asks for a cluster that may run on the folder, once."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import raylog.cluster
import raylog.launcher
from raylog.cli import cluster as commands
from raylog.cli.main import app
from raylog.client.links.address import ClusterAddress
from raylog.cluster import Cluster
from raylog.disks.disk import with_controllers
from raylog.disks.embedded import prepare_disks
from raylog.types import Endpoint

pytestmark = pytest.mark.core

ADDRESS = ClusterAddress("raylog", "raylog", "a cluster", (Endpoint("127.0.0.1", 1),), b"secret")
MEETING_S = 30.0


class IdleLauncher:
    """A launcher that takes no order."""

    def __init__(self, *, is_loopback: bool) -> None:
        self.is_loopback = is_loopback

    def __enter__(self) -> IdleLauncher:
        return self

    def __exit__(self, *_: object) -> None: ...


def test_a_running_cluster_is_asked_for_while_ray_starts_and_not_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dead controllers may take seconds to be found dead: as long as Ray takes to start."""
    for disk in prepare_disks(tmp_path, 1, None):
        with_controllers(disk, ADDRESS.bootstrap)
    both_are_under_way = threading.Barrier(2)
    asked: list[Path] = []

    def start_ray(*_: object) -> str:
        both_are_under_way.wait(MEETING_S)
        return "127.0.0.1:2"

    def ask(home: Path, name: str, count: int) -> Cluster:
        both_are_under_way.wait(MEETING_S)
        asked.append(home)
        return Cluster(ADDRESS, folder=home)

    def recovered(*_: object) -> dict[str, Any]:
        return {"brokers": [], "logs": {}}

    monkeypatch.setattr(commands, "running_ray", lambda: None)
    monkeypatch.setattr(commands, "start_ray", start_ray)
    monkeypatch.setattr(commands, "await_recovery", recovered)
    monkeypatch.setattr(raylog.launcher, "LauncherProcess", IdleLauncher)
    monkeypatch.setattr(raylog.cluster, "running_cluster", ask)
    up = CliRunner().invoke(app, ["up", str(tmp_path), "--brokers", "1", "--json"])
    assert up.exit_code == 0, (up.output, up.exception)
    assert json.loads(up.stdout)["cluster_id"] == ADDRESS.cluster_id
    assert asked == [tmp_path.resolve()]
