"""How long things took: counts by length, and the sum. Plain integers; whoever counts passes the time in.

Of n lengths, ``counts[i]`` are those of at most ``BOUNDS_NS[i]`` nanoseconds and more than the bound
before; the last one counts those beyond every bound.

Invariant: ``len(counts) == len(BOUNDS_NS) + 1``; no count falls.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

BOUNDS_MS: Final = (
    0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1_000.0, 2_500.0, 5_000.0, 10_000.0, 30_000.0,
)  # fmt: skip
BOUNDS_NS: Final = tuple(round(bound * 1_000_000) for bound in BOUNDS_MS)


class TimeCounts:
    __slots__ = ("counts", "sum_ns")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_NS) + 1)
        self.sum_ns = 0

    def add(self, length_ns: int) -> None:
        self.counts[bisect_left(BOUNDS_NS, length_ns)] += 1
        self.sum_ns += length_ns
