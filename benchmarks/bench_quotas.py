"""A producer's byte quota, beside Apache Kafka: how near to it a client stays, and what its neighbours notice of it.

One raylog broker, embedded, every server a Ray actor, behind its listener; and one KRaft broker of Apache Kafka. Both are up for the
whole script and take turns. The quota is set by Kafka's own tool, for the client id of a producer of confluent-kafka.

- *rate of the quota*: what is acknowledged within 30 s of a producer that sends 1.5 times its quota, as a share of the quota. The first
  12 s don't count, in which it may use ten seconds' worth at once. One that sends as fast as it can sends in bursts of ten seconds'
  worth, with Kafka as well.
- *neighbours*: the p99 of 20 producers without a quota that send ten records per second each, from ``produce`` to the delivery report,
  alone and beside a producer that sends 10 times its quota.
"""

from __future__ import annotations

import threading
import time
from array import array
from collections.abc import Callable
from typing import Any, ClassVar, Self

from apache_kafka import VERSION, ApacheKafka, tool
from confluent_kafka import Producer
from embedded import EmbeddedCluster
from harness import Benchmark, Measurement, arguments
from light_clients import CLIENT, LightClients

LIGHT, HEAVY = "light", "heavy"
PAIRS = 20
QUOTA = 1_000_000  # bytes per second
RECORD_BYTES = 10_000
STEADY, NOISY = 1.5, 10.0  # times the quota
WARM_UP_S, MEASURED_S = 12.0, 30.0
NEIGHBOURS_S = 15.0
TICK_S = 0.01


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


def main() -> int:
    quick = arguments().quick
    shorter = 4 if quick else 1
    bench = Benchmark(
        "quotas",
        f"a producer with a byte quota stays near it and its neighbours notice little, beside Apache Kafka {VERSION}",
        settings={
            "quota": QUOTA,
            "record_bytes": RECORD_BYTES,
            "acks": "1",
            "neighbours": PAIRS,
            "measured_s": MEASURED_S,
            "warm_up_s": WARM_UP_S,
        },
        quick=quick,
    )
    used = iter(range(1_000_000))  # each run has a client id of its own, which has used nothing of its quota yet

    def run(work: Callable[..., float], bootstrap: str, name: str | None) -> Callable[[], float]:
        return lambda: work(bootstrap, None if name is None else f"{name}-{next(used)}", shorter=shorter)

    with Raylog() as ours, Kafka() as theirs:
        sides = (ours, theirs)
        shares = bench.alternate(
            "rate of the quota",
            {each.name: run(share_of_quota, each.bootstrap, "steady") for each in sides},
            unit="of the quota",
            warm_up=False,
        )
        neighbours = bench.alternate(
            "neighbours, p99",
            {f"{each.name}, alone": run(neighbours_p99_ms, each.bootstrap, None) for each in sides}
            | {f"{each.name}, noisy": run(neighbours_p99_ms, each.bootstrap, "noisy") for each in sides},
            unit="ms",
            warm_up=not quick,
        )
    share = shares[Raylog.name].median
    bench.target("share of the quota that a steady producer gets", share, at_least=0.9)
    bench.target("a steady producer's rate in its quota", share, at_most=1.1)
    ratio = neighbours[f"{Raylog.name}, noisy"].median / neighbours[f"{Raylog.name}, alone"].median
    bench.target("the neighbours' p99 beside a noisy producer, times that without", ratio, at_most=1.5)
    return bench.finish()


if __name__ == "__main__":
    raise SystemExit(main())
