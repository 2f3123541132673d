"""Zigzag varints: 7 bits a byte, least significant first, the high bit says that more follow
(TV-4).

Kafka writes i32 and i64 alike; reading accepts at most ten bytes and gives a value of 64 bits.
Python speed: for prefixes that are computed once and for the slow twin, never for each record of a
hot path.
"""

from __future__ import annotations

from raylog.records.corrupt import CorruptBatch

_MASK_64 = (1 << 64) - 1


def encode_varint(value: int) -> bytes:
    """−2**63 ≤ value < 2**63."""
    assert -(1 << 63) <= value < 1 << 63, value
    rest = ((value << 1) ^ (value >> 63)) & _MASK_64
    out = bytearray()
    while rest > 0x7F:
        out.append(0x80 | (rest & 0x7F))
        rest >>= 7
    out.append(rest)
    return bytes(out)


def size_of_varint(value: int) -> int:
    """Bytes that ``encode_varint`` gives."""
    rest = ((value << 1) ^ (value >> 63)) & _MASK_64
    return max(1, (rest.bit_length() + 6) // 7)


def decode_varint(buffer: bytes | bytearray | memoryview, position: int = 0) -> tuple[int, int]:
    """(value, position behind it). Raises CorruptBatch where the buffer ends or the number is
    longer than ten bytes.
    """
    rest = shift = 0
    while True:
        if position >= len(buffer):
            raise CorruptBatch("ends inside a varint", position)
        byte = buffer[position]
        position += 1
        rest |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 63:
            raise CorruptBatch("a varint of more than 64 bits", position)
    rest &= _MASK_64
    return (rest >> 1) ^ -(rest & 1), position
