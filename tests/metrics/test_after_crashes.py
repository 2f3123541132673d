"""After 20 crashes ``/metrics`` and the console say what the test knows, on a cluster in one process."""

from __future__ import annotations

import pytest
from console_server import serving
from raw_requests import eventually
from scraping import open_metrics
from watched import (
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

from raylog.client.admin.admin import NewTopic
from raylog.cluster import Cluster
from raylog.metrics import table
from raylog.testing.in_process import InProcessCluster, cluster
from raylog.types import BROKER_SLOT, Endpoint, node_id

pytestmark = pytest.mark.core
CRASHES, RECORDS = 20, 60


def metrics_at(running: InProcessCluster, at: dict[int, Endpoint]) -> bool:
    """Whether every broker shows its metrics; a Broker that is new has another port."""
    for broker in at:
        server = running.launcher.servers.get(node_id(broker, BROKER_SLOT))
        if server is None or server.metrics.endpoint is None:
            return False
        at[broker] = server.metrics.endpoint
    return True


def crash_one(running: InProcessCluster, number: int) -> list[int]:
    """The node id of a server that has crashed; none for the active controller, which comes back."""
    if number % 5 == 4:
        active = running.active
        running.crash_controller(active)
        running.await_true(lambda: running.active >= 0)
        running.start_controller(active)
        return []
    nodes = sorted(node for node in running.launcher.servers if node & 0xFFFF in (BROKER_SLOT, 2))
    node = nodes[number % len(nodes)]
    former = running.launcher.servers[node]
    running.crash(node)
    eventually(lambda: running.launcher.servers.get(node) not in (None, former), f"another server at node {node}")
    return [node]


def test_metrics_and_the_console_agree_with_20_crashes() -> None:
    with cluster(3, controllers=3) as running:
        handle = Cluster(running.address)
        watched = Watched(handle, "fire", handle.status)
        with handle.admin() as admin:
            admin.create_topics([NewTopic("fire", 3, 3, configs={"min.insync.replicas": "2"})])
            admin.alter_configs(broker="all", set={"auto.leader.rebalance.enable": "false"})
        at = open_metrics(running, 3)
        (last, *_), _ = handle.events(count=1)
        before, killed = elections_of(handle.status()), []
        with handle.producer() as producer, serving(handle) as console:
            for number in range(CRASHES):
                sent = [producer.send("fire", b"%d" % each, partition=each % 3) for each in range(RECORDS)]
                killed += crash_one(running, number)
                for each in sent:
                    each.result(120)
            now = eventually(lambda: metrics_at(running, at) and seen(watched, at, console), "all to be well")
            check_state(now.metrics, now.status)
            assert total(now.metrics, table.LEADER_EPOCHS) == elections_of(now.status) > before
            ends = ends_shown(now.metrics, now.status, "fire")
            assert sum(ends.values()) == CRASHES * RECORDS
            check_console(now, "fire", ends)
            check_deaths(console, handle, last.position, killed)
        check_counts(watched, at)
