"""The offset index of one segment (``<base offset>.index``): from an offset to where to start
reading.

Layout: entries of 8 bytes, big-endian: ``relative offset i32`` (last offset of a batch − base
offset of the segment), ``position i32`` (of that batch in the ``.log``). Both strictly ascend.
Sparse: one entry for every ``index.interval.bytes`` of log. Looking up an offset gives the greatest
entry at or below it; the reader scans on from there.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from raylog.log.files import Files
from raylog.log.index_file import IndexFile

ENTRY = struct.Struct(">ii")
MAX_RELATIVE_OFFSET = (1 << 31) - 1


class OffsetIndex:
    """``file.count`` entries of ``(relative offset, position)``."""

    __slots__ = ("base_offset", "file")

    def __init__(self, files: Files, path: str, *, base_offset: int) -> None:
        self.base_offset = base_offset
        self.file = IndexFile(files, path, ENTRY)

    def is_full(self) -> bool:
        return self.file.count >= self.file.max_count

    def lookup(self, offset: int, *, in_memory: bool = False) -> tuple[int, int]:
        """``(offset, position)`` of the greatest entry at or below ``offset``; ``(base offset, 0)``
        if there is none.
        """
        number = self.file.floor(0, offset - self.base_offset, in_memory=in_memory)
        if number < 0:
            return self.base_offset, 0
        relative, position = self.file.get(number, in_memory=in_memory)
        return self.base_offset + relative, position

    def last_position(self) -> int:
        """The position that the last entry names; 0 if there is none."""
        return self.file.get(self.file.count - 1)[1] if self.file.count else 0

    def last_entries(self, position: int, offset: int) -> Iterator[tuple[int, int]]:
        """The last two ``(offset, position)`` at or below both. Raises NotInMemory where the disk
        would be waited for.
        """
        file = self.file
        last = min(file.floor(1, position, in_memory=True), file.floor(0, offset - self.base_offset, in_memory=True))
        for number in range(last, max(last - 2, -1), -1):
            relative, found = file.get(number, in_memory=True)
            yield self.base_offset + relative, found

    def append(self, offset: int, position: int) -> None:
        relative = offset - self.base_offset
        assert 0 <= relative <= MAX_RELATIVE_OFFSET, (offset, self.base_offset)
        if self.file.count:
            last_relative, last_position = self.file.get(self.file.count - 1)
            assert relative > last_relative and position > last_position, (
                offset,
                position,
                last_relative,
                last_position,
            )
        self.file.append(relative, position)

    def truncate_to(self, offset: int) -> None:
        """Drop the entries at or above ``offset``."""
        self.file.keep(self.file.floor(0, offset - self.base_offset - 1) + 1)

    def fault(self, log_bytes: int) -> str | None:
        """Why a sealed index cannot be trusted, or None. Looks at the length and at the first and
        last entry.
        """
        if not self.file.is_whole():
            return "its length is no multiple of 8"
        if self.file.count:
            first, last = self.file.get(0), self.file.get(self.file.count - 1)
            if first[1] <= 0:
                return "its first entry names the first batch, which none does"
            if last[0] < 0 or last[1] < 0 or (self.file.count > 1 and (last[0] <= first[0] or last[1] <= first[1])):
                return "its last entry is not above its first"
            if last[1] >= log_bytes:
                return "its last entry points behind the end of the log"
        return None
