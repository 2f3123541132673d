"""One partition as a consumer follows it: where it reads, what it has fetched, what stands in the
way.

Two offsets move along the log: ``position``, the next record for the user, and ``fetch_offset``,
the next one to fetch; between them lie the chunks that wait in the buffer. Every seek, assignment
and truncation starts a new *generation*: whatever was fetched under an older one is dropped when it
arrives, or when its turn comes.

A reader of a range sets ``fetch_end``, where fetching stops. ``barren_at`` is an offset from which
the leader, though its high watermark lies beyond, has twice had nothing to give: compaction has
taken everything from there on.

Invariants (under the fetcher's lock): position <= fetch_offset while both are known; buffered_bytes
is the sum over the partition's chunks of the present generation.
"""

from __future__ import annotations

from dataclasses import dataclass

from raylog.errors import RaylogError
from raylog.records.batch import BatchView
from raylog.types import TopicPartition

EARLIEST = -2
LATEST = -1
COMMITTED = -1_000  # no timestamp: where the group has come to, or by auto.offset.reset

_BARREN_READS = 2


class ConsumedPartition:
    __slots__ = (
        "barren_at",
        "barren_reads",
        "buffered_bytes",
        "error",
        "failures",
        "fetch_end",
        "fetch_offset",
        "fetching",
        "generation",
        "key",
        "last_epoch",
        "log_start_offset",
        "not_before",
        "paused",
        "position",
        "readable_end",
        "resolving",
        "start_at",
        "validated_epoch",
    )

    def __init__(self, key: TopicPartition, start_at: int) -> None:
        self.key = key
        self.generation = 0
        self.position: int | None = None
        self.fetch_offset = 0
        self.start_at: int | None = (
            start_at  # the timestamp (or −2, −1) whose offset has to be looked up; None: nothing to look up
        )
        self.resolving = False
        self.fetching = False  # a fetch of this generation is in flight
        self.buffered_bytes = 0
        self.paused = False
        self.last_epoch = -1  # leader epoch of the last batch fetched
        self.validated_epoch = -1  # the leader epoch under which fetch_offset is known to be on the leader's branch
        self.readable_end = -1
        self.log_start_offset = -1
        self.failures = 0
        self.not_before = 0.0  # loop time
        self.error: RaylogError | None = None
        self.fetch_end: int | None = None
        self.barren_reads = 0  # in a row
        self.barren_at = -1

    def jump(self, offset: int) -> None:
        """Read from another place on; what was fetched is void."""
        self._start_over()
        self.position = self.fetch_offset = offset
        self.start_at = None

    def look_up(self, timestamp: int) -> None:
        """Read from the offset of a timestamp (or −2 earliest, −1 latest) on, once it is known."""
        self._start_over()
        self.position = None
        self.start_at = timestamp

    def notice_empty_answer(self) -> bool:
        """Whether it is news that nothing is left from the fetch offset up to the high watermark."""
        if self.readable_end <= self.fetch_offset:
            self.barren_reads = 0
            return False
        self.barren_reads += 1
        if self.barren_reads < _BARREN_READS:
            return False
        self.barren_at = self.fetch_offset
        return True

    def _start_over(self) -> None:
        self.generation += 1
        self.fetching = self.resolving = False
        self.buffered_bytes = 0
        self.last_epoch = self.validated_epoch = -1
        self.error = None
        self.failures = 0
        self.not_before = 0.0
        self.barren_reads = 0
        self.barren_at = -1


@dataclass(slots=True, eq=False)
class Chunk:
    """What one fetch brought for one partition: whole batches that continue each other, undecoded."""

    partition: ConsumedPartition
    generation: int
    first_offset: int  # records below it were not asked for
    views: list[BatchView]
    size_bytes: int
    next_offset: int
    hidden: frozenset[int] = frozenset()
    """The base offsets of batches of aborted transactions, of a fetch with READ_COMMITTED."""

    def gives(self, view: BatchView) -> bool:
        """Whether its records are the user's. The position passes the others."""
        return not view.is_control and view.base_offset not in self.hidden
