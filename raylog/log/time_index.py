"""The time index of one segment (``<base offset>.timeindex``): from a timestamp to the offset where
it was reached.

Layout: entries of 12 bytes, big-endian: ``timestamp i64`` (the largest so far in the segment),
``relative offset i32`` (last offset of the batch that brought it − base offset). Timestamps
strictly ascend; a timestamp that is no larger adds no entry. The last slot is kept for the entry
that is written when the segment is rolled or closed, so the last entry always gives a sealed
segment's largest timestamp.
"""

from __future__ import annotations

import struct

from raylog.log.files import Files
from raylog.log.index_file import IndexFile

ENTRY = struct.Struct(">qi")
NO_TIMESTAMP = -1


class TimeIndex:
    """``file.count`` entries of ``(timestamp, relative offset)``."""

    __slots__ = ("base_offset", "file")

    def __init__(self, files: Files, path: str, *, base_offset: int) -> None:
        self.base_offset = base_offset
        self.file = IndexFile(files, path, ENTRY)

    def is_full(self) -> bool:
        return self.file.count >= self.file.max_count - 1

    def last(self) -> tuple[int, int]:
        """``(timestamp, offset)`` of the last entry; ``(−1, base offset)`` if there is none."""
        if not self.file.count:
            return NO_TIMESTAMP, self.base_offset
        timestamp, relative = self.file.get(self.file.count - 1)
        return timestamp, self.base_offset + relative

    def lookup(self, timestamp: int, *, in_memory: bool = False) -> tuple[int, int]:
        """``(timestamp, offset)`` of the greatest entry at or below ``timestamp``; ``(−1, base
        offset)`` if there is none.

        Every record before that offset is older than, or as old as, the entry.
        """
        number = self.file.floor(0, timestamp, in_memory=in_memory)
        if number < 0:
            return NO_TIMESTAMP, self.base_offset
        found, relative = self.file.get(number, in_memory=in_memory)
        return found, self.base_offset + relative

    def maybe_append(self, timestamp: int, offset: int) -> None:
        """Add an entry unless the timestamp is not larger than the last one's or no slot is left."""
        if timestamp > self.last()[0] and self.file.count < self.file.max_count:
            self.file.append(timestamp, offset - self.base_offset)

    def truncate_to(self, offset: int) -> None:
        """Drop the entries at or above ``offset``. Offsets ascend with timestamps."""
        self.file.keep(self.file.floor(1, offset - self.base_offset - 1) + 1)

    def fault(self) -> str | None:
        """Why a sealed index cannot be trusted, or None. Looks at the length and at the first and
        last entry.
        """
        if not self.file.is_whole():
            return "its length is no multiple of 12"
        if self.file.count > 1:
            first, last = self.file.get(0), self.file.get(self.file.count - 1)
            if last[0] <= first[0] or last[1] < first[1]:
                return "its last entry is not above its first"
        return None
