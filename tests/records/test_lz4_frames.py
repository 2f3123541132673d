"""LZ4 frames beside those of the lz4 package: the same bytes are written, the same frames are read, and the same are
refused.
"""

from __future__ import annotations

import struct
from typing import Any

import lz4.frame
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from raylog.records.corrupt import CorruptBatch, InflatedTooLarge
from raylog.records.lz4_frames import compressed, decompressed

TEXT = b"the quick brown fox jumps over the lazy dog " * 6_000  # 264 KB
UNBOUNDED = 1 << 28
BLOCK_BYTES = 64 << 10


def noise(size: int) -> bytes:
    """Bytes that can't be made smaller, the same each time."""
    value, found = 1, bytearray()
    while len(found) < size:
        value = value * 6364136223846793005 + 1442695040888963407 & (1 << 64) - 1
        found += (value >> 16).to_bytes(6, "little")
    return bytes(found[:size])


def known(frame: bytes, max_bytes: int = UNBOUNDED) -> bytes | None:
    """What the lz4 package reads; None where it refuses the frame or the limit is passed."""
    inflater = lz4.frame.LZ4FrameDecompressor()
    try:
        content: bytes = inflater.decompress(frame, max_length=max_bytes + 1)
    except (RuntimeError, EOFError):
        return None
    return content if inflater.eof and len(content) <= max_bytes else None


def read(frame: bytes, max_bytes: int = UNBOUNDED) -> bytes | None:
    try:
        return decompressed(frame, max_bytes)
    except CorruptBatch:
        return None


SOURCES = (TEXT, noise(150_000), bytes(150_000))


@st.composite
def contents(draw: st.DrawFn) -> bytes:
    """Of up to 300 KB: text, noise, zeros, and pieces of all three, around the sizes of blocks too."""
    sizes = st.one_of(st.integers(0, 40), st.integers(0, 150_000), st.integers(BLOCK_BYTES - 3, BLOCK_BYTES + 3))
    pieces = draw(st.lists(st.tuples(st.sampled_from(range(len(SOURCES))), sizes), max_size=3))
    return b"".join(SOURCES[source][:size] for source, size in pieces)


OPTIONS = st.fixed_dictionaries(
    {
        "block_size": st.sampled_from((4, 5, 6, 7)),
        "block_linked": st.booleans(),
        "block_checksum": st.booleans(),
        "content_checksum": st.booleans(),
        "store_size": st.booleans(),
        "compression_level": st.sampled_from((0, 9)),
    }
)


@given(content=contents())
@example(content=b"")
@example(content=TEXT)
@example(content=noise(3 * BLOCK_BYTES + 1))
def test_the_bytes_written_are_those_of_the_lz4_package(content: bytes) -> None:
    expected = lz4.frame.compress(
        content, compression_level=0, block_linked=False, block_size=lz4.frame.BLOCKSIZE_MAX64KB, store_size=False
    )
    assert compressed(content) == expected == compressed(memoryview(bytearray(content)))


@given(content=contents(), options=OPTIONS)
def test_every_frame_is_read_whatever_its_options(content: bytes, options: dict[str, Any]) -> None:
    frame = lz4.frame.compress(content, **options)
    assert decompressed(frame, UNBOUNDED) == content
    assert decompressed(memoryview(bytearray(frame)), len(content)) == content
    if content:
        with pytest.raises(InflatedTooLarge, match=f"more than the {len(content) - 1} bytes"):
            decompressed(frame, len(content) - 1)


@given(pieces=st.lists(st.binary(max_size=12), min_size=1, max_size=40), options=OPTIONS)
def test_blocks_of_a_few_bytes_are_read(pieces: list[bytes], options: dict[str, Any]) -> None:
    """A producer that flushes after each record writes such; linked ones refer to many blocks before."""
    options = {name: value for name, value in options.items() if name != "store_size"}
    with lz4.frame.LZ4FrameCompressor(**options, auto_flush=True) as compressor:
        frame = compressor.begin() + b"".join(map(compressor.compress, pieces * 3)) + compressor.flush()
    content = b"".join(pieces * 3)
    assert decompressed(frame, UNBOUNDED) == content == decompressed(frame, len(content))


@pytest.mark.parametrize("distance", [60_000, 65_535, 65_536])
def test_a_linked_block_refers_to_the_64_KiB_before_it(distance: int) -> None:
    content = noise(distance) + noise(distance)[:30_000]
    frame = lz4.frame.compress(content, block_size=4, block_linked=True, compression_level=9)
    assert (len(frame) < len(content)) == (distance < 65_536)
    assert decompressed(frame, len(content)) == content


@given(data=st.data(), content=contents(), options=OPTIONS)
def test_what_the_lz4_package_refuses_is_refused(data: st.DataObject, content: bytes, options: dict[str, Any]) -> None:
    frame = bytearray(lz4.frame.compress(content[:70_000], **options))
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.one_of(st.integers(0, 24), st.integers(0, len(frame) - 1))) % len(frame)
        frame[position] = data.draw(st.integers(0, 255))
    mutated = bytes(frame[: data.draw(st.one_of(st.just(len(frame)), st.integers(0, len(frame))))])
    if mutated[1:4] == b"\x2a\x4d\x18":
        return  # a frame to skip: the package reads it as no content
    assert read(mutated) == known(mutated)
    limit = data.draw(st.integers(0, 140_000))
    assert read(mutated, limit) == known(mutated, limit)


@pytest.mark.parametrize("name", ["block_checksum", "content_checksum"])
def test_a_wrong_checksum_is_corrupt(name: str) -> None:
    options = {"block_checksum": False, "content_checksum": False} | {name: True}
    for content in (TEXT, noise(1_000)):
        frame = bytearray(lz4.frame.compress(content, store_size=False, **options))
        frame[-6 if name == "block_checksum" else -1] ^= 1
        with pytest.raises(CorruptBatch, match=r"(?i)checksum"):
            decompressed(bytes(frame), UNBOUNDED)


def test_a_wrong_checksum_of_the_header_is_corrupt() -> None:
    for content in (TEXT, noise(1_000)):
        frame = bytearray(compressed(content))
        frame[6] ^= 1
        with pytest.raises(CorruptBatch, match=r"(?i)checksum"):
            decompressed(bytes(frame), UNBOUNDED)


def test_the_first_of_several_frames_is_read() -> None:
    assert decompressed(compressed(TEXT) + compressed(b"another one"), UNBOUNDED) == TEXT
    assert decompressed(compressed(b"a") + b"whatever", UNBOUNDED) == b"a"


def test_a_lie_about_the_contents_size_is_corrupt() -> None:
    frame = bytearray(lz4.frame.compress(TEXT, store_size=True))
    frame[6:14] = struct.pack("<Q", 1 << 60)
    with pytest.raises(CorruptBatch):
        decompressed(bytes(frame), UNBOUNDED)


def test_many_blocks_that_could_be_large_are_counted() -> None:
    """Their bounds together are beyond the limit, what they hold isn't; the last one brings it beyond."""
    with lz4.frame.LZ4FrameCompressor(block_size=7, block_linked=False, auto_flush=True) as compressor:
        blocks = [compressor.begin()] + [compressor.compress(b"%016d" % number + bytes(64)) for number in range(1_000)]
        frame = b"".join(blocks) + compressor.flush()
    assert len(decompressed(frame, 80_000)) == 80_000
    with pytest.raises(InflatedTooLarge):
        decompressed(frame, 79_999)


def test_a_block_larger_than_the_frame_allows_is_corrupt() -> None:
    stored = struct.pack("<I", (BLOCK_BYTES + 1) | 1 << 31) + noise(BLOCK_BYTES + 1)
    frame = compressed(b"")[:7] + stored + bytes(4)
    assert known(frame) is None
    with pytest.raises(CorruptBatch, match="65537 bytes where 65536"):
        decompressed(frame, UNBOUNDED)


@pytest.mark.parametrize("content", [TEXT[:500], noise(100)])
@pytest.mark.parametrize("checksum", [False, True])
def test_a_frame_that_is_cut_anywhere_is_corrupt(content: bytes, checksum: bool) -> None:
    frame = lz4.frame.compress(content, content_checksum=checksum, store_size=False)
    for end in range(len(frame)):
        assert known(frame[:end]) is None
        with pytest.raises(CorruptBatch):
            decompressed(frame[:end], UNBOUNDED)
        with pytest.raises(CorruptBatch):
            decompressed(frame[:end], len(content))


def test_a_linked_block_of_a_few_literals_is_counted() -> None:
    """LZ4 stores such a block as it is, but the format allows it."""
    header = lz4.frame.compress(TEXT, block_size=4, block_linked=True, store_size=False)[:7]
    stored, literals = noise(100), b"\x30abc"
    blocks = struct.pack("<I", len(stored) | 1 << 31) + stored + struct.pack("<I", len(literals)) + literals
    frame = header + blocks + bytes(4)
    assert known(frame) == stored + b"abc" == decompressed(frame, len(stored) + 3)
    with pytest.raises(InflatedTooLarge):
        decompressed(frame, len(stored) + 2)
