"""A node joins a cluster under load, gets its share of bytes and leaders by one command, and is removed again.

Three Ray nodes with a disk, a broker and a controller each, and a head without any, all on this machine; one topic of eight partitions
with two replicas. A node with a blank disk is started; it becomes a broker by itself. ``raylog brokers rebalance`` gives it its share,
``raylog brokers remove`` takes it away. A paced producer with acks=all goes on all the while; an error of its is a failure of the run.
Throughput is that of one producer at full speed over all partitions, before, with four brokers, and after.

All brokers share the machine's cores and its one disk here, so a fourth one cannot make anything faster: what is shown is that the load is
spread and that it costs nothing.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import ray
from harness import Benchmark, arguments
from ray.cluster_utils import Cluster as RayCluster
from ray_nodes_cluster import OBJECT_STORE_BYTES, await_true

import raylog
from raylog.errors import RaylogError

TOPIC = "scaled"
PARTITIONS = 8
RECORD_BYTES = 1_000
MEASURED_BYTES = 240_000_000
PACED_RECORDS_PER_S = 2_000
SMALL: dict[str, Any] = {"object_store_memory": OBJECT_STORE_BYTES, "num_cpus": 1}


def command(*words: object) -> Any:
    """A raylog command as somebody types it; what it says with ``--json``."""
    done = subprocess.run(
        [sys.executable, "-m", "raylog.cli.main", *map(str, words)], capture_output=True, text=True, timeout=300
    )
    if done.returncode:
        raise RuntimeError(f"raylog {' '.join(map(str, words))}: {done.stdout}{done.stderr}")
    return json.loads(done.stdout) if "--json" in words or words[0] == "node" else done.stdout


class PacedLoad:
    """One producer, acks=all, one record at a time to each partition in turn; what it met."""

    def __init__(self, cluster: raylog.Cluster) -> None:
        self.acked = 0
        self.errors: list[str] = []
        self.longest_pause_ms = 0.0
        self._cluster = cluster
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> PacedLoad:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        value = os.urandom(RECORD_BYTES)
        burst = PACED_RECORDS_PER_S // 20
        with self._cluster.producer(acks="all") as producer:
            while not self._over.wait(1 / 20):
                began = time.monotonic()
                sent = [producer.send(TOPIC, value, partition=number % PARTITIONS) for number in range(burst)]
                for delivery in sent:
                    try:
                        delivery.result(60)
                        self.acked += 1
                    except RaylogError as error:
                        self.errors.append(str(error))
                self.longest_pause_ms = max(self.longest_pause_ms, (time.monotonic() - began) * 1_000)


def full_speed(cluster: raylog.Cluster, size: int) -> float:
    """MB/s of one producer over all partitions, from the first record to the last acknowledgement."""
    values = [os.urandom(RECORD_BYTES)] * (1_000_000 // RECORD_BYTES)
    os.sync()  # what was written before is not written back at the cost of this
    with cluster.producer(acks="all") as producer:
        for number in range(PARTITIONS):
            producer.send(TOPIC, b"warm", partition=number).result(60)
        began = time.monotonic()
        sent = [
            producer.send_batch(TOPIC, values, partition=number % PARTITIONS)
            for number in range(size // (RECORD_BYTES * len(values)))
        ]
        for delivery in sent:
            delivery.result(120)
        return size / 1e6 / (time.monotonic() - began)


def held(cluster: raylog.Cluster) -> tuple[dict[int, int], dict[int, int]]:
    """Bytes and leaders by broker."""
    with cluster.admin() as admin:
        sizes: dict[int, int] = {}
        for found in admin.replica_sizes().values():
            for broker, size in found.items():
                sizes[broker] = sizes.get(broker, 0) + size
        leads: dict[int, int] = {}
        for part in admin.describe_topics([TOPIC])[TOPIC].partitions:
            leads[part.leader] = leads.get(part.leader, 0) + 1
    return sizes, leads


def is_whole(cluster: raylog.Cluster) -> bool:
    with cluster.admin() as admin:
        parts = admin.describe_topics([TOPIC])[TOPIC].partitions
    return all(part.leader >= 0 and len(part.isr) == 2 for part in parts)


def main() -> int:
    chosen = arguments()
    bench = Benchmark(
        "scaling",
        "a node joins under load, gets its share by one command, and is removed again",
        settings={
            "partitions": PARTITIONS,
            "replication factor": 2,
            "record bytes": RECORD_BYTES,
            "load, records/s": PACED_RECORDS_PER_S,
        },
        rounds=5,
        quick=chosen.quick,
    )
    size = MEASURED_BYTES // (8 if chosen.quick else 1)
    folder = Path(tempfile.mkdtemp(prefix="rls"))
    os.environ |= {"RAY_TMPDIR": str(folder), "RAY_USAGE_STATS_ENABLED": "0"}
    os.environ.pop("RAY_ADDRESS", None)
    disks = [folder / f"machine-{number}" for number in range(4)]
    for disk in disks:
        disk.mkdir()
    nodes: Any = None
    cluster: raylog.Cluster | None = None
    try:
        nodes = RayCluster(initialize_head=True, head_node_args={**SMALL, "num_cpus": 0, "include_dashboard": False})
        for disk in disks[:3]:
            nodes.add_node(**SMALL, resources=command("node", "resources", disk))
        command("up", "--disks", 3, "--address", nodes.address, "--wait", 120, "--json")
        mode = os.environ.get("RAY_AUTH_MODE")
        cluster = running = raylog.connect(ray_address=nodes.address)
        if mode is None:
            os.environ.pop("RAY_AUTH_MODE", None)  # a node that is added later has to be like the others
        with running.admin() as admin:
            admin.create_topics([raylog.NewTopic(TOPIC, PARTITIONS, 2)])
        await_true(lambda: is_whole(running), "the topic is whole")

        def speeds(case: str) -> float:
            full_speed(running, size // 4)  # its replicas' processes are new
            rates = [full_speed(running, size) for _ in range(bench.rounds)]
            return bench.record("throughput of one producer", case, rates, unit="MB/s").median

        before = speeds("three brokers")
        with PacedLoad(running) as load:
            await_true(lambda: load.acked > PACED_RECORDS_PER_S, "the load runs")
            nodes.add_node(**SMALL, resources=command("node", "resources", disks[3]))
            joined = time.monotonic()
            await_true(lambda: sum(each["live"] for each in running.status()["brokers"]) == 4, "a fourth broker")
            became = time.monotonic()
            command("brokers", "rebalance", "--address", nodes.address, "--json")
            spread_s = time.monotonic() - became
        sizes, leads = held(running)
        during = speeds("four brokers")
        with PacedLoad(running) as leaving:
            began = time.monotonic()
            command("brokers", "remove", 3, "--address", nodes.address, "--json")
            removed_s = time.monotonic() - began
        after = speeds("three again")
        bench.record("the node", "joined until its broker serves", [became - joined], unit="s")
        bench.record("the node", "its share of bytes and leaders", [spread_s], unit="s", bytes=sizes, leaders=leads)
        bench.record("the node", "removed again", [removed_s], unit="s")
        pauses = [load.longest_pause_ms, leaving.longest_pause_ms]
        bench.record("longest wait of the load", "joining and leaving", pauses, unit="ms")
        mean = sum(sizes.values()) / 4
        off = max(abs(sizes.get(broker, 0) - mean) / mean for broker in range(4))
        bench.target("errors of the load", len(load.errors) + len(leaving.errors), at_most=0)
        bench.target("seconds until bytes and leaders are spread", spread_s, at_most=60)
        bench.target("bytes per broker, largest distance from the mean", off, at_most=0.2)
        bench.target("leaders per broker, most less fewest", max(leads.values()) - min(leads.values()), at_most=1)
        bench.note(
            f"Throughput with four brokers is {during / before:.2f} of that with three, and {after / before:.2f} after the fourth has "
            f"gone; the brokers share the same cores and disk. Acknowledged meanwhile: {load.acked + leaving.acked:,} records."
        )
        return bench.finish()
    finally:
        if cluster is not None:
            cluster.shutdown()
        ray.shutdown()
        if nodes is not None:
            nodes.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    raise SystemExit(main())
