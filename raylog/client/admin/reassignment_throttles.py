"""Throttles for reassignments, set and cleared as ``kafka-reassign-partitions`` does (Q9).

Pure: what to set for which topics and brokers. While a partition moves, its leader may be any of
the replicas that it had, so all of these are listed as throttled leaders, and what it gets as
throttled followers; the rate is given to each broker that is either. Reassignments that are in
progress already are part of it, so that setting a throttle anew changes theirs, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from raylog.configs.replication_quotas import DISK_MOVE_RATE, FOLLOWER_RATE, FOLLOWERS, LEADER_RATE, LEADERS, joined
from raylog.types import TopicPartition

RATES = (LEADER_RATE, FOLLOWER_RATE)
BROKER_RATES = (*RATES, DISK_MOVE_RATE)
LISTS = (LEADERS, FOLLOWERS)


@dataclass(frozen=True, slots=True)
class Throttles:
    """The lists of each topic, as configs to set, and the brokers that need the rate."""

    topics: dict[str, dict[str, str]]
    brokers: tuple[int, ...]


def throttles(
    targets: Mapping[TopicPartition, Sequence[int] | None],
    origins: Mapping[TopicPartition, Sequence[int]],
    adding: Mapping[TopicPartition, Sequence[int]],
) -> Throttles:
    """``origins`` are the replicas that partitions have without those that are being added; a
    target of None adds nothing.
    """
    leaders: dict[str, set[tuple[int, int]]] = {}
    followers: dict[str, set[tuple[int, int]]] = {}
    brokers: set[int] = set()
    moves = {key: tuple(brokers) for key, brokers in adding.items()} | {
        key: tuple(brokers) for key, brokers in targets.items() if brokers is not None
    }
    for key, wanted in moves.items():
        sources = origins.get(key, ())
        new = [broker for broker in wanted if broker not in sources]
        leaders.setdefault(key.topic, set()).update((key.partition, broker) for broker in sources)
        followers.setdefault(key.topic, set()).update((key.partition, broker) for broker in new)
        brokers.update(sources, new)
    topics = {
        topic: {LEADERS: joined(pairs), FOLLOWERS: joined(followers[topic])} for topic, pairs in sorted(leaders.items())
    }
    return Throttles(topics, tuple(sorted(brokers)))
