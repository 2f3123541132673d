"""Plans: what is read from JSON, and what is proposed."""

from __future__ import annotations

import json
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylog.cli.reassign import as_document, brokers_of, disks_of, plan_of, topics_of
from raylog.client.admin.reassignment_plans import InvalidReplicationFactor, balanced, spread, without
from raylog.errors import ConfigError
from raylog.types import TopicPartition


def partition(number, topic="t"):
    return TopicPartition(topic, number)


def test_a_plan_is_read_as_it_is_written():
    plan = {partition(0): (1, 2), partition(1): (2, 0)}
    assert plan_of(json.dumps(as_document(plan))) == plan


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("nonsense", "not {"),
        ("[]", "not {"),
        ('{"partitions": []}', "names no partition"),
        ('{"version": 2, "partitions": []}', "version 2"),
        ('{"partitions": [{"topic": "t", "partition": 0, "replicas": []}]}', "none, or one twice"),
        ('{"partitions": [{"topic": "t", "partition": 0, "replicas": [1, 1]}]}', "none, or one twice"),
        ('{"partitions": [{"topic": "t", "partition": 0, "replicas": [1], "log_dirs": ["any", "/d"]}]}', "2 log"),
    ],
)
def test_what_is_no_plan_is_refused_with_the_reason(text, reason):
    with pytest.raises(ConfigError, match=reason):
        plan_of(text)


def test_the_disks_of_a_plan_are_those_that_it_names():
    each = {"topic": "t", "partition": 3, "replicas": [1, 0, 2], "log_dirs": ["/a", "any", "/b"]}
    other = {"topic": "u", "partition": 0, "replicas": [1]}
    assert disks_of(json.dumps({"partitions": [each, other]})) == {("t", 3, 1): "/a", ("t", 3, 2): "/b"}


def test_a_partition_that_is_named_twice_is_refused():
    each = {"topic": "t", "partition": 0, "replicas": [1]}
    with pytest.raises(ConfigError, match="t-0 twice"):
        plan_of(json.dumps({"partitions": [each, each]}))


def test_topics_and_brokers_are_read_or_refused():
    assert topics_of('{"topics": [{"topic": "a"}, {"topic": "b"}], "version": 1}') == ["a", "b"]
    assert brokers_of("3, 1") == [3, 1]
    for refused in (lambda: topics_of("{}"), lambda: brokers_of("1,x"), lambda: brokers_of("1,1")):
        with pytest.raises(ConfigError):
            refused()


def test_spreading_is_even_and_keeps_replication_factors():
    current = {partition(number): (0, 1) for number in range(6)} | {partition(0, "u"): (0,)}
    plan = spread(current, {0: None, 1: None, 2: None})
    assert {each: len(brokers) for each, brokers in plan.items()} == {each: len(b) for each, b in current.items()}
    leaders = [brokers[0] for each, brokers in plan.items() if each.topic == "t"]
    assert sorted(leaders) == [0, 0, 1, 1, 2, 2]


def test_spreading_over_too_few_brokers_is_refused():
    with pytest.raises(InvalidReplicationFactor):
        spread({partition(0): (0, 1, 2)}, {0: None, 1: None})


def test_a_broker_is_emptied_onto_those_that_hold_least_and_nothing_else_moves():
    current = {partition(0): (0, 1), partition(1): (1, 0), partition(2): (1, 2), partition(3): (0, 2)}
    plan = without(current, 0, dict.fromkeys(range(4)))
    assert plan == {partition(0): (3, 1), partition(1): (1, 3), partition(3): (3, 2)}


def test_another_rack_is_preferred_to_an_emptier_broker():
    racks = {0: "a", 1: "b", 2: "a", 3: "b"}
    current = {partition(0): (0, 1), partition(1): (2, 3), partition(2): (2, 1)}
    assert without(current, 0, racks) == {partition(0): (2, 1)}, "3 holds less, but in the rack of 1"


def test_emptying_is_refused_where_nobody_else_is_left():
    with pytest.raises(InvalidReplicationFactor, match="t-0 has 3 replicas and there are 2 other brokers"):
        without({partition(0): (0, 1, 2)}, 0, dict.fromkeys(range(3)))


def held(plan, sizes, brokers):
    return {broker: sum(sizes[key] for key, replicas in plan.items() if broker in replicas) for broker in brokers}


def test_a_new_broker_gets_its_share_and_nothing_moves_between_the_others():
    current = {partition(number): ((0, 1, 2)[number % 3], (0, 1, 2)[(number + 1) % 3]) for number in range(24)}
    sizes = dict.fromkeys(current, 1_000_000)
    changes = balanced(current, sizes, dict.fromkeys(range(4)))
    after = current | changes
    assert all(abs(size - 12_000_000) <= 1_200_000 for size in held(after, sizes, range(4)).values())
    arrived = [set(after[key]) - set(current[key]) for key in changes]
    assert all(each <= {3} for each in arrived), "a replica moved between brokers that were there"
    leads = [sum(replicas[0] == broker for replicas in after.values()) for broker in range(4)]
    assert max(leads) - min(leads) <= 1, leads


def test_what_is_balanced_stays_as_it_is():
    current = {partition(number): (number % 3, (number + 1) % 3) for number in range(9)}
    assert balanced(current, dict.fromkeys(current, 5), dict.fromkeys(range(3))) == {}


def test_bytes_count_and_not_replicas():
    current = {partition(0): (0,), partition(1): (0,), partition(2): (1,), partition(3): (1,), partition(4): (1,)}
    sizes = {partition(0): 600, partition(1): 500, partition(2): 100, partition(3): 0, partition(4): 0}
    after = current | balanced(current, sizes, {0: None, 1: None})
    assert held(after, sizes, (0, 1)) == {0: 600, 1: 600}


def test_balancing_keeps_replicas_in_different_racks():
    racks = {0: "a", 1: "b", 2: "a", 3: "b"}
    current = {partition(number): (0, 1) for number in range(8)}
    sizes = dict.fromkeys(current, 100)
    after = current | balanced(current, sizes, racks)
    assert all({racks[broker] for broker in replicas} == {"a", "b"} for replicas in after.values())
    assert set(held(after, sizes, racks).values()) == {400}


@given(st.data())
def test_balancing_keeps_factors_and_makes_nothing_worse(data):
    brokers = list(range(data.draw(st.integers(1, 5))))
    current, sizes = {}, {}
    for number in range(data.draw(st.integers(0, 12))):
        factor = data.draw(st.integers(1, len(brokers)))
        current[partition(number)] = data.draw(st.sampled_from(list(permutations(brokers, factor))))
        sizes[partition(number)] = data.draw(st.integers(0, 1_000))
    after = current | balanced(current, sizes, dict.fromkeys(brokers))
    assert all(len(set(replicas)) == len(current[key]) for key, replicas in after.items())
    before_sizes, after_sizes = held(current, sizes, brokers).values(), held(after, sizes, brokers).values()
    slack = len(current)  # an empty replica counts as a byte
    assert max(after_sizes) - min(after_sizes) <= max(before_sizes) - min(before_sizes) + slack
