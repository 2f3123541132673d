"""The producing clients, each driven the way that suits it best, all under the same settings.

Common to all: one producer, one partition, batches of up to 1 MiB, linger 5 ms, no compression, five requests in
flight; with acks=all every one is idempotent, with acks=1 none is. A rate is taken from the first record handed over to
the last one acknowledged, on a connection that is already warm, and a single failed record is an error. Rates are
records per second; ``megabytes_per_second`` counts values only.

- raylog: ``send_batch`` with ``BATCH_BYTES`` of values per call. Its batches are full at once, so linger has no part.
- confluent-kafka: the loop around ``produce`` that its users write; the queue inside librdkafka holds a million records.
- kafka-producer-perf-test: Apache Kafka's own tool. A new JVM each time, as its users start it; its own figure, taken from
  its own clock.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from typing import Any

import apache_kafka
from confluent_kafka import Producer as ConfluentKafkaProducer

from raylog.client.links.address import ClusterAddress
from raylog.client.sync import Producer

BATCH_SIZE = 1_048_576
LINGER_MS = 5
IN_FLIGHT = 5
BATCH_BYTES = 10_000_000
POOL_BYTES = 20_000_000
SETTINGS = {
    "batch.size": BATCH_SIZE,
    "linger.ms": LINGER_MS,
    "compression.type": "none",
    "max.in.flight.requests.per.connection": IN_FLIGHT,
    "enable.idempotence": "with acks=all",
    "flush.messages": "default: no fsync per write, on both sides",
    "clients": 1,
}
_PERF_LINE = re.compile(r"(\d+) records sent, ([\d.]+) records/sec")


def random_values(count: int, size: int) -> list[bytes]:
    """Values not worth compressing; more than ``POOL_BYTES`` of them repeat."""
    distinct = min(count, max(1, POOL_BYTES // size))
    block = os.urandom(size + distinct)
    pool = [block[start : start + size] for start in range(distinct)]
    return (pool * (count // distinct + 1))[:count]


def megabytes_per_second(records_per_second: float, size: int) -> float:
    return records_per_second * size / 1e6


def written_bytes(count: int, size: int, replicas: int = 1) -> int:
    """What so many records take on the disks, roughly."""
    return replicas * count * (size + 20)


class RaylogProducer:
    """``send_batch``, over and over."""

    def __init__(self, address: ClusterAddress, topic: str, values: Sequence[bytes], acks: str) -> None:
        self._topic = topic
        per_call = max(1, BATCH_BYTES // len(values[0]))
        self._calls = [values[start : start + per_call] for start in range(0, len(values), per_call)]
        self.count = len(values)
        self._producer = Producer(
            address,
            acks=acks,
            batch_size=BATCH_SIZE,
            linger_ms=LINGER_MS,
            compression_type="none",
            max_in_flight_requests_per_connection=IN_FLIGHT,
        )
        self._producer.send_batch(topic, values[:1]).result(60)

    def rate(self) -> float:
        """Records per second, all acknowledged."""
        start = time.perf_counter()
        deliveries = [self._producer.send_batch(self._topic, values, partition=0) for values in self._calls]
        self._producer.flush()
        took = time.perf_counter() - start
        stored = sum(delivery.result(0).count for delivery in deliveries)
        assert stored == self.count, f"{stored} of {self.count} records were stored"
        return self.count / took

    def close(self) -> None:
        self._producer.close()


class ConfluentKafka:
    """The ``produce`` loop, against any server that speaks Kafka's protocol."""

    def __init__(self, bootstrap: str, topic: str, values: Sequence[bytes], acks: str, **options: Any) -> None:
        self._topic = topic
        self._values = values
        self._failures: list[str] = []
        config: dict[str, Any] = {
            "bootstrap.servers": bootstrap,
            "acks": acks,
            "enable.idempotence": acks == "all",
            "batch.size": BATCH_SIZE,
            "batch.num.messages": 1_000_000,
            "linger.ms": LINGER_MS,
            "compression.type": "none",
            "max.in.flight": IN_FLIGHT,
            "queue.buffering.max.messages": 1_000_000,
            "log_level": 0,
            "delivery.report.only.error": True,
            "on_delivery": lambda error, _: self._failures.append(str(error)),
            **options,
        }
        self._producer = ConfluentKafkaProducer(config)
        self._producer.produce(topic, values[0], None, 0)
        self._flush()

    def rate(self) -> float:
        """Records per second, all acknowledged."""
        produce, poll, topic = self._producer.produce, self._producer.poll, self._topic
        start = time.perf_counter()
        for value in self._values:
            try:
                produce(topic, value, None, 0)
            except BufferError:
                self._produce_when_there_is_room(produce, poll, value)
        self._flush()
        return len(self._values) / (time.perf_counter() - start)

    def _produce_when_there_is_room(self, produce: Any, poll: Any, value: bytes) -> None:
        while True:
            poll(0.005)
            try:
                produce(self._topic, value, None, 0)
            except BufferError:
                continue
            return

    def close(self) -> None:
        self._flush()

    def _flush(self) -> None:
        waiting = self._producer.flush(120)
        assert not waiting and not self._failures, f"{waiting} records wait, {len(self._failures)} failed"


def perf_test_rate(bootstrap: str, topic: str, count: int, size: int, acks: str, *, transaction_ms: int = 0) -> float:
    """Records per second as kafka-producer-perf-test reports them; in transactions of so long, if any."""
    printed = apache_kafka.tool(
        "org.apache.kafka.tools.ProducerPerformance",
        *("--topic", topic, "--num-records", str(count), "--record-size", str(size), "--throughput", "-1"),
        *(("--transaction-duration-ms", str(transaction_ms)) if transaction_ms else ()),
        "--producer-props",
        f"bootstrap.servers={bootstrap}",
        f"acks={acks}",
        f"batch.size={BATCH_SIZE}",
        f"linger.ms={LINGER_MS}",
        "compression.type=none",
        f"max.in.flight.requests.per.connection={IN_FLIGHT}",
        heap="-Xmx512M",
        timeout_s=600,
    )
    totals = _PERF_LINE.findall(printed)
    assert totals and int(totals[-1][0]) == count, f"unexpected output of the tool:\n{printed[-2000:]}"
    return float(totals[-1][1])
