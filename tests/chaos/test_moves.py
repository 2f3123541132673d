"""Replicas move between the actors of their disks under a load that knows what was acknowledged, and processes die amid that.

Nothing acknowledged is lost, there twice or out of order, whether three replicas or one hold it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
from process_faults import Target, is_moved, kill_amid_move, move_follower, move_leader
from ray_clusters import eventually

from raylog import NewTopic
from raylog.testing.verifiable_load import VerifiableLoad, audit_of

pytestmark = pytest.mark.chaos

UnderLoad = Callable[[], AbstractContextManager[VerifiableLoad]]
ROUNDS = 6
VICTIMS = ("source", "to", "controller")


def goes_on(load: VerifiableLoad, records: int) -> None:
    goal = load.ledger.acknowledged + records
    eventually(lambda: load.ledger.acknowledged >= goal, f"{goal} acknowledged records, {load.ledger.acknowledged} are")


def test_leaders_and_followers_that_move_cost_nothing_that_was_acknowledged(
    target: Target, under_load: UnderLoad
) -> None:
    with under_load() as load:
        for round in range(ROUNDS):
            goes_on(load, 2_000)
            strike = move_leader if round % 2 else move_follower
            strike(target, lambda is_over: eventually(is_over, "the replica is at its new actor, in sync"))


@pytest.mark.parametrize("victim", VICTIMS)
def test_a_process_that_dies_amid_a_move_costs_nothing_that_was_acknowledged(
    target: Target, under_load: UnderLoad, victim: str
) -> None:
    with under_load() as load:
        for _ in range(3):
            goes_on(load, 2_000)
            moved = kill_amid_move(target, target.topic, victim)
            eventually(lambda moved=moved: is_moved(target, target.topic, moved), f"{moved} is over")  # type: ignore[misc]
            eventually(target.is_whole, "all replicas in sync")


def test_a_lone_replica_moves_and_its_processes_die_and_nothing_is_lost(target: Target) -> None:
    topic = NewTopic("lone", 3, 1, configs={"retention.ms": "-1"})
    with target.nodes.cluster.admin() as admin:
        admin.create_topics([topic])
    address = target.nodes.cluster.address
    with VerifiableLoad(address, "lone", partitions=3, records_per_second=2_000) as load:
        for victim in (None, "source", None, "to", "controller"):
            goes_on(load, 1_000)
            moved = kill_amid_move(target, "lone", victim or "nobody")
            eventually(lambda moved=moved: is_moved(target, "lone", moved), f"{moved} is over")  # type: ignore[misc]
        goes_on(load, 1_000)
    print(load.words())
    assert not load.ledger.failed, load.words()
    findings = audit_of(load, address)
    print(findings.words())
    assert findings.holds, findings.words()
