"""A range read as Arrow: every record of it once, up to its end, whatever stands there; and what is said of broken or lost ones."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from kio.schema.errors import ErrorCode
from scripted_cluster import FETCH, PartitionLog, ScriptedCluster

from raylog.client.columns import RECORD_SCHEMA
from raylog.errors import CorruptMessageError, OffsetOutOfRangeError
from raylog.ranges.places import bound
from raylog.ranges.reading import ReadOptions, read_range
from raylog.ranges.snapshot import take
from raylog.ranges.splitting import OffsetRange, split
from raylog.records.batch import BatchView, stamp, write_crc
from raylog.records.codec import RecordBatchBuilder, encode
from raylog.records.control import Marker, control_batch
from raylog.testing.kafka import Kafka

pytestmark = pytest.mark.spark

Scripted = Callable[..., ScriptedCluster]


def put(log: PartitionLog, batch: bytes, next_offset: int | None = None) -> None:
    """A batch at the end of a log, as it is; the log then ends at ``next_offset``."""
    data = bytearray(batch)
    stamp(data, log.end, log.epoch)
    log.batches.append(bytes(data))
    log.end = BatchView(bytes(data)).next_offset if next_offset is None else next_offset


def fill(log: PartitionLog, count: int, per_batch: int = 5) -> None:
    for start in range(0, count, per_batch):
        numbers = range(start, min(start + per_batch, count))
        put(log, encode([(1000 + n, b"k%d" % n, b"v%d" % n, ()) for n in numbers]))


def marker(kind: Marker = Marker.COMMIT) -> bytes:
    return control_batch(kind, producer_id=7, producer_epoch=0, coordinator_epoch=0, timestamp_ms=5)


def read(cluster: ScriptedCluster, start: int, end: int, *columns: str, **options: Any) -> pa.Table:
    named = columns or tuple(RECORD_SCHEMA.names)
    on_loss = {"on_loss": options.pop("on_loss")} if "on_loss" in options else {}
    wanted = OffsetRange("t", 0, start, end)
    batches = list(read_range(cluster.address, wanted, ReadOptions(named, **options), **on_loss))
    assert all(len(batch) for batch in batches)
    return pa.Table.from_batches(batches, pa.schema([RECORD_SCHEMA.field(name) for name in named]))


def offsets(table: pa.Table) -> list[int]:
    return table.column("offset").to_pylist()  # type: ignore[no-any-return]


# ---------------------------------------------------------------------- every record once


def test_a_cut_split_and_read_gives_every_record_once(kafka: Kafka) -> None:
    kafka.create_topic("many", 3)
    chance = random.Random(5)
    written = set()
    for number in range(40):
        partition = chance.randrange(3)
        values = [b"%d-%d" % (number, index) for index in range(chance.randrange(1, 30))]
        kafka.write("many", *values, partition=partition)
        written |= {(partition, value) for value in values}
    snapshot = take(kafka.address, "many", bound("starting"), bound("ending"))
    kafka.write("many", b"later", partition=0)
    parts = split(snapshot.ranges, parts_min=11, bytes_per_offset=snapshot.bytes_per_offset)
    assert len(parts) >= 11 and {part.hosts for part in parts} == {("127.0.0.1",)}
    rows = []
    for part in parts:
        for batch in read_range(kafka.address, part, ReadOptions(("partition", "value"), arrow_bytes=200)):
            rows += [(row["partition"], row["value"]) for row in batch.to_pylist()]
    assert len(rows) == len(written) and set(rows) == written
    assert all(snapshot.bytes_per_offset[each.key] > 1 for each in snapshot.ranges)


def test_all_columns_are_as_they_were_written(scripted: Scripted) -> None:
    cluster = scripted()
    log = cluster.logs[("t", 0)]
    put(log, encode([(1000, b"k", b"v", [("h", b"1"), ("h", None)]), (2000, None, None, ())]))
    assert read(cluster, 0, 2).to_pylist() == [
        {
            "key": b"k", "value": b"v", "topic": "t", "partition": 0, "offset": 0, "timestamp_type": 0,
            "timestamp": pa.scalar(1000, pa.timestamp("ms", tz="UTC")).as_py(),
            "headers": [{"key": "h", "value": b"1"}, {"key": "h", "value": None}],
        },
        {
            "key": None, "value": None, "topic": "t", "partition": 0, "offset": 1, "timestamp_type": 0,
            "timestamp": pa.scalar(2000, pa.timestamp("ms", tz="UTC")).as_py(), "headers": [],
        },
    ]  # fmt: skip


def test_a_range_begins_and_ends_inside_batches(scripted: Scripted) -> None:
    cluster = scripted()
    fill(cluster.logs[("t", 0)], 20)
    assert offsets(read(cluster, 3, 12, "offset", "value")) == list(range(3, 12))


def test_nothing_is_fetched_beyond_the_end_of_a_range(scripted: Scripted) -> None:
    cluster = scripted()
    log = cluster.logs[("t", 0)]
    fill(log, 5)
    read(cluster, 0, 5)
    fetches = [request for request in cluster.requests if hasattr(request, "max_wait")]
    assert [request.topics[0].partitions[0].fetch_offset for request in fetches] == [0]


def test_only_the_columns_that_are_asked_for_are_made(scripted: Scripted) -> None:
    cluster = scripted()
    fill(cluster.logs[("t", 0)], 3)
    assert read(cluster, 0, 3, "partition", "key").to_pydict() == {"partition": [0, 0, 0], "key": [b"k0", b"k1", b"k2"]}


# ---------------------------------------------------------------------- ends at which there is nothing


def test_a_range_that_ends_in_control_batches_ends(scripted: Scripted) -> None:
    cluster = scripted()
    log = cluster.logs[("t", 0)]
    fill(log, 3)
    put(log, marker())
    put(log, marker())
    assert offsets(read(cluster, 0, 5, "offset")) == [0, 1, 2]
    assert offsets(read(cluster, 3, 5, "offset")) == []


def test_a_range_whose_last_records_are_compacted_within_their_batch_ends(scripted: Scripted) -> None:
    cluster = scripted()
    log = cluster.logs[("t", 0)]
    builder = RecordBatchBuilder()
    builder.append(timestamp_ms=1, value=b"a", offset_delta=0)
    builder.append(timestamp_ms=1, value=b"b", offset_delta=3)
    put(log, builder.build())
    put(log, encode([(1, None, b"c", ())]))
    assert offsets(read(cluster, 0, 3, "offset")) == [0]
    assert offsets(read(cluster, 1, 3, "offset")) == []
    assert offsets(read(cluster, 1, 5, "offset")) == [3, 4]


def test_a_hole_that_compaction_left_is_passed(scripted: Scripted) -> None:
    cluster = scripted()
    log = cluster.logs[("t", 0)]
    fill(log, 2)
    log.end = 100
    fill(log, 2)
    assert offsets(read(cluster, 0, 50, "offset")) == [0, 1]
    assert offsets(read(cluster, 50, 102, "offset")) == [100, 101]


def test_a_range_of_which_compaction_left_nothing_ends(scripted: Scripted) -> None:
    cluster = scripted()
    log = cluster.logs[("t", 0)]
    fill(log, 2)
    log.end = 100
    assert offsets(read(cluster, 0, 60, "offset")) == [0, 1]
    assert offsets(read(cluster, 40, 100, "offset")) == []


# ---------------------------------------------------------------------- transactions


def test_aborted_records_are_left_out_of_a_committed_read_only(scripted: Scripted) -> None:
    cluster = scripted()
    log = cluster.logs[("t", 0)]
    transactional = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0, "is_transactional": True}
    put(log, encode([(1, None, b"gone", ())], **transactional))
    put(log, marker(Marker.ABORT))
    put(log, encode([(1, None, b"kept", ())], **transactional))
    put(log, marker(Marker.COMMIT))
    log.aborted = [(7, 0)]
    assert read(cluster, 0, 4, "value", read_committed=True).to_pydict() == {"value": [b"kept"]}
    assert read(cluster, 0, 4, "value").to_pydict() == {"value": [b"gone", b"kept"]}
    levels = [request.isolation_level for request in cluster.requests if hasattr(request, "max_wait")]
    assert levels == [1, 0]


# ---------------------------------------------------------------------- trouble


def test_a_leader_that_moves_meanwhile_costs_no_record(scripted: Scripted) -> None:
    cluster = scripted()
    fill(cluster.logs[("t", 0)], 20)

    def move(cluster: ScriptedCluster, request: Any) -> bool:
        log = cluster.logs[("t", 0)]
        log.epoch_ends[log.epoch] = log.end
        log.leader, log.epoch = 1, log.epoch + 1
        return False

    cluster.fail_next(FETCH, move)
    assert offsets(read(cluster, 0, 20, "offset")) == list(range(20))


@pytest.mark.parametrize("flipped", [70, 90])
def test_a_corrupt_batch_inside_a_range_is_named(scripted: Scripted, flipped: int) -> None:
    cluster = scripted()
    log = cluster.logs[("t", 0)]
    fill(log, 15)
    broken = bytearray(log.batches[1])
    broken[flipped] ^= 0x40
    log.batches[1] = bytes(broken)
    with pytest.raises(CorruptMessageError, match=r"offsets 5–9 of t-0 is broken .*up to 5 and from 10 on"):
        read(cluster, 0, 15)
    assert offsets(read(cluster, 10, 15, "offset")) == list(range(10, 15))


def test_a_batch_of_broken_records_with_a_right_crc_is_named(scripted: Scripted) -> None:
    cluster = scripted()
    log = cluster.logs[("t", 0)]
    fill(log, 15)
    broken = bytearray(log.batches[1])
    broken[61] = 0x7E  # the length of the first record
    write_crc(broken)
    log.batches[1] = bytes(broken)
    for start in (0, 7):
        with pytest.raises(CorruptMessageError, match=r"offsets 5–9 of t-0 is broken .*up to 5 and from 10 on"):
            read(cluster, start, 15)
    assert offsets(read(cluster, 10, 15, "offset")) == list(range(10, 15))


def test_records_deleted_before_they_were_read_are_an_error_or_a_reported_loss(scripted: Scripted) -> None:
    cluster = scripted()
    log = cluster.logs[("t", 0)]
    fill(log, 20)
    log.start = 12
    with pytest.raises(OffsetOutOfRangeError, match="offsets 3 to 11 of t-0 were deleted before they were read"):
        read(cluster, 3, 20)
    losses: list[str] = []
    assert offsets(read(cluster, 3, 20, "offset", fail_on_data_loss=False, on_loss=losses.append)) == list(
        range(12, 20)
    )
    assert len(losses) == 1 and "3 to 11" in losses[0]
    assert offsets(read(cluster, 3, 8, "offset", fail_on_data_loss=False, on_loss=losses.append)) == []


def test_a_log_that_an_unclean_election_cut_is_told(scripted: Scripted) -> None:
    cluster = scripted()
    log = cluster.logs[("t", 0)]
    fill(log, 5)
    with pytest.raises(OffsetOutOfRangeError, match="t-0 ends at 5 now"):
        read(cluster, 7, 10)
    losses: list[str] = []
    assert offsets(read(cluster, 7, 10, "offset", fail_on_data_loss=False, on_loss=losses.append)) == []
    assert "ends at 5" in losses[0]
    with pytest.raises(OffsetOutOfRangeError, match="t-0 now ends at 5, but ended at 10"):
        read(cluster, 0, 10, patience_s=0.3)


def test_a_topic_that_is_gone_is_told(scripted: Scripted) -> None:
    cluster = scripted()
    wanted = OffsetRange("nothing", 0, 0, 5)
    with pytest.raises(Exception, match="nothing") as raised:
        list(read_range(cluster.address, wanted, ReadOptions(("value",))))
    assert raised.value.code is ErrorCode.unknown_topic_or_partition  # type: ignore[attr-defined]


def test_a_cut_through_a_topic_that_is_not_there_is_refused(kafka: Kafka) -> None:
    with pytest.raises(Exception, match="topic 'nothing' does not exist"):
        take(kafka.address, "nothing", bound("starting"), bound("ending"))
    with pytest.raises(Exception, match=r"no topic matches 'nothing\.\*' as a whole"):
        take(kafka.address, re.compile(r"nothing.*"), bound("starting"), bound("ending"))
    with pytest.raises(Exception, match="no partition 3"):
        take(kafka.address, {"t": [3]}, bound("starting"), bound("ending"))
