"""What send_batch takes, and what leaves in which batch."""

from __future__ import annotations

import random
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from raylog.client.columns import RECORD_SCHEMA, binary_values, header_column, header_lists, timestamps_ms
from raylog.client.links.metadata import TopicPartitions
from raylog.client.partitioners import DefaultPartitioner, RoundRobinPartitioner, partition_for_key
from raylog.client.producer.batch_input import BatchInput, columns_from, encoded_parts
from raylog.client.producer.producer_batch import ProducerBatch
from raylog.client.serializers import serializer_of
from raylog.errors import ConfigError, SerializationError, kafka_error
from raylog.records.batch import BatchView
from raylog.records.codec import decode

FOUR = TopicPartitions("t", 4, (0, 1, 2, 3))
STAMP = (7, 0, 0)


def parts_of(columns: BatchInput, **options: Any) -> list[Any]:
    settings: dict[str, Any] = {
        "partition": None, "now_ms": 77, "bytes_max": 1000, "request_bytes_max": 1000, "compression": 0,
        "will_be_stamped": False,
    } | options  # fmt: skip
    partitioner = settings.pop("partitioner", DefaultPartitioner(sticky_bytes=1, chance=random.Random(1)))
    return list(encoded_parts(columns, FOUR, partitioner, **settings))


def columns(values: Any, **options: Any) -> BatchInput:
    settings: dict[str, Any] = {
        "key": None,
        "keys": None,
        "timestamps_ms": None,
        "key_serializer": None,
        "value_serializer": None,
    }
    return columns_from("t", values, **(settings | options))


@given(
    st.lists(
        st.tuples(st.none() | st.binary(max_size=6), st.none() | st.binary(max_size=300)), min_size=1, max_size=60
    ),
    st.integers(400, 2000),
    st.sampled_from([0, 3]),
)
def test_every_record_arrives_once_in_order_on_the_partition_of_its_key(
    pairs: list[tuple[bytes | None, bytes | None]], bytes_max: int, compression: int
) -> None:
    given_columns = columns([value for _, value in pairs], keys=[key for key, _ in pairs])
    seen: dict[int, list[int]] = {}
    for part in parts_of(given_columns, bytes_max=bytes_max, compression=compression):
        assert len(part.data) <= bytes_max
        records = decode(BatchView(part.data))
        assert part.order is not None and len(records) == part.record_count == len(part.order)
        for record, index in zip(records, part.order, strict=True):
            assert (record.key, record.value, record.timestamp) == (*pairs[index], 77)
            if record.key is not None:
                assert part.partition == partition_for_key(record.key, 4)
        seen.setdefault(part.partition, []).extend(part.order)
    assert sorted(index for order in seen.values() for index in order) == list(range(len(pairs)))
    assert all(order == sorted(order) for order in seen.values())


def test_plain_values_fill_one_batch_after_the_other_each_on_a_partition_of_its_own() -> None:
    parts = parts_of(columns([bytes(100)] * 40))
    assert sum(part.record_count for part in parts) == 40 and len(parts) > 4
    assert all(a.partition != b.partition for a, b in pairwise(parts))
    assert all(part.order is None for part in parts)


def test_a_given_partition_holds_for_all_and_a_given_key_too() -> None:
    assert {part.partition for part in parts_of(columns([bytes(100)] * 40), partition=2)} == {2}
    keyed = parts_of(columns([bytes(100)] * 40, key=b"k"))
    assert {part.partition for part in keyed} == {partition_for_key(b"k", 4)}
    assert {record.key for part in keyed for record in decode(BatchView(part.data))} == {b"k"}


def test_round_robin_scatters_record_by_record() -> None:
    parts = parts_of(columns([b"%d" % n for n in range(8)]), partitioner=RoundRobinPartitioner())
    assert {part.partition: tuple(part.order) for part in parts} == {n: (n, n + 4) for n in range(4)}


def test_tombstones_and_own_timestamps_take_the_slow_way_and_arrive() -> None:
    parts = parts_of(columns([b"a", None], timestamps_ms=[5, None]), partition=0)
    assert [(r.value, r.timestamp) for r in decode(BatchView(parts[0].data))] == [(b"a", 5), (None, 77)]
    assert decode(BatchView(parts_of(columns([None]), partition=0)[0].data))[0].value is None


def test_records_bring_key_timestamp_and_headers() -> None:
    records = [
        SimpleNamespace(value=b"v", key=b"k", timestamp_ms=9, headers=[("h", b"x")]),
        SimpleNamespace(value=b"w"),
    ]
    [part] = parts_of(columns(records), partition=1)
    first, second = decode(BatchView(part.data))
    assert (first.key, first.timestamp, list(first.headers)) == (b"k", 9, [("h", b"x")])
    assert (second.key, second.timestamp, list(second.headers)) == (None, 77, [])
    with pytest.raises(ConfigError, match="records have their own keys"):
        columns(records, keys=[b"a", b"b"])


def test_one_record_too_large_refuses_all_before_anything_is_encoded() -> None:
    with pytest.raises(kafka_error(ErrorCode.message_too_large), match=r"exceeds max\.request\.size=1000"):
        parts_of(columns([b"small", bytes(1000)]))
    with pytest.raises(kafka_error(ErrorCode.message_too_large)):
        parts_of(columns([b"small", b"small"], keys=[b"k", bytes(1000)]))


def test_columns_of_unequal_length_are_refused() -> None:
    with pytest.raises(ConfigError, match="keys has 1 entries for 2 values"):
        columns([b"a", b"b"], keys=[b"k"])
    with pytest.raises(ConfigError, match="not both"):
        columns([b"a"], key=b"k", keys=[b"k"])


def test_serializers_run_over_whole_batches_and_text_without_one_is_refused() -> None:
    serialized = columns(["a", "b"], value_serializer=serializer_of("string", "value.serializer"))
    assert serialized.values == [b"a", b"b"]
    with pytest.raises(SerializationError, match="value of type str needs a serializer"):
        columns(["a"])


def test_arrow_columns_become_bytes_times_and_headers() -> None:
    table = pa.table({"s": ["a", None], "b": pa.array([b"x", b"y"], pa.large_binary()), "n": [1, 2]})
    assert binary_values(table.column("s"), "s") == [b"a", None]
    assert binary_values(table.column("b").slice(1), "b") == [b"y"]
    with pytest.raises(ConfigError, match="the n column is int64"):
        binary_values(table.column("n"), "n")
    assert timestamps_ms(pa.array([1_500_000, None], pa.timestamp("us"))) == [1500, None]
    assert timestamps_ms(table.column("n")) == [1, 2]
    headers = header_column([[("a", b"1"), ("a", None)], []])
    assert header_lists(headers) == [[("a", b"1"), ("a", None)], []]
    assert header_column([[]] * 5).to_pylist() == [[]] * 5
    assert header_column([[]]).type == RECORD_SCHEMA.field("headers").type


def test_a_batch_that_will_be_stamped_gets_its_crc_with_the_stamp() -> None:
    values = BatchInput([b"a", b"b"])
    assert BatchView(parts_of(values)[0].data).has_valid_crc()
    (part,) = parts_of(values, will_be_stamped=True)
    batch = ProducerBatch.of_bytes("t", 0, part.data, 2, created_ms=0, deadline_ms=1, compression=0)
    assert not BatchView(part.data).has_valid_crc()
    batch.stamp = STAMP
    assert BatchView(batch.stamped_bytes()).has_valid_crc()
