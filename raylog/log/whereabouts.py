"""Where on the disk records lie: for readers on the same machine, who take them out of the files
themselves.

``whereabouts`` turns a range of offsets into pieces of segment files, each a run of whole batches.
What is said holds for the file that has that identity now, however it is called later: below the
high watermark bytes do not change under it. Retention renames and removes, compaction puts another
file in its place; whoever has it open goes on reading what was there. Only an unclean election cuts
below a high watermark, and what a reader finds then does not fit (CRC, offsets): it has to check,
as anybody who fetches.
"""

from __future__ import annotations

from dataclasses import dataclass

from raylog.log.log import Log
from raylog.log.segment import Segment

PIECES_MAX = 16
"""In one answer. A range that lies in more segments is asked for again."""


@dataclass(frozen=True, slots=True)
class Piece:
    """``size`` bytes from ``position`` of a file: whole batches. ``device`` and ``inode`` tell
    whether it is that file still.
    """

    path: str
    device: int
    inode: int
    position: int
    size: int


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """The pieces that hold every record from the offset asked for up to ``offset_end``, in order;
    gaps of compaction show nowhere.
    """

    pieces: tuple[Piece, ...]
    offset_end: int


def whereabouts(log: Log, offset: int, offset_end: int, *, in_memory: bool = False) -> Whereabouts:
    """Where the records from ``offset`` up to ``offset_end`` are, below the high watermark.

    Nothing, with the offset itself as end, where no other process can open the files.
    ``in_memory``: raises NotInMemory rather than wait for the disk.
    """
    end = min(offset_end, log.high_watermark)
    pieces: list[Piece] = []
    covered = offset
    following = log.segments.reaching(offset)
    for number, segment in enumerate(following):
        if segment.base_offset >= end or len(pieces) == PIECES_MAX:
            break
        is_last = number + 1 == len(following)
        segment_end = log.log_end_offset if is_last else following[number + 1].base_offset
        log.segments.warm(segment)
        start = _first(segment, offset, in_memory=in_memory) if offset > segment.base_offset else 0
        stop = segment.size if end >= segment_end else _behind(segment, end, in_memory=in_memory)
        if stop > start:
            identity = segment.file.identity()
            if identity is None:
                return Whereabouts((), offset)
            pieces.append(Piece(f"{segment.path}.log{segment.suffix}", *identity, start, stop - start))
        covered = min(end, segment_end)
    return Whereabouts(tuple(pieces), covered)


def _first(segment: Segment, offset: int, *, in_memory: bool) -> int:
    """The position of the first batch that reaches the offset; the segment's end if none does."""
    found = segment.locate(offset, in_memory=in_memory)
    return segment.size if found is None else found[0]


def _behind(segment: Segment, end: int, *, in_memory: bool) -> int:
    """The position behind the last batch that begins below ``end``."""
    found = segment.locate(end, in_memory=in_memory)
    if found is None:
        return segment.size
    position, base_offset, size = found
    return position + size if base_offset < end else position
