"""LZ4 frames, as Kafka's batches hold them, by cramjam. ::

    04 22 4d 18    magic
    flags u8       version 01 in bits 7–6, bit 5 independent blocks, 4 checksums of blocks, 3 the
                   content's size follows, 2 checksum of the content, 0 a dictionary's id follows
    block u8       bits 6–4: 4 to 7 for blocks of 64 KiB, 256 KiB, 1 MiB, 4 MiB at most
    [size u64]     [dictionary u32]
    checksum u8    of all that follows the magic
    blocks         size u32 (bit 31: stored as it is), that many bytes, [checksum u32]
    end            00 00 00 00, [checksum of the content u32]

``compressed`` writes independent blocks of 64 KiB, no checksums, LZ4's fast level. Kafka's reader
knows no other blocks (KIP-57).

``decompressed`` reads whatever the format allows, the first frame of a payload. cramjam takes as
much memory as the content has, whatever that is, so the frame's blocks are looked at first: none
has more than the frame's block size, nor more than 255 times its bytes. Where these bounds together
are more than the caller allows, the blocks are inflated one by one to count them. Memory then holds
one block at a time, and the last 64 KiB before it.

A block that is linked refers to the bytes before it, and cramjam takes no such dictionary. So it is
inflated as the rest of a larger block, which begins with these bytes (``_size_after``).
"""

from __future__ import annotations

import io
import struct
from typing import Any, NamedTuple

import cramjam

from raylog.records.corrupt import CorruptBatch, InflatedTooLarge

Buffer = bytes | bytearray | memoryview

_HEADER = b"\x04\x22\x4d\x18\x60\x40\x82"
_MAGIC = _HEADER[:4]
_INDEPENDENT, _BLOCK_CHECKSUMS, _CONTENT_SIZE, _CONTENT_CHECKSUM, _DICTIONARY = 0x20, 0x10, 0x08, 0x04, 0x01
_BLOCK_BYTES = 64 << 10
_BLOCK_BYTES_BY_CODE = {4: 64 << 10, 5: 256 << 10, 6: 1 << 20, 7: 4 << 20}
_STORED = 1 << 31
_END = bytes(4)
_SIZE = struct.Struct("<I")
_RATIO_MAX = 255
_DISTANCE_MAX = (1 << 16) - 1
_MATCH_MIN = 4
_LITERALS_ONLY_MAX = 8
"""A block with a reference has more bytes: a token, a distance, a token and five literals."""


class _Block(NamedTuple):
    """``size_max``: how much it can inflate to."""

    data: memoryview
    is_stored: bool
    size_max: int


class _Frame(NamedTuple):
    """``is_plain``: the header promises nothing about the content."""

    header_end: int
    end: int
    is_linked: bool
    is_plain: bool
    blocks: list[_Block]


def compressed(records: Buffer) -> bytes:
    """One frame."""
    compress = cramjam.lz4.compress_block
    view = memoryview(records)
    parts: list[Buffer] = [_HEADER]
    for start in range(0, len(view), _BLOCK_BYTES):
        block = view[start : start + _BLOCK_BYTES]
        smaller: Any = compress(block, store_size=False)
        size = len(smaller)
        if size < len(block):
            parts += (_SIZE.pack(size), smaller)
        else:
            parts += (_SIZE.pack(len(block) | _STORED), block)
    parts.append(_END)
    return b"".join(parts)


def decompressed(payload: Buffer, max_bytes: int) -> bytes:
    """The first frame's content. Raises CorruptBatch for broken bytes, InflatedTooLarge for more
    than ``max_bytes`` of content.
    """
    view = memoryview(payload)
    frame = _frame(view)
    try:
        if frame.is_plain and all(block.is_stored for block in frame.blocks):
            return _stored(view, frame, max_bytes)
        size = sum(block.size_max for block in frame.blocks)
        if size > max_bytes:
            size = _counted(frame, max_bytes)
        return _inflated(view[: frame.end], size)
    except cramjam.DecompressionError as error:
        raise CorruptBatch(f"lz4: {error}") from None


def _inflated(frame: memoryview, size_max: int) -> bytes:
    found = io.BytesIO(bytes(size_max))  # zeros that nobody writes; ``getvalue`` copies nothing
    with found.getbuffer() as room:
        size = cramjam.lz4.decompress_into(frame, room)
    found.truncate(size)
    return found.getvalue()


def _stored(view: memoryview, frame: _Frame, max_bytes: int) -> bytes:
    """What is there as it is: bytes that can't be made smaller."""
    cramjam.lz4.decompress(bytes(view[: frame.header_end]) + _END)  # whether the header is right
    if sum(len(block.data) for block in frame.blocks) > max_bytes:
        raise InflatedTooLarge.beyond(max_bytes)
    return b"".join(block.data for block in frame.blocks)


def _frame(view: memoryview) -> _Frame:
    """Where the parts of the frame are."""
    if len(view) < len(_HEADER) or view[:4] != _MAGIC:
        raise CorruptBatch("lz4: no frame begins here")
    flags = view[4]
    block_bytes_max = _BLOCK_BYTES_BY_CODE.get(view[5] >> 4)
    if block_bytes_max is None:
        raise CorruptBatch(f"lz4: no block size has the number {view[5] >> 4}")
    position = 7 + (8 if flags & _CONTENT_SIZE else 0) + (4 if flags & _DICTIONARY else 0)
    header_end = position
    after_block = 4 if flags & _BLOCK_CHECKSUMS else 0
    after_blocks = 4 if flags & _CONTENT_CHECKSUM else 0
    blocks = []
    while True:
        size = _size_at(view, position)
        position += 4
        if not size:
            break
        is_stored, size = bool(size & _STORED), size & ~_STORED
        if size > block_bytes_max:
            raise CorruptBatch(f"lz4: a block of {size} bytes where {block_bytes_max} are the most")
        data = view[position : position + size]
        blocks.append(_Block(data, is_stored, size if is_stored else min(block_bytes_max, size * _RATIO_MAX)))
        position += size + after_block
    end = position + after_blocks  # cramjam refuses a frame that ends before
    is_plain = not flags & (_BLOCK_CHECKSUMS | _CONTENT_SIZE | _CONTENT_CHECKSUM)
    return _Frame(header_end, end, not flags & _INDEPENDENT, is_plain, blocks)


def _size_at(view: memoryview, position: int) -> int:
    if position + 4 > len(view):
        raise CorruptBatch("lz4: ends inside its frame")
    size: int = _SIZE.unpack_from(view, position)[0]
    return size


def _counted(frame: _Frame, max_bytes: int) -> int:
    """How much the blocks inflate to."""
    size, before = 0, b""
    for block in frame.blocks:
        content = bytes(block.data) if block.is_stored else _content(block, before)
        size += len(content)
        if size > max_bytes:
            raise InflatedTooLarge.beyond(max_bytes)
        if frame.is_linked:
            before = (before + content)[-_DISTANCE_MAX:]
    return size


def _content(block: _Block, before: bytes) -> bytes:
    """What the block inflates to; ``before``: the bytes that it may refer to.

    The larger block has a first sequence whose output ends with those bytes: the literals are their
    last four and the others, and the match repeats the literals' first four.
    """
    if not before or len(block.data) <= _LITERALS_ONLY_MAX:
        return _inflated_block(block.data, block.size_max)
    before = before.rjust(_MATCH_MIN, b"\0")
    literals = before[-_MATCH_MIN:] + before[:-_MATCH_MIN]
    length = len(literals)
    token = bytes([min(length, 15) << 4])
    longer = b"\xff" * ((length - 15) // 255) + bytes([(length - 15) % 255]) if length >= 15 else b""
    sequence = token + longer + literals + length.to_bytes(2, "little")
    whole = _inflated_block(sequence + bytes(block.data), length + _MATCH_MIN + block.size_max)
    return whole[length + _MATCH_MIN :]


def _inflated_block(block: Buffer, size_max: int) -> bytes:
    room = bytearray(size_max)
    size = cramjam.lz4.decompress_block_into(block, room)
    return bytes(memoryview(room)[:size])
