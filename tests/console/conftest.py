"""A console on a real socket, in front of a cluster in this process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from raylog.testing import Kafka, broker


@pytest.fixture(scope="module")
def kafka() -> Iterator[Kafka]:
    with broker(topics={"orders": 3, "payments": 1}, brokers=2) as running:
        yield running


@pytest.fixture(scope="module")
def inside(kafka: Kafka) -> Iterator[Any]:
    """The console beside the cluster, as with --folder."""
    from console_server import serving

    from raylog.cluster import Cluster

    with serving(Cluster(kafka.address)) as browser:
        yield browser


@pytest.fixture(scope="module")
def outside(kafka: Kafka) -> Iterator[Any]:
    """The console at the listeners, as with --bootstrap-server."""
    from console_server import serving

    import raylog

    with serving(raylog.connect(bootstrap_servers=kafka.bootstrap)) as browser:
        yield browser
