"""The primitive types of Kafka's messages, for the few schemas that live inside records and inside
other messages' bytes.

Big-endian, as everywhere in Kafka::

    i8 i16 i32 i64  two's complement
    string          i16 length, UTF-8; −1 is null
    bytes           i32 length; −1 is null
    array           i32 count, items; −1 is null
    compact_string  unsigned varint of length + 1, UTF-8; 0 is null        (flexible versions)
    compact_bytes   the same with bytes
    compact_array   unsigned varint of count + 1, items; 0 is null
    tags            unsigned varint count, then (tag, size, bytes) each

``Reader`` checks every length against what is left, so that hostile bytes cost nothing: they end in
a ProtocolError.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TypeVar

from raylog.errors import ProtocolError

Buffer = bytes | bytearray | memoryview
Tags = dict[int, bytes]
T = TypeVar("T")

_I8, _I16, _I32, _I64 = (struct.Struct(f">{code}") for code in "bhiq")
_STRING_BYTES_MAX = (1 << 15) - 1


class Reader:
    """Takes fields off the front of a buffer. ``what`` names the message in errors."""

    __slots__ = ("_data", "_position", "what")

    def __init__(self, data: Buffer, what: str) -> None:
        self._data = bytes(data)
        self._position = 0
        self.what = what

    def _take(self, size: int) -> int:
        """The position of the next ``size`` bytes, which are there."""
        start = self._position
        if size > len(self._data) - start:
            raise ProtocolError(f"{self.what}: {size} bytes wanted at byte {start} of {len(self._data)}")
        self._position = start + size
        return start

    def i8(self) -> int:
        value: int = _I8.unpack_from(self._data, self._take(1))[0]
        return value

    def i16(self) -> int:
        value: int = _I16.unpack_from(self._data, self._take(2))[0]
        return value

    def i32(self) -> int:
        value: int = _I32.unpack_from(self._data, self._take(4))[0]
        return value

    def i64(self) -> int:
        value: int = _I64.unpack_from(self._data, self._take(8))[0]
        return value

    def uvarint(self) -> int:
        value = shift = 0
        while True:
            byte = self._data[self._take(1)]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > 28:
                raise ProtocolError(f"{self.what}: a varint of more than five bytes")

    def _sized(self, size: int) -> bytes | None:
        if size < 0:
            return None
        start = self._take(size)
        return self._data[start : start + size]

    def _text(self, raw: bytes | None) -> str | None:
        try:
            return None if raw is None else raw.decode()
        except UnicodeDecodeError as error:
            raise ProtocolError(f"{self.what}: a string that is not UTF-8") from error

    def nullable_string(self, *, compact: bool = False) -> str | None:
        return self._text(self._sized(self.uvarint() - 1 if compact else self.i16()))

    def string(self, *, compact: bool = False) -> str:
        value = self.nullable_string(compact=compact)
        if value is None:
            raise ProtocolError(f"{self.what}: null where a string has to be")
        return value

    def nullable_bytes(self, *, compact: bool = False) -> bytes | None:
        return self._sized(self.uvarint() - 1 if compact else self.i32())

    def bytes(self, *, compact: bool = False) -> bytes:
        value = self.nullable_bytes(compact=compact)
        if value is None:
            raise ProtocolError(f"{self.what}: null where bytes have to be")
        return value

    def array(self, item: Callable[[], T], *, compact: bool = False) -> tuple[T, ...]:
        """A null array reads as an empty one."""
        count = self.uvarint() - 1 if compact else self.i32()
        if count > len(self._data) - self._position:
            raise ProtocolError(f"{self.what}: {count} items where {len(self._data) - self._position} bytes are left")
        return tuple(item() for _ in range(count))

    def skip_tags(self) -> None:
        self.tags()

    def tags(self) -> Tags:
        """All tagged fields, undecoded."""
        found: Tags = {}
        for _ in range(self.uvarint()):
            tag = self.uvarint()
            found[tag] = self._sized(self.uvarint()) or b""
        return found

    @property
    def is_at_end(self) -> bool:
        return self._position == len(self._data)


def i8(value: int) -> bytes:
    return _I8.pack(value)


def i16(value: int) -> bytes:
    return _I16.pack(value)


def i32(value: int) -> bytes:
    return _I32.pack(value)


def i64(value: int) -> bytes:
    return _I64.pack(value)


def string(value: str | None) -> bytes:
    """Raises ProtocolError for a string that Kafka's format has no room for."""
    if value is None:
        return _I16.pack(-1)
    raw = value.encode()
    if len(raw) > _STRING_BYTES_MAX:
        raise ProtocolError(f"a string of {len(raw)} bytes: at most {_STRING_BYTES_MAX} fit")
    return _I16.pack(len(raw)) + raw


def uvarint(value: int) -> bytes:
    raw = bytearray()
    while value > 0x7F:
        raw.append(value & 0x7F | 0x80)
        value >>= 7
    raw.append(value)
    return bytes(raw)


def compact_string(value: str) -> bytes:
    raw = value.encode()
    return uvarint(len(raw) + 1) + raw


def sized_bytes(value: bytes | None) -> bytes:
    return _I32.pack(-1) if value is None else _I32.pack(len(value)) + value


def tagged(tags: Tags) -> bytes:
    """Tagged fields, by tag; those without bytes are left out."""
    there = sorted((tag, raw) for tag, raw in tags.items() if raw)
    return uvarint(len(there)) + b"".join(uvarint(tag) + uvarint(len(raw)) + raw for tag, raw in there)
