"""Decisions about delegation tokens: Kafka's errors and their order, and how long a token lasts."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import replace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from raylog.configs import token_configs
from raylog.errors import ConfigError
from raylog.kafka import context
from raylog.metadata.image import MetadataImage
from raylog.metadata.records import StaticConfigsChanged, StaticSource
from raylog.metadata.users import token_decisions
from raylog.metadata.users.token_decisions import RENEWERS_MAX, decide_tokens, describe_tokens
from raylog.metadata.users.token_requests import (
    CreateDelegationToken,
    DelegationTokenAnswer,
    DelegationTokensRemoved,
    DescribeDelegationTokens,
    ExpireDelegationToken,
    RemoveExpiredTokens,
    RenewDelegationToken,
    TokenChange,
)

ALICE, BOB, CAROL, EVE = "User:alice", "User:bob", "User:carol", "User:eve"
NOW, DAY, WEEK = 1_700_000_000_000, 86_400_000, 604_800_000
MINE = CreateDelegationToken("t", None, (BOB,), -1, NOW, ALICE)
KEY = "the key of a cluster"


class Tokens:
    """An image, and what is decided with it."""

    def __init__(self, **configs: str) -> None:
        self.image = MetadataImage.empty()
        said = {token_configs.SECRET_KEY: KEY} | {name.replace("_", "."): value for name, value in configs.items()}
        self.image.apply(StaticConfigsChanged(StaticSource.START, tuple(sorted(said.items()))))

    def ask(self, request: TokenChange) -> Any:
        records, reply = decide_tokens(self.image, request)  # type: ignore[arg-type]
        for record in records:
            self.image.apply(record)
        return reply

    def error(self, request: TokenChange) -> ErrorCode:
        before = dict(self.image.tokens)
        reply = self.ask(request)
        assert isinstance(reply, DelegationTokenAnswer) and reply.error
        assert (reply.token, reply.hmac, reply.expires_at_ms, self.image.tokens) == (None, b"", -1, before)
        return ErrorCode(reply.error)


def test_a_token_has_the_hmac_and_the_times_that_kafka_gives_it() -> None:
    tokens = Tokens()
    reply = tokens.ask(MINE)
    assert reply.hmac == hmac.new(KEY.encode(), b"t", hashlib.sha512).digest()
    token = tokens.image.tokens["t"]
    assert (token.owner, token.requester, token.renewers) == (ALICE, ALICE, (BOB,))
    assert (token.issued_at_ms, token.expires_at_ms, token.ends_at_ms) == (NOW, NOW + DAY, NOW + WEEK)
    assert (reply.token, reply.error, reply.expires_at_ms) == (token, 0, NOW + DAY)


@pytest.mark.parametrize(
    ("asked_ms", "lifetime_ms", "expires_ms"),
    [(-1, WEEK, DAY), (0, WEEK, DAY), (1, 1, 1), (WEEK + 1, WEEK, DAY), (2 * DAY, 2 * DAY, DAY), (1 << 62, WEEK, DAY)],
)
def test_a_token_lives_as_long_as_is_asked_for_and_allowed(asked_ms: int, lifetime_ms: int, expires_ms: int) -> None:
    token = Tokens().ask(replace(MINE, lifetime_ms=asked_ms)).token
    assert (token.ends_at_ms, token.expires_at_ms) == (NOW + lifetime_ms, NOW + expires_ms)


def test_the_configs_bound_a_tokens_life_and_its_renewals() -> None:
    tokens = Tokens(delegation_token_max_lifetime_ms="1000", delegation_token_expiry_time_ms="600")
    reply = tokens.ask(MINE)
    assert (reply.expires_at_ms, reply.token.ends_at_ms) == (NOW + 600, NOW + 1_000)
    renewed = tokens.ask(RenewDelegationToken(reply.hmac, 10_000, NOW + 100, ALICE))
    assert renewed.expires_at_ms == NOW + 700
    renewed = tokens.ask(RenewDelegationToken(reply.hmac, -1, NOW + 500, BOB))
    assert renewed.expires_at_ms == NOW + 1_000 == tokens.image.tokens["t"].ends_at_ms, "no renewal passes the end"
    assert tokens.error(RenewDelegationToken(reply.hmac, -1, NOW + 1_001, ALICE)) is ErrorCode.delegation_token_expired


def test_without_a_key_there_are_no_tokens() -> None:
    for configs in ({}, {token_configs.LIFETIME: "1000"}):
        tokens = Tokens(delegation_token_secret_key="", **configs)
        for request in (
            MINE,
            replace(MINE, owner="Group:g"),
            RenewDelegationToken(b"", 1, NOW, ALICE),
            ExpireDelegationToken(b"", 1, NOW, ALICE),
        ):
            assert tokens.error(request) is ErrorCode.delegation_token_auth_disabled
        described = describe_tokens(tokens.image, DescribeDelegationTokens())
        assert ErrorCode(described.error) is ErrorCode.delegation_token_auth_disabled and not described.tokens


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (replace(MINE, owner="Group:g"), ErrorCode.invalid_principal_type),
        (replace(MINE, renewers=(BOB, "Group:g")), ErrorCode.invalid_principal_type),
        (replace(MINE, asked_by="Cluster:client"), ErrorCode.invalid_principal_type),
        (replace(MINE, owner="User:" + "x" * 996), ErrorCode.invalid_request),
        (replace(MINE, renewers=("User:" + "x" * 996,)), ErrorCode.invalid_request),
        (replace(MINE, renewers=(BOB,) * (RENEWERS_MAX + 1)), ErrorCode.invalid_request),
    ],
)
def test_what_nobody_can_own_or_renew_is_no_token(request_: TokenChange, error: ErrorCode) -> None:
    assert Tokens().error(request_) is error


def test_an_owner_is_as_long_as_a_requests_context_can_say() -> None:
    assert token_decisions.PRINCIPAL_CHARACTERS_MAX == context.PRINCIPAL_CHARACTERS_MAX


def test_a_token_for_somebody_else_is_that_users_and_its_requesters() -> None:
    tokens = Tokens()
    made = tokens.ask(replace(MINE, owner=CAROL, renewers=()))
    assert (made.token.owner, made.token.requester) == (CAROL, ALICE)
    for who in (CAROL, ALICE):
        assert tokens.ask(RenewDelegationToken(made.hmac, 5, NOW, who)).expires_at_ms == NOW + 5
    assert tokens.error(RenewDelegationToken(made.hmac, 5, NOW, BOB)) is ErrorCode.delegation_token_owner_mismatch


@pytest.mark.parametrize("kind", [RenewDelegationToken, ExpireDelegationToken])
def test_a_stranger_and_a_forged_hmac_change_nothing(kind: Any) -> None:
    tokens = Tokens()
    made = tokens.ask(MINE).hmac
    assert tokens.error(kind(made, -1, NOW, EVE)) is ErrorCode.delegation_token_owner_mismatch
    other_key = hmac.new(b"another key", b"t", hashlib.sha512).digest()
    for forged in (b"", made[:-1], made + b"x", bytes(64), other_key):
        assert tokens.error(kind(forged, -1, NOW, ALICE)) is ErrorCode.delegation_token_not_found
    assert tokens.ask(kind(made, 5, NOW, "Cluster:client")).expires_at_ms == NOW + 5


def test_a_token_is_expired_later_sooner_and_at_once() -> None:
    tokens = Tokens()
    made = tokens.ask(MINE).hmac
    assert tokens.ask(ExpireDelegationToken(made, 2 * WEEK, NOW, BOB)).expires_at_ms == NOW + WEEK
    assert tokens.ask(ExpireDelegationToken(made, 0, NOW, BOB)).expires_at_ms == NOW
    late = NOW + 1
    assert tokens.error(ExpireDelegationToken(made, 1, late, ALICE)) is ErrorCode.delegation_token_expired
    assert tokens.error(RenewDelegationToken(made, 1, late, EVE)) is ErrorCode.delegation_token_expired
    assert tokens.ask(ExpireDelegationToken(made, -1, late, ALICE)).expires_at_ms == late
    assert tokens.error(ExpireDelegationToken(made, -1, late, ALICE)) is ErrorCode.delegation_token_not_found


def test_expired_tokens_are_removed_and_no_others() -> None:
    tokens = Tokens()
    tokens.ask(MINE)
    tokens.ask(replace(MINE, token_id="short", lifetime_ms=10))
    assert tokens.ask(RemoveExpiredTokens(NOW + 10)) == DelegationTokensRemoved(())
    assert tokens.ask(RemoveExpiredTokens(NOW + 11)) == DelegationTokensRemoved(("short",))
    assert list(tokens.image.tokens) == ["t"]


def test_tokens_are_described_by_owner_and_by_time() -> None:
    tokens = Tokens()
    for token_id, owner, now in (("b", ALICE, NOW), ("a", BOB, NOW + 1), ("c", CAROL, NOW - 1)):
        tokens.ask(CreateDelegationToken(token_id, None, (EVE,) if owner == CAROL else (), -1, now, owner))

    def described(owners: tuple[str, ...] | None) -> list[str]:
        return [each.token_id for each, _ in describe_tokens(tokens.image, DescribeDelegationTokens(owners)).tokens]

    assert described(None) == ["c", "b", "a"]
    assert described((ALICE, EVE)) == ["c", "b"]
    assert described(()) == described(("User:nobody",)) == []


def test_the_configs_are_checked_and_the_key_is_no_config_that_changes() -> None:
    from raylog.configs.broker_configs import changeable_config, for_all_brokers

    assert for_all_brokers({token_configs.SECRET_KEY: " k "}) == {token_configs.SECRET_KEY: "k"}
    for name in (token_configs.LIFETIME, token_configs.EXPIRY, token_configs.CHECK_INTERVAL):
        with pytest.raises(ConfigError, match="must be"):
            for_all_brokers({name: "0"})
    with pytest.raises(ConfigError, match="fixed when the cluster starts"):
        changeable_config(token_configs.SECRET_KEY, None)
