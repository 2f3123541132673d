"""sticky and cooperative-sticky (KIP-54, KIP-429): balanced first, and as much as possible where it
was second.

Balanced means: no member could get a partition of one that has two more than it. Where all members
subscribe to the same topics that is a quota (``equal``); else partitions are moved one by one while
somebody who may read them has less (``unequal``).

*Claims.* Each member says what it owns and since which generation: "sticky" in its user data,
"cooperative-sticky" in the subscription itself. Of several claims to a partition the one of the
newest generation counts; two of the same generation contradict each other and neither does.

*cooperative-sticky* gives nobody a partition that somebody else owns: what moves is first left out
(its owner gives it up, everyone joins again) and given in the next plan, when nobody owns it. So no
partition is read twice.

User data, types as in ``fields``::

    sticky              partitions [topic string, partitions [i32]], generation i32 (version 0 had none)
    cooperative-sticky  generation i32 (for subscriptions before version 2, which have no place for it)
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from raylog.coordination import fields
from raylog.coordination.fields import Reader
from raylog.errors import ProtocolError
from raylog.groups.assignors.assignor import Assignor, Plan, SubscribedMember, subscribers
from raylog.groups.assignors.balancing import balance
from raylog.groups.consumer_protocol import NO_GENERATION, Subscription, encode_partitions, read_partitions
from raylog.types import TopicPartition


class Claim(NamedTuple):
    owned: tuple[TopicPartition, ...]
    generation: int


# ------------------------------------------------------------------ what members say


def sticky_user_data(owned: Iterable[TopicPartition], generation: int) -> bytes | None:
    """None before the first plan, as the Java client."""
    if generation == NO_GENERATION:
        return None
    return encode_partitions(owned) + fields.i32(generation)


def cooperative_user_data(owned: Iterable[TopicPartition], generation: int) -> bytes:
    return fields.i32(generation)


def _sticky_claim(subscription: Subscription) -> Claim:
    """An eager member has given everything up before it joins; what it had is in its user data
    alone.
    """
    if not subscription.user_data:
        return Claim((), subscription.generation)
    reader = Reader(subscription.user_data, "user data of a sticky member")
    try:
        owned = read_partitions(reader)
        return Claim(owned, NO_GENERATION if reader.is_at_end else reader.i32())
    except ProtocolError:
        return Claim((), NO_GENERATION)


def _cooperative_claim(subscription: Subscription) -> Claim:
    generation = subscription.generation
    if generation == NO_GENERATION and subscription.user_data:
        try:
            generation = Reader(subscription.user_data, "user data of a cooperative member").i32()
        except ProtocolError:
            pass
    return Claim(subscription.owned, generation)


def _owners(claims: Mapping[str, Claim], readable: Mapping[str, frozenset[str]]) -> list[dict[TopicPartition, str]]:
    """Who owned each partition, by the newest claim that counts; and by the one before it."""
    by_partition: dict[TopicPartition, list[tuple[int, str]]] = {}
    for member_id, claim in sorted(claims.items()):
        for place in dict.fromkeys(claim.owned):
            if place.topic in readable[member_id]:
                by_partition.setdefault(place, []).append((claim.generation, member_id))
    now: dict[TopicPartition, str] = {}
    before: dict[TopicPartition, str] = {}
    for place, claimants in by_partition.items():
        claimants.sort(reverse=True)
        generation, member_id = claimants[0]
        older = [each for each in claimants if each[0] < generation]
        if sum(each[0] == generation for each in claimants) == 1:
            now[place] = member_id
        if older:
            before[place] = older[0][1]
    return [now, before]


# ------------------------------------------------------------------ plans


def assign_sticky(members: Sequence[SubscribedMember], partition_counts: Mapping[str, int]) -> Plan:
    return _assign(members, partition_counts, _sticky_claim)


def assign_cooperative(members: Sequence[SubscribedMember], partition_counts: Mapping[str, int]) -> Plan:
    plan = _assign(members, partition_counts, _cooperative_claim)
    owners: dict[TopicPartition, set[str]] = {}
    for member in members:
        for place in member.subscription.owned:
            owners.setdefault(place, set()).add(member.member_id)
    return {
        member_id: [place for place in part if owners.get(place, {member_id}) <= {member_id}]
        for member_id, part in plan.items()
    }


def _assign(
    members: Sequence[SubscribedMember], partition_counts: Mapping[str, int], claim_of: Callable[[Subscription], Claim]
) -> Plan:
    readers = {
        topic: sorted(member.member_id for member in those)
        for topic, those in subscribers(members, partition_counts).items()
    }
    claims = {member.member_id: claim_of(member.subscription) for member in members}
    topics = {
        member.member_id: frozenset(topic for topic in member.subscription.topics if topic in partition_counts)
        for member in members
    }
    now, before = _owners(claims, topics)
    now = {place: owner for place, owner in now.items() if 0 <= place.partition < partition_counts[place.topic]}
    if len(set(topics.values())) <= 1:
        places = [TopicPartition(topic, number) for topic in readers for number in range(partition_counts[topic])]
        return assign_equal(sorted(topics), places, now)
    gave_up = any(
        place.topic in partition_counts and place.topic not in topics[member_id]
        for member_id, claim in claims.items()
        for place in claim.owned
    )
    return balance(readers, partition_counts, now, before, list(topics), moves_all=gave_up)


def assign_equal(
    member_ids: Sequence[str], places: Sequence[TopicPartition], owners: Mapping[TopicPartition, str]
) -> Plan:
    """Everyone may read everything: each gets the quota, some one more, and keeps what fits into
    it; the rest is dealt to who has least.

    ``member_ids`` and ``places`` stand in order. Kept first are the lowest partition numbers, so
    that what goes is spread over the topics.
    """
    plan: Plan = {member_id: [] for member_id in member_ids}
    if not member_ids:
        return plan
    quota, larger = divmod(len(places), len(member_ids))  # so many members get one more than the quota
    owned: dict[str, list[TopicPartition]] = {member_id: [] for member_id in member_ids}
    for place in sorted(owners, key=lambda place: (place.partition, place.topic)):
        owned[owners[place]].append(place)
    hungry: list[tuple[int, str]] = []  # a heap: who has least comes first
    for member_id in member_ids:
        has = owned[member_id]
        if len(has) > quota and larger:
            plan[member_id] = has[: quota + 1]
            larger -= 1
        else:
            plan[member_id] = has[:quota]
            heapq.heappush(hungry, (len(plan[member_id]), member_id))
    kept = {place for part in plan.values() for place in part}
    for place in places:
        if place not in kept:
            size, member_id = heapq.heappop(hungry)
            plan[member_id].append(place)
            if size < quota:
                heapq.heappush(hungry, (size + 1, member_id))
    return plan


STICKY = Assignor("sticky", assign_sticky, sticky_user_data)
COOPERATIVE_STICKY = Assignor("cooperative-sticky", assign_cooperative, cooperative_user_data, is_cooperative=True)
