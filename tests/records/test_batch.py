"""The header view: layout, limits, stamping."""

from __future__ import annotations

import pickle
import struct

import pytest
from kio.schema.errors import ErrorCode

from raylog.errors import code_of, kafka_error
from raylog.records import codec
from raylog.records.batch import (
    HEADER_SIZE,
    BatchView,
    TimestampType,
    assemble,
    batches,
    peek_size,
    set_log_append_time,
    stamp,
    stamped_header,
)
from raylog.records.compression import Compression
from raylog.records.corrupt import CorruptBatch, UnsupportedMagic

TIMESTAMP = 1529210278988
ONE_RECORD = bytes.fromhex(
    "0000000000000000 0000003e 00000000 02 930e983c 0000 00000000 000001640c09144c 000001640c09144c"
    "ffffffffffffffff ffff ffffffff 00000001 18 00 00 00 02 6b 0a 68656c6c6f 00"
)


def test_tv_5_v2_record_has_the_bytes_of_the_vector() -> None:
    batch = bytearray(codec.encode([(TIMESTAMP, b"k", b"hello", ())]))
    stamp(batch, 0, 0)
    assert batch == ONE_RECORD
    assert len(ONE_RECORD) == 74


def test_tv_5_v2_bytes_are_read_as_the_record_of_the_vector() -> None:
    view = BatchView(ONE_RECORD)
    assert view.has_valid_crc()
    (record,) = codec.decode(view, topic="t", partition=3)
    assert record == ("t", 3, 0, TIMESTAMP, TimestampType.CREATE_TIME, b"k", b"hello", [], 0)


def test_every_field_of_the_header_is_read_from_its_place() -> None:
    batch = assemble(
        b"payload",
        base_offset=0x0102030405060708,
        leader_epoch=0x11121314,
        attributes=0x7C,  # zstd, LogAppendTime, transactional, control, delete horizon
        last_offset_delta=9,
        base_timestamp=-5,
        max_timestamp=77,
        producer_id=0x2122232425262728,
        producer_epoch=0x3132,
        base_sequence=0x41424344,
        record_count=10,
    )
    prefix = b"before"
    view = BatchView(prefix + batch + b"after", len(prefix))
    assert batch[:8].hex() == "0102030405060708" and batch[12:16].hex() == "11121314"
    assert (view.base_offset, view.partition_leader_epoch) == (0x0102030405060708, 0x11121314)
    assert (view.magic, view.batch_length, view.size, view.end) == (2, 49 + 7, 68, 74)
    assert (view.compression, view.timestamp_type) == (Compression.ZSTD, TimestampType.LOG_APPEND_TIME)
    assert view.is_transactional and view.is_control and view.has_delete_horizon and view.has_producer_id
    assert (view.last_offset_delta, view.last_offset, view.next_offset) == (9, 0x0102030405060711, 0x0102030405060712)
    assert (view.base_timestamp, view.max_timestamp) == (-5, 77)
    assert (view.producer_id, view.producer_epoch) == (0x2122232425262728, 0x3132)
    assert (view.base_sequence, view.last_sequence, view.record_count) == (0x41424344, 0x4142434D, 10)
    assert bytes(view.records) == b"payload" and bytes(view.data) == batch
    assert view.has_valid_crc() and view.crc == int.from_bytes(batch[17:21])


@pytest.mark.parametrize(
    ("base", "delta", "last"),
    [(-1, 4, -1), (0, 0, 0), (2**31 - 1, 0, 2**31 - 1), (2**31 - 1, 1, 0), (2**31 - 3, 4, 1)],
)
def test_sequences_wrap_from_the_largest_to_zero(base: int, delta: int, last: int) -> None:
    batch = assemble(
        b"", record_count=1, last_offset_delta=delta, base_timestamp=0, max_timestamp=0, base_sequence=base
    )
    assert BatchView(batch).last_sequence == last


def test_a_flipped_bit_behind_the_crc_is_noticed_and_one_before_it_is_not() -> None:
    for position in range(len(ONE_RECORD)):
        if 8 <= position < 12 or position == 16:
            continue  # the length and the magic byte are judged when the view is made
        broken = bytearray(ONE_RECORD)
        broken[position] ^= 0x10
        assert BatchView(broken).has_valid_crc() == (position < 16), position


def test_stamping_changes_offset_and_epoch_and_keeps_the_crc() -> None:
    view = BatchView(ONE_RECORD)
    stamped = stamped_header(view, 2**40, 7) + ONE_RECORD[16:]
    in_place = bytearray(b"xx" + ONE_RECORD)
    stamp(in_place, 2**40, 7, position=2)
    assert in_place[2:] == stamped
    again = BatchView(stamped)
    assert (again.base_offset, again.partition_leader_epoch) == (2**40, 7)
    assert again.has_valid_crc() and stamped[16:] == ONE_RECORD[16:]


def test_log_append_time_reaches_every_record_and_mends_the_crc() -> None:
    batch = bytearray(b"xx" + codec.encode([(1, None, b"a", ()), (5, None, b"b", ())]) + b"tail")
    set_log_append_time(batch, 99, position=2)
    view = BatchView(batch, 2)
    assert view.has_valid_crc() and batch.endswith(b"tail")
    assert (view.timestamp_type, view.base_timestamp, view.max_timestamp) == (TimestampType.LOG_APPEND_TIME, 1, 99)
    assert [(record.timestamp, record.timestamp_type) for record in codec.decode(view)] == [(99, 1), (99, 1)]


def test_batches_walks_whole_batches_and_names_the_place_of_a_broken_one() -> None:
    three = ONE_RECORD * 3
    assert [view.position for view in batches(three)] == [0, 74, 148]
    assert [view.position for view in batches(three, 74)] == [74, 148]
    assert list(batches(b"")) == []
    with pytest.raises(CorruptBatch) as caught:
        list(batches(three[:-1]))
    assert caught.value.position == 148


@pytest.mark.parametrize("cut", [1, 11, 12, 60, 73])
def test_a_partial_tail_is_passed_over_only_on_request(cut: int) -> None:
    buffer = ONE_RECORD + ONE_RECORD[:cut]
    assert [view.position for view in batches(buffer, allow_partial_tail=True)] == [0]
    with pytest.raises(CorruptBatch):
        list(batches(buffer))


@pytest.mark.parametrize("length", [-(2**31), -12, -1, 0, 48, 63, 2**31 - 1])
def test_an_impossible_length_field_is_corrupt(length: int) -> None:
    broken = bytearray(ONE_RECORD)
    struct.pack_into(">i", broken, 8, length)
    with pytest.raises(CorruptBatch):
        BatchView(broken)


@pytest.mark.parametrize("magic", [0, 1])
def test_message_formats_before_2_are_refused_by_their_own_error(magic: int) -> None:
    old = bytearray(ONE_RECORD[:31])  # as short as a message of format 0 can be
    old[16] = magic
    with pytest.raises(UnsupportedMagic) as caught:
        BatchView(old)
    assert code_of(caught.value) is ErrorCode.unsupported_for_message_format


def test_an_unknown_magic_byte_is_corrupt() -> None:
    for magic in (3, 127, 128, 255):
        broken = bytearray(ONE_RECORD)
        broken[16] = magic
        with pytest.raises(CorruptBatch, match="magic"):
            BatchView(broken)


def test_peek_size_needs_twelve_bytes() -> None:
    assert peek_size(ONE_RECORD[:11]) is None
    assert peek_size(ONE_RECORD[:12]) == 74
    assert peek_size(b"x" + ONE_RECORD, 1) == 74


def test_a_header_alone_is_a_batch_of_no_bytes() -> None:
    """The cleaner keeps such a batch to remember a producer's last sequence."""
    empty = assemble(b"", record_count=0, last_offset_delta=3, base_timestamp=-1, max_timestamp=-1, base_offset=10)
    assert len(empty) == HEADER_SIZE
    assert BatchView(empty).next_offset == 14 and codec.decode(BatchView(empty)) == []


def test_corrupt_batches_are_caught_by_their_kafka_code_and_survive_pickling() -> None:
    with pytest.raises(kafka_error(ErrorCode.corrupt_message)) as caught:
        BatchView(b"short")
    assert code_of(caught.value) is ErrorCode.corrupt_message
    again = pickle.loads(pickle.dumps(caught.value))
    assert isinstance(caught.value, CorruptBatch) and isinstance(again, CorruptBatch)
    assert (again.reason, str(again)) == (caught.value.reason, str(caught.value))
    old = pickle.loads(pickle.dumps(UnsupportedMagic(1, 5)))
    assert (old.magic, old.position) == (1, 5)
