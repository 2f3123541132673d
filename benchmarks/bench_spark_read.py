"""A topic into a Spark DataFrame: raylog.spark.read against Spark's own kafka source on Apache Kafka 3.9.1.

One Spark session on two threads reads both, warm, by the same SQL: ``count`` with ``sum(xxhash64(value))``, whose results have to be
equal, and ``count`` with the sum of the lengths. Two gigabytes of values of 100 B or 1 KB in one partition with one replica, written in
batches of up to 1 MiB, without compression, the same values on both sides. raylog is embedded with one broker, Kafka is one broker with
a heap of 1 GB, and everything shares two cores. ``minPartitions`` is 4 for Spark's source, whose tasks would else be one; raylog splits
by its own default (two tasks for each core). Each reads only the value: ``columns=["value"]`` here, Spark's pruning there.

The memory of a task is what a process grows by at most while it reads a range as a task does; its batch bytes are what is fetched ahead
and an Arrow batch (``ReadOptions.batch_bytes``). ``--only 1000`` or ``--only memory`` measures that and keeps what the file holds of the
rest.

The CPU time of all that takes part, the driver's JVM, Python workers and servers, per GB of values stands below the rates.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from typing import Any

from apache_kafka import VERSION, ApacheKafka
from embedded import EmbeddedCluster
from harness import Benchmark, arguments
from local_spark import MASTER, SETTINGS, cpu_since, cpu_used, session
from producers import ConfluentKafka, RaylogProducer, random_values
from spark_connector import VERSION as CONNECTOR
from task_memory import growths

import raylog.spark
from raylog.ranges.reading import ReadOptions
from raylog.ranges.splitting import OffsetRange

RAYLOG, KAFKA = "raylog.spark.read", "Spark's kafka source"
VALUE_BYTES = 2_000_000_000
QUERIES = {
    "hashes": "select count(*) as rows, sum(xxhash64(value)) as told from records",
    "lengths": "select count(*) as rows, sum(length(value)) as told from records",
}
TARGETS = {100: 3.0, 1000: 2.0}
PARTS = 4
MEMORY = "memory"
WARM_UPS = {
    100: 0,
    1000: 4,
}  # more than the one of each case: of few rows it takes several until a JVM has compiled what they need
FILL = 2_000_000  # records per call of a producer


class Case:
    """One topic on each side with the same values."""

    def __init__(self, spark: Any, ours: EmbeddedCluster, theirs: ApacheKafka, size: int, *, quick: bool) -> None:
        self.spark = spark
        self.ours = ours
        self.theirs = theirs
        self.size = size
        self.count = VALUE_BYTES // size // (50 if quick else 1)
        self.topic = f"read-{size}"
        self.costs: dict[tuple[str, str], list[float]] = {}
        self.answers: dict[str, set[Any]] = {}
        for side in (ours, theirs):
            side.create_topic(self.topic)  # type: ignore[attr-defined]
        values = random_values(min(self.count, FILL), size)
        here = RaylogProducer(ours.cluster.address, self.topic, values, "1")
        there = ConfluentKafka(theirs.bootstrap, self.topic, values, "1")
        for _ in range(self.count // len(values)):
            here.rate()
            there.rate()
        here.close()
        there.close()
        for query in QUERIES:
            for _ in range(0 if quick else WARM_UPS[size]):
                for each in (KAFKA, RAYLOG):
                    self.rate(each, query)
        self.costs.clear()

    def frame(self, side: str) -> Any:
        if side == RAYLOG:
            return raylog.spark.read(self.spark, self.topic, cluster=self.ours.cluster, columns=["value"])
        options = {
            "kafka.bootstrap.servers": self.theirs.bootstrap,
            "subscribe": self.topic,
            "minPartitions": str(PARTS),
        }
        return self.spark.read.format("kafka").options(**options).load()

    def run(self, bench: Benchmark, query: str) -> float:
        """Measures; gives raylog's rate over that of Spark's source."""
        name = f"{self.size} B, {query}"
        rates = bench.alternate(
            name, {side: partial(self.rate, side, query) for side in (KAFKA, RAYLOG)}, unit="M rows/s"
        )
        assert len(self.answers[query]) == 1, f"the two sides disagree: {self.answers[query]}"
        for side in (KAFKA, RAYLOG):
            bench.record(f"{name}, CPU of all", side, self.costs[side, query][1:], unit="CPU s/GB")
        return rates[RAYLOG].median / rates[KAFKA].median

    def rate(self, side: str, query: str) -> float:
        servers = [*(self.ours.replica_pids() if side == RAYLOG else self.theirs.pids.values())]
        started, used = time.perf_counter(), cpu_used(servers)
        frame = self.frame(side)
        assert dict(frame.dtypes)["value"] == "binary"
        frame.createOrReplaceTempView("records")
        (answer,) = self.spark.sql(QUERIES[query]).collect()
        took = time.perf_counter() - started
        self.answers.setdefault(query, set()).add((answer.rows, answer.told))
        cost = cpu_since(used, servers)
        self.costs.setdefault((side, query), []).append(cost / (self.count * self.size / 1e9))
        return float(answer.rows / took / 1e6)


def keep(bench: Benchmark, size: int, at_least: float) -> None:
    """Take a size's figures from the file as they are."""
    earlier = bench.earlier()
    bench.cases |= {name: case for name, case in earlier.items() if name.startswith(f"{size} B, ")}
    for query in QUERIES:
        rates = earlier[f"{size} B, {query}"]
        times = rates[RAYLOG].median / rates[KAFKA].median
        bench.target(f"{size} B, {query}: times the rate of Spark's source", times, at_least=at_least)


def memory(bench: Benchmark, ours: EmbeddedCluster, *, quick: bool) -> None:
    """Of a task that reads a tenth of a topic of 1 KB values, and of one that reads all, beside its batch bytes."""
    count = VALUE_BYTES // 1000 // (50 if quick else 1)
    ours.create_topic(MEMORY)
    values = random_values(min(count, 200_000), 1000)
    producer = RaylogProducer(ours.cluster.address, MEMORY, values, "1")
    for _ in range(count // len(values)):
        producer.rate()
    producer.close()
    for from_files in (True, False):
        options = ReadOptions(("value",), from_files=from_files)
        for share in (0.1, 1.0):
            wanted = OffsetRange(MEMORY, 0, 0, int(share * count))
            (grown,) = growths([(ours.cluster.address, wanted, options)])
            name = f"memory of a task, {len(wanted) / 1e3:,.0f} MB from {'files' if from_files else 'the network'}"
            bench.record(name, RAYLOG, [grown / 1e6], unit="MB")
            bench.target(f"{name}: times its batch bytes", grown / options.batch_bytes, at_most=3.0)


def main() -> int:
    parser = argparse.ArgumentParser()
    parts = [*map(str, TARGETS), MEMORY]
    parser.add_argument("--only", choices=parts, help="measure this anew, keep what the file holds of the rest")
    given = arguments(parser)
    quick = given.quick
    bench = Benchmark(
        "spark_read",
        f"a topic into a Spark DataFrame, against Spark's kafka source {CONNECTOR} on Apache Kafka {VERSION}",
        settings={
            "values": VALUE_BYTES,
            "spark": {"master": MASTER, **SETTINGS},
            "minPartitions of Spark's source": PARTS,
            "queries": QUERIES,
        },
        rounds=3,
        quick=quick,
    )
    with EmbeddedCluster(brokers=1) as ours, ApacheKafka() as theirs:
        spark = session()
        for size, at_least in TARGETS.items():
            if given.only not in (None, str(size)):
                keep(bench, size, at_least)
                continue
            case = Case(spark, ours, theirs, size, quick=quick)
            for query in QUERIES:
                bench.target(
                    f"{size} B, {query}: times the rate of Spark's source", case.run(bench, query), at_least=at_least
                )
        spark.stop()
        memory(bench, ours, quick=quick)
    return bench.finish()


if __name__ == "__main__":
    raise SystemExit(main())
