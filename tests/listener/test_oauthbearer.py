"""OAUTHBEARER at a listener, byte for byte: who gets in, who does not, and what either is told."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from certificates import Authority
from key_server import KeyServer, body
from kio.schema.errors import ErrorCode
from outside import listener, metadata, request
from raw_requests import eventually
from sasl_client import SaslClient
from tokens import Issuer, claims, jwk, message, pem, rsa_key, unsecured

from raylog.client.sync import AdminClient
from raylog.clock import MachineClock
from raylog.testing.in_process import InProcessCluster, cluster
from raylog.wire.listeners import listeners_of
from raylog.wire.sasl import SaslAuthenticator
from raylog.wire.token_keys import UNKNOWN_KEY_INTERVAL_S

MECHANISM = "OAUTHBEARER"
REFUSAL = b'{"status":"invalid_token"}'
GENERAL = "Authentication failed during authentication due to invalid credentials with SASL mechanism OAUTHBEARER"
ISSUER = Issuer()
RAY_TOKEN = "0f" * 32
OAUTH = "sasl.oauthbearer."
Open = Callable[[], SaslClient]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessCluster]:
    file = tmp_path_factory.mktemp("issuer") / "jwks.json"
    settings = {
        OAUTH + "jwks.endpoint.url": ISSUER.write(file),
        OAUTH + "expected.audience": "raylog",
        OAUTH + "expected.issuer": "https://issuer",
    }
    listeners = listeners_of("SASL_PLAINTEXT://127.0.0.1:0", None, settings)
    with cluster(brokers=1, listeners=listeners, ray_token=RAY_TOKEN) as found:
        enable(found, MECHANISM, "SCRAM-SHA-256")
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


def enable(running: InProcessCluster, *mechanisms: str) -> None:
    with AdminClient(running.address) as admin:
        admin.alter_configs(broker="all", set={"sasl.enabled.mechanisms": ",".join(mechanisms)})
    eventually(lambda: authenticator(running).mechanisms == mechanisms, "the broker knows the mechanisms")


def authenticator(running: InProcessCluster) -> SaslAuthenticator:
    found: SaslAuthenticator = running.launcher.servers[0].router._sasl
    return found


def is_served(client: SaslClient) -> bool:
    return len(client.ask(metadata()).brokers) == 1


def principals(running: InProcessCluster) -> set[str]:
    return {each.principal for each in running.launcher.servers[0].router.server.connections}


# ------------------------------------------------------------------ who gets in


@pytest.mark.parametrize("algorithm", ["RS256", "PS384", "ES512"])
def test_whoever_shows_a_signed_token_is_its_subject(client: Open, running: InProcessCluster, algorithm: str) -> None:
    connection = client()
    assert connection.handshake(MECHANISM).mechanisms == (MECHANISM, "SCRAM-SHA-256")
    reply = connection.token(message(ISSUER.token(claims(f"user of {algorithm}"), algorithm)))
    assert (reply.error_code, reply.error_message, reply.auth_bytes) == (ErrorCode.none, None, b"")
    assert is_served(connection)
    assert f"User:user of {algorithm}" in principals(running)


def test_raw_tokens_of_old_clients_are_understood(client: Open) -> None:
    connection, wrong = client(), client()
    connection.handshake(MECHANISM, version=0)
    connection.send_raw(message(ISSUER.token()))
    assert connection.frame() == b"" and is_served(connection)
    wrong.handshake(MECHANISM, version=0)
    wrong.send_raw(message(ISSUER.token(key=rsa_key())))
    assert wrong.frame() == REFUSAL
    wrong.send_raw(b"\x01")
    assert wrong.is_closed()


@pytest.mark.parametrize(
    "first",
    [
        message(ISSUER.token(), "alice"),
        message(ISSUER.token(claims("a,b=c")), "a=2Cb=3Dc"),
        message(ISSUER.token(), extensions="host=h\x01port=9092\x01logicalCluster=lkc-1 x\x01"),
        message(ISSUER.token()).replace(b"Bearer ", b"bEARER   "),
        message(ISSUER.token()).replace(b"n,", b"y,", 1),
    ],
)
def test_what_the_grammar_of_rfc_7628_allows_is_understood(client: Open, first: bytes) -> None:
    connection = client()
    connection.handshake(MECHANISM)
    assert connection.token(first).error_code is ErrorCode.none and is_served(connection)


# ------------------------------------------------------------------ who does not


SHARED = pem(ISSUER.keys["RS256"][1])
OTHER = jwk(rsa_key(), "rsa")
REFUSED = {
    "not signed": unsecured(),
    "alg none": ISSUER.token(alg="none"),
    "a key of somebody else": ISSUER.token(key=rsa_key()),
    "a key of its own": ISSUER.token(key=rsa_key(), jwk=OTHER, jku="https://mallory/jwks"),
    "for another audience": ISSUER.token(claims(aud="other")),
    "of another issuer": ISSUER.token(claims(iss="https://mallory")),
    "expired": ISSUER.token(claims(exp=1)),
    "not valid yet": ISSUER.token(claims(nbf=4_000_000_000)),
    "signed with the public key": ISSUER.token(algorithm="HS256", key=SHARED),
    "signed with nothing": ISSUER.token(algorithm="HS256", key=b""),
    "of an unknown key": ISSUER.token(kid="unknown"),
    "of a path for a key": ISSUER.token(kid="../../../../dev/null"),
    "of a key of another type": ISSUER.token(kid="P-256"),
    "with a critical extension": ISSUER.token(crit=["x"], x=1),
    "of nobody": ISSUER.token(claims(None)),
    "of a name with NUL": ISSUER.token(claims("alice\0")),
    "of a name with a line": ISSUER.token(claims("alice\nUser:admin")),
    "of a name too long": ISSUER.token(claims("a" * 996)),
    "of a name that is half a character": ISSUER.token(claims("alice\ud800")),
    "for another user": (ISSUER.token(), "bob"),
    "the Ray's with more": RAY_TOKEN + "0",
    "the Ray's with less": RAY_TOKEN[:-1],
    "no JWT": "secret",
    "too many parts": ISSUER.token() + ".a.b",
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_token_that_is_refused_has_kafkas_answers(client: Open, what: str) -> None:
    token = REFUSED[what]
    connection = client()
    connection.handshake(MECHANISM)
    reply = connection.token(message(*(token if isinstance(token, tuple) else (token,))))
    assert (reply.error_code, reply.error_message, reply.auth_bytes) == (ErrorCode.none, None, REFUSAL)
    reply = connection.token(b"\x01")
    assert reply.error_code is ErrorCode.sasl_authentication_failed
    assert (reply.error_message, reply.auth_bytes) == (REFUSAL.decode(), b"")
    assert connection.is_closed()


def test_after_a_refusal_no_further_token_counts(client: Open) -> None:
    connection = client()
    connection.handshake(MECHANISM)
    assert connection.token(message(ISSUER.token(key=rsa_key()))).auth_bytes == REFUSAL
    assert connection.token(message(ISSUER.token())).error_code is ErrorCode.sasl_authentication_failed
    assert connection.is_closed()
    impatient = client()
    impatient.handshake(MECHANISM)
    impatient.send(request(36, 2, auth_bytes=message("wrong")), request(36, 2, auth_bytes=message(ISSUER.token())))
    assert impatient.is_closed(), "nothing is read before the answer"


GOOD = ISSUER.token()


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"\x01",
        b"n,,\x01\x01",
        message(GOOD)[:-1],
        message(GOOD) + b"\x01",
        message(GOOD).replace(b"\x01", b"\0"),
        message(GOOD + "\0"),
        message(GOOD[:50] + "\0" + GOOD[50:]),
        message(GOOD[:50] + "\x01" + GOOD[50:]),
        message(GOOD + " "),
        message(GOOD).replace(b"n,", b"p=tls-unique,", 1),
        message(GOOD).replace(b"Bearer", b"Basic"),
        message(GOOD).replace(b"auth", b"Auth"),
        message(GOOD, extensions=f"auth=Bearer {GOOD}\x01"),
        message(GOOD, extensions="a=1\x01a=2\x01"),
        message(GOOD, extensions="a1=1\x01"),
        message(GOOD, extensions="a=\xfc\x01"),
        message(GOOD, extensions="a=\0\x01"),
        message(GOOD, extensions="a\x01"),
        message(GOOD, "ali=41ce"),
        message(GOOD, "a,b"),
        message(GOOD) + b"\xff",
        message("a" * 16 * 1024),
    ],
)
def test_what_is_no_message_of_oauthbearer_fails_at_once(client: Open, first: bytes) -> None:
    connection = client()
    connection.handshake(MECHANISM)
    reply = connection.token(first)
    assert (reply.error_code, reply.error_message) == (ErrorCode.sasl_authentication_failed, GENERAL)
    assert connection.is_closed()


def test_a_token_that_is_too_long_for_a_frame_ends_the_connection(client: Open) -> None:
    connection = client()
    connection.handshake(MECHANISM)
    connection.send(request(36, 2, auth_bytes=message("a" * 32 * 1024)))
    assert connection.is_closed()


def test_a_token_is_none_of_another_mechanism(client: Open) -> None:
    by_scram, turning = client(), client()
    by_scram.handshake("SCRAM-SHA-256")
    assert by_scram.token(message(GOOD)).error_code is ErrorCode.sasl_authentication_failed
    turning.handshake(MECHANISM)
    assert turning.token(b"n,,n=alice,r=x").error_code is ErrorCode.sasl_authentication_failed
    assert by_scram.is_closed() and turning.is_closed()


def test_a_refusal_waits_like_every_failure_and_counts_for_its_address(client: Open, running: InProcessCluster) -> None:
    authenticator(running).failure_delay_ms = 3_600_000
    try:
        connection = client()
        connection.handshake(MECHANISM)
        connection.send(request(36, 2, auth_bytes=message("wrong")))
        eventually(lambda: authenticator(running).failing.total() == 1, "it counts")
        connection.socket.settimeout(0.05)
        with pytest.raises(TimeoutError):
            connection.frame()
        connection.socket.settimeout(60)
        connection.send(request(36, 2, auth_bytes=message(GOOD)))
        assert connection.is_closed(), "nothing is taken before the answer"
        # hanging up does not give the guess back
        assert authenticator(running).failing.total() == 1
    finally:
        authenticator(running).failure_delay_ms = 100
        authenticator(running).failing.clear()


def test_nothing_of_a_token_is_logged(client: Open, caplog: pytest.LogCaptureFixture) -> None:
    secret = "hidden-42"
    tokens = [ISSUER.token(claims(secret), kid=secret), ISSUER.token(claims(aud=secret)), RAY_TOKEN[1:], secret]
    with caplog.at_level(logging.DEBUG):
        for token in tokens:
            connection = client()
            connection.handshake(MECHANISM)
            connection.token(message(token, extensions=f"a={secret}\x01"))
            connection.token(b"\x01")
    assert "authentication of" in caplog.text
    assert secret not in caplog.text
    assert not any(token[:20] in caplog.text for token in tokens)


# ------------------------------------------------------------------ Ray's token


def test_whoever_shows_the_rays_token_is_the_user_ray(client: Open, running: InProcessCluster) -> None:
    connection = client()
    connection.handshake(MECHANISM)
    reply = connection.token(message(RAY_TOKEN))
    assert (reply.error_code, reply.auth_bytes) == (ErrorCode.none, b"")
    assert reply.session_lifetime.total_seconds() == 0
    assert is_served(connection) and "User:ray" in principals(running)


def test_the_rays_token_is_kept_as_its_hash(running: InProcessCluster) -> None:
    (port,) = running.launcher.servers[0].router.server.ports
    assert RAY_TOKEN not in str(vars(port.tokens)) and len(port.tokens._ray_token_hash) == 32


# ------------------------------------------------------------------ sessions


def lifetime_ms(connection: SaslClient, token: str) -> float:
    assert connection.handshake(MECHANISM).error_code is ErrorCode.none
    reply = connection.token(message(token))
    assert reply.error_code is ErrorCode.none
    return float(reply.session_lifetime.total_seconds() * 1_000)


def test_a_session_ends_with_its_token_or_before(client: Open, running: InProcessCluster) -> None:
    hour = 3_600_000
    assert hour - 60_000 < lifetime_ms(client(), ISSUER.token()) <= hour
    authenticator(running).reauth_ms = 5_000
    try:
        assert lifetime_ms(client(), ISSUER.token()) == 5_000
        assert lifetime_ms(client(), RAY_TOKEN) == 5_000
        authenticator(running).reauth_ms = 2 * hour
        assert hour - 60_000 < lifetime_ms(client(), ISSUER.token()) <= hour
    finally:
        authenticator(running).reauth_ms = 0
    year = 365 * 24 * hour
    assert lifetime_ms(client(), ISSUER.token(claims(exp=10**308))) == year


class StandingClock(MachineClock):
    now_s: float = 2_000_000_000

    def wall_ms(self) -> int:
        return round(self.now_s * 1_000)


def of(running: InProcessCluster, principal: str) -> list:  # type: ignore[type-arg]
    return [each for each in running.launcher.servers[0].router.server.connections if each.principal == principal]


def test_a_session_is_over_when_its_token_has_expired_and_the_token_is_worth_nothing_then(
    client: Open, running: InProcessCluster
) -> None:
    """Until then it is taken, as clocks may differ by 30 s."""
    (port,) = running.launcher.servers[0].router.server.ports
    clock = port.tokens._clock = StandingClock()
    token = ISSUER.token(claims("short", iat=clock.now_s - 60, exp=clock.now_s))
    over, renewed = client(), client()
    clock.now_s += 29
    assert lifetime_ms(client(), token) == 1_000
    clock.now_s += 0.999
    for connection in (over, renewed):
        assert lifetime_ms(connection, token) == 1
    eventually(
        lambda: all(each._expires_at < running.loop.time() for each in of(running, "User:short")), "both have ended"
    )
    over.send(metadata())
    assert over.is_closed()
    clock.now_s += 0.001
    again = client()
    again.handshake(MECHANISM)
    assert again.token(message(token)).auth_bytes == REFUSAL, "a replay"
    assert lifetime_ms(renewed, ISSUER.token(claims("short", iat=clock.now_s, exp=clock.now_s + 60))) == 60_000
    assert is_served(renewed)
    port.tokens._clock = MachineClock()


def test_a_session_is_renewed_as_the_same_user_by_the_same_mechanism(client: Open) -> None:
    becoming_bob, switching, wrong = client(), client(), client()
    for connection in (becoming_bob, switching, wrong):
        lifetime_ms(connection, ISSUER.token())
    becoming_bob.handshake(MECHANISM)
    reply = becoming_bob.token(message(ISSUER.token(claims("bob"))))
    assert reply.error_code is ErrorCode.sasl_authentication_failed
    assert reply.error_message.startswith("Authentication failed during re-authentication")
    assert switching.handshake("SCRAM-SHA-256").error_code is ErrorCode.illegal_sasl_state
    wrong.handshake(MECHANISM)
    assert wrong.token(message(ISSUER.token(claims(exp=1)))).auth_bytes == REFUSAL
    wrong.send(metadata())
    reply = wrong.reply_to(metadata())
    assert not reply.brokers, "it is nobody while it renews its session"
    assert becoming_bob.is_closed() and switching.is_closed() and wrong.is_closed()


# ------------------------------------------------------------------ keys of a URL


def shown(running: InProcessCluster, token: str) -> bool:
    """Whether a token is taken."""
    with SaslClient(listener(running, 0)) as connection:
        connection.handshake(MECHANISM)
        return bool(connection.token(message(token)).auth_bytes == b"")


def test_keys_of_a_url_count_once_they_can_be_read_and_new_ones_without_a_restart(tmp_path: Path) -> None:
    authority, after = Authority(tmp_path), Issuer()
    settings = {
        OAUTH + "jwks.endpoint.retry.backoff.max.ms": "100",
        OAUTH + "jwks.endpoint.truststore.location": str(authority.certificate),
    }
    with KeyServer(authority.signed("issuer"), body("", 503)) as issuer:
        settings[OAUTH + "jwks.endpoint.url"] = issuer.url
        with cluster(brokers=1, listeners=listeners_of("SASL_PLAINTEXT://127.0.0.1:0", None, settings)) as running:
            enable(running, MECHANISM)
            assert not shown(running, ISSUER.token()), "there are no keys yet"
            issuer.answer = body(json.dumps({"keys": ISSUER.jwks()}))
            eventually(lambda: shown(running, ISSUER.token()), "the keys are read")
            issuer.answer = body(json.dumps({"keys": [jwk(after.keys["RS256"][1], "next")]}))
            (port,) = running.launcher.servers[0].router.server.ports
            port.tokens._keys._begun_at -= UNKNOWN_KEY_INTERVAL_S
            assert shown(running, after.token(kid="next"))
            assert not shown(running, ISSUER.token()), "that key was taken away"


# ------------------------------------------------------------------ listeners that take none


def test_a_listener_that_takes_no_tokens_does_not_offer_them(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    listeners = listeners_of("SASL_PLAINTEXT://127.0.0.1:0", None, {OAUTH + "ray.token.enable": "false"})
    with cluster(brokers=1, listeners=listeners, ray_token=RAY_TOKEN) as running:
        enable(running, "SCRAM-SHA-256", MECHANISM)
        with SaslClient(listener(running, 0)) as connection:
            reply = connection.handshake(MECHANISM)
            assert (reply.error_code, reply.mechanisms) == (ErrorCode.unsupported_sasl_mechanism, ("SCRAM-SHA-256",))
            assert connection.is_closed()
    assert "does not offer OAUTHBEARER: sasl.oauthbearer.jwks.endpoint.url is not set" in caplog.text


def test_tokens_that_nobody_has_signed_are_taken_only_where_that_is_asked_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    listeners = listeners_of("SASL_PLAINTEXT://127.0.0.1:0", None, {OAUTH + "unsecured.jwt.enable": "true"})
    with cluster(brokers=1, listeners=listeners) as running:
        enable(running, MECHANISM)
        with SaslClient(listener(running, 0)) as connection:
            assert lifetime_ms(connection, unsecured(claims("anybody"))) > 3_000_000
            assert is_served(connection) and "User:anybody" in principals(running)
        for token in (unsecured(claims(exp=1)), ISSUER.token(), RAY_TOKEN):
            with SaslClient(listener(running, 0)) as connection:
                connection.handshake(MECHANISM)
                assert connection.token(message(token)).auth_bytes == REFUSAL
    assert "unsecured.jwt.enable=true: anybody can be any user there" in caplog.text
