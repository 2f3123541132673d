"""The consuming client of the Kafka world: confluent-kafka's ``consume`` loop, against any server that speaks Kafka's protocol.

librdkafka's settings are its defaults, so a fetch asks for up to 1 MB of a partition, but for how much it fetches ahead: by default it
pauses for a second whenever 100,000 records wait in its queue, and then every server gives 0.17 M records/s of 100 B. A rate is taken
from the assignment to the last record, on a client whose connections and metadata are warm.
"""

from __future__ import annotations

import time
from typing import Any

from confluent_kafka import Consumer, TopicPartition

PER_CALL = 10_000
PATIENCE_S = 60.0
AHEAD = {"queued.min.messages": 1_000_000, "fetch.queue.backoff.ms": 1}


class ConfluentKafkaReader:
    """Reads one partition from its beginning, over and over."""

    def __init__(
        self, bootstrap: str, topic: str, count: int, *, isolation_level: str = "read_committed", **options: Any
    ) -> None:
        self.count = count
        self._start = TopicPartition(topic, 0, 0)
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "bench",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "isolation.level": isolation_level,
                "log_level": 0,
            }
            | AHEAD
            | options
        )

    def rate(self) -> float:
        """Records per second."""
        consume = self._consumer.consume
        left = self.count
        started = time.perf_counter()
        self._consumer.assign([self._start])
        while left > 0:
            records = consume(min(PER_CALL, left), PATIENCE_S)
            assert records, f"{left} records did not come within {PATIENCE_S:.0f} s"
            failed = [record.error() for record in records if record.error() is not None]
            assert not failed, failed
            left -= len(records)
        took = time.perf_counter() - started
        self._consumer.unassign()
        return self.count / took

    def close(self) -> None:
        self._consumer.close()
