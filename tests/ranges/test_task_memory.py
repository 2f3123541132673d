"""A task's memory does not grow with its range: less than three times its batch bytes, whatever the records are like."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from benchmark_modules import benchmark_module

import raylog.testing
from raylog.client.sync import Producer
from raylog.ranges.reading import ReadOptions
from raylog.ranges.splitting import OffsetRange
from raylog.testing.kafka import Kafka

pytestmark = pytest.mark.spark

TOPICS = {"small": (100, 200_000, "none"), "large": (20_000, 1_500, "none"), "inflated": (1_000, 30_000, "zstd")}
"""Bytes of a value, how many there are, how they are compressed."""


def written(kafka: Kafka, topic: str) -> int:
    size, count, compression = TOPICS[topic]
    kafka.create_topic(topic)
    values = [os.urandom(20) * (size // 20) for _ in range(500)]
    with Producer(kafka.address, compression_type=compression, batch_size=1 << 18) as producer:
        for _ in range(count // len(values)):
            producer.send_batch(topic, values, partition=0)
        producer.flush()
    return count


def test_a_task_holds_less_than_three_times_its_batch_bytes(tmp_path: Path) -> None:
    with raylog.testing.broker(folder=tmp_path) as kafka:
        counts = {topic: written(kafka, topic) for topic in TOPICS}
        cases = [
            (topic, share, options)
            for topic in TOPICS
            for options in (ReadOptions(("value",)), ReadOptions(("value", "offset"), from_files=False))
            for share in (0.2, 1.0)
        ]
        found = benchmark_module("task_memory").growths(
            [
                (kafka.address, OffsetRange(topic, 0, 0, int(share * counts[topic])), options)
                for topic, share, options in cases
            ]
        )
    too_much = {
        f"{share:.0%} of {topic}, {'files' if options.from_files else 'fetched'}": round(
            growth / options.batch_bytes, 2
        )
        for (topic, share, options), growth in list(zip(cases, found, strict=True))
    }
    assert max(too_much.values()) < 3, too_much
