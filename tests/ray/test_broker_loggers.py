"""Levels of a broker's loggers reach each of its processes, and no other broker's: those that are there, and those that come later."""

from __future__ import annotations

import asyncio

import pytest
from ray_clusters import eventually, kill

import raylog
from raylog.types import CONTROLLER_SLOT, Endpoint, broker_of, node_id
from raylog.wire.connection import Connection
from raylog.wire.private_watching import SetLoggerLevels

pytestmark = pytest.mark.ray

NAME = "raylog.wire"  # each process has it


def levels(cluster: raylog.Cluster, broker: int) -> dict[int, str]:
    """The level of ``NAME`` in each living process of a broker, as that process says. The controller is broker 0's."""

    async def ask(endpoint: Endpoint) -> str:
        address = cluster.address
        connection = await Connection.open(endpoint, secret=address.secret, cluster_id=address.cluster_id)
        try:
            reply = await connection.request(SetLoggerLevels(broker), timeout_ms=30_000)
        finally:
            connection.close()
        return str(reply.levels[NAME])

    living = [each for each in cluster.status()["actors"] if each["state"] == "live" and each["endpoint"]]
    found = {each["node_id"]: Endpoint.of(each["endpoint"]) for each in living if broker_of(each["node_id"]) == broker}
    if broker == 0:
        (found[node_id(0, CONTROLLER_SLOT)],) = cluster.address.bootstrap  # the only controller
    return {node: asyncio.run(ask(endpoint)) for node, endpoint in found.items()}


def pids(cluster: raylog.Cluster) -> dict[int, int]:
    return {each["node_id"]: each["pid"] for each in cluster.status()["actors"] if each["state"] == "live"}


def test_levels_reach_each_process_of_one_broker_and_end_with_its_broker(embedded: raylog.Cluster) -> None:
    own, others = levels(embedded, 0), levels(embedded, 1)
    assert len(own) >= 4 and set(own.values()) == set(others.values()) == {"INFO"}
    with embedded.admin() as admin:
        admin.alter_loggers(0, set={NAME: "DEBUG", "raylog.replica": "ERROR"})
        assert set(levels(embedded, 0).values()) == {"DEBUG"}, "all of them when the call returns"
        assert levels(embedded, 1) == others
        found = {name: entry.value for name, entry in admin.describe_loggers(0).items()}
        assert (found[NAME], found["raylog.replica"], found["root"]) == ("DEBUG", "ERROR", "INFO")
        assert "raylog.controller" in found, "a logger that the Broker's own process does not have"
        host = max(own)
        before = pids(embedded)[host]
        kill(before)
        eventually(lambda: pids(embedded).get(host, before) != before, "the host is back")
        eventually(lambda: levels(embedded, 0)[host] == "DEBUG", "a new process has the levels")
        broker = min(own)
        kill(before := pids(embedded)[broker])
        eventually(lambda: pids(embedded).get(broker, before) != before, "the Broker is back")
        eventually(lambda: levels(embedded, 0) == own, "what an earlier Broker set is gone")
        assert admin.describe_loggers(0)[NAME].value == "INFO"
