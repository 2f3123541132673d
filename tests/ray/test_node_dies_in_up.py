"""A machine that dies while `raylog up --disks` makes a cluster of three: the command goes on waiting, and ends well once it is back."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ray_clusters import PATIENCE_S, eventually
from ray_nodes import SMALL, end_node, head_without_disks

import raylog
from raylog import NewTopic
from raylog.disks.disk import METADATA_FOLDER, read_disk, read_reservation
from raylog.placement.ray_start import started
from raylog.placement.resources import advertisement

pytestmark = [pytest.mark.ray, pytest.mark.slow]


def is_promised(folder: Path) -> bool:
    """The cluster is being founded, and this disk knows what it is to become."""
    reserved = read_reservation(folder)
    return reserved is not None and reserved.cluster_id is not None


def is_formatted(folder: Path) -> bool:
    return read_disk(folder) is not None


def has_controller(folder: Path) -> bool:
    """The controller on this disk has written where it listens."""
    disk = read_disk(folder)
    return disk is not None and disk.controller_endpoint is not None and (folder / METADATA_FOLDER).exists()


@pytest.fixture
def ray_cluster() -> Iterator[Any]:
    with head_without_disks() as found:
        yield found


@pytest.mark.parametrize("moment", [is_promised, is_formatted, has_controller])
def test_a_node_that_dies_while_up_runs_is_waited_for(
    ray_cluster: Any, short_folder: Path, moment: Callable[[Path], bool]
) -> None:
    folders = [short_folder / moment.__name__ / f"machine-{number}" for number in range(3)]
    nodes = []

    def add(folder: Path) -> Any:
        return started(lambda: ray_cluster.add_node(**SMALL, resources=advertisement([folder])))

    for folder in folders:
        folder.mkdir(parents=True)
        nodes.append(add(folder))
    asked = ("up", "--disks", "3", "--address", ray_cluster.address, "--wait", str(3 * PATIENCE_S), "--json")
    with subprocess.Popen(
        [sys.executable, "-m", "raylog.cli.main", *asked], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as up:
        eventually(lambda: moment(folders[2]), moment.__name__)
        end_node(ray_cluster, nodes[2])
        nodes[2] = add(folders[2])
        out, err = up.communicate(timeout=4 * PATIENCE_S)
    assert up.returncode == 0, err
    assert [each["broker"] for each in json.loads(out)["disks"]] == [0, 1, 2]
    cluster = raylog.connect(ray_address=ray_cluster.address)
    eventually(lambda: sum(each["live"] for each in cluster.status()["brokers"]) == 3, "three brokers serve")
    eventually(lambda: sum(each["reachable"] for each in cluster.quorum()["voters"]) == 3, "three controllers vote")
    cluster.admin().create_topics([NewTopic("t", 3, 3, configs={"min.insync.replicas": "3"})])
    with cluster.producer(acks="all") as producer:
        for partition in range(3):
            producer.send("t", b"kept", partition=partition).result(PATIENCE_S)
