"""Which partitions a round of the sender has to look at: what a round costs is what is due, not
what exists.

A producer may have batches for thousands of partitions, nearly all of which wait for something: the
end of a linger or a backoff, a free place among a leader's requests in flight, a connection, a
leader. Whoever looks at a partition and cannot send says what it waits for:

    at(key, at_ms)    a time
    on(key, cause)    something that ``happened(cause)`` will tell
    nothing           whoever ends the wait calls ``mark`` (an answer came, a leader was found, a batch was added)

The first of them makes the partition due, once; whatever else it waited for then may make it due
once more, for nothing. So one may look too often, and must never look too late. Pure, and not for
several threads.

Invariant of ``Times``: of a partition's entries in the heap one at most counts, that of ``_at``,
the earliest.
"""

from __future__ import annotations

from collections.abc import Hashable
from enum import Enum
from heapq import heappop, heappush

from raylog.types import TopicPartition


class Cause(Enum):
    """What partitions wait for, besides room at a leader, for which its endpoint stands."""

    HURRY = "hurry"  # somebody flushes, closes or waits for memory
    IDENTITY = "identity"  # a producer id
    TRANSACTION = "transaction"  # their place in the transaction that is open


class Times:
    """One time per partition, the earliest that was asked for."""

    def __init__(self) -> None:
        self._at: dict[TopicPartition, float] = {}
        self._heap: list[tuple[float, TopicPartition]] = []

    def at(self, key: TopicPartition, at_ms: float) -> None:
        """Take the partition at that time, unless it will be taken earlier. Infinity is never."""
        if at_ms < self._at.get(key, float("inf")):
            self._at[key] = at_ms
            heappush(self._heap, (at_ms, key))

    def take(self, now_ms: float) -> list[TopicPartition]:
        """Those whose time has come; they have none any more."""
        taken = []
        while self.next_ms <= now_ms:
            key = heappop(self._heap)[1]
            del self._at[key]
            taken.append(key)
        return taken

    @property
    def next_ms(self) -> float:
        """The earliest time of all; infinity if there is none."""
        heap = self._heap
        while heap:
            at_ms, key = heap[0]
            if self._at.get(key) == at_ms:
                return at_ms
            heappop(heap)  # an earlier time has replaced it
        return float("inf")


class DueQueues:
    """The partitions to look at now, and what the others wait for."""

    def __init__(self) -> None:
        self._due: dict[TopicPartition, None] = {}
        self._times = Times()
        self._waiting: dict[Hashable, dict[TopicPartition, None]] = {}

    def mark(self, key: TopicPartition) -> None:
        """Something happened to this partition: look at it."""
        self._due[key] = None

    def at(self, key: TopicPartition, at_ms: float) -> None:
        """Look at this partition at that time at the latest."""
        self._times.at(key, at_ms)

    def on(self, key: TopicPartition, cause: Hashable) -> None:
        """Look at this partition when that happens."""
        self._waiting.setdefault(cause, {})[key] = None

    def happened(self, cause: Hashable) -> None:
        """Look at those that waited for this."""
        if waited := self._waiting.pop(cause, None):
            self._due.update(waited)

    def take(self, now_ms: float) -> list[TopicPartition]:
        """Each partition that is due, once."""
        self._due.update(dict.fromkeys(self._times.take(now_ms)))
        taken, self._due = list(self._due), {}
        return taken

    @property
    def next_ms(self) -> float:
        """When time alone will make some partition due; infinity if it will not."""
        return self._times.next_ms
