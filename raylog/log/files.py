"""Everything the log does to a disk, as two small protocols, so that a simulator can put another
disk under it.

``Files`` is a file system, ``File`` one open file. Paths are plain strings. An open file belongs to
one thread; a flush in another thread goes through a handle of its own and covers what was written
through any handle before it.

What a disk promises here, and nothing more:

- ``write_at`` writes all bytes or raises OSError; after an error any prefix of them may be in the
  file.
- Written bytes are in the page cache: they survive the death of the process, not that of the
  machine. ``flush`` makes a file's bytes and length survive that too; ``sync_directory`` does it
  for the names in a directory (new files, ``replace``, ``remove``).
- ``replace`` is atomic: afterwards the name is either the old file or the new one.
- A read waits for the disk where the bytes are not in the page cache. One that must not wait is
  asked ``in_memory``: then it raises NotInMemory instead, ``load`` brings the bytes in from another
  thread, and the read is tried again. Loaded bytes may be gone again by then, so whoever has tried
  often enough reads without ``in_memory``.
- Trouble is an OSError with its errno; only ``lock`` and folders that cannot be used raise
  DiskError, which says what to do.
"""

from __future__ import annotations

from typing import Protocol

Buffer = bytes | bytearray | memoryview


class NotInMemory(Exception):
    """A read that must not wait would have to: not all bytes of that range are in the page cache.
    Nothing is wrong with them.
    """

    def __init__(self, path: str, position: int, size: int) -> None:
        super().__init__(f"{path}: {size} bytes at {position} are not in memory")
        self.path = path
        self.position = position
        self.size = size


class File(Protocol):
    """An open file, read and written at positions."""

    def read_at(self, position: int, size: int, *, in_memory: bool = False) -> bytes | bytearray:
        """``size`` bytes from ``position``, the caller's own; fewer only where the file ends.

        ``in_memory``: raises NotInMemory rather than wait for the disk. Where a file system cannot
        tell, it waits.
        """
        ...

    def write_at(self, position: int, *buffers: Buffer) -> int:
        """Write all buffers one after the other from ``position``; returns the number of bytes."""
        ...

    def truncate(self, size: int) -> None:
        """Cut the file to ``size`` bytes, or extend it with zeros (sparsely: a full disk shows at
        the write).
        """
        ...

    def flush(self) -> None:
        """Return when everything written to the file before the call, through any handle, is on the
        disk (fdatasync).
        """
        ...

    def size(self) -> int: ...

    def identity(self) -> tuple[int, int] | None:
        """Device and inode, by which another process of this machine knows that it has opened the
        same file; None: no other can.
        """
        ...

    def close(self) -> None:
        """Idempotent. Does not flush."""
        ...


class Lock(Protocol):
    """A lock that dies with its process."""

    def close(self) -> None: ...


class Files(Protocol):
    """A file system."""

    def open(self, path: str, *, create: bool = False) -> File:
        """Open for reading and writing; without ``create`` a missing file raises FileNotFoundError."""
        ...

    def load(self, path: str, position: int, size: int) -> None:
        """Return when that range of a file, and some of what follows it, is in memory. For threads:
        it has a handle of its own.

        A file that is gone, or ends before the range does, is no error: whoever reads there next
        finds out.
        """
        ...

    def exists(self, path: str) -> bool:
        """Whether a file or a directory has that name."""
        ...

    def list_directory(self, path: str) -> list[str]:
        """The names in it, sorted. FileNotFoundError if there is no such directory."""
        ...

    def make_directory(self, path: str) -> None:
        """With its parents; one that exists is fine."""
        ...

    def keep_private(self, path: str) -> None:
        """From now on only the owner may enter the directory ``path``, and read the files that are in
        it or that are made there.
        """
        ...

    def replace(self, source: str, destination: str) -> None:
        """Rename a file or a directory atomically; a file at ``destination`` is replaced."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file; a missing one is fine."""
        ...

    def remove_directory(self, path: str) -> None:
        """Remove a directory with all that is in it; a missing one is fine."""
        ...

    def sync_directory(self, path: str) -> None:
        """Return when the names in the directory are on the disk."""
        ...

    def size(self, path: str) -> int: ...

    def modified_ms(self, path: str) -> int:
        """When the file's bytes last changed, in wall-clock milliseconds."""
        ...

    def read_file(self, path: str) -> bytes:
        """All of a small file. FileNotFoundError if it is missing."""
        ...

    def write_file(self, path: str, data: bytes, *, flush: bool = True) -> None:
        """Replace a small file atomically: a temporary file ``<path>.tmp``, then ``replace``.

        ``flush`` flushes the bytes before and the directory after the rename.
        """
        ...

    def lock(self, path: str) -> Lock:
        """Take the exclusive lock on the file ``path`` (created if missing), at once or not at all:
        DiskError if another holds it.
        """
        ...

    def free_bytes(self, path: str) -> int:
        """How much may still be written to the disk that holds ``path``."""
        ...
