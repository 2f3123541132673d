"""A file system in memory, for logs that need not outlive their process: ``Files`` (raylog/log/files.py) over bytearrays.

It owns the contents of files, the names of directories and the locks. Unlike ``simulated_files`` it is no model of a disk: nothing is lost,
torn or drawn, a flush has nothing to do, and every byte is in memory. Servers that share one ``MemoryFiles`` see the same files, so what a
crashed one wrote is there for its successor. Locks belong to whoever holds the ``Lock``; its ``close`` is what the end of a process is.

Methods may be called from any thread; a file that was removed stays readable through handles that are open.
"""

from __future__ import annotations

import errno
import os
import posixpath
import threading
import time
from dataclasses import dataclass, field

from raylog.errors import DiskLockedError
from raylog.log.files import Buffer, File, Files, Lock

FREE_BYTES = 1 << 40
"""What is said to be free: nobody counts."""


@dataclass(slots=True, eq=False)
class _Content:
    data: bytearray = field(default_factory=bytearray)
    modified_ms: int = 0


class _OpenFile:
    """A handle."""

    __slots__ = ("_content",)

    def __init__(self, content: _Content) -> None:
        self._content = content

    def read_at(self, position: int, size: int, *, in_memory: bool = False) -> bytes | bytearray:
        return self._content.data[position : position + size]

    def write_at(self, position: int, *buffers: Buffer) -> int:
        data, start = self._content.data, position
        if position > len(data):
            data.extend(bytes(position - len(data)))
        for buffer in buffers:
            view = memoryview(buffer).cast("B")
            data[position : position + len(view)] = view
            position += len(view)
        self._content.modified_ms = _now_ms()
        return position - start

    def truncate(self, size: int) -> None:
        data = self._content.data
        if size < len(data):
            del data[size:]
        else:
            data.extend(bytes(size - len(data)))
        self._content.modified_ms = _now_ms()

    def flush(self) -> None:
        pass

    def size(self) -> int:
        return len(self._content.data)

    def close(self) -> None:
        pass


class _HeldLock:
    def __init__(self, held: set[str], path: str) -> None:
        self._held = held
        self._path = path

    def close(self) -> None:
        self._held.discard(self._path)


class MemoryFiles:
    """One file system. ``FileNotFoundError`` and its like are raised as the operating system does."""

    def __init__(self) -> None:
        self._files: dict[str, _Content] = {}
        self._directories: set[str] = set()
        self._locked: set[str] = set()
        self._mutex = threading.Lock()  # around whatever looks at more than one name

    def open(self, path: str, *, create: bool = False) -> File:
        with self._mutex:
            content = self._files.get(path)
            if content is None:
                if not create or not self._is_directory(posixpath.dirname(path)):
                    raise _missing(path)
                content = self._files[path] = _Content(modified_ms=_now_ms())
            return _OpenFile(content)

    def load(self, path: str, position: int, size: int) -> None:
        pass

    def exists(self, path: str) -> bool:
        return path in self._files or self._is_directory(path)

    def list_directory(self, path: str) -> list[str]:
        with self._mutex:
            if not self._is_directory(path):
                raise _missing(path)
            start = path + "/"
            names = [*self._files, *self._directories]
            return sorted({name[len(start) :].partition("/")[0] for name in names if name.startswith(start)})

    def make_directory(self, path: str) -> None:
        with self._mutex:
            while path not in ("", "/"):
                self._directories.add(path)
                path = posixpath.dirname(path)

    def replace(self, source: str, destination: str) -> None:
        with self._mutex:
            if source in self._files:
                self._files[destination] = self._files.pop(source)
            elif self._is_directory(source):
                start = source + "/"
                for name in [name for name in self._files if name.startswith(start)]:
                    self._files[destination + name[len(source) :]] = self._files.pop(name)
                for name in [name for name in self._directories if name == source or name.startswith(start)]:
                    self._directories.remove(name)
                    self._directories.add(destination + name[len(source) :])
            else:
                raise _missing(source)

    def remove(self, path: str) -> None:
        self._files.pop(path, None)

    def remove_directory(self, path: str) -> None:
        with self._mutex:
            start = path + "/"
            for name in [name for name in self._files if name.startswith(start)]:
                del self._files[name]
            self._directories = {name for name in self._directories if name != path and not name.startswith(start)}

    def sync_directory(self, path: str) -> None:
        pass

    def size(self, path: str) -> int:
        return len(self._content(path).data)

    def modified_ms(self, path: str) -> int:
        return self._content(path).modified_ms

    def read_file(self, path: str) -> bytes:
        return bytes(self._content(path).data)

    def write_file(self, path: str, data: bytes, *, flush: bool = True) -> None:
        with self._mutex:
            if not self._is_directory(posixpath.dirname(path)):
                raise _missing(path)
            self._files[path] = _Content(bytearray(data), _now_ms())

    def lock(self, path: str) -> Lock:
        with self._mutex:
            if path in self._locked:
                raise DiskLockedError(f"{path} is locked by another server of this process. Stop it first.")
            self._files.setdefault(path, _Content(modified_ms=_now_ms()))
            self._locked.add(path)
            return _HeldLock(self._locked, path)

    def free_bytes(self, path: str) -> int:
        return FREE_BYTES

    def _is_directory(self, path: str) -> bool:
        return path in self._directories

    def _content(self, path: str) -> _Content:
        content = self._files.get(path)
        if content is None:
            raise _missing(path)
        return content


def _missing(path: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


_conforms: type[Files] = MemoryFiles
