"""What the replicas of one host have counted since it began: plain integers, for whoever asks
(``raylog.metrics``).

By topic name, as clients know topics. Each replica holds its topic's counts, so that counting is an
addition. They outlive the replica: what a replica counted before it moved away is not lost. Those
of topics of which the host holds nothing any more go when there are many.

Invariant: no count falls while its entry exists.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from raylog.time_counts import TimeCounts

KEPT_TOPICS: Final = 4_096


class TopicCounts:
    """Bytes are those of record batches, as they are sent and stored; ``messages_in`` are records.

    ``bytes_in`` and ``messages_in`` came from producers, and from coordinators of this process;
    markers of transactions' ends are in neither.
    """

    __slots__ = (
        "bytes_in",
        "bytes_out",
        "failed_produces",
        "messages_in",
        "produces",
        "replication_bytes_in",
        "replication_bytes_out",
    )

    def __init__(self) -> None:
        self.bytes_in = 0
        self.bytes_out = 0  # to consumers
        self.failed_produces = 0
        self.messages_in = 0
        self.produces = 0  # of one partition each
        self.replication_bytes_in = 0
        self.replication_bytes_out = 0


class HostCounts:
    """``cleaned_bytes_before`` and ``after`` are the sizes of what was compacted."""

    __slots__ = (
        "_forget_at",
        "cleaned_bytes_after",
        "cleaned_bytes_before",
        "cleanings",
        "failed_cleanings",
        "flushes",
        "isr_expands",
        "isr_shrinks",
        "topics",
    )

    def __init__(self) -> None:
        self.topics: dict[str, TopicCounts] = {}
        self.isr_shrinks = 0  # of partitions that this host led
        self.isr_expands = 0
        self.flushes = TimeCounts()
        self.cleanings = 0  # that came to their end
        self.failed_cleanings = 0
        self.cleaned_bytes_before = 0
        self.cleaned_bytes_after = 0
        self._forget_at = KEPT_TOPICS

    def of_topic(self, topic: str) -> TopicCounts:
        counts = self.topics.get(topic)
        if counts is None:
            counts = self.topics[topic] = TopicCounts()
        return counts

    def maybe_forget(self, held: Iterable[str]) -> None:
        """Drop the counts of all topics but ``held``, if there are many."""
        if len(self.topics) > self._forget_at:
            names = set(held)
            self.topics = {topic: counts for topic, counts in self.topics.items() if topic in names}
            self._forget_at = max(KEPT_TOPICS, 2 * len(self.topics))
