"""The planner against Kafka's published assignments and against the promises of its docstring."""

from __future__ import annotations

import uuid
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from raylog.errors import kafka_error
from raylog.placement.planner import CandidateBroker, growth_start, plan_replicas


def disk(broker: int, index: int = 0) -> uuid.UUID:
    return uuid.UUID(int=broker << 8 | index)


def brokers_of(racks: list[str | None], disks: int = 1) -> list[CandidateBroker]:
    return [
        CandidateBroker(broker, rack, tuple(disk(broker, index) for index in range(disks)))
        for broker, rack in enumerate(racks)
    ]


def broker_ids(plan: tuple[tuple[tuple[int, uuid.UUID], ...], ...]) -> list[tuple[int, ...]]:
    return [tuple(broker for broker, _ in replicas) for replicas in plan]


def test_five_brokers_without_racks_are_assigned_as_in_kafkas_own_table() -> None:
    # AdminUtils' scaladoc: 10 partitions, 5 brokers, replication factor 3.
    plan = plan_replicas(brokers_of([None] * 5), partitions=10, replication_factor=3, first_broker=0, shift=0)
    assert broker_ids(plan) == [
        (0, 1, 2), (1, 2, 3), (2, 3, 4), (3, 4, 0), (4, 0, 1),
        (0, 2, 3), (1, 3, 4), (2, 4, 0), (3, 0, 1), (4, 1, 2),
    ]  # fmt: skip


def test_six_brokers_on_three_racks_are_assigned_as_in_kafkas_own_table() -> None:
    # AdminUtils' scaladoc: brokers 0..5 on rack1 rack3 rack3 rack2 rack2 rack1, interleaved to 0 3 1 5 4 2.
    racks: list[str | None] = ["rack1", "rack3", "rack3", "rack2", "rack2", "rack1"]
    plan = plan_replicas(brokers_of(racks), partitions=12, replication_factor=3, first_broker=0, shift=0)
    assert broker_ids(plan) == [
        (0, 3, 1), (3, 1, 5), (1, 5, 4), (5, 4, 2), (4, 2, 0), (2, 0, 3),
        (0, 4, 2), (3, 2, 0), (1, 0, 3), (5, 3, 1), (4, 1, 5), (2, 5, 4),
    ]  # fmt: skip


def test_growth_goes_on_where_creation_ended() -> None:
    brokers = brokers_of([None] * 5)
    whole = plan_replicas(brokers, partitions=5, replication_factor=3, first_broker=2, shift=2)
    start = growth_start(brokers, whole[0][0][0])
    grown = plan_replicas(
        brokers, partitions=3, replication_factor=3, first_broker=start, shift=start, first_partition=2
    )
    assert start == 2
    assert broker_ids(grown) == broker_ids(whole[2:])


def test_growth_starts_at_the_first_broker_when_the_old_leader_and_all_above_are_gone() -> None:
    assert growth_start(brokers_of([None] * 3), 7) == 0


def test_the_emptiest_disk_of_the_broker_is_taken() -> None:
    brokers = brokers_of([None], disks=3)
    plan = plan_replicas(
        brokers, partitions=4, replication_factor=1, replicas_on_disk={disk(0, 0): 2, disk(0, 1): 1, disk(0, 2): 2}
    )
    assert [replicas[0][1] for replicas in plan] == [disk(0, 1), disk(0, 0), disk(0, 1), disk(0, 2)]


def test_racks_are_ignored_unless_every_broker_has_one() -> None:
    mixed = plan_replicas(brokers_of(["a", None, "a", "b"]), partitions=8, replication_factor=2)
    plain = plan_replicas(brokers_of([None] * 4), partitions=8, replication_factor=2)
    assert broker_ids(mixed) == broker_ids(plain)


@pytest.mark.parametrize(
    ("partitions", "replication_factor", "code", "words"),
    [
        (1, 4, ErrorCode.invalid_replication_factor, "replication factor 4 is larger than .* brokers, 3"),
        (1, 0, ErrorCode.invalid_replication_factor, "at least 1, not 0"),
        (0, 1, ErrorCode.invalid_partitions, "at least one partition, not 0"),
    ],
)
def test_impossible_wishes_are_refused_with_their_numbers(
    partitions: int, replication_factor: int, code: ErrorCode, words: str
) -> None:
    with pytest.raises(kafka_error(code), match=words):
        plan_replicas(brokers_of([None] * 3), partitions=partitions, replication_factor=replication_factor)


def test_without_a_broker_nothing_can_be_placed() -> None:
    with pytest.raises(kafka_error(ErrorCode.invalid_replication_factor), match="brokers, 0"):
        plan_replicas([], partitions=1, replication_factor=1)


clusters = st.lists(st.sampled_from(["a", "b", "c", "d"]), min_size=1, max_size=9) | st.lists(
    st.none(), min_size=1, max_size=9
)


@given(racks=clusters, disks=st.integers(1, 3), data=st.data())
def test_every_plan_keeps_the_promises(racks: list[str | None], disks: int, data: st.DataObject) -> None:
    brokers = brokers_of(racks, disks)
    replication_factor = data.draw(st.integers(1, len(brokers)))
    partitions = data.draw(st.integers(1, 40))
    plan = plan_replicas(
        brokers,
        partitions=partitions,
        replication_factor=replication_factor,
        first_broker=data.draw(st.integers(0, 20)),
        shift=data.draw(st.integers(0, 20)),
    )
    assert len(plan) == partitions
    for replicas in plan:
        chosen = [broker for broker, _ in replicas]
        assert len(set(chosen)) == replication_factor
        assert len({racks[broker] for broker in chosen}) == (
            1 if racks[0] is None else min(len(set(racks)), replication_factor)
        )
        assert all(directory in brokers[broker].directory_ids for broker, directory in replicas)
    leaders = Counter(replicas[0][0] for replicas in plan)
    counts = [leaders[broker.broker_id] for broker in brokers]
    assert max(counts) - min(counts) <= 1
    on_disk = Counter(directory for replicas in plan for _, directory in replicas)
    for broker in brokers:
        loads = [on_disk[directory] for directory in broker.directory_ids]
        assert max(loads) - min(loads) <= 1


@given(st.integers(2, 7), st.integers(1, 4), st.integers(0, 50))
def test_whole_rounds_load_every_broker_alike(count: int, rounds: int, start: int) -> None:
    replication_factor = min(3, count)
    plan = plan_replicas(
        brokers_of([None] * count),
        partitions=count * rounds,
        replication_factor=replication_factor,
        first_broker=start,
        shift=start,
    )
    load = Counter(broker for replicas in plan for broker, _ in replicas)
    assert set(load.values()) == {rounds * replication_factor}
