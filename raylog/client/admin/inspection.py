"""What an admin client tells of disks, producers and controllers, read out of Kafka's answers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from raylog.types import TopicPartition


@dataclass(frozen=True, slots=True)
class LogDir:
    """A disk of a broker: sizes in bytes of the replicas there. ``total_bytes`` and
    ``usable_bytes`` −1: the disk does not say.
    """

    path: str
    total_bytes: int
    usable_bytes: int
    replicas: dict[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class ProducerInfo:
    """A producer as a partition's leader remembers it. ``last_timestamp`` in ms;
    ``transaction_start_offset`` None: none is open.
    """

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int | None
    transaction_start_offset: int | None


@dataclass(frozen=True, slots=True)
class QuorumMember:
    """A controller. Times are in ms since 1970; −1 where it was not heard of."""

    broker: int
    log_end_offset: int
    last_fetch_timestamp: int
    last_caught_up_timestamp: int


@dataclass(frozen=True, slots=True)
class QuorumInfo:
    leader: int
    leader_epoch: int
    high_watermark: int
    voters: tuple[QuorumMember, ...]
    observers: tuple[QuorumMember, ...]


def log_dirs_of(replies: Iterable[tuple[int, Any]]) -> dict[int, dict[str, LogDir]]:
    """DescribeLogDirs answers of the processes of brokers, put together by broker and path."""
    found: dict[int, dict[str, LogDir]] = {}
    for broker, reply in replies:
        for result in reply.results:
            of_broker = found.setdefault(broker, {})
            log_dir = of_broker.setdefault(
                result.log_dir, LogDir(result.log_dir, int(result.total_bytes), int(result.usable_bytes), {})
            )
            for topic in result.topics:
                for part in topic.partitions:
                    key = TopicPartition(str(topic.name), int(part.partition_index))
                    log_dir.replicas[key] = int(part.partition_size)
    return found


def producers_of(partition: Any) -> tuple[ProducerInfo, ...]:
    """One partition of a DescribeProducers answer."""
    return tuple(
        ProducerInfo(
            int(each.producer_id),
            int(each.producer_epoch),
            int(each.last_sequence),
            int(each.last_timestamp),
            None if each.coordinator_epoch < 0 else int(each.coordinator_epoch),
            None if each.current_txn_start_offset < 0 else int(each.current_txn_start_offset),
        )
        for each in sorted(partition.active_producers, key=lambda each: int(each.producer_id))
    )


def quorum_of(partition: Any) -> QuorumInfo:
    """The one partition of a DescribeQuorum answer."""

    def members(states: Any) -> tuple[QuorumMember, ...]:
        return tuple(
            QuorumMember(
                int(each.replica_id),
                int(each.log_end_offset),
                int(each.last_fetch_timestamp),
                int(each.last_caught_up_timestamp),
            )
            for each in states
        )

    return QuorumInfo(
        int(partition.leader_id),
        int(partition.leader_epoch),
        int(partition.high_watermark),
        members(partition.current_voters),
        members(partition.observers),
    )
