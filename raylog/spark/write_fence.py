"""Decides which run and batch of a streaming write may write now.

A batch must not be written while tasks of an earlier one still write, or the topic read as a table
could show the older value of a key. Such tasks exist: an executor can outlive its driver, a task
can outlive its stopped query, and a task that was given up as lost can continue. Without
transactions no broker can refuse them, so one file below the query's checkpoint shuts them out::

    byte 0         locked by a driver while it changes the first line
    the first line the run (32 hex digits) and the batch (20 digits) whose tasks may write
    byte 64 + n    locked by task n for as long as it writes

``WriteFence.begin`` names the batch in the file and then waits until no task holds a lock. A task
locks first and then checks the line, and checks it again before each table of rows; if the line
names another batch, it raises. So every task that held a lock has ended before a later batch
begins, and a late task writes nothing. Two attempts at one task share a lock and write one after
the other. The kernel releases the locks of a process that dies. Only what a dead process had
already sent, and no broker had read yet, can still be appended.

The file must be the same file for driver and executors, as Spark requires of a checkpoint, on a
file system with POSIX locks.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from raylog.errors import ClusterError, ConfigError

logger = logging.getLogger("raylog.spark")

_TASKS = 64
_LINE_BYTES = 32 + 1 + 20 + 1
_POLL_S = 0.02
_SAID_S = 10.0
_changes = threading.Lock()  # the locks of the file are between processes, not between threads


@dataclass(frozen=True, slots=True)
class WriteTurn:
    """The right of one batch to write, as passed to its tasks."""

    path: str
    run: str
    batch: int

    @contextmanager
    def taken(self, task: int) -> Iterator[Callable[[], None]]:
        """Hold a task's lock, after waiting for another attempt at it. Yields a check that raises
        ClusterError when the turn is over.
        """
        try:
            file = os.open(self.path, os.O_RDWR)
        except FileNotFoundError:
            raise ConfigError(
                f"{self.path} does not exist here: the checkpoint has to be on a file system that driver and executors share"
            ) from None
        try:
            fcntl.lockf(file, fcntl.LOCK_EX, 1, _TASKS + task)

            def check() -> None:
                if (found := _line(file)) != (self.run, self.batch):
                    raise ClusterError(
                        f"batch {self.batch} is no longer written: batch {found[1]} has begun, or another run of the query"
                    )

            check()
            yield check
        finally:
            os.close(file)  # which releases the lock


class WriteFence:
    """The fence of one run of a query, in its driver. With its first batch the run takes over from
    the previous one.
    """

    def __init__(self, path: Path, run: str, *, patience_s: float) -> None:
        assert len(run) == 32, run
        self._path = path
        self._run = run
        self._patience_s = patience_s
        self._has_begun = False

    def begin(self, batch: int) -> tuple[WriteTurn, bool]:
        """Return the turn of a batch, once no other task writes, and whether the batch had begun
        before.

        ClusterError if another run has taken over, or if tasks of an earlier batch still write
        after ``patience_s`` seconds.
        """
        file = os.open(self._path, os.O_CREAT | os.O_RDWR, 0o644)
        try:
            with _changes, _locked(file, 0, 1):
                run, begun = _line(file)
                if self._has_begun and run != self._run:
                    raise ClusterError(
                        f"another run of the query writes now: this run ends and leaves batch {batch} to it"
                    )
                self._has_begun = True
                os.pwrite(file, f"{self._run} {batch:020d}\n".encode(), 0)
            self._await_tasks(file, batch)
        finally:
            os.close(file)
        return WriteTurn(str(self._path), self._run, batch), begun >= batch

    def _await_tasks(self, file: int, batch: int) -> None:
        began_s = said_s = time.monotonic()
        while True:
            with suppress(BlockingIOError, PermissionError):
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 0, _TASKS)
                return
            now_s = time.monotonic()
            if now_s - began_s > self._patience_s:
                raise ClusterError(
                    f"tasks of an earlier batch still write after {self._patience_s:g} s, and batch {batch} must come after them: "
                    "end their executors, and start the query again"
                )
            if now_s - said_s > _SAID_S:
                said_s = now_s
                logger.warning("batch %d waits for tasks of an earlier one, which still write", batch)
            time.sleep(_POLL_S)


@contextmanager
def _locked(file: int, start: int, count: int) -> Iterator[None]:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX, count, start)
    except OSError as error:
        if error.errno in (errno.ENOLCK, errno.EOPNOTSUPP):
            raise ConfigError(
                "the checkpoint's file system has no POSIX locks, which a streaming write needs"
            ) from None
        raise
    try:
        yield
    finally:
        fcntl.lockf(file, fcntl.LOCK_UN, count, start)


def _line(file: int) -> tuple[str, int]:
    """Return the run and the batch in the file; no run and batch -1 in a new file."""
    text = os.pread(file, _LINE_BYTES, 0).decode()
    return (text[:32], int(text[33:])) if text else ("", -1)
