"""confluent-kafka through raylog's listener for Kafka clients against the same client at Apache Kafka 3.9.1.

Both sides are clusters on this machine, warmed by a round that does not count: raylog embedded, every server a Ray actor, so that a
record passes two processes, the Broker that the client speaks to and the replica that leads; Kafka as KRaft brokers that are
controllers too, started with a 1 GB heap. Servers have their defaults. First one broker each, RF 1, acks=1: the ``produce`` loop, and the
``consume`` loop over what it wrote. Then three brokers each, RF 3, acks=all (min.insync.replicas 2). Client, settings and
data are the same on both sides (``producers.SETTINGS``; the consumer has librdkafka's defaults), and sides take turns; while one is
measured the other is idle and complete.

The CPU time that all servers of a side used per GB of values stands below the rates (raylog's controllers, which do nothing then, aside).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from apache_kafka import VERSION, ApacheKafka
from consumers import ConfluentKafkaReader
from embedded import EmbeddedCluster
from harness import Benchmark, arguments, cpu_seconds
from producers import SETTINGS, ConfluentKafka, megabytes_per_second, random_values, written_bytes

RAYLOG, KAFKA = "raylog", "Apache Kafka"
RECORDS = {(100, 1): 2_000_000, (100, 3): 500_000, (1000, 1): 500_000, (1000, 3): 125_000}
TARGETS = {(100, 1): 0.6, (1000, 1): 0.8, (100, 3): 1.5, (1000, 3): 1.5}  # times Kafka's rate


class Case:
    """One topic on each side, and the same clients for both."""

    def __init__(
        self, bench: Benchmark, ours: EmbeddedCluster, theirs: ApacheKafka, size: int, replicas: int, *, quick: bool
    ) -> None:
        self.bench = bench
        self.ours = ours
        self.theirs = theirs
        self.size = size
        self.replicas = replicas
        self.count = RECORDS[size, replicas] // (20 if quick else 1)
        self.acks = "1" if replicas == 1 else "all"
        self.unit = "M records/s" if size == 100 else "MB/s"
        self.topic = f"bench-{size}-{replicas}"
        configs = {"min.insync.replicas": str(min(2, replicas))}
        ours.create_topic(self.topic, replication_factor=replicas, configs=configs)
        theirs.create_topic(self.topic, replication_factor=replicas, configs=configs)
        self.bootstraps = {RAYLOG: ours.cluster.bootstrap_servers(), KAFKA: theirs.bootstrap}

    def produce(self) -> None:
        """The ``produce`` loop."""
        values = random_values(self.count, self.size)
        clients = {side: ConfluentKafka(at, self.topic, values, self.acks) for side, at in self.bootstraps.items()}
        self._compare(
            f"produce {self.size} B, RF {self.replicas}, acks={self.acks}",
            {side: client.rate for side, client in clients.items()},
            self.count,
            written_bytes(self.count, self.size, self.replicas),
        )
        for client in clients.values():
            client.close()

    def consume(self) -> None:
        """The ``consume`` loop, over half of what ``produce`` has written in a run."""
        count = self.count // 2
        clients = {side: ConfluentKafkaReader(at, self.topic, count) for side, at in self.bootstraps.items()}
        self._compare(f"consume {self.size} B", {side: client.rate for side, client in clients.items()}, count, 0)
        for client in clients.values():
            client.close()

    def _compare(self, name: str, clients: dict[str, Callable[[], float]], count: int, written: int) -> None:
        costs: dict[str, list[float]] = {side: [] for side in clients}

        def measured(side: str) -> float:
            pids = self.ours.server_pids() if side == RAYLOG else list(self.theirs.pids.values())
            used = cpu_seconds(*pids)
            rate = clients[side]()
            costs[side].append((cpu_seconds(*pids) - used) / (count * self.size / 1e9))
            return rate / 1e6 if self.size == 100 else megabytes_per_second(rate, self.size)

        contestants = {side: partial(measured, side) for side in clients}
        rates = self.bench.alternate(name, contestants, unit=self.unit, written_bytes=written)
        for side, values in costs.items():
            self.bench.record(f"{name}, all servers' CPU", side, values[1:], unit="CPU s/GB")
        ratio = rates[RAYLOG].median / rates[KAFKA].median
        self.bench.target(f"{name}: times Kafka's rate", ratio, at_least=TARGETS[self.size, self.replicas])

    def close(self) -> None:
        self.ours.delete_topic(self.topic)
        self.theirs.delete_topic(self.topic)


def main() -> int:
    quick = arguments().quick
    bench = Benchmark(
        "listener",
        f"confluent-kafka through the listener, one client, one partition, against Apache Kafka {VERSION}",
        settings=SETTINGS | {"records": {str(key): count for key, count in RECORDS.items()}},
        rounds=3,
        quick=quick,
    )
    for brokers in (1, 3):
        with EmbeddedCluster(brokers) as ours, ApacheKafka(brokers) as theirs:
            for size in (100, 1000):
                case = Case(bench, ours, theirs, size, brokers, quick=quick)
                case.produce()
                if brokers == 1:
                    case.consume()
                case.close()
    return bench.finish()


if __name__ == "__main__":
    raise SystemExit(main())
