"""What Confluent's serializers write before a message, and every registry's after them.

::

    00                      the magic byte
    00 00 00 07             the schema's id, big-endian
    …                       with Protobuf: which message of the schema; else the payload at once

Which message: the number of indexes, then the indexes, all of them varints in zigzag. The first index
counts the messages of the file, each further one those nested in the one before. The single byte 0
stands for the first message. https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/
"""

from __future__ import annotations

from typing import Final

SCHEMA_ID_MAX: Final = 10_000_000
"""Larger "ids" are taken for a number that happens to begin with a zero byte."""
HEADER_BYTES: Final = 5
VARINT_BYTES_MAX: Final = 10
INDEXES_MAX: Final = 32
"""How deep a message is nested in others, at most."""


class NotDecodedError(Exception):
    """Why a message is shown as it is: a clause for the reader."""


def schema_id_of(data: bytes) -> int | None:
    """The id of the schema in a schema registry; None for other bytes."""
    if len(data) <= HEADER_BYTES or data[0] != 0:
        return None
    found = int.from_bytes(data[1:HEADER_BYTES], "big")
    return found if 1 <= found <= SCHEMA_ID_MAX else None


def message_path(payload: bytes) -> tuple[tuple[int, ...], int]:
    """Which message of a Protobuf schema it is, and where it begins. Raises NotDecodedError."""
    count, at = zigzag(payload, 0)
    if count == 0:
        return (0,), at
    if not 0 < count <= INDEXES_MAX:
        raise NotDecodedError(f"it names its message by {count} indexes")
    path = []
    for _ in range(count):
        index, at = zigzag(payload, at)
        path.append(index)
    return tuple(path), at


def zigzag(data: bytes, at: int) -> tuple[int, int]:
    """The number at that place, and the place behind it. Raises NotDecodedError."""
    value = 0
    for count in range(VARINT_BYTES_MAX):
        if at >= len(data):
            raise NotDecodedError("it ends within a number")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
    raise NotDecodedError("a number in it is longer than 64 bits")
