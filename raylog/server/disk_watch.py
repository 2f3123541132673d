"""How a Broker looks after its disks: each is tried out every few seconds, and locked for as long
as the Broker lives.

Trying out means writing a few bytes, flushing them to the disk and reading them back, in a thread
of that disk's own. A disk that does not get done with that for ``PATIENCE_S`` has failed, too. One
that is merely full has not: what is on it can be read. What was found goes to ``on_change`` when it
is news. Replicas don't wait for any of this: they meet errors of their own.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import uuid
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from raylog.control.session import BrokerDisk, FailedDisk
from raylog.disks.disk import DiskLock, lock_disk
from raylog.errors import DiskError
from raylog.log.mounts import files_at
from raylog.server.lock_wait import once_unlocked

logger = logging.getLogger("raylog.broker")

CHECK_S = 2.0
PATIENCE_S = 10.0
HEALTH_FILE = ".health"
FULL = (errno.ENOSPC, errno.EDQUOT)


class DiskWatch:
    """``locked`` is the path that the Broker has locked already. ``assign`` names the disks,
    ``stop`` lets go of them.
    """

    def __init__(self, locked: Path, on_change: Callable[[tuple[FailedDisk, ...]], None]) -> None:
        self._locked = str(locked)
        self._on_change = on_change
        self._disks: dict[uuid.UUID, _WatchedDisk] = {}
        self._failed: tuple[FailedDisk, ...] = ()
        self._task: asyncio.Task[None] | None = None

    @property
    def failed(self) -> tuple[FailedDisk, ...]:
        """What was found last."""
        return self._failed

    def assign(self, disks: tuple[BrokerDisk, ...]) -> None:
        """These are the Broker's disks from now on."""
        wanted = {disk.directory_id: disk.path for disk in disks}
        for directory_id, watched in list(self._disks.items()):
            if wanted.get(directory_id) != watched.path:
                self._disks.pop(directory_id).close()
        for directory_id, path in wanted.items():
            if directory_id not in self._disks:
                self._disks[directory_id] = _WatchedDisk(path, locks=path != self._locked)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        while self._disks:
            self._disks.popitem()[1].close()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            for disk in self._disks.values():
                disk.begin_trial(loop.time())
            await asyncio.sleep(CHECK_S)
            found = [(each, disk.verdict(loop.time())) for each, disk in sorted(self._disks.items())]
            failed = tuple(FailedDisk(each, reason) for each, reason in found if reason is not None)
            if failed != self._failed:
                self._failed = failed
                self._on_change(failed)


class _WatchedDisk:
    """One disk: its thread, its lock, and the trial under way."""

    def __init__(self, path: str, *, locks: bool) -> None:
        self.path = path
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="raylog-disk")
        self._lock: Future[DiskLock] | None = None
        self._trial: Future[None] | None = None
        self._since_s = 0.0
        self._verdict: str | None = None
        if locks:
            self._lock = self._thread.submit(once_unlocked, lambda: lock_disk(Path(path)))
            self._lock.add_done_callback(_say_if_not_locked)

    def begin_trial(self, now_s: float) -> None:
        """A new one, unless the last one is still under way."""
        if self._trial is None or self._trial.done():
            self._trial, self._since_s = self._thread.submit(try_disk, self.path), now_s

    def verdict(self, now_s: float) -> str | None:
        """Why it has failed; None if it has not, as far as is known. A trial under way changes
        nothing until it takes too long.
        """
        if self._trial is not None and self._trial.done():
            error = self._trial.exception()
            is_full = isinstance(error, OSError) and error.errno in FULL
            self._verdict = None if error is None or is_full else str(error)
        elif self._trial is not None and now_s - self._since_s > PATIENCE_S:
            self._verdict = f"it has not answered for {PATIENCE_S:.0f} s"
        return self._verdict

    def close(self) -> None:
        if self._lock is not None:
            self._lock.add_done_callback(_release)  # it may be on its way
        self._thread.shutdown(wait=False, cancel_futures=True)


def try_disk(path: str) -> None:
    """Write, flush and read back a few bytes; OSError says what is wrong with the disk."""
    file = files_at(path).open(os.path.join(path, HEALTH_FILE), create=True)
    try:
        written = os.urandom(16)
        file.write_at(0, written)
        file.flush()
        if bytes(file.read_at(0, len(written))) != written:
            raise OSError(errno.EIO, "other bytes come back than were written", path)
    finally:
        file.close()


def _release(lock: Future[DiskLock]) -> None:
    if not lock.cancelled() and lock.exception() is None:
        lock.result().release()


def _say_if_not_locked(lock: Future[DiskLock]) -> None:
    if not lock.cancelled() and isinstance(error := lock.exception(), DiskError):
        logger.error("%s", error)
