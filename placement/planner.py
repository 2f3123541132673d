"""Which broker and which disk holds each replica of a topic.

Pure: brokers, disks and the two starting points (Kafka draws them at random) come in, an assignment
goes out. It knows nothing of Ray, sessions or the metadata log; whether a broker is alive is the
caller's question (it passes the live ones).

The brokers are chosen exactly as Apache Kafka chooses them (``AdminUtils.assignReplicasToBrokers``,
R14):

1. Sort the brokers by id; with racks, interleave them so that neighbours in the list are of
   different racks (``a0 b0 c0 a1 b1 c1``). Racks count only if every broker has one.
2. Partition ``p`` gets its first replica, the preferred leader, from place ``p + first_broker``:
   leaders go round robin.
3. Its further replicas come from the places that follow, at a distance that starts at ``shift`` and
   grows by one (times the number of racks) with each full round of partitions, so that the
   partitions of one leader do not all have the same followers. A broker is skipped while its rack
   already has a replica and another rack has none.

The disk within a broker is the one that holds the fewest replicas so far, the first in the broker's
own order on a tie.

Promises: no partition has two replicas on one broker; it spans min(racks, replication factor)
racks; the number of new leaders differs by at most one between brokers; the disks of one broker
differ by at most one replica if they started even.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kio.schema.errors import ErrorCode

from raylog.errors import kafka_error

InvalidPartitions = kafka_error(ErrorCode.invalid_partitions)
InvalidReplicationFactor = kafka_error(ErrorCode.invalid_replication_factor)

Placement = tuple[int, uuid.UUID]
"""One replica's place: broker id, directory id of the disk."""


@dataclass(frozen=True, slots=True)
class CandidateBroker:
    """A broker that may take replicas, and its disks (at least one), in its own order."""

    broker_id: int
    rack: str | None
    directory_ids: tuple[uuid.UUID, ...]

    def __post_init__(self) -> None:
        assert self.directory_ids, f"broker {self.broker_id} has no disk"


def plan_replicas(
    brokers: Sequence[CandidateBroker],
    *,
    partitions: int,
    replication_factor: int,
    first_broker: int = 0,
    shift: int = 0,
    first_partition: int = 0,
    replicas_on_disk: Mapping[uuid.UUID, int] | None = None,
) -> tuple[tuple[Placement, ...], ...]:
    """The replicas of ``partitions`` new partitions, preferred leader first.

    ``first_partition`` is the number of partitions that the topic already has (growth goes on where
    creation ended; see ``growth_start``). ``replicas_on_disk`` counts what the disks hold already.
    Raises InvalidPartitions or InvalidReplicationFactor, with the numbers.
    """
    if partitions < 1:
        raise InvalidPartitions(f"a topic needs at least one partition, not {partitions}")
    if replication_factor < 1:
        raise InvalidReplicationFactor(f"the replication factor must be at least 1, not {replication_factor}")
    if replication_factor > len(brokers):
        raise InvalidReplicationFactor(
            f"replication factor {replication_factor} is larger than the number of available brokers, {len(brokers)}"
        )
    load = dict(replicas_on_disk or {})
    chosen = []
    for broker_places in _plan_brokers(brokers, partitions, replication_factor, first_broker, shift, first_partition):
        replicas = []
        for broker in broker_places:
            directory = min(broker.directory_ids, key=lambda each: load.get(each, 0))
            load[directory] = load.get(directory, 0) + 1
            replicas.append((broker.broker_id, directory))
        chosen.append(tuple(replicas))
    return tuple(chosen)


def growth_start(brokers: Sequence[CandidateBroker], leader_of_first_partition: int) -> int:
    """``first_broker`` and ``shift`` for new partitions of a topic whose partition 0 prefers that
    leader, as in Kafka.
    """
    ids = sorted(broker.broker_id for broker in brokers)
    return next((index for index, each in enumerate(ids) if each >= leader_of_first_partition), 0)


def _plan_brokers(
    brokers: Sequence[CandidateBroker],
    partitions: int,
    replication_factor: int,
    first_broker: int,
    shift: int,
    first_partition: int,
) -> list[list[CandidateBroker]]:
    use_racks = all(broker.rack is not None for broker in brokers)
    places = _interleaved(brokers) if use_racks else sorted(brokers, key=lambda broker: broker.broker_id)
    racks = {broker.rack for broker in brokers} if use_racks else {None}
    step = len(racks) if use_racks else 1
    plan = []
    for partition in range(first_partition, first_partition + partitions):
        if partition > 0 and partition % len(places) == 0:
            shift += 1
        first = (partition + first_broker) % len(places)
        chosen = [places[first]]
        attempt = 0
        while len(chosen) < replication_factor:
            candidate = places[_follower_place(first, shift * step, attempt, len(places))]
            attempt += 1
            taken_racks = {broker.rack for broker in chosen}
            rack_is_free = not use_racks or candidate.rack not in taken_racks or len(taken_racks) == len(racks)
            if rack_is_free and candidate not in chosen:
                chosen.append(candidate)
        plan.append(chosen)
    return plan


def _follower_place(first: int, shift: int, attempt: int, count: int) -> int:
    return (first + 1 + (shift + attempt) % (count - 1)) % count


def _interleaved(brokers: Sequence[CandidateBroker]) -> list[CandidateBroker]:
    by_rack: dict[str, list[CandidateBroker]] = {}
    for broker in sorted(brokers, key=lambda each: each.broker_id):
        by_rack.setdefault(broker.rack or "", []).append(broker)
    columns = [by_rack[rack] for rack in sorted(by_rack)]
    longest = max(len(column) for column in columns)
    return [column[row] for row in range(longest) for column in columns if row < len(column)]
