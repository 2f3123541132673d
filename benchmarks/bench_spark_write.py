"""A Spark DataFrame into a topic: raylog.spark.write against Spark's own kafka sink on Apache Kafka 3.9.1.

One Spark session on two threads writes both: a DataFrame of a binary column ``value`` of 100 B or 1 KB, cached in memory, in four
partitions, into one partition with one replica. Both with their defaults, which are acks=all and idempotent on both sides, without
compression; the sink also with batches of up to 1 MiB and 5 ms of linger: it is the better of the two that counts. raylog's write that is
held against it is at least once, as the sink is; and that is what the exactly-once write, in one transaction, is held against. An Arrow
batch on its way to a Python worker has about a megabyte (``spark.sql.execution.arrow.maxRecordsPerBatch``; the sink has none). After each
write the topic's offsets say how many records have come. Before each write the disk has taken all earlier ones, their pages are given up,
and a file of as many bytes was written and removed: so neither side waits for the disk with what the other has written, and both get page
cache of memory that the machine has (a virtual one has to ask for the rest, at up to a CPU second per GB for whoever comes first). raylog
is embedded with one broker, Kafka is one broker with a heap of 1 GB, and everything shares two cores.

At 1 KB one more contestant shows what the machine has room for: *copies alone* (``arrow_copies``), the same DataFrame through the same
Python workers, which do what no producer and no server can leave out, and nothing else. It is no target; nobody who gets his rows as
Arrow batches in Python workers can be faster here.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from apache_kafka import VERSION, ApacheKafka
from arrow_copies import ArrowCopies
from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import TopicPartition as KafkaPartition
from embedded import EmbeddedCluster
from harness import Benchmark, arguments
from local_spark import MASTER, SETTINGS, cpu_since, cpu_used, session
from spark_connector import VERSION as CONNECTOR

import raylog.spark
from raylog.client.sync import Consumer
from raylog.types import TopicPartition

ONCE, RAYLOG = "raylog.spark.write", "raylog.spark.write, at least once"
SINK, TUNED = "Spark's kafka sink", "Spark's kafka sink, batches of 1 MiB"
COPIES = "copies alone"
VALUE_BYTES = {100: 400_000_000, 1000: 800_000_000}
SIZES = (100, 1000)
ROWS_PER_ARROW_BATCH = {100: 10_000, 1000: 1_000}
WARM_UPS = 4  # more than the one of each case: the JVM still compiles
AT_LEAST = 2.0
ONCE_AT_LEAST = 0.85
PARTS = 4
TUNING = {"kafka.batch.size": "1048576", "kafka.linger.ms": "5"}


class Case:
    """One DataFrame, and a topic on each side."""

    def __init__(self, spark: Any, ours: EmbeddedCluster, theirs: ApacheKafka, size: int, *, quick: bool) -> None:
        from pyspark.sql.functions import col, concat, lit, sha2

        self.ours = ours
        self.theirs = theirs
        self.size = size
        self.count = VALUE_BYTES[size] // size // (20 if quick else 1)
        self.topic = f"write-{size}"
        self.costs: dict[str, list[float]] = {}
        self.copies = ArrowCopies(ours.folder)
        for side in (ours, theirs):
            side.create_topic(self.topic)  # type: ignore[attr-defined]
        digest = sha2(col("id").cast("string"), 256)  # 64 letters
        text = concat(*[digest] * (size // 64), lit("x" * (size % 64)))
        self.frame = spark.range(0, self.count, 1, PARTS).select(text.cast("binary").alias("value")).cache()
        assert self.frame.count() == self.count
        spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(ROWS_PER_ARROW_BATCH[size]))
        for _ in range(0 if quick else WARM_UPS):
            for side_name in (TUNED, RAYLOG, ONCE):
                self.rate(side_name)
        self.costs.clear()

    def run(self, bench: Benchmark) -> tuple[float, float]:
        """Measures; gives raylog's rate over that of the better of the sinks, and exactly once over at least once."""
        name = f"{self.size} B"
        has_ceiling = self.size == 1000
        sides = (SINK, TUNED, RAYLOG, ONCE, *([COPIES] if has_ceiling else []))
        rates = bench.alternate(
            name,
            {side: partial(self.rate, side) for side in sides},
            unit="k rows/s",
            written_bytes=self.count * (self.size + 20),
        )
        for side in sides:
            bench.record(f"{name}, CPU of all", side, self.costs[side][1:], unit="CPU s/GB")
        if has_ceiling:
            copies = rates[COPIES].median
            bench.note(
                f"Copying alone (Arrow batches to Python workers, record batches and their CRC, loopback, CRC, page cache) runs at "
                f"{copies / rates[TUNED].median:.2f} times the rate of the sink with batches of 1 MiB: that bounds every write through "
                f"Python workers. {RAYLOG}, reaches {rates[RAYLOG].median / copies:.0%} of it."
            )
        self.frame.unpersist()
        self.copies.close()
        for side in (self.ours, self.theirs):
            side.delete_topic(self.topic)  # type: ignore[attr-defined]
        ours = rates[RAYLOG].median
        return ours / max(rates[SINK].median, rates[TUNED].median), rates[ONCE].median / ours

    def rate(self, side: str) -> float:
        before = self.end(side)
        settle([self.ours.folder / "data", self.theirs.folder], self.count * self.size)
        servers = self.servers(side)
        started, used = time.perf_counter(), cpu_used(servers)
        copied = self.write(side)
        took = time.perf_counter() - started
        cost = cpu_since(used, servers)
        self.costs.setdefault(side, []).append(cost / (self.count * self.size / 1e9))
        markers = PARTS + 1 if side == ONCE else 0  # of each task's producer, and of the driver's
        written = copied if side == COPIES else self.end(side) - before - markers
        assert written == self.count, f"{written} records have come, of {self.count}"
        return self.count / took / 1e3

    def servers(self, side: str) -> list[int]:
        if side == COPIES:
            return [self.copies.pid]
        return self.ours.replica_pids() if side in (RAYLOG, ONCE) else list(self.theirs.pids.values())

    def write(self, side: str) -> int:
        if side == COPIES:
            return self.copies.write(self.frame)
        if side in (RAYLOG, ONCE):
            summary = raylog.spark.write(self.frame, self.topic, cluster=self.ours.cluster, exactly_once=side == ONCE)
            assert (summary.records, summary.reruns) == (self.count, 0), summary
            return summary.records
        options = {"kafka.bootstrap.servers": self.theirs.bootstrap, "topic": self.topic}
        tuning = TUNING if side == TUNED else {}
        self.frame.write.format("kafka").options(**options, **tuning).save()
        return self.count

    def end(self, side: str) -> int:
        if side == COPIES:
            return 0
        if side in (RAYLOG, ONCE):
            key = TopicPartition(self.topic, 0)
            with Consumer(self.ours.cluster.address) as consumer:
                return consumer.end_offsets([key])[key]
        consumer = KafkaConsumer({"bootstrap.servers": self.theirs.bootstrap, "group.id": "bench"})
        try:
            return int(consumer.get_watermark_offsets(KafkaPartition(self.topic, 0), timeout=30)[1])
        finally:
            consumer.close()


def settle(folders: Sequence[Path], size_bytes: int) -> None:
    """Have the disk take what was written, forget the logs' pages, and have memory for so much more."""
    os.sync()
    for log in (log for folder in folders for log in folder.rglob("*.log")):
        with log.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    piece = bytes(1 << 20)
    with tempfile.TemporaryFile(dir=folders[0]) as scratch:
        for _ in range(size_bytes // len(piece) + 1):
            scratch.write(piece)


def main() -> int:
    quick = arguments().quick
    bench = Benchmark(
        "spark_write",
        f"a Spark DataFrame into a topic, against Spark's kafka sink {CONNECTOR} on Apache Kafka {VERSION}",
        settings={
            "values": VALUE_BYTES,
            "spark.sql.execution.arrow.maxRecordsPerBatch": ROWS_PER_ARROW_BATCH,
            "spark": {"master": MASTER, **SETTINGS},
            "partitions of the DataFrame": PARTS,
            "tuning of the sink": TUNING,
        },
        rounds=3,
        quick=quick,
    )
    with EmbeddedCluster(brokers=1) as ours, ApacheKafka() as theirs:
        spark = session({"spark.driver.memory": "4g"})
        for size in SIZES:
            case = Case(spark, ours, theirs, size, quick=quick)
            against_sink, once = case.run(bench)
            bench.target(f"{size} B: times the rate of Spark's sink", against_sink, at_least=AT_LEAST)
            bench.target(f"{size} B: exactly once, times the rate of at least once", once, at_least=ONCE_AT_LEAST)
        spark.stop()
    return bench.finish()


if __name__ == "__main__":
    raise SystemExit(main())
