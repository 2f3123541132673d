"""Reading a log through to find damage: bytes that the disk changed after they were written.

A ``Scrubbing`` is made on the loop and holds what the log consisted of at that moment. ``step``
reads on by at most ``STEP_BYTES`` and may run in another thread while the log is written, rolled,
cut, compacted and deleted: it opens files of its own and takes nothing from the log. ``found`` runs
on the loop again and says what damage there is in the log as it is by then.

Checked of every batch: its CRC; what the CRC does not cover (length, base offset, leader epoch)
against its neighbours, the epoch history and the end of the log. Where the offsets of two batches
contradict each other, the one that does not follow its own predecessor is the damaged one.

The damage that is reported is the first one. ``Damage.offset`` is where the good records before it
end: everything below it in that segment was found whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from raylog.log.files import File
from raylog.records.batch import LOG_OVERHEAD, NO_LEADER_EPOCH, BatchView, peek_size
from raylog.records.corrupt import CorruptBatch, UnsupportedMagic

if TYPE_CHECKING:
    from raylog.log.log import Log
    from raylog.log.segment import Segment

STEP_BYTES = 1 << 20
_URGENT_SEGMENTS = 2  # a read goes on in the next segment where compaction has left a gap


@dataclass(frozen=True, slots=True)
class Damage:
    """One place in a segment's file, named by ``path``, where a batch was expected and none is
    whole.
    """

    path: str
    position: int
    offset: int
    reason: str

    def words(self) -> str:
        """For people: the file, the byte, the offset and what is wrong."""
        return f"{self.path} at byte {self.position}, offset {self.offset}: {self.reason}"


@dataclass(frozen=True, slots=True)
class _Part:
    """A segment as it was: so many bytes, of batches below ``offset_end``."""

    segment: Segment
    size: int
    offset_end: int
    is_last: bool


class Scrubbing:
    """See the module. ``bytes_done`` counts what was read."""

    __slots__ = (
        "_epochs",
        "_expected",
        "_file",
        "_generation",
        "_log",
        "_number",
        "_parts",
        "_position",
        "_previous",
        "bytes_done",
        "damage",
        "damaged",
        "is_urgent",
    )

    def __init__(self, log: Log, offset: int, *, is_urgent: bool) -> None:
        segments = log.segments.reaching(offset)
        ends = [segment.base_offset for segment in segments[1:]] + [log.log_end_offset]
        last = segments[-1]
        if is_urgent:
            segments = segments[:_URGENT_SEGMENTS]
            ends = ends[:_URGENT_SEGMENTS]
        self.is_urgent = is_urgent
        self.bytes_done = 0
        self.damage: Damage | None = None
        self.damaged: Segment | None = None
        self._log = log
        self._generation = log.flushes.generation
        self._epochs = log.leader_epochs.entries
        self._parts = [
            _Part(segment, segment.size, end, segment is last) for segment, end in zip(segments, ends, strict=True)
        ]
        self._number = 0
        self._file: File | None = None
        self._begin_part()

    def _begin_part(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        self._position = 0
        self._previous: tuple[int, int] | None = None  # a batch that does not follow its predecessor: position, offset
        if self._number < len(self._parts):
            self._expected = self._parts[self._number].segment.base_offset

    def step(self) -> bool:
        """Read on; False at the end, which is also the first damage. OSError if the disk cannot be
        read.
        """
        try:
            if self.damage is None and self._number < len(self._parts):
                self._step(self._parts[self._number])
        except OSError:
            self.close()
            raise
        if self.damage is None and self._number < len(self._parts):
            return True
        self.close()
        return False

    def close(self) -> None:
        """Close the file that is open. Idempotent."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _step(self, part: _Part) -> None:
        if self._position >= part.size:
            self._end_part(part)
            return
        if self._file is None:
            try:
                self._file = self._log.files.open(_path(part.segment))
            except FileNotFoundError:  # it was deleted, or compaction has replaced it
                self._number += 1
                self._begin_part()
                return
        wanted = min(STEP_BYTES, part.size - self._position)
        piece = self._file.read_at(self._position, wanted)
        size = peek_size(piece) or 0
        if len(piece) < size <= part.size - self._position:  # one batch that is larger than a piece
            piece = self._file.read_at(self._position, size)
        at = 0
        while at < len(piece) and self.damage is None:
            size = peek_size(piece, at) or 0
            if at and at + max(size, LOG_OVERHEAD) > len(piece) and self._position + at + size <= part.size:
                break  # it goes on behind this piece
            at = self._check(part, piece, at)
        self.bytes_done += len(piece)
        self._position += at
        if not piece:
            self._report(part, self._position, self._expected, f"the file ends where it should have {part.size} bytes")

    def _check(self, part: _Part, piece: bytes | bytearray, at: int) -> int:
        """Judge the batch that begins there; returns where the next one does."""
        position = self._position + at
        try:
            view = BatchView(piece, at)
        except (CorruptBatch, UnsupportedMagic) as error:
            self._report(part, position, self._expected, getattr(error, "reason", None) or str(error))
            return len(piece)
        if not view.has_valid_crc():
            self._report(part, position, self._expected, "a CRC does not fit")
        elif view.base_offset < self._expected or view.last_offset_delta < 0:
            self._contradict(part, position, f"offset {view.base_offset} where {self._expected} is next")
        elif view.base_offset >= part.offset_end:
            self._report(part, position, self._expected, f"offset {view.base_offset} lies behind the segment's end")
        elif (epoch := self._epoch_at(view.base_offset)) is not None and view.partition_leader_epoch not in (
            epoch,
            NO_LEADER_EPOCH,
        ):
            self._report(
                part, position, self._expected, f"leader epoch {view.partition_leader_epoch} where {epoch} was in force"
            )
        self._previous = (position, self._expected) if view.base_offset > self._expected else None
        self._expected = view.next_offset
        return view.end

    def _epoch_at(self, offset: int) -> int | None:
        return next((entry.epoch for entry in reversed(self._epochs) if entry.start_offset <= offset), None)

    def _end_part(self, part: _Part) -> None:
        if self._expected > part.offset_end or (part.is_last and self._expected < part.offset_end):
            self._contradict(
                part, self._position, f"it ends at offset {self._expected} where {part.offset_end} is next"
            )
        if self.damage is None:
            self._number += 1
            self._begin_part()

    def _contradict(self, part: _Part, position: int, reason: str) -> None:
        """Offsets do not fit together: the batch before is to blame if it does not follow its own
        predecessor.
        """
        self._report(part, *(self._previous or (position, self._expected)), reason)

    def _report(self, part: _Part, position: int, offset: int, reason: str) -> None:
        if self.damage is None:
            self.damaged = part.segment
            self.damage = Damage(_path(part.segment), position, offset, reason)

    def found(self) -> Damage | None:
        """The damage that the log has now: what was seen in bytes that are no longer the log's, or
        were being cut, is none.
        """
        if self.damage is None or self.damaged is None or not self._is_unchanged(self.damaged):
            return None
        return self.damage if _path(self.damaged) == self.damage.path else None

    def of_index(self) -> Damage | None:
        """Reading failed though every batch is whole: the index of the first segment is wrong. None
        if that segment is gone.
        """
        first = self._parts[0].segment
        if self.damage is not None or not self._is_unchanged(first):
            return None
        return Damage(f"{first.path}.index", 0, first.base_offset, "it leads to no batch, though the log is whole")

    def _is_unchanged(self, segment: Segment) -> bool:
        return self._log.flushes.generation == self._generation and segment in self._log.segments.all


def _path(segment: Segment) -> str:
    return f"{segment.path}.log{segment.suffix}"


def drop(log: Log, damage: Damage) -> None:
    """Cut the log where the damage begins: what is gone has to be copied from a leader. OSError if
    the disk fails.

    A log that other segments' offsets do not bear out, and a compacted one, is emptied.
    """
    segments: Sequence[Segment] = log.segments.reaching(damage.offset)
    if _path(segments[0]) == damage.path and damage.offset > log.log_start_offset:
        log.truncate_to(damage.offset, position=min(damage.position, segments[0].size))
    else:
        log.truncate_fully_and_start_at(log.log_start_offset)
