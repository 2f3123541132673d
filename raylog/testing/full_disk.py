"""A disk that can be made full while servers use it: a wrapper around any ``Files``.

``FillableDisk`` is the disk, with what all its users share: whether it is full. ``files()`` gives
one server process its view of it. While the disk is full, writes, new files and extensions fail
with ENOSPC, nothing of them being written, and everything that is there can be read and removed. A
view remembers whether it ever refused: a replica that met a disk error stays offline until its
process is replaced, so whoever frees the disk must know which processes those are.
"""

from __future__ import annotations

import errno
import os

from raylog.log.files import Buffer, File, Files, Lock


class FillableDisk:
    """``is_full`` may be set from any thread; it counts from the next write on."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self.is_full = False

    def files(self) -> FillableFiles:
        """A view for one server process."""
        return FillableFiles(self, self._files)


class FillableFiles:
    """One process's view: everything is the underlying file system's, except when the disk is full."""

    def __init__(self, disk: FillableDisk, files: Files) -> None:
        self._disk = disk
        self._files = files
        self.has_refused = False

    @property
    def is_full(self) -> bool:
        return self._disk.is_full

    def check(self, path: str) -> None:
        """Raises OSError (ENOSPC) while the disk is full."""
        if self._disk.is_full:
            self.has_refused = True
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    def open(self, path: str, *, create: bool = False) -> File:
        if create and not self._files.exists(path):
            self.check(path)
        return _FillableFile(self, path, self._files.open(path, create=create))

    def write_file(self, path: str, data: bytes, *, flush: bool = True) -> None:
        self.check(path)
        self._files.write_file(path, data, flush=flush)

    def make_directory(self, path: str) -> None:
        if not self._files.exists(path):
            self.check(path)
        self._files.make_directory(path)

    def keep_private(self, path: str) -> None:
        self._files.keep_private(path)

    def free_bytes(self, path: str) -> int:
        return 0 if self._disk.is_full else self._files.free_bytes(path)

    def load(self, path: str, position: int, size: int) -> None:
        self._files.load(path, position, size)

    def exists(self, path: str) -> bool:
        return self._files.exists(path)

    def list_directory(self, path: str) -> list[str]:
        return self._files.list_directory(path)

    def replace(self, source: str, destination: str) -> None:
        self._files.replace(source, destination)

    def remove(self, path: str) -> None:
        self._files.remove(path)

    def remove_directory(self, path: str) -> None:
        self._files.remove_directory(path)

    def sync_directory(self, path: str) -> None:
        self._files.sync_directory(path)

    def size(self, path: str) -> int:
        return self._files.size(path)

    def modified_ms(self, path: str) -> int:
        return self._files.modified_ms(path)

    def read_file(self, path: str) -> bytes:
        return self._files.read_file(path)

    def lock(self, path: str) -> Lock:
        return self._files.lock(path)


class _FillableFile:
    __slots__ = ("_file", "_files", "_path")

    def __init__(self, files: FillableFiles, path: str, file: File) -> None:
        self._files = files
        self._path = path
        self._file = file

    def read_at(self, position: int, size: int, *, in_memory: bool = False) -> bytes | bytearray:
        return self._file.read_at(position, size, in_memory=in_memory)

    def write_at(self, position: int, *buffers: Buffer) -> int:
        self._files.check(self._path)
        return self._file.write_at(position, *buffers)

    def truncate(self, size: int) -> None:
        if size > self._file.size():
            self._files.check(self._path)
        self._file.truncate(size)

    def flush(self) -> None:
        self._file.flush()

    def size(self) -> int:
        return self._file.size()

    def identity(self) -> tuple[int, int] | None:
        return self._file.identity()

    def close(self) -> None:
        self._file.close()


_conforms: type[Files] = FillableFiles
