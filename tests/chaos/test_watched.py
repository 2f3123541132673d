"""After 20 kills under a load, ``/metrics`` and the console say what the run itself knows."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
from process_faults import Target, Victim
from ray_clusters import PATIENCE_S, eventually
from scraping import metrics_of_processes
from watched import (
    At,
    Watched,
    check_console,
    check_counts,
    check_deaths,
    check_state,
    elections_of,
    ends_shown,
    seen,
    total,
)

from raylog.metrics import table
from raylog.testing.verifiable_load import VerifiableLoad

pytestmark = [pytest.mark.chaos, pytest.mark.slow]

UnderLoad = Callable[..., AbstractContextManager[VerifiableLoad]]
KILLS = {"leader": 8, "follower": 4, "broker": 4, "controller": 4}
BETWEEN = 1_000
"""Records that are acknowledged between two kills."""


@pytest.fixture(scope="module")
def at(target: Target) -> At:
    """Where each broker shows its metrics. Leaderships do not go back by themselves meanwhile."""
    with target.nodes.cluster.admin() as admin:
        admin.alter_configs(broker="all", set={"auto.leader.rebalance.enable": "false"})
    return metrics_of_processes(target.nodes.cluster, len(target.nodes.disks))


@pytest.fixture
def console(target: Target) -> Iterator[Any]:
    from console_server import serving

    with serving(target.nodes.cluster) as browser:
        yield browser


def strike(target: Target, kind: str) -> Victim:
    """SIGKILL; returns once the cluster has noticed, and has another process in its place."""
    whom = {
        "leader": target.leaders,
        "follower": target.followers,
        "broker": target.brokers,
        "controller": target.controllers,
    }[kind]
    victim = target.strike(signal.SIGKILL, whom)

    def is_noticed() -> bool:
        status = target.status()
        if kind == "controller":
            return bool(status["controller"]["epoch"] > victim.epoch)
        living = {each["node_id"]: each["pid"] for each in status["actors"] if each["state"] == "live"}
        return victim.node in living and living[victim.node] != victim.pid

    eventually(is_noticed, f"another process in the place of the {kind} {victim}")
    return victim


def run_of_kills(target: Target, under_load: UnderLoad) -> tuple[VerifiableLoad, list[tuple[str, Victim]]]:
    """The load, which is over and accounted for, and the victims in their order."""
    kinds = [kind for kind, count in KILLS.items() for _ in range(count)]
    target.dice.shuffle(kinds)
    victims = []
    with under_load() as load:
        for kind in kinds:
            goal = load.ledger.acknowledged + BETWEEN
            eventually(lambda goal=goal: load.ledger.acknowledged >= goal, f"{goal} acknowledged records")
            eventually(target.is_whole, "all replicas in sync before the next kill")
            victims.append((kind, strike(target, kind)))
            print(f"{len(victims)}: {kind} {victims[-1][1]}")
    return load, victims


def test_metrics_and_the_console_agree_with_a_run_of_20_kills(
    target: Target, under_load: UnderLoad, at: At, console: Any
) -> None:
    cluster = target.nodes.cluster
    before = target.status()
    (last, *_), _ = cluster.events(count=1)
    load, victims = run_of_kills(target, under_load)
    assert len(victims) == 20
    watched = Watched(cluster, target.topic, target.status)
    now = eventually(lambda: seen(watched, at, console), "all to be well", 4 * PATIENCE_S)
    check_state(now.metrics, now.status)
    elections = elections_of(now.status)
    assert total(now.metrics, table.LEADER_EPOCHS) == elections
    assert elections - elections_of(before) >= KILLS["leader"], "each kill of a leader had an election"
    assert now.status["controller"]["epoch"] - before["controller"]["epoch"] >= KILLS["controller"]
    ends = ends_shown(now.metrics, now.status, target.topic)
    written = sum(end - load.begins[partition] for partition, end in ends.items())
    assert written == load.ledger.acknowledged, "what the logs show is what was acknowledged, once each"
    check_console(now, target.topic, ends)
    killed = [victim.node for kind, victim in victims if kind != "controller"]
    check_deaths(console, cluster, last.position, killed)
    check_counts(watched, at)
