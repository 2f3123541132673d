"""The console that ``raylog up --disks`` has on the head: started with the cluster, and ended with it."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest
import ray
from connect_worker import free_port
from console_browser import Browser, Page
from ray_clusters import PATIENCE_S, eventually, kept_environment
from ray_nodes import SMALL, head_without_disks

import raylog
from raylog.placement.ray_start import started

pytestmark = pytest.mark.ray


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "raylog.cli.main", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_S,
    )


@pytest.fixture
def ray_cluster(short_folder: Path) -> Iterator[Any]:
    """A Ray whose processes have a home of their own."""
    with kept_environment("HOME"):
        os.environ["HOME"] = str(short_folder)
        with head_without_disks() as found:
            yield found


def asked(port: int, password: str | None = None) -> Page | None:
    """None: nobody listens there, or who did was ended amid its answer."""
    given = {} if password is None else {"Authorization": "Basic " + base64.b64encode(f":{password}".encode()).decode()}
    try:
        return Browser(f"http://127.0.0.1:{port}", None).get("/", headers=given)
    except (ConnectionError, HTTPException):
        return None


def test_the_head_has_a_console_while_the_cluster_runs(ray_cluster: Any, short_folder: Path) -> None:
    disk, port, other = short_folder / "disk", free_port(), free_port()
    disk.mkdir()
    up = ("up", "--disks", 1, "--address", ray_cluster.address, "--json")
    before = command(*up, "--console-port", port)
    assert before.returncode == 0, before.stdout + before.stderr
    console = json.loads(before.stdout)["console"]
    file = short_folder / ".raylog" / "console.password"
    assert (console["port"], console["password_file"]) == (port, str(file)), console
    assert console["url"] is None and asked(port) is None, "there is no cluster yet"

    offered = json.loads(command("node", "resources", disk).stdout)
    started(lambda: ray_cluster.add_node(**SMALL, resources=offered))
    served = command(*up, "--console-port", port, "--wait", PATIENCE_S)
    assert served.returncode == 0, served.stdout + served.stderr
    cluster_id = json.loads(served.stdout)["cluster_id"]
    eventually(lambda: (page := asked(port)) and page.status == 401, "the console to want its password")
    assert file.stat().st_mode & 0o777 == 0o600
    page = asked(port, file.read_text().strip())
    assert page is not None and page.status == 200 and cluster_id in page.html and "read-only" in page.text

    with kept_environment("RAY_AUTH_MODE"):
        cluster = raylog.connect(ray_address=ray_cluster.address)
    actors = [each["name"] for each in ray.util.list_named_actors(all_namespaces=True)]
    assert actors.count("raylog:console") == 1
    said = command("up", "--disks", 1, "--address", ray_cluster.address, "--console-port", other)
    assert f"http://127.0.0.1:{other}/" in said.stdout and str(file) in said.stdout, said.stdout + said.stderr
    eventually(lambda: asked(other, file.read_text().strip()), "the console at its new port")
    assert asked(port) is None, "it has moved"

    cluster.shutdown()
    eventually(lambda: asked(other) is None, "the console to end with the cluster")


def test_it_goes_with_disks_only(tmp_path: Path) -> None:
    told = command("up", tmp_path / "data", "--console-port", 8900)
    assert told.returncode == 2 and "goes with --disks" in told.stderr
    assert not (tmp_path / "data").exists()
