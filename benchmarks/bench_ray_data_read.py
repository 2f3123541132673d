"""A topic into a Ray Dataset: raylog.data.read_topic against ray.data.read_kafka on Apache Kafka 3.9.1.

One Ray of two CPUs with an object store of 2 GB reads both, warm: count of the rows and the sum of the lengths of their values, by
``map_batches`` on Arrow blocks. One partition with one replica, the same values on both sides. read_kafka reads an eighth of the records,
since it takes more than thirty times as long for each; both are rates over some seconds, with Ray Data's own start in them. raylog
reads the value only (``columns=["value"]``); read_kafka has no choice.
"""

from __future__ import annotations

import logging
import os
import time
from functools import partial
from typing import Any

from apache_kafka import VERSION, ApacheKafka
from embedded import EmbeddedCluster
from harness import Benchmark, arguments
from producers import ConfluentKafka, RaylogProducer, random_values

import raylog

RAYLOG, READ_KAFKA = "raylog.data.read_topic", "ray.data.read_kafka"
RECORDS = {100: 4_000_000, 1000: 800_000}
SHARE = 8  # of raylog's records, one in so many is there for read_kafka
AT_LEAST = 30.0


def told(batch: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    sizes = pc.sum(pc.binary_length(batch.column("value"))).as_py()
    return pa.table({"rows": [batch.num_rows], "bytes": [sizes]})


class Case:
    def __init__(self, ours: EmbeddedCluster, theirs: ApacheKafka, size: int, *, quick: bool) -> None:
        self.ours = ours
        self.theirs = theirs
        self.size = size
        self.topic = f"ray-data-{size}"
        count = RECORDS[size] // (20 if quick else 1)
        ours.create_topic(self.topic)
        theirs.create_topic(self.topic)
        values = random_values(count, size)
        here = RaylogProducer(ours.cluster.address, self.topic, values, "1")
        there = ConfluentKafka(theirs.bootstrap, self.topic, values[: count // SHARE], "1")
        here.rate()
        there.rate()
        here.close()
        there.close()

    def run(self, bench: Benchmark) -> float:
        rates = bench.alternate(
            f"{self.size} B", {side: partial(self.rate, side) for side in (READ_KAFKA, RAYLOG)}, unit="k rows/s"
        )
        return rates[RAYLOG].median / rates[READ_KAFKA].median

    def rate(self, side: str) -> float:
        import ray

        started = time.perf_counter()
        if side == RAYLOG:
            ds = raylog.data.read_topic(self.topic, cluster=self.ours.cluster, columns=["value"])
        else:
            ds = ray.data.read_kafka([self.topic], bootstrap_servers=self.theirs.bootstrap)
        rows = ds.map_batches(told, batch_format="pyarrow", batch_size=None).take_all()
        took = time.perf_counter() - started
        count = sum(row["rows"] for row in rows)
        assert sum(row["bytes"] for row in rows) == count * self.size
        return float(count / took / 1e3)


def main() -> int:
    import ray

    quick = arguments().quick
    os.environ["RAY_DATA_DISABLE_PROGRESS_BARS"] = "1"
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    bench = Benchmark(
        "ray_data_read",
        f"a topic into a Ray Dataset, against ray.data.read_kafka on Apache Kafka {VERSION}",
        settings={"records": {str(size): count for size, count in RECORDS.items()}, "cpus": 2, "object store": "2 GB"},
        rounds=3,
        quick=quick,
    )
    ray.init("local", num_cpus=2, object_store_memory=2 << 30, include_dashboard=False, log_to_driver=False)
    with EmbeddedCluster(brokers=1) as ours, ApacheKafka() as theirs:
        for size in RECORDS:
            ratio = Case(ours, theirs, size, quick=quick).run(bench)
            bench.target(f"{size} B: times the rate of read_kafka", ratio, at_least=AT_LEAST)
    ray.shutdown()
    return bench.finish()


if __name__ == "__main__":
    raise SystemExit(main())
