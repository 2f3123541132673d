"""A cluster on folders that the nodes of a running Ray lend, which were started without anything of raylog's."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster as RayCluster
from ray.util.placement_group import placement_group_table
from ray_clusters import PATIENCE_S, eventually, kept_environment

import raylog
from raylog import NewTopic, TopicPartition
from raylog.disks.disk import decode_id, read_disk
from raylog.errors import ClusterError, ConfigError, DiskError
from raylog.placement.groups import advertised_disks, ensure_group, group_name, lend, live_nodes, reclaim, remove_group
from raylog.placement.lending import LentDisk
from raylog.placement.ray_start import started

pytestmark = pytest.mark.ray

SMALL: dict[str, Any] = {"object_store_memory": 80 * 1024 * 1024, "num_cpus": 1}
ADDRESSES = ("127.0.0.2", "127.0.0.3")


@pytest.fixture(scope="module")
def folders(short_folder: Path) -> list[Path]:
    paths = [short_folder / f"disk-{number}" for number in range(3)]
    for path in paths:
        path.mkdir()
    return paths


@pytest.fixture(scope="module")
def ray_cluster(short_folder: Path) -> Iterator[Any]:
    """A head and two nodes, each at an address of its own."""
    with kept_environment("RAY_AUTH_MODE", "RAY_ADDRESS"):
        os.environ.pop("RAY_ADDRESS", None)
        head = {**SMALL, "include_dashboard": False}
        found = started(lambda: RayCluster(initialize_head=True, head_node_args=head))
        for address in ADDRESSES:
            started(lambda address=address: found.add_node(**SMALL, node_ip_address=address))
        ray.init(address=found.address, log_to_driver=False, logging_level="ERROR")
        yield found
        ray.shutdown()
        found.shutdown()


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "raylog.cli.main", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_S,
    )


def node_id(address: str) -> str:
    nodes: list[dict[str, Any]] = ray.nodes()
    (found,) = (node["NodeID"] for node in nodes if node["NodeManagerAddress"] == address)
    return str(found)


def values(cluster: raylog.Cluster) -> list[bytes | None]:
    with cluster.consumer() as consumer:
        consumer.assign([TopicPartition("t", 0)])
        consumer.seek_to_beginning()
        return [each.value for each in eventually(lambda: consumer.consume(1, timeout=1.0), "a record")]


def test_nodes_without_resources_lend_their_disks_and_a_second_init_opens_what_is_there(
    ray_cluster: Any, folders: list[Path]
) -> None:
    disks = {ADDRESSES[0]: folders[:2], node_id(ADDRESSES[1])[:16]: str(folders[2])}
    with raylog.init(disks=disks, configs={"num.partitions": 2}, timeout_s=PATIENCE_S) as cluster:
        assert [each["id"] for each in cluster.status()["brokers"] if each["live"]] == [0, 1]
        servers = [actor for actor in cluster.status()["actors"] if actor["endpoint"] is not None]
        homes = {(actor["broker"], actor["endpoint"].rpartition(":")[0]) for actor in servers}
        assert homes == set(enumerate(ADDRESSES))
        reserved = {each["name"]: list(each["bundles"][0]) for each in placement_group_table().values()}
        found = [read_disk(folder) for folder in folders]
        assert [disk.broker_id for disk in found if disk is not None] == [0, 0, 1]
        assert reserved == {
            group_name(disk.directory_id): [f"node:{ADDRESSES[disk.broker_id]}"] for disk in found if disk is not None
        }
        cluster.admin().create_topics([NewTopic("t", 1, 2, configs={"min.insync.replicas": "2"})])
        with cluster.producer(acks="all") as producer:
            producer.send("t", b"kept", partition=0).result(PATIENCE_S)
        again = raylog.init(disks=disks, timeout_s=PATIENCE_S)
        assert again.address.cluster_id == cluster.address.cluster_id
        assert values(again) == [b"kept"]
    with raylog.init(disks=disks, timeout_s=PATIENCE_S) as back:
        assert back.address.cluster_id == cluster.address.cluster_id
        assert values(back) == [b"kept"]


def test_what_cannot_be_lent_is_refused_and_nothing_is_lent(ray_cluster: Any, folders: list[Path]) -> None:
    with pytest.raises(ClusterError, match=r"no Ray node is '10\.9\.9\.9'.*there are 127\.0\.0\.2 \(.*127\.0\.0\.3 \("):
        raylog.init(disks={"10.9.9.9": folders[0]})
    missing, link = folders[0].parent / "missing", folders[0].parent / "link"
    link.symlink_to(folders[0])
    with pytest.raises(DiskError, match=r"node 127\.0\.0\.2 .* cannot lend .*missing: there is no folder"):
        raylog.init(disks={ADDRESSES[0]: missing})
    with pytest.raises(DiskError, match="one is a copy or another name"):
        raylog.init(disks={ADDRESSES[0]: [folders[0], link]})
    with pytest.raises(ConfigError, match="brokers cannot be given with disks of nodes"):
        raylog.init(disks={ADDRESSES[0]: folders[0]}, brokers=2)
    assert not ray.util.list_named_actors(all_namespaces=True), "nothing was started"


def test_a_node_lends_and_reclaims_its_folder_by_command(ray_cluster: Any, short_folder: Path) -> None:
    folder = short_folder / "late"
    folder.mkdir()
    lent = command("node", "lend", folder, "--address", ray_cluster.address, "--json")
    assert lent.returncode == 0, lent.stderr
    (said,) = json.loads(lent.stdout)
    head = ray.util.get_node_ip_address()
    assert (said["host"], said["path"]) == (head, str(folder))
    offered = advertised_disks()[decode_id(said["directory_id"])]
    assert (offered.path, offered.node_ip, offered.is_lent) == (folder, head, True)
    shutil.rmtree(folder)
    folder.mkdir()
    assert command("node", "lend", folder, "--address", ray_cluster.address).returncode == 0
    assert [
        each.directory_id == offered.directory_id for each in advertised_disks().values() if each.path == folder
    ] == [False], "a folder that was replaced is lent once"
    back = command("node", "reclaim", folder, "--address", ray_cluster.address)
    assert back.returncode == 0 and f"lends {folder} no longer" in back.stdout, back.stderr
    assert not [each for each in advertised_disks().values() if each.path == folder]
    again = command("node", "reclaim", folder, "--address", ray_cluster.address)
    assert again.returncode == 1 and "is not lent by" in again.stderr


def test_a_disk_that_is_lent_at_another_address_is_given_another_group(ray_cluster: Any) -> None:
    directory_id = uuid.uuid4()
    nodes = {node.address: node for node in live_nodes()}
    try:
        for address in ADDRESSES:
            lend(LentDisk(directory_id, nodes[address].node_id, address, Path("/moves")))
            group = ensure_group(directory_id, timeout_s=PATIENCE_S)
            assert list(group.bundle_specs[0]) == [f"node:{address}"]
            assert ensure_group(directory_id).id == group.id
    finally:
        remove_group(directory_id)
        assert reclaim(ADDRESSES[1], Path("/moves"))
