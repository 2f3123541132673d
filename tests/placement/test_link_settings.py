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
from raylog.disks.disk import Reservation, format_disk, lock_disk, open_disk, reserve_disk, with_same_links
from raylog.disks.embedded import existing_disks, prepare_disks
from raylog.disks.link_file import wanted_links
from raylog.disks.listener_file import wanted_listeners
from raylog.disks.node_links import links_of
from raylog.errors import ConfigError
from raylog.server.disk_work import format_folder, offer, promise
from raylog.wire.internal_tls import SecretInsideTls
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


def test_a_node_notes_its_own_files_in_blank_folders_and_in_disks(configs: dict[str, Any], tmp_path: Path) -> None:
    blank, disk = tmp_path / "blank", tmp_path / "disk"
    blank.mkdir()
    format_disk(disk, cluster_id="c", broker_id=0, rack=None, controllers=[], secret="s")
    options = [text for name, value in configs.items() for text in ("--config", f"{name}={value}")]
    done = CliRunner().invoke(app, ["node", "resources", str(blank), str(disk), *options])
    assert done.exit_code == 0, done.output
    stores = tuple(sorted((name, value) for name, value in configs.items() if name.startswith("ssl.")))
    assert links_of(blank) == open_disk(disk).links == stores
    assert {path.stat().st_mode & 0o777 for path in tmp_path.glob("*/internal.json")} == {0o600}
    promised = promise(blank, Reservation(reserve_disk(blank).directory_id, None, "c", 1), [])
    found = format_folder(blank, promised, secret="s", controllers=[])
    assert found.has_tls and found.disk is not None and open_disk(blank).links == stores
    assert isinstance(found.proof, SecretInsideTls) and found.proof.configs == ()
    assert CliRunner().invoke(app, ["node", "resources", str(blank), str(disk)]).exit_code == 0
    assert open_disk(blank).links == open_disk(disk).links == stores, "who says nothing leaves them"
    plain = ["--config", "security.inter.broker.protocol=PLAINTEXT"]
    lock = lock_disk(disk)
    refused = CliRunner().invoke(app, ["node", "resources", str(disk), *plain])
    assert "the cluster runs with other TLS inside" in str(refused.exception)
    assert CliRunner().invoke(app, ["node", "resources", str(disk), *options]).exit_code == 0, "as it runs"
    lock.release()
    assert CliRunner().invoke(app, ["node", "resources", str(disk), *plain]).exit_code == 0
    assert open_disk(disk).links == ()


def test_a_node_whose_certificate_nobody_trusts_is_refused_before_anything_is_noted(
    configs: dict[str, Any], tmp_path: Path
) -> None:
    folder = tmp_path / "disk"
    folder.mkdir()
    told = configs | {"ssl.keystore.location": str(Authority(tmp_path / "other").signed("node"))}
    options = [text for name, value in told.items() for text in ("--config", f"{name}={value}")]
    done = CliRunner().invoke(app, ["node", "resources", str(folder), *options])
    assert "links inside the cluster would fail: " in str(done.exception)
    assert not list(folder.iterdir())


def test_a_folder_is_not_lent_by_a_certificate_that_names_another_host(configs: dict[str, Any], tmp_path: Path) -> None:
    folder = tmp_path / "disk"
    folder.mkdir()
    links = wanted_links(server_properties(configs), None)
    with pytest.raises(ConfigError, match=r"that certificate has to name 10\.0\.0\.7"):
        offer(folder, links, "10.0.0.7")
    assert not list(folder.iterdir())
    offer(folder, links, "127.0.0.1")
    assert links_of(folder) == links


@pytest.mark.parametrize(
    ("command", "said", "why"),
    [
        (["up", "--disks", "1"], {}, "is what each node says, by files of its own"),
        (["node", "lend", "/nowhere"], {"num.partitions": "2"}, "num.partitions cannot be given to a node that lends"),
    ],
)
def test_what_is_not_said_there_is_refused(
    configs: dict[str, Any], command: list[str], said: dict[str, str], why: str
) -> None:
    options = [text for name, value in (configs | said).items() for text in ("--config", f"{name}={value}")]
    done = CliRunner().invoke(app, command + options)
    assert done.exit_code != 0 and why in str(done.exception) + done.output


def test_init_on_nodes_has_no_listeners(configs: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"^listeners of configs cannot be given with disks of nodes"):
        raylog.init(disks={"10.0.0.7": "/nowhere"}, configs=configs | {"listeners": "SSL://:9093"})
