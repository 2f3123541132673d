"""A Ray of three nodes with one disk and one broker each, and the raylog cluster on it; nodes go and come back with their disks.

Ray's head is a fourth node, without a disk: any broker's node may go. The head notices within five seconds that a node is gone (by
Ray's own defaults within fifteen), so that a soak has time for many. Ray runs with its own token authentication, as it does
for a user. With ``faults`` every server process is started with the hooks of ``tests/support/server_hooks``, so that its disk
and its network can be made to fail by command (``server_faults``).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import psutil
import ray
from ray.cluster_utils import Cluster as RayCluster
from ray_clusters import PATIENCE_S, kept_environment

import raylog
from raylog.disks.disk import encode_id, format_disk, new_id
from raylog.placement.ray_environment import RAY_STARTUPS
from raylog.placement.ray_start import started
from raylog.placement.resources import node_resources

BROKERS = 3
HOOKS = Path(__file__).parent / "server_hooks"
EATER = Path(__file__).parent / "memory_eater.py"
SMALL: dict[str, Any] = {"object_store_memory": 80 * 1024 * 1024, "num_cpus": 1}
_WATCHFUL = {"health_check_period_ms": 1_000, "health_check_failure_threshold": 5}


@contextmanager
def head_without_disks() -> Iterator[Any]:
    """A Ray of a head alone, to which a test adds nodes; this process is connected to no other."""
    with kept_environment("RAY_AUTH_MODE", "RAY_ADDRESS"):
        os.environ.pop("RAY_ADDRESS", None)
        head = {**SMALL, "include_dashboard": False}
        found = started(lambda: RayCluster(initialize_head=True, head_node_args=head))
        yield found
        ray.shutdown()
        found.shutdown()


class RayNodes:
    """The nodes by broker; Ray's head has none."""

    def __init__(self, folder: Path, controllers: int) -> None:
        self.folder = folder
        self.disks = {broker: folder / f"broker-{broker}" for broker in range(BROKERS)}
        cluster_id, secret = encode_id(new_id()), "a secret of this test"
        for broker, path in self.disks.items():
            format_disk(path, cluster_id=cluster_id, broker_id=broker, rack=None, controllers=[], secret=secret)
        head = {**SMALL, "include_dashboard": False, "_system_config": _WATCHFUL}
        self._ray = started(lambda: RayCluster(initialize_head=True, head_node_args=head))
        self._nodes = {broker: self._add(broker) for broker in range(BROKERS)}
        with kept_environment("RAY_AUTH_MODE"):  # a node that is added later has to be like the others
            self.cluster = raylog.init(
                folder, controllers=controllers, ray_address=self._ray.address, timeout_s=PATIENCE_S
            )
        ray.shutdown()  # it would say of every node that goes that it is gone; the servers' lives hang on no driver

    def _add(self, broker: int, environment: dict[str, str] | None = None) -> Any:
        settings = {**SMALL, "resources": node_resources([self.disks[broker]]), "env_vars": environment}
        return started(lambda: self._ray.add_node(**settings))

    def remove(self, broker: int) -> None:
        """End the node of that broker and every process on it at once, without a word to them."""
        end_node(self._ray, self._nodes.pop(broker))

    def restore(self, broker: int, *, memory_headroom_bytes: int | None = None) -> None:
        """A new node with that broker's disk.

        ``memory_headroom_bytes``: its memory monitor acts when the machine uses so much more memory than now.
        """
        environment = None
        if memory_headroom_bytes is not None:
            memory = psutil.virtual_memory()
            threshold = (memory.total - memory.available + memory_headroom_bytes) / memory.total
            environment = {"RAY_memory_usage_threshold": f"{threshold:.4f}"}
        self._nodes[broker] = self._add(broker, environment)

    @contextmanager
    def memory_eater(self) -> Iterator[Callable[[int, int], None]]:
        """A user's job on this Ray. Told a broker and a number of bytes, it eats so much memory on that broker's node until Ray ends it.

        Telling it returns when Ray has; an assertion error if Ray lets it have all of it.
        """
        command = [sys.executable, str(EATER), self._ray.address]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as job:

            def eat(broker: int, most_bytes: int) -> None:
                said, _ = job.communicate(f"{self._nodes[broker].node_id} {most_bytes}\n", timeout=PATIENCE_S)
                assert job.returncode == 0, f"a task took {most_bytes:,} bytes, and Ray let it: {said}"

            try:
                yield eat
            finally:
                job.kill()

    def stop(self) -> None:
        try:
            self.cluster.shutdown()
        finally:
            self._ray.shutdown()


def end_node(ray_cluster: RayCluster, node: Any) -> None:
    """SIGKILL a node and every process on it."""
    workers = [worker for each in node.live_processes() for worker in _descendants(each[1].pid)]
    ray_cluster.remove_node(node, allow_graceful=False)
    for worker in workers:
        with suppress(psutil.NoSuchProcess):
            worker.kill()  # psutil knows a process from a later one with its number


def _descendants(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


@contextmanager
def with_hooks(faults: Path) -> Iterator[None]:
    """Server processes of a Ray that is started now obey the orders in that file (``server_faults``)."""
    with kept_environment("PYTHONPATH", "RAYLOG_TEST_FAULTS"):
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HOOKS), os.environ.get("PYTHONPATH")]))
        os.environ["RAYLOG_TEST_FAULTS"] = str(faults)
        yield


@contextmanager
def ray_nodes(folder: Path, *, controllers: int = 1, faults: Path | None = None) -> Iterator[RayNodes]:
    """Three nodes, with their disks under ``folder``, and one controller or three; ended at the end."""
    with kept_environment(*RAY_STARTUPS), with_hooks(faults) if faults is not None else nullcontext():
        os.environ.update(
            RAY_STARTUPS
        )  # as in a Ray of raylog's own: a node that comes back starts its servers side by side
        nodes = RayNodes(folder, controllers)
        try:
            yield nodes
        finally:
            nodes.stop()
