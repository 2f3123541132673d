"""What a log answers: where an append went, what a read found, and its own refusals."""

from __future__ import annotations

from dataclasses import dataclass

from kio.schema.errors import ErrorCode

from raylog.errors import kafka_error
from raylog.log.files import Buffer

OffsetOutOfRange = kafka_error(ErrorCode.offset_out_of_range)
RecordListTooLarge = kafka_error(ErrorCode.record_list_too_large)
Found = tuple[int, int, int]
"""Timestamp, offset and leader epoch of a record."""


@dataclass(slots=True)
class AppendResult:
    """Where records went. ``log_append_time_ms`` −1 unless the topic stamps them; a duplicate names
    its first append.
    """

    base_offset: int
    last_offset: int
    log_append_time_ms: int
    log_start_offset: int
    duplicate: bool = False


@dataclass(slots=True)
class LogSlice:
    """Whole batches. ``base_offset`` is the first batch's (at or below what was asked for),
    ``next_offset`` follows the last one.
    """

    records: Buffer
    base_offset: int
    next_offset: int
