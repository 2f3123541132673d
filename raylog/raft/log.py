"""The quorum's log in memory: a snapshot, the entries behind it, and how much of them is on the
disk.

Knows nothing of roles, elections or files. Bounds, in entries::

    snapshot.last_index <= persisted_index <= last_index        (persisted_index: 0 while a received snapshot is being written)

Voters are those of the last VOTERS entry, committed or not, else of the snapshot.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from raylog.raft.messages import Entry, EntryKind, Snapshot, Voters, decode_voters


class QuorumLog:
    def __init__(self, snapshot: Snapshot, entries: Sequence[Entry]) -> None:
        self.snapshot = snapshot
        self.entries: list[Entry] = []
        self.persisted_index = snapshot.last_index
        self._voters: list[tuple[int, Voters]] = [
            (snapshot.last_index, snapshot.voters)
        ]  # (index, from there on), growing
        self._writing_last_index = 0  # what the write in flight makes durable, 0 for nothing
        self._snapshot_unwritten = False
        self._snapshot_is_foreign = False  # received, not taken here: the log on the disk ends before it
        self._writing_foreign_snapshot = False
        self.append(entries)
        self.persisted_index = self.last_index

    @property
    def last_index(self) -> int:
        return self.snapshot.last_index + len(self.entries)

    @property
    def last_term(self) -> int:
        return self.entries[-1].term if self.entries else self.snapshot.last_term

    @property
    def voters(self) -> Voters:
        return self._voters[-1][1]

    @property
    def voters_index(self) -> int:
        """The index of the entry that named the voters."""
        return self._voters[-1][0]

    def has_seat(self, member: uuid.UUID, commit_index: int) -> bool:
        """Whether it is a voter, or was one until an entry that is not known to be committed."""
        return any(member in voters for voters in self.voters_since(commit_index))

    def voters_since(self, index: int) -> list[Voters]:
        """Those in force at that index, then those that were named behind it."""
        before = sum(at <= index for at, _ in self._voters)
        return [voters for _, voters in self._voters[max(0, before - 1) :]]

    def term_at(self, index: int) -> int | None:
        """None where it is not known: the log holds no such entry, either no more or not yet."""
        if index == self.snapshot.last_index:
            return self.snapshot.last_term
        position = index - self.snapshot.last_index - 1
        return self.entries[position].term if 0 <= position < len(self.entries) else None

    def slice(self, start: int, last: int, bytes_max: int) -> tuple[Entry, ...]:
        """Entries start..last, both included, at most so many bytes, but at least one if there is
        one.
        """
        first_position = start - self.snapshot.last_index - 1
        assert first_position >= 0, (start, self.snapshot.last_index)
        chosen: list[Entry] = []
        for position in range(first_position, last - self.snapshot.last_index):
            entry = self.entries[position]
            bytes_max -= len(entry.data)
            if bytes_max < 0 and chosen:
                break
            chosen.append(entry)
        return tuple(chosen)

    def last_index_within(self, index: int, term: int) -> int:
        """The last index not behind ``index`` whose term is at most ``term``: nothing behind it can
        match a log that ends there.
        """
        index = min(index, self.last_index)
        while (own := self.term_at(index)) is not None and own > term:
            index -= 1
        return index

    def append(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            assert entry.index == self.last_index + 1, (entry.index, self.last_index)
            assert entry.term >= self.last_term, (entry.index, entry.term, self.last_term)
            self.entries.append(entry)
            if entry.kind is EntryKind.VOTERS:
                self._voters.append((entry.index, decode_voters(entry.data)))

    def merge(self, entries: Sequence[Entry], commit_index: int) -> None:
        """Append a leader's entries, the first of which follows one that matches. What differs from
        them is not committed, and goes.
        """
        for position, entry in enumerate(entries):
            own_term = self.term_at(entry.index)
            if own_term == entry.term:
                continue
            if own_term is not None:
                assert entry.index > commit_index, (entry.index, commit_index)
                self.truncate_from(entry.index)
            self.append(entries[position:])
            break

    def truncate_from(self, index: int) -> None:
        """Drop the entry at ``index`` and everything behind it."""
        assert index > self.snapshot.last_index, (index, self.snapshot.last_index)
        del self.entries[index - self.snapshot.last_index - 1 :]
        while self._voters[-1][0] >= index and len(self._voters) > 1:
            self._voters.pop()
        self.persisted_index = min(self.persisted_index, index - 1)
        self._writing_last_index = min(self._writing_last_index, index - 1)

    def compact(self, index: int, data: bytes) -> Snapshot:
        """Replace everything up to a persisted index by a snapshot of the state there."""
        assert self.snapshot.last_index < index <= self.persisted_index, (
            index,
            self.snapshot.last_index,
            self.persisted_index,
        )
        term = self.term_at(index)
        assert term is not None
        voters = next(voters for at, voters in reversed(self._voters) if at <= index)
        del self.entries[: index - self.snapshot.last_index]
        self.snapshot = Snapshot(index, term, self.snapshot.cluster_id, voters, data)
        self._voters = [(index, voters)] + [known for known in self._voters if known[0] > index]
        self._snapshot_unwritten = True
        return self.snapshot

    def install(self, snapshot: Snapshot) -> None:
        """Forget everything and start from a leader's snapshot."""
        self.snapshot = snapshot
        self.entries = []
        self._voters = [(snapshot.last_index, snapshot.voters)]
        self.persisted_index = 0
        self._writing_last_index = 0
        self._snapshot_unwritten = self._snapshot_is_foreign = True

    # ------------------------------------------------------------------ what the disk has

    @property
    def has_unwritten(self) -> bool:
        """Whether there is something that no write was started for."""
        return self._snapshot_unwritten or max(self.persisted_index, self._writing_last_index) < self.last_index

    def start_write(self) -> tuple[Snapshot | None, tuple[Entry, ...]]:
        """Everything that is not on the disk. ``finish_write`` follows before the next one."""
        snapshot = self.snapshot if self._snapshot_unwritten else None
        self._writing_foreign_snapshot = self._snapshot_is_foreign
        self._snapshot_unwritten = self._snapshot_is_foreign = False
        first = max(self.persisted_index, self.snapshot.last_index)
        self._writing_last_index = self.last_index
        return snapshot, tuple(self.entries[first - self.snapshot.last_index :])

    def finish_write(self) -> Snapshot | None:
        """The write is durable, except for what was cut or replaced meanwhile. Gives a snapshot
        that came from a leader.
        """
        self.persisted_index = max(self.persisted_index, self._writing_last_index)
        self._writing_last_index = 0
        restored = self.snapshot if self._writing_foreign_snapshot and not self._snapshot_is_foreign else None
        self._writing_foreign_snapshot = False
        return restored

    def check(self) -> None:
        last_index = self.last_index
        assert self.persisted_index <= last_index, (self.persisted_index, last_index)
        assert self._writing_last_index <= last_index, (self._writing_last_index, last_index)
        foreign = self._snapshot_is_foreign or self._writing_foreign_snapshot
        assert foreign or self.snapshot.last_index <= self.persisted_index, (
            self.snapshot.last_index,
            self.persisted_index,
        )
        for position, entry in enumerate(self.entries):
            assert entry.index == self.snapshot.last_index + 1 + position, (entry.index, position)
        terms = [self.snapshot.last_term, *(entry.term for entry in self.entries)]
        assert terms == sorted(terms), terms
        assert [index for index, _ in self._voters] == sorted({index for index, _ in self._voters}), self._voters
