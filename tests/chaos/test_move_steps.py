"""The old host, the new host and the active controller, killed at each step of a replica's move, under a load with acks=all.

The replica ends in one place, and nothing acknowledged is lost, there twice or out of order, whether three replicas or one hold it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
from move_steps import STEPS, STEPS_ALONE, VICTIMS, kill_at
from process_faults import Target
from ray_clusters import eventually

from raylog import NewTopic
from raylog.testing.verifiable_load import VerifiableLoad, audit_of

pytestmark = pytest.mark.chaos

UnderLoad = Callable[[], AbstractContextManager[VerifiableLoad]]
LONE = "lone"
FEW = (("closed", "new host"), ("opened", "controller"), ("told to release", "old host"))
"""One each for the CI lane; ``make test-long`` has them all."""


@pytest.fixture(scope="module")
def lone(target: Target) -> str:
    """A topic whose partitions have one replica each."""
    with target.nodes.cluster.admin() as admin:
        admin.create_topics([NewTopic(LONE, 2, 1, configs={"retention.ms": "-1"})])
    return LONE


@contextmanager
def load_on(target: Target, topic: str) -> Iterator[VerifiableLoad]:
    """A load on partitions of one replica, and its audit."""
    address = target.nodes.cluster.address
    with VerifiableLoad(address, topic, partitions=2, records_per_second=2_000) as load:
        yield load
        goes_on(load)
    print(load.words())
    assert not load.ledger.failed, load.words()
    findings = audit_of(load, address)
    print(findings.words())
    assert findings.holds, findings.words()


def goes_on(load: VerifiableLoad) -> None:
    goal = load.ledger.acknowledged + 1_000
    eventually(lambda: load.ledger.acknowledged >= goal, f"{goal} acknowledged records, {load.ledger.acknowledged} are")


def test_a_process_that_dies_at_a_step_of_a_move_costs_nothing(target: Target, under_load: UnderLoad) -> None:
    with under_load() as load:
        for step, victim in (*FEW, ("returning", "controller")):
            goes_on(load)
            kill_at(target, target.topic, step, victim)


def test_a_process_that_dies_at_a_step_of_a_lone_replicas_move_costs_nothing(target: Target, lone: str) -> None:
    with load_on(target, lone) as load:
        for step, victim in FEW:
            goes_on(load)
            kill_at(target, lone, step, victim)


@pytest.mark.slow
@pytest.mark.parametrize("victim", VICTIMS)
def test_each_step_of_a_move(target: Target, under_load: UnderLoad, victim: str) -> None:
    with under_load() as load:
        for step in STEPS:
            goes_on(load)
            kill_at(target, target.topic, step, victim)


@pytest.mark.slow
@pytest.mark.parametrize("victim", VICTIMS)
def test_each_step_of_a_lone_replicas_move(target: Target, lone: str, victim: str) -> None:
    with load_on(target, lone) as load:
        for step in STEPS_ALONE:
            goes_on(load)
            kill_at(target, lone, step, victim)
