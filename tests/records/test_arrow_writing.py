"""Arrow columns as record batches: the kernel's bytes against the codec's, its partitions against the Python murmur2."""

from __future__ import annotations

import random
from array import array
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylog.client.partitioners import partition_for_key
from raylog.errors import ConfigError
from raylog.records import codec, kernel
from raylog.records.arrow_columns import HEADERS_TYPE
from raylog.records.arrow_reading import read_arrow
from raylog.records.arrow_writing import ArrowRows, RecordTooLarge
from raylog.records.batch import BatchView
from raylog.records.compression import Compression

COMPILED: Any = kernel.loaded()
pytestmark = pytest.mark.skipif(COMPILED is None, reason=kernel.description())

NOW = 77
I64 = st.integers(-(2**63), 2**63 - 1)
CONTENT = st.none() | st.binary(max_size=20) | st.binary(min_size=60, max_size=140)
HEADERS = st.none() | st.lists(st.tuples(st.text(max_size=5), CONTENT), max_size=3)
ROW = st.tuples(CONTENT, CONTENT, st.none() | I64 | st.integers(0, 2**42), HEADERS)
BINARY = st.sampled_from([pa.binary(), pa.large_binary()])


def headers_array(rows: list[Any]) -> Any:
    return pa.array([None if row is None else [{"key": k, "value": v} for k, v in row] for row in rows], HEADERS_TYPE)


def rows_of(rows: list[tuple[Any, ...]], key_type: Any = None, value_type: Any = None, cut: int = 0) -> ArrowRows:
    """The rows as Arrow columns; the first ``cut`` are there but sliced away."""
    keys, values, times, headers = (list(column) for column in zip(*rows, strict=True))
    return ArrowRows(
        COMPILED,
        keys=pa.array(keys, key_type or pa.binary()).slice(cut),
        values=pa.array(values, value_type or pa.binary()).slice(cut),
        timestamps=pa.array(times, pa.int64()).slice(cut),
        headers=headers_array(headers).slice(cut),
        now_ms=NOW,
    )


def as_records(rows: list[tuple[Any, ...]]) -> list[Any]:
    return [(NOW if time is None else time, key, value, headers or ()) for key, value, time, headers in rows]


@given(
    st.lists(ROW, min_size=1, max_size=12),
    BINARY,
    BINARY,
    st.sampled_from(Compression),
    st.integers(0, 11),
    st.randoms(),
)
def test_the_bytes_are_those_of_the_codec(
    rows: list[tuple[Any, ...]],
    key_type: Any,
    value_type: Any,
    compression: int,
    cut: int,
    chance: random.Random,
) -> None:
    cut = min(cut, len(rows) - 1)
    written = rows_of(rows, key_type, value_type, cut)
    rows = rows[cut:]
    written.check(1 << 20)
    batch = written.encode(None, 0, len(rows), bytes_max=1 << 20, compression=compression)
    assert (batch.data, batch.row_count) == (codec.encode(as_records(rows), compression=compression), len(rows))
    order = list(range(len(rows)))
    chance.shuffle(order)
    shuffled = written.encode(array("q", order), 0, len(rows), bytes_max=1 << 20)
    assert shuffled.data == codec.encode(as_records([rows[row] for row in order]))


@given(st.lists(ROW, min_size=1, max_size=12), st.integers(62, 700))
def test_batches_keep_to_their_bytes_and_to_the_order(rows: list[tuple[Any, ...]], bytes_max: int) -> None:
    written, at, sent = rows_of(rows), 0, []
    while at < len(rows):
        batch = written.encode(None, at, len(rows), bytes_max=bytes_max)
        assert batch.row_count == 1 or len(batch.data) <= bytes_max
        if at + batch.row_count < len(rows):  # there was no room for the next one
            assert len(codec.encode(as_records(rows[at : at + batch.row_count + 1]))) > bytes_max
        assert BatchView(batch.data).has_valid_crc()
        sent += [
            (record.timestamp, record.key, record.value, tuple(record.headers))
            for record in codec.decode(BatchView(batch.data))
        ]
        at += batch.row_count
    assert sent == [(time, key, value, tuple(headers)) for time, key, value, headers in as_records(rows)]


@given(st.lists(st.none() | st.binary(max_size=23), min_size=1, max_size=50), st.integers(1, 1000), BINARY)
def test_keys_go_where_every_kafka_client_puts_them(keys: list[bytes | None], partition_count: int, kind: Any) -> None:
    written = ArrowRows(COMPILED, keys=pa.array(keys, kind), values=pa.array([b"v"] * len(keys)), now_ms=NOW)
    sizes = written.check(1 << 20)
    assert sizes.keyless == keys.count(None)
    partitions = written.partitions(partition_count, [3, 1], 1 << 30)
    assert list(partitions) == [3 if key is None else partition_for_key(key, partition_count) for key in keys]


def test_rows_without_keys_move_on_when_a_choice_has_its_bytes() -> None:
    values = pa.array([bytes(79)] * 10)  # 100 bytes each, with all that surrounds them
    written = ArrowRows(COMPILED, values=values, now_ms=NOW)
    assert list(written.partitions(9, [7, 8, 5], 300)) == [7, 7, 7, 8, 8, 8, 5, 5, 5, 5]
    assert written.check(1 << 20).keyless_bytes == 1000


@given(st.lists(st.integers(0, 6), max_size=50))
def test_rows_are_grouped_by_partition_in_their_order(partitions: list[int]) -> None:
    written = ArrowRows(COMPILED, values=pa.array([b""] * len(partitions), pa.binary()), now_ms=NOW)
    starts, order = written.grouped(array("i", partitions), 7)
    for partition in range(7):
        mine = list(order[starts[partition] : starts[partition + 1]])
        assert mine == [row for row, chosen in enumerate(partitions) if chosen == partition]


@pytest.mark.parametrize("wrong", [-1, 7, 2**31 - 1])
def test_a_partition_that_there_is_not_is_refused(wrong: int) -> None:
    written = ArrowRows(COMPILED, values=pa.array([b"", b""]), now_ms=NOW)
    with pytest.raises(ConfigError, match="cannot be written"):
        written.grouped(array("i", [0, wrong]), 7)


def test_a_record_above_the_limit_is_named_with_its_size() -> None:
    written = rows_of([(None, b"", 1, None), (b"k" * 10, bytes(100), 1, [("name", b"x" * 5)])])
    written.check(21 + 10 + 100 + 10 + 4 + 5)
    with pytest.raises(RecordTooLarge) as raised:
        written.check(21 + 10 + 100 + 10 + 4 + 5 - 1)
    assert (raised.value.row, raised.value.size_bytes) == (1, 150)


def test_a_header_without_a_key_is_refused_also_where_the_whole_pair_is_null() -> None:
    for pair in ({"key": None, "value": b"x"}, None):
        headers = pa.array([[], [pair]], HEADERS_TYPE)
        written = ArrowRows(COMPILED, values=pa.array([b"", b""]), headers=headers, now_ms=NOW)
        with pytest.raises(ConfigError, match="row 1 cannot be written: a header without a key"):
            written.check(1000)
        with pytest.raises(ConfigError, match="a header without a key"):
            written.encode(None, 0, 2, bytes_max=1000)


@pytest.mark.parametrize(
    "headers",
    [
        pa.array([[("a", b"1"), ("b", None)], None, []], pa.map_(pa.string(), pa.binary())),
        pa.array([[("a", b"1"), ("b", None)], None, []], pa.large_list(HEADERS_TYPE.value_type)),
        pa.array([[("x", b"y")], [("a", b"1"), ("b", None)], None, []], pa.map_(pa.string(), pa.binary())).slice(1),
        pa.array(
            [[{"value": "1", "key": b"a"}, {"value": None, "key": b"b"}], None, []],
            pa.list_(pa.struct([("value", pa.string()), ("key", pa.large_binary())])),
        ),
    ],
    ids=["map", "large list", "slice of a map", "fields the other way round"],
)
def test_headers_may_come_in_other_arrow_types(headers: Any) -> None:
    written = ArrowRows(COMPILED, values=pa.array(["v", "w", "x"]), headers=headers, now_ms=NOW)
    written.check(1000)
    batch = written.encode(None, 0, 3, bytes_max=1000).data
    assert [list(record.headers) for record in codec.decode(BatchView(batch))] == [[("a", b"1"), ("b", None)], [], []]


def test_timestamps_of_any_unit_become_milliseconds_and_what_has_none_is_now() -> None:
    for times in (
        pa.array([1_500_999, None], pa.timestamp("us", tz="Europe/Paris")),
        pa.array([1_500_999_999, None], pa.timestamp("ns")),
        pa.array([1500, None], pa.int32()),
    ):
        written = ArrowRows(COMPILED, values=pa.array([b"a", b"b"]), timestamps=times, now_ms=NOW)
        batch = written.encode(None, 0, 2, bytes_max=1000).data
        assert [record.timestamp for record in codec.decode(BatchView(batch))] == [1500, NOW]


@pytest.mark.parametrize(
    ("column", "content", "message"),
    [
        ("values", pa.array([1]), "the value column is int64: it has to be binary or string"),
        ("keys", pa.array([1.5]), "the key column is double"),
        ("timestamps", pa.array(["now"]), "the timestamp column is string"),
        ("headers", pa.array(["a=b"]), "the headers column is string: it has to be lists of structs"),
        ("headers", pa.array([[{"k": "a"}]]), "need the fields key and value"),
    ],
)
def test_columns_of_other_types_are_refused(column: str, content: Any, message: str) -> None:
    columns = {"values": pa.array([b"v"])} | {column: content}
    with pytest.raises(ConfigError, match=message):
        ArrowRows(COMPILED, now_ms=NOW, **columns)


def test_nulls_of_no_type_are_nulls() -> None:
    nothing = pa.nulls(2)
    written = ArrowRows(COMPILED, values=nothing, keys=nothing, timestamps=nothing, headers=nothing, now_ms=NOW)
    written.check(1000)
    assert written.encode(None, 0, 2, bytes_max=1000).data == codec.encode([(NOW, None, None, ())] * 2)


@given(st.lists(ROW, min_size=1, max_size=8))
def test_what_was_read_can_be_written_again(rows: list[tuple[Any, ...]]) -> None:
    log = codec.encode(as_records(rows))
    (table,) = read_arrow(log, columns=None).batches
    written = ArrowRows(
        COMPILED,
        keys=table.column("key"),
        values=table.column("value"),
        timestamps=table.column("timestamp"),
        headers=table.column("headers"),
        now_ms=NOW,
    )
    assert written.encode(None, 0, len(rows), bytes_max=1 << 20).data == log
