"""What a Broker's ``listeners`` and ``advertised.listeners`` do to what clients see."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from outside import Client, listener, metadata
from raw_requests import eventually, status

from raylog.server.broker_server import BrokerServer
from raylog.testing.in_process import InProcessCluster
from raylog.types import BROKER_SLOT, Endpoint, node_id
from raylog.wire.listeners import Listeners, plaintext

pytestmark = pytest.mark.core

ANY_PORT = Endpoint("127.0.0.1", 0)


def again(running: InProcessCluster, broker: int, listeners: Listeners) -> None:
    """Another process of that Broker, with these listeners."""
    build = running.launcher.build["broker"]
    running.launcher.build["broker"] = lambda spec: BrokerServer(spec, listeners=listeners)
    node = node_id(broker, BROKER_SLOT)
    try:
        before = running.launcher.servers[node]
        running.crash(node)
        running.await_true(lambda: running.launcher.servers.get(node, before) is not before)
    finally:
        running.launcher.build["broker"] = build


def seen(client: Client) -> dict[int, tuple[str, int]]:
    return {each.node_id: (each.host, each.port) for each in client.ask(metadata()).brokers}


def test_clients_are_told_what_is_advertised(running: InProcessCluster, client: Callable[..., Client]) -> None:
    again(running, 1, plaintext(ANY_PORT, Endpoint("kafka.example", 19_092)))
    eventually(lambda: seen(client(0)).get(1) == ("kafka.example", 19_092), "the address")
    assert status(running)["brokers"][1]["listener"] == "kafka.example:19092"
    again(running, 1, plaintext(ANY_PORT))
    eventually(lambda: seen(client(0)).get(1, ("", 0))[0] == "127.0.0.1", "the address that is bound")
    assert client(1).ask(metadata()).brokers


def test_a_broker_without_a_listener_is_not_seen_outside(
    running: InProcessCluster, client: Callable[..., Client]
) -> None:
    again(running, 2, Listeners())
    eventually(lambda: sorted(seen(client(0))) == [0, 1], "two brokers outside")
    eventually(lambda: status(running)["brokers"][2]["live"], "the third one live inside")
    assert status(running)["brokers"][2]["listener"] is None
    again(running, 2, plaintext(ANY_PORT))
    eventually(lambda: sorted(seen(client(0))) == [0, 1, 2], "all three")
    assert listener(running, 2).port == seen(client(0))[2][1]
