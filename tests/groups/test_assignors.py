"""The four assignors: the vectors of the specification, Apache Kafka 3.9.1's own plans, and what must hold of every plan.

``vectors/kafka_3_9_1_assignments.json`` holds random groups and what Kafka's four classes made of them, in rounds: the members of a later
round own what sticky gave them in the one before, and one has left, come, or changed its topics, or a topic has grown.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylog.groups.assignors import ASSIGNORS, Plan, SubscribedMember
from raylog.groups.assignors.sticky import cooperative_user_data, sticky_user_data
from raylog.groups.consumer_protocol import Subscription
from raylog.types import TopicPartition

GOLDEN = json.loads((Path(__file__).parent / "vectors" / "kafka_3_9_1_assignments.json").read_text())
STICKY, COOPERATIVE = "sticky", "cooperative-sticky"


def plan_of(text: str) -> Plan:
    """A plan as the specification writes it: ``C0=t0p0,t1p1 · C1=t0p1``."""
    plan: Plan = {}
    for part in text.split(" · "):
        member, _, places = part.partition("=")
        plan[member] = [
            TopicPartition(topic, int(number))
            for topic, _, number in (place.partition("p") for place in places.split(",") if place)
        ]
    return plan


def fresh(topics: Mapping[str, Sequence[str]]) -> list[SubscribedMember]:
    return [SubscribedMember(member, Subscription(tuple(each))) for member, each in topics.items()]


def with_memory(
    name: str, topics: Mapping[str, Sequence[str]], owned: Plan, generation: int | Mapping[str, int] = 1
) -> list[SubscribedMember]:
    """Members that own what ``owned`` says, as those of that assignor say it."""
    members = []
    for member, each in topics.items():
        has = tuple(owned.get(member, ()))
        since = generation if isinstance(generation, int) else generation[member]
        if name == STICKY:
            subscription = Subscription(tuple(each), sticky_user_data(has, since), (), since)
        else:
            subscription = Subscription(tuple(each), cooperative_user_data(has, since), has, since)
        members.append(SubscribedMember(member, subscription))
    return members


def assign(name: str, members: Sequence[SubscribedMember], counts: Mapping[str, int]) -> Plan:
    return ASSIGNORS[name].assign(members, counts)


def sets(plan: Mapping[str, Sequence[Any]]) -> dict[str, set[TopicPartition]]:
    return {member: {TopicPartition(*place) for place in part} for member, part in plan.items()}


# ------------------------------------------------------------------ the vectors


def test_tv_12_range_gives_contiguous_pieces_of_each_topic() -> None:
    plan = assign("range", fresh({"C0": ["t0", "t1"], "C1": ["t0", "t1"]}), {"t0": 4, "t1": 4})
    assert plan == plan_of("C0=t0p0,t0p1,t1p0,t1p1 · C1=t0p2,t0p3,t1p2,t1p3")


def test_tv_13_range_gives_what_is_left_over_to_the_first_of_each_topic() -> None:
    plan = assign("range", fresh({"C0": ["t0", "t1"], "C1": ["t0", "t1"]}), {"t0": 3, "t1": 3})
    assert plan == plan_of("C0=t0p0,t0p1,t1p0,t1p1 · C1=t0p2,t1p2")


def test_tv_14_twenty_members_share_a_hundred_partitions_evenly() -> None:
    members = fresh({f"C{index:02}": ["t"] for index in range(20)})
    for name in ASSIGNORS:
        assert {len(part) for part in assign(name, members, {"t": 100}).values()} == {5}


def test_tv_15_roundrobin_deals_one_by_one() -> None:
    plan = assign("roundrobin", fresh({"C0": ["t0", "t1"], "C1": ["t0", "t1"]}), {"t0": 3, "t1": 3})
    assert plan == plan_of("C0=t0p0,t0p2,t1p1 · C1=t0p1,t1p0,t1p2")


def test_tv_16_sticky_keeps_what_roundrobin_shuffles_when_a_member_leaves() -> None:
    topics = ["t0", "t1", "t2", "t3"]
    counts = dict.fromkeys(topics, 2)
    everyone = {"C0": topics, "C1": topics, "C2": topics}
    first = plan_of("C0=t0p0,t1p1,t3p0 · C1=t0p1,t2p0,t3p1 · C2=t1p0,t2p1")
    for name in ("roundrobin", STICKY, COOPERATIVE):
        assert sets(assign(name, fresh(everyone), counts)) == sets(first)
    left = {"C0": topics, "C2": topics}
    dealt = assign("roundrobin", fresh(left), counts)
    assert dealt == plan_of("C0=t0p0,t1p0,t2p0,t3p0 · C2=t0p1,t1p1,t2p1,t3p1")
    kept = plan_of("C0=t0p0,t1p1,t3p0,t2p0 · C2=t1p0,t2p1,t0p1,t3p1")
    for name in (STICKY, COOPERATIVE):
        assert sets(assign(name, with_memory(name, left, first), counts)) == sets(kept)


def test_tv_17_sticky_balances_unequal_subscriptions_and_keeps_five() -> None:
    counts = {"t0": 1, "t1": 2, "t2": 3}
    everyone = {"C0": ["t0"], "C1": ["t0", "t1"], "C2": ["t0", "t1", "t2"]}
    assert assign("roundrobin", fresh(everyone), counts) == plan_of("C0=t0p0 · C1=t1p0 · C2=t1p1,t2p0,t2p1,t2p2")
    first = plan_of("C0=t0p0 · C1=t1p0,t1p1 · C2=t2p0,t2p1,t2p2")
    for name in (STICKY, COOPERATIVE):
        assert sets(assign(name, fresh(everyone), counts)) == sets(first)
    del everyone["C0"]
    assert assign("roundrobin", fresh(everyone), counts) == plan_of("C1=t0p0,t1p1 · C2=t1p0,t2p0,t2p1,t2p2")
    for name in (STICKY, COOPERATIVE):
        after = assign(name, with_memory(name, everyone, first), counts)
        assert sets(after) == sets(plan_of("C1=t1p0,t1p1,t0p0 · C2=t2p0,t2p1,t2p2"))


@pytest.mark.parametrize("name", ASSIGNORS)
def test_plans_are_apache_kafkas(name: str) -> None:
    for number, round in enumerate(GOLDEN):
        members = []
        for each in round["members"]:
            owned = tuple(TopicPartition(*place) for place in each["owned"])
            since = each["generation"]
            data = sticky_user_data(owned, since) if name == STICKY and since >= 0 else None
            subscription = Subscription(tuple(each["topics"]), data, owned if name == COOPERATIVE else (), since)
            members.append(SubscribedMember(each["id"], subscription, each["instance"]))
        mine, kafkas = sets(assign(name, members, round["counts"])), sets(round[name])
        if name in (STICKY, COOPERATIVE) and mine != kafkas:
            # Where several members are as entitled, Kafka goes by the order of a hash map: as even and as sticky will do.
            owners = {each["id"]: {TopicPartition(*place) for place in each["owned"]} for each in round["members"]}
            assert any(owners.values()), f"{number}: {mine} is not {kafkas}"
            assert sorted(map(len, mine.values())) == sorted(map(len, kafkas.values())), number
            kept = [sum(len(part & owners[member]) for member, part in plan.items()) for plan in (mine, kafkas)]
            assert kept[0] >= kept[1], f"{number}: kept {kept[0]}, Kafka keeps {kept[1]}"
        else:
            assert mine == kafkas, f"{number}: {mine} is not {kafkas}"


# ------------------------------------------------------------------ claims and bytes


def test_user_data_is_kafkas_bytes() -> None:
    owned = plan_of("m=t0p0,t0p2,t1p1")["m"]
    assert sticky_user_data(owned, 4).hex() == (
        "00000002 0002 7430 00000002 00000000 00000002 0002 7431 00000001 00000001 00000004".replace(" ", "")
    )
    assert cooperative_user_data(owned, 4) == b"\x00\x00\x00\x04"


def test_static_members_come_first_by_their_instance() -> None:
    members = [
        SubscribedMember("a", Subscription(("t",))),
        SubscribedMember("z", Subscription(("t",)), "i1"),
        SubscribedMember("y", Subscription(("t",)), "i2"),
    ]
    for name in ("range", "roundrobin"):
        assert assign(name, members, {"t": 3}) == plan_of("a=tp2 · z=tp0 · y=tp1")


def test_the_claim_of_the_newest_generation_counts_and_two_of_the_same_cancel_out() -> None:
    topics = {"C0": ["t"], "C1": ["t"]}
    owned = plan_of("C0=tp0,tp1 · C1=tp1,tp2")
    newer = assign(STICKY, with_memory(STICKY, topics, owned, {"C0": 1, "C1": 2}), {"t": 4})
    assert TopicPartition("t", 1) in newer["C1"] and TopicPartition("t", 0) in newer["C0"]
    same = assign(STICKY, with_memory(STICKY, topics, owned), {"t": 4})
    assert TopicPartition("t", 0) in same["C0"] and TopicPartition("t", 2) in same["C1"]
    assert sorted(place for part in same.values() for place in part) == [TopicPartition("t", each) for each in range(4)]


def test_claims_that_cannot_be_read_are_none() -> None:
    for data in (b"\x00", b"\x7f\xff\xff\xff", b"garbage"):
        members = [SubscribedMember("C0", Subscription(("t",), data)), SubscribedMember("C1", Subscription(("t",)))]
        assert sets(assign(STICKY, members, {"t": 2})) == sets(plan_of("C0=tp0 · C1=tp1"))
        assert sets(assign(COOPERATIVE, members, {"t": 2})) == sets(plan_of("C0=tp0 · C1=tp1"))


def test_cooperative_gives_away_in_two_steps() -> None:
    topics = {"C0": ["t"], "C1": ["t"]}
    owned = plan_of("C0=tp0,tp1,tp2,tp3 · C1=")
    first = assign(COOPERATIVE, with_memory(COOPERATIVE, topics, owned), {"t": 4})
    assert sets(first) == sets(plan_of("C0=tp0,tp1 · C1="))
    second = assign(COOPERATIVE, with_memory(COOPERATIVE, topics, first, 2), {"t": 4})
    assert sets(second) == sets(plan_of("C0=tp0,tp1 · C1=tp2,tp3"))


def test_cooperative_withholds_what_a_member_of_an_older_generation_still_holds() -> None:
    topics = {"C0": ["t"], "C1": ["t"], "C2": ["t"]}
    owned = plan_of("C0=tp0,tp1 · C1=tp1 · C2=")
    plan = assign(COOPERATIVE, with_memory(COOPERATIVE, topics, owned, {"C0": 1, "C1": 2, "C2": 2}), {"t": 3})
    assert TopicPartition("t", 1) not in plan["C0"] + plan["C2"]


# ------------------------------------------------------------------ what must hold of every plan

counts = st.dictionaries(st.sampled_from(["a", "b", "c", "d"]), st.integers(1, 6), min_size=1)
groups = st.dictionaries(
    st.sampled_from([f"m{index}" for index in range(7)]),
    st.sets(st.sampled_from(["a", "b", "c", "d", "missing"])).map(sorted),
    min_size=1,
)
changes = st.tuples(groups, counts)


def check_plan(plan: Plan, topics: Mapping[str, Sequence[str]], sizes: Mapping[str, int]) -> None:
    """Every partition that somebody reads is in exactly one part, a reader's."""
    assert set(plan) == set(topics)
    given = [place for part in plan.values() for place in part]
    read = {topic for each in topics.values() for topic in each if topic in sizes}
    assert sorted(given) == sorted(TopicPartition(topic, each) for topic in read for each in range(sizes[topic]))
    for member, part in plan.items():
        assert {place.topic for place in part} <= set(topics[member])


def check_balance(plan: Plan, topics: Mapping[str, Sequence[str]]) -> None:
    """Nobody could take a partition from somebody who has two more."""
    for part in plan.values():
        for place in part:
            for other, each in topics.items():
                assert place.topic not in each or len(plan[other]) >= len(part) - 1, f"{place} in {plan}"


@given(groups, counts, st.randoms(use_true_random=False))
def test_every_plan_is_whole_and_does_not_depend_on_the_order_of_members(
    topics: dict[str, list[str]], sizes: dict[str, int], random: Any
) -> None:
    for name in ASSIGNORS:
        members = fresh(topics)
        plan = assign(name, members, sizes)
        check_plan(plan, topics, sizes)
        random.shuffle(members)
        assert assign(name, members, dict(reversed(sizes.items()))) == plan
        if name in (STICKY, COOPERATIVE):
            check_balance(plan, topics)


@given(groups, counts, changes)
def test_sticky_plans_stay_and_move_no_more_than_they_have_to(
    topics: dict[str, list[str]], sizes: dict[str, int], change: tuple[dict[str, list[str]], dict[str, int]]
) -> None:
    plan = assign(STICKY, fresh(topics), sizes)
    assert sets(assign(STICKY, with_memory(STICKY, topics, plan), sizes)) == sets(plan), "nothing changed"
    topics, sizes = change
    after = assign(STICKY, with_memory(STICKY, topics, plan), sizes)
    check_plan(after, topics, sizes)
    check_balance(after, topics)
    if len({tuple(each) for each in topics.values()}) == 1:
        read = [each for each in topics[min(topics)] if each in sizes]
        quota, larger = divmod(sum(sizes[each] for each in read), len(topics))
        had = {
            member: [
                place for place in plan.get(member, []) if place.topic in read and place.partition < sizes[place.topic]
            ]
            for member in topics
        }
        surplus = sum(len(part) > quota for part in had.values())
        could = sum(min(len(part), quota) for part in had.values()) + min(surplus, larger)
        assert sum(len(set(part) & set(had[member])) for member, part in after.items()) == could


@given(groups, counts, changes)
def test_cooperative_members_never_own_a_partition_together_and_end_balanced(
    topics: dict[str, list[str]], sizes: dict[str, int], change: tuple[dict[str, list[str]], dict[str, int]]
) -> None:
    owned = assign(COOPERATIVE, fresh(topics), sizes)
    topics, sizes = change
    owned = {member: owned.get(member, []) for member in topics}
    for generation in range(1, 4):
        plan = assign(COOPERATIVE, with_memory(COOPERATIVE, topics, owned, generation), sizes)
        owner = {place: member for member, part in owned.items() for place in part}
        for member, part in plan.items():
            assert all(owner.get(place, member) == member for place in part), f"{owned} → {plan}"
        gave_up = any(set(owned[member]) - set(part) for member, part in plan.items())
        owned = plan
        if not gave_up:
            break
    check_plan(owned, topics, sizes)
    check_balance(owned, topics)
