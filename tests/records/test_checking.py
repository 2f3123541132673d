"""Which produced batches the kernel, and the Python beside it, find right: against the codecs that will read them."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder

from raylog.records import codec, kernel, pure
from raylog.records.batch import HEADER_SIZE, BatchView, assemble
from raylog.records.checking import FAULTS_MAX, LONG_MAX, LONG_MIN, RecordFaults, RefusedRecord, record_faults
from raylog.records.corrupt import CorruptBatch
from raylog.records.varint import encode_varint

COMPILED = kernel.loaded()
WITH_KERNEL = pytest.mark.skipif(COMPILED is None, reason=f"the C kernel is {kernel.trouble()}")
BOTH = [pytest.param(COMPILED, id="kernel", marks=WITH_KERNEL), pytest.param(None, id="python")]

CONTENT = st.one_of(st.none(), st.binary(max_size=9), st.binary(min_size=63, max_size=70))
HEADERS = st.lists(st.tuples(st.text(max_size=4), CONTENT), max_size=3)
TIMESTAMPS = st.one_of(st.integers(-2, 300), st.integers(LONG_MIN, LONG_MAX))
RECORDS = st.lists(st.tuples(TIMESTAMPS, CONTENT, CONTENT, HEADERS), min_size=1, max_size=8)
BOUNDS = st.sampled_from(((LONG_MIN, LONG_MAX), (0, 100), (-5, LONG_MAX), (200, 100)))


@pytest.fixture(params=BOTH)
def way(request: pytest.FixtureRequest) -> Iterator[None]:
    """With and without the kernel."""
    with using(request.param):
        yield


class using:
    """What ``kernel.loaded()`` gives meanwhile."""

    def __init__(self, loaded: Any) -> None:
        self._loaded = loaded

    def __enter__(self) -> None:
        self._before = kernel.loaded
        kernel.loaded = lambda: self._loaded

    def __exit__(self, *_: object) -> None:
        kernel.loaded = self._before


def faults_of(records: bytes, count: int, base_timestamp: int = 0, **rules: Any) -> RecordFaults | None:
    """What both ways find, which has to be the same."""
    found = []
    for loaded in (COMPILED, None):
        with using(loaded):
            found.append(record_faults(records, count, base_timestamp=base_timestamp, **rules))
    assert found[0] == found[1]
    return found[0]


def record(*, body: bytes | None = None, size: int | None = None, delta: int = 0, attributes: int = 0) -> bytes:
    content = b"".join((bytes([attributes]), b"\x00", encode_varint(delta), b"\x01\x01\x00"))
    content = content if body is None else body
    return encode_varint(len(content) if size is None else size) + content


GOOD = record()
HEAD = b"\x00\x00\x00\x01\x01"  # attributes, timestamp delta 0, offset delta 0, no key, no value
BROKEN = {
    "a length that points behind the batch": (record(size=100), 1, 0, "longer than what is left"),
    "a negative length": (record(size=-2), 1, 0, "longer than what is left"),
    "nothing but a length": (b"\x00" * 7, 1, 0, "more or fewer bytes"),
    "a length one too small": (record(size=5) + b"\x00", 1, 0, "inside a varint"),
    "a length one too large": (record(size=7) + b"\x00", 1, 0, "more or fewer bytes"),
    "a second record without bytes": (GOOD + b"\x02" * 7, 2, 1, "inside a varint"),
    "bytes behind the last record": (GOOD + b"\x00", 1, 1, "behind the last"),
    "fewer records than announced": (GOOD + GOOD, 3, 0, "can hold"),
    "records in 6 bytes": (b"\x0c\x00\x00\x00\x01\x01", 1, 0, "can hold"),
    "no records": (GOOD, 0, 0, "can hold"),
    "a count below 0": (GOOD, -1, 0, "can hold"),
    "an offset delta too large": (GOOD + record(delta=2), 2, 1, "not its place"),
    "an offset delta again": (GOOD + GOOD, 2, 1, "not its place"),
    "an offset delta below 0": (record(delta=-1), 1, 0, "not its place"),
    "an offset delta behind its batch": (record(delta=1 << 20), 1, 0, "not its place"),
    "a key behind the record": (record(body=b"\x00\x00\x00\x7e\x01\x00"), 1, 0, "longer than what is left"),
    "a value behind the record": (record(body=b"\x00\x00\x00\x01\x7e\x00"), 1, 0, "longer than what is left"),
    "headers below 0": (record(body=HEAD + b"\x01"), 1, 0, "negative number"),
    "more headers than bytes": (record(body=HEAD + encode_varint(1 << 30)), 1, 0, "inside a varint"),
    "a header without a key": (record(body=HEAD + b"\x02\x01\x01"), 1, 0, "without a key"),
    "a header's key behind the record": (record(body=HEAD + b"\x02\x7e\x01"), 1, 0, "longer than what is left"),
    "a header's key that is no text": (record(body=HEAD + b"\x02\x02\xff\x01"), 1, 0, "no UTF-8"),
    "a length of six bytes": (b"\x8c\x80\x80\x80\x80\x00" + GOOD[1:], 1, 0, "varint"),
    "a length of 33 bits": (b"\x8c\x80\x80\x80\x10" + GOOD[1:], 1, 0, "varint"),
    "a timestamp of eleven bytes": (record(body=b"\x00" + b"\x80" * 10 + b"\x00\x00\x01\x01\x00"), 1, 0, "varint"),
    "attributes that go on": (record(attributes=0x80), 1, 0, "more or fewer bytes"),
}  # fmt: skip


@pytest.mark.parametrize("records, count, index, reason", BROKEN.values(), ids=BROKEN)
def test_records_that_would_mislead_a_reader_are_found(records: bytes, count: int, index: int, reason: str) -> None:
    faults = faults_of(records, count)
    assert faults is not None and faults.broken is not None
    assert faults.broken[0] == index and reason in faults.broken[1], faults


@given(RECORDS, BOUNDS, st.booleans())
def test_what_the_codecs_write_is_right_and_judged_by_key_and_timestamp(
    records: list[pure.KeyValue], bounds: tuple[int, int], needs_keys: bool
) -> None:
    view = BatchView(pure.encode(records))
    oldest, newest = bounds
    refused = []
    for index, (timestamp, key, _, _) in enumerate(records):
        if needs_keys and key is None:
            refused.append(RefusedRecord(index, None))
        elif timestamp != -1 and not oldest <= timestamp <= newest:
            refused.append(RefusedRecord(index, timestamp))
    found = faults_of(
        bytes(view.records), len(records), view.base_timestamp, needs_keys=needs_keys, oldest=oldest, newest=newest
    )
    assert found == (RecordFaults(None, tuple(refused), len(refused)) if refused else None)


@pytest.mark.parametrize("builder", [AiokafkaBuilder, KafkaPythonBuilder])
@given(records=RECORDS)
def test_what_other_clients_write_is_right(builder: Any, records: list[pure.KeyValue]) -> None:
    made = builder(
        magic=2, compression_type=0, is_transactional=0, producer_id=-1, producer_epoch=-1, base_sequence=-1,
        batch_size=1 << 20,
    )  # fmt: skip
    for offset, (timestamp, key, value, headers) in enumerate(records):
        made.append(offset, abs(timestamp) >> 1, key, value, headers)
    view = BatchView(bytes(made.build()))
    assert faults_of(bytes(view.records), view.record_count, view.base_timestamp) is None


def _mutated(data: st.DataObject, records: bytes) -> bytes:
    changed = bytearray(records)
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(changed) - 1))
        kind = data.draw(st.integers(0, 2))
        if kind == 0:
            changed[at] = data.draw(st.integers(0, 255))
        elif kind == 1:
            changed[at:at] = data.draw(st.binary(min_size=1, max_size=3))
        elif len(changed) > 1:
            del changed[at]
    return bytes(changed)


@given(RECORDS, st.data())
def test_of_changed_bytes_it_accepts_what_every_reader_understands_alike(
    records: list[pure.KeyValue], data: st.DataObject
) -> None:
    """Of canonical bytes, those that the oracle writes, it accepts all that the oracle reads at the offsets 0, 1, 2, …"""
    content = _mutated(data, bytes(BatchView(pure.encode(records)).records))
    count = data.draw(st.sampled_from((len(records), len(records) + 1, 1)))
    found = faults_of(content, count)
    view = BatchView(
        assemble(content, record_count=count, last_offset_delta=count - 1, base_timestamp=0, max_timestamp=0)
    )
    try:
        read = pure.decode(view)
    except CorruptBatch:
        read = None
    if found is None:
        assert read is not None and [each.offset for each in read] == list(range(count))
        assert codec.decode(view) == read
        if COMPILED is not None:
            run = kernel.Run(None, 0, 0, 0, 0)
            sizes = kernel.Sizes()
            held = bytes(view.data)
            run.data, run.size, run.offset_end = kernel.ctypes.cast(held, kernel.c_void_p), len(held), LONG_MAX
            assert COMPILED.measure(kernel.byref(run), 1, kernel.byref(sizes)) == kernel.OK
            assert sizes.records == count
    elif read is not None and [each.offset for each in read] == list(range(count)):
        canonical = b"".join(
            pure.encode_record(each.timestamp, index, each.key, each.value, each.headers)
            for index, each in enumerate(read)
        )
        assert content != canonical, (content, found)


def test_faults_are_counted_but_only_the_first_are_named(way: None) -> None:
    count = 100_000 if kernel.loaded() is not None else 5_000
    records = b"".join(pure.encode_record(0, index, None, b"", ()) for index in range(count))
    tracemalloc.start()
    try:
        found = record_faults(records, count, base_timestamp=0, needs_keys=True)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found is not None and found.broken is None
    assert found.refused_count == count and len(found.refused) == FAULTS_MAX
    assert [each.index for each in found.refused] == list(range(FAULTS_MAX))
    assert peak < 1 << 20, f"{peak} bytes"


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, lambda content: memoryview(content).toreadonly()])
@pytest.mark.parametrize("values", [1, 1_000])
def test_records_are_judged_where_they_lie(way: None, kind: Callable[[bytes], Any], values: int) -> None:
    batch = bytes(codec.encode_values([b"value" * 10] * values, timestamp_ms=7))
    around = kind(b"before" + batch + b"behind")
    view = BatchView(around, 6)
    place = {"start": 6 + HEADER_SIZE, "end": view.end}
    assert record_faults(around, values, base_timestamp=7, **place) is None
    late = record_faults(around, values, base_timestamp=7, newest=6, **place)
    assert late is not None and late.refused_count == values
    broken = record_faults(around, values, base_timestamp=7, start=place["start"], end=view.end + 1)
    assert broken is not None and broken.broken == (values, kernel.REASONS[kernel.TRAILING])
