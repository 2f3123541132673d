"""Processes that a controller starts while its clock is behind: each is a later one than that whose place it takes."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from raw_requests import actor, eventually, isr_is_whole, part

from raylog.client.admin.admin import NewTopic
from raylog.client.sync import AdminClient
from raylog.testing.in_process import InProcessCluster, cluster
from raylog.types import BROKER_SLOT, broker_of, node_id

pytestmark = pytest.mark.core

HOUR_NS = 3_600 * 10**9


@pytest.fixture(scope="module")
def running() -> Iterator[InProcessCluster]:
    with cluster(brokers=3) as found:
        with AdminClient(found.address) as admin:
            admin.create_topics([NewTopic("t", 1, 3)])
        eventually(lambda: isr_is_whole(found, "t"), "all replicas in sync")
        yield found


@pytest.mark.parametrize("kind", ["replica", "broker"])
def test_a_process_started_by_a_clock_that_was_set_back_takes_its_place(
    running: InProcessCluster, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    node = part(running, "t")["leader_node"]
    if kind == "broker":
        node = node_id(broker_of(node), BROKER_SLOT)
    before = actor(running, node)["incarnation"]
    monkeypatch.setattr("raylog.server.controller_server.new_incarnation", lambda: time.time_ns() - HOUR_NS)
    running.crash(node)

    def is_back() -> bool:
        found = actor(running, node)
        return bool(found["state"] == "live" and found["incarnation"] > before)

    eventually(is_back, "its successor is taken in")
    assert actor(running, node)["incarnation"] == before + 1
    eventually(lambda: isr_is_whole(running, "t"), "all replicas in sync")
