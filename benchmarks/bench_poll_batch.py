"""How fast one consumer empties one partition: ``poll_batch`` against kafka-consumer-perf-test on Apache Kafka, records of 100 B and 1 KB.

Both servers are single brokers on this machine, up for the whole script: raylog embedded, every server a Ray actor; Kafka a KRaft broker
with a 1 GB heap. Each topic has one partition, filled once with the same number of values in uncompressed batches of 1 MiB by the
side's own fastest producer; it stays in the page cache. Sides take turns; while one is measured the other is idle.

Kafka's side is its own tool, a fresh JVM each time as its users start it; its figure is ``fetch.nMsg.sec``, from its own clock and without
the time of joining a group. It decodes each record into an object. raylog's side is a fresh ``Consumer`` each time, from ``assign``
to the last record, in this process; it makes Arrow tables: *all columns*, and *value* as a query that needs no more would ask for it.
Fetches are of equal size.

The CPU time that client and server use together per million records stands below the rates. The last case takes the client alone: what
it makes of the same bytes in memory, with the C kernel and with the packaged codec.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Sequence
from functools import partial

import apache_kafka
from apache_kafka import VERSION, ApacheKafka
from embedded import EmbeddedCluster
from harness import Benchmark, arguments, cpu_seconds
from producers import BATCH_SIZE, RaylogProducer, perf_test_rate, random_values

from raylog.client.sync import Consumer
from raylog.records import kernel
from raylog.records.arrow_columns import RecordColumns
from raylog.records.batch import batches
from raylog.records.codec import encode_values

FETCH_BYTES = 1 << 20
RECORDS = {100: 10_000_000, 1000: 1_500_000}
TARGETS = {100: 2.0, 1000: 2.0}
ALL, VALUE, PERF_TEST = "poll_batch, all columns", "poll_batch, value", "Kafka, consumer-perf-test"


class Case:
    """One filled topic on each side."""

    def __init__(self, ours: EmbeddedCluster, theirs: ApacheKafka, size: int, *, quick: bool) -> None:
        self.ours = ours
        self.theirs = theirs
        self.size = size
        self.count = RECORDS[size] // (20 if quick else 1)
        self.topic = f"bench-{size}"
        self.costs: dict[str, list[float]] = {PERF_TEST: [], ALL: [], VALUE: []}
        ours.create_topic(self.topic)
        theirs.create_topic(self.topic)
        producer = RaylogProducer(ours.cluster.address, self.topic, random_values(self.count, size), "1")
        producer.rate()
        producer.close()
        perf_test_rate(theirs.bootstrap, self.topic, self.count, size, "1")

    def run(self, bench: Benchmark) -> float:
        """Measures; gives the ratio of all columns and of Kafka's tool."""
        rates = bench.alternate(
            f"{self.size} B",
            {
                PERF_TEST: partial(self._measured, PERF_TEST, self._perf_test, self.theirs.pids.values()),
                ALL: partial(self._measured, ALL, partial(self._poll_batch, None), self.ours.replica_pids()),
                VALUE: partial(self._measured, VALUE, partial(self._poll_batch, ["value"]), self.ours.replica_pids()),
            },
            unit="M records/s",
        )
        for client, values in self.costs.items():
            bench.record(f"{self.size} B, CPU of client and server", client, values[1:], unit="CPU s/M records")
        return rates[ALL].median / rates[PERF_TEST].median

    def _measured(self, client: str, consume: Callable[[], float], servers: Sequence[int]) -> float:
        before = cpu_seconds(*servers) + _own_cpu_seconds()
        rate = consume()
        self.costs[client].append((cpu_seconds(*servers) + _own_cpu_seconds() - before) / (self.count / 1e6))
        return rate / 1e6

    def _perf_test(self) -> float:
        printed = apache_kafka.tool(
            "org.apache.kafka.tools.ConsumerPerformance",
            *("--bootstrap-server", self.theirs.bootstrap, "--topic", self.topic, "--messages", str(self.count)),
            *("--fetch-size", str(FETCH_BYTES), "--timeout", "60000"),
            heap="-Xmx512M",
            timeout_s=300,
        )
        names, values = (line.split(", ") for line in printed.strip().splitlines()[-2:])
        figures = dict(zip((name.strip() for name in names), values, strict=True))
        assert int(figures["data.consumed.in.nMsg"]) >= self.count, f"unexpected output of the tool:\n{printed[-2000:]}"
        return float(figures["fetch.nMsg.sec"])

    def _poll_batch(self, columns: Sequence[str] | None) -> float:
        with Consumer(self.ours.cluster.address, max_partition_fetch_bytes=FETCH_BYTES) as consumer:
            (end,) = consumer.end_offsets([(self.topic, 0)]).values()
            start = time.perf_counter()
            consumer.assign([(self.topic, 0)])
            consumer.seek((self.topic, 0), end - self.count)
            got = size = 0
            while got < self.count:
                table = consumer.poll_batch(timeout=30, columns=columns)
                got += table.num_rows
                size += table.column("value").nbytes
            took = time.perf_counter() - start
        assert got == self.count and size >= self.count * self.size, (got, size)
        return got / took


def _own_cpu_seconds() -> float:
    """Of this process and of those that it has started and seen end."""
    parts = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in parts)


def measure_alone(bench: Benchmark, size: int, *, quick: bool) -> None:
    """Batches in memory to Arrow, all columns, by both ways."""
    log = bytes(encode_values(random_values(BATCH_SIZE // (size + 10), size), timestamp_ms=1))
    repeats = 5 if quick else 50

    def rate(compiled: kernel.Kernel | None) -> float:
        start = time.perf_counter()
        got = 0
        for _ in range(repeats):
            columns = RecordColumns(compiled=compiled)
            for view in batches(log):
                columns.add(view)
            got += columns.take()[0].num_rows
        return got / (time.perf_counter() - start) / 1e6

    ways = {"packaged codec": partial(rate, None), "C kernel": partial(rate, kernel.loaded())}
    bench.alternate(f"{size} B, in memory", ways, unit="M records/s")


def main() -> int:
    quick = arguments().quick
    bench = Benchmark(
        "poll_batch",
        f"one consumer, one partition, Arrow tables, against Apache Kafka {VERSION}",
        settings={
            "brokers": 1,
            "batch.size": BATCH_SIZE,
            "max.partition.fetch.bytes": FETCH_BYTES,
            "compression.type": "none",
            "records": RECORDS,
        },
        quick=quick,
    )
    with EmbeddedCluster(brokers=1) as ours, ApacheKafka(brokers=1) as theirs:
        for size, at_least in TARGETS.items():
            ratio = Case(ours, theirs, size, quick=quick).run(bench)
            bench.target(f"{size} B: times the rate of kafka-consumer-perf-test", ratio, at_least=at_least)
    for size in TARGETS:
        measure_alone(bench, size, quick=quick)
    return bench.finish()


if __name__ == "__main__":
    raise SystemExit(main())
