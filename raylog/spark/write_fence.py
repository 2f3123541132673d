"""Who may write now, among the runs, batches and tasks of one streaming write.

A batch must not be written while tasks of an earlier one still write: the table that the topic is read as would show the older value of a
key. Such tasks exist: an executor outlives its driver, a stopped query its last task, a task that was given up for lost goes on. Without
transactions no broker can refuse them, so they are shut out here, by one file below the query's checkpoint:

    byte 0         locked by a driver while it changes the first line
    the first line the run (32 hex digits) and the batch (20 digits) whose tasks may write
    byte 64 + n    locked by task n for as long as it writes

``WriteFence.begin`` names the batch in the file and then waits until no task holds a lock. A task takes its lock first and looks at the
line then, and again before each table of rows; where another batch is named it raises. So whoever held a lock has ended before a later
batch begins, and whoever comes late writes nothing. Two attempts at one task have the same lock, and write after each other. The kernel
frees the locks of a process that dies. What a dead process had sent, and no broker had read yet, is all that can still be appended.

The file has to be one file for driver and executors, as Spark demands of a checkpoint, on a file system that has POSIX locks.
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
class Turn:
    """The right of one batch to write, as its tasks are given it."""

    path: str
    run: str
    batch: int

    @contextmanager
    def taken(self, task: int) -> Iterator[Callable[[], None]]:
        """Hold the lock of a task, once another attempt at it has ended; what is yielded raises ClusterError when the turn is over."""
        try:
            file = os.open(self.path, os.O_RDWR)
        except FileNotFoundError:
            raise ConfigError(
                f"{self.path} is not there: the checkpoint has to be on a file system that driver and executors share"
            ) from None
        try:
            fcntl.lockf(file, fcntl.LOCK_EX, 1, _TASKS + task)

            def check() -> None:
                if (found := _line(file)) != (self.run, self.batch):
                    raise ClusterError(
                        f"batch {self.batch} is not written any more: batch {found[1]} has begun, or another run of the query"
                    )

            check()
            yield check
        finally:
            os.close(file)  # which frees the lock


class WriteFence:
    """Of one run of a query, in its driver. The run takes over from the one before with its first batch."""

    def __init__(self, path: Path, run: str, *, patience_s: float) -> None:
        assert len(run) == 32, run
        self._path = path
        self._run = run
        self._patience_s = patience_s
        self._has_begun = False

    def begin(self, batch: int) -> tuple[Turn, bool]:
        """The turn of a batch, once nobody else writes; and whether that batch was begun before.

        ClusterError where another run has taken over, and where tasks of an earlier batch still write after ``patience_s`` seconds.
        """
        file = os.open(self._path, os.O_CREAT | os.O_RDWR, 0o644)
        try:
            with _changes, _locked(file, 0, 1):
                run, begun = _line(file)
                if self._has_begun and run != self._run:
                    raise ClusterError(
                        f"another run of the query writes now: batch {batch} is left to it, and this run ends"
                    )
                self._has_begun = True
                os.pwrite(file, f"{self._run} {batch:020d}\n".encode(), 0)
            self._await_tasks(file, batch)
        finally:
            os.close(file)
        return Turn(str(self._path), self._run, batch), begun >= batch

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
    """The run and the batch that are named; no run and batch -1 in a new file."""
    text = os.pread(file, _LINE_BYTES, 0).decode()
    return (text[:32], int(text[33:])) if text else ("", -1)
