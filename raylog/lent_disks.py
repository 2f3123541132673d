"""A cluster on folders that nodes of a running Ray lend: what ``raylog.init(disks=…)`` does. Those
nodes were started without anything of raylog's, by whom ever.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from raylog.cluster import DEFAULT_NAME, Cluster, arrange, arrangement, find, use_ray
from raylog.disks.disk import encode_id
from raylog.disks.link_file import Links
from raylog.errors import ClusterError
from raylog.placement.lending import Folders
from raylog.placement.ray_connection import Deadline, is_connected
from raylog.readiness import await_brokers, await_voters
from raylog.starting import Start

_ASK_EVERY_S = 0.2
_CONTROLLERS_END_S = 30.0


class NodesCluster(Cluster):
    """The handle of the process that has started or found the cluster. A pickled copy is a
    ``Cluster``.
    """

    def shutdown(self, timeout_s: float | None = None) -> None:
        """Do what ``Cluster.shutdown`` does, and wait until Ray has ended the controllers, so that
        the next ``init`` does not meet them.
        """
        super().shutdown(timeout_s)
        deadline = Deadline.after(_CONTROLLERS_END_S)
        while is_connected() and self._has_controllers() and not deadline.has_passed:
            time.sleep(_ASK_EVERY_S)

    def _has_controllers(self) -> bool:
        import ray

        from raylog.actors.ray_launcher import CONTROLLER_PREFIX

        mine = f"{CONTROLLER_PREFIX}{self.address.cluster_id}:"
        return any(each["name"].startswith(mine) for each in ray.util.list_named_actors(all_namespaces=True))


def start_on_nodes(
    disks: Mapping[str, Folders],
    start: Start,
    *,
    controllers: int | None = None,
    configs: Mapping[str, Any] | None = None,
    links: Links | None = None,
    name: str = DEFAULT_NAME,
    ray_address: str | None = None,
) -> Cluster:
    """Have nodes lend these folders, and start or find the cluster on them. Waits until all brokers
    of these disks serve. ``links``: how links inside have TLS, by files of each node.

    Raises RayError for a Ray that cannot be used, ClusterError for nodes that are not there, for
    disks of two clusters and where nothing moves, and DiskError for a folder that cannot be used.
    """
    use_ray(ray_address, start.patience.still_s)
    from raylog.actors.node_work import lend_folders

    lent = {encode_id(each.directory_id) for each in lend_folders(disks, links)}
    is_started_here = arrangement() is None
    arrange(
        len(lent), controllers=controllers, configs=configs, ray_address=ray_address, timeout_s=start.patience.still_s
    )
    with start.phase("disks"):
        state = _await_registered(lent, start)
    cluster = NodesCluster(find(name=name).address, is_started_here=is_started_here)
    with start.phase("brokers"):
        await_brokers(cluster, {each["broker"] for each in state["disks"] if each["directory_id"] in lent}, start)
    with start.phase("voters"):
        await_voters(cluster, controllers or len(state["controllers"]), start)
    return cluster


def _await_registered(lent: set[str], start: Start) -> dict[str, Any]:
    """How things stand once all these disks, by their directory ids, are the cluster's."""
    missing = "the provisioner does not answer"
    while True:
        state = arrangement()
        if state is not None:
            registered = {each["directory_id"] for each in state["disks"] if each["registered"]}
            late = len(lent - registered)
            if not late and state["missing"] is None:
                return state
            missing = state["missing"] or f"{late} of {len(lent)} lent disks are not registered yet"
            start.saw((len(state["disks"]), len(state["controllers"]), len(registered)), missing)
        if start.patience.has_ended:
            raise ClusterError(
                f"nothing has moved for {start.patience.still_s:g} s: {missing}. It goes on by itself, and the same call again "
                "waits for it"
            )
        time.sleep(_ASK_EVERY_S)
