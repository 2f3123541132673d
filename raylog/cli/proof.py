"""The proof that a log kept its word: what was read back, held against a ledger of what was
acknowledged.

Pure. The ledger numbers records in the order in which they were sent; each was acknowledged at a
partition and an offset. ``verify`` demands that each acknowledged record is there exactly once, at
its place, with its key, timestamp and the checksum of its value, that nothing else is there, that
every partition is read in the order of its offsets, and that the records of one key lie in one
partition in the order in which they were sent.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

EXAMPLES_MAX = 3


class ReadRecord(Protocol):
    """What the proof needs of a record."""

    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...


@dataclass(slots=True)
class AcknowledgedRecords:
    """Acknowledged records in the order in which they were sent; columns of equal length."""

    keys: list[bytes] = field(default_factory=list)
    timestamps_ms: list[int] = field(default_factory=list)
    checksums: list[int] = field(default_factory=list)
    places: list[tuple[int, int]] = field(default_factory=list)

    def note(
        self,
        keys: Sequence[bytes],
        values: Sequence[bytes],
        timestamps_ms: Sequence[int],
        places: Sequence[tuple[int, int]],
    ) -> None:
        """Add records that were sent after all earlier ones and acknowledged at these (partition,
        offset).
        """
        assert len(keys) == len(values) == len(timestamps_ms) == len(places), (len(keys), len(values), len(places))
        self.keys.extend(keys)
        self.timestamps_ms.extend(timestamps_ms)
        self.checksums.extend(map(zlib.crc32, values))
        self.places.extend(places)

    def __len__(self) -> int:
        return len(self.places)


@dataclass(slots=True)
class ProofVerdict:
    """How many records broke which promise, with the first few of each in words."""

    acknowledged: int
    read: int = 0
    lost: int = 0
    unexpected: int = 0
    altered: int = 0
    out_of_order: int = 0
    examples: list[str] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        return not (self.lost or self.unexpected or self.altered or self.out_of_order)

    def _note(self, kind: str, example: str) -> None:
        count = getattr(self, kind)
        setattr(self, kind, count + 1)
        if count < EXAMPLES_MAX:
            self.examples.append(example)


def verify(records: Iterable[ReadRecord], ledger: AcknowledgedRecords) -> ProofVerdict:
    """Hold every record that was read, in the order of reading, against the ledger."""
    verdict = ProofVerdict(acknowledged=len(ledger))
    expected: dict[tuple[int, int], int] = {}
    for number, place in enumerate(ledger.places):
        if place in expected:
            verdict._note("altered", f"two records were acknowledged at {_at(place)}")
        expected[place] = number
    last_offsets: dict[int, int] = {}
    last_of_key: dict[bytes, tuple[int, int]] = {}
    for record in records:
        verdict.read += 1
        place = (record.partition, record.offset)
        if record.offset <= last_offsets.get(record.partition, -1):
            verdict._note("out_of_order", f"{_at(place)} came after offset {last_offsets[record.partition]}")
        last_offsets[record.partition] = max(record.offset, last_offsets.get(record.partition, -1))
        sent = expected.pop(place, None)
        if sent is None:
            verdict._note("unexpected", f"{_at(place)} holds a record that nobody was told of, or was read twice")
            continue
        key = ledger.keys[sent]
        if record.key != key:
            verdict._note("altered", f"{_at(place)} has key {record.key!r}, acknowledged was {key!r}")
        elif zlib.crc32(record.value or b"") != ledger.checksums[sent]:
            verdict._note("altered", f"{_at(place)} has another value than the acknowledged one")
        elif record.timestamp != ledger.timestamps_ms[sent]:
            verdict._note("altered", f"{_at(place)} has timestamp {record.timestamp}, not {ledger.timestamps_ms[sent]}")
        partition, previous = last_of_key.get(key, (record.partition, -1))
        if partition != record.partition or sent < previous:
            verdict._note("out_of_order", f"{_at(place)}: key {key!r} is not where or when it was sent")
        last_of_key[key] = (record.partition, sent)
    for place in sorted(expected):
        verdict._note("lost", f"{_at(place)} was acknowledged and is not there")
    return verdict


def _at(place: tuple[int, int]) -> str:
    return f"partition {place[0]} offset {place[1]}"
