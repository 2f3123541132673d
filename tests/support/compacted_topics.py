"""Topics that the log cleaner has been at, in a cluster whose cleaner waits for nothing."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from pathlib import Path

import raylog.testing
from raylog.client.sync import AdminClient
from raylog.testing.kafka import Kafka

PATIENCE_S = 120.0
KEYS = 3


def eager_cleaner(folder: Path | None = None) -> AbstractContextManager[Kafka]:
    """A cluster of one broker."""
    return raylog.testing.broker(folder=folder, brokers=1, configs={"log.cleaner.backoff.ms": 20})


def create(kafka: Kafka, topic: str, *, policy: str = "compact") -> None:
    """A topic of one partition and small segments, so that all but its last records can be cleaned."""
    configs = {"cleanup.policy": policy, "segment.bytes": 1000, "min.cleanable.dirty.ratio": "0.01"}
    kafka.create_topic(topic, configs=configs)


def fill(kafka: Kafka, topic: str, start: int, end: int) -> dict[bytes, bytes]:
    """One record for each of these offsets, over three keys in turn; the latest value of each key."""
    latest = {}
    for number in range(start, end):
        latest[b"k%d" % (number % KEYS)] = value = b"v%d" % number
        kafka.write(topic, value, key=b"k%d" % (number % KEYS))
    return latest


def compact(kafka: Kafka, topic: str) -> None:
    """From now on, and ``await_compacted`` waits for it."""
    with AdminClient(kafka.address) as admin:
        admin.alter_configs(topic, set={"cleanup.policy": "compact"})


def await_compacted(kafka: Kafka, topic: str, below: int) -> None:
    """Wait until no record is left below an offset. The log begins where it began; above it the cleaner may go on."""
    deadline = time.monotonic() + PATIENCE_S
    while (found := offsets(kafka, topic))[0] < below:
        assert time.monotonic() < deadline, f"nobody compacts: {found}"


def offsets(kafka: Kafka, topic: str) -> list[int]:
    """Of the records that there are now."""
    return [record.offset for record in kafka.records(topic)]


class Cleaning:
    """What a reader may find while the cleaner goes on: all that is left afterwards, and nothing that was gone before."""

    def __init__(self, kafka: Kafka, topic: str) -> None:
        self._kafka = kafka
        self._topic = topic
        self._before = set(offsets(kafka, topic))

    def allows(self, found: list[int], start: int = 0, end: int = 1 << 62) -> bool:
        """Whether these are the offsets from ``start`` to ``end``, each once."""
        after = {offset for offset in offsets(self._kafka, self._topic) if start <= offset < end}
        before = {offset for offset in self._before if start <= offset < end}
        return after <= set(found) <= before and len(set(found)) == len(found)
