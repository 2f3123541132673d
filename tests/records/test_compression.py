"""The four codecs: round trips, what other implementations write, limits, broken bytes."""

from __future__ import annotations

import gzip
import struct
import tracemalloc

import cramjam
import lz4.frame
import pytest
from backports import zstd
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from raylog.errors import ConfigError, kafka_error
from raylog.records.compression import Compression, compress, decompress
from raylog.records.corrupt import CorruptBatch

CODECS = [codec for codec in Compression if codec is not Compression.NONE]
TEXT = b"the quick brown fox jumps over the lazy dog " * 3000


def unsized_zstd(content: bytes) -> bytes:
    """A frame that does not say its size, with a checksum."""
    options = {zstd.CompressionParameter.content_size_flag: 0, zstd.CompressionParameter.checksum_flag: 1}
    return zstd.compress(content, options=options)


@pytest.mark.parametrize("codec", list(Compression))
@given(content=st.binary(max_size=300), repeated=st.integers(0, 300))
def test_what_is_compressed_is_read_back(codec: Compression, content: bytes, repeated: int) -> None:
    whole = content * repeated
    assert decompress(codec, compress(codec, whole)) == whole
    assert decompress(codec, memoryview(compress(codec, memoryview(bytearray(whole))))) == whole


@pytest.mark.parametrize("codec", CODECS)
def test_compression_makes_text_smaller(codec: Compression) -> None:
    assert len(compress(codec, TEXT)) < len(TEXT) / 4


def test_snappy_is_framed_as_java_wants_it() -> None:
    framed = compress(Compression.SNAPPY, TEXT)
    assert framed[:16].hex() == "82534e415050590000000001" + "00000001"
    position, blocks = 16, []
    while position < len(framed):
        (size,) = struct.unpack_from(">i", framed, position)
        blocks.append(bytes(cramjam.snappy.decompress_raw(framed[position + 4 : position + 4 + size])))
        position += 4 + size
    assert b"".join(blocks) == TEXT
    assert [len(block) for block in blocks[:-1]] == [32768] * (len(blocks) - 1) and len(blocks) == 5


def test_lz4_is_framed_as_kafka_wants_it() -> None:
    """KIP-57: independent blocks; Kafka's reader knows no linked ones. No content size, no checksums, 64 KiB blocks."""
    info = lz4.frame.get_frame_info(compress(Compression.LZ4, TEXT))
    assert not info["block_linked"] and not info["content_checksum"] and not info["block_checksum"]
    assert info["block_size"] == 65536 and info["content_size"] == 0


def test_lz4_runs_at_its_fast_level() -> None:
    fast = lz4.frame.compress(TEXT, compression_level=0, block_linked=False, store_size=False)
    slow = lz4.frame.compress(TEXT, compression_level=9, block_linked=False, store_size=False)
    assert len(compress(Compression.LZ4, TEXT)) == len(fast) != len(slow)


@pytest.mark.parametrize(
    ("codec", "foreign"),
    [
        (Compression.GZIP, gzip.compress(TEXT[:100_000]) + gzip.compress(TEXT[100_000:])),
        (Compression.SNAPPY, bytes(cramjam.snappy.compress_raw(TEXT))),
        (Compression.LZ4, lz4.frame.compress(TEXT, store_size=True, content_checksum=True, compression_level=9)),
        (Compression.ZSTD, unsized_zstd(TEXT)),
    ],
    ids=["gzip-members", "snappy-raw", "lz4-checksum", "zstd-unsized"],
)
def test_what_other_clients_write_is_read(codec: Compression, foreign: bytes) -> None:
    assert decompress(codec, foreign) == TEXT
    with pytest.raises(CorruptBatch, match="inflate"):
        decompress(codec, foreign, max_bytes=len(TEXT) - 1)


@pytest.mark.parametrize("codec", list(Compression))
def test_the_limit_on_inflated_bytes_is_exact(codec: Compression) -> None:
    payload = compress(codec, TEXT)
    assert decompress(codec, payload, max_bytes=len(TEXT)) == TEXT
    with pytest.raises(CorruptBatch, match="inflate"):
        decompress(codec, payload, max_bytes=len(TEXT) - 1)


@pytest.mark.parametrize("codec", CODECS)
def test_a_bomb_is_refused_without_unpacking_it(codec: Compression) -> None:
    bomb = compress(codec, bytes(64 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(CorruptBatch, match="inflate"):
            decompress(codec, bomb, max_bytes=1 << 20)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 16 << 20


def test_a_claim_beyond_the_limit_is_refused_before_memory_is_taken() -> None:
    four_gigabytes = b"\xff\xff\xff\xff\x0f" + b"\x00"
    with pytest.raises(CorruptBatch, match="inflate"):
        decompress(Compression.SNAPPY, four_gigabytes)


@pytest.mark.parametrize("codec", CODECS)
def test_a_payload_that_is_cut_is_corrupt(codec: Compression) -> None:
    payload = compress(codec, TEXT)
    for end in (1, 5, len(payload) // 2, len(payload) - 1):
        with pytest.raises(CorruptBatch):
            decompress(codec, payload[:end])


def test_an_unknown_codec_is_refused_by_its_own_error() -> None:
    for number in (5, 6, 7):
        with pytest.raises(kafka_error(ErrorCode.unsupported_compression_type)):
            decompress(number, b"")
        with pytest.raises(kafka_error(ErrorCode.unsupported_compression_type)):
            compress(number, b"")


@pytest.mark.parametrize("codec", CODECS)
@given(data=st.data())
def test_mutated_payloads_are_read_or_refused(codec: Compression, data: st.DataObject) -> None:
    payload = bytearray(compress(codec, TEXT[: data.draw(st.sampled_from([50, 5_000, 70_000]))]))
    for _ in range(data.draw(st.integers(1, 4))):
        # Headers break the most, so half of the changes fall there.
        position = data.draw(st.one_of(st.integers(0, 24), st.integers(0, len(payload) - 1))) % len(payload)
        payload[position] = data.draw(st.integers(0, 255))
    try:
        assert len(decompress(codec, bytes(payload), max_bytes=1 << 20)) <= 1 << 20
    except CorruptBatch:
        pass


@pytest.mark.parametrize("codec", CODECS)
@given(payload=st.binary(max_size=200))
def test_random_payloads_are_read_or_refused(codec: Compression, payload: bytes) -> None:
    try:
        decompress(codec, payload, max_bytes=1 << 20)
    except CorruptBatch:
        pass


def test_codecs_are_named_as_in_the_configuration() -> None:
    assert [Compression.named(name) for name in ("none", "uncompressed", "gzip", "snappy", "lz4", "zstd")] == [
        0,
        0,
        1,
        2,
        3,
        4,
    ]
    for wrong in ("brotli", "", "GZIP", "producer"):
        with pytest.raises(ConfigError, match="zstd"):
            Compression.named(wrong)
