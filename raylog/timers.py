"""Deadlines by name, kept on a heap whose entries may be early but are never late.

Moving a deadline later costs a dictionary write (a heartbeat does it); the heap is corrected when
the old one comes up. It knows nothing of what the names mean. Names are tuples that begin with a
string of their kind; names of one kind compare.

Invariant: each named deadline has an entry in the heap at or before it.
"""

from __future__ import annotations

import heapq
from typing import Any

Name = tuple[Any, ...]


class Timers:
    __slots__ = ("_deadlines", "_heap", "_scheduled")

    def __init__(self) -> None:
        self._deadlines: dict[Name, int] = {}
        self._scheduled: dict[Name, int] = {}  # each name's earliest entry in the heap
        self._heap: list[tuple[int, Name]] = []

    def __contains__(self, name: Name) -> bool:
        return name in self._deadlines

    def set(self, name: Name, deadline_ms: int) -> None:
        """Name a deadline, or move it."""
        self._deadlines[name] = deadline_ms
        scheduled = self._scheduled.get(name)
        if scheduled is None or scheduled > deadline_ms:
            self._scheduled[name] = deadline_ms
            heapq.heappush(self._heap, (deadline_ms, name))

    def cancel(self, name: Name) -> None:
        self._deadlines.pop(name, None)

    def clear(self) -> None:
        """Forget all of them."""
        self._deadlines.clear()
        self._scheduled.clear()
        self._heap.clear()

    def next_ms(self) -> int | None:
        """When to look again: the next deadline, or a moment before it."""
        return self._heap[0][0] if self._heap else None

    def names(self) -> list[Name]:
        return sorted(self._deadlines)

    def due(self, now_ms: int) -> list[tuple[int, Name]]:
        """Take out the deadlines that have come, in order."""
        fired = []
        while self._heap and self._heap[0][0] <= now_ms:
            at, name = heapq.heappop(self._heap)
            if self._scheduled.get(name) != at:
                continue  # an entry that an earlier one has overtaken
            del self._scheduled[name]
            deadline = self._deadlines.get(name)
            if deadline is None:
                continue
            if deadline > now_ms:
                self._scheduled[name] = deadline
                heapq.heappush(self._heap, (deadline, name))
            else:
                del self._deadlines[name]
                fired.append((deadline, name))
        return fired

    def check(self) -> None:
        for name, deadline in self._deadlines.items():
            assert name in self._scheduled and self._scheduled[name] <= deadline, f"{name} at {deadline} has no entry"
