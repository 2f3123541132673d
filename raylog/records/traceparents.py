"""The ``traceparent`` headers of a batch's first records: the traces that their producers belong to.

A header's value is W3C's Trace Context::

    00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01
    version, trace id, id of the span that produces, flags (bit 0: sampled)

A later version may have more behind the flags; ``ff`` is none. Ids of zeros, capitals and whatever else
W3C forbids make no traceparent. Those that are not sampled are left out: their traces are wanted
nowhere.

The batch comes from a client and has not been checked. The work on it is bounded, and bytes that are
no records end it with what was found before: ``RECORDS_MAX`` records are looked at and of each
``HEADERS_MAX`` headers, in the first ``SEARCHED_BYTES_MAX`` bytes of the batch's records. A batch whose bytes there don't have the header's
name anywhere is not decoded at all. A compressed one is inflated if it is small, and gives at most
``INFLATED_BYTES_MAX`` bytes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from raylog.errors import KafkaError
from raylog.records.batch import ATTRIBUTES_LOW_POSITION, COMPRESSION_MASK, HEADER_SIZE, BatchView, Buffer
from raylog.records.compression import Compression, decompress
from raylog.records.varint import decode_varint

NAME: Final = b"traceparent"
RECORDS_MAX: Final = 8
HEADERS_MAX: Final = 64
SEARCHED_BYTES_MAX: Final = 64 << 10
INFLATED_BYTES_MAX: Final = 1 << 20
_SAMPLED: Final = 0x01
_form = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Traceparent:
    """``offset_delta``: of the record that has it, from the batch's base offset."""

    trace_id: bytes
    span_id: bytes
    offset_delta: int


def traceparents(batch: Buffer) -> tuple[Traceparent, ...]:
    """Of the first batch in the buffer: the sampled ones, in the order of its records."""
    records = _start(batch)
    return tuple(_walked(records)) if NAME in records else ()


def may_have(batch: Buffer) -> bool:
    """Whether the name is in the first bytes of a batch that is not compressed."""
    return NAME in bytes(batch[:SEARCHED_BYTES_MAX])


def is_compressed(batch: Buffer) -> bool:
    """Whether looking for the header takes inflating. False for what is no batch."""
    return len(batch) > HEADER_SIZE and bool(batch[ATTRIBUTES_LOW_POSITION] & COMPRESSION_MASK)


def _start(batch: Buffer) -> bytes:
    """The first bytes of its records, inflated; none of what is no batch."""
    try:
        view = BatchView(batch)
        if view.compression == Compression.NONE:
            return bytes(view.records[:SEARCHED_BYTES_MAX])
        if view.size > SEARCHED_BYTES_MAX:
            return b""
        return decompress(view.compression, view.records, max_bytes=INFLATED_BYTES_MAX)[:SEARCHED_BYTES_MAX]
    except KafkaError:
        return b""


def _walked(records: bytes) -> list[Traceparent]:
    found: list[Traceparent] = []
    position = 0
    try:
        for _ in range(RECORDS_MAX):
            if position >= len(records):
                break
            size, position = decode_varint(records, position)
            if size <= 0:
                break
            one = _of_record(records, position)
            if one is not None:
                found.append(one)
            position += size
    except KafkaError:
        pass  # the leader refuses the batch, or the searched bytes end inside the record
    return found


def _of_record(records: bytes, position: int) -> Traceparent | None:
    """Of the record whose attributes stand there: its first header of that name counts."""
    position += 1
    _, position = decode_varint(records, position)  # timestamp
    offset_delta, position = decode_varint(records, position)
    _, position = _content(records, position)  # key
    _, position = _content(records, position)  # value
    count, position = decode_varint(records, position)
    for _ in range(min(count, HEADERS_MAX)):
        name, position = _content(records, position)
        value, position = _content(records, position)
        if name == NAME:
            return _parsed(value, offset_delta)
    return None


def _content(records: bytes, position: int) -> tuple[bytes, int]:
    """Bytes behind their length; none for null, and where the searched bytes end before they do."""
    size, position = decode_varint(records, position)
    end = position + max(0, size)
    return records[position:end] if end <= len(records) else b"", end


def _parsed(value: bytes, offset_delta: int) -> Traceparent | None:
    form = _form.fullmatch(value)
    if form is None:
        return None
    version, trace_id, span_id, flags, more = form.groups()
    if version == b"ff" or (version == b"00" and more) or not int(flags, 16) & _SAMPLED:
        return None
    if not int(trace_id, 16) or not int(span_id, 16) or offset_delta < 0:
        return None
    return Traceparent(bytes.fromhex(trace_id.decode()), bytes.fromhex(span_id.decode()), offset_delta)
