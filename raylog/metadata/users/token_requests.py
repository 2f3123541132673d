"""What is asked of the controller about delegation tokens, and what it answers, as in ``requests``.

Principals are a type and a name, times are milliseconds since 1970. ``asked_by`` is the principal
that a Broker has authenticated, or that of a process that knows the cluster's secret; ``now_ms`` is
the controller's clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from raylog.security.tokens import DelegationToken


class TokenChange:
    """What may change tokens."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class CreateDelegationToken(TokenChange):
    """→ DelegationTokenAnswer. ``owner`` None: who asks. ``lifetime_ms`` 0 or less: the longest."""

    token_id: str
    owner: str | None
    renewers: tuple[str, ...]
    lifetime_ms: int
    now_ms: int
    asked_by: str = ""


@dataclass(frozen=True, slots=True)
class RenewDelegationToken(TokenChange):
    """→ DelegationTokenAnswer. ``period_ms`` 0 or less: the longest."""

    hmac: bytes = field(repr=False)
    period_ms: int
    now_ms: int
    asked_by: str = ""


@dataclass(frozen=True, slots=True)
class ExpireDelegationToken(TokenChange):
    """→ DelegationTokenAnswer. ``period_ms`` below 0: the token is removed now."""

    hmac: bytes = field(repr=False)
    period_ms: int
    now_ms: int
    asked_by: str = ""


@dataclass(frozen=True, slots=True)
class RemoveExpiredTokens(TokenChange):
    """→ DelegationTokensRemoved. The controller's own shell asks."""

    now_ms: int


@dataclass(frozen=True, slots=True)
class DelegationTokenAnswer:
    """``token`` is None with an error; ``hmac`` is there for a token that was created.
    ``expires_at_ms`` is −1 with an error.
    """

    error: int = 0
    token: DelegationToken | None = None
    hmac: bytes = field(default=b"", repr=False)
    expires_at_ms: int = -1


@dataclass(frozen=True, slots=True)
class DelegationTokensRemoved:
    token_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DescribeDelegationTokens:
    """→ DelegationTokensDescribed. ``owners`` None: the tokens of all; else those that one of them
    owns, has asked for or may renew.
    """

    owners: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class DelegationTokensDescribed:
    """Each token with its HMAC, by time and id."""

    tokens: tuple[tuple[DelegationToken, bytes], ...] = field(default=(), repr=False)
    error: int = 0
