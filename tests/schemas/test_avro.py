"""Avro payloads: decoded as fastavro has written them, and refused where they would hurt the process."""

from __future__ import annotations

import datetime
import decimal
import io
import json
import uuid
from typing import Any

import pytest
from fastavro import parse_schema, schemaless_writer

from raylog.schemas.avro import AvroSchema
from raylog.schemas.decoding import as_json
from raylog.schemas.wire_format import NotDecodedError

NODE = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}


def written(schema: Any, value: Any) -> bytes:
    file = io.BytesIO()
    schemaless_writer(file, parse_schema(json.loads(json.dumps(schema))), value)
    return file.getvalue()


def logical(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


@pytest.mark.parametrize(
    ("schema", "value", "shown"),
    [
        ("null", None, "null"),
        ("string", "ü", '"ü"'),
        ("double", float("nan"), '"NaN"'),
        ("float", float("-inf"), '"-Infinity"'),
        ("bytes", b"\x00\xffa", '"\\u0000ÿa"'),
        ({"type": "array", "items": "boolean"}, [True, False], "[true, false]"),
        ({"type": "map", "values": ["null", "long"]}, {"a": None, "b": 2**40}, '{"a": null, "b": 1099511627776}'),
        ({"type": "enum", "name": "e", "symbols": ["x", "y"]}, "y", '"y"'),
        ({"type": "fixed", "name": "f", "size": 2}, b"ab", '"ab"'),
        (logical("bytes", "decimal", precision=9, scale=2), decimal.Decimal("12.30"), '"12.30"'),
        (logical("string", "uuid"), uuid.UUID(int=7), '"00000000-0000-0000-0000-000000000007"'),
        (logical("int", "date"), datetime.date(2026, 1, 31), '"2026-01-31"'),
        (
            logical("long", "timestamp-millis"),
            datetime.datetime(2026, 1, 31, 12, tzinfo=datetime.UTC),
            '"2026-01-31T12:00:00+00:00"',
        ),
    ],
)
def test_every_type_of_avro_has_its_json(schema: Any, value: Any, shown: str) -> None:
    _, found = AvroSchema(json.dumps(schema)).decode(written(schema, value))
    assert as_json(found) == shown


def test_a_record_has_its_full_name_and_fields_of_named_types() -> None:
    point = {"type": "record", "name": "Point", "fields": [{"name": "x", "type": "int"}]}
    line = {
        "type": "record",
        "name": "Line",
        "namespace": "shop",
        "fields": [
            {"name": "from", "type": point},
            {"name": "to", "type": "Point"},
            {"name": "over", "type": {"type": "array", "items": "shop.Point"}},
        ],
    }
    value = {"from": {"x": 1}, "to": {"x": -2}, "over": [{"x": 3}, {"x": 4}]}
    assert AvroSchema(json.dumps(line)).decode(written(line, value)) == ("Avro shop.Line", value)


def test_a_type_of_another_schema_is_known_by_its_name() -> None:
    address = (
        '{"type": "record", "name": "Address", "namespace": "shop", "fields": [{"name": "city", "type": "string"}]}'
    )
    order = {"type": "record", "name": "Order", "fields": [{"name": "to", "type": "shop.Address"}]}
    found = AvroSchema(json.dumps(order), [address])
    assert found.decode(b"\x0aBonn!") == ("Avro Order", {"to": {"city": "Bonn!"}})
    assert found.size_bytes > len(address)


def test_arrays_in_blocks_with_sizes_are_walked_through() -> None:
    schema = AvroSchema('{"type": "array", "items": "int"}')
    assert schema.decode(b"\x03\x04\x02\x04\x02\x06\x00") == ("Avro array", [1, 2, 3])


def test_a_list_a_hundred_records_deep_ends_no_process() -> None:
    schema = AvroSchema(json.dumps(NODE))
    assert schema.decode(b"\x02" * 90 + b"\x00")[0] == "Avro Node"
    with pytest.raises(NotDecodedError, match="nested deeper than 200 levels"):
        schema.decode(b"\x02" * 200_000 + b"\x00")


@pytest.mark.parametrize(
    ("schema", "payload", "reason"),
    [
        ({"type": "array", "items": "null"}, b"\xfe\xff\xff\xff\xff\xff\x0f\x00", "more than 200,000 values"),
        ({"type": "record", "name": "r", "fields": [{"name": "a", "type": "r"}]}, b"\x00", "nested deeper"),
        (["null", "int"], b"\x04", "branch 2 of a union of 2"),
        (["null", "int"], b"\x01", "branch -1 of a union"),
        ("string", b"\xfe\xff\xff\xff\x0f", "ends within a value"),
        ("string", b"\x01", "ends within a value"),
        ("double", b"1234567", "ends within a value"),
        ("long", b"\xff", "ends within a number"),
        ("long", b"\xff" * 10 + b"\x00", "longer than 64 bits"),
        ("int", b"\x02\x02", "1 bytes are left"),
        (logical("bytes", "decimal", precision=9, scale=2), b"\xfe\xff\x0f" + b"1" * 200_000, "a number of more than"),
    ],
)
def test_a_payload_that_cannot_be_or_would_take_too_much_is_refused(schema: Any, payload: bytes, reason: str) -> None:
    with pytest.raises(NotDecodedError, match=reason):
        AvroSchema(json.dumps(schema)).decode(payload)


@pytest.mark.parametrize("text", ["{", "[" * 10_000 + "]" * 10_000, '{"a":' * 300 + "1" + "}" * 300])
def test_a_schema_that_is_no_json_or_too_deep_is_refused(text: str) -> None:
    with pytest.raises(NotDecodedError):
        AvroSchema(text)
