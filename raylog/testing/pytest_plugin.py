"""The fixture ``raylog_broker``: Kafka inside the test's process, for any project that has raylog
installed.

::

    @pytest.mark.raylog_broker(topics={"orders": 3}, brokers=3)
    def test_orders_are_stored(raylog_broker):
        serve(bootstrap=raylog_broker.bootstrap)

The marker takes the arguments of ``raylog.testing.broker``. pytest imports this module in every
run, whether anybody wants it or not, so it imports nothing of raylog's before the fixture is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from raylog.testing.kafka import Kafka

MARKER = "raylog_broker(topics=(), brokers=1, ..., security='PLAINTEXT', users=()): what raylog.testing.broker gives this test"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER)


@pytest.fixture
def raylog_broker(request: pytest.FixtureRequest) -> Iterator[Kafka]:
    """Kafka in this process, made anew for each test; ``raylog_broker.bootstrap`` is where clients
    connect.
    """
    from raylog.testing.kafka import broker

    options: dict[str, object] = {}
    for marker in reversed(list(request.node.iter_markers("raylog_broker"))):  # the nearest one counts
        options |= marker.kwargs
    with broker(**options) as kafka:  # type: ignore[arg-type]
        yield kafka
