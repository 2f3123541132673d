"""poll_batch against a cluster whose logs a script controls: which columns, where it goes on, and what it does at a broken batch."""

from __future__ import annotations

from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from scripted_cluster import ScriptedCluster

from raylog.client.sync import Consumer
from raylog.errors import ConfigError, kafka_error
from raylog.records.batch import BatchView, stamp, write_crc
from raylog.records.codec import encode
from raylog.records.compression import Compression

pytestmark = pytest.mark.core

PADDING = b"." * 100  # so that a codec finds something to do
CORRUPT = kafka_error(ErrorCode.corrupt_message)


def fill(cluster: ScriptedCluster, partition: int, batches: int, compression: int = 0) -> None:
    """Batches of five records: keys, values and headers say where they lie."""
    log = cluster.logs[("t", partition)]
    for _ in range(batches):
        log.append(
            encode(
                [
                    (1000 + n, b"k%d" % n, b"p%d-%d" % (partition, n) + PADDING, [("h", b"%d" % n)])
                    for n in range(log.end, log.end + 5)
                ],
                compression=compression,
            )
        )
        assert BatchView(log.batches[-1]).compression == compression


def break_records(cluster: ScriptedCluster, partition: int, index: int) -> None:
    """Bytes that are no records under a CRC that is right: only reading the records finds out."""
    log = cluster.logs[("t", partition)]
    broken = bytearray(log.batches[index])
    broken[61] ^= 0x20  # the first record's length
    write_crc(broken)
    log.batches[index] = bytes(broken)


def from_start(cluster: ScriptedCluster, partitions: int = 1, **options: Any) -> Consumer:
    consumer = Consumer(cluster.address, auto_offset_reset="earliest", **options)
    consumer.assign([("t", partition) for partition in range(partitions)])
    return consumer


def places(table: Any) -> list[tuple[int, int]]:
    return list(zip(table.column("partition").to_pylist(), table.column("offset").to_pylist(), strict=True))


def read_all(consumer: Consumer, count: int, **options: Any) -> list[tuple[int, int]]:
    """So many records, each poll answered within a generous time."""
    found: list[tuple[int, int]] = []
    while len(found) < count:
        table = consumer.poll_batch(10, **options)
        assert table.num_rows, found
        found += places(table)
    return found


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.GZIP])
def test_a_table_has_every_column_of_every_record(scripted: Any, compression: int) -> None:
    cluster = scripted()
    fill(cluster, 0, 3, compression)
    with from_start(cluster) as consumer:
        rows: list[dict[str, Any]] = []
        while len(rows) < 15:
            rows += consumer.poll_batch(10).to_pylist()
    for n, row in enumerate(rows):
        assert round(row.pop("timestamp").timestamp() * 1000) == 1000 + n
        assert row == {
            "key": b"k%d" % n, "value": b"p0-%d" % n + PADDING, "topic": "t", "partition": 0, "offset": n, "timestamp_type": 0,
            "headers": [{"key": "h", "value": b"%d" % n}],
        }  # fmt: skip


def test_only_the_columns_asked_for_are_there_also_where_there_is_nothing(scripted: Any) -> None:
    cluster = scripted()
    fill(cluster, 0, 1)
    with from_start(cluster) as consumer:
        for columns in (["offset", "key"], ["value"]):
            consumer.seek(("t", 0), 2)
            table = consumer.poll_batch(10, columns=columns)
            assert table.column_names == columns and table.num_rows == 3
            assert consumer.poll_batch(0, columns=columns).schema.equals(table.schema)
        with pytest.raises(ConfigError, match="no column 'values'"):
            consumer.poll_batch(1, columns=["values"])


def test_a_table_ends_when_it_has_its_bytes_and_the_next_goes_on(scripted: Any) -> None:
    cluster = scripted()
    fill(cluster, 0, 10)
    with from_start(cluster) as consumer:
        first = consumer.poll_batch(10, max_bytes=1)
        assert places(first) == [(0, n) for n in range(5)]
        assert consumer.position(("t", 0)) == 5
        assert read_all(consumer, 45) == [(0, n) for n in range(5, 50)]


def test_the_records_before_a_wrong_crc_are_given_before_the_error_is_raised(scripted: Any) -> None:
    cluster = scripted()
    fill(cluster, 0, 3)
    log = cluster.logs[("t", 0)]
    log.batches[1] = log.batches[1][:-2] + b"\xff" + log.batches[1][-1:]
    with from_start(cluster) as consumer:
        assert read_all(consumer, 5) == [(0, n) for n in range(5)]
        for _ in range(2):
            with pytest.raises(CORRUPT, match=r"offsets 5–9 of t-0 has a wrong CRC: seek\(\) to 10"):
                consumer.poll_batch(10)
        consumer.seek(("t", 0), 10)
        assert read_all(consumer, 5) == [(0, n) for n in range(10, 15)]


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.GZIP])
def test_broken_records_cost_nothing_of_what_lies_before_behind_and_beside_them(
    scripted: Any, compression: int
) -> None:
    cluster = scripted(topics={"t": 3})
    for partition in range(3):
        fill(cluster, partition, 6, compression if partition == 1 else 0)
    if compression:
        batch = bytearray(cluster.logs[("t", 1)].batches[2])
        batch[70:80] = bytes(10)  # no gzip any more
        write_crc(batch)
        cluster.logs[("t", 1)].batches[2] = bytes(batch)
    else:
        break_records(cluster, 1, 2)
    with from_start(cluster, 3) as consumer:
        found: list[tuple[int, int]] = []
        with pytest.raises(CORRUPT, match=r"offsets 10–14 of t-1 is broken .*: seek\(\) to 15"):
            while True:
                found += places(consumer.poll_batch(10))
        assert [offset for partition, offset in found if partition == 1] == list(range(10))
        consumer.seek(("t", 1), 15)
        found += read_all(consumer, 85 - len(found))
    assert sorted(found) == [(p, n) for p in range(3) for n in range(30) if not (p == 1 and 10 <= n < 15)]
    for partition in range(3):
        mine = [offset for p, offset in found if p == partition]
        assert mine == sorted(mine)


def test_broken_records_are_an_error_at_their_offset_for_poll_too(scripted: Any) -> None:
    cluster = scripted()
    fill(cluster, 0, 3)
    break_records(cluster, 0, 1)
    with from_start(cluster) as consumer:
        found = []
        while len(found) < 5:
            found += [record.offset for record in consumer.consume(5, timeout=30)]
        for _ in range(2):
            with pytest.raises(CORRUPT, match=r"offsets 5–9 of t-0 is broken .*: seek\(\) to 10"):
                consumer.poll(30)
        consumer.seek(("t", 0), 10)
        record = consumer.poll(30)
        assert record is not None and record.offset == 10


def test_a_codec_that_nobody_knows_is_an_error_at_its_offset_and_skips_nothing(scripted: Any) -> None:
    cluster = scripted()
    fill(cluster, 0, 3)
    batch = bytearray(cluster.logs[("t", 0)].batches[1])
    batch[22] |= 6
    write_crc(batch)
    cluster.logs[("t", 0)].batches[1] = bytes(batch)
    for poll in (Consumer.poll_batch, Consumer.poll):
        with from_start(cluster) as consumer:
            with pytest.raises(CORRUPT, match=r"offsets 5–9 of t-0 is broken \(no codec has the number 6\)"):
                while True:
                    poll(consumer, 10)
            assert consumer.position(("t", 0)) == 5


def test_a_poll_that_has_begun_a_batch_leaves_the_rest_of_it_to_the_table(scripted: Any) -> None:
    cluster = scripted()
    fill(cluster, 0, 2)
    with from_start(cluster) as consumer:
        record = consumer.poll(30)
        assert record is not None and record.offset == 0
        table = consumer.poll_batch(10, max_bytes=1)
        assert places(table) == [(0, n) for n in range(1, 5)] and consumer.position(("t", 0)) == 5
        assert read_all(consumer, 5) == [(0, n) for n in range(5, 10)]


def test_batches_that_compaction_has_emptied_or_thinned_are_passed(scripted: Any) -> None:
    cluster = scripted()
    log = cluster.logs[("t", 0)]
    fill(cluster, 0, 2)
    emptied = bytearray(log.batches[0][:61])
    emptied[8:12] = (61 - 12).to_bytes(4, "big")
    emptied[57:61] = bytes(4)
    write_crc(emptied)
    stamp(emptied, 0, BatchView(log.batches[0]).partition_leader_epoch)
    log.batches[0] = bytes(emptied)
    with from_start(cluster) as consumer:
        assert read_all(consumer, 5) == [(0, n) for n in range(5, 10)]
        consumer.seek(("t", 0), 0)
        log.batches.pop()
        assert consumer.poll_batch(0.3).num_rows == 0 and consumer.position(("t", 0)) == 5
