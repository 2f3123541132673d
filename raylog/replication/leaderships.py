"""What coordinators on watched replicas have to know (``watched.py``): who leads, and what is
replicated. Effects of the host.
"""

from __future__ import annotations

from dataclasses import dataclass

from raylog.log.markers import TransactionEnd
from raylog.types import TopicIdPartition


@dataclass(frozen=True, slots=True)
class LeadershipBegan:
    """Of a watched replica: this process leads in that epoch. ``start_offset``: where its log ended
    before any record of it.
    """

    id: TopicIdPartition
    leader_epoch: int
    start_offset: int


@dataclass(frozen=True, slots=True)
class LeadershipEnded:
    """Of a watched replica: this process no longer leads in that epoch."""

    id: TopicIdPartition
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class HighWatermarkMoved:
    """Of a watched replica, leading or not: what is replicated, and below which offset no
    transaction is open.

    It moves backwards only where the log was cut (an unclean election) or is another one.
    """

    id: TopicIdPartition
    high_watermark: int
    stable_end_offset: int


@dataclass(frozen=True, slots=True)
class TransactionMarked:
    """Of a watched replica that this process leads: the marker of a transaction's end was appended.
    ``end_offset`` is behind it.
    """

    id: TopicIdPartition
    end_offset: int
    end: TransactionEnd


@dataclass(frozen=True, slots=True)
class LeadershipExpected:
    """Of a watched replica: whether this process does not lead it and may at any moment."""

    id: TopicIdPartition
    is_expected: bool


Leadership = LeadershipBegan | LeadershipEnded | TransactionMarked | HighWatermarkMoved | LeadershipExpected
"""What a coordinator on a watched replica has to know."""


@dataclass(frozen=True, slots=True)
class LeadershipsChanged:
    """What an event has changed for watched replicas, in order. The last effect of that event."""

    changes: tuple[Leadership, ...]
