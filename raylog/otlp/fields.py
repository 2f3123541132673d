"""Writes fields of protobuf messages, and what all of OpenTelemetry's signals begin with
(opentelemetry-proto 1.x).

A message is a sequence of fields: a varint with the field's number and wire type, and the value::

    Resource    1 KeyValue…
    Scope       1 name    2 version
    KeyValue    1 key     2 AnyValue (1 string, 3 varint)
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

SCOPE: Final = "raylog"
_VARINT, _FIXED64, _BYTES = 0, 1, 2
_fixed64, _double = struct.Struct("<Q"), struct.Struct("<d")
Pairs = Iterable[tuple[str, str | int]]
"""Attributes: names and values. A number is at least 0."""


def signal_request(resource: Pairs, version: str, signals: bytes) -> bytes:
    """An Export…ServiceRequest of one resource and one scope, whose signals are fields with number 2."""
    scope = nested(1, text(1, SCOPE) + text(2, version))
    return nested(1, nested(1, attributes(1, resource)) + nested(2, scope + signals))


def attributes(field: int, pairs: Pairs) -> bytes:
    return b"".join(nested(field, text(1, key) + nested(2, _any(value))) for key, value in pairs)


def _any(value: str | int) -> bytes:
    return text(1, value) if isinstance(value, str) else number(3, value)


def text(field: int, value: str) -> bytes:
    return nested(field, value.encode())


def nested(field: int, value: bytes) -> bytes:
    """Bytes, a message among them."""
    return _tag(field, _BYTES) + varint(len(value)) + value


def number(field: int, value: int) -> bytes:
    return _tag(field, _VARINT) + varint(value)


def fixed(field: int, value: int) -> bytes:
    """64 bits."""
    return _tag(field, _FIXED64) + _fixed64.pack(value)


def double(field: int, value: float) -> bytes:
    return _tag(field, _FIXED64) + _double.pack(value)


def packed_fixed(field: int, values: Iterable[int]) -> bytes:
    return nested(field, b"".join(map(_fixed64.pack, values)))


def packed_doubles(field: int, values: Iterable[float]) -> bytes:
    return nested(field, b"".join(map(_double.pack, values)))


def _tag(field: int, wire_type: int) -> bytes:
    return varint(field << 3 | wire_type)


def varint(value: int) -> bytes:
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)
