"""The ledger of a verifiable load: what was sent, what was acknowledged and where, and the audit
that holds a log against it.

A record of the load carries its own proof. Its value::

    run u32 │ producer u32 │ sequence u64 │ filler … │ CRC-32 of key and everything before, u32

``run`` tells loads on one topic apart, ``sequence`` counts the records of one producer from 0, and
the key follows from producer and sequence, so that a reader knows from a record alone whether it is
whole and which one it is.

``LoadLedger`` is written by the load's threads (each column has one writer per cell) and read by
``Audit``, which takes records in the order of their offsets, partition by partition, in as many
portions as one likes. What it demands:

- whole: every record's checksum is right and its key is the one that belongs to it;
- there: each acknowledged record below the audited position is in the log, at the place that its
  acknowledgement named;
- once: no record is there twice (the producers of a load are idempotent);
- in order: the records of a key lie in one partition, in the order in which they were sent.

A record whose delivery failed or is still open may be there or not, once. Records of other runs are
counted and left alone.

Pure: no clock of its own, no cluster; the times of acknowledgements are given.
"""

from __future__ import annotations

import struct
import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

OPEN = -3
FAILED = -2
PLACE_UNKNOWN = -1  # acknowledged as a duplicate whose offset the leader had forgotten
EXAMPLES_MAX = 3
PREFIX = struct.Struct(">IIQ")
CHECKSUM = struct.Struct(">I")
VALUE_BYTES_MIN = PREFIX.size + CHECKSUM.size


def key_of(producer: int, sequence: int, keys: int) -> bytes:
    """The key of a record; each producer has ``keys`` keys of its own and goes round."""
    return b"p%d-k%d" % (producer, sequence % keys)


def value_of(run: int, producer: int, sequence: int, key: bytes, *, value_bytes: int) -> bytes:
    """The value of a record, ``value_bytes`` long."""
    assert value_bytes >= VALUE_BYTES_MIN, f"a value of {value_bytes} bytes has no room for its proof"
    word = b"%d " % sequence
    filler = word * (value_bytes // len(word) + 1)
    body = (PREFIX.pack(run, producer, sequence) + filler)[: value_bytes - CHECKSUM.size]
    return body + CHECKSUM.pack(zlib.crc32(body, zlib.crc32(key)))


@dataclass(slots=True)
class _Column:
    """One producer's records, indexed by sequence. ``offsets`` also says OPEN, FAILED or
    PLACE_UNKNOWN.
    """

    partitions: array[int] = field(default_factory=lambda: array("i"))
    offsets: array[int] = field(default_factory=lambda: array("q"))


class LoadLedger:
    """What one load sent. ``keys`` is the number of keys of each producer."""

    def __init__(self, run: int, producers: int, keys: int) -> None:
        self.run = run
        self.keys = keys
        self.columns = [_Column() for _ in range(producers)]
        self.acknowledged = 0
        self.failures: list[str] = []  # in words, the first few
        self.failed = 0
        self._times: dict[int, array[float]] = {}

    @property
    def sent(self) -> int:
        return sum(len(column.offsets) for column in self.columns)

    def take(self, producer: int, count: int) -> range:
        """The sequences of the next records of a producer; called by its thread alone."""
        column = self.columns[producer]
        start = len(column.offsets)
        column.partitions.extend([-1] * count)
        column.offsets.extend([OPEN] * count)
        return range(start, start + count)

    def acknowledge(
        self, producer: int, sequences: Iterable[int], places: Iterable[tuple[int, int]], at: float
    ) -> None:
        """These records were acknowledged at (partition, offset), at that time; called by one
        thread alone.
        """
        column = self.columns[producer]
        seen: set[int] = set()
        for sequence, (partition, offset) in zip(sequences, places, strict=True):
            column.partitions[sequence] = partition
            column.offsets[sequence] = offset if offset >= 0 else PLACE_UNKNOWN
            self.acknowledged += 1
            seen.add(partition)
        for partition in sorted(seen):
            self._times.setdefault(partition, array("d")).append(at)

    def fail(self, producer: int, sequences: Iterable[int], reason: str) -> None:
        """The client gave these records up: they may be in the log or not."""
        column = self.columns[producer]
        for sequence in sequences:
            column.offsets[sequence] = FAILED
            self.failed += 1
        if len(self.failures) < EXAMPLES_MAX:
            self.failures.append(reason)

    def longest_pause(self, start: float, end: float) -> float:
        """Seconds between two consecutive acknowledgements of one partition, at worst, of gaps that
        touch ``[start, end]``.

        A partition that is silent at ``end`` counts as paused until then.
        """
        longest = 0.0
        for times in list(self._times.values()):
            first = max(1, bisect_left(times, start))
            last = bisect_right(times, end)
            for index in range(first, min(last + 1, len(times))):
                longest = max(longest, times[index] - times[index - 1])
            if last == len(times) and times:
                longest = max(longest, end - times[-1])
        return longest

    def longest_pause_begun(self, start: float, end: float) -> float:
        """Seconds between two consecutive acknowledgements of one partition, at worst, of gaps that
        begin in ``[start, end)``.
        """
        longest = 0.0
        for times in list(self._times.values()):
            for index in range(bisect_left(times, start), min(bisect_left(times, end), len(times) - 1)):
                longest = max(longest, times[index + 1] - times[index])
        return longest

    def count_between(self, start: float, end: float) -> int:
        """How many acknowledgements (of whole requests of the load) came in that time."""
        return sum(bisect_right(times, end) - bisect_left(times, start) for times in list(self._times.values()))


@dataclass(slots=True)
class Findings:
    """How many records broke which promise, with the first few of each in words."""

    read: int = 0
    read_bytes: int = 0
    acknowledged: int = 0  # of those audited
    unacknowledged_there: int = 0
    foreign: int = 0
    lost: int = 0
    duplicated: int = 0
    disordered: int = 0
    altered: int = 0
    misplaced: int = 0
    unknown: int = 0
    examples: list[str] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        return not self.broken

    @property
    def broken(self) -> int:
        return self.lost + self.duplicated + self.disordered + self.altered + self.misplaced + self.unknown

    def words(self) -> str:
        """What was checked and what was found."""
        checked = (
            f"Read {self.read:,} records ({self.read_bytes / 1e6:,.1f} MB) and held them against {self.acknowledged:,} "
            "acknowledgements: each acknowledged record at its partition and offset, none twice, those of a key in the order "
            "in which they were sent, every checksum."
        )
        if self.holds:
            beside = f" {self.unacknowledged_there:,} records are there that nobody was told of yet." * bool(
                self.unacknowledged_there
            )
            return f"{checked} All of it holds.{beside}"
        counts = Counter(
            {
                "lost": self.lost,
                "there twice": self.duplicated,
                "out of order": self.disordered,
                "with a wrong checksum": self.altered,
                "elsewhere than acknowledged": self.misplaced,
                "that nobody sent": self.unknown,
            }
        )
        found = ", ".join(f"{count:,} {kind}" for kind, count in counts.items() if count)
        return "\n  ".join([f"{checked} FOUND: {found}.", *self.examples])

    def note(self, kind: str, example: str) -> None:
        """Count one breach."""
        count = getattr(self, kind)
        setattr(self, kind, count + 1)
        if count < EXAMPLES_MAX:
            self.examples.append(example)


class Audit:
    """Holds a log against a ledger, portion by portion; ``findings`` grow."""

    def __init__(self, ledger: LoadLedger) -> None:
        self.findings = Findings()
        self.positions: dict[int, int] = {}  # by partition, the next offset to read
        self._ledger = ledger
        self._found = [_Column() for _ in ledger.columns]
        self._last_of_key: dict[bytes, tuple[int, int]] = {}  # partition, sequence
        self._floors = [0] * len(ledger.columns)  # below it every record is settled and judged
        self._judged: list[set[int]] = [set() for _ in ledger.columns]  # above the floor

    def take(self, partition: int, offset: int, key: bytes | None, value: bytes | None) -> None:
        """The next record of a partition."""
        findings = self.findings
        where = f"partition {partition} offset {offset}"
        if offset < self.positions.get(partition, 0):
            findings.note("disordered", f"{where} came after offset {self.positions[partition] - 1}")
        self.positions[partition] = offset + 1
        findings.read += 1
        findings.read_bytes += len(value or b"") + len(key or b"")
        known = self._identified(where, key, value)
        if known is None:
            return
        producer, sequence = known
        assert key is not None
        found = self._found[producer]
        if len(found.offsets) <= sequence:
            missing = sequence + 1 - len(found.offsets)
            found.offsets.extend([OPEN] * missing)
            found.partitions.extend([-1] * missing)
        if found.offsets[sequence] != OPEN:
            first = f"partition {found.partitions[sequence]} offset {found.offsets[sequence]}"
            findings.note("duplicated", f"{where}: record {sequence} of producer {producer} is at {first} already")
            return
        found.partitions[sequence], found.offsets[sequence] = partition, offset
        last_partition, last_sequence = self._last_of_key.get(key, (partition, -1))
        if last_partition != partition:
            findings.note("disordered", f"{where}: key {key.decode()} is in partition {last_partition} too")
        elif sequence < last_sequence:
            findings.note("disordered", f"{where}: record {sequence} of key {key.decode()} comes after {last_sequence}")
        self._last_of_key[key] = (partition, sequence)

    def _identified(self, where: str, key: bytes | None, value: bytes | None) -> tuple[int, int] | None:
        ledger = self._ledger
        if key is None or value is None or len(value) < VALUE_BYTES_MIN:
            self.findings.note("altered", f"{where} is no record of a load: key {key!r}, value {value!r}")
            return None
        body, (checksum,) = value[: -CHECKSUM.size], CHECKSUM.unpack(value[-CHECKSUM.size :])
        if zlib.crc32(body, zlib.crc32(key)) != checksum:
            self.findings.note("altered", f"{where} has a wrong checksum: key {key!r}, value {value!r}")
            return None
        run, producer, sequence = PREFIX.unpack_from(value)
        if run != ledger.run:
            self.findings.foreign += 1
            return None
        if producer >= len(ledger.columns) or sequence >= len(ledger.columns[producer].offsets):
            self.findings.note("unknown", f"{where}: record {sequence} of producer {producer} was never sent")
            return None
        if key != key_of(producer, sequence, ledger.keys):
            self.findings.note("altered", f"{where}: record {sequence} of producer {producer} has key {key!r}")
            return None
        return producer, sequence

    def passed(self, partition: int, position: int) -> None:
        """Everything below that offset has been read, also where there were no records."""
        self.positions[partition] = max(position, self.positions.get(partition, 0))

    def settle(self) -> int:
        """Judge all acknowledgements below the positions read so far; how many acknowledged records
        are newly found lost.
        """
        before = self.findings.lost
        for producer, sequence in list(self._open()):
            self._judge(producer, sequence)
        for producer, judged in enumerate(self._judged):
            floor = self._floors[producer]
            while floor in judged:
                judged.discard(floor)
                floor += 1
            self._floors[producer] = floor
        self.findings.unacknowledged_there = sum(self._unacknowledged_there())
        return self.findings.lost - before

    def _open(self) -> Iterator[tuple[int, int]]:
        for producer, column in enumerate(self._ledger.columns):
            judged = self._judged[producer]
            for sequence in range(self._floors[producer], len(column.offsets)):
                if sequence not in judged:
                    yield producer, sequence

    def _judge(self, producer: int, sequence: int) -> None:
        column, found = self._ledger.columns[producer], self._found[producer]
        partition, offset = column.partitions[sequence], column.offsets[sequence]
        if offset in (OPEN, FAILED):
            if offset == FAILED:
                self._judged[producer].add(sequence)
            return
        there = found.offsets[sequence] if sequence < len(found.offsets) else OPEN
        name = f"record {sequence} of producer {producer}"
        if offset == PLACE_UNKNOWN:
            if there == OPEN:
                return  # it is judged when it is found, and counted lost by ``finish``
        elif offset >= self.positions.get(partition, 0):
            return
        elif there == OPEN:
            self.findings.note("lost", f"{name}, acknowledged at partition {partition} offset {offset}, is not there")
        elif (found.partitions[sequence], there) != (partition, offset):
            place = f"partition {found.partitions[sequence]} offset {there}"
            self.findings.note(
                "misplaced", f"{name}, acknowledged at partition {partition} offset {offset}, is at {place}"
            )
        self.findings.acknowledged += 1
        self._judged[producer].add(sequence)

    def finish(self) -> Findings:
        """After everything has been read: what is acknowledged and was not found is lost, wherever
        it was to be.
        """
        self.settle()
        for producer, sequence in list(self._open()):
            offset = self._ledger.columns[producer].offsets[sequence]
            if offset >= PLACE_UNKNOWN:
                name = f"record {sequence} of producer {producer}"
                self.findings.note("lost", f"{name}, acknowledged, is nowhere (its place: {offset})")
                self.findings.acknowledged += 1
                self._judged[producer].add(sequence)
        return self.findings

    def _unacknowledged_there(self) -> Iterator[int]:
        for column, found in zip(self._ledger.columns, self._found, strict=True):
            yield sum(
                1
                for acked, there in zip(column.offsets, found.offsets, strict=False)
                if acked in (OPEN, FAILED) and there != OPEN
            )
