"""Prometheus for the tests: the machine's, or Debian's package unpacked into ``build`` and not installed, or a skip that says why."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from raw_requests import eventually

from raylog.types import Endpoint

TOOLS = Path(__file__).resolve().parents[2] / "build" / "prometheus"
SCRAPED_EVERY_S = 1


def program(name: str) -> str:
    """``prometheus`` or ``promtool``."""
    found = shutil.which(name)
    if found is not None:
        return found
    unpacked = TOOLS / "usr" / "bin" / name
    if not unpacked.exists():
        _unpack()
    return str(unpacked)


def _unpack() -> None:
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        pytest.skip("no Prometheus on this machine, and no apt-get to get Debian's with")
    TOOLS.mkdir(parents=True, exist_ok=True)
    download = ["apt-get", "download", "-qq", "prometheus"]
    got = subprocess.run(download, cwd=TOOLS, capture_output=True, check=False)
    if got.returncode != 0 and os.getuid() == 0:
        subprocess.run(["apt-get", "update", "-qq"], capture_output=True, check=False)
        got = subprocess.run(download, cwd=TOOLS, capture_output=True, check=False)
    packages = sorted(TOOLS.glob("prometheus_*.deb"))
    if got.returncode != 0 or not packages:
        pytest.skip(f"Debian's Prometheus cannot be had: {got.stderr.decode().strip()[-200:]}")
    subprocess.run(["dpkg", "-x", str(packages[-1]), str(TOOLS)], check=True)


class Prometheus:
    """One that runs."""

    def __init__(self, port: int) -> None:
        self._port = port

    def get(self, path: str, **query: str) -> Any:
        """Of its HTTP API, the data. Raises OSError while it does not listen."""
        url = f"http://127.0.0.1:{self._port}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=60) as answer:
            return json.load(answer)["data"]

    def values(self, expression: str) -> list[float]:
        """What an expression gives now. Raises HTTPError for one that is none."""
        return [float(each["value"][1]) for each in self.get("query", query=expression)["result"]]


@contextmanager
def prometheus(folder: Path, targets: Sequence[Endpoint], rules: str, port: int) -> Iterator[Prometheus]:
    """One that scrapes these addresses every second, and has these alert rules."""
    binary = program("prometheus")
    (folder / "rules.yml").write_text(rules, encoding="utf-8")
    named = [f"{each.host}:{each.port}" for each in targets]
    times = {"scrape_interval": f"{SCRAPED_EVERY_S}s", "evaluation_interval": f"{SCRAPED_EVERY_S}s"}
    job = {"job_name": "raylog", "static_configs": [{"targets": named}]}
    config = {"global": times, "rule_files": [str(folder / "rules.yml")], "scrape_configs": [job]}
    (folder / "prometheus.yml").write_text(json.dumps(config), encoding="utf-8")  # JSON is YAML
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [
                binary,
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        running = Prometheus(port)
        eventually(lambda: _is_up(running, len(named)), "Prometheus to scrape all brokers")
        yield running
    finally:
        process.terminate()
        process.wait(60)


def _is_up(running: Prometheus, targets: int) -> bool:
    try:
        return running.values("up") == [1.0] * targets
    except OSError:
        return False
