"""Writes messages of the formats 0 and 1 as Kafka's clients and servers did, without a line of what reads them.

A message is (offset, timestamp, key, value). The bytes are held against the vectors of the specification and an independent client.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Sequence

import cramjam
import lz4.frame

Item = tuple[int, int, bytes | None, bytes | None]
CODECS = {"gzip": 1, "snappy": 2, "lz4": 3}


def entry(magic: int, item: Item, *, attributes: int = 0) -> bytes:
    offset, timestamp, key, value = item
    body = struct.pack(">bb", magic, attributes)
    if magic == 1:
        body += struct.pack(">q", timestamp)
    for part in (key, value):
        body += struct.pack(">i", -1) if part is None else struct.pack(">i", len(part)) + part
    return struct.pack(">qiI", offset, len(body) + 4, zlib.crc32(body)) + body


def wrapper(magic: int, items: Sequence[Item], codec: str, *, log_append_time_ms: int | None = None) -> bytes:
    """A compressed set; format 1 counts its inner offsets from 0 (gaps stay), format 0 keeps them."""
    first, last = items[0][0], items[-1][0]
    inner = b"".join(
        entry(magic, (offset - first if magic == 1 else offset, timestamp, key, value))
        for offset, timestamp, key, value in items
    )
    timestamp = max(item[1] for item in items) if log_append_time_ms is None else log_append_time_ms
    attributes = CODECS[codec] | (8 if log_append_time_ms is not None else 0)
    return entry(magic, (last, timestamp, None, packed(codec, inner, magic)), attributes=attributes)


def packed(codec: str, content: bytes, magic: int) -> bytes:
    if codec == "gzip":
        return gzip.compress(content)
    if codec == "snappy":
        block = bytes(cramjam.snappy.compress_raw(content))
        return b"\x82SNAPPY\x00" + struct.pack(">iii", 1, 1, len(block)) + block
    frame = lz4.frame.compress(content, block_linked=False, store_size=False)
    return frame[:6] + b"\x00" + frame[7:] if magic == 0 else frame  # the wrong checksum of Kafka's first clients
