"""Finding records by time in the segments of a log: ListOffsets with a timestamp, and the record
with the largest one (KIP-734).

Reads only; ``in_memory`` as for ``Log.read``. Damage raises CorruptBatch, also in a batch that is
passed over: its timestamps can't be believed, and a later record would be found instead.
"""

from __future__ import annotations

from collections.abc import Iterator

from raylog.log.results import Found
from raylog.log.segment import Segment
from raylog.log.segments import Segments
from raylog.log.time_index import NO_TIMESTAMP
from raylog.records.batch import BatchView
from raylog.records.codec import light_records
from raylog.records.corrupt import CorruptBatch


def first_at_or_after(
    segments: Segments, timestamp: int, *, start_offset: int, end_offset: int, in_memory: bool
) -> Found | None:
    """The first record in ``[start_offset, end_offset)`` whose timestamp is at least this; None if
    none is.
    """
    for segment in segments:
        if segment.base_offset >= end_offset:
            break
        if segment.largest_timestamp < timestamp:
            continue
        segments.warm(segment)
        floor = max(segment.time_index.lookup(timestamp - 1, in_memory=in_memory)[1], start_offset)
        start = segment.offset_index.lookup(floor, in_memory=in_memory)[1]
        for batch in _sound(segment, start, in_memory=in_memory):
            if batch.base_offset >= end_offset:
                break
            if batch.max_timestamp < timestamp or batch.last_offset < start_offset:
                continue
            for record in light_records(batch):
                if record.timestamp >= timestamp and start_offset <= record.offset < end_offset:
                    return record.timestamp, record.offset, batch.partition_leader_epoch
    return None


def latest_in_time(segments: Segments, *, start_offset: int, end_offset: int, in_memory: bool) -> Found | None:
    """The first record that has the largest timestamp; None without timestamps."""
    largest = max((segment.largest_timestamp for segment in segments), default=NO_TIMESTAMP)
    while largest >= 0:
        found = first_at_or_after(
            segments, largest, start_offset=start_offset, end_offset=end_offset, in_memory=in_memory
        )
        if found is not None:
            return found
        # It was that of a batch that compaction has emptied, or of one outside of the range: the
        # largest below it, then.
        largest = max(
            (
                batch.max_timestamp
                for segment in segments
                for batch in _sound(segment, 0, in_memory=in_memory)
                if batch.record_count and batch.max_timestamp < largest and batch.base_offset < end_offset
            ),
            default=NO_TIMESTAMP,
        )
    return None


def _sound(segment: Segment, position: int, *, in_memory: bool) -> Iterator[BatchView]:
    """The batches of a segment from a batch's position on, each with a CRC that fits."""
    for start, batch in segment.scan(position, in_memory=in_memory):
        if not batch.has_valid_crc():
            raise CorruptBatch(f"{segment.path}.log: a CRC does not fit", start)
        yield batch
