"""The four codecs of Kafka, each over the whole of a batch's records.

====== ====================================================================================================================
gzip   one member, zlib's default level; several members are read as one
snappy xerial framing: ``82 53 4e 41 50 50 59 00``, version and lowest compatible version (i32 1 each), then per block of 32 KiB
       its compressed size (i32) and raw snappy; a payload without that magic is read as one raw block
lz4    one frame, independent blocks of 64 KiB, no checksums, the fast level (``lz4_frames``)
zstd   one frame, level 3
====== ====================================================================================================================

``decompress`` never gives more than ``max_bytes``: whatever a hostile batch claims, memory stays
bounded by it. Everything that a codec finds wrong is a ``CorruptBatch``; codec numbers 5–7 are
UNSUPPORTED_COMPRESSION_TYPE.
"""

from __future__ import annotations

import struct
import sys
import threading
import zlib
from enum import IntEnum

import cramjam
from kio.schema.errors import ErrorCode

from raylog.errors import ConfigError, kafka_error
from raylog.records import lz4_frames
from raylog.records.corrupt import CorruptBatch, InflatedTooLarge

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

Buffer = bytes | bytearray | memoryview

INFLATED_BYTES_MAX = 256 << 20
"""The limit that callers take who have none of their own."""

_GZIP_WINDOW = 31  # zlib's way to say: a gzip header and trailer around it
_SNAPPY_HEADER = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
_SNAPPY_MAGIC_SIZE = 8
_SNAPPY_BLOCK_BYTES = 32 << 10
_BLOCK_SIZE = struct.Struct(">i")
_ZSTD_LEVEL = 3
_zstd_of_thread = threading.local()  # a compressor must not be used by two threads at once


class Compression(IntEnum):
    """The codec's number in the batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    @classmethod
    def named(cls, name: str) -> Compression:
        """By the name in ``compression.type`` ("none" or "uncompressed", "gzip", …); ConfigError
        for another one.
        """
        if name == "uncompressed":
            return cls.NONE
        try:
            return cls[name.upper()] if name == name.lower() else cls[""]
        except KeyError:
            known = ", ".join(member.name.lower() for member in cls)
            raise ConfigError(f"unknown compression {name!r}; use one of {known}") from None


def compress(compression: int, records: Buffer) -> bytes:
    match compression:
        case Compression.NONE:
            return bytes(records)
        case Compression.GZIP:
            return zlib.compress(records, wbits=_GZIP_WINDOW)
        case Compression.SNAPPY:
            return _compress_snappy(records)
        case Compression.LZ4:
            return lz4_frames.compressed(records)
        case Compression.ZSTD:
            compressor = getattr(_zstd_of_thread, "compressor", None)
            if compressor is None:
                compressor = _zstd_of_thread.compressor = zstd.ZstdCompressor(level=_ZSTD_LEVEL)
            return bytes(compressor.compress(records, compressor.FLUSH_FRAME))
    raise _unsupported(compression)


def decompress(compression: int, payload: Buffer, *, max_bytes: int = INFLATED_BYTES_MAX) -> bytes:
    """The records of a batch. Raises CorruptBatch for broken bytes, InflatedTooLarge for more than
    ``max_bytes`` of records.
    """
    match compression:
        case Compression.NONE:
            if len(payload) > max_bytes:
                raise InflatedTooLarge.beyond(max_bytes)
            return bytes(payload)
        case Compression.GZIP:
            return _decompress_gzip(payload, max_bytes)
        case Compression.SNAPPY:
            return _decompress_snappy(bytes(payload), max_bytes)
        case Compression.LZ4:
            return lz4_frames.decompressed(payload, max_bytes)
        case Compression.ZSTD:
            return _decompress_zstd(payload, max_bytes)
    raise _unsupported(compression)


def _unsupported(compression: int) -> Exception:
    return kafka_error(ErrorCode.unsupported_compression_type)(f"no codec has the number {compression}")


def _decompress_gzip(payload: Buffer, max_bytes: int) -> bytes:
    parts: list[bytes] = []
    room = max_bytes
    rest: Buffer = payload
    while True:
        inflater = zlib.decompressobj(_GZIP_WINDOW)
        try:
            part = inflater.decompress(rest, room + 1)
        except zlib.error as error:
            raise CorruptBatch(f"gzip: {error}") from None
        room -= len(part)
        if room < 0:
            raise InflatedTooLarge.beyond(max_bytes)
        parts.append(part)
        if not inflater.eof:
            raise CorruptBatch("gzip: ends inside a member")
        rest = inflater.unused_data
        if not rest:
            return parts[0] if len(parts) == 1 else b"".join(parts)


def _compress_snappy(records: Buffer) -> bytes:
    parts = [_SNAPPY_HEADER]
    view = memoryview(records)
    for start in range(0, len(view), _SNAPPY_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _SNAPPY_BLOCK_BYTES]))
        parts += (_BLOCK_SIZE.pack(len(block)), block)
    return b"".join(parts)


def _decompress_snappy(payload: bytes, max_bytes: int) -> bytes:
    if payload[:_SNAPPY_MAGIC_SIZE] != _SNAPPY_HEADER[:_SNAPPY_MAGIC_SIZE]:
        return _decompress_snappy_block(payload, max_bytes, max_bytes)
    parts: list[bytes] = []
    room = max_bytes
    position = len(_SNAPPY_HEADER)
    while position < len(payload):
        if len(payload) - position < _BLOCK_SIZE.size:
            raise CorruptBatch("snappy: ends inside a block's size")
        size = _BLOCK_SIZE.unpack_from(payload, position)[0]
        position += _BLOCK_SIZE.size
        if not 0 <= size <= len(payload) - position:
            raise CorruptBatch(f"snappy: a block of {size} bytes where {len(payload) - position} are")
        part = _decompress_snappy_block(payload[position : position + size], room, max_bytes)
        room -= len(part)
        parts.append(part)
        position += size
    return b"".join(parts)


def _decompress_snappy_block(block: bytes, room: int, max_bytes: int) -> bytes:
    try:
        if cramjam.snappy.decompress_raw_len(block) > room:
            raise InflatedTooLarge.beyond(max_bytes)
        return bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as error:
        raise CorruptBatch(f"snappy: {error}") from None


def _decompress_zstd(payload: Buffer, max_bytes: int) -> bytes:
    inflater = zstd.ZstdDecompressor()
    try:
        # The frame's own size could be a lie, so it is not what bounds the memory.
        records = bytes(inflater.decompress(payload, max_bytes + 1))
    except zstd.ZstdError as error:
        raise CorruptBatch(f"zstd: {error}") from None
    if len(records) > max_bytes:
        raise InflatedTooLarge.beyond(max_bytes)
    if not inflater.eof:
        raise CorruptBatch("zstd: ends inside its frame")
    return records
