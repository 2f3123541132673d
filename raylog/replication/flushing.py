"""When appends to one log are complete: at once, or where ``flush.messages`` demands it, when a
flush has returned.

``completed_end`` is the offset below which every append is complete. It is the leader's own end in
the high watermark and the limit of what a follower's next fetch may promise (DESIGN §5). At most
one flush is in flight; it covers what was appended before it was asked for. ``flush.ms`` flushes
too, later, and completes nothing: it bounds what a power loss takes, as in Kafka.

Invariants (``check``): completed_end ≤ log end offset, and equal to it while nothing is held back;
a truncation takes back what a flush in flight would have promised for the bytes that are gone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raylog.replication.context import Deadline, HostContext
from raylog.replication.events import Flush
from raylog.types import TopicIdPartition

if TYPE_CHECKING:
    from raylog.log.log import Log

_NEVER_MS = 1 << 62


class Flushing:
    """The flushes of one replica's log."""

    __slots__ = (
        "completed_end",
        "context",
        "flush_messages",
        "flush_ms",
        "held",
        "id",
        "in_flight_end",
        "log",
        "timer",
    )

    def __init__(self, context: HostContext, id: TopicIdPartition, log: Log) -> None:
        self.context = context
        self.id = id
        self.log = log
        self.held = False  # completed_end waits for a flush
        self.in_flight_end: int | None = None  # what the flush in flight will have covered
        self.timer: Deadline | None = None
        self.flush_messages = log.config.flush_messages
        self.flush_ms = log.config.flush_ms
        self.completed_end = log.recovery_point
        self.appended(0)
        self._flush_cut()

    def configured(self) -> None:
        """The topic's configuration changed: it counts from the next append."""
        self.flush_messages = self.log.config.flush_messages
        self.flush_ms = self.log.config.flush_ms

    def appended(self, now_ms: int) -> None:
        """Records were appended (or the log was opened): complete them, or demand a flush that
        will.
        """
        log = self.log
        if self.held or log.unflushed_messages >= self.flush_messages:
            self.held = True
            self._flush()
        else:
            self.completed_end = log.log_end_offset
            if self.flush_ms < _NEVER_MS and self.timer is None:
                self.timer = self.context.wheel.add(now_ms + self.flush_ms, self._flush_ms_passed)

    def flushed(self, log_end_offset: int) -> bool:
        """A flush returned. Whether ``completed_end`` moved."""
        covered = log_end_offset if self.in_flight_end is None else min(log_end_offset, self.in_flight_end)
        self.in_flight_end = None
        if not self.held:
            self._flush_cut()
            return False
        before = self.completed_end
        end = self.log.log_end_offset
        if covered >= end or self.log.unflushed_messages < self.flush_messages:
            self.held = False
            self.completed_end = end
        else:
            self.completed_end = max(self.completed_end, covered)
            self._flush()
        return self.completed_end > before

    def truncated(self) -> None:
        """The log was cut or restarted elsewhere: nothing above its end is complete or will be."""
        end = self.log.log_end_offset
        if self.in_flight_end is not None:
            self.in_flight_end = min(self.in_flight_end, end)
        if self.held:
            self.completed_end = min(self.completed_end, end)
            self.held = self.completed_end < end
        else:
            self.completed_end = end
        self._flush_cut()

    def close(self) -> None:
        if self.timer is not None:
            self.timer.cancel()

    def check(self) -> None:
        """Raise AssertionError where an invariant is broken."""
        end = self.log.log_end_offset
        assert self.completed_end <= end, (self.completed_end, end)
        assert self.held or self.completed_end == end, (self.completed_end, end)
        assert not self.held or self.in_flight_end is not None, "an append waits for a flush that nobody asked for"

    def _flush(self) -> None:
        if self.in_flight_end is None:
            self.in_flight_end = self.log.log_end_offset
            self.context.effects.append(Flush(self.id, self.log, self.in_flight_end))

    def _flush_cut(self) -> None:
        """What was cut shall not come back with a loss of power. Nobody waits for this, unless the
        log rolls before it is done.
        """
        if self.log.flushes.cut_is_unflushed:
            self._flush()

    def _flush_ms_passed(self, now_ms: int, wall_ms: int) -> None:
        self.timer = None
        self._flush()
