"""JSON values as Arrow columns: each value one row, whatever it is, and none lost in silence."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from raylog.data import decode_json, json_values
from raylog.errors import ConfigError, SerializationError

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
BROKEN = [
    b"", b" ", b"null", b"[]", b"5", b'"x"', b"{", b'{"id": 1', b'{"id": 1} {"id": 2}', b'{"id": 1}null{"id": 2}', b'{"id": 1},{"id": 2}',
    b'{"id": "1"}', b'{"id": 1.5}', b'{"id": 1, "id": 2}', b'{"name": "\xff"}', b'{"name": "a\nb"}', b'\xef\xbb\xbf{"id": 1}',
    b'{"id": 1}}', b'{"id": 99999999999999999999}', b'{"id": 1}\x00{"id": 2}', b"\xff\xfe", b"{'id': 1}",
]  # fmt: skip


def rows(*values: bytes | None) -> Any:
    count = len(values)
    columns = [
        pa.array(values, pa.binary()),
        pa.array(["t"] * count),
        pa.array([3] * count),
        pa.array(range(100, 100 + count)),
    ]
    return pa.table(columns, ["value", "topic", "partition", "offset"])


def test_fields_are_columns_in_the_place_of_the_value() -> None:
    table = rows(b'{"id": 1, "name": "a", "more": [{}]}', None, b' {"name":"}{",\n"id":2}\n', b"{}")
    found = decode_json(table, SCHEMA, columns=["offset"])
    assert found.schema.names == ["offset", "id", "name", "_corrupt_record"]
    assert found.to_pydict() == {
        "offset": [100, 101, 102, 103],
        "id": [1, None, 2, None],
        "name": ["a", None, "}{", None],
        "_corrupt_record": [None] * 4,
    }
    assert decode_json(table, SCHEMA).schema.names[:3] == ["topic", "partition", "offset"]
    batch = decode_json(table.to_batches()[0], SCHEMA, mode="failfast", columns=[])
    assert isinstance(batch, pa.RecordBatch) and batch.column("id").to_pylist() == [1, None, 2, None]


def test_nested_values_and_moments_have_their_types() -> None:
    schema = pa.schema(
        [("at", pa.timestamp("ms", "UTC")), ("tags", pa.list_(pa.string())), ("of", pa.struct([("x", pa.float64())]))]
    )
    (row,) = decode_json(rows(b'{"at": "2024-01-02T03:04:05Z", "tags": ["a"], "of": {"x": 1}}'), schema).to_pylist()
    assert (row["at"].isoformat(), row["tags"], row["of"]) == ("2024-01-02T03:04:05+00:00", ["a"], {"x": 1.0})


@pytest.mark.parametrize("broken", BROKEN)
def test_a_value_that_does_not_decode_is_kept_or_raised(broken: bytes) -> None:
    table = rows(b'{"id": 1}', None, broken, b'{"id": 3}')
    found = decode_json(table, SCHEMA, columns=[], corrupt_column="bad")
    assert found.to_pydict() == {
        "id": [1, None, None, 3],
        "name": [None] * 4,
        "bad": [None, None, broken, None],
    }
    with pytest.raises(SerializationError, match=r"the value at offset 102 of t-3 does not decode \("):
        decode_json(table, SCHEMA, mode="failfast")
    with pytest.raises(SerializationError, match=r"row 2 does not decode"):
        decode_json(table.select(["value"]), SCHEMA, mode="failfast")


def naively(value: bytes | None) -> dict[str, Any] | None:
    """What a value is by Python's own reader; None if it can't be decoded."""
    if value is None:
        return {"id": None, "name": None}
    try:
        pairs = json.loads(value.decode(), object_pairs_hook=list)
    except ValueError:
        return None
    found = dict(pairs) if isinstance(pairs, list) and all(isinstance(each, tuple) for each in pairs) else None
    if found is None or len(found) < len(pairs) or not value.strip().startswith(b"{"):
        return None
    number, name = found.get("id"), found.get("name")
    fits = (number is None or (type(number) is int and -(2**63) <= number < 2**63)) and (
        name is None or isinstance(name, str)
    )
    return {"id": number, "name": name} if fits else None


objects = st.fixed_dictionaries(
    {},
    optional={
        "id": st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1), st.text(max_size=3)),
        "name": st.one_of(st.none(), st.text(alphabet=st.sampled_from('}{"],\\ anul\n\0é'), max_size=8), st.booleans()),
    },
)
values = st.lists(
    st.one_of(
        st.none(),
        st.sampled_from(BROKEN),
        objects.map(lambda each: json.dumps(each, ensure_ascii=False).encode()),
        st.lists(st.sampled_from([b"{", b"}", b'"id"', b":", b"1", b",", b"null", b"\n", b'"']), max_size=9).map(
            b"".join
        ),
    ),
    max_size=12,
)


@given(values, st.integers(1, 200))
@example([b'{"id": 1}', b"null", b'{"id": 2}{"id": 3}', b"", b'{"id": 4}'], 10)
def test_each_value_is_one_row_and_what_pythons_reader_makes_of_it(given: list[bytes | None], slice_bytes: int) -> None:
    before, json_values.SLICE_BYTES = json_values.SLICE_BYTES, slice_bytes
    try:
        found = decode_json(rows(*given), SCHEMA, columns=[]).to_pylist()
    finally:
        json_values.SLICE_BYTES = before
    nothing = {"id": None, "name": None}
    for value, row in zip(given, found, strict=True):
        wanted = naively(value)
        corrupt = row.pop("_corrupt_record")
        assert (row, corrupt) == ((nothing, value) if wanted is None else (wanted, None)), value


def test_chunks_slices_and_other_binary_types_are_taken() -> None:
    values = [b'{"id": %d}' % n for n in range(10)]
    for kind in (pa.large_binary(), pa.string(), pa.large_string()):
        chunked = pa.chunked_array([pa.array(values[:3]), pa.array(values[3:])]).cast(kind)
        assert decode_json(pa.table([chunked.slice(2, 6)], ["value"]), SCHEMA)["id"].to_pylist() == list(range(2, 8))
    assert decode_json(rows(), SCHEMA).num_rows == 0
    assert decode_json(rows(None, None), SCHEMA)["name"].to_pylist() == [None, None]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "drop"}, "one of permissive, failfast"),
        ({"column": "valeu"}, "there is no column 'valeu'"),
        ({"columns": ["key"]}, "there is no column 'key'"),
        ({"columns": "offset"}, "give a list"),
        ({"column": "offset"}, "column offset is int64: it has to be binary or string"),
        ({"schema": pa.schema([])}, "no field"),
        ({"schema": {"id": "int"}}, "give a pyarrow.Schema"),
        ({"schema": pa.schema([("topic", pa.string())])}, "'topic' would appear twice"),
        ({"schema": pa.schema([("m", pa.map_(pa.string(), pa.int32()))])}, "pyarrow does not read JSON by this schema"),
    ],
)
def test_what_can_not_be_is_refused(options: dict[str, Any], message: str) -> None:
    schema = options.pop("schema", SCHEMA)
    with pytest.raises(ConfigError, match=message):
        decode_json(rows(b"{}"), schema, **options)
