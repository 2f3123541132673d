"""What a process has counted of its spans since it began."""

from __future__ import annotations


class SpanCounts:
    __slots__ = ("forgotten", "queue_full", "sent", "unsearched", "unsent")

    def __init__(self) -> None:
        self.sent = 0
        self.queue_full = 0  # came when too many waited to be sent
        self.unsent = 0  # the collector did not take them
        self.forgotten = 0  # their end was not waited for
        self.unsearched = 0  # batches whose records were not looked at, because enough spans were made that second
