"""A steady load of single records that knows when each was acknowledged and where; for measuring pauses and looking for losses.

``Pacer`` sends records at a fixed rate through whichever client it is given, and catches up where it was held up: the load does
not wait for the cluster that is struck. ``Ledger`` has the time, the sequence number and the offset of every acknowledgement.
``held_against`` takes what a log holds, read from its first record on: every acknowledged record has to be there once, at the
offset that its acknowledgement named, in the order in which it was sent.

A record's value starts with its sequence number, 8 bytes. One partition, one producer.
"""

from __future__ import annotations

import threading
import time
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from raylog.cluster import Cluster

TICK_S = 0.002
FAILURES_KEPT = 20

Note = Callable[[int, int | None, object], None]
"""Told the sequence number, and the offset or what went wrong."""


@dataclass(slots=True)
class Ledger:
    """What the producer was told: times, sequence numbers and offsets of all acknowledgements, in order."""

    times: array[float] = field(default_factory=lambda: array("d"))
    sequences: array[int] = field(default_factory=lambda: array("q"))
    offsets: array[int] = field(default_factory=lambda: array("q"))
    failed: int = 0
    failures: list[str] = field(default_factory=list)  # in words, the first few

    def note(self, sequence: int, offset: int | None, error: object) -> None:
        """Called on the client's thread for each record that is settled."""
        if offset is None:
            self.failed += 1
            if len(self.failures) < FAILURES_KEPT:
                self.failures.append(f"{sequence}: {error}")
            return
        self.sequences.append(sequence)
        self.offsets.append(offset)
        self.times.append(time.perf_counter())

    def longest_gap(self, start: float, end: float) -> float:
        """Seconds between two consecutive acknowledgements, the second of which came in ``[start, end]``."""
        return longest_gap(self.times, start, end)

    def count(self, start: float, end: float) -> int:
        return bisect_left(self.times, end) - bisect_left(self.times, start)


def longest_gap(times: array[float], start: float, end: float) -> float:
    """Seconds between two consecutive times, the second of which lies in ``[start, end]``; all of it if there is none."""
    first = max(1, bisect_left(times, start))
    last = bisect_right(times, end)
    return max((times[each] - times[each - 1] for each in range(first, last)), default=end - start)


class Pacer(threading.Thread):
    """Sends records at a steady rate until told to stop, catching up where it was late."""

    def __init__(self, send: Callable[[int, bytes], None], *, records_per_second: int, record_bytes: int) -> None:
        super().__init__(daemon=True)
        self._send = send
        self._rate = records_per_second
        self._record_bytes = record_bytes
        self._stopped = threading.Event()
        self.sent = 0
        self.ticks = array("d")  # when it woke up
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            start = time.perf_counter()
            while not self._stopped.is_set():
                now = time.perf_counter()
                self.ticks.append(now)
                while self.sent < (now - start) * self._rate:
                    self._send(self.sent, self.sent.to_bytes(8, "big").ljust(self._record_bytes, b"."))
                    self.sent += 1
                time.sleep(TICK_S)
        except BaseException as error:
            self.error = error

    def check(self) -> None:
        """Raises what the thread died of."""
        if self.error is not None:
            raise self.error

    def stop(self) -> None:
        self._stopped.set()
        self.join()
        self.check()

    def worst_lateness(self, start: float, end: float) -> float:
        """How much longer than a tick this thread slept, at most, in ``[start, end]``."""
        first, last = max(1, bisect_left(self.ticks, start)), bisect_left(self.ticks, end)
        return max((self.ticks[each] - self.ticks[each - 1] - TICK_S for each in range(first, last)), default=0.0)


@dataclass(slots=True)
class Readback:
    """What the log holds, held against the ledger."""

    lost: int = 0
    lost_at: list[float] = field(default_factory=list)  # when they had been acknowledged
    twice: int = 0
    misplaced: int = 0
    disordered: int = 0


def partition_records(cluster: Cluster, topic: str) -> Iterator[tuple[int, bytes]]:
    """Offset and value of everything in the topic's only partition."""
    with cluster.consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0)])
        end = consumer.end_offsets([(topic, 0)])[(topic, 0)]
        position = 0
        while position < end:
            table = consumer.poll_batch(timeout=30)
            assert table.num_rows, f"nothing comes at offset {position} of {end}"
            offsets = table["offset"].to_pylist()
            yield from zip(offsets, table["value"].to_pylist(), strict=True)
            position = offsets[-1] + 1


def held_against(ledger: Ledger, records: Iterable[tuple[int, bytes]]) -> Readback:
    """``records``: offset and value of everything in the partition, in the order of the log."""
    found: dict[int, int] = {}
    result = Readback()
    last = -1
    for offset, value in records:
        sequence = int.from_bytes(value[:8], "big")
        result.twice += sequence in found
        result.disordered += sequence <= last
        found[sequence] = offset
        last = sequence
    for sequence, offset, at in zip(ledger.sequences, ledger.offsets, ledger.times, strict=True):
        if sequence not in found:
            result.lost += 1
            result.lost_at.append(at)
        elif found[sequence] != offset:
            result.misplaced += 1
    return result
