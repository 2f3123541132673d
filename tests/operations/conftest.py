"""A cluster of four brokers in this process, its admin client, and the command line pointed at it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from first_leaders import preferred_leaders_are_awaited
from operating import Operator
from typer.testing import CliRunner

from raylog.cluster import Cluster
from raylog.testing.in_process import InProcessCluster, cluster


@pytest.fixture(scope="module")
def running() -> Iterator[InProcessCluster]:
    with preferred_leaders_are_awaited(), cluster(brokers=4) as made:
        yield made


@pytest.fixture
def operator(running: InProcessCluster) -> Iterator[Operator]:
    made = Operator(running)
    yield made
    made.admin.close()


@pytest.fixture
def raylog(running: InProcessCluster, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, Any]]:
    """``raylog("reassign", …)``: its exit code, and what it printed (parsed if ``--json`` is among the arguments)."""
    from raylog.cli import (
        acls,
        actors,
        brokers,
        configs,
        controllers,
        events,
        groups,
        leader_election,
        quorum,
        reassign,
    )
    from raylog.cli.main import app

    for module in (acls, actors, brokers, configs, controllers, events, groups, leader_election, quorum, reassign):
        monkeypatch.setattr(module, "find_cluster", lambda *_, **__: Cluster(running.address))

    def run(*arguments: str) -> tuple[int, Any]:
        result = CliRunner().invoke(app, list(arguments))
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result.exit_code, json.loads(result.stdout) if "--json" in arguments else result.stdout

    return run
