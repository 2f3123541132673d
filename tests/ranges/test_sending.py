"""How much of a write's task is on its way at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import pytest

from raylog.client.config import ProducerConfig
from raylog.client.links.address import ClusterAddress
from raylog.ranges import sending
from raylog.types import Endpoint

pytestmark = pytest.mark.spark

ADDRESS = ClusterAddress("c", "raylog", "cluster-1", (Endpoint("127.0.0.1", 1),), b"")


@pytest.mark.parametrize(
    ("given", "buffer_memory"),
    [
        ({}, 8 << 20),
        ({"batch.size": "4194304"}, 32 << 20),
        ({"batch_size": 1000}, 8 << 20),
        ({"buffer.memory": "1000000"}, 1_000_000),
        ({"buffer_memory": 64 << 20}, 64 << 20),
    ],
)
def test_a_task_holds_some_batches_that_are_not_acknowledged_or_what_the_user_says(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], buffer_memory: int
) -> None:
    made: list[ProducerConfig] = []

    class Recording:
        def __init__(self, address: ClusterAddress, config: Mapping[str, Any], /, **options: Any) -> None:
            made.append(ProducerConfig.parse(config, options))

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr(sending, "Producer", Recording)
    assert sending.send_tables(ADDRESS, [], "t", given) == 0
    assert [config.buffer_memory for config in made] == [buffer_memory]
