"""A worker's shard step by step: rows by their offsets, whatever was written around them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from scripted_cluster import PartitionLog, ScriptedCluster

from raylog.ranges.reading import ReadOptions
from raylog.ranges.shard_reading import ShardReader
from raylog.ranges.splitting import OffsetRange
from raylog.records.batch import BatchView, stamp
from raylog.records.codec import RecordBatchBuilder

pytestmark = pytest.mark.spark

Scripted = Callable[..., ScriptedCluster]


def put(log: PartitionLog, *deltas: int) -> None:
    """A batch with records at these places of it."""
    builder = RecordBatchBuilder()
    for delta in deltas:
        builder.append(timestamp_ms=1, value=b"v%d" % (log.end + delta), offset_delta=delta)
    data = bytearray(builder.build())
    stamp(data, log.end, log.epoch)
    log.batches.append(bytes(data))
    log.end = BatchView(bytes(data)).next_offset


def steps(
    cluster: ScriptedCluster, shard: list[OffsetRange], *ends: int, columns: tuple[str, ...] = ("value",)
) -> list[list[bytes]]:
    reader = ShardReader(cluster.address, tuple(shard), ReadOptions(columns, arrow_bytes=100), print)
    told = []
    for start, end in zip((shard[0].start, *ends), ends):
        within = [OffsetRange("t", 0, max(start, each.start), min(end, each.end)) for each in shard]
        table = reader.table(tuple(each for each in within if each.start < each.end))
        assert table.schema.names == list(columns)
        told.append(table.column("value").to_pylist())
    reader.close()
    return told


def test_steps_end_inside_of_batches_and_of_fetches(scripted: Scripted) -> None:
    cluster = scripted()
    for _ in range(8):
        put(cluster.logs[("t", 0)], *range(5))
    shard = [OffsetRange("t", 0, 3, 20), OffsetRange("t", 0, 30, 40)]
    assert steps(cluster, shard, 4, 19, 32, 40) == [
        [b"v%d" % n for n in numbers]
        for numbers in ([3], range(4, 19), [19, 30, 31], range(32, 40))
    ]  # fmt: skip


def test_holes_make_steps_smaller_and_shift_nothing(scripted: Scripted) -> None:
    cluster = scripted()
    log = cluster.logs[("t", 0)]
    put(log, 0, 3)
    log.end = 20
    put(log, 0, 1, 2)
    log.end = 40
    whole = [OffsetRange("t", 0, 0, 40)]
    assert steps(cluster, whole, 2, 10, 18, 21, 23, 30, 40) == [
        [b"v0"], [b"v3"], [], [b"v20"], [b"v21", b"v22"], [], []
    ]  # fmt: skip


def test_a_step_does_not_wait_for_what_comes_after_it(scripted: Scripted) -> None:
    cluster = scripted()
    log = cluster.logs[("t", 0)]
    put(log, *range(5))
    put(log, 0)
    reader = ShardReader(cluster.address, (OffsetRange("t", 0, 0, 10),), ReadOptions(("value",), arrow_bytes=1), print)
    assert reader.table((OffsetRange("t", 0, 0, 5),)).num_rows == 5
    put(log, *range(4))  # the rest of the shard
    assert reader.table((OffsetRange("t", 0, 5, 10),)).num_rows == 5
    reader.close()
