"""A real disk that can be made to fail while servers use it."""

from __future__ import annotations

import errno
import os

from raylog.log.disk_files import DiskFiles
from raylog.log.files import Buffer, File


class FaultyFiles(DiskFiles):
    """The operating system's files. While ``write_error`` (an errno) is set, writes fail after half of their bytes;
    while ``read_error`` is, reads fail."""

    def __init__(self) -> None:
        self.write_error: int | None = None
        self.read_error: int | None = None
        self.read_bug: Exception | None = None  # raised by reads as it is: no error of a disk
        self.failed_writes = 0

    def fill_up(self) -> None:
        """From now on the disk is full."""
        self.write_error = errno.ENOSPC

    def mend(self) -> None:
        self.write_error = self.read_error = None

    def check(self, error: int | None, path: str) -> None:
        if error is not None:
            raise OSError(error, os.strerror(error), path)

    def open(self, path: str, *, create: bool = False) -> File:
        if create and not self.exists(path):
            self.check(self.write_error, path)
        return _FaultyFile(self, path, super().open(path, create=create))

    def write_file(self, path: str, data: bytes, *, flush: bool = True) -> None:
        self.check(self.write_error, path)
        super().write_file(path, data, flush=flush)


class _FaultyFile:
    def __init__(self, files: FaultyFiles, path: str, file: File) -> None:
        self._files = files
        self._path = path
        self._file = file

    def read_at(self, position: int, size: int, *, in_memory: bool = False) -> bytes | bytearray:
        self._files.check(self._files.read_error, self._path)
        if self._files.read_bug is not None:
            raise self._files.read_bug
        return self._file.read_at(position, size, in_memory=in_memory)

    def write_at(self, position: int, *buffers: Buffer) -> int:
        if self._files.write_error is not None:
            self._files.failed_writes += 1
            whole = b"".join(bytes(buffer) for buffer in buffers)
            self._file.write_at(position, whole[: len(whole) // 2])
            self._files.check(self._files.write_error, self._path)
        return self._file.write_at(position, *buffers)

    def truncate(self, size: int) -> None:
        self._file.truncate(size)

    def flush(self) -> None:
        self._files.check(self._files.write_error, self._path)
        self._file.flush()

    def size(self) -> int:
        return self._file.size()

    def identity(self) -> tuple[int, int] | None:
        return self._file.identity()

    def close(self) -> None:
        self._file.close()
