"""``raylog up`` and ``down`` as real commands: a cluster that outlives its command, comes back, and leaves nothing running."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.ray


@pytest.fixture
def environment() -> Iterator[dict[str, str]]:
    """An environment in which Ray keeps its notes in a short folder of its own."""
    folder = Path(tempfile.mkdtemp(prefix="rl-"))
    kept = {name: value for name, value in os.environ.items() if name not in ("RAY_ADDRESS", "RAYLOG_FOLDER")}
    try:
        yield kept | {"RAY_TMPDIR": str(folder)}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def raylog(
    environment: dict[str, str], *arguments: object, stdin: str | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "raylog.cli.main", *map(str, arguments)],
        env=environment,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=280,
    )


def runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_cluster_outlives_up_comes_back_and_goes_down_with_its_ray(environment: dict[str, str]) -> None:
    folder = Path(environment["RAY_TMPDIR"]) / "data"
    properties = folder.with_name("server.properties")
    properties.write_text("num.partitions=4\nnum.io.threads=8\nlisteners=PLAINTEXT://127.0.0.1:0\n")
    arguments = ("up", folder, "--brokers", 2, "--config", properties, "--json")
    with ThreadPoolExecutor(2) as both:
        one, other = both.map(lambda _: raylog(environment, *arguments), range(2))
    up = max(one, other, key=lambda each: len(each.stderr))  # it has waited for the other one
    started: dict[str, float] = {}
    address = "nowhere"
    try:
        assert (one.returncode, other.returncode) == (0, 0), one.stderr + other.stderr
        assert json.loads(one.stdout)["cluster_id"] == json.loads(other.stdout)["cluster_id"]
        assert "To mend it" not in one.stderr + other.stderr, "nothing is wrong with this machine"
        assert f"another start of {folder} is under way (process " in up.stderr
        note = json.loads((folder / "ray-started-by-raylog.json").read_text())
        started, address = note["processes"], note["address"]
        assert all(psutil.pid_exists(int(pid)) for pid in started) and started
        assert (Path(environment["RAY_TMPDIR"]) / "ray" / "ray_current_cluster").read_text() == address
        state = json.loads(up.stdout)
        assert [broker["live"] for broker in state["brokers"]] == [True, True]
        assert "num.io.threads has no effect" in up.stderr
        assert all(":9092" not in broker["listener"] for broker in state["brokers"]), "port 0 of the file"
        environment["RAYLOG_FOLDER"] = str(folder)
        told = raylog(environment, "configs", "describe", "--entity-type", "brokers", "--entity-default", "--all")
        assert re.search(r"num\.partitions=4 .*\{STATIC_BROKER_CONFIG:num\.partitions=4, ", told.stdout), told.stdout
        assert re.search(r"default\.replication\.factor=2 .*\{DEFAULT_CONFIG:", told.stdout), told.stdout
        topic = ("events", "--partitions", 1, "--replication-factor", 2)
        assert raylog(environment, "topics", "create", *topic).returncode == 0
        assert raylog(environment, "produce", "events", stdin="one\ntwo\n").returncode == 0
        again = raylog(environment, "up", folder, "--brokers", 2)
        assert again.returncode == 0 and state["cluster_id"] in again.stdout, again.stderr
        assert "--replication-factor 2 --folder" in again.stdout, "the hint fits the number of brokers"
        read = raylog(environment, "consume", "events", "--from-beginning", "--until-end")
        assert read.stdout == "one\ntwo\n", read.stderr
        doctor = raylog(environment, "doctor", folder, "--json")
        scores = {each["check"]: each for each in json.loads(doctor.stdout)["findings"]}["OOM score"]
        assert scores["level"] == "warning" and "RAY_worker_oom_score_adjustment" in scores["remedy"]
    finally:
        down = raylog(environment, "down", folder, "--json")
    assert down.returncode == 0 and json.loads(down.stdout)["ray_ended"], down.stderr
    assert not [pid for pid in started if runs(int(pid))]
    naming = [
        each.info["cmdline"]
        for each in psutil.process_iter(["cmdline"])
        if address in " ".join(each.info["cmdline"] or ())
    ]
    assert not naming, "processes of the Ray that up started outlive down"
    noted = Path(environment["RAY_TMPDIR"]) / "ray" / "ray_current_cluster"
    assert not noted.exists(), "programs would look for that Ray"
    assert raylog(environment, "status").returncode == 1
    assert raylog(environment, "down", folder).returncode == 1


def test_the_page_of_use_in_the_readme_runs_as_printed(environment: dict[str, str]) -> None:
    program, *_ = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    program = program.replace("raylog.init(", 'raylog.init(ray_address="local", folder=')
    run = subprocess.run(
        [sys.executable, "-c", program],
        cwd=environment["RAY_TMPDIR"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert run.returncode == 0, run.stderr
    places, rows = run.stdout.splitlines()
    assert len(eval(places)) == 3 and 1 <= int(rows) <= 4
