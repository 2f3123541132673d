"""A scripted cluster per test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from scripted_cluster import ScriptedCluster


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
