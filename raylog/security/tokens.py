"""Delegation tokens as Apache Kafka has them (KIP-48, KIP-373): what is kept of one, and how a client
proves that it has it.

A token has an id, which everybody may know, and an HMAC, which is the secret::

    HMAC     = HMAC-SHA-512(key of the cluster, token id)
    password = base64(HMAC)

Nobody keeps the HMAC: whoever has the cluster's key (``delegation.token.secret.key``) works it out.
A client authenticates by SCRAM with the token's id as its name and that password, and is the
token's owner from then on. A token that was made with another key has another HMAC, and is worth
nothing.

The salt of a token's SCRAM credential follows from the key as well, so each broker has the same.
"""

from __future__ import annotations

import hmac
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from raylog.security.scram import (
    ITERATIONS_MIN,
    ScramCredential,
    ScramMechanism,
    credential_of,
    salt_of,
    salted_password,
)

USER_TYPE: Final = "User"


@dataclass(frozen=True, slots=True)
class DelegationToken:
    """Principals are a type and a name, such as ``User:alice``. Times are milliseconds since 1970.
    ``requester`` asked for the token, on behalf of ``owner`` if they differ.

    Invariant: ``issued_at_ms <= expires_at_ms <= ends_at_ms``, the last of which no renewal passes.
    """

    token_id: str
    owner: str
    requester: str
    renewers: tuple[str, ...]
    issued_at_ms: int
    expires_at_ms: int
    ends_at_ms: int

    def is_of(self, principal: str) -> bool:
        """Whether the principal may renew, expire and see it."""
        return principal in (self.owner, self.requester) or principal in self.renewers

    def is_over(self, now_ms: int) -> bool:
        return self.expires_at_ms < now_ms or self.ends_at_ms < now_ms


def token_hmac(key: bytes, token_id: str) -> bytes:
    """64 bytes."""
    return hmac.digest(key, token_id.encode(), "sha512")


def token_password(key: bytes, token_id: str) -> str:
    """The password by which SCRAM proves that a client has the token."""
    return b64encode(token_hmac(key, token_id)).decode()


def token_with_hmac(tokens: Mapping[str, DelegationToken], key: bytes, told: bytes) -> DelegationToken | None:
    """The token whose HMAC that is. Works out the HMACs of all tokens, about a microsecond each."""
    found = None
    for token in tokens.values():
        if hmac.compare_digest(token_hmac(key, token.token_id), told):
            found = token
    return found


def principal_name(principal: str) -> str:
    return principal.partition(":")[2]


def principal_type(principal: str) -> str:
    return principal.partition(":")[0]


@dataclass(slots=True)
class TokenCredentials:
    """The SCRAM credentials of tokens, each made when it is first asked for, which takes
    milliseconds.

    Invariant: ``_made`` has credentials of ``key`` only.
    """

    key: bytes = field(default=b"", repr=False)
    tokens: Mapping[str, DelegationToken] = field(default_factory=dict)
    _made: dict[tuple[str, ScramMechanism], ScramCredential] = field(default_factory=dict, repr=False)

    def follow(self, key: bytes, tokens: Mapping[str, DelegationToken]) -> None:
        """Go by these from now on; without a key no token counts."""
        if key != self.key:
            self._made.clear()
        self.key, self.tokens = key, tokens
        for made in [made for made in self._made if made[0] not in tokens]:
            del self._made[made]

    def find(self, token_id: str, now_ms: int) -> DelegationToken | None:
        """The token of that id, if it can be used now."""
        token = self.tokens.get(token_id)
        return None if token is None or not self.key or token.is_over(now_ms) else token

    def credential(self, token_id: str, mechanism: ScramMechanism) -> ScramCredential:
        """That of a token that there is."""
        made = self._made.get((token_id, mechanism))
        if made is None:
            salt = salt_of(token_hmac(self.key, f"salt {mechanism.value} {token_id}"))
            salted = salted_password(mechanism, token_password(self.key, token_id), salt, ITERATIONS_MIN)
            made = credential_of(mechanism, salted, salt, ITERATIONS_MIN)
            self._made[token_id, mechanism] = made
        return made

    def counts(self, token_id: str, mechanism: ScramMechanism, credential: ScramCredential) -> bool:
        """Whether a client that has proved this credential still may be the token's owner."""
        return bool(self.key) and token_id in self.tokens and self.credential(token_id, mechanism) == credential
