"""Plans for reassignments: which brokers shall hold which partition. Pure; they move nothing.

``spread`` is what ``kafka-reassign-partitions --generate`` proposes: each topic anew, as if it were created on these brokers. It is
even, and moves much. ``without`` empties one broker and touches nothing else: each of its replicas goes to the broker that holds the
fewest, of another rack than the partition's other replicas where there is one.

Promises: replication factors stay; no partition has two replicas on one broker; ``without`` keeps the order of those that stay, so
preferred leaders stay where they were, and spreads the ones that go.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence

from kio.schema.errors import ErrorCode

from raylog.errors import kafka_error
from raylog.placement.planner import BrokerDisks, plan_replicas
from raylog.types import TopicPartition

Replicas = Mapping[TopicPartition, Sequence[int]]
InvalidReplicationFactor = kafka_error(ErrorCode.invalid_replication_factor)


def spread(current: Replicas, racks: Mapping[int, str | None]) -> dict[TopicPartition, tuple[int, ...]]:
    """Every partition of ``current`` anew on the brokers of ``racks``. InvalidReplicationFactor if they are too few."""
    brokers = [BrokerDisks(broker, rack, (uuid.UUID(int=broker + 1),)) for broker, rack in sorted(racks.items())]
    plan: dict[TopicPartition, tuple[int, ...]] = {}
    first = 0
    for topic in sorted({each.topic for each in current}):
        partitions = sorted(each.partition for each in current if each.topic == topic)
        factor = len(current[TopicPartition(topic, partitions[0])])
        places = plan_replicas(
            brokers, partitions=len(partitions), replication_factor=factor, first_broker=first, shift=first
        )
        first += len(partitions)  # topics begin at different brokers, so that many small ones are even too
        for partition, replicas in zip(partitions, places, strict=True):
            plan[TopicPartition(topic, partition)] = tuple(broker for broker, _ in replicas)
    return plan


def without(current: Replicas, leaving: int, racks: Mapping[int, str | None]) -> dict[TopicPartition, tuple[int, ...]]:
    """The partitions that ``leaving`` holds, each with another broker of ``racks`` in its place.

    InvalidReplicationFactor names a partition that every other broker holds already.
    """
    others = sorted(set(racks) - {leaving})
    held = dict.fromkeys(others, 0)
    preferred = dict.fromkeys(others, 0)
    for replicas in current.values():
        for place, broker in enumerate(replicas):
            if broker in held:
                held[broker] += 1
                preferred[broker] += place == 0
    plan: dict[TopicPartition, tuple[int, ...]] = {}
    for partition, replicas in sorted(current.items()):
        if leaving not in replicas:
            continue
        able = [broker for broker in others if broker not in replicas]
        if not able:
            raise InvalidReplicationFactor(
                f"{partition.topic}-{partition.partition} has {len(replicas)} replicas and there are {len(others)} other brokers: "
                "lower its replication factor by `raylog reassign` first, or add a broker"
            )
        taken = {racks.get(broker) for broker in replicas if broker != leaving} - {None}
        is_first = replicas[0] == leaving

        def cost(broker: int, taken: set[str | None] = taken, is_first: bool = is_first) -> tuple[bool, int, int, int]:
            return racks[broker] in taken, held[broker], preferred[broker] if is_first else 0, broker

        chosen = min(able, key=cost)
        held[chosen] += 1
        preferred[chosen] += is_first
        plan[partition] = tuple(chosen if broker == leaving else broker for broker in replicas)
    return plan
