"""Record batches as Arrow: the C kernel and the fallback against a twin made of ``raylog.records.pure``, whole and broken."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from raylog.errors import ConfigError
from raylog.records import kernel, pure
from raylog.records.aborted import AbortedTransactions
from raylog.records.arrow_columns import ALL_COLUMNS, NO_OFFSET_END, RECORD_SCHEMA, RecordColumns
from raylog.records.arrow_reading import read_arrow
from raylog.records.batch import (
    CONTROL_MASK,
    HEADER_SIZE,
    TIMESTAMP_TYPE_MASK,
    TRANSACTIONAL_MASK,
    BatchView,
    assemble,
    batches,
    stamp,
    write_crc,
)
from raylog.records.compression import Compression, compress
from raylog.records.control import Marker, control_batch
from raylog.records.corrupt import CorruptBatch
from raylog.records.record import Record

COMPILED = kernel.loaded()
WITH_KERNEL = pytest.mark.skipif(COMPILED is None, reason=kernel.description())
BOTH = [pytest.param(COMPILED, id="kernel", marks=WITH_KERNEL), pytest.param(None, id="fallback")]

I64 = st.integers(-(2**63), 2**63 - 1)
CONTENT = st.none() | st.binary(max_size=20) | st.binary(min_size=60, max_size=140)
HEADERS = st.lists(st.tuples(st.text(max_size=5), CONTENT), max_size=3)
RECORD = st.tuples(st.integers(1, 70), I64 | st.integers(0, 2**42), CONTENT, CONTENT, HEADERS)
BATCH = st.tuples(
    st.lists(RECORD, max_size=6), st.sampled_from(Compression), st.booleans(), st.integers(0, 3), st.integers(0, 200)
)
Given = tuple[int, int, bytes | None, bytes | None, Sequence[tuple[str, bytes | None]]]


def batch_of(
    base_offset: int, records: Sequence[Given], compression: int = 0, attributes: int = 0, gap_behind: int = 0
) -> bytes:
    """A batch with gaps between its offsets, as a cleaner leaves it; perhaps without any record."""
    delta, parts = -1, []
    base_timestamp = records[0][1] if records else 0
    for step, timestamp, key, value, headers in records:
        delta += step
        parts.append(pure.encode_record(timestamp - base_timestamp, delta, key, value, headers))
    return assemble(
        compress(compression, b"".join(parts)),
        record_count=len(records),
        last_offset_delta=max(delta, 0) + gap_behind,
        base_timestamp=base_timestamp,
        max_timestamp=4711,
        attributes=compression | attributes,
        base_offset=base_offset,
        producer_id=9,
        producer_epoch=0,
    )


def log_of(given_batches: Sequence[tuple[Any, ...]]) -> bytes:
    log, base_offset = b"", 5
    for records, compression, is_append_time, gap_before, gap_behind in given_batches:
        base_offset += gap_before
        attributes = TIMESTAMP_TYPE_MASK if is_append_time else 0
        log += batch_of(base_offset, records, compression, attributes, gap_behind)
        base_offset = list(batches(log))[-1].next_offset
    return log


def expected_table(records: Sequence[Record], columns: Sequence[str]) -> Any:
    """What ``raylog.records.pure`` has decoded, as a table."""
    made = {
        "headers": [[{"key": key, "value": value} for key, value in record.headers] for record in records],
        "timestamp": pa.array([record.timestamp for record in records], pa.int64()).cast(pa.timestamp("ms", tz="UTC")),
    }
    arrays = []
    for name in columns:
        content = made[name] if name in made else [getattr(record, name) for record in records]
        arrays.append(content if name == "timestamp" else pa.array(content, RECORD_SCHEMA.field(name).type))
    return pa.table(arrays, pa.schema([RECORD_SCHEMA.field(name) for name in columns]))


def collected(
    log: bytes,
    compiled: kernel.Kernel | None,
    columns: Sequence[str] | None = None,
    start: int = 0,
    end: int = NO_OFFSET_END,
) -> tuple[Any, Any]:
    made = RecordColumns(columns, compiled=compiled)
    for view in batches(log):
        made.add(view, start_offset=start, offset_end=end, topic="t", partition=3)
    batch, broken = made.take()
    batch.validate(full=True)
    return pa.Table.from_batches([batch]), broken


def test_the_kernel_is_built_wherever_there_is_a_compiler() -> None:
    import shutil

    if shutil.which("cc") is None:
        pytest.skip("this machine has no cc")
    assert kernel.description() == "C kernel"


@pytest.mark.parametrize("compiled", BOTH)
@given(
    st.lists(BATCH, max_size=4),
    st.lists(st.sampled_from(ALL_COLUMNS), unique=True, min_size=1),
    st.integers(0, 300),
    st.integers(0, 600) | st.just(NO_OFFSET_END),
)
@example([([(1, 0, b"k", b"v", [])], 0, False, 0, 0)], list(ALL_COLUMNS), 0, NO_OFFSET_END)
def test_what_was_written_comes_out_whatever_columns_and_range_are_asked_for(
    compiled: kernel.Kernel | None, given_batches: list[tuple[Any, ...]], columns: list[str], start: int, end: int
) -> None:
    log = log_of(given_batches)
    table, broken = collected(log, compiled, columns, start, end)
    decoded = [record for view in batches(log) for record in pure.decode(view, topic="t", partition=3)]
    assert broken is None
    assert table.equals(expected_table([record for record in decoded if start <= record.offset < end], columns))


def pure_until_broken(log: bytes) -> tuple[list[Record], int | None]:
    """What the twin reads from offset 0 on, and where it stops. A damaged offset delta can name an offset below."""
    records: list[Record] = []
    position = 0
    try:
        for view in batches(log):
            position = view.position
            records += [each for each in pure.decode(view, topic="t", partition=3) if each.offset >= 0]
    except CorruptBatch:
        return records, position
    return records, None


@WITH_KERNEL
@given(
    st.lists(BATCH, min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0), st.integers(0, 255)), max_size=4),
    st.data(),
)
def test_hostile_bytes_are_refused_by_the_kernel_where_the_twin_refuses_them(
    given_batches: list[tuple[Any, ...]], changes: list[tuple[int, int]], data: st.DataObject
) -> None:
    log = bytearray(log_of([(records, 0, *rest) for records, _, *rest in given_batches]))
    inside = [at for view in batches(bytes(log)) for at in range(view.position + HEADER_SIZE, view.end)]
    for place, byte in changes:
        if inside:
            log[inside[place % len(inside)]] = byte
    for view in batches(bytes(log)):  # a record count, too
        if data.draw(st.booleans()):
            count = data.draw(st.integers(-2, 8) | st.sampled_from([2**31 - 1, -(2**31)]))
            log[view.position + 57 : view.position + 61] = count.to_bytes(4, "big", signed=True)
    records, position = pure_until_broken(bytes(log))
    table, broken = collected(bytes(log), COMPILED)
    assert (None if broken is None else broken.error.position) == position
    assert table.equals(expected_table(records, ALL_COLUMNS))


@pytest.mark.parametrize("compiled", BOTH)
def test_the_records_before_a_broken_batch_are_given_and_its_place_is_named(compiled: kernel.Kernel | None) -> None:
    first = batch_of(10, [(1, 5, b"k", b"v", []), (1, 6, None, None, [])])
    good_too = batch_of(12, [(1, 5, b"k", b"v", [])], Compression.ZSTD)
    bad = bytearray(batch_of(13, [(1, 5, b"k", b"v", [])]))
    bad[-1] = 1  # one header, of which there is nothing
    table, broken = collected(first + good_too + bytes(bad) + first, compiled)
    assert table.column("offset").to_pylist() == [10, 11, 12]
    assert broken is not None and (broken.base_offset, broken.next_offset, broken.partition) == (13, 14, 3)
    assert broken.error.position == len(first) + len(good_too)


@pytest.mark.parametrize(
    ("records", "count", "reason"),
    [
        (b"", 1, "varint"),
        (b"\xff" * 11, 1, "varint of more than 64 bits"),
        (pure.encode_record(0, 0, b"key", b"v", []) + b"\x00", 1, "behind the last record"),
        (pure.encode_record(0, 0, b"key", b"v", []), 2, "varint"),
        (pure.encode_record(0, 0, b"key", b"v", []), 0, "behind the last record"),
        (b"\x0e\x00\x00\x00\x7ekey", 1, "longer than what is left"),
        (b"\x0e\x00\x00\x00\x01\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01", 1, "longer than what is left"),
        (b"\x0c\x00\x00\x00\x01\x01\x01", 1, "negative number of headers"),
        (b"\x10\x00\x00\x00\x01\x01\x02\x01\x00", 1, "without a key"),
        (b"\x14\x00\x00\x00\x01\x01\x02\x04\xed\xa0\x01", 1, "no UTF-8"),
        (b"\x02\x00\x00\x00\x01\x01\x00", 1, "more or fewer bytes"),
    ],
)  # fmt: skip
@WITH_KERNEL
def test_each_way_to_break_a_record_has_its_reason(records: bytes, count: int, reason: str) -> None:
    log = assemble(records, record_count=count, last_offset_delta=0, base_timestamp=0, max_timestamp=0)
    table, broken = collected(log, COMPILED)
    assert table.num_rows == 0 and broken is not None
    assert reason in broken.error.reason
    with pytest.raises(CorruptBatch):
        pure.decode(BatchView(log))


@WITH_KERNEL
@given(st.binary(max_size=12))
def test_a_headers_key_is_text_exactly_where_python_says_so(name: bytes) -> None:
    body = b"\x00\x00\x00\x01\x01\x02" + bytes([2 * len(name)]) + name + b"\x01"
    log = assemble(
        bytes([2 * len(body)]) + body, record_count=1, last_offset_delta=0, base_timestamp=0, max_timestamp=0
    )
    table, broken = collected(log, COMPILED, ["headers"])
    try:
        assert table.column("headers").to_pylist() == [[{"key": name.decode(), "value": None}]]
    except UnicodeDecodeError:
        assert broken is not None and "UTF-8" in broken.error.reason


def ranges_of(compiled: kernel.Kernel | None, *wanted: tuple[int, int]) -> list[int]:
    """The offsets of neighbouring batches of five, of each of which another range is wanted."""
    log = b"".join(value_batch(5 * number, b"v", count=5) for number in range(len(wanted)))
    made = RecordColumns(("offset",), compiled=compiled)
    for view, (start, end) in zip(batches(log), wanted, strict=True):
        made.add(view, start_offset=start, offset_end=end)
    offsets: list[int] = made.take()[0].column("offset").to_pylist()
    return offsets


@pytest.mark.parametrize("compiled", BOTH)
def test_neighbours_are_read_in_one_run_only_if_the_same_is_wanted_of_them(compiled: kernel.Kernel | None) -> None:
    assert ranges_of(compiled, (0, 3), (0, 8)) == [0, 1, 2, 5, 6, 7]
    assert ranges_of(compiled, (2, 99), (7, 99)) == [2, 3, 4, 7, 8, 9]
    assert ranges_of(compiled, (7, 99), (0, 99)) == [5, 6, 7, 8, 9]
    assert ranges_of(compiled, (2, 99), (5, 99)) == [2, 3, 4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize("compiled", BOTH)
def test_a_compressed_batch_that_is_broken_is_named_by_where_it_was(compiled: kernel.Kernel | None) -> None:
    bad = assemble(
        compress(Compression.ZSTD, b"\x00"),
        record_count=1,
        last_offset_delta=3,
        base_timestamp=0,
        max_timestamp=0,
        attributes=Compression.ZSTD,
        base_offset=2,
    )
    log = value_batch(0, b"x") + bad
    table, broken = collected(log, compiled)
    assert len(table) == 2 and broken is not None
    assert (broken.base_offset, broken.next_offset) == (2, 6)
    assert broken.error.position == len(log) - len(bad), "in what was fetched, not in what it was inflated to"


# ------------------------------------------------------------------ a consumer's rules


def value_batch(
    base_offset: int, value: bytes, *, producer_id: int = -1, transactional: bool = False, count: int = 2
) -> bytes:
    batch = bytearray(
        pure.encode(
            [(1, None, value, ())] * count,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=0,
            is_transactional=transactional,
        )
    )
    stamp(batch, base_offset, 0)
    return bytes(batch)


def marker(offset: int, kind: Marker, producer_id: int) -> bytes:
    batch = bytearray(
        control_batch(kind, producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, timestamp_ms=1)
    )
    stamp(batch, offset, 0)
    return bytes(batch)


TRANSACTIONS = b"".join(
    (
        value_batch(0, b"a1", producer_id=1, transactional=True),  # aborted
        value_batch(2, b"b1", producer_id=2, transactional=True),  # committed
        value_batch(4, b"plain"),
        value_batch(6, b"a2", producer_id=1, transactional=True),  # aborted
        marker(8, Marker.ABORT, 1),
        value_batch(9, b"a3", producer_id=1, transactional=True),  # committed, by the same producer
        marker(11, Marker.COMMIT, 1),
        marker(12, Marker.COMMIT, 2),
        value_batch(13, b"a4", producer_id=1, transactional=True),  # aborted again
        marker(15, Marker.ABORT, 1),
    )
)


def values_of(answer: Any) -> list[bytes]:
    return [value for batch in answer.batches for value in batch.column("value").to_pylist()]


def test_control_batches_give_nothing_but_are_passed() -> None:
    answer = read_arrow(TRANSACTIONS)
    assert values_of(answer) == [v for v in (b"a1", b"b1", b"plain", b"a2", b"a3", b"a4") for _ in range(2)]
    assert (answer.next_offset, answer.error) == (16, None)


def test_batches_of_aborted_transactions_are_left_out() -> None:
    answer = read_arrow(TRANSACTIONS, aborted=[(1, 13), (1, 0)])
    assert values_of(answer) == [v for v in (b"b1", b"plain", b"a3") for _ in range(2)]
    assert answer.next_offset == 16
    # A fetch from the middle on: the transaction that began before it is named with its first offset all the same.
    tail = TRANSACTIONS[next(view.position for view in batches(TRANSACTIONS) if view.base_offset == 6) :]
    assert values_of(read_arrow(tail, start_offset=7, aborted=[(1, 0), (1, 13)])) == [b"a3", b"a3"]


def test_an_untransactional_batch_of_the_same_producer_is_not_hidden() -> None:
    log = value_batch(0, b"a", producer_id=1, transactional=True) + value_batch(2, b"b", producer_id=1)
    assert values_of(read_arrow(log, aborted=[(1, 0)])) == [b"b", b"b"]


def test_a_marker_that_is_none_is_an_error() -> None:
    bad = assemble(
        pure.encode_record(0, 0, b"\x00", None, []), record_count=1, last_offset_delta=0, base_timestamp=0, max_timestamp=0,
        attributes=CONTROL_MASK | TRANSACTIONAL_MASK, producer_id=1,
    )  # fmt: skip
    with pytest.raises(CorruptBatch, match="control record with the key"):
        AbortedTransactions([(1, 0)]).hides(BatchView(bad))
    assert isinstance(read_arrow(bad, aborted=[(1, 0)]).error, CorruptBatch)


def test_a_range_is_cut_out_and_its_end_is_the_next_offset() -> None:
    log = b"".join(value_batch(offset, b"%d" % offset) for offset in (10, 12, 14))
    answer = read_arrow(log, columns=["offset"], start_offset=11, offset_end=14)
    assert answer.batches[0].column("offset").to_pylist() == [11, 12, 13] and answer.next_offset == 14
    inside = read_arrow(log, columns=["offset"], start_offset=11, offset_end=13)
    assert inside.batches[0].column("offset").to_pylist() == [11, 12] and inside.next_offset == 13
    assert read_arrow(log, start_offset=100, offset_end=200).next_offset == 100
    assert read_arrow(b"", start_offset=7).next_offset == 7


def test_a_range_that_ends_in_nothing_but_markers_and_gaps_ends() -> None:
    emptied = batch_of(12, [], gap_behind=3)  # all its records were compacted away
    answer = read_arrow(value_batch(10, b"x") + emptied + marker(16, Marker.COMMIT, 1), start_offset=12, offset_end=17)
    assert (answer.batches, answer.next_offset) == ((), 17)


def test_a_batch_that_the_fetch_cut_off_is_left_for_the_next() -> None:
    log = value_batch(0, b"x") + value_batch(2, b"y")
    for cut in (1, 30, len(log) // 2 - 1):
        answer = read_arrow(log[:-cut])
        assert (values_of(answer), answer.next_offset, answer.error) == ([b"x", b"x"], 2, None)


def test_a_wrong_crc_ends_the_answer_before_it_and_says_how_to_pass() -> None:
    log = bytearray(value_batch(0, b"x") + value_batch(2, b"y") + value_batch(4, b"z"))
    log[len(log) // 3 + 70] ^= 1
    answer = read_arrow(log)
    assert (values_of(answer), answer.next_offset, answer.skip_to) == ([b"x", b"x"], 2, 4)
    assert isinstance(answer.error, CorruptBatch) and "CRC" in answer.error.reason
    assert len(values_of(read_arrow(log, check_crcs=False))) == 6


def test_what_cannot_be_inflated_is_an_error_at_its_offset() -> None:
    log = value_batch(0, b"x") + batch_of(2, [(1, 1, None, bytes(10_000), [])], Compression.ZSTD)
    answer = read_arrow(log, max_inflated_bytes=5_000)
    assert (values_of(answer), answer.next_offset, answer.skip_to) == ([b"x", b"x"], 2, 3)
    assert "inflate" in str(answer.error)


def test_a_codec_that_nobody_knows_is_an_error_at_its_offset() -> None:
    strange = bytearray(value_batch(2, b"y"))
    strange[22] |= 6
    write_crc(strange)
    answer = read_arrow(value_batch(0, b"x") + bytes(strange))
    assert (values_of(answer), answer.next_offset, answer.skip_to) == ([b"x", b"x"], 2, 4)
    assert "no codec has the number 6" in str(answer.error)


def test_a_broken_batch_that_was_collected_comes_before_a_later_error() -> None:
    bad = assemble(b"\x00", record_count=1, last_offset_delta=0, base_timestamp=0, max_timestamp=0, base_offset=2)
    wrong_crc = bytearray(value_batch(3, b"z"))
    wrong_crc[-1] ^= 1
    answer = read_arrow(value_batch(0, b"x") + bad + bytes(wrong_crc))
    assert (values_of(answer), answer.next_offset, answer.skip_to) == ([b"x", b"x"], 2, 3)


def test_unknown_and_repeated_columns_are_refused() -> None:
    with pytest.raises(ConfigError, match="no column 'offsets'"):
        read_arrow(b"", columns=["offsets"])
    with pytest.raises(ConfigError, match="twice"):
        read_arrow(b"", columns=["key", "key"])
    assert collected(value_batch(0, b"x"), COMPILED, [])[0].num_rows == 2
