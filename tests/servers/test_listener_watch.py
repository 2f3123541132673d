"""A Broker whose disk names other listeners while it runs ends, and the one in its place has them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from certificates import Authority, settings
from outside import Client, produce
from raw_requests import batch, eventually

from raylog.client.admin.admin import NewTopic
from raylog.client.sync import AdminClient
from raylog.disks.disk import open_disk, with_controllers, with_listeners
from raylog.errors import DisconnectedError
from raylog.server.broker_server import BrokerServer
from raylog.server.replica_server import ReplicaServer
from raylog.testing.in_process import InProcessCluster
from raylog.types import BROKER_SLOT, Endpoint, node_id
from raylog.wire.listeners import Listeners, listeners_of

pytestmark = pytest.mark.core

BROKER = node_id(0, BROKER_SLOT)
TOPIC = "t"


def told(text: str, configs: dict[str, str] | None = None) -> Listeners:
    found = listeners_of(text, None, configs)
    assert found is not None
    return found


class Site:
    """One broker, whose listeners are those of its disk."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = Authority(folder / "certificates")
        self.running = InProcessCluster(folder / "data", 1)
        self.running.launcher.build["broker"] = BrokerServer
        self.give(told("PLAINTEXT://127.0.0.1:0"))
        self.running.start()
        with AdminClient(self.running.address) as admin:
            admin.create_topics([NewTopic(TOPIC, 1, 1)])

    def give(self, listeners: Listeners) -> None:
        with_listeners(self.running._disks[0], listeners)

    @property
    def broker(self) -> BrokerServer:
        found = self.running.launcher.servers[BROKER]
        assert isinstance(found, BrokerServer)
        return found

    @property
    def names(self) -> list[str]:
        return [each.name for each in self.broker.advertised_listeners]

    def guests(self) -> int:
        """Connections of clients that are at hosts."""
        servers = self.running.launcher.servers.values()
        return sum(len(each.door.server.connections) for each in servers if isinstance(each, ReplicaServer))


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    found = Site(tmp_path)
    yield found
    found.running.stop()


def with_tls(site: Site, keystore: Path) -> dict[str, str]:
    return settings(keystore, listener_security_protocol_map="PLAINTEXT:PLAINTEXT,OUT:SSL")


def test_a_broker_begins_anew_with_the_listeners_that_its_disk_names(site: Site) -> None:
    assert site.names == ["PLAINTEXT"]
    both = "PLAINTEXT://127.0.0.1:0,OUT://127.0.0.1:0"
    site.give(told(both, with_tls(site, site.authority.signed("broker"))))
    eventually(lambda: site.names == ["PLAINTEXT", "OUT"], "both listeners")
    site.give(told("OUT://127.0.0.1:0", with_tls(site, site.authority.signed("another"))))
    eventually(lambda: site.names == ["OUT"], "one listener")


def test_a_connection_that_had_moved_ends_with_its_listener(site: Site) -> None:
    client = Client(site.running, 0)

    def moves() -> bool:
        client.ask(produce(TOPIC, {0: batch(b"v")}))
        return site.guests() == 1

    eventually(moves, "the connection is at the host")
    site.give(told("OUT://127.0.0.1:0", with_tls(site, site.authority.signed("broker"))))
    eventually(lambda: site.names == ["OUT"], "the listener without TLS is gone")
    with pytest.raises(DisconnectedError):
        client.ask(produce(TOPIC, {0: batch(b"in plain sight")}))
    assert site.guests() == 0
    client.close()


def test_listeners_that_cannot_be_used_leave_the_broker_as_it_is(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    before, missing = site.broker, site.folder / "missing.pem"
    with caplog.at_level(logging.ERROR, "raylog.broker"):
        site.give(told("OUT://127.0.0.1:0", with_tls(site, missing)))
        eventually(lambda: "the broker keeps its listeners" in caplog.text, "the report")
    assert site.broker is before and "missing.pem cannot be read" in caplog.text
    site.give(told("OUT://127.0.0.1:0", with_tls(site, site.authority.signed("broker"))))
    eventually(lambda: site.names == ["OUT"], "listeners that can be used")


def test_another_change_of_the_disk_is_none_of_its_listeners(site: Site) -> None:
    before = site.broker
    looked: list[bool] = []
    watch = before._listener_watch
    assert watch is not None
    look = watch._names_others
    watch._names_others = lambda: bool(looked.append(look()) or looked[-1])  # type: ignore[method-assign]
    disk = open_disk(site.running._disks[0].path)
    with_controllers(disk, [*disk.controllers, Endpoint("127.0.0.1", 9)])
    seen = len(looked)
    eventually(lambda: len(looked) > seen + 1, "it has looked")
    assert not any(looked) and site.broker is before
