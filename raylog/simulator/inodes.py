"""Files and directories of a simulated disk: what the page cache holds of each, what the disk
holds, and what a loss of power leaves.

``simulated_files`` says what is promised. Names here are those of one directory; paths, locks and
faults are the disk's.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

PAGE_BYTES = 512
"""What a disk writes at once: a hole has this size and alignment."""

LATELY_MS = 1_000
"""So long a page stays in the page cache for sure after it was written or loaded."""

Evicts = Callable[[str, int, int], bool]
"""Called with (path, page, wall-clock milliseconds)."""


@dataclass(slots=True)
class Inode:
    cached: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    unflushed: list[tuple[int, bytes | None]] = field(default_factory=list)  # (position, data) or (new size, None)
    modified_ms: int = 0
    absent: set[int] = field(default_factory=set)  # pages that are not in the page cache
    has_lost_writes: bool = False  # a flush failed: the cache holds what the disk does not, and nothing will write it
    touched_ms: dict[int, int] = field(
        default_factory=dict
    )  # when a page was last written, loaded, or kept in the cache

    def touch(self, pages: range, now_ms: int) -> None:
        """They are in the page cache."""
        self.absent.difference_update(pages)
        for page in pages:
            self.touched_ms[page] = now_ms

    def lacks(self, pages: range, path: str, evicts: Evicts | None, now_ms: int) -> bool:
        """Whether one of them has left the page cache."""
        if evicts is not None:
            for page in pages:
                if page not in self.absent and now_ms - self.touched_ms.get(page, 0) >= LATELY_MS:
                    if evicts(path, page, now_ms):
                        self.absent.add(page)
                    else:
                        self.touched_ms[page] = now_ms
        return not self.absent.isdisjoint(pages)

    def write(self, position: int, data: bytes) -> None:
        _write(self.cached, position, data)
        self.unflushed.append((position, data))

    def truncate(self, size: int) -> None:
        _resize(self.cached, size)
        self.unflushed.append((size, None))

    def flush(self) -> None:
        for position, data in self.unflushed:
            if data is None:
                _resize(self.durable, position)
            else:
                _write(self.durable, position, data)
        self.unflushed.clear()
        assert self.has_lost_writes or len(self.durable) == len(self.cached), (len(self.durable), len(self.cached))

    def fail_to_flush(self) -> None:
        if self.unflushed:
            self.unflushed.clear()
            self.has_lost_writes = True

    def forget_lost_writes(self) -> None:
        """The cache drops its pages. Those that wait for a flush stay."""
        if self.has_lost_writes and not self.unflushed:
            self.cached = bytearray(self.durable)
            self.has_lost_writes = False

    def lose_power(self, rng: random.Random) -> bool:
        """Falls back to what the disk holds; says whether a write was torn."""
        torn = False
        if self.unflushed:
            survivors = rng.choice((0, rng.randrange(len(self.unflushed) + 1), len(self.unflushed)))
            start = len(self.durable)
            for position, data in self.unflushed[:survivors]:
                if data is None:
                    _resize(self.durable, position)
                else:
                    _write(self.durable, position, data)
            if survivors < len(self.unflushed):
                position, data = self.unflushed[survivors]
                if data is not None and len(data) > 1 and rng.random() < 0.5:
                    _write(self.durable, position, data[: rng.randrange(1, len(data))])
                    torn = True
            if len(self.durable) > start and rng.random() < 0.1:
                hole = rng.randrange(start, len(self.durable))
                hole_end = min(len(self.durable), hole // PAGE_BYTES * PAGE_BYTES + PAGE_BYTES)
                self.durable[hole:hole_end] = bytes(hole_end - hole)
                torn = True
            self.unflushed.clear()
        self.cached = bytearray(self.durable)
        self.has_lost_writes = False
        return torn


def _write(target: bytearray, position: int, data: bytes) -> None:
    if position > len(target):
        target.extend(bytes(position - len(target)))
    target[position : position + len(data)] = data


def _resize(target: bytearray, size: int) -> None:
    if size <= len(target):
        del target[size:]
    else:
        target.extend(bytes(size - len(target)))


@dataclass(slots=True)
class Directory:
    entries: dict[str, Inode | Directory] = field(default_factory=dict)
    durable: dict[str, Inode | Directory] = field(default_factory=dict)
    unsynced: list[Change] = field(default_factory=list)

    def change(self, changes: Change) -> None:
        """Several names at once, atomically (a rename within the directory is two)."""
        self.unsynced.append(changes)
        _apply(self.entries, changes)

    def sync(self) -> None:
        self.durable = dict(self.entries)
        self.unsynced.clear()

    def lose_power(self, rng: random.Random) -> int:
        """Falls back to the durable names, here and below; the number of files with a torn write."""
        survivors = rng.choice((0, rng.randrange(len(self.unsynced) + 1), len(self.unsynced))) if self.unsynced else 0
        for changes in self.unsynced[:survivors]:
            _apply(self.durable, changes)
        self.unsynced.clear()
        self.entries = dict(self.durable)
        return sum(int(self.entries[name].lose_power(rng)) for name in sorted(self.entries))


Change = tuple[tuple[str, Inode | Directory | None], ...]
"""Names and what they stand for from now on; None: removed."""


def _apply(entries: dict[str, Inode | Directory], changes: Change) -> None:
    for name, entry in changes:
        if entry is None:
            entries.pop(name, None)
        else:
            entries[name] = entry


def used_bytes(directory: Directory) -> int:
    return sum(
        used_bytes(entry) if isinstance(entry, Directory) else len(entry.cached) for entry in directory.entries.values()
    )


def flush_below(directory: Directory) -> None:
    directory.sync()
    for entry in directory.entries.values():
        if isinstance(entry, Directory):
            flush_below(entry)
        else:
            entry.flush()


def evict_below(directory: Directory) -> None:
    for entry in directory.entries.values():
        if isinstance(entry, Directory):
            evict_below(entry)
        else:
            entry.forget_lost_writes()
            entry.absent.update(pages_of(0, len(entry.cached)))


def pages_of(position: int, size: int) -> range:
    return range(position // PAGE_BYTES, (position + size + PAGE_BYTES - 1) // PAGE_BYTES)
