"""Pinning actors to disks with Ray's own scheduler.

A Ray node that holds a disk was started with the resource ``raylog:disk:<directory id>`` (capacity
1,000; ``resources`` says it). One detached placement group per disk reserves the whole of it, and
every actor that writes to the disk is scheduled into that group with ``num_cpus=0`` and 1 of the
resource: an actor that asked for no resource would ignore its group. When the folder reappears on
another Ray node, Ray moves the group there and actors created later follow.

Where several nodes form a cluster, only the node itself sees a disk's folder, so it says besides
where that is: by a resource ``raylog:folder:<directory id>:<path>`` of capacity 1
(``advertisement``), blank folders included. Resources are told once, when a node starts; so they
say which folder it is and nothing of what is in it.

A folder may be lent by a node that was started without such a resource (``lend``): the head keeps
a note of it, and the disk's group reserves a share of the node's own ``node:<ip>``, which every Ray
node has. Such a disk does not move by itself. Lent again on another node, it is given another
group. A node that offers a disk by its resource counts before a note.

An embedded cluster on a Ray without disk resources is pinned by the address: no group, and each
actor takes 0.001 of the node's own ``node:<ip>``. The caller says so to the user once
(``ADDRESS_PIN_NOTICE``).

Every function here asks Ray's head and blocks while the head is away, so servers call them in a
thread. All are idempotent and work from any namespace: groups are found by their name, which holds
the directory id. Knows nothing of topics.

On a Ray that somebody else started, an actor that is pinned to this node's address names
``worker_setup`` as its interpreter, so that its process is forked from one that has imported
everything. A disk's group may move to a machine where Python is elsewhere: there Ray starts
processes in its own way.

Server actors run at nice 0 (Ray's workers have 15). They can't drop fields of a job's
``runtime_env`` here, because Ray merges an actor's environment with its job's; who creates the
first actor does that from a job without one.
"""

from __future__ import annotations

import shlex
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.util.placement_group import (
    PlacementGroup,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from raylog.disks.disk import encode_id
from raylog.errors import ClusterError
from raylog.placement.lending import LentDisk, LiveNode
from raylog.placement.local_ray import python_of_workers
from raylog.placement.ray_private import drop_note, keep_note, notes
from raylog.placement.resources import (
    DISK_CAPACITY,
    FOLDER_PREFIX,
    NAMESPACE,
    RESOURCE_PREFIX,
    disk_resource,
    read_folder,
)
from raylog.types import SERVER_PROCESS

ADDRESS_SHARE = 0.001
LENT_DISK_SHARE = 0.02
"""Of the node's own resource, so that fifty disks of a node can be lent."""
LENT_ACTOR_SHARE = 0.0001
"""The least that Ray counts: 200 actors for a disk."""
WORKER_SETUP = "raylog.placement.worker_setup"
ADDRESS_PIN_NOTICE = (
    "this Ray was started without disk resources: replicas are pinned by node address; start nodes with "
    '`ray start --resources="$(raylog node resources FOLDER)"` to let disks move'
)
_ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": str(8 << 20), "MALLOC_TRIM_THRESHOLD_": str(8 << 20)}
"""Buffers of a megabyte come and go with every fetch: kept by the process, they cost no page faults
(7 % of a leader's CPU time).
"""
RACK_LABELS = ("raylog/rack", "ray.io/availability-zone")
"""Labels of a Ray node that name its rack, the first that is there."""
_GROUP_PREFIX = "raylog-disk-"
_LENT_PREFIX = "lent:"


@dataclass(frozen=True, slots=True)
class AdvertisedDisk:
    """A disk that a live Ray node offers. ``path``: where its folder is on that node, if the node
    says so. ``is_lent``: by a note, not by a resource of its own.
    """

    directory_id: uuid.UUID
    ray_node_id: str
    node_ip: str
    path: Path | None = None
    rack: str | None = None
    is_lent: bool = False

    @property
    def bundle(self) -> dict[str, float]:
        """What the disk's group reserves."""
        return {f"node:{self.node_ip}": LENT_DISK_SHARE} if self.is_lent else _own_bundle(self.directory_id)


def _own_bundle(directory_id: uuid.UUID) -> dict[str, float]:
    return {disk_resource(directory_id): DISK_CAPACITY}


def group_name(directory_id: uuid.UUID) -> str:
    """The name of a disk's placement group."""
    return _GROUP_PREFIX + encode_id(directory_id)


def advertised_disks() -> dict[uuid.UUID, AdvertisedDisk]:
    """The disks that live Ray nodes offer now, by directory id."""
    found: dict[uuid.UUID, AdvertisedDisk] = {}
    racks: dict[LiveNode, str | None] = {}
    for node in _live_nodes():
        labels = node.get("Labels") or {}
        rack = next((labels[label] for label in RACK_LABELS if labels.get(label)), None)
        racks[LiveNode(node["NodeID"], node["NodeManagerAddress"])] = rack
        paths = dict(read_folder(name) for name in node["Resources"] if name.startswith(FOLDER_PREFIX))
        for name in node["Resources"]:
            if name.startswith(RESOURCE_PREFIX):
                directory_id = uuid.UUID(name.removeprefix(RESOURCE_PREFIX))
                found[directory_id] = AdvertisedDisk(
                    directory_id, node["NodeID"], node["NodeManagerAddress"], paths.get(directory_id), rack
                )
    for lent in _lent_disks():
        nodes = [node for node in racks if node.address == lent.address]
        if nodes and lent.directory_id not in found:
            node_id = lent.node_id if lent.node_id in {node.node_id for node in nodes} else nodes[0].node_id
            rack = racks[LiveNode(node_id, lent.address)]
            found[lent.directory_id] = AdvertisedDisk(
                lent.directory_id, node_id, lent.address, lent.path, rack, is_lent=True
            )
    return found


def live_nodes() -> list[LiveNode]:
    """The Ray nodes that are alive."""
    return [LiveNode(node["NodeID"], node["NodeManagerAddress"]) for node in _live_nodes()]


def lend(disk: LentDisk) -> None:
    """Note that the node offers the disk from now on. Earlier notes of the disk, and of its folder,
    are replaced.
    """
    keep_note(_LENT_PREFIX + str(disk.directory_id), disk.note())
    for each in _lent_disks():
        if (each.address, each.path) == (disk.address, disk.path) and each.directory_id != disk.directory_id:
            drop_note(_LENT_PREFIX + str(each.directory_id))


def reclaim(address: str, path: Path) -> bool:
    """Lend that folder of the node at the address no longer. Whether it was lent."""
    lent = [each for each in _lent_disks() if (each.address, each.path) == (address, path)]
    for each in lent:
        drop_note(_LENT_PREFIX + str(each.directory_id))
    return bool(lent)


def _lent_disks() -> list[LentDisk]:
    return [LentDisk.of_note(uuid.UUID(key), note) for key, note in sorted(notes(_LENT_PREFIX).items())]


def _live_nodes() -> list[dict[str, Any]]:
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return [node for node in sorted(nodes, key=lambda each: str(each["NodeID"])) if node["Alive"]]


def find_group(directory_id: uuid.UUID) -> PlacementGroup | None:
    """The disk's placement group, if there is one."""
    wanted = group_name(directory_id)
    for group_id, entry in sorted(placement_group_table().items()):
        if entry["name"] == wanted and entry["state"] != "REMOVED":
            return PlacementGroup(ray.PlacementGroupID.from_hex(group_id))
    return None


def ensure_group(directory_id: uuid.UUID, *, timeout_s: float = 10) -> PlacementGroup:
    """The disk's placement group, made if missing, with its resource reserved. A group on what no
    node offers the disk by any more is replaced.

    Raises ClusterError if no live node offers the disk within ``timeout_s``; the group stays
    pending, and is placed when one does.
    """
    group = find_group(directory_id)
    offered = advertised_disks().get(directory_id)
    if group is not None and offered is not None and group.bundle_specs[0].keys() != offered.bundle.keys():
        remove_placement_group(group)
        group = None
    if group is None:
        group = placement_group(
            [_own_bundle(directory_id) if offered is None else offered.bundle],
            strategy="STRICT_PACK",
            name=group_name(directory_id),
            lifetime="detached",
        )
    if not group.wait(timeout_s):
        raise ClusterError(
            f"no live Ray node offers disk {encode_id(directory_id)}: start its node with "
            f"--resources='{{\"{disk_resource(directory_id)}\": {DISK_CAPACITY}}}', or lend its folder again"
        )
    return group


def remove_group(directory_id: uuid.UUID) -> None:
    """Give the disk's reservation back; actors in the group end."""
    group = find_group(directory_id)
    if group is not None:
        remove_placement_group(group)


def actor_options(
    directory_id: uuid.UUID,
    *,
    name: str,
    node_ip: str | None = None,
    group: PlacementGroup | None = None,
    timeout_s: float = 10,
) -> dict[str, Any]:
    """The ``options(...)`` of a server actor that writes to that disk: detached, named, pinned, no
    CPU, nice 0.

    With ``node_ip``, which is this node's, it is pinned by address, else into the disk's group
    (``group``, or looked up and made).
    """
    options: dict[str, Any] = {
        "name": name,
        "namespace": NAMESPACE,
        "lifetime": "detached",
        "num_cpus": 0,
        "runtime_env": {"env_vars": {"RAY_worker_niceness": "0", SERVER_PROCESS: "1", **_ALLOCATOR}},
    }
    if node_ip is not None:
        python = python_of_workers(str(ray.get_runtime_context().get_node_id()))
        if python is not None:
            options["runtime_env"]["py_executable"] = f"{shlex.quote(python)} -P -m {WORKER_SETUP}"
        return options | {"resources": {f"node:{node_ip}": ADDRESS_SHARE}, "scheduling_strategy": "DEFAULT"}
    group = group or ensure_group(directory_id, timeout_s=timeout_s)
    (resource,) = group.bundle_specs[0]
    share = 1 if resource == disk_resource(directory_id) else LENT_ACTOR_SHARE
    strategy = PlacementGroupSchedulingStrategy(placement_group=group, placement_group_bundle_index=0)
    return options | {"resources": {resource: share}, "scheduling_strategy": strategy}
