"""SASL at a listener, byte for byte: who gets in, who does not, and what either is told."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from outside import listener, metadata, milliseconds, request
from raw_requests import eventually
from sasl_client import SaslClient, Scram

from raylog.client.sync import AdminClient
from raylog.kafka.context import RequestContext
from raylog.testing.in_process import InProcessCluster, cluster
from raylog.wire.listeners import listeners_of
from raylog.wire.sasl import BEFORE_BYTES_MAX

SHA_256, SHA_512, PLAIN = "SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"
USER, PASSWORD = "alice", "a secret"
ODD = 'a,b=c\n"ß" =2C\u00aa'  # nothing of it is normalised: SASLprep would turn ª into a
AUTHENTICATION_FAILED = "Authentication failed during authentication due to invalid credentials with SASL mechanism "
Open = Callable[[], SaslClient]


@pytest.fixture(scope="module")
def running() -> Iterator[InProcessCluster]:
    with cluster(brokers=1, listeners=listeners_of("SASL_PLAINTEXT://127.0.0.1:0")) as found:
        with AdminClient(found.address) as admin:
            admin.alter_configs(broker="all", set={"sasl.enabled.mechanisms": f"{SHA_256},{SHA_512},{PLAIN}"})
            for user in (USER, ODD):
                admin.set_user(user, PASSWORD)
            admin.set_user("only-512", PASSWORD, mechanisms=[SHA_512], iterations=8_192)
        server = found.launcher.servers[0].router._sasl
        eventually(lambda: PLAIN in server.mechanisms and len(server._credentials()) == 5, "the broker knows the users")
        yield found


@pytest.fixture
def client(running: InProcessCluster) -> Iterator[Open]:
    opened: list[SaslClient] = []

    def open_() -> SaslClient:
        opened.append(SaslClient(listener(running, 0)))
        return opened[-1]

    yield open_
    for each in opened:
        each.socket.close()


def is_served(client: SaslClient) -> bool:
    return len(client.ask(metadata()).brokers) == 1


def plain(user: str, password: str, authzid: str = "") -> bytes:
    return "\0".join((authzid, user, password)).encode()


def contexts(running: InProcessCluster) -> set[RequestContext]:
    return {
        each
        for connection in running.launcher.servers[0].router.server.connections
        for each in connection._contexts.values()
    }


# ------------------------------------------------------------------ who gets in


@pytest.mark.parametrize(
    ("user", "mechanism"), [(USER, SHA_256), (USER, SHA_512), (ODD, SHA_256), ("only-512", SHA_512)]
)
def test_a_user_with_the_password_gets_in_by_scram(
    client: Open, running: InProcessCluster, user: str, mechanism: str
) -> None:
    connection = client()
    assert connection.ask(request(18, 0)).error_code is ErrorCode.none  # before it is anybody
    assert connection.handshake(mechanism).mechanisms == (SHA_256, SHA_512, PLAIN)
    scram = Scram(user, PASSWORD, mechanism)
    reply = connection.token(scram.final(connection.token(scram.first()).auth_bytes))
    assert (reply.error_code, reply.error_message) == (ErrorCode.none, None)
    assert reply.auth_bytes == scram.server_signature, "the server knows the password, too"
    assert reply.session_lifetime.total_seconds() == 0
    assert is_served(connection)
    assert f"User:{user}" in {each.principal for each in contexts(running)}


@pytest.mark.parametrize("user", [USER, ODD, "only-512"])
@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_user_with_the_password_gets_in_by_plain(client: Open, user: str, version: int) -> None:
    connection = client()
    connection.handshake(PLAIN)
    reply = connection.token(plain(user, PASSWORD, user), version)
    assert (reply.error_code, reply.auth_bytes) == (ErrorCode.none, b"")
    assert is_served(connection)


def test_raw_tokens_of_old_clients_are_understood(client: Open) -> None:
    connection, scram = client(), Scram(USER, PASSWORD)
    connection.handshake(SHA_256, version=0)
    connection.send_raw(scram.first())
    connection.send_raw(scram.final(connection.frame()))
    assert connection.frame() == scram.server_signature
    assert is_served(connection)
    by_plain = client()
    by_plain.handshake(PLAIN, version=0)
    by_plain.send_raw(plain(USER, PASSWORD))
    assert by_plain.frame() == b"" and is_served(by_plain)


def test_principals_of_earlier_requests_are_not_remembered(client: Open, running: InProcessCluster) -> None:
    connection = client()
    connection.ask(request(18, 0))
    connection.log_in(USER, PASSWORD)
    connection.ask(request(18, 0))
    ours = [each for each in running.launcher.servers[0].router.server.connections if each.principal == f"User:{USER}"]
    assert {context.principal for each in ours for context in each._contexts.values()} == {f"User:{USER}"}


# ------------------------------------------------------------------ who does not


@pytest.mark.parametrize("user", [USER, "only-512", "nobody"])
def test_a_wrong_password_a_wrong_mechanism_and_no_such_user_look_alike(client: Open, user: str) -> None:
    connection = client()
    connection.handshake(SHA_256)
    scram = Scram(user, "wrong")
    first = connection.token(scram.first())
    assert first.error_code is ErrorCode.none
    assert first.auth_bytes.decode().rpartition(",")[2] == "i=4096"
    assert 20 <= len(first.auth_bytes.decode().split(",")[1]) <= 40
    reply = connection.token(scram.final(first.auth_bytes))
    assert (reply.error_code, reply.error_message, reply.auth_bytes) == (
        ErrorCode.sasl_authentication_failed,
        AUTHENTICATION_FAILED + SHA_256,
        b"",
    )
    assert connection.is_closed()
    again, by_plain = client(), client()
    again.handshake(SHA_256)
    salt = first.auth_bytes.split(b",")[1]
    assert again.token(Scram(user, "x", nonce="another").first()).auth_bytes.split(b",")[1] == salt, "a salt stays"
    by_plain.handshake(PLAIN)
    reply = by_plain.token(plain(user, "wrong"))
    assert (reply.error_code, reply.error_message) == (
        ErrorCode.sasl_authentication_failed,
        AUTHENTICATION_FAILED + PLAIN,
    )
    assert by_plain.is_closed()


def test_whoever_goes_on_after_a_wrong_proof_is_not_served(client: Open) -> None:
    connection, scram = client(), Scram(USER, "wrong")
    connection.handshake(SHA_256)
    final = scram.final(connection.token(scram.first()).auth_bytes)
    connection.send(request(36, 2, auth_bytes=final), metadata())
    assert connection.is_closed()


def test_whoever_sends_requests_along_with_the_last_token_is_not_served_before_it_is_checked(client: Open) -> None:
    connection = client()
    connection.handshake(PLAIN)
    connection.send(request(36, 2, auth_bytes=plain(USER, PASSWORD)), metadata())
    assert connection.is_closed()


@pytest.mark.parametrize("key_and_version", [(3, 12), (36, 2), (50, 0), (22, 0)])
def test_no_other_api_is_answered_before_the_handshake(client: Open, key_and_version: tuple[int, int]) -> None:
    entities: dict[int, Any] = {
        3: metadata(),
        36: request(36, 2, auth_bytes=plain(USER, PASSWORD)),
        50: request(50, 0, users=None),
        22: request(22, 0, transactional_id=None, transaction_timeout=milliseconds(0)),
    }
    connection = client()
    connection.send(entities[key_and_version[0]])
    assert connection.is_closed()


def test_another_api_during_authentication_is_illegal_in_its_own_words(client: Open) -> None:
    connection = client()
    connection.handshake(SHA_256)
    described = connection.ask(request(50, 0, users=None))
    assert described.error_code is ErrorCode.illegal_sasl_state
    assert connection.is_closed()
    switching = client()
    switching.handshake(SHA_512)
    switching.token(Scram(USER, PASSWORD, SHA_512).first())
    assert switching.handshake(PLAIN).error_code is ErrorCode.illegal_sasl_state
    assert switching.is_closed()


@pytest.mark.parametrize("mechanism", ["GSSAPI", "scram-sha-256", "", "SCRAM-SHA-256-PLUS"])
def test_a_mechanism_that_is_not_enabled_is_refused_with_those_that_are(client: Open, mechanism: str) -> None:
    connection = client()
    reply = connection.handshake(mechanism)
    assert (reply.error_code, reply.mechanisms) == (ErrorCode.unsupported_sasl_mechanism, (SHA_256, SHA_512, PLAIN))
    assert connection.is_closed()


def test_a_last_message_of_another_exchange_is_worth_nothing(client: Open) -> None:
    first, scram = client(), Scram(USER, PASSWORD)
    first.handshake(SHA_256)
    final = scram.final(first.token(scram.first()).auth_bytes)
    assert first.token(final).error_code is ErrorCode.none
    replaying = client()
    replaying.handshake(SHA_256)
    replaying.token(scram.first())
    assert replaying.token(final).error_code is ErrorCode.sasl_authentication_failed
    assert replaying.is_closed()


def test_a_nonce_that_the_server_did_not_give_is_refused(client: Open) -> None:
    connection, scram = client(), Scram(USER, PASSWORD)
    connection.handshake(SHA_256)
    server_first = connection.token(scram.first()).auth_bytes
    final = scram.final(server_first, nonce="fyko+d2lbbFgONRv9q")
    assert connection.token(final).error_code is ErrorCode.sasl_authentication_failed


@pytest.mark.parametrize(
    ("header", "at_the_end"),
    [("y,,", "n,,"), ("n,,", "y,,"), ("p=tls-unique,,", "p=tls-unique,,"), ("n,a=bob,", "n,a=bob,")],
)
def test_tampered_flags_of_channel_binding_and_other_users_rights_are_refused(
    client: Open, header: str, at_the_end: str
) -> None:
    connection, scram = client(), Scram(USER, PASSWORD)
    scram.header = header
    connection.handshake(SHA_256)
    reply = connection.token(scram.first())
    if reply.error_code is ErrorCode.none:
        reply = connection.token(scram.final(reply.auth_bytes, header=at_the_end))
    assert reply.error_code is ErrorCode.sasl_authentication_failed
    assert connection.is_closed()


@pytest.mark.parametrize(
    "token",
    [
        b"",
        b"n,,n=alice",
        b"n,,n=ali=ce,r=x",
        b"n,,m=x,n=alice,r=x",
        b"n,,n=alice,r=x\0",
        b"\xff",
    ],
)
def test_messages_that_are_not_scrams_fail_like_a_wrong_password(client: Open, token: bytes) -> None:
    connection = client()
    connection.handshake(SHA_256)
    reply = connection.token(token)
    assert (reply.error_code, reply.error_message) == (
        ErrorCode.sasl_authentication_failed,
        AUTHENTICATION_FAILED + SHA_256,
    )
    assert connection.is_closed()


@pytest.mark.parametrize(
    "token", [b"", plain(USER, ""), plain("", PASSWORD), plain(USER, PASSWORD, "bob"), b"\0a\0b\0c", b"\xff\0a\0b"]
)
def test_messages_that_are_not_plains_fail_like_a_wrong_password(client: Open, token: bytes) -> None:
    connection = client()
    connection.handshake(PLAIN)
    assert connection.token(token).error_code is ErrorCode.sasl_authentication_failed
    assert connection.is_closed()


def test_oversize_tokens_and_frames_end_the_connection(client: Open, running: InProcessCluster) -> None:
    server = running.launcher.servers[0].router.server
    eventually(lambda: not server.connections, "those of other tests have gone")
    growing = client()
    growing.ask(request(18, 0))
    assert [each.frame_bytes_max for each in server.connections] == [BEFORE_BYTES_MAX]
    growing.log_in(USER, PASSWORD)
    assert [each.frame_bytes_max for each in server.connections] == [server.limits.request_bytes_max]
    for before in (lambda each: None, lambda each: each.handshake(SHA_256), lambda each: each.handshake(SHA_256, 0)):
        connection = client()
        before(connection)
        connection.socket.sendall((20_000).to_bytes(4, "big"))
        assert connection.is_closed()
    connection = client()
    connection.handshake(SHA_256)
    reply = connection.token(b"n,,n=" + b"x" * 16_400 + b",r=x")
    assert reply.error_code is ErrorCode.sasl_authentication_failed


def test_what_is_logged_has_no_passwords_and_no_unknown_names(client: Open, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        for token in (plain(USER, "guess-1"), plain("guess-2", "x"), b"guess-3"):
            connection = client()
            connection.handshake(PLAIN)
            connection.token(token)
            assert connection.is_closed()
        for early_token in (b"\0a\0guess4", b"\0\x12guess6"):  # the second one begins like an ApiVersions
            early = client()
            early.send_raw(early_token)
            assert early.is_closed()
        raw = client()
        raw.handshake(PLAIN, 0)
        raw.send_raw(plain(USER, "guess-5"))
        assert raw.is_closed()
    assert "guess" not in caplog.text and b"guess".hex(" ") not in caplog.text
    assert caplog.text.count("failed: ") == 4 and "Traceback" not in caplog.text
