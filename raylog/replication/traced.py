"""Batches whose way the shell follows, for spans of traces: each is reported when it is appended and
when the high watermark has passed it.

A Produce's partition may have a ``trace``, which is the shell's own. ``TraceReached`` hands it back,
before the reply that the same event makes::

    APPENDED → REPLICATED     as soon as the high watermark has passed the batch; maybe in the same event
             → LOST           this process no longer leads, or too many batches wait: no more is said of it

A batch that is refused is never appended, and the reply says so.

Invariant: ``HostContext.traced_batches`` is the number of batches that wait in all leaders of the host, at
most ``TRACED_BATCHES_MAX``.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from raylog.replication.context import HostContext

TRACED_BATCHES_MAX: Final = 4_096


class TraceStage(Enum):
    APPENDED = "appended"
    REPLICATED = "replicated"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class TraceReached:
    """A batch has come to that stage. ``base_offset`` is the batch's."""

    trace: object
    stage: TraceStage
    base_offset: int


class TracedBatches:
    """Those of one leader that are not replicated yet, by where they end."""

    __slots__ = ("_context", "_waiting")

    def __init__(self, context: HostContext) -> None:
        self._context = context
        self._waiting: deque[tuple[int, object, int]] = deque()

    def appended(self, trace: object, base_offset: int, end: int, high_watermark: int) -> None:
        """Only a repeated batch may end below one that waits; it is then reported with that one."""
        self._tell(trace, TraceStage.APPENDED, base_offset)
        if end <= high_watermark:
            self._tell(trace, TraceStage.REPLICATED, base_offset)
        elif self._context.traced_batches >= TRACED_BATCHES_MAX:
            self._tell(trace, TraceStage.LOST, base_offset)
        else:
            self._context.traced_batches += 1
            self._waiting.append((end, trace, base_offset))

    def high_watermark_rose(self, high_watermark: int) -> None:
        while self._waiting and self._waiting[0][0] <= high_watermark:
            self._leave(TraceStage.REPLICATED)

    def close(self) -> None:
        """The leadership is over."""
        while self._waiting:
            self._leave(TraceStage.LOST)

    def __len__(self) -> int:
        return len(self._waiting)

    def _leave(self, stage: TraceStage) -> None:
        _, trace, base_offset = self._waiting.popleft()
        self._context.traced_batches -= 1
        self._tell(trace, stage, base_offset)

    def _tell(self, trace: object, stage: TraceStage, base_offset: int) -> None:
        self._context.effects.append(TraceReached(trace, stage, base_offset))
