"""What must hold of a chain: a copier takes what it reads from one partition, writes it to another,
and commits its position, as a record of a third or as an offset of a group, in the same transaction.

Owns what stands in the source, offset by offset, as the checker of transactions saw it below a high
watermark, and how far the target has it. The target's and the positions' commits are fed as their
markers are seen. Holds as long as nothing was lost in any of the three (``TransactionChecker.holds``)::

    each commit of the target goes on where the one before has ended
    it has every committed record of the source in between, in order, and no other; only deleted ones may be missing
    the positions say what the target says
    at the end the target has all that the source has
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from raylog.types import TopicIdPartition

if TYPE_CHECKING:
    from raylog.simulator.checkers import History
    from raylog.simulator.transaction_checker import Span


@dataclass(slots=True)
class Chain:
    """``values`` are those of the source from ``start`` on, with the transaction of each;
    ``copied_end`` and ``position`` the source's offsets up to which target and positions have it.
    ``positions`` is None where a group has the position: ``offsets`` is that one's partition of
    ``__consumer_offsets``. ``source_start``: what lies below may be deleted. ``unchecked``: copies of what was not seen yet.
    """

    number: int
    transactional_id: str
    source: TopicIdPartition
    target: TopicIdPartition
    positions: TopicIdPartition | None
    start: int
    offsets: TopicIdPartition | None = None
    values: dict[int, tuple[bytes, Span | None]] = field(default_factory=dict)
    source_start: int = 0
    copied_end: int = field(init=False)
    position: int = field(init=False)
    copied: int = 0
    unchecked: deque[tuple[CopiedRange, list[tuple[int, bytes]]]] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.copied_end = self.position = self.start

    @property
    def ids(self) -> tuple[TopicIdPartition, ...]:
        """Those that must not lose anything."""
        positions = (self.positions,) if self.positions is not None else ()
        return self.source, self.target, *positions

    def is_written_by(self, transactional_id: str) -> bool:
        """The copiers of a group have an id each."""
        return transactional_id.partition("@")[0] == self.transactional_id

    def uncopied(self) -> int | None:
        """The first offset that is to be copied yet."""
        left = (offset for offset, _ in self._committed(max(self.copied_end, self.source_start), 1 << 62))
        return next(left, None)

    def committed(self, history: History, contents: Sequence[bytes]) -> None:
        """A transaction of the copier was committed in the target or among the positions; ``contents``
        are its records, the first of which is a ``CopiedRange``.
        """
        ours = [part for part in map(read_range, contents[:1]) if part.chain == self.number]
        if not ours:
            return
        (part,) = ours
        is_target = history.id == self.target
        was = self.copied_end if is_target else self.position
        if part.start != was:
            raise history.fail(f"chain {self.number} is copied up to {was}, and now from {part.start} to {part.end}")
        if history.id == self.positions:
            self.position = part.end
        if not is_target:
            return
        self.copied_end = part.end
        self.unchecked.append((part, [_read_copy(each) for each in contents[1:]]))

    def check(self, history: History, source_end: int) -> None:
        """The copies of what was seen of the source, up to ``source_end``."""
        while self.unchecked and self.unchecked[0][0].end <= source_end:
            part, found = self.unchecked.popleft()
            there = set(found)
            committed = self._committed(part.start, part.end)
            wanted = [each for each in committed if each in there or each[0] >= self.source_start]
            if found != wanted:
                raise history.fail(
                    f"chain {self.number} copied {found} from {part.start} to {part.end}: {wanted} is there"
                )
            self.copied += len(found)

    def at_end(self, history: History) -> None:
        if self.position != self.copied_end:
            raise history.fail(f"chain {self.number} is copied up to {self.copied_end}, and says {self.position}")
        if (missing := self.uncopied()) is not None:
            raise history.fail(f"chain {self.number} is copied up to {self.copied_end}, and not from {missing} on")

    def _committed(self, start: int, end: int) -> Iterator[tuple[int, bytes]]:
        for offset, (value, span) in self.values.items():
            is_there = span is None or span.transaction.commits
            if start <= offset < end and is_there:
                yield offset, value


@dataclass(frozen=True, slots=True)
class CopiedRange:
    """What one transaction copies: the source's offsets from ``start`` up to ``end``."""

    chain: int
    start: int
    end: int

    def encoded(self) -> bytes:
        return f"{self.chain}/{self.start}/{self.end}".encode()


def copy_of(chain: int, offset: int, value: bytes) -> bytes:
    """Of no other chain: two sources may have the same value at the same offset, and one target."""
    return b"%d/%d:%b" % (chain, offset, value)


def _read_copy(raw: bytes) -> tuple[int, bytes]:
    place, _, value = raw.partition(b":")
    return int(place.partition(b"/")[2]), value


def read_range(raw: bytes) -> CopiedRange:
    return CopiedRange(*map(int, raw.decode().split("/")))
