"""range and roundrobin: plans without a memory, in Kafka's order of members
(``SubscribedMember.place``).

*range*: topic by topic, the partitions in contiguous pieces, the first members getting one more
where they do not come out even. *roundrobin*: all partitions of all topics in order, dealt one by
one; who does not subscribe to the topic is passed over.

Kafka's range also weighs the racks of members and replicas (KIP-881); this one does not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from raylog.groups.assignors.assignor import Assignor, Plan, SubscribedMember, no_user_data, subscribers
from raylog.types import TopicPartition


def assign_range(members: Sequence[SubscribedMember], partition_counts: Mapping[str, int]) -> Plan:
    plan: Plan = {member.member_id: [] for member in members}
    for topic, readers in subscribers(members, partition_counts).items():
        each, more = divmod(partition_counts[topic], len(readers))
        start = 0
        for index, member in enumerate(sorted(readers, key=lambda member: member.place)):
            end = start + each + (index < more)
            plan[member.member_id] += [TopicPartition(topic, partition) for partition in range(start, end)]
            start = end
    return plan


def assign_roundrobin(members: Sequence[SubscribedMember], partition_counts: Mapping[str, int]) -> Plan:
    plan: Plan = {member.member_id: [] for member in members}
    turn = sorted(members, key=lambda member: member.place)
    next_turn = 0
    for topic in subscribers(members, partition_counts):
        for partition in range(partition_counts[topic]):
            while topic not in turn[next_turn].subscription.topics:
                next_turn = (next_turn + 1) % len(turn)
            plan[turn[next_turn].member_id].append(TopicPartition(topic, partition))
            next_turn = (next_turn + 1) % len(turn)
    return plan


RANGE = Assignor("range", assign_range, no_user_data)
ROUNDROBIN = Assignor("roundrobin", assign_roundrobin, no_user_data)
