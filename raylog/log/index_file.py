"""A file of fixed-size entries that only grows at its end: what the offset index and the time index
have in common.

While its segment is active the file is preallocated (``segment.index.bytes`` rounded down to whole
entries, sparse zeros, as Apache Kafka does it) and its entries are also held in memory; appended
entries are written in small groups, because an index that a crash cut short is rebuilt from the log
anyway. Sealed, the file is trimmed to its entries and a lookup reads single entries from it, so an
old segment costs no memory. A lookup that must not wait for the disk (``in_memory``) asks for the
whole file where an entry is missing, so that a binary search through an old index needs one load.

Invariants: ``0 <= _written_bytes <= len(_tail) == count * entry_bytes`` while active; a sealed file
is exactly its entries.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import suppress

from raylog.log.files import File, Files, NotInMemory

_GROUP_BYTES = 512


class IndexFile:
    """Entries by number. ``count`` are in use; ``max_count`` fit. ``opening``, if set, does the
    opening of the file.
    """

    __slots__ = ("_file", "_files", "_tail", "_written_bytes", "count", "entry", "max_count", "opening", "path")

    def __init__(self, files: Files, path: str, entry: struct.Struct) -> None:
        self._files = files
        self._file: File | None = None
        self._tail: bytearray | None = None
        self._written_bytes = 0
        self.opening: Callable[[Callable[[], File]], File] | None = None
        self.path = path
        self.entry = entry
        self.count = 0
        self.max_count = 0

    def start(self, max_bytes: int) -> None:
        """Begin an empty active index, whatever the file held."""
        self.close()
        file = self._open(create=True)
        self.count = 0
        self.max_count = max_bytes // self.entry.size
        self._tail = bytearray()
        self._written_bytes = 0
        file.truncate(0)
        file.truncate(self.max_count * self.entry.size)

    def load_sealed(self) -> None:
        """Take the file as a sealed index. FileNotFoundError if it is missing."""
        self.count = self.max_count = self._files.size(self.path) // self.entry.size

    def is_whole(self) -> bool:
        """Whether the file's length is a whole number of entries."""
        return self._files.size(self.path) % self.entry.size == 0

    def reopen(self, max_bytes: int) -> None:
        """Make a sealed index the active one again."""
        assert self._tail is None, self.path
        size = self.count * self.entry.size
        self._tail = bytearray(self._opened().read_at(0, size))
        self._written_bytes = size
        self.max_count = max(max_bytes // self.entry.size, self.count)
        self._opened().truncate(self.max_count * self.entry.size)

    def get(self, number: int, *, in_memory: bool = False) -> tuple[int, ...]:
        """The fields of one entry. ``in_memory``: raises NotInMemory rather than wait for the disk."""
        assert 0 <= number < self.count, (number, self.count)
        size = self.entry.size
        if self._tail is not None:
            return self.entry.unpack_from(self._tail, number * size)
        try:
            return self.entry.unpack(self._opened().read_at(number * size, size, in_memory=in_memory))
        except NotInMemory as missing:
            raise NotInMemory(missing.path, 0, self.count * size) from None

    def floor(self, field: int, target: int, *, in_memory: bool = False) -> int:
        """The number of the last entry whose ``field`` is at most ``target``; −1 if there is none.
        Binary search.
        """
        low, high = 0, self.count
        while low < high:
            middle = (low + high) // 2
            if self.get(middle, in_memory=in_memory)[field] <= target:
                low = middle + 1
            else:
                high = middle
        return low - 1

    def append(self, *fields: int) -> None:
        tail = self._tail
        assert tail is not None and self.count < self.max_count, (self.path, self.count, self.max_count)
        tail += self.entry.pack(*fields)
        self.count += 1
        if len(tail) - self._written_bytes >= _GROUP_BYTES:
            # The batch that the entry names is in the log already, so this may not fail: the
            # entries stay in memory, and ``write`` at the roll or at the close reports what is
            # wrong with the disk.
            with suppress(OSError):
                self.write()

    def write(self) -> None:
        """Hand the entries that are only in memory to the file."""
        tail = self._tail
        if tail is not None and self._written_bytes < len(tail):
            self._opened().write_at(self._written_bytes, bytes(tail[self._written_bytes :]))
            self._written_bytes = len(tail)

    def keep(self, count: int) -> None:
        """Drop the entries from number ``count`` on (active only)."""
        tail = self._tail
        assert tail is not None and 0 <= count <= self.count, (self.path, count, self.count)
        if count == self.count:
            return
        del tail[count * self.entry.size :]
        self.count = count
        if self._written_bytes > len(tail):
            self._written_bytes = len(tail)
            file = self._opened()
            file.truncate(len(tail))
            file.truncate(self.max_count * self.entry.size)

    def trim(self) -> None:
        """Cut the file to its entries, all of which it has then. The index stays active: what is
        appended makes it longer again.
        """
        if self._tail is not None:
            self.write()
            self._opened().truncate(self.count * self.entry.size)

    def seal(self) -> None:
        """Forget the copy in memory; the file is trimmed. Asks nothing of the disk, so it cannot
        fail.
        """
        if self._tail is not None:
            assert self._written_bytes == len(self._tail), (self.path, self._written_bytes, len(self._tail))
            self._tail = None
            self.max_count = self.count

    def close(self) -> None:
        """Close the file; it is opened again when it is needed."""
        if self._file is not None:
            self._file.close()
            self._file = None

    @property
    def is_open(self) -> bool:
        return self._file is not None

    def _opened(self) -> File:
        return self._open() if self._file is None else self._file

    def _open(self, *, create: bool = False) -> File:
        def opening() -> File:
            return self._files.open(self.path, create=create)

        self._file = opening() if self.opening is None else self.opening(opening)
        return self._file
