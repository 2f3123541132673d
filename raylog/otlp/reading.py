"""Reads fields of protobuf messages of OpenTelemetry (opentelemetry-proto 1.x), and what the receiver
of an export has rejected.

A message is a sequence of fields: a varint with the field's number and wire type, and the value::

    Export…ServiceResponse  1 partial success
    Partial success         1 how many were rejected    2 why
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, TypeGuard

from raylog.errors import ProtocolError

Value = int | memoryview
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_VARINT_BYTES_MAX: Final = 10


def rejected_of(data: bytes) -> tuple[int, str]:
    """How many points or spans the receiver of an export has rejected, and why, as it says in its
    answer. Raises ProtocolError for bytes that are no such message.
    """
    rejected, reason = 0, ""
    for partial_success in messages(memoryview(data), 1):
        for number, value in fields(partial_success):
            if number == 1 and isinstance(value, int):
                rejected = value
            elif number == 2 and not isinstance(value, int):
                reason = text_of(value)
    return rejected, reason


def is_fixed64(value: Value) -> TypeGuard[memoryview]:
    return not isinstance(value, int) and len(value) == 8


def text_of(data: memoryview) -> str:
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise ProtocolError(f"a text is not UTF-8: {error}") from None


def messages(data: memoryview, wanted: int) -> Iterator[memoryview]:
    """The values of all fields of that number that have a length."""
    for number, value in fields(data):
        if number == wanted and not isinstance(value, int):
            yield value


def fields(data: memoryview) -> Iterator[tuple[int, Value]]:
    """Each field's number and value: varints as numbers of 64 bits, all others as their bytes."""
    position, end = 0, len(data)
    while position < end:
        tag, position = _varint(data, position)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == _VARINT:
            value, position = _varint(data, position)
            yield number, value
            continue
        if wire_type == _BYTES:
            size, position = _varint(data, position)
        elif wire_type in (_FIXED64, _FIXED32):
            size = 8 if wire_type == _FIXED64 else 4
        else:
            raise ProtocolError(f"bytes with a field of wire type {wire_type}")
        if size > end - position:
            raise ProtocolError(f"bytes that end inside a field of {size} bytes")
        yield number, data[position : position + size]
        position += size


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    found = shift = 0
    for each in data[position : position + _VARINT_BYTES_MAX]:
        position += 1
        found |= (each & 0x7F) << shift
        if each < 0x80:
            return found & (1 << 64) - 1, position
        shift += 7
    raise ProtocolError("bytes with a varint that has no end")
