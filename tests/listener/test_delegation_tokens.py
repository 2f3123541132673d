"""Delegation tokens at listeners: who may have one, what it opens, and what nobody gets by one."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import pytest
from authorized import AUTHORIZER
from kio.schema.errors import ErrorCode
from outside import listener, metadata, milliseconds, request
from raw_requests import eventually
from sasl_client import SaslClient, Scram

from raylog.client.sync import AdminClient
from raylog.configs import token_configs
from raylog.security.acl import AclBinding
from raylog.security.permissions import Operation, PatternType, PermissionType, Resource
from raylog.server.start_configs import set_static
from raylog.testing.in_process import InProcessCluster, cluster
from raylog.wire.listeners import listeners_of

pytestmark = pytest.mark.core

SHA_256, SHA_512 = "SCRAM-SHA-256", "SCRAM-SHA-512"
KEY, PASSWORD = "the key of delegation tokens", "a secret"
USERS = ("alice", "bob", "carol", "admin")
CONFIGS = {
    token_configs.SECRET_KEY: KEY,
    token_configs.CHECK_INTERVAL: "200",
    "super.users": "User:admin",
    "sasl.enabled.mechanisms": f"{SHA_256},{SHA_512},PLAIN",
    **AUTHORIZER,
}
NOT_ALLOWED = ErrorCode.delegation_token_request_not_allowed
FAILED = ErrorCode.sasl_authentication_failed
Open = Callable[..., SaslClient]


@pytest.fixture(scope="module")
def running() -> Iterator[InProcessCluster]:
    with cluster(brokers=1, listeners=listeners_of("SASL_PLAINTEXT://127.0.0.1:0,PLAINTEXT://127.0.0.1:0")) as found:
        set_static(found.address, CONFIGS, timeout_s=60)
        with AdminClient(found.address) as admin:
            for user in USERS:
                admin.set_user(user, PASSWORD)
        router = found.launcher.servers[0].router
        eventually(
            lambda: router._guard.is_on and router._sasl.tokens.key and len(router._sasl._credentials()) == 8,
            "the broker knows the users",
        )
        yield found


@pytest.fixture
def login(running: InProcessCluster) -> Iterator[Open]:
    """A client that has logged in as this user, or not at all."""
    opened: list[SaslClient] = []

    def open_(user: str | None = None) -> SaslClient:
        opened.append(SaslClient(listener(running, 0)))
        if user is not None:
            assert opened[-1].log_in(user, PASSWORD).error_code is ErrorCode.none
        return opened[-1]

    yield open_
    for each in opened:
        each.socket.close()


def schema(name: str, version: int) -> Any:
    return import_module(f"kio.schema.{name}_delegation_token.v{version}.request")


def creation(
    *renewers: str, owner: str | None = None, lifetime_ms: int = -1, version: int = 3, type: str = "User"
) -> Any:
    module = schema("create", version)
    named = tuple(module.CreatableRenewers(principal_type="User", principal_name=each) for each in renewers)
    for_owner = {"owner_principal_type": owner and type, "owner_principal_name": owner} if version >= 3 else {}
    return request(38, version, renewers=named, max_lifetime=milliseconds(lifetime_ms), **for_owner)


def renewal(token: Any, period_ms: int = -1, version: int = 2) -> Any:
    return request(39, version, hmac=getattr(token, "hmac", token), renew_period=milliseconds(period_ms))


def expiry(token: Any, period_ms: int = -1, version: int = 2) -> Any:
    return request(40, version, hmac=getattr(token, "hmac", token), expiry_time_period=milliseconds(period_ms))


def description(*owners: str, everybody: bool = True, version: int = 3) -> Any:
    module = schema("describe", version)
    named = tuple(module.DescribeDelegationTokenOwner(principal_type="User", principal_name=each) for each in owners)
    return request(41, version, owners=None if everybody and not owners else named)


def by_token(
    client: SaslClient, token_id: str, mac: bytes, mechanism: str = SHA_256, extension: str = "tokenauth=true"
) -> Any:
    """The last answer to a client that authenticates with this token."""
    assert client.handshake(mechanism).error_code is ErrorCode.none
    scram = Scram(token_id, b64encode(mac).decode(), mechanism, nonce=secrets.token_hex(12))
    scram.bare += f",{extension}" if extension else ""
    first = client.token(scram.first())
    assert first.error_code is ErrorCode.none, "the first answer gives nothing away"
    reply = client.token(scram.final(first.auth_bytes))
    assert reply.error_code is not ErrorCode.none or reply.auth_bytes == scram.server_signature
    return reply


def created(client: SaslClient, *renewers: str, **options: Any) -> Any:
    reply = client.ask(creation(*renewers, **options))
    assert reply.error_code is ErrorCode.none
    return reply


def known(running: InProcessCluster, *token_ids: str, are_there: bool = True) -> None:
    tokens = running.launcher.servers[0].router._sasl.tokens
    eventually(lambda: all((each in tokens.tokens) is are_there for each in token_ids), "the broker knows the tokens")


def is_served(client: SaslClient) -> bool:
    return len(client.ask(metadata()).brokers) == 1


def principals(running: InProcessCluster) -> list[str]:
    return [each.principal for each in running.launcher.servers[0].router.server.connections]


def grant(running: InProcessCluster, operation: Operation, resource: Resource, name: str, principal: str) -> None:
    acl = AclBinding(resource, name, PatternType.LITERAL, principal, "*", operation, PermissionType.ALLOW)
    with AdminClient(running.address) as admin:
        admin.create_acls([acl])
    image = running.launcher.servers[0].router._routes
    eventually(lambda: acl in image.image.acls.ids, "the broker knows the ACL")


# ------------------------------------------------------------------ having one


@pytest.mark.parametrize("mechanism", [SHA_256, SHA_512])
@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_token_opens_a_connection_as_its_owner(
    login: Open, running: InProcessCluster, version: int, mechanism: str
) -> None:
    token = created(login("alice"), version=version)
    assert token.hmac == hmac.new(KEY.encode(), token.token_id.encode(), hashlib.sha512).digest()
    assert (token.principal_type, token.principal_name) == ("User", "alice")
    if version >= 3:
        assert (token.token_requester_principal_type, token.token_requester_principal_name) == ("User", "alice")
    day_s, week_s = 86_400, 604_800
    assert (token.expiry_timestamp - token.issue_timestamp).total_seconds() == day_s
    assert (token.max_timestamp - token.issue_timestamp).total_seconds() == week_s
    known(running, token.token_id)
    client = login()
    before = principals(running).count("User:alice")
    reply = by_token(client, token.token_id, token.hmac, mechanism)
    assert reply.error_code is ErrorCode.none
    assert day_s - 60 < reply.session_lifetime.total_seconds() <= day_s, "the session ends with the token"
    assert is_served(client) and principals(running).count("User:alice") == before + 1


def test_a_token_opens_no_way_to_tokens(login: Open, running: InProcessCluster) -> None:
    token = created(login("alice"))
    known(running, token.token_id)
    client = login()
    assert by_token(client, token.token_id, token.hmac).error_code is ErrorCode.none
    for version in (1, 2, 3):
        assert client.ask(creation(version=version)).error_code is NOT_ALLOWED
        assert client.ask(description(version=version)).error_code is NOT_ALLOWED
    for asked in (renewal(token), renewal(token, version=1), expiry(token), expiry(token, version=1)):
        assert client.ask(asked).error_code is NOT_ALLOWED
    assert is_served(client)


def test_somebody_who_has_not_proved_who_he_is_has_no_tokens(running: InProcessCluster, login: Open) -> None:
    token = created(login("alice"))
    (port,) = (each for each in running.launcher.servers[0].router.server.ports if not each.has_sasl)
    with SaslClient(port.endpoint) as anonymous:
        for asked in (creation(), renewal(token), expiry(token), description()):
            reply = anonymous.ask(asked)
            assert reply.error_code is NOT_ALLOWED
            assert not getattr(reply, "hmac", b"") and not getattr(reply, "tokens", ())


# ------------------------------------------------------------------ attacks


def test_a_token_that_is_forged_or_of_another_key_opens_nothing(login: Open, running: InProcessCluster) -> None:
    token = created(login("alice"))
    known(running, token.token_id)
    other_key = hmac.new(b"another key", token.token_id.encode(), hashlib.sha512).digest()
    no_key = hmac.new(b"", token.token_id.encode(), hashlib.sha512).digest()
    for token_id, mac, extension in (
        (token.token_id, other_key, "tokenauth=true"),
        (token.token_id, no_key, "tokenauth=true"),
        (token.token_id, token.hmac[:-1], "tokenauth=true"),
        ("00000000-0000-0000-0000-000000000000", token.hmac, "tokenauth=true"),
        ("alice", token.hmac, "tokenauth=true"),
        (token.token_id, token.hmac, ""),
        (token.token_id, token.hmac, "tokenauth=false"),
        (token.token_id, token.hmac, "other=1,tokenauth=truer"),
    ):
        client = login()
        reply = by_token(client, token_id, mac, extension=extension)
        assert (reply.error_code, reply.auth_bytes) == (FAILED, b""), (token_id, extension)
        assert client.is_closed()
    plain = login()
    plain.handshake("PLAIN")
    told = f"\0{token.token_id}\0{b64encode(token.hmac).decode()}".encode()
    assert plain.token(told).error_code is FAILED
    user = login()
    user.handshake(SHA_256)
    scram = Scram("alice", PASSWORD)
    scram.bare += ",tokenauth=true"
    reply = user.token(scram.final(user.token(scram.first()).auth_bytes))
    assert reply.error_code is FAILED, "a user's name is no token's id"


def test_strangers_renew_and_expire_nothing_and_nobody_renews_past_the_end(login: Open) -> None:
    alice, bob, carol = login("alice"), login("bob"), login("carol")
    token = created(alice, "bob", lifetime_ms=90_000)
    mismatch = ErrorCode.delegation_token_owner_mismatch
    for asked in (renewal(token), expiry(token), expiry(token, 5)):
        assert carol.ask(asked).error_code is mismatch
    assert login("admin").ask(renewal(token)).error_code is mismatch, "not even a super user"
    for client in (alice, bob):
        reply = client.ask(renewal(token, 10_000_000_000))
        assert (reply.error_code, reply.expiry_timestamp) == (ErrorCode.none, token.max_timestamp)
    assert alice.ask(renewal(token.hmac[:-1])).error_code is ErrorCode.delegation_token_not_found
    assert bob.ask(expiry(token, 60_000)).expiry_timestamp < token.max_timestamp
    assert bob.ask(expiry(token)).error_code is ErrorCode.none
    assert bob.ask(expiry(token)).error_code is ErrorCode.delegation_token_not_found


# ------------------------------------------------------------------ the end of one


def test_a_token_that_is_removed_ends_the_connections_that_it_opened(login: Open, running: InProcessCluster) -> None:
    alice = login("alice")
    token, other = created(alice), created(alice)
    known(running, token.token_id, other.token_id)
    clients = {each.token_id: login() for each in (token, other)}
    for each in (token, other):
        assert by_token(clients[each.token_id], each.token_id, each.hmac).error_code is ErrorCode.none
    assert alice.ask(expiry(token)).error_code is ErrorCode.none
    assert clients[token.token_id].is_closed()
    assert is_served(clients[other.token_id]) and is_served(alice)
    assert by_token(login(), token.token_id, token.hmac).error_code is FAILED


def test_a_token_that_expires_is_removed_and_its_connections_end(login: Open, running: InProcessCluster) -> None:
    alice = login("alice")
    lasting, token = created(alice), created(alice, lifetime_ms=3_000)
    known(running, lasting.token_id, token.token_id)
    client = login()
    reply = by_token(client, token.token_id, token.hmac)
    assert reply.error_code is ErrorCode.none and 0 < reply.session_lifetime.total_seconds() <= 3
    assert client.is_closed()
    assert time.time() >= token.expiry_timestamp.timestamp()
    known(running, token.token_id, are_there=False)
    assert alice.ask(renewal(token)).error_code is ErrorCode.delegation_token_not_found
    assert alice.ask(renewal(lasting)).error_code is ErrorCode.none
    assert by_token(login(), token.token_id, token.hmac).error_code is FAILED


def test_a_session_is_prolonged_by_authenticating_with_the_token_again(login: Open, running: InProcessCluster) -> None:
    alice = login("alice")
    token = created(alice, lifetime_ms=600_000)
    known(running, token.token_id)
    client = login()
    first = by_token(client, token.token_id, token.hmac).session_lifetime
    assert by_token(client, token.token_id, token.hmac).session_lifetime <= first
    assert is_served(client)
    bobs = created(login("bob"))
    known(running, bobs.token_id)
    assert by_token(client, bobs.token_id, bobs.hmac).error_code is FAILED, "a session stays its user's"


# ------------------------------------------------------------------ for others, and seen by others


def test_a_token_for_somebody_else_takes_an_acl_and_is_that_users(login: Open, running: InProcessCluster) -> None:
    bob = login("bob")
    denied = bob.ask(creation(owner="carol"))
    assert denied.error_code is ErrorCode.delegation_token_authorization_failed and not denied.hmac
    assert created(bob, owner="bob").principal_name == "bob", "his own he may have by name"
    grant(running, Operation.CREATE_TOKENS, Resource.USER, "User:carol", "User:bob")
    token = created(bob, owner="carol")
    assert (token.principal_name, token.token_requester_principal_name) == ("carol", "bob")
    known(running, token.token_id)
    assert by_token(login(), token.token_id, token.hmac).error_code is ErrorCode.none
    assert "User:carol" in principals(running)
    assert login("admin").ask(creation(owner="g", type="Group")).error_code is ErrorCode.invalid_principal_type


def test_a_client_sees_the_tokens_that_are_its_own_or_that_an_acl_names(login: Open, running: InProcessCluster) -> None:
    alice, bob, carol, admin = map(login, USERS)
    for_bob, of_alice, of_bob = created(alice, "bob"), created(alice), created(bob)
    ours = {each.token_id: each for each in (for_bob, of_alice, of_bob)}

    def seen(client: SaslClient, *owners: str, **options: Any) -> set[str]:
        reply = client.ask(description(*owners, **options))
        assert reply.error_code is ErrorCode.none
        for each in reply.tokens:
            if each.token_id in ours:
                assert each.hmac == ours[each.token_id].hmac
        return {each.token_id for each in reply.tokens} & set(ours)

    for version in (1, 2, 3):
        assert seen(alice, version=version) == {for_bob.token_id, of_alice.token_id}
        assert seen(bob, version=version) == {for_bob.token_id, of_bob.token_id}
        assert seen(carol, version=version) == set()
        assert seen(admin, version=version) == set(ours)
    assert seen(admin, everybody=False) == set() == seen(admin, "carol")
    assert seen(admin, "bob") == {for_bob.token_id, of_bob.token_id}
    grant(running, Operation.DESCRIBE, Resource.DELEGATION_TOKEN, of_bob.token_id, "User:carol")
    assert seen(carol) == {of_bob.token_id}
    grant(running, Operation.DESCRIBE_TOKENS, Resource.USER, "User:alice", "User:carol")
    assert seen(carol) == set(ours)


# ------------------------------------------------------------------ the key


def test_the_key_is_shown_to_nobody(login: Open, running: InProcessCluster) -> None:
    module = import_module("kio.schema.describe_configs.v4.request")
    resource = module.DescribeConfigsResource(resource_type=4, resource_name="0", configuration_keys=None)
    reply = login("admin").ask(request(32, 4, resources=(resource,), include_synonyms=True, include_documentation=True))
    assert KEY not in repr(reply)
    (entry,) = (each for each in reply.results[0].configs if each.name == token_configs.SECRET_KEY)
    assert (entry.value, entry.is_sensitive, entry.config_type, entry.read_only) == (None, True, 9, True)
    assert [each.value for each in entry.synonyms] == [None] * len(entry.synonyms) and len(entry.synonyms) == 2
    lifetime = next(each for each in reply.results[0].configs if each.name == token_configs.LIFETIME)
    assert (lifetime.value, lifetime.is_sensitive) == ("604800000", False)


def test_another_key_is_the_end_of_all_tokens(login: Open, running: InProcessCluster) -> None:
    """Has to be the last test of this cluster's tokens."""
    alice = login("alice")
    token = created(alice)
    known(running, token.token_id)
    client = login()
    assert by_token(client, token.token_id, token.hmac).error_code is ErrorCode.none
    for configs, error in (
        ({**CONFIGS, token_configs.SECRET_KEY: "another"}, ErrorCode.delegation_token_not_found),
        ({**CONFIGS, token_configs.SECRET_KEY: ""}, ErrorCode.delegation_token_auth_disabled),
    ):
        set_static(running.address, configs, timeout_s=60)
        tokens = running.launcher.servers[0].router._sasl.tokens
        expected = configs[token_configs.SECRET_KEY].encode()
        eventually(lambda expected=expected, tokens=tokens: tokens.key == expected, "the broker has that key")
        assert alice.ask(renewal(token)).error_code is error
        assert by_token(login(), token.token_id, token.hmac).error_code is FAILED
    assert client.is_closed() and is_served(alice)
    for asked in (creation(), description(), expiry(token)):
        assert alice.ask(asked).error_code is ErrorCode.delegation_token_auth_disabled
