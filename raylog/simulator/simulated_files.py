"""A disk in memory that forgets what was never flushed: ``Files`` (raylog/log/files.py) for the
simulator and for unit tests.

Owns: file contents, directory entries, locks, faults. It knows nothing of logs. ``SimulatedDisk``
is the hardware with its operating system; ``disk.files()`` is one process's view of it (handles and
locks belong to that process).

What a crash takes, by kind::

    process crash (kill -9)    locks and handles. The page cache stays: whatever was written is read back.
    power loss                 also everything that no flush covered, as below. Whoever survives sees only what the disk holds.

Two things are flushed apart, as POSIX promises no more: ``File.flush`` covers one file's bytes and
size, ``sync_directory`` the names in one directory (creations, renames, removals). A new file whose
directory was not synced may be gone; a renamed file whose bytes were not flushed may be empty under
its new name.

What power loss does with unflushed work is drawn from a ``random.Random``: for each file the
operations since its last flush are applied up to a random point, the one there is torn at a random
byte (the torn tail); now and then a file also loses a page in the middle (zeros: its size reached
the disk before its data did). Of a directory's unsynced changes a random prefix survives, as from a
journal.

A flush that fails loses what it should have written, as Linux does: the pages stay in the cache,
count as written, and no later flush writes them. They can be read until the cache drops them
(``evict``, a loss of power); then the disk has what it had before. Only writing the bytes again
puts them on the disk.

What is in the page cache matters to reads that must not wait (``in_memory``), and to nothing else:
no draw is made for it. ``evict`` empties the cache. Where ``evicts`` is set, it is asked for each
page that such a read touches and that was not written or loaded lately; it must be a pure function
of its arguments, so that the order of reads does not change a run.

Invariant: bytes below a returned ``flush`` and names below a returned ``sync_directory`` survive
every crash.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from raylog.errors import DiskLockedError
from raylog.log.files import Buffer, Files, NotInMemory
from raylog.simulator.inodes import (
    PAGE_BYTES,
    Directory,
    Evicts,
    Inode,
    evict_below,
    flush_below,
    pages_of,
    used_bytes,
)

if TYPE_CHECKING:
    from _typeshed import SupportsLenAndGetItem

T = TypeVar("T")

Fault = Callable[[str, str], None]
"""Called with (operation, path) before each operation; raises OSError to make it fail, or
``TornWrite``.
"""

FolderCopy = Mapping[str, bytes]  # by file name


class WorstLuck(random.Random):
    """For ``lose_power``: whatever was not flushed is gone."""

    def choice(self, seq: SupportsLenAndGetItem[T]) -> T:
        return seq[0]

    def random(self) -> float:
        return 1.0

    def getrandbits(self, k: int) -> int:
        return 0


class TornWrite(Exception):
    """Raised by a fault during "write": that share of the bytes is written, then ``cause`` is
    raised instead.
    """

    def __init__(self, share: float, cause: BaseException) -> None:
        super().__init__(share, cause)
        self.share = share
        self.cause = cause


def _error(code: int, path: str) -> OSError:
    return OSError(code, os.strerror(code), path)


@dataclass(frozen=True, slots=True)
class DamagedBytes:
    """Bytes of a log that changed by themselves: the batches that they touch, before and after,
    from ``position`` of the file on.

    ``offset``: that of the first of these batches.
    """

    path: str
    position: int
    offset: int
    before: bytes
    after: bytes

    def is_mended(self, disk: SimulatedDisk) -> bool:
        """Whether the file is gone, was cut, or holds something else there."""
        content = getattr(disk.lookup(self.path), "cached", b"")
        return bytes(content[self.position : self.position + len(self.after)]) != self.after

    def undo(self, disk: SimulatedDisk) -> None:
        inode = disk.inode(self.path)
        for content in (inode.cached, inode.durable):
            if len(content) >= self.position + len(self.before):
                content[self.position : self.position + len(self.before)] = self.before


class SimulatedDisk:
    """One disk and the page cache above it.

    ``clock_ms`` gives wall-clock milliseconds for modification times. ``capacity_bytes`` bounds the
    sum of all file sizes (ENOSPC beyond, after writing what fits). ``fault`` sees every operation
    first and may raise.
    """

    def __init__(
        self, *, clock_ms: Callable[[], int] = lambda: 0, capacity_bytes: int = 1 << 40, fault: Fault | None = None
    ) -> None:
        self.clock_ms = clock_ms
        self.capacity_bytes = capacity_bytes
        self.fault = fault
        self.evicts: Evicts | None = None
        self.torn_writes = 0
        self.corrupted: set[str] = set()  # the files that were ever damaged
        self.damaged: list[DamagedBytes] = []  # places in logs, those that are mended too
        self.root = Directory()
        self._locks: dict[int, tuple[SimulatedFiles, Inode]] = {}  # by the locked file's identity, as flock has it
        self._used_bytes = 0

    def files(self) -> SimulatedFiles:
        """A process starts: its view of the disk."""
        return SimulatedFiles(self)

    def lose_power(self, rng: random.Random) -> None:
        """Every process on this disk is gone and so is the page cache; views made before are dead."""
        for holder, _ in list(self._locks.values()):
            holder.crash()
        self.torn_writes += self.root.lose_power(rng)
        self._used_bytes = used_bytes(self.root)

    def evict(self) -> None:
        """Throw everything out of the page cache that could be read again, or that counts as
        written.
        """
        evict_below(self.root)
        self._used_bytes = used_bytes(self.root)

    def wipe(self, path: str) -> None:
        """Another disk is in its place: an empty folder, for good. Views made before are dead, as
        after a crash of their processes.
        """
        directory = self.directory(path)
        directory.entries.clear()
        directory.sync()
        self._used_bytes = used_bytes(self.root)

    def copy_folder(self, path: str) -> FolderCopy:
        """What the files of a folder hold now, as any process would read them."""
        entries = self.directory(path).entries
        return {name: bytes(entry.cached) for name, entry in sorted(entries.items()) if isinstance(entry, Inode)}

    def restore_folder(self, path: str, copy: FolderCopy) -> None:
        """Somebody puts an old copy in the place of what the folder holds; all of it is on the
        disk.
        """
        directory = self.directory(path)
        directory.entries.clear()
        for name, content in copy.items():
            directory.entries[name] = Inode(bytearray(content), bytearray(content), modified_ms=self.clock_ms())
        directory.sync()
        self._used_bytes = used_bytes(self.root)

    def flip_bit(self, path: str, position: int, bit: int = 0) -> None:
        """One bit of a file changes by itself, in the page cache and on the disk."""
        inode = self.inode(path)
        self.corrupted.add(path)
        for content in (inode.cached, inode.durable):
            if position < len(content):
                content[position] ^= 1 << bit

    def zero_page(self, path: str, position: int) -> None:
        """The page of a file that holds ``position`` turns into zeros by itself, in the page cache
        and on the disk.
        """
        inode = self.inode(path)
        self.corrupted.add(path)
        start = position // PAGE_BYTES * PAGE_BYTES
        for content in (inode.cached, inode.durable):
            end = min(start + PAGE_BYTES, len(content))
            content[start:end] = bytes(max(0, end - start))

    def flush_everything(self) -> None:
        """The operating system writes all back on its own, as it does after a while."""
        flush_below(self.root)

    @property
    def free_bytes(self) -> int:
        return max(0, self.capacity_bytes - self._used_bytes)

    # What the views do. Paths are absolute and normal.

    def lookup(self, path: str) -> Inode | Directory | None:
        entry: Inode | Directory | None = self.root
        for name in path.split("/"):
            if name:
                if not isinstance(entry, Directory):
                    return None
                entry = entry.entries.get(name)
        return entry

    def directory(self, path: str) -> Directory:
        entry = self.lookup(path)
        if entry is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if not isinstance(entry, Directory):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        return entry

    def inode(self, path: str) -> Inode:
        entry = self.lookup(path)
        if entry is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if isinstance(entry, Directory):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return entry

    def parent(self, path: str) -> tuple[Directory, str]:
        head, _, name = path.rpartition("/")
        return self.directory(head), name

    def lock(self, view: SimulatedFiles, inode: Inode, path: str) -> None:
        if id(inode) in self._locks:
            raise DiskLockedError(
                f"{path} is locked by another process. Stop it, or give this one a folder of its own."
            )
        self._locks[id(inode)] = view, inode

    def unlock(self, view: SimulatedFiles, inode: Inode) -> None:
        holder, _ = self._locks.get(id(inode), (None, None))
        if holder is view:
            del self._locks[id(inode)]

    def release(self, view: SimulatedFiles) -> None:
        for key in [key for key, (holder, _) in self._locks.items() if holder is view]:
            del self._locks[key]

    def freed(self, size: int) -> None:
        self._used_bytes -= size

    def write(self, inode: Inode, path: str, position: int, data: bytes) -> None:
        grown = max(0, position + len(data) - len(inode.cached))
        lacking = grown - self.free_bytes
        if lacking > 0:
            data = data[: max(0, len(data) - lacking)]
            grown = self.free_bytes if data else 0
        self._used_bytes += grown
        if data:
            inode.write(position, data)
            inode.touch(pages_of(position, len(data)), self.clock_ms())
            inode.modified_ms = self.clock_ms()
        if lacking > 0:
            raise _error(errno.ENOSPC, path)

    def truncate(self, inode: Inode, size: int) -> None:
        self._used_bytes += size - len(inode.cached)
        inode.truncate(size)
        inode.modified_ms = self.clock_ms()


class SimulatedFile:
    """An open file of one process. Dead (EBADF) once the process crashed or the handle was closed."""

    __slots__ = ("_inode", "_open", "_view", "path")

    def __init__(self, view: SimulatedFiles, path: str, inode: Inode) -> None:
        self.path = path
        self._view = view
        self._inode = inode
        self._open = True
        view.open_handles += 1

    def _enter(self, operation: str) -> SimulatedDisk:
        if not self._open:
            raise _error(errno.EBADF, self.path)
        return self._view.enter(operation, self.path)

    def read_at(self, position: int, size: int, *, in_memory: bool = False) -> bytes:
        disk = self._enter("read")
        inode = self._inode
        if in_memory:
            pages = pages_of(position, min(size, len(inode.cached) - position))
            if inode.lacks(pages, self.path, disk.evicts, disk.clock_ms()):
                raise NotInMemory(self.path, position, size)
        return bytes(memoryview(self._inode.cached)[position : position + size])

    def write_at(self, position: int, *buffers: Buffer) -> int:
        data = b"".join(buffers)
        try:
            disk = self._enter("write")
        except TornWrite as torn:
            self._view.disk.write(self._inode, self.path, position, data[: int(len(data) * torn.share)])
            raise torn.cause from None
        disk.write(self._inode, self.path, position, data)
        return len(data)

    def truncate(self, size: int) -> None:
        self._enter("truncate").truncate(self._inode, size)

    def flush(self) -> None:
        if self._open:
            try:
                self._enter("flush")
            except OSError:
                self._inode.fail_to_flush()
                raise
            self._inode.flush()

    def size(self) -> int:
        self._enter("size")
        return len(self._inode.cached)

    def identity(self) -> tuple[int, int]:
        return 0, id(self._inode)

    def close(self) -> None:
        self._view.open_handles -= self._open
        self._open = False


class SimulatedLock:
    """Held until ``close`` or until its process ends."""

    __slots__ = ("_inode", "_view", "path")

    def __init__(self, view: SimulatedFiles, path: str, inode: Inode) -> None:
        self.path = path
        self._view = view
        self._inode = inode

    def close(self) -> None:
        self._view.disk.unlock(self._view, self._inode)


class SimulatedFiles:
    """One process's view of a ``SimulatedDisk``; with no disk given it makes its own (for tests of
    one process).
    """

    def __init__(self, disk: SimulatedDisk | None = None) -> None:
        self.disk = disk if disk is not None else SimulatedDisk()
        self.open_handles = 0  # files, not locks
        self._alive = True

    def crash(self) -> None:
        """The process ends without a word: its locks are free, its handles dead, its writes in the
        page cache.
        """
        self._alive = False
        self.disk.release(self)

    def enter(self, operation: str, path: str) -> SimulatedDisk:
        """Every operation passes here: refused for a dead process, and faults strike."""
        if not self._alive:
            raise _error(errno.EBADF, path)
        if self.disk.fault is not None:
            self.disk.fault(operation, path)
        return self.disk

    def open(self, path: str, *, create: bool = False) -> SimulatedFile:
        disk = self.enter("open", path)
        directory, name = disk.parent(path)
        if create and name not in directory.entries:
            directory.change(((name, Inode(modified_ms=disk.clock_ms())),))
        return SimulatedFile(self, path, disk.inode(path))

    def load(self, path: str, position: int, size: int) -> None:
        disk = self.enter("load", path)
        if disk.lookup(path) is not None:
            disk.inode(path).touch(pages_of(position, size), disk.clock_ms())

    def exists(self, path: str) -> bool:
        return self.enter("exists", path).lookup(path) is not None

    def list_directory(self, path: str) -> list[str]:
        return sorted(self.enter("list", path).directory(path).entries)

    def make_directory(self, path: str) -> None:
        disk = self.enter("make_directory", path)
        directory = disk.root
        for name in path.split("/"):
            if name:
                entry = directory.entries.get(name)
                if entry is None:
                    entry = Directory()
                    directory.change(((name, entry),))
                if not isinstance(entry, Directory):
                    raise _error(errno.ENOTDIR, path)
                directory = entry

    def keep_private(self, path: str) -> None:
        """There is nobody else."""

    def replace(self, source: str, destination: str) -> None:
        disk = self.enter("replace", source)
        entry = disk.lookup(source)
        if entry is None:
            raise _error(errno.ENOENT, source)
        from_directory, from_name = disk.parent(source)
        to_directory, to_name = disk.parent(destination)
        replaced = to_directory.entries.get(to_name)
        if isinstance(replaced, Directory) and replaced.entries:
            raise _error(errno.ENOTEMPTY, destination)
        if from_directory is to_directory:
            from_directory.change(((from_name, None), (to_name, entry)))
        else:
            to_directory.change(((to_name, entry),))
            from_directory.change(((from_name, None),))

    def remove(self, path: str) -> None:
        disk = self.enter("remove", path)
        if disk.lookup(path) is None:
            return
        inode = disk.inode(path)
        directory, name = disk.parent(path)
        directory.change(((name, None),))
        disk.freed(len(inode.cached))

    def remove_directory(self, path: str) -> None:
        disk = self.enter("remove_directory", path)
        if disk.lookup(path) is None:
            return
        freed = used_bytes(disk.directory(path))
        directory, name = disk.parent(path)
        directory.change(((name, None),))
        disk.freed(freed)

    def sync_directory(self, path: str) -> None:
        self.enter("sync_directory", path).directory(path).sync()

    def size(self, path: str) -> int:
        return len(self.enter("size", path).inode(path).cached)

    def modified_ms(self, path: str) -> int:
        return self.enter("modified_ms", path).inode(path).modified_ms

    def read_file(self, path: str) -> bytes:
        return bytes(self.enter("read", path).inode(path).cached)

    def write_file(self, path: str, data: bytes, *, flush: bool = True) -> None:
        temporary = path + ".tmp"
        file = self.open(temporary, create=True)
        try:
            file.truncate(0)
            file.write_at(0, data)
            if flush:
                file.flush()
        finally:
            file.close()
        self.replace(temporary, path)
        if flush:
            self.sync_directory(path.rpartition("/")[0])

    def lock(self, path: str) -> SimulatedLock:
        while True:
            self.open(path, create=True).close()
            inode = self.disk.inode(path)
            disk = self.enter("lock", path)  # the folder can be renamed between the two calls, as on a real disk
            disk.lock(self, inode, path)
            if disk.lookup(path) is inode:
                return SimulatedLock(self, path, inode)
            disk.unlock(self, inode)

    def free_bytes(self, path: str) -> int:
        return self.enter("free_bytes", path).free_bytes


_conforms: type[Files] = SimulatedFiles
