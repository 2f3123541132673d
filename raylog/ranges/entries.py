"""Decides what a stream reads next: a sequence of entries, each one trigger's share of the
partitions.

An entry names ranges of offsets and, for every known partition, the offset at which the next entry
begins (``ends``), so a restart needs only the last entry. ``first`` and ``following`` are pure: the
caller looks up the offsets.

Invariants, even if logs are truncated or deleted: over all entries, the ranges of a partition are
disjoint and ascending, and leave out only offsets that an entry lists in its ``losses``. A
partition that appears later is read from its first offset. A log that starts after the stream's
position (because of retention) or ends before it (because of an unclean election, or a recreated
topic) is a loss. It is recorded in the entry itself, so a repeated batch reports the same loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from raylog.ranges.snapshot import LogEnds
from raylog.ranges.splitting import OffsetRange
from raylog.types import TopicPartition


@dataclass(frozen=True, slots=True)
class StreamEntry:
    """``number``: 0, 1, 2…, where entry 0 reads nothing. ``topic_ids``: the ids behind the topics'
    names. No range is empty.
    """

    number: int
    topic_ids: Mapping[str, str]
    ends: Mapping[TopicPartition, int]
    ranges: tuple[OffsetRange, ...] = ()
    losses: tuple[str, ...] = ()


def first(topic_ids: Mapping[str, str], starts: Mapping[TopicPartition, int]) -> StreamEntry:
    """Return the entry with which a stream begins; it reads nothing."""
    return StreamEntry(0, dict(topic_ids), dict(starts))


def following(
    last: StreamEntry,
    topic_ids: Mapping[str, str],
    logs: Mapping[TopicPartition, LogEnds],
    *,
    offsets_max: int | None = None,
) -> StreamEntry | None:
    """Return the entry after ``last``, with at most ``offsets_max`` offsets in proportion to each
    partition's backlog; None if nothing changed.

    ``logs``: the current partitions of the topics; ``topic_ids`` their topics. A deleted topic is
    forgotten: another one of that name is new.
    """
    gone = sorted(last.topic_ids.keys() - topic_ids.keys())
    losses = [f"topic {name} was deleted: the records that the stream had not read are lost" for name in gone]
    ends = {key: end for key, end in last.ends.items() if key.topic not in gone}
    waiting: dict[TopicPartition, int] = {}
    for key, log in sorted(logs.items()):
        start = last.ends.get(key)
        known = last.topic_ids.get(key.topic)
        if known is not None and known != topic_ids[key.topic]:
            if key.partition == 0:
                losses.append(
                    f"topic {key.topic} was deleted and recreated: the records of the old one that were not read are lost"
                )
            start = log.earliest
        elif start is None:
            start = log.earliest
        elif start < log.earliest:
            losses.append(
                f"the offsets {start} to {log.earliest - 1} of {key.topic}-{key.partition} were deleted before they were read"
            )
            start = log.earliest
        elif start > log.latest:
            losses.append(
                f"{key.topic}-{key.partition} ends at {log.latest}, before the next offset {start}: its log was truncated"
            )
            start = log.latest
        ends[key] = start
        if log.latest > start:
            waiting[key] = log.latest - start
    share = shared(waiting, offsets_max)
    ranges = tuple(
        OffsetRange(*key, ends[key], ends[key] + count, logs[key].hosts) for key, count in share.items() if count
    )
    if not ranges and not losses:
        return None
    ends |= {each.key: each.end for each in ranges}
    return StreamEntry(last.number + 1, dict(topic_ids), ends, ranges, tuple(losses))


def shared(waiting: Mapping[TopicPartition, int], offsets_max: int | None) -> dict[TopicPartition, int]:
    """Return how many offsets to read of each partition: all, or ``offsets_max`` in total in
    proportion to the backlogs.
    """
    total = sum(waiting.values())
    if offsets_max is None or total <= offsets_max:
        return dict(waiting)
    counts = {key: count * offsets_max // total for key, count in waiting.items()}
    missing = offsets_max - sum(counts.values())
    by_remainder = sorted(waiting, key=lambda key: (-(waiting[key] * offsets_max % total), key))
    for key in by_remainder[:missing]:
        counts[key] += 1
    return counts
