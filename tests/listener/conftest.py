"""Clusters whose listeners are talked to from outside."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterator

import pytest
from first_leaders import preferred_leaders_are_awaited
from outside import Client
from raw_requests import eventually, isr_is_whole

from raylog.client.admin.admin import NewTopic
from raylog.client.sync import AdminClient
from raylog.testing.in_process import InProcessCluster, cluster

_numbers = itertools.count()


@pytest.fixture(scope="module")
def running() -> Iterator[InProcessCluster]:
    with preferred_leaders_are_awaited(), cluster(brokers=3) as found:
        yield found


@pytest.fixture
def client(running: InProcessCluster) -> Iterator[Callable[[int], Client]]:
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
    """A topic whose partitions have these brokers, the leader first; its name.

    Each replica has an actor of its own, so that a broker's requests have several owners.
    """

    def make(*assignment: tuple[int, ...], **configs: str) -> str:
        name = f"topic-{next(_numbers)}"
        with AdminClient(running.address) as admin:
            settings = {"replicas.per.actor": "1"} | {key.replace("_", "."): value for key, value in configs.items()}
            admin.create_topics([NewTopic(name, replica_assignment=dict(enumerate(assignment)), configs=settings)])
        eventually(lambda: isr_is_whole(running, name, len(assignment)), f"all replicas of {name} in sync")
        return name

    return make


@pytest.fixture
def topic_id(running: InProcessCluster) -> Callable[[str], uuid.UUID]:
    return lambda name: running.controller._controller.image.topic_ids[name]
