"""raylog against Apache Kafka 3.9.1: how fast one producer fills one partition, each server driven by its own best client.

Both sides are clusters of three brokers on this machine, up for the whole script and warmed by a round that does not
count: raylog embedded, every server a Ray actor; Kafka as three KRaft brokers that are controllers too, started with a
1 GB heap. RF 1 with acks=1 and RF 3 with acks=all (min.insync.replicas 2), records of 100 B and 1 KB. Batch size,
linger, compression, requests in flight, flush policy and number of clients are equal (``producers.SETTINGS``). Sides
take turns; while one is measured the other is idle and complete.

Kafka's best client is the faster of two by the median of all rounds: kafka-producer-perf-test, a fresh JVM each time as
its users start it, and confluent-kafka's ``produce`` loop. Both are shown. raylog's is ``send_batch``.

The CPU time that all servers of a side used per GB of values stands below the rates.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

from apache_kafka import VERSION, ApacheKafka
from embedded import EmbeddedCluster, add_layout_option, layout_of
from harness import Benchmark, arguments, cpu_seconds
from producers import (
    SETTINGS,
    ConfluentKafka,
    RaylogProducer,
    megabytes_per_second,
    perf_test_rate,
    random_values,
    written_bytes,
)

RAYLOG, CONFLUENT, PERF_TEST = "raylog send_batch", "Kafka, confluent-kafka", "Kafka, perf-test"
RECORDS = {(100, 1): 2_000_000, (100, 3): 1_000_000, (1000, 1): 500_000, (1000, 3): 250_000}
TARGETS = {1: 1.0, 3: 3.0}  # times Kafka's rate, by replication factor


class Case:
    """One topic on each side, and the three clients that fill it."""

    def __init__(self, ours: EmbeddedCluster, theirs: ApacheKafka, size: int, replicas: int, *, quick: bool) -> None:
        self.ours = ours
        self.theirs = theirs
        self.size = size
        self.replicas = replicas
        self.count = RECORDS[size, replicas] // (20 if quick else 1)
        self.acks = "1" if replicas == 1 else "all"
        self.name = f"{size} B, RF {replicas}, acks={self.acks}"
        self.unit = "M records/s" if size == 100 else "MB/s"
        self.topic = f"bench-{size}-{replicas}"
        configs = {"min.insync.replicas": str(min(2, replicas))}
        ours.create_topic(self.topic, replication_factor=replicas, configs=configs)
        theirs.create_topic(self.topic, replication_factor=replicas, configs=configs)
        values = random_values(self.count, size)
        self.raylog = RaylogProducer(ours.cluster.address, self.topic, values, self.acks)
        self.confluent = ConfluentKafka(theirs.bootstrap, self.topic, values, self.acks)
        self.costs: dict[str, list[float]] = {RAYLOG: [], CONFLUENT: [], PERF_TEST: []}

    def run(self, bench: Benchmark) -> float:
        """Measures; gives raylog's rate over that of Kafka's best client."""
        rates = bench.alternate(
            self.name,
            {
                CONFLUENT: partial(self._measured, CONFLUENT, self.confluent.rate),
                RAYLOG: partial(self._measured, RAYLOG, self.raylog.rate),
                PERF_TEST: partial(self._measured, PERF_TEST, self._perf_test),
            },
            unit=self.unit,
            written_bytes=written_bytes(self.count, self.size, self.replicas),
        )
        for client, values in self.costs.items():
            bench.record(f"{self.name}, all servers' CPU", client, values[1:], unit="CPU s/GB")
        return rates[RAYLOG].median / max(rates[CONFLUENT].median, rates[PERF_TEST].median)

    def _perf_test(self) -> float:
        return perf_test_rate(self.theirs.bootstrap, self.topic, self.count, self.size, self.acks)

    def _measured(self, client: str, produce: Callable[[], float]) -> float:
        pids = self.ours.replica_pids() if client == RAYLOG else list(self.theirs.pids.values())
        used = cpu_seconds(*pids)
        rate = produce()
        self.costs[client].append((cpu_seconds(*pids) - used) / (self.count * self.size / 1e9))
        return rate / 1e6 if self.size == 100 else megabytes_per_second(rate, self.size)

    def close(self) -> None:
        self.raylog.close()
        self.confluent.close()
        self.ours.delete_topic(self.topic)
        self.theirs.delete_topic(self.topic)


def main() -> int:
    parser = argparse.ArgumentParser()
    add_layout_option(parser)
    options = arguments(parser)
    quick = options.quick
    bench = Benchmark(
        "versus_apache_kafka",
        f"one producer, one partition, against Apache Kafka {VERSION}",
        settings=SETTINGS | {"brokers": 3, "records": {str(key): count for key, count in RECORDS.items()}},
        quick=quick,
        variant=layout_of(options),
    )
    with EmbeddedCluster(replicas_per_actor=options.replicas_per_actor) as ours, ApacheKafka(brokers=3) as theirs:
        for replicas in (1, 3):
            for size in (100, 1000):
                case = Case(ours, theirs, size, replicas, quick=quick)
                ratio = case.run(bench)
                case.close()
                bench.target(f"{case.name}: times Kafka's rate", ratio, at_least=TARGETS[replicas])
    return bench.finish()


if __name__ == "__main__":
    raise SystemExit(main())
