"""What a member of a group wants to read, and what it says of itself when it joins: pure values and
functions.

A subscription is a list of topics or a pattern. A pattern is a Python regular expression that
matches a whole topic name; in the manner of librdkafka one that begins with ``^`` may be given as
text among topics. Internal topics match no pattern while ``exclude.internal.topics`` is true (the
default), as in Kafka.

Protocol names and metadata bytes are those of Apache Kafka's Java client
(``raylog.groups.consumer_protocol``), so that members of any client share a group.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raylog.errors import ConfigError
from raylog.groups.assignors import ASSIGNORS, Assignor, SubscribedMember
from raylog.groups.consumer_protocol import (
    ConsumerProtocolAssignment,
    Subscription,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from raylog.groups.requests import NO_GENERATION, JoinedMember, Protocol
from raylog.types import TopicPartition

_JAVA_NAMES = {
    "RangeAssignor": "range",
    "RoundRobinAssignor": "roundrobin",
    "StickyAssignor": "sticky",
    "CooperativeStickyAssignor": "cooperative-sticky",
}


@dataclass(frozen=True, slots=True)
class Wanted:
    """Topics by name, or all whose names match ``pattern``."""

    names: tuple[str, ...] = ()
    pattern: re.Pattern[str] | None = None

    def topics(self, existing: Mapping[str, bool], *, excludes_internal: bool) -> tuple[str, ...]:
        """What that is now. ``existing``: the cluster's topics, and whether each is internal."""
        if self.pattern is None:
            return self.names
        return tuple(
            name
            for name, is_internal in sorted(existing.items())
            if self.pattern.fullmatch(name) and not (is_internal and excludes_internal)
        )


def wanted(topics: str | re.Pattern[str] | Iterable[str]) -> Wanted:
    """What ``subscribe`` was given: a topic, several, a compiled pattern, or a pattern as text that
    begins with ``^``.
    """
    if isinstance(topics, re.Pattern):
        return Wanted(pattern=topics)
    names = (topics,) if isinstance(topics, str) else tuple(dict.fromkeys(topics))
    if not all(isinstance(name, str) and name for name in names):
        raise ConfigError(f"subscribe to topic names or to a pattern, not to {topics!r}")
    patterns = [name for name in names if name.startswith("^")]
    if not patterns:
        return Wanted(tuple(sorted(names)))
    parts = [f"(?:{name}.*)" if name in patterns and not name.endswith("$") else name for name in patterns]
    parts += [re.escape(name) for name in names if name not in patterns]
    try:
        return Wanted(pattern=re.compile("|".join(parts)))
    except re.error as error:
        raise ConfigError(f"subscribe to {topics!r}: not a regular expression: {error}") from None


def assignors_of(value: Any) -> tuple[Assignor, ...]:
    """The assignors of ``partition.assignment.strategy``: names, Java class names or Assignor
    objects. Raises ValueError.
    """
    listed = [part.strip() for part in value.split(",")] if isinstance(value, str) else value
    listed = [listed] if isinstance(listed, Assignor) else list(listed)
    found: dict[str, Assignor] = {}
    for each in listed:
        if isinstance(each, str):
            name = _JAVA_NAMES.get(each.removeprefix("org.apache.kafka.clients.consumer."), each)
            if name not in ASSIGNORS:
                raise ValueError(f"unknown assignor {each!r}: choose from {', '.join(ASSIGNORS)}")
            each = ASSIGNORS[name]
        elif not isinstance(each, Assignor):
            raise ValueError(f"{each!r} is not an assignor: give one of {', '.join(ASSIGNORS)} or an Assignor")
        if each.name in found:
            raise ValueError(f"assignor {each.name} is named twice")
        found[each.name] = each
    if not found:
        raise ValueError("a member of a group needs an assignor")
    return tuple(found.values())


def is_cooperative(assignors: Sequence[Assignor]) -> bool:
    """Members give up only what a plan takes away if all of their assignors can do with that."""
    return all(assignor.is_cooperative for assignor in assignors)


@dataclass(frozen=True, slots=True)
class Remembered:
    """The last plan that a member was part of, whatever it has given up since."""

    partitions: tuple[TopicPartition, ...] = ()
    generation: int = NO_GENERATION


def protocols(
    assignors: Sequence[Assignor],
    topics: Sequence[str],
    owned: Sequence[TopicPartition],
    generation: int,
    remembered: Remembered,
) -> tuple[Protocol, ...]:
    """What a joining member says, once for each assignor that it knows."""
    said = []
    for assignor in assignors:
        user_data = assignor.user_data(remembered.partitions, remembered.generation)
        subscription = Subscription(tuple(topics), user_data, tuple(owned), generation)
        said.append(Protocol(assignor.name, encode_subscription(subscription)))
    return tuple(said)


def subscriptions_of(members: Iterable[JoinedMember]) -> list[SubscribedMember]:
    """The members of a group as its leader is told of them. Raises ProtocolError."""
    return [
        SubscribedMember(member.member_id, decode_subscription(member.metadata), member.group_instance_id)
        for member in members
    ]


def plan(
    assignor: Assignor, members: Sequence[SubscribedMember], partition_counts: Mapping[str, int]
) -> tuple[tuple[str, bytes], ...]:
    """The leader's plan, as SyncGroup carries it."""
    shares = assignor.assign(members, partition_counts)
    return tuple(
        (member.member_id, encode_assignment(ConsumerProtocolAssignment(tuple(shares.get(member.member_id, ())))))
        for member in members
    )
