"""Protobuf payloads: decoded by descriptors alone, by the message that their indexes name."""

from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError
from protobuf_files import classes, file, serialized

from raylog.schemas.protobuf import ProtobufSchema
from raylog.schemas.wire_format import NotDecodedError, message_path

LINES = file("shop/line.proto", "shop", {"Line": {"article": "string", "count": "int32"}})
ORDERS = file(
    "shop/order.proto",
    "shop",
    {
        "Ping": {"at": "int64"},
        "Order": {
            "id": "int64",
            "is_paid": "bool",
            "lines": "repeated .shop.Line",
            "made": ".google.protobuf.Timestamp",
            "note_text": "string",
            "seal": "bytes",
        },
        "Inner": {"x": "int32"},
    },
    "shop/line.proto",
    "google/protobuf/timestamp.proto",
    "confluent/meta.proto",
    nested="Order",
)


def schema() -> ProtobufSchema:
    return ProtobufSchema(serialized(ORDERS), {"shop/line.proto": serialized(LINES)}, "default")


def test_a_message_with_imports_is_decoded_without_protoc() -> None:
    whole = file("shop/order.proto", "shop", {}, *list(ORDERS.dependency)[:2])
    whole.message_type.extend(ORDERS.message_type)
    order = classes(LINES, whole)["shop.Order"](id=7, note_text="ü", seal=b"\xff")
    order.lines.add(article="tea", count=2)
    order.made.FromSeconds(0)
    assert schema().decode(b"\x02\x02" + order.SerializeToString()) == (
        "Protobuf shop.Order",
        {
            "id": "7",
            "is_paid": False,
            "lines": [{"article": "tea", "count": 2}],
            "made": "1970-01-01T00:00:00Z",
            "note_text": "ü",
            "seal": "/w==",
        },
    )


@pytest.mark.parametrize(
    ("payload", "kind", "value"),
    [
        (b"\x00\x08\x05", "Protobuf shop.Ping", {"at": "5"}),
        (b"\x02\x00\x08\x05", "Protobuf shop.Ping", {"at": "5"}),
        (b"\x04\x02\x00\x08\x05", "Protobuf shop.Order.Inner", {"x": 5}),
    ],
)
def test_the_indexes_name_the_message(payload: bytes, kind: str, value: dict[str, object]) -> None:
    assert schema().decode(payload) == (kind, value)


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", "ends within a number"),
        (b"\x04\x02", "ends within a number"),
        (b"\x01", "by -1 indexes"),
        (b"\x80\x01", "by 64 indexes"),
        (b"\x02\x06", "no message 3"),
        (b"\x02\x01", "no message -1"),
        (b"\x04\x00\x00", "no message 0.0"),
    ],
)
def test_indexes_that_name_nothing_are_refused(payload: bytes, reason: str) -> None:
    with pytest.raises(NotDecodedError, match=reason):
        schema().decode(payload)


def test_the_path_says_where_the_message_begins() -> None:
    assert message_path(b"\x00abc") == ((0,), 1)
    assert message_path(b"\x04\x02\x80\x01abc") == ((1, 64), 4)


def test_bytes_that_are_no_message_are_an_error_of_the_library() -> None:
    with pytest.raises(DecodeError):
        schema().decode(b"\x00\xff")


TEXT = """
syntax = "proto3";
package shop;
import "shop/line.proto";
import "google/protobuf/timestamp.proto";
message Order { int64 id = 1; repeated Line lines = 2; google.protobuf.Timestamp made = 3; }
"""
LINE_TEXT = 'syntax = "proto3"; package shop; message Line { int32 count = 1; }'


def test_the_text_of_files_is_read_where_a_registry_gives_no_descriptors() -> None:
    found = ProtobufSchema(TEXT, {"shop/line.proto": LINE_TEXT}).decode(b"\x00\x08\x05\x12\x02\x08\x03\x1a\x00")
    assert found == (
        "Protobuf shop.Order",
        {"id": "5", "lines": [{"count": 3}], "made": "1970-01-01T00:00:00Z"},
    )


@pytest.mark.parametrize(
    ("text", "imported", "reason"),
    [
        ("message {", "a.proto", "no .proto file: schema.proto:1:9"),
        ("aaaa", "a.proto", "no .proto file"),
        ('import "b.proto";', "a.proto", "no .proto file: b.proto: File not found"),
        (TEXT, "../a.proto", "'../a.proto', which is no name of a file"),
        (TEXT, "/etc/a.proto", "'/etc/a.proto', which is no name of a file"),
        (TEXT, "shop/.a.proto", "no name of a file"),
    ],
)
def test_a_text_that_is_no_file_is_refused(text: str, imported: str, reason: str) -> None:
    with pytest.raises(NotDecodedError, match=reason):
        ProtobufSchema(text, {imported: LINE_TEXT})


def test_without_protoc_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raylog.extras.is_installed", lambda package: package != "grpc_tools")
    with pytest.raises(NotDecodedError, match=r"text only needs grpc_tools, .*pip install 'raylog\[protoc\]'"):
        ProtobufSchema(TEXT)


def test_a_type_of_a_file_that_nobody_has_is_refused() -> None:
    lost = file("a.proto", "a", {"A": {"b": ".google.type.Money"}}, "google/type/money.proto")
    with pytest.raises(TypeError):
        ProtobufSchema(serialized(lost))


def test_no_module_is_imported_because_a_schema_names_it() -> None:
    odd = file("a.proto", "a", {"A": {"b": "int32"}}, "google/protobuf/../../os.proto", "google/protobuf/nothing.proto")
    assert ProtobufSchema(serialized(odd)).decode(b"\x00")[1] == {"b": 0}


def test_defaults_are_left_out_where_there_could_be_millions() -> None:
    wide = file(
        "w.proto", "", {"Wide": {f"f{number}": "int32" for number in range(2_000)}, "All": {"w": "repeated .Wide"}}
    )
    schema = ProtobufSchema(serialized(wide))
    assert len(schema.decode(b"\x00")[1]) == 2_000
    assert schema.decode(b"\x02\x02" + b"\x0a\x00" * 10_000)[1] == {"w": [{}] * 10_000}


def test_a_descriptor_whose_fields_say_only_the_names_of_their_types_is_enough() -> None:
    bare = file("b.proto", "b", {"Line": {"count": "int32"}, "Order": {"line": ".b.Line"}})
    bare.message_type[1].field[0].ClearField("type")  # as Redpanda's registry gives them
    assert ProtobufSchema(serialized(bare)).decode(b"\x02\x02\x0a\x02\x08\x03")[1] == {"line": {"count": 3}}
