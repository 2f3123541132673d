"""A cluster whose metrics are scraped."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest
from first_leaders import preferred_leaders_are_awaited
from outside import Client, produce
from raw_requests import batch, eventually, isr_is_whole
from scraping import open_metrics

from raylog.client.admin.admin import NewTopic
from raylog.client.sync import AdminClient
from raylog.testing.in_process import InProcessCluster, cluster
from raylog.types import Endpoint

_numbers = itertools.count()


@pytest.fixture(scope="module")
def running() -> Iterator[InProcessCluster]:
    with preferred_leaders_are_awaited(), cluster(brokers=2) as found:
        yield found


@pytest.fixture(scope="module")
def at(running: InProcessCluster) -> dict[int, Endpoint]:
    """Where each broker shows its metrics."""
    return open_metrics(running, 2)


@pytest.fixture
def client(running: InProcessCluster) -> Iterator[Callable[..., Client]]:
    """Opens connections to brokers' listeners, which are closed at the end."""
    opened: list[Client] = []

    def open_(broker: int = 0) -> Client:
        opened.append(Client(running, broker))
        return opened[-1]

    yield open_
    for each in opened:
        each.close()


@pytest.fixture
def new_topic(running: InProcessCluster) -> Callable[..., str]:
    """A topic whose partitions have these brokers, the leader first; its name."""

    def make(*assignment: tuple[int, ...], **configs: str) -> str:
        name = f"topic-{next(_numbers)}"
        settings = {key.replace("_", "."): value for key, value in configs.items()}
        with AdminClient(running.address) as admin:
            admin.create_topics([NewTopic(name, replica_assignment=dict(enumerate(assignment)), configs=settings)])
        eventually(lambda: isr_is_whole(running, name, len(assignment)), f"all replicas of {name} in sync")
        return name

    return make


@pytest.fixture
def throttled(running: InProcessCluster) -> Callable[[Client, str], float]:
    """Has a client exceed a quota, once; the milliseconds that it is told to wait."""

    def exceed(client: Client, topic: str) -> float:
        with AdminClient(running.address) as admin:
            admin.alter_quotas({"user": None}, {"producer_byte_rate": 10_000})
            try:
                return eventually(  # type: ignore[no-any-return]
                    lambda: client.ask(produce(topic, {0: batch(bytes(10_000))})).throttle_time.total_seconds() * 1_000,
                    "the client to be throttled",
                )
            finally:
                admin.alter_quotas({"user": None}, {"producer_byte_rate": None})

    return exceed
