"""One start at a time for the disks under one folder: a second one waits for the first and then
finds its cluster.

The lock is ``flock`` on a file of the folder, so it ends with the process that holds it, however
that ends.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

LOCK_FILE = "starting.lock"
_TRY_EVERY_S = 0.1


@contextmanager
def only_start(home: Path, tell: Callable[[str], None]) -> Iterator[None]:
    """Hold the right to start what is under ``home``. ``tell`` is given a line before a wait.

    In a folder that cannot be written nothing is held: the start itself says what is wrong with it.
    """
    path = home / LOCK_FILE
    try:
        home.mkdir(parents=True, exist_ok=True)
        descriptor = _locked(path, tell)
    except OSError:
        yield
        return
    try:
        os.pwrite(descriptor, b"%d" % os.getpid(), 0)
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _locked(path: Path, tell: Callable[[str], None]) -> int:
    """The descriptor of the file once it is locked and still in the folder: who held it before has
    removed it.
    """
    is_told = False
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                return descriptor
        except BlockingIOError:
            if not is_told:
                is_told = True
                holder = os.pread(descriptor, 32, 0).decode() or "unknown"
                tell(f"another start of {path.parent} is under way (process {holder}): waiting for it")
            time.sleep(_TRY_EVERY_S)
        except FileNotFoundError:
            pass  # it was removed between the two calls
        os.close(descriptor)
