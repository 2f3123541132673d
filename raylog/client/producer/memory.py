"""``buffer.memory``: how many bytes of records a producer holds, and who waits for room.

Bytes count from the moment a record is taken until its batch is finished. Waiters are served in the
order in which they came, so a large request is not starved by small ones. A request larger than the
whole limit is let in when nothing else is held. Knows no loop: a waiter brings the call that wakes
it, and may be woken on any thread.

Invariants: 0 <= used; nobody waits who would fit and is first.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class MemoryWaiter:
    """Somebody who wants so many bytes. ``granted`` is set under the memory's lock, before ``wake``
    is called.
    """

    size_bytes: int
    wake: Callable[[], None]
    granted: bool = False


class BufferMemory:
    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._lock = threading.Lock()
        self._waiters: deque[MemoryWaiter] = deque()

    @property
    def has_waiters(self) -> bool:
        return bool(self._waiters)

    def try_take(self, size_bytes: int) -> bool:
        """Take the bytes if they are free and nobody waits for them."""
        with self._lock:
            if self._waiters or not self._fits(size_bytes):
                return False
            self.used_bytes += size_bytes
            return True

    def wait(self, size_bytes: int, wake: Callable[[], None]) -> MemoryWaiter:
        """Queue for bytes; ``wake`` is called once they are granted, possibly before this returns."""
        waiter = MemoryWaiter(size_bytes, wake)
        with self._lock:
            self._waiters.append(waiter)
            woken = self._grant()
        for granted in woken:
            granted.wake()
        return waiter

    def leave(self, waiter: MemoryWaiter) -> bool:
        """Stop waiting. True if the bytes had been granted after all: then they are the caller's."""
        with self._lock:
            if waiter.granted:
                return True
            self._waiters.remove(waiter)
            woken = self._grant()
        for granted in woken:
            granted.wake()
        return False

    def give_back(self, size_bytes: int) -> None:
        """Return bytes."""
        with self._lock:
            self.used_bytes -= size_bytes
            assert self.used_bytes >= 0, self.used_bytes
            woken = self._grant()
        for granted in woken:
            granted.wake()

    def _fits(self, size_bytes: int) -> bool:
        return self.used_bytes + size_bytes <= self.limit_bytes or self.used_bytes == 0

    def _grant(self) -> list[MemoryWaiter]:
        woken = []
        while self._waiters and self._fits(self._waiters[0].size_bytes):
            waiter = self._waiters.popleft()
            waiter.granted = True
            self.used_bytes += waiter.size_bytes
            woken.append(waiter)
        return woken
