"""The real disk: ``raylog.log.files`` over the operating system's calls.

Positioned reads and writes (``pread``, ``pwritev``) need no shared file position and copy nothing
in Python. ``fdatasync`` runs without the interpreter's lock, so a flush in another thread does not
stop the loop. A read that must not wait is a ``preadv`` with ``RWF_NOWAIT``: the kernel says
EAGAIN, or returns the part that it has, where it would have to ask the disk. A lock is ``flock``:
the kernel drops it when the process dies, so no lock is ever stale.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Sequence

from raylog.errors import DiskError, DiskLockedError
from raylog.log.files import Buffer, File, Files, Lock, NotInMemory

_BUFFERS_PER_CALL = 1024  # IOV_MAX on Linux
_LOAD_BYTES = 1 << 20  # at least so much is loaded; so much of what follows is begun, for a reader that goes on
_PIECE_BYTES = 1 << 20  # of the buffer through which bytes are loaded
_READABLE = 0o644
_PRIVATE = 0o600
_flush = getattr(os, "fdatasync", os.fsync)  # macOS has fsync alone


class DiskFile:
    """One open file."""

    __slots__ = ("_descriptor", "_knows_memory", "path")

    def __init__(self, path: str, *, create: bool, mode: int = _READABLE) -> None:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        self.path = path
        self._descriptor = os.open(path, flags, mode)
        self._knows_memory = hasattr(os, "RWF_NOWAIT")  # and until the file system says that it cannot tell

    def read_at(self, position: int, size: int, *, in_memory: bool = False) -> bytes | bytearray:
        if in_memory and self._knows_memory:
            found = self._read_in_memory(position, size)
            if found is not None:
                return found
        data = os.pread(self._descriptor, size, position)
        if len(data) == size or not data:
            return data
        parts, got = [data], len(data)
        while got < size:  # the kernel may stop early (a signal, or its 2 GiB limit); only b"" means the end
            data = os.pread(self._descriptor, size - got, position + got)
            if not data:
                break
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def _read_in_memory(self, position: int, size: int) -> bytearray | None:
        """None where only a read that waits can tell."""
        data = bytearray(size)
        try:
            got = os.preadv(self._descriptor, (data,), position, os.RWF_NOWAIT)
        except BlockingIOError:
            raise NotInMemory(self.path, position, size) from None
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise
            self._knows_memory = False
            return None
        if got < size:
            if position + got < self.size():
                raise NotInMemory(self.path, position, size)
            del data[got:]
        return data

    def write_at(self, position: int, *buffers: Buffer) -> int:
        total = sum(map(len, buffers))
        if len(buffers) <= _BUFFERS_PER_CALL:
            written = os.pwritev(self._descriptor, buffers, position)
            if written == total:
                return total
        else:
            written = 0
        self._write_rest(position, buffers, written)
        return total

    def _write_rest(self, position: int, buffers: Sequence[Buffer], written: int) -> None:
        pending = [memoryview(buffer).cast("B") for buffer in buffers if len(buffer)]
        skip, position = written, position + written
        while True:
            while pending and skip >= len(pending[0]):
                skip -= len(pending.pop(0))
            if not pending:
                return
            pending[0] = pending[0][skip:]
            skip = os.pwritev(self._descriptor, pending[:_BUFFERS_PER_CALL], position)
            if skip == 0:
                raise OSError(errno.EIO, "the disk took no byte of a write", self.path)
            position += skip

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)

    def flush(self) -> None:
        _flush(self._descriptor)

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def identity(self) -> tuple[int, int]:
        facts = os.fstat(self._descriptor)
        return facts.st_dev, facts.st_ino

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class FileLock:
    """An flock on a file, which is never removed alone: that would let two processes lock two files
    of one name.

    Its folder can be renamed or deleted by whoever holds the lock. So once the lock is held, the
    path must still lead to the locked file; otherwise the file that is there now is locked instead.
    """

    __slots__ = ("_descriptor",)

    def __init__(self, path: str, mode: int = _READABLE) -> None:
        self._descriptor = _locked_descriptor(path, mode)
        try:
            while not _leads_to(path, self._descriptor):
                self.close()
                self._descriptor = _locked_descriptor(path, mode)
            self._write_holder()
        except BaseException:
            self.close()
            raise

    def _write_holder(self) -> None:
        try:
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)
        except OSError as error:
            # The number helps people only, and a full disk must not keep a folder from being
            # deleted.
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def _locked_descriptor(path: str, mode: int) -> int:
    """The file, made if it is missing, open and locked. FileNotFoundError without its folder,
    DiskLockedError if it is locked.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        try:
            holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
        finally:
            os.close(descriptor)
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            raise
        by = f"process {holder}" if holder else "another process"
        raise DiskLockedError(f"{path} is locked by {by}. Stop it, or give this one a folder of its own.") from None
    return descriptor


def _leads_to(path: str, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


class DiskFiles:
    """The operating system's file system."""

    _private: frozenset[str] = frozenset()  # the directories whose new files are their owner's

    def open(self, path: str, *, create: bool = False) -> File:
        return DiskFile(path, create=create, mode=self._mode_of(path))

    def _mode_of(self, path: str) -> int:
        return _PRIVATE if os.path.dirname(path) in self._private else _READABLE

    def keep_private(self, path: str) -> None:
        self._private |= {path}
        try:
            os.chmod(path, 0o700)
            with os.scandir(path) as entries:
                for entry in entries:
                    if entry.is_file(follow_symlinks=False) and entry.stat().st_mode & 0o077:
                        os.chmod(entry.path, _PRIVATE)
        except PermissionError as error:
            raise DiskError(
                f"cannot keep others from reading {error.filename}: {error.strerror}. Give it to this user."
            ) from error

    def load(self, path: str, position: int, size: int) -> None:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        try:
            size = max(size, _LOAD_BYTES)
            end = position + size
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(descriptor, position, size + _LOAD_BYTES, os.POSIX_FADV_WILLNEED)
            piece = bytearray(min(size, _PIECE_BYTES))
            while position < end:
                got = os.preadv(descriptor, (memoryview(piece)[: end - position],), position)
                if not got:
                    return
                position += got
        finally:
            os.close(descriptor)

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def list_directory(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def make_directory(self, path: str) -> None:
        while True:
            try:
                os.makedirs(path, exist_ok=True)
                return
            except (PermissionError, FileExistsError, NotADirectoryError) as error:
                if isinstance(error, FileExistsError) and (os.path.isdir(path) or not os.path.lexists(path)):
                    continue  # another process deleted the folder, or deleted it and made it again, during this call
                raise DiskError(
                    f"cannot make the folder {path}: {error.strerror}. Give one that this user may write."
                ) from error

    def replace(self, source: str, destination: str) -> None:
        os.replace(source, destination)

    def remove(self, path: str) -> None:
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass

    def remove_directory(self, path: str) -> None:
        while os.path.lexists(path):
            try:
                shutil.rmtree(path)
            except FileNotFoundError:
                pass  # another process is removing it too: look again

    def sync_directory(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def modified_ms(self, path: str) -> int:
        return os.stat(path).st_mtime_ns // 1_000_000

    def read_file(self, path: str) -> bytes:
        with open(path, "rb") as file:
            return file.read()

    def write_file(self, path: str, data: bytes, *, flush: bool = True) -> None:
        temporary = path + ".tmp"
        file = DiskFile(temporary, create=True, mode=self._mode_of(path))
        try:
            file.truncate(0)
            file.write_at(0, data)
            if flush:
                file.flush()
        finally:
            file.close()
        os.replace(temporary, path)
        if flush:
            self.sync_directory(os.path.dirname(path))

    def lock(self, path: str) -> Lock:
        try:
            return FileLock(path, self._mode_of(path))
        except PermissionError as error:
            raise DiskError(
                f"cannot write {path}: {error.strerror}. Give a folder that this user may write."
            ) from error

    def free_bytes(self, path: str) -> int:
        facts = os.statvfs(path)
        return facts.f_bavail * facts.f_frsize


_conforms: type[Files] = DiskFiles
