"""A cluster whose brokers are Ray nodes: made of blank folders by one command, grown by nodes that join."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray_clusters import PATIENCE_S, eventually, isr_is_whole, kept_environment
from ray_nodes import SMALL, end_node, head_without_disks

import raylog
from raylog import NewTopic
from raylog.disks.disk import encode_id, read_disk
from raylog.disks.quorum_disks import METADATA_FOLDER
from raylog.placement.ray_start import started

pytestmark = pytest.mark.ray


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "raylog.cli.main", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_S,  # longer than ``up`` itself waits
    )


def resources(*folders: Path, rack: str | None = None, config: str | None = None) -> dict[str, int]:
    """What the node is started with, as its start command would get it."""
    option = (("--rack", rack) if rack else ()) + (("--config", config) if config else ())
    told = command("node", "resources", *folders, *option)
    assert told.returncode == 0, told.stderr
    found: dict[str, int] = json.loads(told.stdout)
    return found


def add_node(ray_cluster: Any, offered: dict[str, int]) -> Any:
    return started(lambda: ray_cluster.add_node(**SMALL, resources=offered))


@pytest.fixture(scope="module")
def folders(short_folder: Path) -> list[Path]:
    paths = [short_folder / f"machine-{number}" / "disk" for number in range(4)]
    for path in paths:
        path.mkdir(parents=True)
    return paths


@pytest.fixture(scope="module")
def ray_cluster() -> Iterator[Any]:
    with head_without_disks() as found:
        yield found


@pytest.fixture(scope="module")
def nodes() -> dict[int, Any]:
    """Ray's nodes by the number of their folder."""
    return {}


def test_blank_folders_of_three_nodes_become_a_cluster_by_one_command(
    ray_cluster: Any, nodes: dict[int, Any], folders: list[Path]
) -> None:
    up = command("up", "--disks", 3, "--address", ray_cluster.address)
    assert up.returncode == 0 and "0 of 3 disks" in up.stdout + up.stderr, up.stdout + up.stderr
    for number in range(3):
        said = resources(folders[number], rack=f"rack-{number}", config="num.partitions=2")
        nodes[number] = add_node(ray_cluster, said)
    up = command("up", "--disks", 3, "--address", ray_cluster.address, "--wait", PATIENCE_S, "--json")
    assert up.returncode == 0, up.stdout + up.stderr
    disks = json.loads(up.stdout)["disks"]
    assert [(disk["broker"], disk["path"]) for disk in disks] == [(n, str(folders[n])) for n in range(3)]
    with kept_environment("RAY_AUTH_MODE"):  # a node that is added later has to be like the others
        cluster = raylog.connect(ray_address=ray_cluster.address)
    assert len(cluster.address.bootstrap) == 3, "a handle knows every controller"
    eventually(lambda: sum(each["live"] for each in cluster.status()["brokers"]) == 3, "three brokers serve")
    assert [each["rack"] for each in cluster.status()["brokers"]] == ["rack-0", "rack-1", "rack-2"]
    up = command(
        "up", "--disks", 3, "--address", ray_cluster.address, "--config", "log.roll.ms=5000", "--wait", PATIENCE_S
    )
    assert up.returncode == 0, up.stdout + up.stderr
    found = cluster.admin().describe_configs(broker="all", keys=["log.roll.ms", "num.partitions"])
    assert {name: entry.value for name, entry in found.items()} == {"log.roll.ms": "5000", "num.partitions": "2"}
    cluster.admin().create_topics([NewTopic("t", 1, 3, configs={"min.insync.replicas": "2"})])
    with cluster.producer(acks="all") as producer:
        producer.send("t", b"kept", partition=0).result(PATIENCE_S)


def test_a_blank_node_that_joins_later_becomes_a_broker_without_a_command(
    ray_cluster: Any, folders: list[Path]
) -> None:
    add_node(ray_cluster, resources(folders[3]))
    cluster = raylog.connect()
    eventually(
        lambda: [each["id"] for each in cluster.status()["brokers"] if each["live"]] == [0, 1, 2, 3], "a fourth broker"
    )
    disk = read_disk(folders[3])
    assert disk is not None and disk.broker_id == 3 and set(disk.controllers) == set(cluster.address.bootstrap)
    admin = cluster.admin()
    admin.reassign({("t", 0): [3, 0, 1]})
    eventually(lambda: not admin.list_reassignments(), "the reassignment is done")
    assert isr_is_whole(cluster, "t")


def test_a_machine_whose_disk_was_lost_is_the_same_broker_with_a_blank_one_and_its_controller_votes(
    ray_cluster: Any, nodes: dict[int, Any], folders: list[Path]
) -> None:
    cluster = raylog.connect()
    lost = {each["broker"]: each["directory_id"] for each in cluster.quorum()["voters"]}[1]
    end_node(ray_cluster, nodes[1])
    shutil.rmtree(folders[1])
    folders[1].mkdir()
    nodes[1] = add_node(ray_cluster, resources(folders[1]))

    def votes() -> bool:
        voters = {each["broker"]: each for each in cluster.quorum()["voters"]}
        return sorted(voters) == [0, 1, 2] and voters[1]["reachable"] and voters[1]["directory_id"] != lost

    eventually(votes, "a controller of the blank disk has the lost one's vote")
    eventually(lambda: isr_is_whole(cluster, "t"), "its replicas are there again")
    assert [each["id"] for each in cluster.status()["brokers"]] == [0, 1, 2, 3]
    with cluster.consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign([raylog.TopicPartition("t", 0)])
        assert [each.value for each in eventually(lambda: consumer.consume(1, timeout=1.0), "a record")] == [b"kept"]


def test_a_controller_moves_to_a_node_that_joined_later_and_up_makes_one_of_three(
    ray_cluster: Any, folders: list[Path]
) -> None:
    cluster = raylog.connect()
    moved = command("quorum", "move", "--brokers", "1,2,3", "--address", ray_cluster.address, "--json")
    assert moved.returncode == 0, moved.stderr
    assert json.loads(moved.stdout)["controllers"] == [1, 2, 3]

    def all_know() -> bool:
        voters = {each["endpoint"] for each in cluster.quorum()["voters"]}
        said = [{str(each) for each in read_disk(folder).controllers} for folder in folders]
        return len(voters) == 3 and all(each == voters for each in said)

    eventually(all_know, "every disk says where they are, and nowhere else")
    eventually(lambda: controllers(folders) == [1, 2, 3], "the actors of these disks are controllers")
    assert not (folders[0] / METADATA_FOLDER).exists()
    up = command("up", "--disks", 4, "--controllers", 1, "--address", ray_cluster.address, "--wait", PATIENCE_S)
    assert up.returncode == 0, up.stdout + up.stderr
    eventually(lambda: len(cluster.quorum()["voters"]) == 1 and len(controllers(folders)) == 1, "one is left")
    eventually(lambda: isr_is_whole(cluster, "t"), "everybody has a session with it")


def controllers(folders: list[Path]) -> list[int]:
    """The numbers of the folders whose disks have a controller's actor. (Ray keeps one for a disk that was lost, too.)"""
    names = [each["name"] for each in ray.util.list_named_actors(all_namespaces=True)]
    ids = {name.rpartition(":")[2] for name in names if name.startswith("raylog:controller:")}
    return [number for number, folder in enumerate(folders) if encode_id(read_disk(folder).directory_id) in ids]


def test_a_shutdown_ends_every_server_and_what_would_start_them_again(ray_cluster: Any, folders: list[Path]) -> None:
    down = command("down", "--address", ray_cluster.address)
    assert down.returncode == 0, down.stderr
    left: list[dict[str, str]] = []

    def all_ended() -> bool:
        left[:] = ray.util.list_named_actors(all_namespaces=True)
        return not left

    try:
        eventually(all_ended, "every actor has ended for good")
    except AssertionError as error:
        raise AssertionError(f"{error}, but {left}") from None
    status = command("status", "--address", ray_cluster.address)
    assert status.returncode == 1 and "no cluster runs" in status.stderr
    assert all(read_disk(folder) is not None for folder in folders)
