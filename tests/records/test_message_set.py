"""Messages of the formats 0 and 1: the vector's bytes, an independent client's, wrappers of every codec, and bytes that lie."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import pytest
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder
from hypothesis import given
from hypothesis import strategies as st
from old_messages import CODECS, entry, packed, wrapper

from raylog.records.batch import BatchView
from raylog.records.codec import light_records
from raylog.records.corrupt import CorruptBatch
from raylog.records.message_set import Message, batch_of, message_of, records_of, with_right_lz4_checksum

T = 1529210278988
V0 = bytes.fromhex("0000000000000000 00000013 87a77ab2 00 00 ffffffff 00000005 68656c6c6f")
V1 = bytes.fromhex("0000000000000000 0000001c 4d46bea7 01 00 000001640c09144c 00000001 6b 00000005 68656c6c6f")
V2 = bytes.fromhex(
    "0000000000000000 0000003e 00000000 02 930e983c 0000 00000000 000001640c09144c 000001640c09144c ffffffffffffffff"
    " ffff ffffffff 00000001 18 00 00 00 02 6b 0a 68656c6c6f 00"
)
GOLDEN = (Path(__file__).parent / "golden" / "message-sets.txt").read_text().splitlines()[1:]
ITEMS = [(40, T, b"k", b"a" * 200), (41, T + 5, None, b"b" * 200), (43, T - 5, b"k", None), (44, T, b"", b"")]


def plain(batch: bytes) -> list[tuple[int, int, bytes | None, bytes | None]]:
    view = BatchView(batch)
    assert view.has_valid_crc() and view.size == len(batch)
    return [(each.offset, each.timestamp, each.key, each.value) for each in light_records(view)]


def test_tv_5_messages_of_formats_0_and_1_are_read_as_the_records_of_the_vector() -> None:
    assert message_of(V0) == Message(0, 0, 0, -1, None, b"hello")
    assert message_of(V1) == Message(0, 1, 0, T, b"k", b"hello")
    assert (entry(0, (0, -1, None, b"hello")), entry(1, (0, T, b"k", b"hello"))) == (V0, V1), "the tests' own encoder"


def test_tv_5_the_message_of_format_1_becomes_the_batch_of_the_vector() -> None:
    unstamped = V2[:12] + b"\xff\xff\xff\xff" + V2[16:]  # no leader epoch: none was known then
    assert batch_of(message_of(V1)) == unstamped
    assert plain(batch_of(message_of(V0))) == [(0, -1, None, b"hello")]


@pytest.mark.parametrize("magic", [0, 1])
def test_what_an_independent_client_writes_is_read(magic: int) -> None:
    builder = LegacyRecordBatchBuilder(magic=magic, compression_type=0, batch_size=1 << 20)
    builder.append(0, T, b"key", b"value")
    assert message_of(bytes(builder.build())) == Message(0, magic, 0, T if magic else -1, b"key", b"value")


@pytest.mark.parametrize("line", GOLDEN, ids=lambda line: "-".join(line.split()[:3]))
def test_what_apache_kafka_wrote_becomes_batches_that_say_the_same(line: str) -> None:
    magic, codec, kind, content = line.split()
    data, position, found, codecs = bytes.fromhex(content), 0, [], set()
    while position < len(data):
        size = 12 + struct.unpack_from(">i", data, position + 8)[0]
        batch = batch_of(message_of(data[position : position + size]))
        found += plain(batch)
        view = BatchView(batch)
        codecs.add(view.compression)
        assert view.timestamp_type == (kind == "LogAppendTime") and view.last_offset == found[-1][0]
        position += size
    times = [T, T + 2, T + 1, T] if magic == "1" else [-1] * 4
    if kind == "LogAppendTime":
        times = [1_600_000_000_000] * 4
    value = b"the same value again and again and again and again"
    keys, values = [b"k", None, b"k", b""], [value, value, None, b""]
    assert found == list(zip([100, 101, 102, 107], times, keys, values, strict=True))
    assert codecs == {CODECS.get(codec, 0)}


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("magic", [0, 1])
def test_a_wrapper_becomes_one_batch_with_the_same_offsets_and_codec(magic: int, codec: str) -> None:
    message = message_of(wrapper(magic, ITEMS, codec))
    batch = batch_of(message)
    assert plain(batch) == [(offset, ts if magic else -1, key, value) for offset, ts, key, value in ITEMS]
    view = BatchView(batch)
    assert (view.base_offset, view.last_offset, view.compression) == (40, 44, CODECS[codec])
    assert (view.partition_leader_epoch, view.producer_id, view.base_sequence) == (-1, -1, -1)
    assert view.max_timestamp == (T + 5 if magic else -1) and view.timestamp_type == 0


def test_the_time_of_the_servers_clock_is_that_of_all_messages_in_a_wrapper() -> None:
    view = BatchView(batch_of(message_of(wrapper(1, ITEMS, "gzip", log_append_time_ms=T + 99))))
    assert (view.timestamp_type, view.max_timestamp) == (1, T + 99)
    assert {each.timestamp for each in light_records(view)} == {T + 99}
    alone = BatchView(batch_of(message_of(entry(1, (7, T, None, b"x"), attributes=8))))
    assert (alone.timestamp_type, alone.max_timestamp, alone.base_offset) == (1, T, 7)


def test_messages_without_a_timestamp_among_others_keep_having_none() -> None:
    items = [(0, -1, None, b"none"), (1, T, None, b"some"), (2, -1, None, b"none again")]
    assert plain(batch_of(message_of(wrapper(1, items, "gzip")))) == items
    stamped = BatchView(batch_of(message_of(wrapper(1, items, "gzip", log_append_time_ms=-1))))
    assert (stamped.timestamp_type, stamped.max_timestamp) == (1, -1)


def test_relative_offsets_count_back_from_the_wrappers() -> None:
    message = message_of(wrapper(1, ITEMS, "gzip"))
    assert [each.offset for each in records_of(message._replace(offset=1044))] == [1040, 1041, 1043, 1044]
    with pytest.raises(CorruptBatch, match="holds 40 to 44"):
        records_of(message_of(wrapper(0, ITEMS, "gzip"))._replace(offset=45))


@pytest.mark.parametrize("bit", range(8 * len(V1) - 8 * 12))
def test_a_flipped_bit_behind_the_offset_and_size_is_found(bit: int) -> None:
    flipped = bytearray(V1)
    flipped[12 + bit // 8] ^= 1 << bit % 8
    with pytest.raises(CorruptBatch):
        message_of(flipped)


def signed(body: bytes, offset: int = 0) -> bytes:
    return struct.pack(">qiI", offset, len(body) + 4, zlib.crc32(body)) + body


@pytest.mark.parametrize(
    "broken",
    [
        V1[:-1],
        V1 + b"\x00",
        V2,
        b"",
        signed(b"\x00\x00" + struct.pack(">ii", -2, 0)),
        signed(b"\x00\x00" + struct.pack(">ii", -1, 1 << 30)),
        signed(b"\x00\x00" + struct.pack(">ii", 5, 0)),
        signed(b"\x01\x00" + struct.pack(">ii", -1, -1)),
        signed(b"\x00\x00" + struct.pack(">ii", -1, -1) + b"more"),
    ],
)
def test_what_is_no_message_is_refused(broken: bytes) -> None:
    with pytest.raises(CorruptBatch):
        message_of(broken)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "no messages"),
        (V1, "holds one of format 1"),
        (V0[:20], "an inner message"),
        (entry(0, (9, 0, None, b"")) + entry(0, (9, 0, None, b"")), "do not ascend"),
        (entry(0, (0, 0, None, b"x"), attributes=1), "another wrapper"),
        (entry(0, (3, 0, None, b"x")), "holds 3 to 3"),
    ],
)
def test_a_wrapper_that_lies_is_refused(content: bytes, reason: str) -> None:
    message = message_of(entry(0, (9, -1, None, packed("gzip", content, 0)), attributes=1))
    with pytest.raises(CorruptBatch, match=reason):
        records_of(message)


def test_a_wrapper_without_a_value_or_of_an_unknown_codec_is_refused() -> None:
    for attributes, value in ((1, None), (4, b"x"), (7, b"x"), (1, b"no gzip")):
        with pytest.raises(CorruptBatch):
            batch_of(message_of(entry(1, (0, T, None, value), attributes=attributes)))


def test_a_wrapper_that_inflates_too_far_is_refused() -> None:
    message = message_of(wrapper(1, [(0, T, None, bytes(100_000))], "gzip"))
    with pytest.raises(CorruptBatch, match="inflate"):
        batch_of(message, max_inflated_bytes=50_000)


def test_the_checksum_of_an_lz4_frame_is_mended_and_nothing_else() -> None:
    for content in (b"", b"x" * 100):
        right = packed("lz4", content, 1)
        assert with_right_lz4_checksum(packed("lz4", content, 0)) == right == with_right_lz4_checksum(right)
    assert with_right_lz4_checksum(b"abc") == b"abc" and with_right_lz4_checksum(b"\x04\x22\x4d\x18\xff\x00\x00") != b""


@given(st.binary(max_size=120), st.integers(0, 1), st.sampled_from(sorted(CODECS)))
def test_whatever_a_wrapper_holds_is_read_or_refused(content: bytes, magic: int, codec: str) -> None:
    message = message_of(entry(magic, (5, T, None, packed(codec, content, magic)), attributes=CODECS[codec]))
    try:
        batch = batch_of(message)
    except CorruptBatch:
        return
    assert BatchView(batch).has_valid_crc()
