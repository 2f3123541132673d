"""The C codec against its slow twin, the fast path against the ordinary one, and both against hostile bytes."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from raylog.errors import kafka_error
from raylog.records import codec, pure
from raylog.records.batch import HEADER_SIZE, BatchView, assemble, stamp
from raylog.records.compression import Compression
from raylog.records.corrupt import CorruptBatch
from raylog.records.varint import encode_varint

I64 = st.integers(-(2**63), 2**63 - 1)
CONTENT = st.one_of(st.none(), st.binary(max_size=20), st.binary(min_size=60, max_size=140))
HEADERS = st.lists(st.tuples(st.text(max_size=5), CONTENT), max_size=3)
KEY_VALUE = st.tuples(st.one_of(I64, st.integers(-1, 2**42)), CONTENT, CONTENT, HEADERS)
RECORDS = st.lists(KEY_VALUE, min_size=1, max_size=12)


def test_a_first_record_without_a_timestamp_keeps_none() -> None:
    batch = codec.encode([(-1, None, b"a", []), (5, None, b"b", [])])
    assert [record.timestamp for record in codec.decode(BatchView(batch))] == [-1, 5]


@given(
    RECORDS,
    st.sampled_from(Compression),
    st.integers(0, 2**62),
    st.integers(-1, 2**15 - 1),
    st.integers(-1, 2**31 - 1),
    st.booleans(),
)
def test_both_codecs_write_the_same_bytes(
    records: list[pure.KeyValue], compression: int, producer_id: int, epoch: int, sequence: int, transactional: bool
) -> None:
    batch, oracle = (
        encode(
            records,
            compression=compression,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            is_transactional=transactional,
        )
        for encode in (codec.encode, pure.encode)
    )
    assert batch == oracle
    if records[0][0] == -1:
        with pytest.raises(kafka_error(ErrorCode.invalid_timestamp)):
            codec.RecordBatchBuilder().append(timestamp_ms=-1)
        return
    builder = codec.RecordBatchBuilder(compression=compression, is_transactional=transactional)
    for timestamp_ms, key, value, headers in records:
        assert builder.append(timestamp_ms=timestamp_ms, key=key, value=value, headers=headers)
    assert batch == builder.build(producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
    assert BatchView(batch).has_valid_crc()


@given(
    RECORDS,
    st.sampled_from(Compression),
    st.integers(0, 2**62),
    st.integers(-1, 2**31 - 1),
    st.one_of(st.none(), I64),
)
def test_both_codecs_read_what_was_written(
    records: list[pure.KeyValue], compression: int, base_offset: int, leader_epoch: int, append_time: int | None
) -> None:
    batch = pure.encode(
        records,
        compression=compression,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        log_append_time_ms=append_time,
    )
    view = BatchView(batch)
    read = codec.decode(view, topic="t", partition=1)
    assert read == pure.decode(view, topic="t", partition=1)
    assert read == [
        ("t", 1, base_offset + delta, timestamp if append_time is None else append_time, append_time is not None)
        + (key, value, headers, leader_epoch)
        for delta, (timestamp, key, value, headers) in enumerate(records)
    ]
    assert codec.decode_values(view) == [value for _, _, value, _ in records]


@given(st.lists(st.binary(max_size=150), min_size=1, max_size=80), I64, st.sampled_from(Compression), st.booleans())
def test_the_fast_path_writes_the_bytes_of_the_ordinary_one(
    values: list[bytes], timestamp_ms: int, compression: int, transactional: bool
) -> None:
    fast = codec.encode_values(
        values,
        timestamp_ms=timestamp_ms,
        compression=compression,
        producer_id=7,
        producer_epoch=1,
        base_sequence=5,
        is_transactional=transactional,
    )
    assert fast == codec.encode(
        [(timestamp_ms, None, value, ()) for value in values],
        compression=compression,
        producer_id=7,
        producer_epoch=1,
        base_sequence=5,
        is_transactional=transactional,
    )


@pytest.mark.parametrize("count", [1, 63, 64, 65, 8191, 8192, 8193, 20_000])
@pytest.mark.parametrize("uniform", [True, False])
def test_the_fast_path_is_right_where_the_size_of_an_offset_changes(count: int, uniform: bool) -> None:
    values = [b"x" * (55 if uniform else index % 200) for index in range(count)]
    assert codec.encode_values(values, timestamp_ms=1) == codec.encode([(1, None, value, ()) for value in values])


def test_the_fast_path_takes_any_bytes_like_value_and_more_lengths_than_it_remembers() -> None:
    odd: list[Any] = [b"a", bytearray(b"bc"), memoryview(b"def")]
    assert codec.encode_values(odd, timestamp_ms=1) == codec.encode_values([b"a", b"bc", b"def"], timestamp_ms=1)
    pieces = codec._EncodedPieces(lambda length: b"%d" % length)
    assert [pieces[length] for length in range(70_000)] == [b"%d" % length for length in range(70_000)]
    assert len(pieces) <= 1 << 16


def test_null_and_empty_are_different() -> None:
    records: list[pure.KeyValue] = [(1, None, b"", [("h", None)]), (1, b"", None, [("", b"")])]
    view = BatchView(codec.encode(records))
    assert [(r.key, r.value, r.headers) for r in codec.decode(view)] == [record[1:] for record in records]


def test_timestamps_may_go_back_and_be_negative() -> None:
    batch = codec.encode([(1000, None, b"a", ()), (-5, None, b"b", ()), (999, None, b"c", ())])
    view = BatchView(batch)
    assert (view.base_timestamp, view.max_timestamp) == (1000, 1000)
    assert [record.timestamp for record in codec.decode(view)] == [1000, -5, 999]


def test_a_builder_stops_at_its_limit_but_takes_a_first_record_of_any_size() -> None:
    builder = codec.RecordBatchBuilder(max_bytes=200)
    assert builder.append(timestamp_ms=1, value=b"x" * 500)
    assert not builder.append(timestamp_ms=1, value=b"")
    assert (builder.record_count, len(codec.decode(BatchView(builder.build())))) == (1, 1)
    small = codec.RecordBatchBuilder(max_bytes=200)
    while small.append(timestamp_ms=1, value=b"x" * 20):
        pass
    assert small.size <= 200 < small.size + codec.encoded_size(None, b"x" * 20)
    assert len(small.build()) == small.size


def test_a_cleaner_can_leave_gaps_between_offsets() -> None:
    builder = codec.RecordBatchBuilder()
    for delta in (0, 5, 6, 100):
        assert builder.append(timestamp_ms=1, key=b"k", value=b"v", offset_delta=delta)
    batch = bytearray(builder.build())
    stamp(batch, 1000, 3)
    view = BatchView(batch)
    assert [record.offset for record in codec.decode(view)] == [1000, 1005, 1006, 1100]
    assert (view.last_offset, view.record_count) == (1100, 4)


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.LZ4])
def test_a_batch_beyond_the_limit_is_too_large_in_its_compressed_size(compression: Compression) -> None:
    values = [b"x" * 100] * 100
    size = len(codec.encode_values(values, timestamp_ms=1, compression=compression))
    records = [(1, None, value, ()) for value in values]
    assert codec.encode_values(values, timestamp_ms=1, compression=compression, max_bytes=size)
    assert codec.encode(records, compression=compression, max_bytes=size)
    with pytest.raises(kafka_error(ErrorCode.message_too_large), match=str(size)):
        codec.encode_values(values, timestamp_ms=1, compression=compression, max_bytes=size - 1)
    with pytest.raises(kafka_error(ErrorCode.message_too_large), match=str(size)):
        codec.encode(records, compression=compression, max_bytes=size - 1)


@pytest.mark.parametrize("compression", list(Compression))
def test_records_that_do_not_shrink_are_sent_uncompressed(compression: Compression) -> None:
    view = BatchView(codec.encode_values([b"x"], timestamp_ms=1, compression=compression))
    assert view.compression == Compression.NONE


@given(RECORDS, st.sampled_from(Compression), st.sampled_from(Compression))
def test_recompressing_changes_nothing_but_the_codec(records: list[pure.KeyValue], first: int, second: int) -> None:
    batch = bytearray(codec.encode(records, compression=first, producer_id=3, producer_epoch=1, base_sequence=9))
    stamp(batch, 77, 5)
    again = codec.recompress(BatchView(batch), second)
    expected = bytearray(codec.encode(records, compression=second, producer_id=3, producer_epoch=1, base_sequence=9))
    stamp(expected, 77, 5)
    assert again == expected


@pytest.mark.parametrize("length", [0, 1, 63, 64, 1000])
@pytest.mark.parametrize("counts", [(1, 63, 64, 65, 3), (200, 7), (8193, 8191, 8192)])
def test_values_of_one_length_become_what_encode_makes_of_them(length: int, counts: tuple[int, ...]) -> None:
    for count in counts:  # the pieces around the values are kept from batch to batch
        values = [bytes([number % 251]) * length for number in range(count)]
        expected = codec.encode([(5, None, value, ()) for value in values])
        assert codec.encode_values(values, timestamp_ms=5, length=length) == expected
        assert codec.encode_values(values, timestamp_ms=5) == expected


@given(st.integers(0, 300), st.integers(1, 90), st.integers(HEADER_SIZE, 2000))
def test_cut_values_of_one_length_keeps_to_the_limit(length: int, count: int, max_bytes: int) -> None:
    values = [bytes([number]) * length for number in range(count)]
    runs = list(codec.cut_values(values, max_bytes, length=length))
    assert list(itertools.chain.from_iterable(runs)) == values
    assert all(len(run) == 1 or len(codec.encode_values(run, timestamp_ms=1)) <= max_bytes for run in runs)


@given(st.lists(st.binary(max_size=200), max_size=60), st.integers(HEADER_SIZE, 2000))
def test_cut_values_loses_nothing_and_keeps_to_the_limit(values: list[bytes], max_bytes: int) -> None:
    runs = list(codec.cut_values(values, max_bytes))
    assert list(itertools.chain.from_iterable(runs)) == values
    for run in runs:
        assert run
        assert len(run) == 1 or len(codec.encode_values(run, timestamp_ms=1)) <= max_bytes


def test_encoded_size_is_never_too_small() -> None:
    builder = codec.RecordBatchBuilder()
    for timestamp_ms, content in [(0, None), (-(2**63), b"x" * 70), (2**63 - 1, b"")]:
        before = builder.size
        headers = [("é", content)]
        builder.append(timestamp_ms=timestamp_ms, key=content, value=content, headers=headers)
        assert builder.size - before <= codec.encoded_size(content, content, headers)


# ------------------------------------------------------------------ hostile bytes


def both(batch: bytes) -> object:
    """Decodes with both codecs, which have to agree: the records, or that the bytes are corrupt."""
    try:
        view = BatchView(batch)
    except CorruptBatch:
        return CorruptBatch
    outcomes: list[object] = []
    for decode in (codec.decode, pure.decode):
        try:
            outcomes.append(decode(view, max_inflated_bytes=1 << 20))
        except CorruptBatch:
            outcomes.append(CorruptBatch)
    assert outcomes[0] == outcomes[1]
    return outcomes[0]


def plain_batch(payload: bytes, record_count: int, attributes: int = 0) -> bytes:
    return assemble(
        payload,
        record_count=record_count,
        last_offset_delta=max(record_count - 1, 0),
        base_timestamp=0,
        max_timestamp=0,
        attributes=attributes,
    )


@given(RECORDS, st.data())
@settings(max_examples=300)
def test_mutated_records_are_read_alike_or_refused_alike(records: list[pure.KeyValue], data: st.DataObject) -> None:
    payload = bytearray(BatchView(codec.encode(records)).records)
    for _ in range(data.draw(st.integers(1, 3))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    both(plain_batch(bytes(payload), len(records)))


@given(st.binary(max_size=120), st.integers(-(2**31), 2**31 - 1))
@settings(max_examples=300)
def test_random_records_are_read_alike_or_refused_alike(payload: bytes, record_count: int) -> None:
    both(plain_batch(payload, record_count))
    both(plain_batch(payload, record_count % 4))


@given(RECORDS, st.sampled_from(Compression), st.data())
def test_mutated_batches_are_read_or_refused(
    records: list[pure.KeyValue], compression: int, data: st.DataObject
) -> None:
    batch = bytearray(codec.encode(records, compression=compression))
    for _ in range(data.draw(st.integers(1, 4))):
        batch[data.draw(st.integers(0, len(batch) - 1))] = data.draw(st.integers(0, 255))
    known = (
        CorruptBatch,
        kafka_error(ErrorCode.unsupported_compression_type),
        kafka_error(ErrorCode.unsupported_for_message_format),
    )
    try:
        view = BatchView(bytes(batch))
        codec.decode(view, max_inflated_bytes=1 << 20)
    except known:
        pass


@given(RECORDS, st.data())
def test_records_that_are_cut_are_corrupt(records: list[pure.KeyValue], data: st.DataObject) -> None:
    payload = bytes(BatchView(codec.encode(records)).records)
    end = data.draw(st.integers(0, len(payload) - 1))
    assert both(plain_batch(payload[:end], len(records))) is CorruptBatch


@pytest.mark.parametrize("length", [2**63 - 1, 2**63 - 40, 2**63 - 70, 2**62, 2**31, 1 << 20])
@pytest.mark.parametrize("field", ["key", "value", "header key", "header value"])
def test_a_gigantic_length_is_corrupt_whichever_field_claims_it(length: int, field: str) -> None:
    claimed = encode_varint(length)
    body = {
        "key": b"\0\0\0" + claimed,
        "value": b"\0\0\0\1" + claimed,
        "header key": b"\0\0\0\1\1\2" + claimed,
        "header value": b"\0\0\0\1\1\2\0" + claimed,
    }[field] + b"rest"
    assert both(plain_batch(encode_varint(len(body)) + body, 1)) is CorruptBatch


def test_a_record_count_that_no_payload_could_hold_is_corrupt() -> None:
    payload = bytes(BatchView(codec.encode([(1, None, b"v", ())])).records)
    for count in (2, 2**31 - 1, 0, -1, -(2**31)):
        assert both(plain_batch(payload, count)) is CorruptBatch


def test_many_empty_headers_do_not_outrun_the_payload() -> None:
    body = b"\0\0\0\1\1" + encode_varint(2**62)
    assert both(plain_batch(encode_varint(len(body)) + body, 1)) is CorruptBatch


def test_a_header_key_that_is_no_text_is_corrupt() -> None:
    payload = bytearray(BatchView(codec.encode([(1, None, None, [("aa", b"")])])).records)
    payload[payload.index(b"aa")] = 0xFF
    assert both(plain_batch(bytes(payload), 1)) is CorruptBatch
