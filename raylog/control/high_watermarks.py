"""High watermarks as leaders report them and as the controllers record them: values, no decisions.

A high watermark stands with the leader epoch in which it was reached. It is a lower bound of what
is committed, for as long as no unclean election gives records up: whoever holds all that was
committed has a log that ends there or later, or that knows a later epoch.

Both the report and the record name partitions by topic, so that a topic id is written once: ten to
fourteen bytes are left for each partition.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from raylog.types import TopicIdPartition


class HighWatermark(NamedTuple):
    """All records below ``offset`` are committed, as the leader of that epoch knew. 0 <=
    leader_epoch, offset.
    """

    leader_epoch: int
    offset: int


@dataclass(frozen=True, slots=True)
class PartitionHighWatermark:
    partition: int
    leader_epoch: int
    offset: int


@dataclass(frozen=True, slots=True)
class TopicHighWatermarks:
    topic_id: uuid.UUID
    partitions: tuple[PartitionHighWatermark, ...]


def by_topic(marks: Iterable[tuple[TopicIdPartition, HighWatermark]]) -> tuple[TopicHighWatermarks, ...]:
    """The marks of each topic together, in the order in which the topics come first."""
    topics: dict[uuid.UUID, list[PartitionHighWatermark]] = {}
    for id, mark in marks:
        topics.setdefault(id.topic_id, []).append(PartitionHighWatermark(id.partition, mark.leader_epoch, mark.offset))
    return tuple(TopicHighWatermarks(topic_id, tuple(partitions)) for topic_id, partitions in topics.items())


def by_partition(topics: Iterable[TopicHighWatermarks]) -> Iterator[tuple[TopicIdPartition, HighWatermark]]:
    """The inverse of ``by_topic``."""
    for topic in topics:
        for each in topic.partitions:
            yield TopicIdPartition(topic.topic_id, each.partition), HighWatermark(each.leader_epoch, each.offset)
