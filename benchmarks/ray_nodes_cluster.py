"""raylog as on machines of its own: a Ray head that holds nothing, and three Ray nodes with one disk, broker and controller each.

Everything runs on this machine; a node's processes are its raylet and what that has started, so a node can be lost whole. Ray's head keeps
its state in RocksDB and nodes wait for it, as ``cluster.yaml`` sets both, so the head's GCS process can be killed and started again.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil
import ray
from ray.cluster_utils import Cluster as RayCluster

import raylog
from raylog.disks.embedded import prepare_disks
from raylog.errors import RaylogError
from raylog.placement.resources import node_resources

BROKERS = 3
WAIT_S = 240.0
OBJECT_STORE_BYTES = 80 << 20
KEPT = ("RAY_TMPDIR", "RAY_AUTH_MODE")


class NodesCluster:
    """A running cluster between ``with`` and its end."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="rlf"))
        self._outside: dict[str, str | None] = {}
        self._ray: Any = None
        self._nodes: dict[int, Any] = {}
        self._disks: list[Any] = []
        self._cluster: raylog.Cluster | None = None

    @property
    def cluster(self) -> raylog.Cluster:
        assert self._cluster is not None, "not started"
        return self._cluster

    def __enter__(self) -> Self:
        environment = {
            "RAY_TMPDIR": str(self.folder),
            "RAY_gcs_storage": "rocksdb",
            "RAY_gcs_storage_path": str(self.folder / "gcs"),
            "RAY_gcs_rpc_server_reconnect_timeout_s": str(7 * 24 * 3600),
            "RAY_health_check_period_ms": "1000",  # nothing waits for it but a killed node's return,
            "RAY_health_check_failure_threshold": "3",  # which would take 12 s longer
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        self._outside = {name: os.environ.get(name) for name in (*environment, *KEPT)}
        os.environ.update(environment)
        try:
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def _start(self) -> None:
        data = self.folder / "data"
        self._disks = prepare_disks(data, BROKERS, None)
        self._ray = RayCluster(
            initialize_head=True,
            head_node_args={"object_store_memory": OBJECT_STORE_BYTES, "num_cpus": 0, "include_dashboard": False},
        )
        for broker in range(BROKERS):
            self.add_node(broker)
        with _kept("RAY_AUTH_MODE"):  # a node that is added later has to be like the others
            self._cluster = raylog.init(
                data, brokers=BROKERS, controllers=3, ray_address=self._ray.address, timeout_s=WAIT_S
            )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def _stop(self) -> None:
        try:
            if self._cluster is not None:
                with contextlib.suppress(RaylogError):
                    self._cluster.shutdown()
        finally:
            ray.shutdown()
            if self._ray is not None:
                self._ray.shutdown()
            for name, value in self._outside.items():
                _set(name, value)
            shutil.rmtree(self.folder, ignore_errors=True)

    # -------------------------------------------------------------- nodes and the head

    def add_node(self, broker: int) -> None:
        """A Ray node with that broker's disk; waits until it has joined Ray."""
        self._nodes[broker] = self._ray.add_node(
            object_store_memory=OBJECT_STORE_BYTES, num_cpus=1, resources=node_resources([self._disks[broker].path])
        )

    def kill_node(self, broker: int) -> None:
        """SIGKILL to the node's raylet and everything that it has started, at once."""
        (raylet,) = self._nodes[broker].all_processes["raylet"]
        parent = psutil.Process(raylet.process.pid)
        for process in [parent, *parent.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                os.kill(process.pid, signal.SIGKILL)

    def forget_node(self, broker: int) -> None:
        """After ``kill_node``: reap what is left of it."""
        self._ray.remove_node(self._nodes.pop(broker), allow_graceful=False)

    def kill_head(self) -> None:
        """SIGKILL to Ray's GCS process."""
        self._ray.head_node.kill_gcs_server()

    def restart_head(self) -> None:
        """Start Ray's GCS process on its store again; waits until it answers."""
        self._ray.head_node.start_gcs_server()
        await_true(lambda: sum(node["Alive"] for node in ray.nodes()) == BROKERS + 1, "Ray's head sees all its nodes")

    # -------------------------------------------------------------- the cluster

    def create_topic(self, topic: str, *, configs: Mapping[str, Any] | None = None) -> None:
        """Creates a topic of one partition and three replicas and waits until it is whole."""
        with self.cluster.admin() as admin:
            admin.create_topics(raylog.NewTopic(topic, 1, 3, dict(configs or {})))
        self.await_whole(topic)

    def status(self) -> dict[str, Any]:
        """What the active controller knows, as soon as there is one that answers."""

        def ask() -> dict[str, Any] | None:
            try:
                return self.cluster.status(timeout_s=3)
            except RaylogError:
                return None

        found: dict[str, Any] = await_true(ask, "a controller answers")
        return found

    def part(self, topic: str) -> dict[str, Any]:
        found: dict[str, Any] = partition(self.status(), topic)
        return found

    def await_whole(self, topic: str) -> None:
        """Waits until every broker is live, the partition has a leader, all replicas are in the ISR, and all controllers follow."""

        def is_whole() -> bool:
            status = self.status()
            part = partition(status, topic)
            return (
                part["leader"] >= 0
                and len(part["isr"]) == BROKERS
                and not part["offline"]
                and all(actor["state"] == "live" for actor in status["actors"])
                and sum(broker["live"] for broker in status["brokers"]) == BROKERS
                and self._controllers_follow()
            )

        await_true(is_whole, f"{topic} is whole")

    def _controllers_follow(self) -> bool:
        try:
            quorum = self.cluster.quorum()
        except RaylogError:
            return False
        voters = quorum["voters"]
        return len(voters) == BROKERS and all(each["reachable"] and 0 <= each["lag"] < 100 for each in voters)


def partition(status: Mapping[str, Any], topic: str) -> dict[str, Any]:
    found: dict[str, Any] = next(each["partitions"][0] for each in status["topics"] if each["name"] == topic)
    return found


def pid_of(status: Mapping[str, Any], node_id: int) -> int:
    """The process of a live server actor; 0 if it is not there."""
    return next((int(each["pid"]) for each in status["actors"] if each["node_id"] == node_id), 0)


def await_true(condition: Callable[[], Any], what: str, timeout_s: float = WAIT_S, every_s: float = 0.05) -> Any:
    """What the condition returns once it is true."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(every_s)
    raise TimeoutError(f"not within {timeout_s:.0f} s: {what}")


@contextlib.contextmanager
def _kept(name: str) -> Any:
    before = os.environ.get(name)
    try:
        yield
    finally:
        _set(name, before)


def _set(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value
