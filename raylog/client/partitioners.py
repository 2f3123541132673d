"""Which partition a record goes to: Kafka's murmur2 for keys, sticky or round-robin without a key,
or the user's own class.

Keys hash exactly as in the Java client (32-bit murmur2, seed 0x9747b28c, sign bit masked, modulo
the partition count), so producers of every language agree. Keyless records stay on one partition
for ``sticky_bytes`` and then move on: to a random partition with a live leader, less likely to one
whose batches queue up (KIP-794). A partitioner is called on the caller's thread and may be called
by several threads at once.
"""

from __future__ import annotations

import random
import struct
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, count
from typing import Any, Protocol

from raylog.client.config import ProducerConfig, instance_of
from raylog.client.links.metadata import TopicPartitions
from raylog.errors import ConfigError

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF
_REMEMBERED_KEYS = 1 << 16


def murmur2(data: bytes) -> int:
    """Kafka's murmur2 as Java's signed int."""
    length = len(data)
    words = length >> 2
    h = _SEED ^ length
    for k in struct.unpack_from(f"<{words}I", data):
        k = k * _M & _MASK
        k ^= k >> 24
        h = (h * _M & _MASK) ^ (k * _M & _MASK)
    if tail := length & 3:
        h ^= int.from_bytes(data[length - tail :], "little")
        h = h * _M & _MASK
    h ^= h >> 13
    h = h * _M & _MASK
    h ^= h >> 15
    return h - (1 << 32) if h & 0x80000000 else h


def partition_for_key(key: bytes, partition_count: int) -> int:
    """Where every Kafka client's default partitioner puts this key."""
    return (murmur2(key) & 0x7FFFFFFF) % partition_count


class Partitioner(Protocol):
    """What ``partitioner.class`` may name. ``on_new_batch`` and ``close`` are optional."""

    def partition(
        self,
        topic: str,
        key: Any,
        key_bytes: bytes | None,
        value: Any,
        value_bytes: bytes | None,
        cluster: TopicPartitions,
    ) -> int:
        """The partition, from 0 up to ``cluster.count``."""
        ...


class RoundRobinPartitioner:
    """Each record to the next partition with a live leader, keys or not."""

    def __init__(self) -> None:
        self._counters: dict[str, count[int]] = {}

    def partition(
        self,
        topic: str,
        key: Any,
        key_bytes: bytes | None,
        value: Any,
        value_bytes: bytes | None,
        cluster: TopicPartitions,
    ) -> int:
        turn = next(self._counters.setdefault(topic, count()))
        if cluster.available:
            return cluster.available[turn % len(cluster.available)]
        return turn % cluster.count


@dataclass(slots=True)
class _Stuck:
    """Where a topic's keyless records go now, and how much went there."""

    partition: int
    sent_bytes: int = 0


class DefaultPartitioner:
    """Murmur2 with a key, sticky without. ``queued(topic)`` gives the batches that wait per
    partition.
    """

    def __init__(
        self,
        *,
        sticky_bytes: int,
        ignore_keys: bool = False,
        queued: Callable[[str], Mapping[int, int]] | None = None,
        chance: random.Random | None = None,
    ) -> None:
        self._sticky_bytes = sticky_bytes
        self._ignore_keys = ignore_keys
        self._queued = queued
        self._random = chance or random.Random()
        self._stuck: dict[str, _Stuck] = {}
        self._keys: dict[tuple[bytes, int], int] = {}

    def partition(
        self,
        topic: str,
        key: Any,
        key_bytes: bytes | None,
        value: Any,
        value_bytes: bytes | None,
        cluster: TopicPartitions,
    ) -> int:
        if key_bytes is None or self._ignore_keys:
            return self.sticky(cluster, len(value_bytes or b""))
        return self.keyed(key_bytes, cluster.count)

    @property
    def uses_keys(self) -> bool:
        return not self._ignore_keys

    def keyed(self, key: bytes, partition_count: int) -> int:
        """The partition of a key, remembered for the keys seen lately."""
        known = self._keys.get((key, partition_count))
        if known is None:
            known = partition_for_key(key, partition_count)
            if len(self._keys) >= _REMEMBERED_KEYS:
                self._keys.clear()
            self._keys[(key, partition_count)] = known
        return known

    def sticky(self, cluster: TopicPartitions, size_bytes: int) -> int:
        """The partition for a keyless record (or batch) of that size."""
        stuck = self._stuck.get(cluster.topic)
        if stuck is None or stuck.sent_bytes >= self._sticky_bytes or stuck.partition >= cluster.count:
            stuck = self._stuck[cluster.topic] = _Stuck(self._next(cluster, stuck))
        stuck.sent_bytes += size_bytes
        return stuck.partition

    def _next(self, cluster: TopicPartitions, former: _Stuck | None) -> int:
        choices: Sequence[int] = cluster.available or range(cluster.count)
        if former is not None and len(choices) > 1:
            choices = [p for p in choices if p != former.partition]
        queued = self._queued(cluster.topic) if self._queued else {}
        longest = max((queued.get(p, 0) for p in choices), default=0)
        if longest == 0:
            return self._random.choice(choices)
        weights = list(accumulate(longest + 1 - queued.get(p, 0) for p in choices))
        return choices[bisect_right(weights, self._random.randrange(weights[-1]))]


def partitioner_of(config: ProducerConfig, queued: Callable[[str], Mapping[int, int]]) -> Partitioner:
    """The partitioner that a config asks for."""

    def default(*, ignore_keys: bool = config.partitioner_ignore_keys) -> DefaultPartitioner:
        adaptive = queued if config.partitioner_adaptive_partitioning_enable else None
        return DefaultPartitioner(sticky_bytes=config.sticky_bytes, ignore_keys=ignore_keys, queued=adaptive)

    builtin: dict[str, Callable[[], Partitioner]] = {
        "DefaultPartitioner": default,
        "default": default,
        "UniformStickyPartitioner": lambda: default(ignore_keys=True),
        "sticky": lambda: default(ignore_keys=True),
        "RoundRobinPartitioner": RoundRobinPartitioner,
        "round_robin": RoundRobinPartitioner,
    }
    chosen = config.partitioner_class
    if chosen is None:
        return default()
    found = instance_of(chosen, builtin, "partitioner.class")
    if not hasattr(found, "partition"):
        raise ConfigError(
            f"partitioner.class={chosen!r} has no method partition(topic, key, key_bytes, value, value_bytes, cluster)"
        )
    return found  # type: ignore[no-any-return]
