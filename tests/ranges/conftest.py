"""Scripted clusters, as the clients' tests have them, and Kafka in the test's process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from scripted_cluster import ScriptedCluster

import raylog.testing
from raylog.testing.kafka import Kafka


@pytest.fixture
def scripted() -> Iterator[Callable[..., ScriptedCluster]]:
    """Makes scripted clusters that end with the test."""
    made: list[ScriptedCluster] = []

    def make(**options: Any) -> ScriptedCluster:
        made.append(ScriptedCluster(**options))
        return made[-1]

    yield make
    for cluster in made:
        cluster.close()


@pytest.fixture(scope="module")
def kafka() -> Iterator[Kafka]:
    with raylog.testing.broker(topics={"t": 1}, brokers=1) as found:
        yield found
