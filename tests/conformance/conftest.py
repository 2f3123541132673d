"""A cluster in this process for the tests of one module, and what all clients' tests ask of it."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from raw_requests import eventually, isr_is_whole

from raylog.client.admin.admin import NewTopic
from raylog.client.sync import AdminClient
from raylog.testing.in_process import InProcessCluster, cluster

_numbers = itertools.count()


class _Sockets:
    """The module ``socket`` as the client sees it; remembers what was opened."""

    def __init__(self) -> None:
        self.opened: list[socket.socket] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(socket, name)

    def socket(self, *arguments: Any) -> socket.socket:
        self.opened.append(socket.socket(*arguments))
        return self.opened[-1]


@pytest.fixture
def closed_sockets(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """kafka-python leaves some of its sockets to the garbage collector, which warns of them."""
    seen = _Sockets()
    monkeypatch.setattr("kafka.net.inet.socket", seen)
    yield
    for each in seen.opened:
        each.close()


@pytest.fixture(scope="module")
def running() -> Iterator[InProcessCluster]:
    """Three brokers, each with a listener of its own."""
    with cluster(brokers=3) as found:
        yield found


@pytest.fixture(scope="module")
def bootstrap(running: InProcessCluster) -> str:
    """What clients call ``bootstrap.servers``."""
    return running.bootstrap_servers()


@pytest.fixture
def new_topic(running: InProcessCluster) -> Callable[..., str]:
    """Makes a topic with three replicas that are all in sync, and gives its name."""

    def make(partitions: int = 1, **configs: str) -> str:
        name = f"topic-{next(_numbers)}"
        with AdminClient(running.address) as admin:
            settings = {key.replace("_", "."): value for key, value in configs.items()}
            admin.create_topics([NewTopic(name, partitions, 3, configs=settings)])
        eventually(lambda: isr_is_whole(running, name, partitions), f"all replicas of {name} in sync")
        return name

    return make
