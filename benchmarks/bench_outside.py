"""Clients from outside a cluster, by the listeners of its brokers and by native links, against the same client on one of its nodes.

One embedded cluster of three brokers, one topic of one partition at a time. The client on the node has the cluster's secret and talks
to the process that leads (``raylog.connect(folder=…)``). One from outside knows the brokers' listeners and nothing else
(``raylog.connect(bootstrap_servers=…)``), the other has the secret, too (``secret=…``), and finds that it can reach the processes. All
are in this process, under the same settings (``producers.SETTINGS``), and take turns.
``send_batch`` fills the partition, ``poll_batch`` reads what one call of it wrote, as Arrow tables of all columns.

The CPU time that the servers use per GB of values stands below the rates: from outside, the Broker's process passes the bytes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from embedded import EmbeddedCluster
from harness import Benchmark, arguments, cpu_seconds
from producers import SETTINGS, RaylogProducer, megabytes_per_second, random_values, written_bytes

import raylog
from raylog.client.links.address import ClusterAddress
from raylog.client.sync import Consumer

NODE, OUTSIDE, SECRET = "on a node", "from outside", "from outside, with the secret"
RECORDS = {(100, 1): 2_000_000, (1000, 1): 500_000, (1000, 3): 250_000}
FETCH_BYTES = 1 << 20
ROUNDS = 9  # each client is first, second and last in its turn equally often
PASSES = 4
"""How often ``poll_batch`` reads the same records in one run: once takes 0.15 s, too short to tell 5 %."""
RATIO_MIN = 0.95


class Case:
    """A topic, and the two clients that fill and empty it."""

    def __init__(self, cluster: EmbeddedCluster, size: int, replicas: int, *, quick: bool) -> None:
        self.cluster = cluster
        self.size = size
        self.count = RECORDS[size, replicas] // (20 if quick else 1)
        self.acks = "1" if replicas == 1 else "all"
        self.replicas = replicas
        self.name = f"{size} B, RF {replicas}, acks={self.acks}"
        self.topic = f"bench-{size}-{replicas}"
        cluster.create_topic(
            self.topic, replication_factor=replicas, configs={"min.insync.replicas": str(min(2, replicas))}
        )
        inside, servers = cluster.cluster.address, cluster.cluster.bootstrap_servers()
        assert inside.secret is not None
        outside = {OUTSIDE: raylog.connect(bootstrap_servers=servers)}
        outside[SECRET] = raylog.connect(bootstrap_servers=servers, secret=inside.secret.decode())
        self.addresses = {NODE: inside, **{way: each.address for way, each in outside.items()}}
        values = random_values(self.count, size)
        self.producers = {
            way: RaylogProducer(address, self.topic, values, self.acks) for way, address in self.addresses.items()
        }
        self.costs: dict[str, list[float]] = {way: [] for way in self.addresses}

    def run(self, bench: Benchmark) -> None:
        written = written_bytes(self.count, self.size, self.replicas)
        produce = {way: partial(self._measured, way, 1, producer.rate) for way, producer in self.producers.items()}
        consume = {
            way: partial(self._measured, way, PASSES, partial(self._consume, address))
            for way, address in self.addresses.items()
        }
        for what, ways in (("send_batch", produce), ("poll_batch", consume)):
            self.costs = {way: [] for way in self.addresses}
            case = f"{what}, {self.name}"
            rates = bench.alternate(case, ways, unit="MB/s", written_bytes=written if what == "send_batch" else 0)
            for way, costs in self.costs.items():
                bench.record(f"{case}: servers' CPU", way, costs[1:], unit="CPU s/GB")
            for way in (OUTSIDE, SECRET):
                ratio = rates[way].median / rates[NODE].median
                bench.target(f"{case}: {way}, times the rate on a node", ratio, at_least=RATIO_MIN)

    def _measured(self, way: str, passes: int, work: Callable[[], float]) -> float:
        pids = self.cluster.server_pids()
        used = cpu_seconds(*pids)
        rate = work()
        self.costs[way].append((cpu_seconds(*pids) - used) / (passes * self.count * self.size / 1e9))
        return megabytes_per_second(rate, self.size)

    def _consume(self, address: ClusterAddress) -> float:
        return PASSES * self.count / sum(self._seconds_to_read(address) for _ in range(PASSES))

    def _seconds_to_read(self, address: ClusterAddress) -> float:
        with Consumer(address, max_partition_fetch_bytes=FETCH_BYTES) as consumer:
            (end,) = consumer.end_offsets([(self.topic, 0)]).values()
            start = time.perf_counter()
            consumer.assign([(self.topic, 0)])
            consumer.seek((self.topic, 0), end - self.count)
            got = 0
            while got < self.count:
                got += consumer.poll_batch(timeout=30).num_rows
            took = time.perf_counter() - start
        assert got == self.count, got
        return took

    def close(self) -> None:
        for producer in self.producers.values():
            producer.close()
        self.cluster.delete_topic(self.topic)


def main() -> int:
    options = arguments()
    bench = Benchmark(
        "outside",
        "clients from outside a cluster against one on a node of it",
        settings=SETTINGS
        | {"brokers": 3, "records": {str(key): count for key, count in RECORDS.items()}, "passes": PASSES},
        rounds=ROUNDS,
        quick=options.quick,
    )
    with EmbeddedCluster() as cluster:
        for size, replicas in RECORDS:
            case = Case(cluster, size, replicas, quick=options.quick)
            case.run(bench)
            case.close()
    return bench.finish()


if __name__ == "__main__":
    raise SystemExit(main())
