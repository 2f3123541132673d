"""Pinning on a real Ray of several nodes, proven from Ray's own state: node and bundle of an actor are its disk's."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster
from ray.util.state import get_actor, get_placement_group

from raylog.disks.disk import format_disk, open_disk, read_reservation
from raylog.errors import ClusterError, DiskError
from raylog.placement import groups
from raylog.placement.groups import actor_options, advertised_disks, ensure_group, find_group, remove_group
from raylog.placement.lending import LentDisk
from raylog.placement.ray_start import started
from raylog.placement.resources import NAMESPACE, advertisement, disk_resource, node_resources

PATIENCE_S = 180.0  # Ray's workers import this file, where they don't find the helpers of tests


def test_node_resources_are_read_from_the_folders(tmp_path: Path) -> None:
    disks = [
        format_disk(tmp_path / str(index), cluster_id="c", broker_id=0, rack=None, controllers=[], secret="s")
        for index in range(2)
    ]
    assert node_resources([disk.path for disk in disks]) == {disk_resource(disk.directory_id): 1000 for disk in disks}
    with pytest.raises(DiskError, match="not formatted"):
        node_resources([tmp_path / "none"])


def test_a_copied_disk_is_refused(tmp_path: Path) -> None:
    disk = format_disk(tmp_path / "a", cluster_id="c", broker_id=0, rack=None, controllers=[], secret="s")
    shutil.copytree(disk.path, tmp_path / "b")
    with pytest.raises(DiskError, match="one is a copy"):
        node_resources([disk.path, tmp_path / "b"])


def test_an_advertisement_leads_back_to_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "my_group_0 and more"
    folder.mkdir()
    resources = advertisement([folder])
    (name,) = (each for each in resources if each.startswith("raylog:folder:"))
    assert "_group_" not in name and " " not in name, "Ray would read a placement group into it"
    node = {"NodeID": "n", "Alive": True, "NodeManagerAddress": "10.0.0.1", "Resources": resources}
    monkeypatch.setattr(ray, "nodes", lambda: [node | {"Labels": {"ray.io/availability-zone": "zone-1"}}])
    notes: dict[str, bytes] = {}
    monkeypatch.setattr(groups, "notes", lambda prefix: notes)
    (disk,) = advertised_disks().values()
    assert disk.path == folder and disk.rack == "zone-1"
    monkeypatch.setattr(
        ray, "nodes", lambda: [node | {"Labels": {"raylog/rack": "r", "ray.io/availability-zone": "z"}}]
    )
    assert advertised_disks()[disk.directory_id].rack == "r"
    lent = LentDisk(uuid.uuid4(), "an earlier node's", "10.0.0.1", Path("/lent"))
    elsewhere = LentDisk(uuid.uuid4(), "m", "10.0.0.2", Path("/away"))
    notes.update({str(each.directory_id): each.note() for each in (lent, elsewhere)})
    notes[str(disk.directory_id)] = lent.note()
    offered = advertised_disks()
    assert offered.keys() == {disk.directory_id, lent.directory_id}, "a node that is away lends nothing"
    assert not offered[disk.directory_id].is_lent, "its resource counts before a note"
    found = offered[lent.directory_id]
    assert (found.ray_node_id, found.path, found.rack, found.is_lent) == ("n", Path("/lent"), "r", True)


def eventually(holds: Callable[[], Any], timeout_s: float = PATIENCE_S) -> Any:
    """Wait for a condition; its last value when the time is over."""
    deadline = time.monotonic() + timeout_s
    while not (value := holds()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return value


class Where:
    """An actor that says what it is."""

    def node(self) -> str:
        return str(ray.get_runtime_context().get_node_id())

    def niceness(self) -> int:
        return os.nice(0)


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A Ray of its own with one node that offers no disk; the test adds others."""
    folder = tempfile.mkdtemp(prefix="rl-")
    os.mkdir(f"{folder}/ray")
    monkeypatch.setenv("RAY_TMPDIR", folder)  # so that nobody's address="auto" finds this Ray
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    head = {"num_cpus": 1, "include_dashboard": True, "dashboard_port": 0, "object_store_memory": 80 * 1024 * 1024}
    cluster = started(lambda: Cluster(initialize_head=True, head_node_args=head))
    try:
        ray.init(address=cluster.address, namespace="a-user", log_to_driver=False, logging_level="error")
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


def add_node(nodes: Cluster, *directory_ids: uuid.UUID) -> Any:
    resources = {disk_resource(directory_id): 1000 for directory_id in directory_ids}
    return started(lambda: nodes.add_node(num_cpus=1, object_store_memory=80 * 1024 * 1024, resources=resources))


@pytest.mark.ray
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_actors_live_on_their_disks_node_in_its_bundle_and_follow_the_disk(nodes: Cluster) -> None:
    first, second, missing = uuid.uuid4(), uuid.uuid4(), uuid.uuid4()
    node_of = {first: add_node(nodes, first), second: add_node(nodes, second)}
    ray_class = ray.remote(Where)
    assert eventually(lambda: set(advertised_disks()) == {first, second})

    # A disk that nobody offers is named, with the way to offer it.
    with pytest.raises(ClusterError, match="raylog:disk:"):
        ensure_group(missing, timeout_s=0.2)
    remove_group(missing)
    remove_group(uuid.uuid4())

    for directory_id, node in node_of.items():
        group = ensure_group(directory_id)
        assert ensure_group(directory_id).id == group.id
        actor = ray_class.options(**actor_options(directory_id, name=f"w-{directory_id}")).remote()
        assert (
            ray.get(actor.node.remote(), timeout=PATIENCE_S)
            == node.node_id
            == advertised_disks()[directory_id].ray_node_id
        )
        assert ray.get(actor.niceness.remote(), timeout=PATIENCE_S) == os.nice(0)
        actor_id = actor._actor_id.hex()
        state = eventually(lambda actor_id=actor_id: get_actor(actor_id))
        assert state.node_id == node.node_id and state.placement_group_id == group.id.hex()
        bundles = get_placement_group(group.id.hex()).bundles
        assert [bundle["node_id"] for bundle in bundles] == [node.node_id]

    # Another namespace finds the same group and the same actor.
    group_id = ensure_group(first).id
    ray.shutdown()
    ray.init(address=nodes.address, namespace="another-user", log_to_driver=False, logging_level="error")
    found = find_group(first)
    assert found is not None and found.id == group_id
    assert (
        ray.get(ray.get_actor(f"w-{first}", namespace=NAMESPACE).node.remote(), timeout=PATIENCE_S)
        == node_of[first].node_id
    )

    # The disk's node goes, the folder comes back on another one: the group moves there, and so does a new actor.
    nodes.remove_node(node_of[first])
    moved = add_node(nodes, first)
    assert eventually(lambda: first in advertised_disks() and advertised_disks()[first].ray_node_id == moved.node_id)
    actor = ray_class.options(**actor_options(first, name=f"again-{first}", timeout_s=PATIENCE_S)).remote()
    assert ray.get(actor.node.remote(), timeout=PATIENCE_S) == moved.node_id
    assert ensure_group(first).id == group_id

    # Without disk resources an actor is pinned by the address of a node.
    address = advertised_disks()[second].node_ip
    pinned = ray_class.options(**actor_options(uuid.uuid4(), name="by-address", node_ip=address)).remote()
    assert ray.get(pinned.node.remote(), timeout=PATIENCE_S) in {
        node.node_id for node in (nodes.head_node, moved, node_of[second])
    }


def test_a_nodes_configs_are_noted_on_blank_and_on_formatted_disks(tmp_path: Path) -> None:
    blank, formatted = tmp_path / "blank", tmp_path / "formatted"
    blank.mkdir()
    format_disk(formatted, cluster_id="c", broker_id=0, rack=None, controllers=[], secret="s")
    said = (("min.insync.replicas", "2"), ("num.partitions", "4"))
    advertisement([blank, formatted], configs=said)
    reserved = read_reservation(blank)
    assert reserved is not None and reserved.configs == said and open_disk(formatted).configs == said
    advertisement([blank, formatted])
    assert format_disk(blank, cluster_id="c", broker_id=1, rack=None, controllers=[], secret="s").configs == said
    assert open_disk(formatted).configs == open_disk(blank).configs == said
