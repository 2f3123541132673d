"""One record at a time: how long from ``send`` to its acknowledgement.

Two topics on an embedded cluster of three brokers, every server a Ray actor: RF 1 with acks=1, and RF 3 with acks=all
(min.insync.replicas 2). Records of 100 B, linger 0, the next one sent when the last one is acknowledged. The bounds
hold for the blocking ``Producer``, whose wait crosses two threads; ``AsyncProducer`` on uvloop shows what is left without.
Beside them confluent-kafka on Apache Kafka, three KRaft brokers, the same way. Then the second topic once more, when both clusters
have 1,000 partitions of three replicas beside it that nobody writes to.

Each round gives the median and the 99th percentile of its round trips. The machine should be idle.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Callable
from functools import partial

import uvloop
from apache_kafka import VERSION, ApacheKafka
from confluent_kafka import Producer as ConfluentKafkaProducer
from embedded import EmbeddedCluster, add_layout_option, layout_of
from harness import Benchmark, Measurement, arguments

from raylog.client.links.address import ClusterAddress
from raylog.client.producer.producer import AsyncProducer
from raylog.client.sync import Producer

VALUE = bytes(100)
TRIPS = 3000
WARM_UP = 200
BOUNDS_MS = {1: 1.0, 3: 3.0}  # by replication factor
MANY = 1_000  # partitions
MANY_QUIET_S = 20.0  # until all of them are followed, and nobody asks for metadata any more
MANY_TIMES_MAX = 1.0  # Kafka's p50
KAFKA, BLOCKING, AWAITED = "Kafka, confluent-kafka", "raylog Producer", "raylog AsyncProducer"

Trips = list[float]


def blocking(address: ClusterAddress, topic: str, acks: str, count: int) -> Trips:
    with Producer(address, acks=acks, linger_ms=0) as producer:
        taken = []
        for _ in range(WARM_UP + count):
            start = time.perf_counter()
            producer.send(topic, VALUE, partition=0).result(30)
            taken.append(time.perf_counter() - start)
    return taken[WARM_UP:]


def awaited(address: ClusterAddress, topic: str, acks: str, count: int) -> Trips:
    async def main() -> Trips:
        async with AsyncProducer(address, acks=acks, linger_ms=0) as producer:
            taken = []
            for _ in range(WARM_UP + count):
                start = time.perf_counter()
                await (await producer.send(topic, VALUE, partition=0))
                taken.append(time.perf_counter() - start)
        return taken[WARM_UP:]

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())


def kafka(bootstrap: str, topic: str, acks: str, count: int) -> Trips:
    settings = {"bootstrap.servers": bootstrap, "acks": acks, "linger.ms": 0, "log_level": 0}
    producer = ConfluentKafkaProducer(settings | {"enable.idempotence": acks == "all"})
    settled: list[object] = []
    taken = []
    for _ in range(WARM_UP + count):
        settled.clear()
        start = time.perf_counter()
        producer.produce(topic, VALUE, None, 0, on_delivery=lambda error, _: settled.append(error))
        while not settled:
            producer.poll(1)
        taken.append(time.perf_counter() - start)
        assert settled == [None], settled
    return taken[WARM_UP:]


def measure(bench: Benchmark, case: str, contestants: dict[str, Callable[[], Trips]]) -> dict[str, Measurement]:
    """Medians of each round, in ms; the 99th percentiles and the worst trips are recorded beside them."""
    tails: dict[str, tuple[Trips, Trips]] = {name: ([], []) for name in contestants}

    def median_of(name: str) -> float:
        trips = sorted(contestants[name]())
        p99, worst = tails[name]
        p99.append(1000 * trips[-(-len(trips) * 99 // 100) - 1])
        worst.append(1000 * trips[-1])
        return 1000 * statistics.median(trips)

    medians = bench.alternate(f"{case}, p50", {name: partial(median_of, name) for name in contestants}, unit="ms")
    for name, (p99, worst) in tails.items():
        bench.record(f"{case}, p99", name, p99[1:], unit="ms", worst=worst[1:])
    return medians


def main() -> int:
    parser = argparse.ArgumentParser()
    add_layout_option(parser)
    options = arguments(parser)
    quick = options.quick
    count = TRIPS // (10 if quick else 1)
    bench = Benchmark(
        "round_trip",
        f"send to acknowledgement, one record at a time, against Apache Kafka {VERSION}",
        settings={"record_bytes": len(VALUE), "linger.ms": 0, "trips_per_round": count, "brokers": 3},
        quick=quick,
        variant=layout_of(options),
    )
    with EmbeddedCluster(replicas_per_actor=options.replicas_per_actor) as ours, ApacheKafka(brokers=3) as theirs:
        address = ours.cluster.address
        for replicas, acks in ((1, "1"), (3, "all")):
            topic = f"trips-{replicas}"
            configs = {"min.insync.replicas": str(min(2, replicas))}
            ours.create_topic(topic, replication_factor=replicas, configs=configs)
            theirs.create_topic(topic, replication_factor=replicas, configs=configs)
            case = f"RF {replicas}, acks={acks}"
            contestants: dict[str, Callable[[], Trips]] = {
                KAFKA: partial(kafka, theirs.bootstrap, topic, acks, count),
                BLOCKING: partial(blocking, address, topic, acks, count),
                AWAITED: partial(awaited, address, topic, acks, count),
            }
            medians = measure(bench, case, contestants)
            bench.target(f"{case}: p50, ms", medians[BLOCKING].median, at_most=BOUNDS_MS[replicas])
        for side in (ours, theirs):
            side.create_topic("many", partitions=MANY, replication_factor=3, configs=configs)
        time.sleep(MANY_QUIET_S)
        case = f"{case}, beside {MANY:,} partitions"
        medians = measure(bench, case, contestants)
        times = medians[BLOCKING].median / medians[KAFKA].median
        bench.target(f"{case}: p50, times Kafka's", times, at_most=MANY_TIMES_MAX)
    return bench.finish()


if __name__ == "__main__":
    raise SystemExit(main())
