"""Decisions about delegation tokens (KIP-48, KIP-373), with the errors and their order of Kafka's
controller.

Without ``delegation.token.secret.key`` there are no tokens: everything is refused by
DELEGATION_TOKEN_AUTH_DISABLED. A token has an owner who can authenticate, that is a ``User``. Who
owns it, has asked for it or is one of its renewers may renew and expire it; a process that knows the
cluster's secret may so with every token.

An expired token is good for nothing. It is removed when the controller next looks, every
``delegation.token.expiry.check.interval.ms``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, assert_never

from kio.schema.errors import ErrorCode

from raylog.configs import broker_configs, token_configs
from raylog.metadata.image import MetadataImage
from raylog.metadata.records import DelegationTokenRemoved, DelegationTokenSet, Record
from raylog.metadata.users.token_requests import (
    CreateDelegationToken,
    DelegationTokenAnswer,
    DelegationTokensDescribed,
    DelegationTokensRemoved,
    DescribeDelegationTokens,
    ExpireDelegationToken,
    RemoveExpiredTokens,
    RenewDelegationToken,
)
from raylog.security.tokens import USER_TYPE, DelegationToken, principal_type, token_hmac, token_with_hmac

RENEWERS_MAX: Final = 100
PRINCIPAL_CHARACTERS_MAX: Final = 1_000  # as long as a request's context can say
_OF_CLUSTER: Final = "Cluster"

_Decided = tuple[list[Record], DelegationTokenAnswer | DelegationTokensRemoved]


def decide_tokens(
    image: MetadataImage,
    request: CreateDelegationToken | RenewDelegationToken | ExpireDelegationToken | RemoveExpiredTokens,
) -> _Decided:
    """The records that do what the request asks, and its answer."""
    match request:
        case RemoveExpiredTokens(now_ms):
            over = tuple(token.token_id for token in image.tokens.values() if token.is_over(now_ms))
            return [DelegationTokenRemoved(token_id) for token_id in over], DelegationTokensRemoved(over)
        case CreateDelegationToken():
            return _create(image, request)
        case RenewDelegationToken():
            return _renew(image, request)
        case ExpireDelegationToken():
            return _expire(image, request)
        case _:
            assert_never(request)


def describe_tokens(image: MetadataImage, request: DescribeDelegationTokens) -> DelegationTokensDescribed:
    key = token_configs.secret_key(image.broker_configs)
    if not key:
        return DelegationTokensDescribed(error=ErrorCode.delegation_token_auth_disabled.value)
    owners = request.owners
    found = (each for each in image.tokens.values() if owners is None or any(map(each.is_of, owners)))
    ordered = sorted(found, key=lambda each: (each.issued_at_ms, each.token_id))
    return DelegationTokensDescribed(tuple((each, token_hmac(key, each.token_id)) for each in ordered))


def _create(image: MetadataImage, request: CreateDelegationToken) -> _Decided:
    key = token_configs.secret_key(image.broker_configs)
    owner = request.asked_by if request.owner is None else request.owner
    principals = (owner, *request.renewers)
    if not key:
        return _refused(ErrorCode.delegation_token_auth_disabled)
    if any(principal_type(each) != USER_TYPE for each in principals):
        return _refused(ErrorCode.invalid_principal_type)
    if len(request.renewers) > RENEWERS_MAX or any(len(each) > PRINCIPAL_CHARACTERS_MAX for each in principals):
        return _refused(ErrorCode.invalid_request)
    longest_ms = _configured(image, token_configs.LIFETIME)
    lifetime_ms = min(request.lifetime_ms, longest_ms) if request.lifetime_ms > 0 else longest_ms
    ends_at_ms = request.now_ms + lifetime_ms
    expires_at_ms = min(ends_at_ms, request.now_ms + _configured(image, token_configs.EXPIRY))
    token = DelegationToken(
        request.token_id, owner, request.asked_by, request.renewers, request.now_ms, expires_at_ms, ends_at_ms
    )
    made = token_hmac(key, token.token_id)
    return [DelegationTokenSet(token)], DelegationTokenAnswer(0, token, made, expires_at_ms)


def _renew(image: MetadataImage, request: RenewDelegationToken) -> _Decided:
    token = _named(image, request)
    if isinstance(token, ErrorCode):
        return _refused(token)
    if token.is_over(request.now_ms):
        return _refused(ErrorCode.delegation_token_expired)
    if not _may(token, request.asked_by):
        return _refused(ErrorCode.delegation_token_owner_mismatch)
    longest_ms = _configured(image, token_configs.EXPIRY)
    period_ms = min(request.period_ms, longest_ms) if request.period_ms > 0 else longest_ms
    return _lasting(token, request.now_ms + period_ms)


def _expire(image: MetadataImage, request: ExpireDelegationToken) -> _Decided:
    token = _named(image, request)
    if isinstance(token, ErrorCode):
        return _refused(token)
    if not _may(token, request.asked_by):
        return _refused(ErrorCode.delegation_token_owner_mismatch)
    if request.period_ms < 0:
        answer = DelegationTokenAnswer(0, token, expires_at_ms=request.now_ms)
        return [DelegationTokenRemoved(token.token_id)], answer
    if token.is_over(request.now_ms):
        return _refused(ErrorCode.delegation_token_expired)
    return _lasting(token, request.now_ms + request.period_ms)


def _named(image: MetadataImage, request: RenewDelegationToken | ExpireDelegationToken) -> DelegationToken | ErrorCode:
    key = token_configs.secret_key(image.broker_configs)
    if not key:
        return ErrorCode.delegation_token_auth_disabled
    found = token_with_hmac(image.tokens, key, request.hmac)
    return ErrorCode.delegation_token_not_found if found is None else found


def _may(token: DelegationToken, principal: str) -> bool:
    return token.is_of(principal) or principal_type(principal) == _OF_CLUSTER


def _lasting(token: DelegationToken, until_ms: int) -> _Decided:
    """The token expires then, and at the end of its life at the latest."""
    changed = replace(token, expires_at_ms=min(token.ends_at_ms, until_ms))
    return [DelegationTokenSet(changed)], DelegationTokenAnswer(0, changed, expires_at_ms=changed.expires_at_ms)


def _configured(image: MetadataImage, name: str) -> int:
    default = int(broker_configs.BROKER_CONFIGS[name].default)
    return broker_configs.number(image.broker_configs, None, name, default=default)


def _refused(error: ErrorCode) -> _Decided:
    return [], DelegationTokenAnswer(error.value)
