"""Judging the records of a produced batch without making an object of any: the C kernel does it, or
plain Python where there is none.

``record_faults`` finds what would mislead a reader: records that do not fill their bytes exactly,
lengths that point outside, numbers that readers understand differently, header keys that are no
UTF-8, offset deltas other than 0, 1, 2, … Apache Kafka's broker refuses the same, except that it
renumbers offset deltas and leaves header keys to the clients. It also finds the records that a
topic does not take: without a key, or with a timestamp outside its bounds.

Both ways take memory for ``FAULTS_MAX`` records at most, whatever the bytes say. The kernel takes
some nanoseconds for a record, and from ``HELD_BYTES_MAX`` on it lets go of the GIL meanwhile.
Python takes 1 to 3 µs.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable
from ctypes import byref, c_int, c_ssize_t, c_void_p, py_object
from dataclasses import dataclass

from raylog.records import kernel
from raylog.records.corrupt import CorruptBatch
from raylog.records.varint import decode_varint

Buffer = bytes | bytearray | memoryview

LONG_MIN, LONG_MAX = -(1 << 63), (1 << 63) - 1
RECORD_BYTES_MIN = 7
"""Bytes that a record takes at least."""
FAULTS_MAX = 1_000
"""So many records are named as refused; more are counted."""
HELD_BYTES_MAX = 16 << 10

_NO_TIMESTAMP = -1
_TWO_BYTES_END = 1 << 14


@dataclass(frozen=True, slots=True)
class RefusedRecord:
    """A record that the topic does not take. ``timestamp`` None: it has no key; else its timestamp
    is out of bounds.
    """

    index: int
    timestamp: int | None


@dataclass(frozen=True, slots=True)
class RecordFaults:
    """What is wrong with a batch. ``broken``: where and how it breaks the format; then the rest was
    not read.

    ``refused`` are the first of ``refused_count`` records that the topic does not take.
    """

    broken: tuple[int, str] | None
    refused: tuple[RefusedRecord, ...]
    refused_count: int


def record_faults(
    records: Buffer,
    count: int,
    base_timestamp: int,
    start: int = 0,
    end: int | None = None,
    needs_keys: bool = False,
    oldest: int = LONG_MIN,
    newest: int = LONG_MAX,
) -> RecordFaults | None:
    """None where the inflated records in ``records[start:end]`` are all right, being ``count`` by
    the batch's header.

    ``oldest`` and ``newest`` bound the timestamps in milliseconds, both inclusive; a record without
    a timestamp (−1) is within them.
    """
    stop = len(records) if end is None else end
    found = kernel.loaded()
    if found is None:
        walk = _walk_in_python(records, count, base_timestamp, start, stop, needs_keys, oldest, newest)
        return walk if walk.broken or walk.refused else None
    check = found.check_few_records if stop - start <= HELD_BYTES_MAX else found.check_records
    arguments = (start, stop, count, base_timestamp, needs_keys, oldest, newest)
    if isinstance(records, bytes):
        if check(records, *arguments, None) == kernel.OK:
            return None
    elif _lent(check, records, *arguments, None) == kernel.OK:
        return None
    faults = (kernel.Fault * FAULTS_MAX)()
    report = kernel.Report(faults, FAULTS_MAX)
    code = _lent(found.check_records, records, *arguments, byref(report))
    refused = tuple(
        RefusedRecord(fault.index, None if fault.code == kernel.NO_KEY else fault.timestamp)
        for fault in faults[: min(report.fault_count, FAULTS_MAX)]
    )
    is_broken = code not in (kernel.NO_KEY, kernel.BAD_TIMESTAMP)
    broken = (report.bad_record, kernel.REASONS[code]) if is_broken else None
    return RecordFaults(broken, refused, report.fault_count)


def is_sound_batch(batch: bytes, *, bytes_max: int, newest: int = LONG_MAX) -> bool:
    """Whether the bytes are one small batch, of ``bytes_max`` at most, that can be stored as its
    producer sent it.

    It has no attributes: it is neither compressed nor transactional nor a control batch, and its
    timestamps are the producer's. Its checksum is right, its header fits the records, and so do
    they (``record_faults``), keys left aside; no timestamp is greater than ``newest``. False says
    nothing against a batch, but that it must be looked at more closely; so it is False without the
    kernel.
    """
    found = kernel.loaded()
    if found is None or len(batch) > HELD_BYTES_MAX:
        return False
    return bool(found.is_sound_batch(batch, len(batch), bytes_max, newest) == kernel.OK)


def largest_timestamp(
    records: Buffer, count: int, *, base_timestamp: int, start: int = 0, end: int | None = None, above: int
) -> int:
    """The greatest timestamp of the records, which ``record_faults`` has found whole; ``above`` if
    none is greater.
    """
    stop = len(records) if end is None else end
    found = kernel.loaded()
    if found is None:
        content, position, largest = bytes(memoryview(records)[start:stop]), 0, above
        for index in range(count):
            position, delta, _ = _walk_plain_record(content, position, index)
            largest = max(largest, _wrapped(base_timestamp + delta))
        return largest
    faults = (kernel.Fault * count)()
    report = kernel.Report(faults, count)
    _lent(found.check_records, records, start, stop, count, base_timestamp, False, LONG_MIN, above, byref(report))
    numbers = array("q", memoryview(faults).cast("B")[: report.fault_count * ctypes.sizeof(kernel.Fault)].tobytes())
    return max(numbers[1::2], default=above)


# ------------------------------------------------------------------ lending bytes to C


class _PyBuffer(ctypes.Structure):
    """Python's ``Py_buffer``: the way to the address of a read-only view."""

    _fields_ = [
        ("buf", c_void_p), ("obj", c_void_p), ("len", c_ssize_t), ("itemsize", c_ssize_t), ("readonly", c_int),
        ("ndim", c_int), ("format", c_void_p), ("shape", c_void_p), ("strides", c_void_p), ("suboffsets", c_void_p),
        ("internal", c_void_p),
    ]  # fmt: skip


_get_buffer = ctypes.pythonapi.PyObject_GetBuffer
_get_buffer.argtypes = (py_object, ctypes.POINTER(_PyBuffer), c_int)
_release_buffer = ctypes.pythonapi.PyBuffer_Release
_release_buffer.argtypes = (ctypes.POINTER(_PyBuffer),)
_release_buffer.restype = None


def _lent(check: Callable[..., int], records: Buffer, *arguments: object) -> int:
    if isinstance(records, bytes):
        return check(records, *arguments)
    view = _PyBuffer()
    _get_buffer(records, byref(view), 0)
    try:
        return check(view.buf, *arguments)
    finally:
        _release_buffer(byref(view))


# ------------------------------------------------------------------ without the kernel


def _walk_in_python(
    records: Buffer,
    count: int,
    base_timestamp: int,
    start: int,
    end: int,
    needs_keys: bool,
    oldest: int,
    newest: int,
) -> RecordFaults:
    if not 0 < count <= (end - start) // RECORD_BYTES_MIN:
        return RecordFaults((0, kernel.REASONS[kernel.BAD_COUNT]), (), 0)
    refused: list[RefusedRecord] = []
    refused_count = index = 0
    content = bytes(memoryview(records)[start:end])
    position = 0
    try:
        for index in range(count):
            position, timestamp_delta, has_key = _walk_plain_record(content, position, index)
            timestamp = _wrapped(base_timestamp + timestamp_delta)
            lacks_key = needs_keys and not has_key
            if lacks_key or (not oldest <= timestamp <= newest and timestamp != _NO_TIMESTAMP):
                refused_count += 1
                if refused_count <= FAULTS_MAX:
                    refused.append(RefusedRecord(index, None if lacks_key else timestamp))
    except _Broken as broken:
        return RecordFaults((index, kernel.REASONS[broken.args[0]]), tuple(refused), refused_count)
    if position != len(content):
        return RecordFaults((count, kernel.REASONS[kernel.TRAILING]), tuple(refused), refused_count)
    return RecordFaults(None, tuple(refused), refused_count)


def _wrapped(timestamp: int) -> int:
    return timestamp if LONG_MIN <= timestamp <= LONG_MAX else (timestamp - LONG_MIN) % (1 << 64) + LONG_MIN


class _Broken(Exception):
    """The code of the kernel for it."""


def _walk_plain_record(content: bytes, start: int, index: int) -> tuple[int, int, bool]:
    """``_walk_record`` without its calls, for records of no headers and lengths of one or two
    bytes; any other goes there.
    """
    try:
        position = start
        size = content[position]
        position += 1
        if size >= 0x80:
            size = size & 0x7F | content[position] << 7
            position += 1
        end = position + (size >> 1)
        if content[position] < 0x80:  # the attributes
            position += 1
            delta = content[position]
            position += 1
            if delta >= 0x80:
                delta, position = decode_varint(content, position - 1)
            else:
                delta = (delta >> 1) ^ -(delta & 1)
            offset = content[position]
            position += 1
            if offset >= 0x80:
                offset = offset & 0x7F | content[position] << 7
                position += 1
            key_size = content[position]
            position += 1
            if key_size >= 0x80:
                key_size = key_size & 0x7F | content[position] << 7
                position += 1
            if not key_size & 1:
                position += key_size >> 1
            value_size = content[position]
            position += 1
            if value_size >= 0x80:
                value_size = value_size & 0x7F | content[position] << 7
                position += 1
            if not value_size & 1:
                position += value_size >> 1
            # A second byte that says that there is a third makes a number too large to get here.
            plain = size | offset | key_size | value_size
            if (
                plain < _TWO_BYTES_END
                and not size & 1
                and offset == 2 * index
                and position == end - 1
                and not content[position]
            ):
                return end, delta, not key_size & 1
    except (IndexError, CorruptBatch):
        pass
    return _walk_record(content, start, index)


def _walk_record(content: bytes, position: int, index: int) -> tuple[int, int, bool]:
    """The position behind the record, its timestamp delta, whether it has a key."""
    size, position = _int(content, position, len(content))
    if not 0 <= size <= len(content) - position:
        raise _Broken(kernel.BAD_LENGTH)
    end = position + size
    if not size or content[position] >= 0x80:
        raise _Broken(kernel.BAD_RECORD)
    timestamp_delta, position = _long(content, position + 1, end)
    offset_delta, position = _int(content, position, end)
    key_size, position = _content(content, position, end)
    _, position = _content(content, position, end)
    header_count, position = _int(content, position, end)
    if header_count < 0:
        raise _Broken(kernel.BAD_HEADERS)
    for _ in range(header_count):
        position = _walk_header(content, position, end)
    if position != end:
        raise _Broken(kernel.BAD_RECORD)
    if offset_delta != index:
        raise _Broken(kernel.BAD_OFFSET)
    return position, timestamp_delta, key_size >= 0


def _walk_header(content: bytes, position: int, end: int) -> int:
    size, position = _int(content, position, end)
    if size < 0:
        raise _Broken(kernel.BAD_HEADERS)
    if size > end - position:
        raise _Broken(kernel.BAD_LENGTH)
    try:
        content[position : position + size].decode()
    except UnicodeDecodeError:
        raise _Broken(kernel.BAD_TEXT) from None
    return _content(content, position + size, end)[1]


def _content(content: bytes, position: int, end: int) -> tuple[int, int]:
    """A nullable length and the position behind what it announces."""
    size, position = _int(content, position, end)
    if size > end - position:
        raise _Broken(kernel.BAD_LENGTH)
    return size, position + max(size, 0)


def _long(content: bytes, position: int, end: int) -> tuple[int, int]:
    try:
        value, after = decode_varint(content, position)
    except CorruptBatch:
        raise _Broken(kernel.BAD_VARINT) from None
    if after > end:
        raise _Broken(kernel.BAD_VARINT)
    return value, after


def _int(content: bytes, position: int, end: int) -> tuple[int, int]:
    if position < end and content[position] < 0x80:
        byte = content[position]
        return (byte >> 1) ^ -(byte & 1), position + 1
    value, after = _long(content, position, end)
    if after - position > 5 or not -(1 << 31) <= value < 1 << 31:
        raise _Broken(kernel.BAD_VARINT)
    return value, after
