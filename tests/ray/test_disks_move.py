"""Replicas stay with their disks on a Ray of several nodes, seen from Ray's own state."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster as RayCluster
from ray.util.placement_group import placement_group_table
from ray.util.state import list_actors
from ray_clusters import PATIENCE_S, eventually, isr_is_whole, kept_environment, partition_of

import raylog
from raylog import NewTopic, TopicPartition
from raylog.disks.disk import decode_id, encode_id, format_disk, new_id, open_disk
from raylog.placement.groups import group_name
from raylog.placement.ray_start import started
from raylog.placement.resources import NAMESPACE, disk_resource, node_resources

pytestmark = pytest.mark.ray


@dataclass
class ThreeNodes:
    """A Ray of three nodes, one disk each, and the raylog cluster on it."""

    ray_cluster: Any
    nodes: dict[int, Any]
    folder: Path
    cluster: raylog.Cluster


@pytest.fixture(scope="module")
def three_nodes(short_folder: Path) -> Iterator[ThreeNodes]:
    folder = short_folder / "data"
    cluster_id, secret = encode_id(new_id()), "a secret of this test"
    resources = []
    for broker in range(3):
        disk = format_disk(
            folder / f"broker-{broker}",
            cluster_id=cluster_id,
            broker_id=broker,
            rack=None,
            controllers=[],
            secret=secret,
        )
        resources.append(node_resources([disk.path]))
    small = {"object_store_memory": 80 * 1024 * 1024, "num_cpus": 1}
    head = {**small, "resources": resources[0], "include_dashboard": True, "dashboard_port": free_port()}
    ray_cluster = started(lambda: RayCluster(initialize_head=True, head_node_args=head))
    nodes = {broker: add_node(ray_cluster, resources[broker]) for broker in (1, 2)}
    with kept_environment("RAY_AUTH_MODE"):  # a node that is added later has to be like the others
        cluster = raylog.init(folder, ray_address=ray_cluster.address, timeout_s=PATIENCE_S)
    cluster.admin().create_topics([NewTopic("moves", 1, 3, configs={"min.insync.replicas": "2"})])
    eventually(lambda: isr_is_whole(cluster, "moves"), "all replicas of moves in sync")
    yield ThreeNodes(ray_cluster, nodes, folder, cluster)
    cluster.shutdown()
    ray.shutdown()
    ray_cluster.shutdown()


def add_node(ray_cluster: Any, resources: dict[str, int]) -> Any:
    settings = {"object_store_memory": 80 * 1024 * 1024, "num_cpus": 1, "resources": resources}
    return started(lambda: ray_cluster.add_node(**settings))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def replicas_by_disk() -> dict[str, Any]:
    found = list_actors(address=ray.get_runtime_context().gcs_address, detail=True, limit=1000)
    replicas = [each for each in found if each.state == "ALIVE" and each.class_name == "PartitionReplicaActor"]
    return {each.name.split(":")[1]: each for each in replicas}


def test_each_replica_is_on_the_node_and_in_the_bundle_of_its_disk(three_nodes: ThreeNodes) -> None:
    node_of_resource = {
        name: node["NodeID"]
        for node in ray.nodes()
        if node["Alive"]
        for name in node["Resources"]
        if name.startswith("raylog:disk:")
    }
    groups = {entry["name"]: entry for entry in placement_group_table().values()}
    found = replicas_by_disk()
    assert len(found) == 3 and len(set(node_of_resource.values())) == 3
    for encoded, actor in found.items():
        directory_id = decode_id(encoded)
        group = groups[group_name(directory_id)]
        assert actor.placement_group_id == group["placement_group_id"]
        assert actor.ray_namespace == NAMESPACE and actor.is_detached
        assert group["bundles_to_node_id"][0] == node_of_resource[disk_resource(directory_id)] == actor.node_id


def test_a_disk_that_reappears_on_a_new_node_brings_its_replicas(three_nodes: ThreeNodes) -> None:
    cluster, folder = three_nodes.cluster, three_nodes.folder
    with cluster.producer(acks="all") as producer:
        before = producer.send("moves", b"before the node went", partition=0).result(PATIENCE_S)
    old_node = three_nodes.nodes[2]
    old_node_id = old_node.node_id
    three_nodes.ray_cluster.remove_node(old_node)
    eventually(lambda: 2 in partition_of(cluster, "moves")["offline"], "broker 2's replica is gone")
    with cluster.producer(acks="all") as producer:
        during = producer.send("moves", b"while it was away", partition=0).result(PATIENCE_S)
    assert during.offset > before.offset
    three_nodes.nodes[2] = add_node(three_nodes.ray_cluster, node_resources([folder / "broker-2"]))
    eventually(lambda: isr_is_whole(cluster, "moves"), "broker 2's replica in sync again")
    encoded = encode_id(open_disk(folder / "broker-2").directory_id)
    now_on = replicas_by_disk()[encoded].node_id
    assert now_on == three_nodes.nodes[2].node_id != old_node_id
    with cluster.consumer() as consumer:
        consumer.assign([TopicPartition("moves", 0)])
        consumer.seek(TopicPartition("moves", 0), before.offset)
        found: list[Any] = []
        eventually(lambda: found.extend(consumer.consume(2, timeout=1.0)) or len(found) >= 2, "both records")
    assert [record.value for record in found[:2]] == [b"before the node went", b"while it was away"]


def test_a_shutdown_leaves_nothing_behind_on_a_ray_that_was_there_before(three_nodes: ThreeNodes) -> None:
    three_nodes.cluster.shutdown()
    assert ray.is_initialized()
    eventually(lambda: not ray.util.list_named_actors(all_namespaces=True), "every server actor has ended for good")
