"""A Ray of three nodes, one disk and one broker each, and the raylog cluster on it; nodes go and come back with their disks.

Ray runs with its own token authentication, as it does for a user. With ``faults`` every server process is started with the hooks of
``tests/support/server_hooks``, so that its disk and its network can be made to fail by command (``server_faults``).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import ray
from ray.cluster_utils import Cluster as RayCluster
from ray_clusters import PATIENCE_S, kept_environment

import raylog
from raylog.placement.disks import encode_id, format_disk, new_id
from raylog.placement.groups import node_resources

BROKERS = 3
HOOKS = Path(__file__).parent / "server_hooks"
_SMALL: dict[str, Any] = {"object_store_memory": 80 * 1024 * 1024, "num_cpus": 1}


class RayNodes:
    """The nodes by broker. Broker 0's is Ray's head and stays."""

    def __init__(self, folder: Path, controllers: int) -> None:
        self.folder = folder
        self.disks = {broker: folder / f"broker-{broker}" for broker in range(BROKERS)}
        cluster_id, secret = encode_id(new_id()), "a secret of this test"
        for broker, path in self.disks.items():
            format_disk(path, cluster_id=cluster_id, broker_id=broker, rack=None, controllers=[], secret=secret)
        head = {**_SMALL, "resources": node_resources([self.disks[0]]), "include_dashboard": False}
        self._ray = RayCluster(initialize_head=True, head_node_args=head)
        self._nodes = {broker: self._add(broker) for broker in range(1, BROKERS)}
        with kept_environment("RAY_AUTH_MODE"):  # a node that is added later has to be like the others
            self.cluster = raylog.init(
                folder, controllers=controllers, ray_address=self._ray.address, timeout_s=PATIENCE_S
            )

    def _add(self, broker: int) -> Any:
        return self._ray.add_node(**_SMALL, resources=node_resources([self.disks[broker]]))

    def remove(self, broker: int) -> None:
        """End the node of that broker and every process on it, without a word to them."""
        self._ray.remove_node(self._nodes.pop(broker), allow_graceful=False)

    def restore(self, broker: int) -> None:
        """A new node with that broker's disk."""
        self._nodes[broker] = self._add(broker)

    def stop(self) -> None:
        try:
            self.cluster.shutdown()
        finally:
            ray.shutdown()
            self._ray.shutdown()


@contextmanager
def ray_nodes(
    folder: Path, *, controllers: int = 1, faults: Path | None = None, memory_headroom_bytes: int | None = None
) -> Iterator[RayNodes]:
    """Three nodes, with their disks under ``folder``, and one controller or three; ended at the end.

    ``memory_headroom_bytes``: Ray's memory monitor acts when so much more memory than now is in use.
    """
    with kept_environment("PYTHONPATH", "RAYLOG_TEST_FAULTS", "RAY_memory_usage_threshold"):
        if memory_headroom_bytes is not None:
            memory = psutil.virtual_memory()
            threshold = (memory.total - memory.available + memory_headroom_bytes) / memory.total
            os.environ["RAY_memory_usage_threshold"] = f"{min(threshold, 0.95):.4f}"  # noqa: SIM112 (its name)
        if faults is not None:
            os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HOOKS), os.environ.get("PYTHONPATH")]))
            os.environ["RAYLOG_TEST_FAULTS"] = str(faults)
        nodes = RayNodes(folder, controllers)
        try:
            yield nodes
        finally:
            nodes.stop()
