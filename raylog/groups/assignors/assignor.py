"""What an assignor is: a function from the members of a group and the sizes of topics to a plan.

The leading member of a group runs it, whichever protocol the coordinator chose; the others only get
their part. Members and topics come in any order; the plan does not depend on it. A partition that
nobody subscribes to is in nobody's part; a member that gets nothing has an empty one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from raylog.groups.consumer_protocol import Subscription
from raylog.types import TopicPartition

Plan = dict[str, list[TopicPartition]]


@dataclass(frozen=True, slots=True)
class SubscribedMember:
    member_id: str
    subscription: Subscription
    group_instance_id: str | None = None

    @property
    def place(self) -> tuple[bool, str]:
        """Where range and roundrobin put it: static members first, by instance id, so that a
        restart changes nothing.
        """
        return (False, self.group_instance_id) if self.group_instance_id is not None else (True, self.member_id)


Assign = Callable[[Sequence[SubscribedMember], Mapping[str, int]], Plan]


@dataclass(frozen=True, slots=True)
class Assignor:
    """``assign(members, partition_counts)``; ``partition_counts`` names the topics that exist.

    ``user_data(owned, generation)`` is what a member adds to its subscription so that the next plan
    can build on this one. ``is_cooperative``: members keep what they own while they join, and give
    up only what a plan takes away (KIP-429).
    """

    name: str
    assign: Assign
    user_data: Callable[[Iterable[TopicPartition], int], bytes | None]
    is_cooperative: bool = False


def no_user_data(owned: Iterable[TopicPartition], generation: int) -> bytes | None:
    return None


def subscribers(
    members: Iterable[SubscribedMember], partition_counts: Mapping[str, int]
) -> dict[str, list[SubscribedMember]]:
    """The members of each topic that exists, topics in order."""
    by_topic: dict[str, list[SubscribedMember]] = {}
    for member in members:
        for topic in dict.fromkeys(member.subscription.topics):
            if topic in partition_counts:
                by_topic.setdefault(topic, []).append(member)
    return dict(sorted(by_topic.items()))
