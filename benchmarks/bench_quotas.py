"""A producer's byte quota, beside Apache Kafka: how near to it a client stays, and what its neighbours notice of it. And what
quotas cost that nobody reaches.

``--only PART`` runs a part anew; the others keep the figures of their last run.

``held``: one raylog broker, embedded, every server a Ray actor, behind its listener; and one KRaft broker of Apache Kafka. Both are up
for the whole part and take turns. The quota is set by Kafka's own tool, for the client id of a producer of confluent-kafka.

- *rate of the quota*: what is acknowledged within 30 s of a producer that sends 1.5 times its quota, as a share of the quota. The first
  12 s don't count, in which it may use ten seconds' worth at once. One that sends as fast as it can sends in bursts of ten seconds'
  worth, with Kafka as well.
- *neighbours*: the p99 of 20 producers without a quota that send ten records per second each, from ``produce`` to the delivery report,
  alone and beside a producer that sends 10 times its quota.

``cost``, of bytes, and ``trips``, of one record at a time: one raylog broker and confluent-kafka at its plain listener, with
quotas of users and client ids (bytes produced and consumed, and time of requests) that are far above what the client does,
with those of bytes alone, with somebody else's, and with none. Each run has a new connection, which moves to the host.
Consumers read four times as many records as a producer sends: fewer take too short a time. A run takes half a second, and
the machine may be half as fast for some of them, so there are 11 rounds, 25 of trips, and a bound is on the median of the
rounds' ratios.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from array import array
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, Self

from apache_kafka import VERSION, ApacheKafka, tool
from bench_round_trip import kafka as round_trips
from confluent_kafka import Producer
from consumers import ConfluentKafkaReader
from embedded import EmbeddedCluster
from harness import Benchmark, Measurement, arguments
from light_clients import CLIENT, LightClients
from producers import ConfluentKafka, megabytes_per_second, random_values, written_bytes

from raylog.client.sync import AdminClient

LIGHT, HEAVY = "light", "heavy"
PAIRS = 20
QUOTA = 1_000_000  # bytes per second
RECORD_BYTES = 10_000
STEADY, NOISY = 1.5, 10.0  # times the quota
WARM_UP_S, MEASURED_S = 12.0, 30.0
NEIGHBOURS_S = 15.0
TICK_S = 0.01
PARTS = ("held", "cost", "trips")
SHARES, NEIGHBOURS = "rate of the quota", "neighbours, p99"
NONE, OTHERS = "no quotas", "somebody else's quotas"
BYTES, UNREACHED = "quotas of bytes that are not reached", "quotas that are not reached"
FAR_BYTES = {"producer_byte_rate": 1e12, "consumer_byte_rate": 1e12}
FAR = FAR_BYTES | {"request_percentage": 1e9}
ENTITIES: dict[str, tuple[dict[str, str | None], ...]] = {
    NONE: (),
    OTHERS: ({"user": "somebody"}, {"client-id": "somebody"}),
    BYTES: ({"user": None}, {"client-id": None}),
    UNREACHED: ({"user": None}, {"client-id": None}),
}
KNOWN_S = 1.2  # within one second, a change of quotas is in force
COST_RECORDS, COST_BYTES, COST_ROUNDS = 300_000, 1_000, 11
COST_TRIPS, COST_TRIPS_ROUNDS = 2_000, 25
COST_MAX, RATE_MIN = 1.05, 0.95


class Raylog:
    name: ClassVar = "raylog"

    def __init__(self) -> None:
        self._running = EmbeddedCluster(brokers=1)

    def __enter__(self) -> Self:
        self._running.__enter__()
        self._running.create_topic(LIGHT, partitions=PAIRS, configs={"replicas.per.actor": PAIRS})
        self._running.create_topic(HEAVY)
        self.bootstrap = self._running.cluster.bootstrap_servers()
        return self

    def __exit__(self, *_: object) -> None:
        self._running.__exit__(None, None, None)


class Kafka:
    name: ClassVar = "Apache Kafka"

    def __init__(self) -> None:
        self._kafka = ApacheKafka(1)

    def __enter__(self) -> Self:
        self._kafka.__enter__()
        self._kafka.create_topic(LIGHT, partitions=PAIRS)
        self._kafka.create_topic(HEAVY)
        self.bootstrap = self._kafka.bootstrap
        return self

    def __exit__(self, *_: object) -> None:
        self._kafka.__exit__(None, None, None)


class QuotaProducer(threading.Thread):
    """Sends so many times its quota until ``stop``, and drops what its queue has no room for."""

    def __init__(self, bootstrap: str, client_id: str, times: float) -> None:
        super().__init__(daemon=True)
        options = {"bootstrap.servers": bootstrap, "client.id": client_id, "acks": 1, "linger.ms": 5} | CLIENT
        limits = {"queue.buffering.max.kbytes": 4 * QUOTA // 1_000, "message.timeout.ms": 300_000}
        self._producer = Producer(options | limits)
        self._rate = times * QUOTA / RECORD_BYTES
        self._stopped = threading.Event()
        self._acknowledged_at = array("d")

    def _settled(self, error: Any, _: Any) -> None:
        if error is None:
            self._acknowledged_at.append(time.monotonic())

    def run(self) -> None:
        began, sent = time.monotonic(), 0
        value = b"v" * RECORD_BYTES
        while not self._stopped.wait(TICK_S):
            due = int((time.monotonic() - began) * self._rate)
            for _ in range(due - sent):
                try:
                    self._producer.produce(HEAVY, value, on_delivery=self._settled)
                except BufferError:
                    break
            sent = due
            self._producer.poll(0)

    def acknowledged(self, start: float, end: float) -> int:
        """Bytes of values within this time."""
        return RECORD_BYTES * sum(start <= moment < end for moment in self._acknowledged_at)

    def stop(self) -> None:
        self._stopped.set()
        self.join()
        self._producer.purge()
        self._producer.flush(10)


def set_quota(bootstrap: str, client_id: str) -> None:
    entity = ("--entity-type", "clients", "--entity-name", client_id)
    config = ("--add-config", f"producer_byte_rate={QUOTA}")
    tool("kafka.admin.ConfigCommand", "--bootstrap-server", bootstrap, "--alter", *entity, *config)


def with_producer(bootstrap: str, client_id: str, times: float, work: Callable[[QuotaProducer], float]) -> float:
    set_quota(bootstrap, client_id)
    producer = QuotaProducer(bootstrap, client_id, times)
    producer.start()
    try:
        return work(producer)
    finally:
        producer.stop()


def share_of_quota(bootstrap: str, client_id: str, *, shorter: int) -> float:
    """What a producer that sends a little too much gets, of what its quota allows."""

    def work(producer: QuotaProducer) -> float:
        time.sleep(WARM_UP_S / shorter)
        start = time.monotonic()
        time.sleep(MEASURED_S / shorter)
        return producer.acknowledged(start, start + MEASURED_S / shorter) / (QUOTA * MEASURED_S / shorter)

    return with_producer(bootstrap, client_id, STEADY, work)


def neighbours_p99_ms(bootstrap: str, client_id: str | None, *, shorter: int) -> float:
    """Beside a noisy producer with a quota, if a client id is given."""
    with LightClients(bootstrap, LIGHT, PAIRS, records_per_second=10) as clients:

        def measured() -> float:
            found = clients.measured(lambda: time.sleep(NEIGHBOURS_S / shorter))
            assert not found.refused, f"{found.refused} records were refused"
            return Measurement("ms", [1_000 * each for each in found.acknowledged]).percentile(99)

        if client_id is None:
            return measured()

        def work(_: QuotaProducer) -> float:
            time.sleep(WARM_UP_S / shorter)
            return measured()

        return with_producer(bootstrap, client_id, NOISY, work)


# ------------------------------------------------------------------ parts


def held(bench: Benchmark, *, quick: bool) -> None:
    shorter = 4 if quick else 1
    used = iter(range(1_000_000))  # each run has a client id of its own, which has used nothing of its quota yet

    def run(work: Callable[..., float], bootstrap: str, name: str | None) -> Callable[[], float]:
        return lambda: work(bootstrap, None if name is None else f"{name}-{next(used)}", shorter=shorter)

    with Raylog() as ours, Kafka() as theirs:
        sides = (ours, theirs)
        bench.alternate(
            SHARES,
            {each.name: run(share_of_quota, each.bootstrap, "steady") for each in sides},
            unit="of the quota",
            warm_up=False,
        )
        bench.alternate(
            NEIGHBOURS,
            {f"{each.name}, alone": run(neighbours_p99_ms, each.bootstrap, None) for each in sides}
            | {f"{each.name}, noisy": run(neighbours_p99_ms, each.bootstrap, "noisy") for each in sides},
            unit="ms",
            warm_up=not quick,
        )


def cost(bench: Benchmark, *, quick: bool, is_of_trips: bool = False) -> None:
    count, trips = COST_RECORDS // (20 if quick else 1), COST_TRIPS // (10 if quick else 1)
    values = random_values(count, COST_BYTES)
    bench.rounds = 1 if quick else COST_TRIPS_ROUNDS if is_of_trips else COST_ROUNDS
    with EmbeddedCluster(1) as running, AdminClient(running.cluster.address) as admin:
        running.create_topic("few")
        at = running.cluster.bootstrap_servers()

        def with_quotas(work: Callable[[], float], name: str) -> float:
            for entity in (entity for each in ENTITIES.values() for entity in each):
                far = FAR_BYTES if name == BYTES else FAR
                admin.alter_quotas(entity, dict.fromkeys(FAR) | (far if entity in ENTITIES[name] else {}))
            time.sleep(KNOWN_S)
            return work()

        def produced() -> float:
            client = ConfluentKafka(at, "few", values, "1")
            try:
                return megabytes_per_second(client.rate(), COST_BYTES)
            finally:
                client.close()

        def consumed() -> float:
            reader = ConfluentKafkaReader(at, "few", 4 * count)
            try:
                return megabytes_per_second(reader.rate(), COST_BYTES)
            finally:
                reader.close()

        def taken() -> float:
            return 1_000 * statistics.median(round_trips(at, "few", "1", trips))

        def compare(case: str, work: Callable[[], float], unit: str, written: int) -> None:
            runs: Mapping[str, Callable[[], float]] = {name: partial(with_quotas, work, name) for name in ENTITIES}
            bench.alternate(f"cost: {case}", runs, unit=unit, written_bytes=written)

        if is_of_trips:
            compare("round trip, p50", taken, "ms", 0)
        else:
            compare("produce, 1 KB", produced, "MB/s", written_bytes(count, COST_BYTES))
            compare("consume, 1 KB", consumed, "MB/s", 0)


# ------------------------------------------------------------------ all


def judge(bench: Benchmark) -> None:
    for case, found in bench.cases.items():
        if case == SHARES:
            share = found[Raylog.name].median
            bench.target("share of the quota that a steady producer gets", share, at_least=0.9)
            bench.target("a steady producer's rate in its quota", share, at_most=1.1)
        elif case == NEIGHBOURS:
            ratio = found[f"{Raylog.name}, noisy"].median / found[f"{Raylog.name}, alone"].median
            bench.target("the neighbours' p99 beside a noisy producer, times that without", ratio, at_most=1.5)
        else:
            for name in (each for each in (OTHERS, BYTES, UNREACHED) if each in found):
                pairs = zip(found[name].values, found[NONE].values, strict=True)
                ratio = statistics.median(with_quotas / without for with_quotas, without in pairs)
                bounds = {"at_most": COST_MAX} if "round trip" in case else {"at_least": RATE_MIN}
                bench.target(f"{case}: {name}, times that without any, the rounds' median", ratio, **bounds)


def part_of(case: str) -> str:
    if case.startswith("cost: "):
        return "trips" if "round trip" in case else "cost"
    return "held"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", choices=PARTS, help="one part; the other's figures stay")
    options = arguments(parser)
    bench = Benchmark(
        "quotas",
        f"a producer with a byte quota stays near it and its neighbours notice little, beside Apache Kafka {VERSION}; "
        "quotas that nobody reaches cost little",
        settings={
            "quota": QUOTA,
            "record_bytes": RECORD_BYTES,
            "acks": "1",
            "neighbours": PAIRS,
            "measured_s": MEASURED_S,
            "warm_up_s": WARM_UP_S,
            "cost_records": COST_RECORDS,
            "cost_bytes": COST_BYTES,
            "cost_rounds": COST_ROUNDS,
            "cost_trips": COST_TRIPS,
            "cost_trips_rounds": COST_TRIPS_ROUNDS,
        },
        quick=options.quick,
    )
    parts = (options.only,) if options.only else PARTS
    if options.only:
        bench.cases = {case: found for case, found in bench.earlier().items() if part_of(case) not in parts}
    for part in parts:
        {"held": held, "cost": cost, "trips": partial(cost, is_of_trips=True)}[part](bench, quick=options.quick)
        bench.write()
    judge(bench)
    if options.only:
        bench.note("Figures of parts that were not run anew are an earlier run's.")
    return bench.finish()


if __name__ == "__main__":
    raise SystemExit(main())
