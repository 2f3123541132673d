"""How many connections one address may have at a listener, and how many that have not authenticated."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from outside import metadata, produce, request
from raw_requests import batch, eventually, isr_is_whole
from sasl_client import SaslClient

from raylog.client.admin.admin import NewTopic
from raylog.client.sync import AdminClient
from raylog.testing.in_process import InProcessCluster, cluster
from raylog.wire.limits import LISTENER_LIMITS
from raylog.wire.listeners import listeners_of

pytestmark = pytest.mark.core

PER_IP = "max.connections.per.ip"
Open = Callable[..., SaslClient]


@pytest.fixture(scope="module")
def running() -> Iterator[InProcessCluster]:
    with cluster(brokers=1, listeners=listeners_of("SASL_PLAINTEXT://0.0.0.0:0,PLAINTEXT://127.0.0.1:0")) as found:
        with AdminClient(found.address) as admin:
            admin.set_user("alice", "a secret")
            admin.create_topics([NewTopic("t", 1, 1)])
        eventually(lambda: isr_is_whole(found, "t", 1), "its leader")
        eventually(lambda: len(router(found)._sasl._credentials()) == 2, "the broker knows the user")
        yield found


def router(running: InProcessCluster) -> Any:
    return running.launcher.servers[0].router


@pytest.fixture
def client(running: InProcessCluster) -> Iterator[Open]:
    """Of one of the listeners; ``source`` is the client's address."""
    with ExitStack() as stack:

        def open_(listener: str = "PLAINTEXT", source: str = "127.0.0.1") -> SaslClient:
            (port,) = (each for each in router(running).server.ports if each.listener == listener)
            found = stack.enter_context(SaslClient(port.endpoint))
            if source != "127.0.0.1":
                found.socket.close()
                found.socket = stack.enter_context(
                    socket.create_connection((source, port.endpoint.port), 60, source_address=(source, 0))
                )
            return found

        yield open_


@pytest.fixture
def limits(running: InProcessCluster) -> Iterator[Callable[[int | None], None]]:
    """Sets ``max.connections.per.ip``, or takes it back."""

    def set_(limit: int | None) -> None:
        with AdminClient(running.address) as admin:
            if limit is None:
                admin.alter_configs(broker="all", delete=[PER_IP])
            else:
                admin.alter_configs(broker="all", set={PER_IP: limit})
        wanted = 2**31 - 1 if limit is None else limit
        eventually(lambda: router(running).server.limits.connections_of_host_max == wanted, "the limit")

    eventually(lambda: not router(running).server.connections_of_host, "earlier connections are gone")
    yield set_
    set_(None)


def is_served(client: SaslClient) -> bool:
    return len(client.ask(metadata()).brokers) == 1


def test_one_address_has_so_many_connections_and_others_have_theirs(
    running: InProcessCluster, client: Open, limits: Callable[[int | None], None]
) -> None:
    first = [client("SASL_PLAINTEXT") for _ in range(2)]
    for each in first:
        assert each.ask(request(18, 0)).error_code is ErrorCode.none
    limits(2)
    assert client("SASL_PLAINTEXT").is_closed() and client("PLAINTEXT").is_closed(), "of all listeners together"
    other = client("SASL_PLAINTEXT", "127.0.0.2")
    assert other.ask(request(18, 0)).error_code is ErrorCode.none
    assert router(running).server.connections_of_host == {"127.0.0.1": 2, "127.0.0.2": 1}
    first[0].socket.close()
    eventually(lambda: router(running).server.connections_of_host["127.0.0.1"] == 1, "one is gone")
    assert is_served(client())
    limits(None)
    assert is_served(client())


def test_a_connection_that_has_moved_counts_as_before(
    running: InProcessCluster, client: Open, limits: Callable[[int | None], None]
) -> None:
    mover = client()
    server = router(running).server

    def moves() -> bool:
        mover.ask(produce("t", {0: batch(b"x")}))
        return bool(server.connections_elsewhere == 1)

    eventually(moves, "it has moved to the leader's process")
    assert server.connections_of_host == {"127.0.0.1": 1}
    limits(1)
    assert client().is_closed()
    assert is_served(mover), "it comes back"
    eventually(lambda: server.connections_elsewhere == 0 and server.connections_of_host == {"127.0.0.1": 1}, "back")
    mover.socket.close()
    eventually(lambda: not server.connections_of_host, "nobody is left")


def test_one_address_has_so_many_connections_that_have_not_authenticated(
    running: InProcessCluster, client: Open, limits: Callable[[int | None], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = router(running).server
    monkeypatch.setattr(server, "limits", replace(server.limits, unauthenticated_of_host_max=2))
    assert LISTENER_LIMITS.unauthenticated_of_host_max == 1_000
    first, second = client("SASL_PLAINTEXT"), client("SASL_PLAINTEXT")
    for each in (first, second):
        assert each.ask(request(18, 0)).error_code is ErrorCode.none
    assert client("SASL_PLAINTEXT").is_closed()
    assert is_served(client("PLAINTEXT")), "nobody authenticates there"
    assert client("SASL_PLAINTEXT", "127.0.0.2").ask(request(18, 0)).error_code is ErrorCode.none
    assert first.log_in("alice", "a secret").error_code is ErrorCode.none
    third = client("SASL_PLAINTEXT")
    assert third.ask(request(18, 0)).error_code is ErrorCode.none
    assert server.acceptor.unauthenticated_of_host == {"127.0.0.1": 2, "127.0.0.2": 1}
    second.socket.close()
    eventually(lambda: server.acceptor.unauthenticated_of_host["127.0.0.1"] == 1, "one is gone")
    assert client("SASL_PLAINTEXT").ask(request(18, 0)).error_code is ErrorCode.none
    first.socket.close()
    eventually(lambda: server.connections_of_host["127.0.0.1"] == 3, "who has authenticated is gone")
    assert server.acceptor.unauthenticated_of_host["127.0.0.1"] == 2
