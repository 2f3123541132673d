"""Ranges of a topic that is really compacted: each ends, wherever it ends, and together they are the table."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import raylog.testing
from raylog.ranges.cut import take
from raylog.ranges.places import bound
from raylog.ranges.reading import ReadOptions, read_range
from raylog.ranges.splitting import OffsetRange, split
from raylog.testing.kafka import Kafka

pytestmark = pytest.mark.spark

PATIENCE_S = 60.0


def await_compacted(kafka: Kafka, most: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while len(kafka.records("accounts")) > most:
        assert time.monotonic() < deadline, "nobody compacts"


@pytest.mark.parametrize("where", ["in memory", "on disk"])
def test_ranges_that_end_among_compacted_records_end_and_are_the_table_together(where: str, tmp_path: Path) -> None:
    folder = tmp_path if where == "on disk" else None
    with raylog.testing.broker(folder=folder, configs={"log.cleaner.backoff.ms": 20}) as kafka:
        kafka.create_topic(
            "accounts",
            configs={"cleanup.policy": "compact", "segment.bytes": 1000, "min.cleanable.dirty.ratio": "0.01"},
        )
        expected = {}
        for number in range(120):
            expected[b"k%d" % (number % 3)] = value = b"v%d" % number
            kafka.write("accounts", value, key=b"k%d" % (number % 3))
        await_compacted(kafka, 40)
        cut = take(kafka.address, "accounts", bound("starting"), bound("ending"))
        rows = []
        for part in split(cut.ranges, parts_min=7, bytes_per_offset=cut.bytes_per_offset):
            for batch in read_range(kafka.address, part, ReadOptions(("key", "value", "offset"))):
                assert all(part.start <= offset < part.end for offset in batch.column("offset").to_pylist())
                rows += batch.to_pylist()
        assert {row["key"]: row["value"] for row in rows} == expected
        kept = sorted(row["offset"] for row in rows)
        assert len(kept) == len(set(kept)) <= 40
        for end in (
            1,
            50,
            kept[0] or 1,
            kept[-1],
            120,
        ):  # compaction goes on meanwhile: some of them may be gone by now
            tail = list(read_range(kafka.address, OffsetRange("accounts", 0, 0, end), ReadOptions(("offset",))))
            found = [offset for batch in tail for offset in batch.column("offset").to_pylist()]
            assert found == sorted(found) and set(found) <= {offset for offset in kept if offset < end}, end
