"""A cluster over folders with messages of formats 0 and 1: read, appended to, copied to a new replica, and alike everywhere."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from old_messages import entry, wrapper
from raw_requests import eventually

from raylog.client.admin.admin import NewTopic
from raylog.client.sync import AdminClient, Consumer, Producer
from raylog.testing.in_process import cluster
from raylog.types import TopicPartition

pytestmark = pytest.mark.core

T = 1529210278988
T0 = TopicPartition("t", 0)


def put_old_messages(folder: Path) -> list[tuple[int, int, bytes | None, bytes | None]]:
    """In the place of an empty replica, as Kafka would have left it."""
    items = [(offset, T + offset, b"k%d" % offset, b"value %d" % offset) for offset in range(40)]
    content = b"".join(entry(0, item) for item in items[:10])
    for start, codec in ((10, "gzip"), (20, "snappy"), (30, "lz4")):
        content += wrapper(start // 20, items[start : start + 10], codec)
    for path in folder.iterdir():
        if path.name != "partition.metadata":
            path.unlink()
    (folder / f"{0:020d}.log").write_bytes(content)
    return [(offset, T + offset if offset >= 20 else -1, key, value) for offset, _, key, value in items]


def read(running: object, count: int) -> list[tuple[int, int, bytes | None, bytes | None]]:
    with Consumer(running.address, auto_offset_reset="earliest") as consumer:  # type: ignore[attr-defined]
        consumer.assign([T0])
        found: list[tuple[int, int, bytes | None, bytes | None]] = []
        deadline = time.monotonic() + 60
        while len(found) < count and time.monotonic() < deadline:
            found += [
                (each.offset, each.timestamp, each.key, each.value) for each in consumer.consume(count, timeout=0.5)
            ]
        return found


def test_old_folders_are_served_continued_and_copied(tmp_path: Path) -> None:
    with cluster(brokers=3, folder=tmp_path) as running, AdminClient(running.address) as admin:
        admin.create_topics(NewTopic("t", replica_assignment={0: [0, 1]}, configs={"retention.ms": -1}))
        folders = [tmp_path / f"broker-{broker}" / "t-0" for broker in (0, 1)]
        eventually(lambda: all((each / "replica.checkpoint").exists() for each in folders), "both are open")
        eventually(lambda: admin.describe_topics("t")["t"].partitions[0].leader >= 0, "it is led")
    for folder in folders:
        expected = put_old_messages(folder)
    with cluster(brokers=3, folder=tmp_path) as running, AdminClient(running.address) as admin:
        eventually(lambda: len(admin.describe_topics("t")["t"].partitions[0].isr) == 2, "both in sync again")
        assert read(running, 40) == expected
        assert admin.list_offsets({T0: "latest"})[T0].offset == 40
        assert admin.list_offsets({T0: T + 25})[T0].offset == 25
        with Producer(running.address) as producer:
            assert producer.send("t", b"new").result(60).offset == 40
        assert admin.reassign({T0: [2, 1]}) == {T0: None}
        eventually(lambda: not admin.list_reassignments(), "moved")
        assert [each[0] for each in read(running, 41)] == list(range(41))
        result = admin.verify_replicas(["t"], patience=10)
        assert result.holds, result
