"""What consumers say to each other through the coordinator: the "consumer" protocol inside
JoinGroup and SyncGroup.

The coordinator passes these bytes on; it reads only the topics of a subscription (which offsets may
expire). Layout, after an i16 version, types as in ``fields``::

    Subscription  0   topics [string], user_data bytes?
                  1   + owned_partitions [topic string, partitions [i32]]
                  2   + generation_id i32
                  3   + rack_id string?
    Assignment    0–3 assigned_partitions [topic string, partitions [i32]], user_data bytes?

A version above 3 is read as 3: newer ones only add fields at the end. Topics are written in order,
and partitions in order of their topic's first appearance, as the Java client does.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from raylog.coordination import fields
from raylog.coordination.fields import Buffer, Reader
from raylog.errors import ProtocolError
from raylog.types import TopicPartition

PROTOCOL_TYPE = "consumer"
NEWEST_VERSION = 3
NO_GENERATION = -1


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a member wants, and what it holds now. ``generation`` is the one in which it got that,
    −1 if none or not said.
    """

    topics: tuple[str, ...]
    user_data: bytes | None = None
    owned: tuple[TopicPartition, ...] = ()
    generation: int = NO_GENERATION
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class ConsumerProtocolAssignment:
    partitions: tuple[TopicPartition, ...]
    user_data: bytes | None = None


def encode_subscription(subscription: Subscription, version: int = NEWEST_VERSION) -> bytes:
    """Fields that ``version`` (0–3) has no place for are left out."""
    assert 0 <= version <= NEWEST_VERSION, version
    topics = sorted(subscription.topics)
    parts = [fields.i16(version), fields.i32(len(topics)), *(fields.string(topic) for topic in topics)]
    parts.append(fields.sized_bytes(subscription.user_data))
    if version >= 1:
        parts.append(encode_partitions(subscription.owned))
    if version >= 2:
        parts.append(fields.i32(subscription.generation))
    if version >= 3:
        parts.append(fields.string(subscription.rack))
    return b"".join(parts)


def decode_subscription(data: Buffer) -> Subscription:
    """Raises ProtocolError for bytes that are no subscription."""
    reader = Reader(data, "subscription of a consumer")
    version = _version(reader)
    topics, user_data = reader.array(reader.string), reader.nullable_bytes()
    owned = read_partitions(reader) if version >= 1 else ()
    generation = reader.i32() if version >= 2 else NO_GENERATION
    rack = reader.nullable_string() if version >= 3 else None
    return Subscription(topics, user_data, owned, generation, rack)


def encode_assignment(assignment: ConsumerProtocolAssignment, version: int = NEWEST_VERSION) -> bytes:
    assert 0 <= version <= NEWEST_VERSION, version
    return fields.i16(version) + encode_partitions(assignment.partitions) + fields.sized_bytes(assignment.user_data)


def decode_assignment(data: Buffer) -> ConsumerProtocolAssignment:
    """The empty bytes, which a coordinator gives a member that its leader forgot, are the empty
    assignment.
    """
    if not len(data):
        return ConsumerProtocolAssignment(())
    reader = Reader(data, "assignment of a consumer")
    _version(reader)
    return ConsumerProtocolAssignment(read_partitions(reader), reader.nullable_bytes())


def _version(reader: Reader) -> int:
    version = reader.i16()
    if version < 0:
        raise ProtocolError(f"{reader.what}: version {version}")
    return version


def encode_partitions(partitions: Iterable[TopicPartition]) -> bytes:
    """Partitions gathered by topic: [topic string, partitions [i32]]."""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in partitions:
        by_topic.setdefault(topic, []).append(partition)
    parts = [fields.i32(len(by_topic))]
    for topic, numbers in by_topic.items():
        parts += (fields.string(topic), fields.i32(len(numbers)), *map(fields.i32, numbers))
    return b"".join(parts)


def read_partitions(reader: Reader) -> tuple[TopicPartition, ...]:
    """The reverse of ``encode_partitions``."""
    gathered = reader.array(lambda: (reader.string(), reader.array(reader.i32)))
    return tuple(TopicPartition(topic, number) for topic, numbers in gathered for number in numbers)
