"""Topics that were asked for before the healing, and come after it, bring clients that work on until somebody tells them, too."""

from __future__ import annotations

import uuid

import pytest

from raylog.simulator.hosted_transactions import TransactionSimulation
from raylog.simulator.simulation import Simulation
from raylog.types import TopicIdPartition

pytestmark = pytest.mark.sim
LATE = TopicIdPartition(uuid.UUID(int=1), 0)


def test_producers_of_a_late_topic_stop_as_the_others_have() -> None:
    simulation = Simulation(1)
    simulation.administration._follow("late", LATE, {})
    assert simulation.producers and all(each.producing for each in simulation.producers)
    assert simulation._unfinished() is not None, "they have one batch more"
    assert not any(each.producing for each in simulation.producers)


def test_transactions_that_begin_late_stop_as_others_have() -> None:
    simulation = TransactionSimulation(1)
    simulation.transactions.stop()
    simulation.administration._follow("late", LATE, {})
    producers = simulation.transactions.producers
    assert producers and all(each.is_over for each in producers)
