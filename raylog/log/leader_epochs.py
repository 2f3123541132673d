"""Where each leader epoch starts in one log, in memory and in ``leader-epoch-checkpoint``.

The file is Apache Kafka's, text::

    0                      version
    <number of entries>
    <epoch> <start offset>

Entries ascend strictly in both columns. ``end_offset_for`` is the answer to OffsetForLeaderEpoch,
on which followers cut their logs (TV-21, TV-22). The file is written whenever the entries change
and flushed before the log's recovery point moves: recovery reads the epochs of what lies above that
from the batches.

Where an entry is added behind the others the file is overwritten in place; any other change
replaces it. ext4 writes a file out before it renames it over another one. That takes 40 times as
long as the overwriting, and many milliseconds where the disk is busy. The first append of each
epoch waits for it, and when a host dies hundreds of epochs begin at once. A loss of power may tear
what was overwritten. ``load`` finds that out: the text has no last line feed then, or fewer entries
than it announces. Two texts of equally many entries could be torn into a third that looks whole, so
those are never mixed.
"""

from __future__ import annotations

import threading
from itertools import pairwise
from typing import NamedTuple

from raylog.errors import DiskError
from raylog.log.files import Files

FILE_NAME = "leader-epoch-checkpoint"
UNDEFINED = -1


class EpochEntry(NamedTuple):
    epoch: int
    start_offset: int


class LeaderEpochs:
    """The entries of one log. Mutators write the file when something changed."""

    __slots__ = ("_entries", "_files", "_guard", "_is_whole", "_path", "_unflushed")

    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self._path = f"{directory}/{FILE_NAME}"
        self._entries: list[EpochEntry] = []
        self._unflushed = False
        self._is_whole = False  # the file holds the entries as they were before the latest change
        self._guard = threading.Lock()  # of the file: flush() may come from another thread

    def load(self) -> None:
        """Read the file; a missing one is empty. ValueError if it is damaged, DiskError if it is of
        a newer version.
        """
        try:
            text = self._files.read_file(self._path).decode("ascii")
        except FileNotFoundError:
            return
        lines = text.splitlines()
        if len(lines) < 2 or not text.endswith("\n") or int(lines[0]) < 0:  # torn: its last number may be cut short
            raise ValueError(f"{self._path}: not a whole epoch checkpoint")
        if int(lines[0]) > 0:
            raise DiskError(f"{self._path} has version {lines[0]}, newer than this raylog reads (0). Upgrade raylog.")
        pairs = [line.partition(" ") for line in lines[2:] if line]
        entries = [EpochEntry(int(epoch), int(start_offset)) for epoch, _, start_offset in pairs]
        if len(entries) != int(lines[1]):
            raise ValueError(f"{self._path}: {len(entries)} entries where {lines[1]} are announced")
        if any(a.epoch >= b.epoch or a.start_offset >= b.start_offset for a, b in pairwise(entries)):
            raise ValueError(f"{self._path}: entries do not ascend")
        self._entries = entries
        self._is_whole = True

    @property
    def entries(self) -> tuple[EpochEntry, ...]:
        return tuple(self._entries)

    @property
    def latest_epoch(self) -> int:
        """−1 where there is none."""
        return self._entries[-1].epoch if self._entries else UNDEFINED

    def start_offset_of(self, epoch: int) -> int | None:
        """Where an epoch starts, None if the log has nothing of it."""
        return next((entry.start_offset for entry in reversed(self._entries) if entry.epoch == epoch), None)

    def epoch_at(self, offset: int) -> int:
        """The epoch that the record at ``offset`` was (or would be) written in; −1 where there is
        none.
        """
        return next((entry.epoch for entry in reversed(self._entries) if entry.start_offset <= offset), UNDEFINED)

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """Kafka's answer to OffsetForLeaderEpoch: the greatest epoch at or below ``epoch`` and
        where it ends.

        ``(−1, −1)`` if ``epoch`` is −1 or above all that are known; an epoch below all of them ends
        where the first starts.
        """
        if epoch == UNDEFINED:
            return UNDEFINED, UNDEFINED
        if epoch == self.latest_epoch:
            return epoch, log_end_offset
        floor = epoch
        for entry in self._entries:
            if entry.epoch > epoch:
                return floor, entry.start_offset
            floor = entry.epoch
        return UNDEFINED, UNDEFINED

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Note that ``epoch`` starts at ``start_offset``. Entries that contradict it (same or later
        epoch, same or later offset) go.

        Nothing changes if the epoch is the latest and starts no earlier than known. Says whether
        something changed.
        """
        assert epoch >= 0 and start_offset >= 0, (epoch, start_offset)
        last = self._entries[-1] if self._entries else None
        if last is not None and last.epoch == epoch and start_offset >= last.start_offset:
            return False
        known = len(self._entries)
        while self._entries and (self._entries[-1].epoch >= epoch or self._entries[-1].start_offset >= start_offset):
            self._entries.pop()
        self._entries.append(EpochEntry(epoch, start_offset))
        self._write(is_longer=len(self._entries) == known + 1)
        return True

    def truncate_from_end(self, end_offset: int) -> None:
        """Forget the epochs that start at or after ``end_offset``: the log was cut there."""
        kept = [entry for entry in self._entries if entry.start_offset < end_offset]
        if len(kept) != len(self._entries):
            self._entries = kept
            self._write()

    def truncate_from_start(self, start_offset: int) -> None:
        """Let the first epoch start at ``start_offset``: what lies before was deleted."""
        below = [entry for entry in self._entries if entry.start_offset <= start_offset]
        if below and below != [EpochEntry(below[-1].epoch, start_offset)]:
            self._entries = [EpochEntry(below[-1].epoch, start_offset), *self._entries[len(below) :]]
            self._write()

    def clear(self) -> None:
        if self._entries:
            self._entries = []
            self._write()

    def flush(self) -> None:
        """Return when the file is on the disk. Thread safe."""
        with self._guard:
            if self._unflushed:
                self._files.write_file(self._path, self._encoded(), flush=True)
                self._unflushed, self._is_whole = False, True

    def _write(self, *, is_longer: bool = False) -> None:
        """``is_longer``: one entry was added, and the others are what they were."""
        with self._guard:
            self._unflushed = True
            overwrites, self._is_whole = is_longer and self._is_whole, False
            if overwrites:
                self._overwrite()
            else:
                self._files.write_file(self._path, self._encoded(), flush=False)
            self._is_whole = True

    def _overwrite(self) -> None:
        file = self._files.open(self._path, create=True)
        try:
            file.write_at(0, self._encoded())
        finally:
            file.close()

    def _encoded(self) -> bytes:
        entries = self.entries
        return "".join(
            ("0\n", f"{len(entries)}\n", *(f"{entry.epoch} {entry.start_offset}\n" for entry in entries))
        ).encode()
