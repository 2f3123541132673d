"""What send_arrow takes, and what leaves in which batch: by the kernel, and the same by Python objects where there is none."""

from __future__ import annotations

import pickle
import random
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from raylog.client.links.metadata import TopicPartitions
from raylog.client.partitioners import DefaultPartitioner, partition_for_key
from raylog.client.producer import arrow_input
from raylog.client.producer.arrow_input import ColumnNames, arrow_parts
from raylog.errors import ConfigError, kafka_error
from raylog.records import kernel
from raylog.records.batch import BatchView
from raylog.records.codec import decode

COMPILED: Any = kernel.loaded()
pytestmark = pytest.mark.skipif(COMPILED is None, reason=kernel.description())
FOUR = TopicPartitions("t", 4, (0, 1, 2, 3))


def parts_of(table: Any, **options: Any) -> list[Any]:
    settings: dict[str, Any] = {
        "partition": None, "now_ms": 77, "bytes_max": 1000, "request_bytes_max": 1000, "compression": 0,
        "will_be_stamped": False,
    } | options  # fmt: skip
    partitioner = settings.pop("partitioner", DefaultPartitioner(sticky_bytes=1, chance=random.Random(1)))
    names = settings.pop("names", ColumnNames())
    return list(arrow_parts(COMPILED, table, names, FOUR, partitioner, **settings))


@given(
    st.lists(
        st.tuples(st.none() | st.binary(max_size=6), st.none() | st.binary(max_size=300)), min_size=1, max_size=60
    ),
    st.integers(400, 2000),
    st.sampled_from([0, 3]),
    st.integers(1, 60),
    st.booleans(),
)
def test_every_row_arrives_once_in_order_on_the_partition_of_its_key(
    pairs: list[tuple[bytes | None, bytes | None]], bytes_max: int, compression: int, chunk_rows: int, is_large: bool
) -> None:
    whole = pa.table(
        {"key": pa.array([k for k, _ in pairs], pa.binary()), "value": pa.array([v for _, v in pairs], pa.binary())}
    )
    table = pa.Table.from_batches(whole.to_batches(max_chunksize=chunk_rows))
    combined_bytes_max = arrow_input.COMBINED_BYTES_MAX
    arrow_input.COMBINED_BYTES_MAX = 0 if is_large else combined_bytes_max  # a large one is taken chunk by chunk
    try:
        parts = parts_of(table, bytes_max=bytes_max, compression=compression)
    finally:
        arrow_input.COMBINED_BYTES_MAX = combined_bytes_max
    seen: dict[int, list[int]] = {}
    next_row = 0
    for part in parts:
        assert len(part.data) <= bytes_max
        records = decode(BatchView(part.data))
        order = part.order if part.order is not None else range(next_row, next_row + part.record_count)
        next_row += part.record_count
        assert len(records) == part.record_count == len(order)
        for record, row in zip(records, order, strict=True):
            assert (record.key, record.value, record.timestamp) == (*pairs[row], 77)
            if record.key is not None:
                assert part.partition == partition_for_key(record.key, 4)
        seen.setdefault(part.partition, []).extend(order)
        assert pickle.loads(pickle.dumps(part.order)) == part.order
    assert sorted(row for order in seen.values() for row in order) == list(range(len(pairs)))
    assert all(order == sorted(order) for order in seen.values())


def test_rows_without_keys_fill_one_batch_after_the_other_each_on_a_partition_of_its_own() -> None:
    for table in (pa.table({"value": [bytes(100)] * 40}), pa.table({"value": [bytes(100)] * 40, "key": pa.nulls(40)})):
        parts = parts_of(table)
        assert sum(part.record_count for part in parts) == 40 and len(parts) > 4
        assert all(a.partition != b.partition for a, b in pairwise(parts))
        assert all(part.order is None for part in parts)


def test_partitions_with_rows_take_turns() -> None:
    keys = [next(b"%d" % n for n in range(99) if partition_for_key(b"%d" % n, 4) == wanted) for wanted in (1, 3)]
    table = pa.table({"value": [bytes(200)] * 16, "key": [keys[0]] * 8 + [keys[1]] * 8})
    assert [part.partition for part in parts_of(table)] == [1, 3, 1, 3]


def test_a_given_partition_goes_before_a_column_and_a_column_before_keys() -> None:
    table = pa.table({"value": ["a", "b", "c"], "key": ["k", "l", "m"], "partition": pa.array([3, 0, 3], pa.int16())})
    assert {part.partition: list(part.order) for part in parts_of(table)} == {0: [1], 3: [0, 2]}
    [part] = parts_of(table, partition=2)
    assert (part.partition, part.order) == (2, None)
    sticky = DefaultPartitioner(sticky_bytes=1, ignore_keys=True, chance=random.Random(1))
    [part] = parts_of(table.drop_columns("partition"), partitioner=sticky)
    assert [record.key for record in decode(BatchView(part.data))] == [b"k", b"l", b"m"]


def test_a_slice_of_a_partition_column_counts_from_its_own_first_row() -> None:
    batch = pa.record_batch({"value": ["a", "b", "c"], "partition": pa.array([3, 0, 2], pa.int32())}).slice(1)
    assert {part.partition: decode(BatchView(part.data))[0].value for part in parts_of(batch)} == {0: b"b", 2: b"c"}


@pytest.mark.parametrize("wrong", [4, -1, None])
def test_a_partition_that_the_topic_lacks_is_refused(wrong: int | None) -> None:
    table = pa.table({"value": ["a", "b"], "partition": pa.array([0, wrong], pa.int32())})
    with pytest.raises(kafka_error(ErrorCode.unknown_topic_or_partition), match=r"it has 4, from 0 to 3"):
        parts_of(table)
    with pytest.raises(ConfigError, match="the partition column is string"):
        parts_of(pa.table({"value": ["a"], "partition": ["0"]}))


def test_columns_go_by_the_names_given() -> None:
    table = pa.table({"id": ["k"], "body": ["v"], "at": [5], "key": ["not this"]})
    [part] = parts_of(table, names=ColumnNames(key="id", value="body", timestamp="at"))
    record = decode(BatchView(part.data))[0]
    assert (record.key, record.value, record.timestamp) == (b"k", b"v", 5)
    with pytest.raises(ConfigError, match="no column 'value': it has id, body, at, key"):
        parts_of(table)


def test_one_row_too_large_refuses_all_before_anything_is_encoded() -> None:
    table = pa.Table.from_batches([pa.record_batch({"value": [b"small"]}), pa.record_batch({"value": [bytes(1000)]})])
    names, partitioner = ColumnNames(), DefaultPartitioner(sticky_bytes=1)
    parts = arrow_parts(
        COMPILED, table, names, FOUR, partitioner, partition=None, now_ms=1, bytes_max=900, request_bytes_max=1000,
        compression=0, will_be_stamped=False,
    )  # fmt: skip
    with pytest.raises(kafka_error(ErrorCode.message_too_large), match=r"exceeds max\.request\.size=1000"):
        next(parts)


def test_a_batch_that_will_be_stamped_gets_its_crc_with_the_stamp() -> None:
    table = pa.table({"value": ["a"]})
    assert BatchView(parts_of(table)[0].data).has_valid_crc()
    assert not BatchView(parts_of(table, will_be_stamped=True)[0].data).has_valid_crc()
