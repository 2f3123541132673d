"""The configs of replication throttles: the rates of brokers, and the topics' lists of throttled
replicas.

A list is ``*`` for all of a topic's replicas, or ``partition:broker`` pairs joined by commas, as
Kafka writes them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

LEADERS = "leader.replication.throttled.replicas"
FOLLOWERS = "follower.replication.throttled.replicas"
LEADER_RATE = "leader.replication.throttled.rate"
FOLLOWER_RATE = "follower.replication.throttled.rate"
DISK_MOVE_RATE = "replica.alter.log.dirs.io.max.bytes.per.second"
RATES = frozenset({LEADER_RATE, FOLLOWER_RATE, DISK_MOVE_RATE})
ALL = "*"
_PAIR = re.compile(r"[0-9]+:[0-9]+")


def is_list(entries: tuple[str, ...]) -> bool:
    """Whether these entries name throttled replicas: the star alone, or pairs."""
    return entries == (ALL,) or all(_PAIR.fullmatch(entry) for entry in entries)


def names(text: str, partition: int, broker_id: int) -> bool:
    """Whether the replica of that partition on that broker is on the list."""
    return bool(text) and (text == ALL or f"{partition}:{broker_id}" in _entries(text))


def joined(pairs: Iterable[tuple[int, int]]) -> str:
    """The list of these (partition, broker) pairs."""
    return ",".join(f"{partition}:{broker}" for partition, broker in sorted(set(pairs)))


def _entries(text: str) -> list[str]:
    return [entry for each in text.split(",") if (entry := each.strip())]
