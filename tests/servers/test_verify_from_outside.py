"""``raylog verify --bootstrap-server``: only a broker's own replica counts as its replica."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from raw_requests import eventually
from typer.testing import CliRunner

from raylog.cli.main import app
from raylog.types import BROKER_SLOT, FIRST_REPLICA_SLOT, broker_of, node_id, slot_of

pytestmark = pytest.mark.core


def test_a_broker_that_answers_with_another_brokers_replica_is_left_out(
    faulty: Any, numbered: Callable[[int, int], list[bytes]]
) -> None:
    """The leader's Broker is dead, another one stands in for it, and the process of its own replica is dead."""
    faulty.make_topic()
    faulty.produce(numbered(0, 100))
    running, leader = faulty.running, broker_of(faulty.leader())
    others = [broker for broker in range(3) if broker != leader]

    def verified() -> dict[str, Any]:
        servers = ",".join(str(running.launcher._outside[node_id(broker, BROKER_SLOT)]) for broker in others)
        arguments = ["verify", "t", "--patience", "0", "--json", "--bootstrap-server", servers]
        (partition,) = json.loads(CliRunner().invoke(app, arguments).stdout)["partitions"]
        return dict(partition)

    assert sorted(verified()["compared_brokers"]) == [0, 1, 2]
    faulty.hold()
    started = running.launcher.build["broker"]

    def refuse(spec: Any) -> Any:
        raise OSError("the test holds new Brokers back")

    running.launcher.build["broker"] = refuse
    running.crash(node_id(leader, BROKER_SLOT))
    for node in list(running.launcher.servers):
        if broker_of(node) in others and slot_of(node) >= FIRST_REPLICA_SLOT:
            running.crash(node)
    assert broker_of(faulty.leader()) == leader
    partition = verified()
    assert partition["compared_brokers"] == []
    assert {partition["left_out"][str(broker)] for broker in others} == {"its process is not running (for 0 s)"}
    running.launcher.build["broker"] = started
    faulty.let_go()
    faulty.await_whole()
    eventually(lambda: sorted(verified()["compared_brokers"]) == [0, 1, 2], "all are compared again")
