"""Cold reads: what was asked for and is not in the page cache is loaded in a thread, while those
who asked wait.

A read of a log that would wait for the disk raises NotInMemory. The host then orders ``Load`` for
that place, keeps the request, and reads again when ``Loaded`` says that the bytes are there. Loaded
bytes may be thrown out again before they are read, and one answer may need several places (an
index, then the log), so a request may wait for several loads in turn; after ``LOADS_PER_FETCH`` or
``LOADS_PER_LIST_OFFSETS`` it is read once without such care, so that it ends.

One load is in flight per place: a file and a position in it. (The size does not count: it grows
with the log that a request reads to the end of.) The order names no request, only a file, so it
outlives whatever happens meanwhile to the replica: the segment may be cut or deleted, the replica
removed, failed, or following. Whoever waited is then answered from what is true at that time.

Invariants (``check``): every load in flight was ordered once and will be reported; a parked request
that lacks a place stands in line for it.
"""

from __future__ import annotations

from raylog.log.files import NotInMemory
from raylog.replication.context import HostContext
from raylog.replication.events import Load, Loaded
from raylog.replication.parked import ParkedFetch, ParkedListOffsets
from raylog.types import TopicIdPartition

LOADS_PER_FETCH = 8
LOADS_PER_LIST_OFFSETS = 16

Place = tuple[str, int]
"""(path, position)"""

Lacking = list[tuple[TopicIdPartition, NotInMemory]]
Waiter = ParkedFetch | ParkedListOffsets


class Loads:
    """The loads in flight of one host, and who waits for each."""

    __slots__ = ("context", "in_flight")

    def __init__(self, context: HostContext) -> None:
        self.context = context
        self.in_flight: dict[Place, dict[Waiter, None]] = {}

    def order(self, lacking: Lacking) -> frozenset[Place]:
        """Have those places loaded; returns them."""
        for id, missing in lacking:
            place = (missing.path, missing.position)
            if place not in self.in_flight:
                self.in_flight[place] = {}
                self.context.effects.append(Load(id, missing.path, missing.position, missing.size))
        return frozenset((missing.path, missing.position) for _, missing in lacking)

    def wait(self, waiter: Waiter, places: frozenset[Place]) -> None:
        """``waiter`` lacks exactly these places now, all of which are in flight."""
        for place in waiter.lacks - places:
            del self.in_flight[place][waiter]
        waiter.lacks = places
        for place in sorted(places):
            self.in_flight[place][waiter] = None

    def forget(self, waiter: Waiter) -> None:
        """It was answered or cancelled."""
        self.wait(waiter, frozenset())

    def loaded(self, event: Loaded) -> list[Waiter]:
        """A load came to its end; returns who waited for it."""
        waiters = list(self.in_flight.pop((event.path, event.position), ()))
        for waiter in waiters:
            waiter.lacks -= {(event.path, event.position)}
            waiter.loads += 1
        return waiters

    def check(self) -> None:
        """Raise AssertionError where an invariant is broken."""
        for place, waiters in self.in_flight.items():
            for waiter in waiters:
                assert place in waiter.lacks, f"{waiter.token} waits for {place}, which it does not lack"


def is_patient(waiter: Waiter) -> bool:
    """Whether it may wait for another load, or has waited for so many that it is read as it is."""
    return waiter.loads < (LOADS_PER_FETCH if isinstance(waiter, ParkedFetch) else LOADS_PER_LIST_OFFSETS)
