"""Waiting for a predecessor that is still dying to let go of its locks."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from raylog.errors import DiskLockedError

PATIENCE_S = 20.0
RETRY_S = 0.02

T = TypeVar("T")


def once_unlocked(action: Callable[[], T], patience_s: float = PATIENCE_S) -> T:
    """What ``action`` returns, tried again while something that it locks is locked by another
    process.

    Blocks: call it in a thread. Raises DiskLockedError when the lock outlasts ``patience_s``
    seconds.
    """
    deadline = time.monotonic() + patience_s
    while True:
        try:
            return action()
        except DiskLockedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(RETRY_S)
