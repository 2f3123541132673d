"""Where a start takes ``security.inter.broker.protocol=SSL``, and where it says that it does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from certificates import Authority, settings
from typer.testing import CliRunner

import raylog
from raylog.cli.main import app
from raylog.configs.server_properties import server_properties
from raylog.disks.disk import with_same_links
from raylog.disks.embedded import existing_disks, prepare_disks
from raylog.disks.link_file import wanted_links
from raylog.disks.listener_file import wanted_listeners
from raylog.errors import ConfigError
from raylog.wire.listeners import listeners_of

pytestmark = pytest.mark.core


@pytest.fixture
def configs(tmp_path: Path) -> dict[str, Any]:
    authority = Authority(tmp_path / "authority")
    stores = settings(authority.signed("node"), authority.certificate)
    return {"security.inter.broker.protocol": "SSL", **stores}


def test_the_settings_of_tls_are_those_of_links_where_no_listener_has_tls(configs: dict[str, Any]) -> None:
    told = server_properties(configs)
    stores = {name: value for name, value in configs.items() if name.startswith("ssl.")}
    assert wanted_links(told, "127.0.0.1") == tuple(sorted(stores.items()))
    assert wanted_listeners(1, None, None, told) == [None]
    assert wanted_listeners(1, ["PLAINTEXT://127.0.0.1:9092"], None, told) == [
        listeners_of("PLAINTEXT://127.0.0.1:9092")
    ]
    both = wanted_listeners(1, ["SSL://127.0.0.1:9092"], None, told)
    assert both == [listeners_of("SSL://127.0.0.1:9092", None, stores)]
    assert wanted_links(server_properties({"num.partitions": 2}), "127.0.0.1") is None


def test_new_disks_of_a_cluster_get_what_the_others_have(configs: dict[str, Any], tmp_path: Path) -> None:
    links = wanted_links(server_properties(configs), "127.0.0.1")
    home = tmp_path / "data"
    with_same_links(prepare_disks(home, 1, None), links)
    with_same_links(prepare_disks(home, 3, None), None)
    assert [each.links for each in existing_disks(home)] == [links] * 3
    with_same_links(existing_disks(home), ())
    assert [each.links for each in existing_disks(home)] == [()] * 3 and not list(home.glob("*/internal.json"))


def test_a_start_by_certificates_that_have_ended_says_so_before_anything_starts(
    configs: dict[str, Any], tmp_path: Path
) -> None:
    home, other = tmp_path / "data", Authority(tmp_path / "other")
    with_same_links(prepare_disks(home, 1, None), wanted_links(server_properties(configs), "127.0.0.1"))
    Path(configs["ssl.keystore.location"]).write_bytes(other.signed("node").read_bytes())
    with pytest.raises(ConfigError, match=r"links inside the cluster would fail at 127\.0\.0\.1"):
        raylog.init(home, brokers=1, ray_address="local")
    with pytest.raises(ConfigError, match=r"links inside the cluster would fail at 127\.0\.0\.1"):
        raylog.init(tmp_path / "new", brokers=1, configs=configs, ray_address="local")
    assert not (tmp_path / "new" / "broker-0").exists()


@pytest.mark.parametrize("command", [["node", "resources", "{folder}"], ["up", "--disks", "1"]])
def test_nodes_of_a_ray_refuse_it(configs: dict[str, Any], tmp_path: Path, command: list[str]) -> None:
    folder = tmp_path / "disk"
    folder.mkdir()
    options = [text for name, value in configs.items() for text in ("--config", f"{name}={value}")]
    done = CliRunner().invoke(app, [each.format(folder=folder) for each in command] + options)
    assert done.exit_code != 0
    assert "is not there on the nodes of a Ray yet" in str(done.exception) + done.output
    assert not list(folder.iterdir())


def test_init_on_nodes_refuses_it(configs: dict[str, Any]) -> None:
    with pytest.raises(
        ConfigError, match=r"security\.inter\.broker\.protocol=SSL of configs cannot be given with disks"
    ):
        raylog.init(disks={"10.0.0.7": "/nowhere"}, configs=configs)
