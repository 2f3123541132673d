"""Bounded reads of a topic: so many records, so many bytes, so much time, whichever is reached first.

A read begins at an offset of each partition and ends, at the latest, at what was the end when it
began. ``Found.at`` says where to go on. At most ``READS_MAX`` reads are under way at a time: each may
hold a record of any size.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from raylog.console.pages import PageError
from raylog.console.view import ClusterView
from raylog.schemas.decoding import Decoded, Reading
from raylog.types import TopicPartition

if TYPE_CHECKING:
    from raylog.records.record import Record

SHOWN_MAX = 500
SCANNED_MAX = 20_000
SCANNED_BYTES_MAX = 64 << 20
READ_S = 5.0
FIRST_RECORD_S = 30.0
"""How much longer a read waits for its first record: one of 100 MB has to come whole."""
READS_MAX = 2
TOO_LONG = f"after {READ_S:.0f} seconds"
POLL_S = 0.2
POLLED_MAX = 200
FETCH_BYTES = 4 << 20
PARTITION_FETCH_BYTES = 1 << 20
_reads = threading.BoundedSemaphore(READS_MAX)


@dataclass(frozen=True, slots=True)
class Filter:
    """What a record must have; empty texts ask for nothing. Keys and values match where they, or the
    JSON that they are decoded to, contain the text's bytes; ``header`` is "name" or "name=text".
    """

    key: str = ""
    value: str = ""
    header: str = ""

    @property
    def is_there(self) -> bool:
        return bool(self.key or self.value or self.header)

    def takes(self, record: Record, reading: Reading | None = None) -> bool:
        if self.key and not _has(record.key, self.key, reading):
            return False
        if self.value and not _has(record.value, self.value, reading):
            return False
        return not self.header or self._takes_header(record)

    def _takes_header(self, record: Record) -> bool:
        name, equals, text = self.header.partition("=")
        return any(
            each == name and (not equals or text.encode() in (content or b"")) for each, content in record.headers
        )


def _has(data: bytes | None, text: str, reading: Reading | None) -> bool:
    """JSON of what is decoded has a space behind each colon and comma, as on the page."""
    if data is None or text.encode() in data:
        return data is not None
    decoded = None if reading is None else reading.decoded(data)
    return isinstance(decoded, Decoded) and text in decoded.text()


@dataclass(slots=True)
class Found:
    """``records`` in the order of partitions as they came. ``at``: where each partition goes on.
    ``stopped_by``: which bound ended the read before its end; empty: none did.
    """

    at: dict[TopicPartition, int]
    records: list[Record] = field(default_factory=list)
    scanned: int = 0
    scanned_bytes: int = 0
    stopped_by: str = ""


def read(
    view: ClusterView,
    start: Mapping[TopicPartition, int],
    *,
    shown_max: int,
    filter: Filter = Filter(),
    is_committed: bool = False,
    reading: Reading | None = None,
) -> Found:
    """Read from these offsets, which are brought into the logs' ranges. Raises PageError (503) when
    too many reads are under way.
    """
    keys = sorted(start)
    earliest = view.admin.list_offsets(dict.fromkeys(keys, "earliest"))
    latest = view.admin.list_offsets(dict.fromkeys(keys, "latest"))
    ends = {key: latest[key].offset for key in keys}
    found = Found({key: min(max(start[key], earliest[key].offset), ends[key]) for key in keys})
    wanted = [key for key in keys if found.at[key] < ends[key]]
    if wanted:
        with _slot():
            _fill(view, found, wanted, ends, shown_max, is_committed, lambda record: filter.takes(record, reading))
    return found


def _fill(
    view: ClusterView,
    found: Found,
    wanted: Sequence[TopicPartition],
    ends: Mapping[TopicPartition, int],
    shown_max: int,
    is_committed: bool,
    is_wanted: Callable[[Record], bool],
) -> None:
    deadline = time.monotonic() + READ_S
    left = set(wanted)
    with view.consumer(
        isolation_level="read_committed" if is_committed else "read_uncommitted",
        fetch_max_bytes=FETCH_BYTES,
        max_partition_fetch_bytes=PARTITION_FETCH_BYTES,
        fetch_max_wait_ms=POLL_S * 1000,
    ) as consumer:
        consumer.assign(list(wanted))
        for key in wanted:
            consumer.seek(key, found.at[key])
        while left and not found.stopped_by:
            for record in consumer.consume(POLLED_MAX, timeout=POLL_S):
                key = TopicPartition(record.topic, record.partition)
                if record.offset >= ends[key]:
                    continue
                found.at[key] = record.offset + 1
                _take(found, record, is_wanted)
                found.stopped_by = _bound(found, shown_max, deadline)
                if found.stopped_by:
                    break
            else:
                done = {key for key in left if consumer.position(key) >= ends[key]}
                for key in done:  # behind the last record there may be markers and what was compacted
                    found.at[key] = ends[key]
                if done:
                    consumer.pause(*done)
                left -= done
                if left and time.monotonic() > deadline + (0 if found.scanned else FIRST_RECORD_S):
                    found.stopped_by = TOO_LONG
        if not left:
            found.stopped_by = ""


def _take(found: Found, record: Record, is_wanted: Callable[[Record], bool]) -> None:
    found.scanned += 1
    found.scanned_bytes += len(record.key or b"") + len(record.value or b"")
    if is_wanted(record):
        found.records.append(record)


def _bound(found: Found, shown_max: int, deadline: float) -> str:
    if len(found.records) >= shown_max:
        return f"at {shown_max:,} records"
    if found.scanned >= SCANNED_MAX:
        return f"after {found.scanned:,} records were looked at"
    if found.scanned_bytes >= SCANNED_BYTES_MAX:
        return f"after {found.scanned_bytes // (1 << 20):,} MiB were looked at"
    if time.monotonic() > deadline:
        return TOO_LONG
    return ""


@contextmanager
def _slot() -> Iterator[None]:
    if not _reads.acquire(timeout=READ_S):
        raise PageError(503, f"{READS_MAX} reads are under way in this console: try again")
    try:
        yield
    finally:
        _reads.release()
