"""Sessions of users at a listener: their end, authenticating again, users that go, and how many guesses there are."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from kio.schema.errors import ErrorCode
from outside import fetch, listener, metadata, produce, request
from raw_requests import batch, eventually, isr_is_whole
from sasl_client import SaslClient, Scram

from raylog.client.admin.admin import NewTopic
from raylog.client.sync import AdminClient
from raylog.testing.in_process import InProcessCluster, cluster
from raylog.wire.listeners import listeners_of
from raylog.wire.sasl import FAILURES_OF_HOST_MAX, SaslAuthenticator

SHA_256, SHA_512 = "SCRAM-SHA-256", "SCRAM-SHA-512"
PASSWORD = "a secret"
Open = Callable[[], SaslClient]
Configure = Callable[..., None]
NAMES = {
    "reauth_ms": "connections.max.reauth.ms",
    "failure_delay_ms": "connection.failed.authentication.delay.ms",
}


@pytest.fixture(scope="module")
def running() -> Iterator[InProcessCluster]:
    with cluster(brokers=1, listeners=listeners_of("SASL_PLAINTEXT://127.0.0.1:0")) as found:
        yield found


@pytest.fixture
def admin(running: InProcessCluster) -> Iterator[AdminClient]:
    with AdminClient(running.address) as found:
        for user in ("alice", "bob"):
            found.set_user(user, PASSWORD)
        eventually(lambda: len(authenticator(running)._credentials()) == 4, "the broker knows the users")
        yield found


@pytest.fixture
def configure(running: InProcessCluster, admin: AdminClient) -> Iterator[Configure]:
    """Sets configs, and waits until the listener goes by them."""

    def set_(**values: int) -> None:
        admin.alter_configs(broker="all", set={NAMES[name]: value for name, value in values.items()})
        sasl = authenticator(running)
        eventually(lambda: all(getattr(sasl, name) == value for name, value in values.items()), "configured")

    yield set_
    set_(reauth_ms=0, failure_delay_ms=100)


@pytest.fixture
def client(running: InProcessCluster) -> Iterator[Open]:
    opened: list[SaslClient] = []

    def open_() -> SaslClient:
        opened.append(SaslClient(listener(running, 0)))
        return opened[-1]

    yield open_
    for each in opened:
        each.socket.close()


def authenticator(running: InProcessCluster) -> SaslAuthenticator:
    found: SaslAuthenticator = running.launcher.servers[0].router._sasl
    return found


def is_served(client: SaslClient) -> bool:
    return len(client.ask(metadata()).brokers) == 1


def test_a_session_has_no_end_unless_one_is_configured(client: Open, admin: AdminClient) -> None:
    connection = client()
    assert connection.log_in("alice", PASSWORD).session_lifetime.total_seconds() == 0
    assert connection.handshake(SHA_256).error_code is ErrorCode.illegal_sasl_state
    late = connection.token(b"n,,n=alice,r=x")
    assert late.error_code is ErrorCode.illegal_sasl_state and "after successful" in late.error_message
    assert is_served(connection)


def test_a_session_that_has_ended_serves_nothing_but_authenticating_again(
    client: Open, configure: Configure, running: InProcessCluster
) -> None:
    configure(reauth_ms=1)
    over, renewed = client(), client()
    for connection in (over, renewed):
        assert connection.log_in("alice", PASSWORD).session_lifetime.total_seconds() == 0.001
    sessions = [
        each for each in running.launcher.servers[0].router.server.connections if each.principal == "User:alice"
    ]
    eventually(lambda: all(each._expires_at < running.loop.time() for each in sessions), "both sessions have ended")
    over.send(metadata())
    assert over.is_closed()
    configure(reauth_ms=3_600_000)
    assert renewed.log_in("alice", PASSWORD).session_lifetime.total_seconds() == 3_600
    assert is_served(renewed)


def test_a_session_is_renewed_as_the_same_user_by_the_same_mechanism(client: Open, configure: Configure) -> None:
    configure(reauth_ms=3_600_000)
    becoming_bob, switching, wrong = client(), client(), client()
    for connection in (becoming_bob, switching, wrong):
        connection.log_in("alice", PASSWORD)
    reply = becoming_bob.log_in("bob", PASSWORD)
    assert reply.error_code is ErrorCode.sasl_authentication_failed
    assert reply.error_message.startswith("Authentication failed during re-authentication")
    assert becoming_bob.is_closed()
    assert switching.handshake(SHA_512).error_code is ErrorCode.illegal_sasl_state
    assert switching.is_closed()
    assert wrong.log_in("alice", "wrong").error_code is ErrorCode.sasl_authentication_failed
    assert wrong.is_closed()


def test_nothing_else_is_served_while_a_session_is_renewed(client: Open, configure: Configure) -> None:
    configure(reauth_ms=3_600_000)
    connection = client()
    connection.log_in("alice", PASSWORD)
    connection.handshake(SHA_256)
    assert connection.ask(request(50, 0, users=None)).error_code is ErrorCode.illegal_sasl_state
    assert connection.is_closed()


def test_a_user_that_is_deleted_loses_the_connections_that_are_open(
    client: Open, admin: AdminClient, running: InProcessCluster
) -> None:
    alices, waiting, bobs, by_512 = client(), client(), client(), client()
    alices.log_in("alice", PASSWORD)
    waiting.log_in("alice", PASSWORD)
    bobs.log_in("bob", PASSWORD)
    by_512.log_in("alice", PASSWORD, SHA_512)
    halfway, scram = client(), Scram("alice", PASSWORD)
    halfway.handshake(SHA_256)
    final = scram.final(halfway.token(scram.first()).auth_bytes)
    admin.create_topics([NewTopic("waited-for", 1, 1)])
    waiting.send(fetch("waited-for", {0: 0}, max_wait_ms=60_000))
    admin.delete_user("alice", mechanisms=[SHA_256])
    assert alices.is_closed() and waiting.is_closed()
    assert halfway.token(final).error_code is ErrorCode.sasl_authentication_failed
    assert is_served(bobs) and is_served(by_512)
    assert set(authenticator(running)._connections) == {
        (user, mechanism, None)
        for user, mechanism in authenticator(running)._credentials()
        if (user, mechanism.sasl_name) in {("bob", SHA_256), ("alice", SHA_512)}
    }


def test_a_new_password_leaves_open_connections_alone_and_counts_from_then_on(
    client: Open, admin: AdminClient, running: InProcessCluster
) -> None:
    connection = client()
    connection.log_in("alice", PASSWORD)
    before = dict(authenticator(running)._credentials())
    admin.set_user("alice", "another", mechanisms=[SHA_256])
    eventually(lambda: authenticator(running)._credentials() != before, "the broker knows the new password")
    assert is_served(connection)
    assert client().log_in("alice", PASSWORD).error_code is ErrorCode.sasl_authentication_failed
    assert client().log_in("alice", "another").error_code is ErrorCode.none


def test_a_connection_of_a_user_stays_where_its_session_is_known(
    client: Open, admin: AdminClient, running: InProcessCluster
) -> None:
    admin.create_topics([NewTopic("stays", 1, 1)])
    eventually(lambda: isr_is_whole(running, "stays", 1), "a leader")
    connection = client()
    connection.log_in("alice", PASSWORD)
    for _ in range(20):
        connection.ask(produce("stays", {0: batch(b"x")}))
    assert running.launcher.servers[0].router.server.connections_elsewhere == 0
    assert is_served(connection)


def test_connections_that_have_ended_are_forgotten(client: Open, admin: AdminClient, running: InProcessCluster) -> None:
    connections = authenticator(running)._connections
    eventually(lambda: not connections, "those of other tests are forgotten")
    connection = client()
    connection.log_in("alice", PASSWORD)
    assert len(connections) == 1
    connection.socket.close()
    eventually(lambda: not connections, "it is forgotten")


def test_one_address_has_so_many_guesses_at_a_time(
    client: Open, configure: Configure, running: InProcessCluster
) -> None:
    configure(failure_delay_ms=3_600_000)
    guessing = []
    for _ in range(FAILURES_OF_HOST_MAX):
        connection = client()
        connection.handshake(SHA_256)
        connection.send(request(36, 2, auth_bytes=b"no SCRAM"))
        guessing.append(connection)
    failing = authenticator(running).failing
    eventually(lambda: failing.total() == FAILURES_OF_HOST_MAX, "all have failed")
    for each in guessing:  # hanging up does not give the guess back
        each.socket.close()
    one_more = client()
    one_more.send(request(17, 1, mechanism=SHA_256))
    assert one_more.is_closed()
    failing.clear()
    assert client().log_in("alice", PASSWORD).error_code is ErrorCode.none


def test_whoever_does_not_authenticate_in_time_is_sent_away(client: Open, running: InProcessCluster) -> None:
    from dataclasses import replace

    server = running.launcher.servers[0].router.server
    limits = server.limits
    silent, halfway = client(), client()
    halfway.handshake(SHA_256)
    halfway.token(Scram("alice", PASSWORD).first())
    try:
        server.limits = replace(limits, handshake_timeout_ms=1)
        assert silent.is_closed() and halfway.is_closed()
    finally:
        server.limits = limits
