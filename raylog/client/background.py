"""The one event loop that all synchronous handles of a process share, in a daemon thread of its
own.

Started when first needed; uvloop's where it is installed. Callers hand coroutines over with ``run``
and block until they end. The loop does not survive a fork (threads don't): in a child the next
handle starts another one, and handles made before the fork open their connections anew, with a
notice; what the parent had buffered is the parent's to send.
"""

from __future__ import annotations

import logging
import os
import threading

from raylog.background_loop import BackgroundLoop

logger = logging.getLogger("raylog.client")

_lock = threading.Lock()
_current: BackgroundLoop | None = None
generation = 0
"""Counts forks: a handle that remembers another number was opened in a parent process."""


def background() -> BackgroundLoop:
    """This process's loop."""
    global _current
    if _current is None:
        with _lock:
            if _current is None:
                _current = BackgroundLoop("raylog-client")
    return _current


def _forget_after_fork() -> None:
    global _current, _lock, generation
    if _current is not None:
        generation += 1
    _current = None
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_after_fork)


def notice_fork(what: str) -> None:
    """Say once per handle that it starts afresh in a forked child."""
    logger.warning(
        "%s was opened before this process was forked: it connects anew here; records buffered then are the parent's",
        what,
    )
