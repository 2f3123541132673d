"""JSON Web Tokens as proofs of who a client is (RFC 7515, 7519): their form, their keys and what
they claim.

::

    BASE64URL(header) . BASE64URL(claims) . BASE64URL(signature)

    header   {"alg": "RS256", "kid": "key-1", …}
    claims   {"sub": "alice", "exp": 1753000000, "iat": 1752996400, …}     times: seconds since 1970

A token is checked in this order, and the first step that fails refuses it: its form, its algorithm,
its key, its signature, its claims. Nothing of a token is believed before its signature is right,
except which key of the listener's own set to try. A key names the algorithms that it may be used
with, by its type, its curve and its own members ``alg``, ``use`` and ``key_ops``; so a token cannot
turn a public key into a shared secret (HS256), and there is no algorithm ``none``. A header with
``crit`` is refused, as none of its extensions are known here.

An unsecured token (``alg`` is ``none``, no signature) is another form, which ``unsecured_claims``
takes and nothing else does.

Messages of errors are for the server's log and hold nothing of a token.
"""

from __future__ import annotations

import binascii
import json
import math
import re
from base64 import urlsafe_b64decode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from raylog.security.principal_mapping import UNPRINTABLE
from raylog.security.sasl import AuthenticationError

RSA_BITS_MIN: Final = 2048
RSA_ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
ALGORITHM_OF_CURVE: Final = {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512"}
ALGORITHMS: Final = (*RSA_ALGORITHMS, *ALGORITHM_OF_CURVE.values())
NAME_CHARACTERS_MAX: Final = 995  # a principal has 1,000, and "User:" before its name
KEYS_MAX: Final = 1_000  # of one set

_COMPACT = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
_UNSECURED = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.")
_PUBLIC_MEMBERS: Final = {"RSA": ("kty", "n", "e"), "EC": ("kty", "crv", "x", "y")}


class UnknownKeyError(AuthenticationError):
    """The token names a key that is not in the set. A newer set may have it."""


@dataclass(frozen=True, slots=True)
class TokenHeader:
    algorithm: str
    key_id: str | None


@dataclass(frozen=True, slots=True)
class TokenRules:
    """What claims have to say. ``audiences``: the token is for one of them; empty: for anybody.
    ``issuer`` None: any. Clocks may differ by ``clock_skew_s``.
    """

    audiences: frozenset[str] = frozenset()
    issuer: str | None = None
    clock_skew_s: int = 30
    scope_claim: str = "scope"
    subject_claim: str = "sub"


@dataclass(frozen=True, slots=True)
class Subject:
    """Whom a token names. It expires at ``expires_at``, seconds since 1970."""

    name: str
    expires_at: float


@dataclass(frozen=True, slots=True)
class PublicKey:
    """One key of a set. ``key`` is cryptography's. ``algorithms``: those that it verifies."""

    key_id: str | None
    algorithms: tuple[str, ...]
    key: Any


class KeySet:
    """The keys of an issuer (RFC 7517, JWKS). ``ignored``: how many there were that verify nothing
    here, such as shared secrets, keys for encryption and RSA keys of less than ``RSA_BITS_MIN`` bits.
    """

    def __init__(self, keys: Sequence[PublicKey], ignored: int = 0) -> None:
        self.keys = tuple(keys)
        self.ignored = ignored

    @classmethod
    def parse(cls, text: str | bytes) -> KeySet:
        """Raises ValueError for what is no set, or has no key that verifies tokens."""
        try:
            found = json.loads(text)
        except RecursionError:
            raise ValueError("it is nested too deeply") from None
        entries = found.get("keys") if isinstance(found, dict) else None
        if not isinstance(entries, list):
            raise ValueError('it is no JSON Web Key Set: there is no list of "keys"')
        if len(entries) > KEYS_MAX:
            raise ValueError(f"it has {len(entries)} keys, allowed are {KEYS_MAX}")
        keys = [key for key in map(_public_key, entries) if key is not None]
        if not keys:
            raise ValueError(f"none of its {len(entries)} keys verifies tokens")
        return cls(keys, len(entries) - len(keys))

    def key_for(self, header: TokenHeader) -> PublicKey:
        """The key that the token names; where it names none, the only one of its algorithm. Raises
        AuthenticationError.
        """
        named = [key for key in self.keys if header.key_id is None or key.key_id == header.key_id]
        if not named:
            raise UnknownKeyError("a token of a key that is not in the set")
        fitting = [key for key in named if header.algorithm in key.algorithms]
        if not fitting:
            raise AuthenticationError("a token whose key is not for its algorithm")
        if len(fitting) > 1 and header.key_id is None:
            raise AuthenticationError("a token that does not say which key it is signed with")
        return fitting[0]


def header_of(token: str) -> TokenHeader:
    """The header of a signed token. Raises AuthenticationError."""
    if not _COMPACT.fullmatch(token):
        raise AuthenticationError("a token that is no signed JWT")
    header = _object(token.partition(".")[0], "header")
    algorithm, key_id = header.get("alg"), header.get("kid")
    if algorithm not in ALGORITHMS:
        raise AuthenticationError(f"a token whose algorithm is none of {', '.join(ALGORITHMS)}")
    if "crit" in header or "b64" in header:
        raise AuthenticationError("a token that needs extensions which are not known here")
    if not (key_id is None or isinstance(key_id, str)):
        raise AuthenticationError("a token whose key id is no text")
    return TokenHeader(algorithm, key_id)


def signed_claims(token: str, header: TokenHeader, key: PublicKey) -> dict[str, Any]:
    """The claims of a token that this key has signed. Takes up to a millisecond of one core. Raises
    AuthenticationError.
    """
    import jwt  # the extra has it

    assert header.algorithm in key.algorithms, f"a key for {key.algorithms}, and a token of {header.algorithm}"
    try:
        jwt.PyJWS().decode_complete(token, key.key, algorithms=[header.algorithm])
    except (jwt.PyJWTError, ValueError, TypeError):
        raise AuthenticationError("a token whose signature is wrong") from None
    return _object(token.split(".")[1], "claims")


def unsecured_claims(token: str) -> dict[str, Any]:
    """The claims of a token that nobody has signed. They prove nothing. Raises AuthenticationError."""
    if not _UNSECURED.fullmatch(token):
        raise AuthenticationError("a token that is no unsecured JWT")
    header, claims, _ = token.split(".")
    said = _object(header, "header")
    if said.get("alg") != "none" or "crit" in said:
        raise AuthenticationError("a token without a signature whose algorithm is another one than none")
    return _object(claims, "claims")


def subject_of_claims(claims: Mapping[str, Any], rules: TokenRules, now: float) -> Subject:
    """Whom the claims name, if they count now (seconds since 1970) and here. Raises
    AuthenticationError.
    """
    expires_at = _time(claims, "exp")
    if now >= expires_at + rules.clock_skew_s:
        raise AuthenticationError("a token that has expired")
    for name in ("iat", "nbf"):
        if (name == "iat" or name in claims) and _time(claims, name) > now + rules.clock_skew_s:
            raise AuthenticationError("a token that is not valid yet")
    if rules.issuer is not None and claims.get("iss") != rules.issuer:
        raise AuthenticationError("a token of another issuer")
    if rules.audiences and rules.audiences.isdisjoint(_texts(claims, "aud")):
        raise AuthenticationError("a token for another audience")
    if rules.scope_claim in claims:
        scopes = _texts(claims, rules.scope_claim)
        if len(set(scopes)) < len(scopes) or not all(each.strip() for each in scopes):
            raise AuthenticationError("a token with an empty or repeated scope")
    return Subject(_name(claims.get(rules.subject_claim)), expires_at)


def _name(subject: object) -> str:
    if not isinstance(subject, str) or not subject.strip():
        raise AuthenticationError("a token that names nobody")
    if len(subject) > NAME_CHARACTERS_MAX:
        raise AuthenticationError(f"a token that names somebody in more than {NAME_CHARACTERS_MAX} characters")
    if UNPRINTABLE.search(subject) or (not subject.isascii() and _has_surrogate(subject)):
        raise AuthenticationError("a token that names somebody with a control character")
    return subject


def _has_surrogate(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)


def _time(claims: Mapping[str, Any], name: str) -> float:
    value = claims.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise AuthenticationError(f"a token without a time {name}")
    try:
        seconds = float(value)
    except OverflowError:
        seconds = math.inf
    if not math.isfinite(seconds):
        raise AuthenticationError(f"a token with a time {name} that is no time")
    return seconds


def _texts(claims: Mapping[str, Any], name: str) -> list[str]:
    """A claim that is a text or a list of texts."""
    value = claims.get(name, [])
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise AuthenticationError(f"a token whose claim {name} is no text and no list of texts")
    return found


def _object(segment: str, what: str) -> dict[str, Any]:
    """A part of a token that is a JSON object, in which no name is there twice."""
    try:
        text = urlsafe_b64decode(segment + "=" * (-len(segment) % 4)).decode()
        found = json.loads(text, object_pairs_hook=_once, parse_constant=_no_constant)
    except (ValueError, RecursionError, binascii.Error):
        raise AuthenticationError(f"a token whose {what} cannot be read") from None
    if not isinstance(found, dict):
        raise AuthenticationError(f"a token whose {what} is no JSON object")
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name is there twice")
    return found


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is no JSON")


def _public_key(entry: Any) -> PublicKey | None:
    """None for what verifies nothing here. Private members are not looked at."""
    import jwt
    from jwt.algorithms import ECAlgorithm, RSAAlgorithm

    if not isinstance(entry, dict) or entry.get("use", "sig") != "sig":
        return None
    kind, operations, key_id = entry.get("kty"), entry.get("key_ops"), entry.get("kid")
    if kind not in tuple(_PUBLIC_MEMBERS) or not (key_id is None or isinstance(key_id, str)):
        return None
    if operations is not None and not (isinstance(operations, list) and "verify" in operations):
        return None
    public = {name: entry.get(name) for name in _PUBLIC_MEMBERS[kind]}
    algorithms: tuple[str, ...]
    try:
        if kind == "RSA":
            key: Any = RSAAlgorithm.from_jwk(public)
            algorithms = RSA_ALGORITHMS if key.key_size >= RSA_BITS_MIN else ()
        else:
            key = ECAlgorithm.from_jwk(public)
            algorithms = (ALGORITHM_OF_CURVE[str(public["crv"])],)
    except (jwt.PyJWTError, ValueError, TypeError, KeyError, AttributeError):
        return None
    if "alg" in entry:
        algorithms = tuple(each for each in algorithms if each == entry["alg"])
    return PublicKey(key_id, algorithms, key) if algorithms else None
