"""Messages on their way out, and the writes that they have to wait for.

One write is in flight at a time. A message may leave at once, when the term and vote that it speaks
with are durable, or when everything that the machine held when it was said is durable. Those that
wait are dropped when the term ends: they promise something about a log that may be cut by then, and
every message may be lost anyway.
"""

from __future__ import annotations

import uuid

from raylog.raft.log import QuorumLog
from raylog.raft.messages import HardState, Message, QuorumWrite, Snapshot

Addressed = tuple[uuid.UUID, Message]


class Outbox:
    def __init__(self, log: QuorumLog, saved: HardState) -> None:
        self._log = log
        self._saved = saved
        self._write_number = 0
        self._writing: QuorumWrite | None = None
        self._leaving: list[Addressed] = []
        self._held_for_writing: list[Addressed] = []  # leave when the write in flight is durable
        self._held_for_next: list[Addressed] = []  # leave when the write after it is durable

    @property
    def saved(self) -> HardState:
        """What is on the disk."""
        return self._saved

    @property
    def _handed_out(self) -> HardState:
        if self._writing is not None and self._writing.hard_state is not None:
            return self._writing.hard_state
        return self._saved

    def say(self, peer: uuid.UUID, message: Message) -> None:
        """Promises nothing: send at once."""
        self._leaving.append((peer, message))

    def say_when_durable(self, peer: uuid.UUID, message: Message, hard_state: HardState) -> None:
        """Send when all that this machine holds now is on the disk."""
        if self._log.has_unwritten or hard_state != self._handed_out:
            self._held_for_next.append((peer, message))
        elif self._writing is not None:
            self._held_for_writing.append((peer, message))
        else:
            self._leaving.append((peer, message))

    def say_in_term(self, peer: uuid.UUID, message: Message, hard_state: HardState) -> None:
        """Send when the term is on the disk: else a leader that crashes could lead in it again,
        with other entries.
        """
        if hard_state != self._handed_out:
            self._held_for_next.append((peer, message))
        elif hard_state != self._saved:
            self._held_for_writing.append((peer, message))
        else:
            self._leaving.append((peer, message))

    def end_term(self) -> None:
        self._held_for_writing.clear()
        self._held_for_next.clear()

    def take(self) -> tuple[Addressed, ...]:
        leaving = tuple(self._leaving)
        self._leaving.clear()
        return leaving

    def start_write(self, hard_state: HardState) -> QuorumWrite | None:
        """All that is not on the disk, unless there is nothing or a write is in flight."""
        if self._writing is not None or not (self._log.has_unwritten or hard_state != self._saved):
            return None
        assert hard_state.term >= self._saved.term, (hard_state, self._saved)
        snapshot, entries = self._log.start_write()
        self._write_number += 1
        changed = hard_state if hard_state != self._saved else None
        self._writing = QuorumWrite(self._write_number, changed, snapshot, entries)
        self._held_for_writing, self._held_for_next = self._held_for_next, []
        return self._writing

    def finish_write(self, number: int) -> Snapshot | None:
        """The write of that number is durable; gives the snapshot that it brought from a leader, to
        restore from.
        """
        assert self._writing is not None and self._writing.number == number, (self._writing, number)
        if self._writing.hard_state is not None:
            self._saved = self._writing.hard_state
        self._writing = None
        self._leaving += self._held_for_writing
        self._held_for_writing = []
        return self._log.finish_write()
