"""Plans for reassignments: which brokers shall hold which partition. Pure; they move nothing.

``spread`` is what ``kafka-reassign-partitions --generate`` proposes: each topic anew, as if it were
created on these brokers. It is even, and moves much. ``balanced`` moves as little as it can until
bytes and preferred leaders are about even. ``without`` empties one broker and touches nothing else:
each of its replicas goes to the broker that holds the fewest, of another rack than the partition's
other replicas where there is one.

Promises: replication factors stay; no partition has two replicas on one broker; ``without`` keeps
the order of those that stay, so preferred leaders stay where they were, and spreads the ones that
go.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence

from kio.schema.errors import ErrorCode

from raylog.errors import kafka_error
from raylog.placement.planner import CandidateBroker, plan_replicas
from raylog.types import TopicPartition

Replicas = Mapping[TopicPartition, Sequence[int]]
TOLERANCE = 0.1  # a broker that holds so much more or less than the mean is balanced
InvalidReplicationFactor = kafka_error(ErrorCode.invalid_replication_factor)


def spread(current: Replicas, racks: Mapping[int, str | None]) -> dict[TopicPartition, tuple[int, ...]]:
    """Every partition of ``current`` anew on the brokers of ``racks``. InvalidReplicationFactor if
    they are too few.
    """
    brokers = [CandidateBroker(broker, rack, (uuid.UUID(int=broker + 1),)) for broker, rack in sorted(racks.items())]
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


def balanced(
    current: Replicas, sizes: Mapping[TopicPartition, int], racks: Mapping[int, str | None]
) -> dict[TopicPartition, tuple[int, ...]]:
    """The partitions to change so that every broker of ``racks`` holds about the same bytes and
    leads about as many partitions.

    ``sizes`` are bytes per replica; one that is unknown counts as one byte, so that empty
    partitions are spread, too. A replica moves only from a broker above the mean to one below it,
    and only if that brings the two closer together; never into a rack that the partition has
    already, if it is not in that rack now. Replicas on brokers outside ``racks`` stay where they
    are.
    """
    plan = {key: list(brokers) for key, brokers in current.items()}
    weight = {key: sizes.get(key, 0) + 1 for key in plan}
    held = dict.fromkeys(sorted(racks), 0)
    for key, brokers in plan.items():
        for broker in brokers:
            if broker in held:
                held[broker] += weight[key]
    while (move := _best_move(plan, weight, held, racks)) is not None:
        key, source, target = move
        plan[key][plan[key].index(source)] = target
        held[source] -= weight[key]
        held[target] += weight[key]
    _spread_leaders(plan, held)
    return {key: tuple(brokers) for key, brokers in plan.items() if tuple(brokers) != tuple(current[key])}


def _best_move(
    plan: Mapping[TopicPartition, Sequence[int]],
    weight: Mapping[TopicPartition, int],
    held: Mapping[int, int],
    racks: Mapping[int, str | None],
) -> tuple[TopicPartition, int, int] | None:
    """From the fullest broker that can give something to the emptiest that can take it, the replica
    that fits the gap best.

    None when everybody is near the mean, or nothing can bring two brokers closer.
    """
    mean = sum(held.values()) / max(1, len(held))
    if all(abs(size - mean) <= TOLERANCE * mean for size in held.values()):
        return None
    for source in sorted(held, key=lambda broker: (-held[broker], broker)):
        for target in sorted(held, key=lambda broker: (held[broker], broker)):
            gap = held[source] - held[target]
            fitting = [
                key
                for key, brokers in plan.items()
                if source in brokers
                and target not in brokers
                and weight[key] < gap
                and not _crowds(brokers, source, target, racks)
            ]
            if fitting:
                best = min(fitting, key=lambda key: (abs(gap - 2 * weight[key]), key))
                return best, source, target
    return None


def _crowds(brokers: Sequence[int], source: int, target: int, racks: Mapping[int, str | None]) -> bool:
    others = {racks.get(broker) for broker in brokers if broker != source} - {None}
    return racks[target] in others and racks.get(source) not in others


def _spread_leaders(plan: dict[TopicPartition, list[int]], held: Mapping[int, int]) -> None:
    """Swap first replicas until nobody is preferred by two partitions more than another that could
    be, in place.
    """
    preferred = dict.fromkeys(held, 0)
    for brokers in plan.values():
        if brokers[0] in preferred:
            preferred[brokers[0]] += 1
    is_changed = True
    while is_changed:
        is_changed = False
        for _, brokers in sorted(plan.items()):
            able = [broker for broker in brokers[1:] if broker in preferred]
            if brokers[0] not in preferred or not able:
                continue
            best = min(able, key=lambda broker: (preferred[broker], broker))
            if preferred[brokers[0]] - preferred[best] > 1:
                preferred[brokers[0]] -= 1
                preferred[best] += 1
                place = brokers.index(best)
                brokers[0], brokers[place] = brokers[place], brokers[0]
                is_changed = True
