"""TLS by ``cluster.yaml``: its own commands, run on this machine, leave each node with its certificate, without SSH."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from launcher_file import CLUSTER_YAML, with_tls
from typer.testing import CliRunner

from raylog.cli.main import app
from raylog.disks.node_links import links_of
from raylog.errors import ConfigError
from raylog.extras import is_installed
from raylog.wire.internal_tls import check_links

pytestmark = [pytest.mark.core, pytest.mark.skipif(not is_installed("cryptography"), reason="raylog[secure]")]

HEAD, WORKER = "10.0.0.1", "10.0.0.2"
MOUNT = "~/raylog-certificates/nodes"


def shell(command: str, home: Path, address: str = "") -> str:
    """What it prints to somebody who came to that address by SSH."""
    environment = {"HOME": str(home), "PATH": os.environ["PATH"], "SSH_CONNECTION": f"10.9.9.9 50000 {address} 22"}
    done = subprocess.run(["bash", "-c", command], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def raylog(command: str, home: Path) -> None:
    """A command of raylog's, whose words a shell has made of it."""
    words = shell(f"printf '%s\\n' {command}", home).splitlines()
    done = CliRunner().invoke(app, words[1:])
    assert done.exit_code == 0, done.output


@pytest.fixture
def laptop(tmp_path: Path) -> Path:
    """Where ``ray up`` is called: the file's own command has made the certificates there."""
    home = tmp_path / "laptop"
    home.mkdir()
    text = re.sub(r"\\\n#\s+", "", CLUSTER_YAML.read_text())
    (command,) = re.findall(r"^#\s+(raylog certificates .*)$", text, re.MULTILINE)
    for name, address in (("HEAD_ADDRESS", HEAD), ("WORKER_1_ADDRESS", WORKER), ("WORKER_2_ADDRESS", "10.0.0.3")):
        command = command.replace(name, address)
    raylog(command.replace("/data/", f"{tmp_path}/machine/data/"), home)
    return home


@pytest.mark.parametrize(("address", "commands"), [(HEAD, "head"), (WORKER, "worker")])
def test_each_node_says_that_its_links_have_tls_by_a_certificate_for_its_address(
    laptop: Path, tmp_path: Path, address: str, commands: str
) -> None:
    config = yaml.safe_load(with_tls(CLUSTER_YAML.read_text()))
    (local,) = config["file_mounts"].values()
    assert config["file_mounts"] == {MOUNT: MOUNT} and local == MOUNT
    home, data = tmp_path / address, tmp_path / "machine" / "data"
    shutil.copytree(laptop / "raylog-certificates" / "nodes", home / "raylog-certificates" / "nodes")
    for command in config["setup_commands"]:
        if "pip install" not in command:
            shell(command.replace("/data/", f"{data}/"), home, address)
    (start,) = [each for each in config[f"{commands}_start_ray_commands"] if "ray start" in each]
    (resources,) = re.findall(r'--resources="\$\((raylog node resources .*)\)"', start)
    raylog(resources.replace("/data/", f"{data}/"), home)
    links = links_of(data / "raylog" / "disk-0")
    assert dict(links)["ssl.keystore.location"] == f"{data}/raylog/tls/node.pem"
    check_links(links, address)
    with pytest.raises(ConfigError, match=r"has to name 10\.0\.0\.3"):
        check_links(links, "10.0.0.3")
    assert {
        each.stat().st_mode & 0o077 for each in (data / "raylog" / "tls", data / "raylog" / "tls" / "node.pem")
    } == {0}


def test_as_it_comes_nothing_of_it_is_on() -> None:
    config = yaml.safe_load(CLUSTER_YAML.read_text())
    assert "file_mounts" not in config and not any("tls" in each for each in config["setup_commands"])
