"""raylog as its users run it: an embedded cluster of three brokers, every server a Ray actor, in a folder of its own.

A Ray is started for the script and ends with it; its files and the cluster's lie in one temporary folder. The rest is
what benchmarks ask about processes: who leads a partition, and under which process id.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import raylog
from raylog.actors.ray_classes import RAY_CLASSES
from raylog.client.admin.admin import NewTopic

WAIT_S = 60.0
SERVER_CLASSES = {each.__ray_metadata__.class_name for each in RAY_CLASSES.values()}


def add_layout_option(parser: argparse.ArgumentParser) -> None:
    """For scripts that can measure both layouts of replicas: hosts that share them, and a process each."""
    parser.add_argument(
        "--replicas-per-actor",
        type=int,
        help="of the script's topics (default: auto); results have a file of their own",
    )


def layout_of(options: argparse.Namespace) -> str:
    """What to call results that are not those of the default layout."""
    wanted = options.replicas_per_actor
    return "" if wanted is None else f"replicas_per_actor_{wanted}"


class EmbeddedCluster:
    """A running cluster between ``with`` and its end. ``replicas_per_actor``: of topics that ``create_topic`` makes, None: auto.
    ``configs``: static ones, ``listeners`` among them.
    """

    def __init__(
        self, brokers: int = 3, *, replicas_per_actor: int | None = None, configs: Mapping[str, Any] | None = None
    ) -> None:
        self.brokers = brokers
        self._configs = configs
        self._layout = {} if replicas_per_actor is None else {"replicas.per.actor": replicas_per_actor}
        self.folder = Path(tempfile.mkdtemp(prefix="rlb"))
        self._ray_folder = os.environ.get("RAY_TMPDIR")
        self._cluster: raylog.Cluster | None = None

    @property
    def cluster(self) -> raylog.Cluster:
        assert self._cluster is not None, "not started"
        return self._cluster

    def __enter__(self) -> Self:
        os.environ["RAY_TMPDIR"] = str(self.folder)
        try:
            self._cluster = raylog.init(
                self.folder / "data", brokers=self.brokers, configs=self._configs, ray_address="local"
            )
        except BaseException:
            self._clean()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.cluster.shutdown()
        finally:
            self._clean()

    def _clean(self) -> None:
        if self._ray_folder is None:
            os.environ.pop("RAY_TMPDIR", None)
        else:
            os.environ["RAY_TMPDIR"] = self._ray_folder
        shutil.rmtree(self.folder, ignore_errors=True)

    # -------------------------------------------------------------- topics

    def create_topic(
        self,
        topic: str,
        *,
        partitions: int = 1,
        replication_factor: int = 1,
        configs: Mapping[str, Any] | None = None,
    ) -> None:
        """Creates a topic and waits until every partition has a leader and a full ISR."""
        with self.cluster.admin() as admin:
            admin.create_topics(NewTopic(topic, partitions, replication_factor, self._layout | dict(configs or {})))
        self.await_whole(topic, replication_factor)

    def delete_topic(self, topic: str) -> None:
        with self.cluster.admin() as admin:
            admin.delete_topics(topic)

    def await_whole(self, topic: str, replication_factor: int) -> None:
        """Waits until every partition has a leader and an ISR of that many."""
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            found = self.partitions(topic, self.cluster.status())
            if found and all(each["leader"] >= 0 and len(each["isr"]) == replication_factor for each in found):
                return
            time.sleep(0.02)
        raise TimeoutError(f"{topic} did not become whole within {WAIT_S:.0f} s")

    @staticmethod
    def partitions(topic: str, status: Mapping[str, Any]) -> list[dict[str, Any]]:
        return next((each["partitions"] for each in status["topics"] if each["name"] == topic), [])

    # -------------------------------------------------------------- processes

    def leader_pid(self, topic: str, partition: int = 0) -> int:
        """The process that leads a partition now; 0 while nobody does."""
        status = self.cluster.status()
        leader = self.partitions(topic, status)[partition]["leader_node"]
        return next((int(each["pid"]) for each in status["actors"] if each["node_id"] == leader), 0)

    def replica_pids(self) -> list[int]:
        """The processes that hold replicas."""
        return [int(each["pid"]) for each in self.cluster.status()["actors"] if each["kind"] == "replicas"]

    def processes(self) -> dict[int, str]:
        """Every process of raylog's on this script's Ray, controllers among them: process id → name of its actor's class."""
        parents: dict[int, int] = {}
        names: dict[int, str] = {}
        for process in Path("/proc").iterdir():
            if not process.name.isdigit():
                continue
            with contextlib.suppress(OSError):  # it has ended meanwhile
                parents[int(process.name)] = int((process / "stat").read_text().rpartition(")")[2].split()[1])
                title = (process / "cmdline").read_bytes().split(b"\0")[0].decode(errors="replace")
                names[int(process.name)] = title.removeprefix("ray::").partition(".")[0].partition(":")[0]

        def is_ours(pid: int) -> bool:
            while pid in parents and pid != os.getpid():
                pid = parents[pid]
            return pid == os.getpid()

        return {pid: name for pid, name in sorted(names.items()) if name in SERVER_CLASSES and is_ours(pid)}

    def server_pids(self) -> list[int]:
        """The processes of all servers but the controllers."""
        return [int(each["pid"]) for each in self.cluster.status()["actors"] if each["pid"]]
