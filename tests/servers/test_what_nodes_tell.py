"""What a node tells the provisioner of its disks: no password and no key of its listeners and links."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from certificates import Authority, settings
from provisioned_machines import Machines

from raylog.configs.server_properties import server_properties
from raylog.disks.disk import open_disk, read_reservation
from raylog.disks.link_file import wanted_links
from raylog.disks.node_links import links_of
from raylog.placement.resources import advertisement
from raylog.server.provisioner import Provisioner
from raylog.wire.listeners import Listeners, listeners_of

pytestmark = pytest.mark.core

PASSWORD, LISTENERS_PASSWORD, TOKEN_KEY = "password-of-the-links-key", "password-of-the-listeners-key", "key-of-tokens"
NODES = ("look", "promise", "format", "tell", "run_controllers", "register")


class Wire:
    """All that goes to nodes and comes back, as Ray would send it."""

    def __init__(self, machines: Machines) -> None:
        self.sent: list[tuple[str, bytes]] = []
        for kind in NODES:
            setattr(machines, kind, self._watched(kind, getattr(machines, kind)))

    def _watched(self, kind: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*arguments: Any) -> Any:
            self.sent.append((f"order of {kind}", pickle.dumps(arguments)))
            answers = work(*arguments)
            self.sent.append((f"answer to {kind}", pickle.dumps(answers)))
            return answers

        return watched

    def holding(self, text: str) -> set[str]:
        return {kind for kind, sent in self.sent if text.encode() in sent}


@pytest.fixture
def machines(tmp_path: Path) -> Machines:
    return Machines(tmp_path / "machines")


def say(machines: Machines, tmp_path: Path, name: str) -> Listeners:
    """A node's listeners and links, whose keys have passwords."""
    authority = Authority(tmp_path / f"authority-{name}")
    hidden = authority.signed("links", password=PASSWORD)
    links = wanted_links_of(settings(hidden, authority.certificate, ssl_key_password=PASSWORD))
    outside = settings(authority.signed("listeners", password=LISTENERS_PASSWORD))
    listeners = listeners_of("SSL://127.0.0.1:9093", None, outside | {"ssl.key.password": LISTENERS_PASSWORD})
    folder = machines.folder / name
    folder.mkdir(parents=True, exist_ok=True)
    advertisement([folder], listeners=listeners, links=links, configs=(("delegation.token.secret.key", TOKEN_KEY),))
    return listeners


def wanted_links_of(stores: dict[str, str]) -> Any:
    return wanted_links(server_properties({"security.inter.broker.protocol": "SSL", **stores}), "127.0.0.1")


def test_no_password_of_a_nodes_own_travels_from_the_founding_of_a_cluster_to_its_next_start(
    machines: Machines, tmp_path: Path
) -> None:
    wire = Wire(machines)
    said = {name: say(machines, tmp_path, name) for name in ("m1", "m2")}
    for name in said:
        machines.join(name, "127.0.0.1")
    machines.fails.add(("format", "m2"))  # so that it is looked at as a promised one
    Provisioner(machines, expected=2).round()
    machines.fails.clear()
    for _ in range(2):
        again = Provisioner(machines, expected=2)
        again.round()
        assert again.status()["missing"] is None
    assert {kind for kind, _ in wire.sent} >= {f"answer to {kind}" for kind in NODES}
    assert wire.holding(PASSWORD) == wire.holding(LISTENERS_PASSWORD) == set()
    assert wire.holding("ssl.keystore") == set(), "nor where a node has its keys"
    assert wire.holding(open_disk(machines.folder / "m1").secret), (
        "the cluster's secret does: it is how this test looks"
    )
    for name, listeners in said.items():
        disk = open_disk(machines.folder / name)
        assert disk.listeners == listeners and dict(links_of(disk.path))["ssl.key.password"] == PASSWORD, "it is there"


def test_a_file_that_holds_secret_configs_can_be_read_by_its_owner_alone(machines: Machines, tmp_path: Path) -> None:
    say(machines, tmp_path, "m1")
    folder = machines.join("m1", "127.0.0.1")
    assert modes(folder, TOKEN_KEY) == {"reserved.properties": 0o600} and read_reservation(folder) is not None
    machines.fails.add(("tell", "m1"))
    provisioner = Provisioner(machines, expected=1)
    provisioner.round()
    assert modes(folder, TOKEN_KEY) == {"meta.properties": 0o600} and not open_disk(folder).controllers, "as formatted"
    machines.fails.clear()
    provisioner.round()
    assert modes(folder, TOKEN_KEY) == {"meta.properties": 0o600} and open_disk(folder).controllers, "as changed"


def modes(folder: Path, text: str) -> dict[str, int]:
    """Of the files of that folder that hold the text."""
    return {each.name: each.stat().st_mode & 0o777 for each in folder.glob("*.*") if text in each.read_text()}
