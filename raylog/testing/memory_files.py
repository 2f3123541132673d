"""A file system in memory, for logs that need not outlive their process: ``Files``
(raylog/log/files.py) over bytearrays.

It owns the contents of files, the names of directories and the locks. Unlike ``simulated_files`` it
is no model of a disk: nothing is lost, torn or drawn, a flush has nothing to do, and every byte is
in memory. Servers that share one ``MemoryFiles`` see the same files, so what a crashed one wrote is
there for its successor. Locks belong to whoever holds the ``Lock``; its ``close`` is what the end
of a process is.

Methods may be called from any thread; a file that was removed stays readable through handles that
are open.
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
    """``size`` bytes: ``data``, and zeros that nobody has written. (Index files are made as large
    as they may become.)

    Invariant: len(data) <= size.
    """

    data: bytearray = field(default_factory=bytearray)
    size: int = 0
    modified_ms: int = field(default_factory=lambda: _now_ms())


class _OpenFile:
    """A handle."""

    __slots__ = ("_content",)

    def __init__(self, content: _Content) -> None:
        self._content = content

    def read_at(self, position: int, size: int, *, in_memory: bool = False) -> bytes | bytearray:
        content = self._content
        end = max(position, min(position + size, content.size))
        found = content.data[position:end]
        return found + bytes(end - position - len(found))

    def write_at(self, position: int, *buffers: Buffer) -> int:
        data, start = self._content.data, position
        if position > len(data):
            data.extend(bytes(position - len(data)))
        for buffer in buffers:
            view = memoryview(buffer).cast("B")
            data[position : position + len(view)] = view
            position += len(view)
        self._content.size = max(self._content.size, position)
        self._content.modified_ms = _now_ms()
        return position - start

    def truncate(self, size: int) -> None:
        del self._content.data[size:]
        self._content.size = size
        self._content.modified_ms = _now_ms()

    def flush(self) -> None:
        pass

    def size(self) -> int:
        return self._content.size

    def identity(self) -> None:
        return None

    def close(self) -> None:
        pass


class _HeldLock:
    def __init__(self, held: set[str], path: str) -> None:
        self._held = held
        self._path = path

    def close(self) -> None:
        self._held.discard(self._path)


class MemoryFiles:
    """One file system. ``FileNotFoundError`` and its like are raised as the operating system does.

    Invariant: every directory but the root stands in its parent, with None for its content.
    """

    def __init__(self) -> None:
        self._directories: dict[str, dict[str, _Content | None]] = {"/": {}}  # what is in each, by name
        self._locked: set[str] = set()
        self._mutex = threading.Lock()  # around whatever looks at more than one name

    def open(self, path: str, *, create: bool = False) -> File:
        with self._mutex:
            directory, name = self._place(path)
            content = directory.get(name)
            if content is None:
                if not create:
                    raise _missing(path)
                content = directory[name] = _Content()
            return _OpenFile(content)

    def load(self, path: str, position: int, size: int) -> None:
        pass

    def exists(self, path: str) -> bool:
        return path in self._directories or posixpath.basename(path) in self._parent(path)

    def list_directory(self, path: str) -> list[str]:
        with self._mutex:
            found = self._directories.get(path)
            if found is None:
                raise _missing(path)
            return sorted(found)

    def make_directory(self, path: str) -> None:
        with self._mutex:
            self._make(path)

    def keep_private(self, path: str) -> None:
        """No other process sees these files."""

    def _make(self, path: str) -> dict[str, _Content | None]:
        found = self._directories.get(path)
        if found is None:
            above, name = posixpath.split(path)
            self._make(above)[name] = None
            found = self._directories[path] = {}
        return found

    def replace(self, source: str, destination: str) -> None:
        with self._mutex:
            old, old_name = self._place(source)
            if old_name not in old:
                raise _missing(source)
            new, new_name = self._place(destination)
            new[new_name] = old.pop(old_name)
            start = source + "/"
            for path in [path for path in self._directories if path == source or path.startswith(start)]:
                self._directories[destination + path[len(source) :]] = self._directories.pop(path)

    def remove(self, path: str) -> None:
        self._parent(path).pop(posixpath.basename(path), None)

    def remove_directory(self, path: str) -> None:
        with self._mutex:
            if path in self._directories:
                self._parent(path).pop(posixpath.basename(path), None)
                start = path + "/"
                for below in [each for each in self._directories if each == path or each.startswith(start)]:
                    del self._directories[below]

    def sync_directory(self, path: str) -> None:
        pass

    def size(self, path: str) -> int:
        return self._content(path).size

    def modified_ms(self, path: str) -> int:
        return self._content(path).modified_ms

    def read_file(self, path: str) -> bytes:
        content = self._content(path)
        return bytes(content.data) + bytes(content.size - len(content.data))

    def write_file(self, path: str, data: bytes, *, flush: bool = True) -> None:
        with self._mutex:
            directory, name = self._place(path)
            directory[name] = _Content(bytearray(data), len(data))

    def lock(self, path: str) -> Lock:
        with self._mutex:
            if path in self._locked:
                raise DiskLockedError(f"{path} is locked by another server of this process. Stop it first.")
            directory, name = self._place(path)
            directory.setdefault(name, _Content())
            self._locked.add(path)
            return _HeldLock(self._locked, path)

    def free_bytes(self, path: str) -> int:
        return FREE_BYTES

    def _parent(self, path: str) -> dict[str, _Content | None]:
        """What is in the directory of that path; of one that is missing, nothing."""
        return self._directories.get(posixpath.dirname(path), {})

    def _place(self, path: str) -> tuple[dict[str, _Content | None], str]:
        above, name = posixpath.split(path)
        if above not in self._directories:
            raise _missing(path)
        return self._directories[above], name

    def _content(self, path: str) -> _Content:
        content = self._parent(path).get(posixpath.basename(path))
        if content is None:
            raise _missing(path)
        return content


def _missing(path: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


_conforms: type[Files] = MemoryFiles
