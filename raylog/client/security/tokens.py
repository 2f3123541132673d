"""What an admin client can do about delegation tokens (KIP-48, KIP-373).

A token's HMAC is a secret: whoever has it and the token's id is the token's owner. Who may ask is the
brokers' to say, where the client comes in by a Kafka listener. A native client that knows the
cluster's secret makes tokens for the owners that it names, and may renew and expire every token.
"""

from __future__ import annotations

import datetime
from base64 import b64decode, b64encode
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, TypeVar

from kio.schema.errors import ErrorCode

from raylog.errors import ConfigError, error_for
from raylog.security.tokens import USER_TYPE, principal_name, principal_type

T = TypeVar("T")
_ALTERS, _READS = 3, 2  # versions
_ERRORS = {
    ErrorCode.delegation_token_auth_disabled: "the cluster has no delegation.token.secret.key, so it has no tokens",
    ErrorCode.delegation_token_request_not_allowed: "tokens are for clients that have authenticated, and not by a token",
    ErrorCode.delegation_token_authorization_failed: "making a token for somebody else takes CreateTokens on that user",
    ErrorCode.delegation_token_owner_mismatch: "only a token's owner, requester and renewers may renew and expire it",
    ErrorCode.delegation_token_not_found: "no token has that HMAC",
    ErrorCode.delegation_token_expired: "the token has expired",
    ErrorCode.invalid_principal_type: "owners and renewers of tokens are users, such as User:alice; name an owner "
    "where nobody has authenticated",
}


@dataclass(frozen=True, slots=True)
class TokenDescription:
    """Principals are a type and a name, such as ``User:alice``. Times are milliseconds since 1970.
    ``hmac`` in base64 is the password of SCRAM, with the token's id as the name.
    """

    token_id: str
    hmac: bytes = field(repr=False)
    owner: str
    requester: str
    renewers: tuple[str, ...]
    issued_at_ms: int
    expires_at_ms: int
    ends_at_ms: int

    @property
    def password(self) -> str:
        return b64encode(self.hmac).decode()


def hmac_of(password: str) -> bytes:
    """What ``TokenDescription.password`` was made of. Raises ConfigError."""
    try:
        return b64decode(password, validate=True)
    except ValueError:
        raise ConfigError("a token's HMAC is base64, as `raylog tokens create` prints it") from None


class AsyncTokenCalls:
    """Mixed into ``AsyncAdminClient``."""

    async def _ask(self, request: Any, timeout_ms: float | None = None) -> Any:
        raise NotImplementedError

    async def create_delegation_token(
        self, *, owner: str | None = None, renewers: Sequence[str] = (), lifetime_ms: int = -1
    ) -> TokenDescription:
        """A token of that owner, or of who asks. ``lifetime_ms`` −1: the longest.

        Brokers learn of it a moment later.
        """
        schema = _schema("create", _ALTERS)
        reply = await self._ask(
            schema.CreateDelegationTokenRequest(
                owner_principal_type=None if owner is None else _typed(owner)[0],
                owner_principal_name=None if owner is None else _typed(owner)[1],
                renewers=tuple(
                    schema.CreatableRenewers(principal_type=type, principal_name=name)
                    for type, name in map(_typed, renewers)
                ),
                max_lifetime=datetime.timedelta(milliseconds=lifetime_ms),
            )
        )
        _raise(reply)
        return _described(reply, tuple(":".join(_typed(each)) for each in renewers))

    async def renew_delegation_token(self, hmac: bytes, *, period_ms: int = -1) -> int:
        """Have it last so long from now, −1: as long as may be. Returns the time of its expiry."""
        schema = _schema("renew", _READS)
        period = datetime.timedelta(milliseconds=period_ms)
        reply = await self._ask(schema.RenewDelegationTokenRequest(hmac=hmac, renew_period=period))
        _raise(reply)
        return _milliseconds(reply.expiry_timestamp)

    async def expire_delegation_token(self, hmac: bytes, *, period_ms: int = -1) -> int:
        """Have it last so long from now; −1: remove it, and end its connections. Returns the time of
        its expiry.
        """
        schema = _schema("expire", _READS)
        period = datetime.timedelta(milliseconds=period_ms)
        reply = await self._ask(schema.ExpireDelegationTokenRequest(hmac=hmac, expiry_time_period=period))
        _raise(reply)
        return _milliseconds(reply.expiry_timestamp)

    async def describe_delegation_tokens(self, owners: Iterable[str] | None = None) -> list[TokenDescription]:
        """The tokens of these principals, or all, as far as who asks may see them; by time."""
        schema = _schema("describe", _ALTERS)
        named = (
            None
            if owners is None
            else tuple(
                schema.DescribeDelegationTokenOwner(principal_type=type, principal_name=name)
                for type, name in map(_typed, owners)
            )
        )
        reply = await self._ask(schema.DescribeDelegationTokenRequest(owners=named))
        _raise(reply)
        return [
            _described(each, tuple(f"{one.principal_type}:{one.principal_name}" for one in each.renewers))
            for each in reply.tokens
        ]


class TokenCalls:
    """The same, blocking. Mixed into ``AdminClient``."""

    _client: AsyncTokenCalls

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        raise NotImplementedError

    def create_delegation_token(
        self, *, owner: str | None = None, renewers: Sequence[str] = (), lifetime_ms: int = -1
    ) -> TokenDescription:
        """See ``AsyncAdminClient.create_delegation_token``."""
        return self._run(self._client.create_delegation_token(owner=owner, renewers=renewers, lifetime_ms=lifetime_ms))

    def renew_delegation_token(self, hmac: bytes, *, period_ms: int = -1) -> int:
        """See ``AsyncAdminClient.renew_delegation_token``."""
        return self._run(self._client.renew_delegation_token(hmac, period_ms=period_ms))

    def expire_delegation_token(self, hmac: bytes, *, period_ms: int = -1) -> int:
        """See ``AsyncAdminClient.expire_delegation_token``."""
        return self._run(self._client.expire_delegation_token(hmac, period_ms=period_ms))

    def describe_delegation_tokens(self, owners: Iterable[str] | None = None) -> list[TokenDescription]:
        """See ``AsyncAdminClient.describe_delegation_tokens``."""
        return self._run(self._client.describe_delegation_tokens(owners))


def _schema(name: str, version: int) -> Any:
    return import_module(f"kio.schema.{name}_delegation_token.v{version}.request")


def _typed(principal: str) -> tuple[str, str]:
    """A name without a type is a user's."""
    if ":" not in principal:
        return USER_TYPE, principal
    return principal_type(principal), principal_name(principal)


def _described(told: Any, renewers: tuple[str, ...]) -> TokenDescription:
    return TokenDescription(
        told.token_id,
        bytes(told.hmac),
        f"{told.principal_type}:{told.principal_name}",
        f"{told.token_requester_principal_type}:{told.token_requester_principal_name}",
        renewers,
        _milliseconds(told.issue_timestamp),
        _milliseconds(told.expiry_timestamp),
        _milliseconds(told.max_timestamp),
    )


def _milliseconds(time: Any) -> int:
    return time if isinstance(time, int) else round(time.timestamp() * 1_000)


def _raise(reply: Any) -> None:
    if reply.error_code is not ErrorCode.none:
        raise error_for(int(reply.error_code.value), _ERRORS.get(reply.error_code))
