"""How long a micro-batch takes: raylog.spark.read_stream against Spark's own kafka source on Apache Kafka 3.9.1.

The same query on both, in one Spark session on two threads, one after the other in turn: a trigger each second, the lengths of the values
into the noop sink, while a thousand records of 100 B a second come into one partition. Figures are ``durationMs`` of the query's
progress, of every batch that had input but the first three: ``triggerExecution``, and what it is made of.
"""

from __future__ import annotations

import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from apache_kafka import VERSION, ApacheKafka
from confluent_kafka import Producer as KafkaProducer
from embedded import EmbeddedCluster
from harness import Benchmark, Measurement, arguments
from local_spark import MASTER, SETTINGS, session
from spark_connector import VERSION as CONNECTOR

import raylog.spark
from raylog.client.sync import Producer

RAYLOG, KAFKA = "raylog.spark.read_stream", "Spark's kafka source"
TOPIC = "ticks"
PER_S = 1_000
VALUE = b"v" * 100
BATCHES = 20
WARM = 3
TURNS = 2
PARTS = ("latestOffset", "getBatch", "queryPlanning", "walCommit", "addBatch", "commitOffsets")
ABOVE_MS = 500.0
TIMES = 2.0


class Load:
    """A thousand records a second into both, until the end of ``with``."""

    def __init__(self, ours: EmbeddedCluster, theirs: ApacheKafka) -> None:
        self._here = Producer(ours.cluster.address, linger_ms=5)
        self._there = KafkaProducer({"bootstrap.servers": theirs.bootstrap, "linger.ms": 5})
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._over.wait(0.1):
            self._here.send_batch(TOPIC, [VALUE] * (PER_S // 10), partition=0)
            for _ in range(PER_S // 10):
                self._there.produce(TOPIC, VALUE, None, 0)
            self._there.poll(0)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()
        self._here.close()
        self._there.flush(30)


def frame(spark: Any, side: str, ours: EmbeddedCluster, theirs: ApacheKafka, checkpoint: Path) -> Any:
    if side == RAYLOG:
        return raylog.spark.read_stream(
            spark, TOPIC, checkpoint=str(checkpoint), cluster=ours.cluster, columns=["value"]
        )
    options = {"kafka.bootstrap.servers": theirs.bootstrap, "subscribe": TOPIC}
    return spark.readStream.format("kafka").options(**options).load().select("value")


def turn(spark: Any, side: str, ours: EmbeddedCluster, theirs: ApacheKafka, batches: int) -> list[dict[str, int]]:
    """``durationMs`` of so many batches of a query that begins anew."""
    from pyspark.sql.functions import length

    with tempfile.TemporaryDirectory(prefix="rlt") as scratch:
        checkpoint = Path(scratch) / "checkpoint"
        rows = frame(spark, side, ours, theirs, checkpoint).select(length("value").alias("size")).where("size > 0")
        query = (
            rows.writeStream.format("noop")
            .option("checkpointLocation", str(checkpoint))
            .trigger(processingTime="1 second")
            .start()
        )
        try:
            found: dict[int, dict[str, int]] = {}
            deadline = time.monotonic() + 30 + 6 * (batches + WARM)
            while len(found) < batches + WARM:
                assert time.monotonic() < deadline, f"{len(found)} batches of {side}: {query.exception()}"
                time.sleep(0.5)
                for each in query.recentProgress:
                    if each["numInputRows"] > 0:
                        found[each["batchId"]] = each["durationMs"]
            return [found[number] for number in sorted(found)][WARM : WARM + batches]
        finally:
            query.stop()


def main() -> int:
    quick = arguments().quick
    bench = Benchmark(
        "spark_trigger",
        f"a micro-batch of a stream, against Spark's kafka source {CONNECTOR} on Apache Kafka {VERSION}",
        settings={
            "spark": {"master": MASTER, **SETTINGS},
            "records per s": PER_S,
            "trigger": "1 second",
            "batches": TURNS * BATCHES,
        },
        rounds=TURNS,
        quick=quick,
    )
    times: dict[str, list[dict[str, int]]] = {KAFKA: [], RAYLOG: []}
    with EmbeddedCluster(brokers=1) as ours, ApacheKafka() as theirs:
        ours.create_topic(TOPIC)
        theirs.create_topic(TOPIC)
        spark = session()
        with Load(ours, theirs):
            for _ in range(1 if quick else TURNS):
                for side in times:
                    times[side] += turn(spark, side, ours, theirs, 4 if quick else BATCHES)
        spark.stop()
    found: dict[str, Measurement] = {}
    for part in ("triggerExecution", *PARTS):
        for side, batches in times.items():
            values = [float(each.get(part, 0)) for each in batches]
            measured = bench.record(part, side, values, unit="ms")
            if part == "triggerExecution":
                found[side] = measured
    allowed = max(TIMES * found[KAFKA].median, found[KAFKA].median + ABOVE_MS)
    bench.target(
        f"triggerExecution, p50, ms: twice that of Spark's source ({found[KAFKA].median:.0f}), or {ABOVE_MS:.0f} ms more",
        found[RAYLOG].median,
        at_most=allowed,
    )
    return bench.finish()


if __name__ == "__main__":
    raise SystemExit(main())
