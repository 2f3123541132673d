"""The transactions of one log: where the stable part of the log ends, and which transactions were
aborted.

A batch of a transaction may be read by a consumer with ``isolation.level=read_committed`` once the
transaction has ended and its marker is below the high watermark. The *last stable offset* is where
the first transaction starts for which that does not hold, or the high watermark. Aborted
transactions stay in the log; their consumers get a list of them and leave them out.

The list is kept in Kafka's files, one per segment that has an abort marker, so that a folder can go
back and forth::

    <base offset>.txnindex    per aborted transaction, in the order of their markers, big-endian:
        version               i16  0
        producer id           i64
        first offset          i64
        last offset           i64  of the marker
        last stable offset    i64  after the marker: no transaction that starts below it is open

All of it is held in memory too, in 32 bytes per aborted transaction. The file is written before the
marker is, so no marker is without its entry; an entry without its marker is written over by the
next one. Files of segments that recovery had to scan are not trusted: if those hold markers, all
entries are found anew by a walk over the log's batch headers.

Invariants (``check``): entries ascend by last offset; open transactions are those that the
producers' states name.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from raylog.log.cleaned_transactions import marker_of
from raylog.log.files import Files
from raylog.log.producers import ProducerStates
from raylog.log.segment import Segment
from raylog.records.batch import BatchView
from raylog.records.control import Marker
from raylog.records.corrupt import CorruptBatch, UnsupportedMagic

ENTRY = struct.Struct(">hqqqq")
VERSION = 0
SUFFIX = ".txnindex"


class AbortedEntry(NamedTuple):
    """One entry of the file; ``last_offset`` is the marker's."""

    producer_id: int
    first_offset: int
    last_offset: int
    stable_end: int

    def encode(self) -> bytes:
        return ENTRY.pack(VERSION, *self)


class Transactions:
    """See the module. ``producers`` are the log's; they name the transactions that are open when
    the log is opened or cut.
    """

    __slots__ = ("_ended", "_entries", "_files", "_last_offsets", "_open", "_producers")

    def __init__(self, files: Files, producers: ProducerStates) -> None:
        self._files = files
        self._producers = producers
        self._entries = array("q")  # the fields of one after the other
        self._last_offsets = array("q")
        self._open: dict[int, int] = {}  # producer id → first offset
        self._ended: deque[tuple[int, int]] = (
            deque()
        )  # (first offset, marker's offset), not yet below the high watermark

    # ------------------------------------------------------------------ reading

    def stable_end(self, high_watermark: int) -> int:
        """The last stable offset."""
        ended = self._ended
        while ended and ended[0][1] < high_watermark:
            ended.popleft()
        if not ended and not self._open:
            return high_watermark
        return min(high_watermark, *self._open.values(), *(first for first, _ in ended))

    def aborted(self, offset: int, end_offset: int) -> tuple[tuple[int, int], ...]:
        """(producer id, first offset) of every aborted transaction that may have records in
        ``[offset, end_offset)``, by first offset.
        """
        found = []
        for number in range(bisect_left(self._last_offsets, offset), len(self._last_offsets)):
            entry = self._entry(number)
            if entry.first_offset < end_offset:
                found.append((entry.producer_id, entry.first_offset))
            if entry.stable_end >= end_offset:
                break  # whatever ended later began behind
        return tuple(sorted(found, key=lambda transaction: transaction[1]))

    def _entry(self, number: int) -> AbortedEntry:
        return AbortedEntry(*self._entries[4 * number : 4 * number + 4])

    def between(self, start: int, end: int) -> list[AbortedEntry]:
        """Those whose markers are in ``[start, end)``."""
        numbers = range(bisect_left(self._last_offsets, start), bisect_left(self._last_offsets, end))
        return [self._entry(number) for number in numbers]

    # ------------------------------------------------------------------ appending

    def write(self, batches: Iterable[BatchView], segment: Segment) -> None:
        """Write the entries of the abort markers among transactional batches that are about to be
        appended to ``segment``.
        """
        data = b"".join(entry.encode() for entry in _aborted(batches, dict(self._open)))
        if data:
            position = ENTRY.size * (len(self._last_offsets) - bisect_left(self._last_offsets, segment.base_offset))
            file = self._files.open(segment.path + SUFFIX, create=True)
            try:
                file.write_at(position, data)
                file.truncate(position + len(data))
            finally:
                file.close()

    def note(self, batches: Iterable[BatchView]) -> None:
        """The same batches are in the log."""
        for entry in _aborted(batches, self._open, self._ended.append):
            self._add(entry)

    def _add(self, entry: AbortedEntry) -> None:
        self._entries.extend(entry)
        self._last_offsets.append(entry.last_offset)

    # ------------------------------------------------------------------ opening and cutting

    def load(
        self, segments: Sequence[Segment], *, scanned_from: int | None, has_markers: bool, high_watermark: int
    ) -> None:
        """Of a log that is being opened; its producers' states are known.

        ``scanned_from`` is the base offset of the first segment that recovery scanned, None after a
        clean stop; ``has_markers`` says whether it met a marker there.
        """
        trusted = [each for each in segments if scanned_from is None or each.base_offset < scanned_from]
        if has_markers or not all(map(self._read, trusted)):
            self._find_anew(segments)
        else:
            for segment in segments[len(trusted) :]:
                self._files.remove(segment.path + SUFFIX)
        self._take_open()
        if any(state.coordinator_epoch >= 0 for state in self._producers):
            self._find_ended(segments, high_watermark)

    def _read(self, segment: Segment) -> bool:
        """Whether the segment's file is what it should be."""
        try:
            data = self._files.read_file(segment.path + SUFFIX)
        except FileNotFoundError:
            return True
        if len(data) % ENTRY.size:
            return False
        latest = max(segment.base_offset, self._last_offsets[-1] + 1 if self._last_offsets else 0)
        for version, *fields in ENTRY.iter_unpack(data):
            entry = AbortedEntry(*fields)
            if version != VERSION or not entry.first_offset < entry.last_offset or entry.last_offset < latest:
                return False
            self._add(entry)
            latest = entry.last_offset + 1
        return True

    def _find_anew(self, segments: Sequence[Segment]) -> None:
        """Walk over all batch headers, and write the files that differ."""
        del self._entries[:], self._last_offsets[:]
        open_: dict[int, int] = {}
        for segment in segments:
            entries = list(_aborted(_batches(segment), open_))
            for entry in entries:
                self._add(entry)
            data, path = b"".join(entry.encode() for entry in entries), segment.path + SUFFIX
            if data != (self._files.read_file(path) if self._files.exists(path) else b""):
                self._files.write_file(path, data)

    def _find_ended(self, segments: Sequence[Segment], high_watermark: int) -> None:
        """The transactions whose markers are not below the high watermark yet. Where there is no
        such marker, little is read.
        """
        first = max((number for number, each in enumerate(segments) if each.base_offset <= high_watermark), default=0)
        behind = (batch for segment in segments[first:] for batch in _batches(segment))
        if not any(batch.is_control and batch.base_offset >= high_watermark for batch in behind):
            return
        ended: list[tuple[int, int]] = []
        for _ in _aborted((batch for segment in segments for batch in _batches(segment)), {}, ended.append):
            pass
        self._ended = deque(each for each in ended if each[1] >= high_watermark)

    def _take_open(self) -> None:
        self._open = {
            state.producer_id: state.txn_first_offset for state in self._producers if state.txn_first_offset is not None
        }

    def cut(self, end_offset: int, active: Segment) -> None:
        """The log ends at ``end_offset`` now; its producers' states are as of there. ``active`` is
        its last segment.
        """
        kept = bisect_left(self._last_offsets, end_offset)
        if kept < len(self._last_offsets):
            del self._entries[4 * kept :], self._last_offsets[kept:]
            path = active.path + SUFFIX
            if self._files.exists(path):
                file = self._files.open(path)
                try:
                    file.truncate(ENTRY.size * (kept - bisect_left(self._last_offsets, active.base_offset)))
                finally:
                    file.close()
        self._take_open()
        self._ended = deque(each for each in self._ended if each[1] < end_offset)

    def keep(self, start: int, end: int, markers: Iterable[int]) -> None:
        """Of the entries whose markers are in ``[start, end)`` only those of ``markers`` are in the
        log any more.
        """
        kept = frozenset(markers)
        entries = [
            entry
            for entry in map(self._entry, range(len(self._last_offsets)))
            if not start <= entry.last_offset < end or entry.last_offset in kept
        ]
        del self._entries[:], self._last_offsets[:]
        for entry in entries:
            self._add(entry)

    def check(self) -> None:
        """Assert the invariants of the module's docstring."""
        assert list(self._last_offsets) == sorted(set(self._last_offsets)), self._last_offsets
        assert list(self._entries[2::4]) == list(self._last_offsets), self._entries
        there = {state.producer_id: state.txn_first_offset for state in self._producers if state.is_in_transaction}
        assert self._open == there, (self._open, there)


def _batches(segment: Segment) -> Iterator[BatchView]:
    """All up to one that is damaged: whoever reads there finds out."""
    try:
        for _, batch in segment.scan():
            yield batch
    except (CorruptBatch, UnsupportedMagic):
        return


def _aborted(
    batches: Iterable[BatchView],
    open_: dict[int, int],
    on_end: Callable[[tuple[int, int]], None] = lambda transaction: None,
) -> Iterator[AbortedEntry]:
    """The entries of the abort markers among batches that follow one another. ``open_`` is as of
    the first of them, and changes.
    """
    for batch in batches:
        if not batch.is_transactional:
            continue
        if not batch.is_control:
            open_.setdefault(batch.producer_id, batch.base_offset)
            continue
        first_offset = open_.pop(batch.producer_id, None)
        if first_offset is None:
            continue
        on_end((first_offset, batch.base_offset))
        if marker_of(batch) is Marker.ABORT:
            stable_end = min(open_.values(), default=batch.next_offset)
            yield AbortedEntry(batch.producer_id, first_offset, batch.base_offset, stable_end)
