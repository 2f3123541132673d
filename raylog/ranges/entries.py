"""What a stream reads next: entries that follow each other, each one trigger's share of the partitions.

A stream is the sequence of its entries. An entry names ranges of offsets and, for every partition that the stream knows, the offset at
which the next entry begins (``ends``), so the last entry is all that a restart has to know. ``first`` and ``following`` decide, from
offsets that somebody looked up; they ask nobody and keep nothing.

What holds, whatever happens to the logs: the ranges of a partition over all entries are disjoint, ascend, and leave out only offsets that
an entry names in its ``losses``. A partition that appears later is read from its first offset. A log that no longer reaches back to
where the stream stopped (retention was faster), or that ends before it (an unclean election, or a topic made anew), is a loss, said in
the entry itself: a repeated batch says the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from raylog.ranges.cut import LogEnds
from raylog.ranges.splitting import OffsetRange
from raylog.types import TopicPartition


@dataclass(frozen=True, slots=True)
class Entry:
    """``number``: 0, 1, 2…, 0 being the one that reads nothing. ``topic_ids``: which topics of those names are meant. No range is empty."""

    number: int
    topic_ids: Mapping[str, str]
    ends: Mapping[TopicPartition, int]
    ranges: tuple[OffsetRange, ...] = ()
    losses: tuple[str, ...] = ()


def first(topic_ids: Mapping[str, str], starts: Mapping[TopicPartition, int]) -> Entry:
    """Where a stream begins; nothing is read by it."""
    return Entry(0, dict(topic_ids), dict(starts))


def following(
    last: Entry,
    topic_ids: Mapping[str, str],
    logs: Mapping[TopicPartition, LogEnds],
    *,
    offsets_max: int | None = None,
) -> Entry | None:
    """The entry after ``last``, of at most ``offsets_max`` offsets, shared out by what each partition has; None if there is nothing to say.

    ``logs``: every partition of the topics as they are now, ``topic_ids`` their topics. What was read of a topic that is gone is forgotten:
    another one of that name is new.
    """
    gone = sorted(last.topic_ids.keys() - topic_ids.keys())
    losses = [f"topic {name} was deleted: what the stream had not read of it is lost" for name in gone]
    ends = {key: end for key, end in last.ends.items() if key.topic not in gone}
    waiting: dict[TopicPartition, int] = {}
    for key, log in sorted(logs.items()):
        start = last.ends.get(key)
        known = last.topic_ids.get(key.topic)
        if known is not None and known != topic_ids[key.topic]:
            if key.partition == 0:
                losses.append(f"topic {key.topic} was deleted and made anew: what was not read of the old one is lost")
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
                f"{key.topic}-{key.partition} ends at {log.latest}, before the offset {start} that is next: its log was cut"
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
    return Entry(last.number + 1, dict(topic_ids), ends, ranges, tuple(losses))


def shared(waiting: Mapping[TopicPartition, int], offsets_max: int | None) -> dict[TopicPartition, int]:
    """How many offsets of each partition are read: all, or ``offsets_max`` in all, in proportion to what each has waiting."""
    total = sum(waiting.values())
    if offsets_max is None or total <= offsets_max:
        return dict(waiting)
    counts = {key: count * offsets_max // total for key, count in waiting.items()}
    missing = offsets_max - sum(counts.values())
    by_remainder = sorted(waiting, key=lambda key: (-(waiting[key] * offsets_max % total), key))
    for key in by_remainder[:missing]:
        counts[key] += 1
    return counts
