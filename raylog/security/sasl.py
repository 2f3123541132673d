"""The server's half of SASL: one exchange of tokens, by which a client proves who it is.

::

    SCRAM-SHA-256, SCRAM-SHA-512 (RFC 5802, 7677)        PLAIN (RFC 4616)

    client-first  n,,n=USER,r=NONCE                      [USER] NUL USER NUL PASSWORD
    server-first  r=NONCE+OURS,s=SALT,i=ITERATIONS
    client-final  c=biws,r=NONCE+OURS,p=PROOF
    server-final  v=SIGNATURE                            (nothing)

An exchange is given each token and returns a ``Step``: ``Continue`` with the answer; ``Check``, for
PLAIN, whose password has to be hashed first, which is slow and is the caller's to do in a thread;
``Done`` with who it is. AuthenticationError ends it. Its message is for the server's log and holds
nothing that the client sent but the names of known users; clients are not told it.

A user that does not exist goes through the same steps with a credential that nobody has
(``NobodysCredentials``), and fails at the end like one with a wrong password. So an answer does not
tell who exists. The one thing that may is an iteration count other than the usual one.

Channel binding is not offered: a client that asks for it (``p=``) is refused, and the flag that a
client sent first has to come back in its last message. Somebody else's rights (``authzid``) are
refused. Passwords of PLAIN are checked against the same credentials.

With the extension ``tokenauth=true`` of SCRAM's first message the name is the id of a delegation
token, whose HMAC is the password (``raylog.security.tokens``). The client is the token's owner
then. PLAIN has no such extension, and a token is no password of its owner.

scramp, which carries the handshake between servers (``raylog.wire.handshake``), cannot carry this
half. Its server runs SASLprep over each name, so ``ª`` would be user ``a`` and some names would be
none, where Kafka and its clients leave names alone. It takes no attribute of more than one letter,
such as ``tokenauth``, no ``authzid``, where Kafka takes the user's own name, and no salt of fewer
than 12 bytes. None of it can be kept from scramp and put back, because the proof covers the
messages as they were sent.

Invariant: an exchange is done at most once, and takes no token after that or after an error.
"""

from __future__ import annotations

import binascii
import hmac
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from raylog.security.scram import ITERATIONS_MIN, CredentialKey, ScramCredential, ScramMechanism, has_password, salt_of
from raylog.security.tokens import DelegationToken, TokenCredentials, principal_name

PLAIN: Final = "PLAIN"
OAUTHBEARER: Final = "OAUTHBEARER"  # raylog.security.bearer
MECHANISMS: Final = (*(mechanism.sasl_name for mechanism in ScramMechanism), PLAIN, OAUTHBEARER)
TOKEN_BYTES_MAX: Final = 16 * 1024

Credentials = Mapping[CredentialKey, ScramCredential]

_NONCE = r"[!-+\--~]+"
_FIRST = re.compile(rf"([ny],(?:a=([^,\0]*))?,)(n=([^,\0]+),r=({_NONCE})((?:,[A-Za-z]+=[^,\0]+)*))")
_FINAL = re.compile(rf"(c=([A-Za-z0-9+/=]+),r=({_NONCE})(?:,[A-Za-z]+=[^,\0]+)*),p=([A-Za-z0-9+/=]+)")
_ESCAPES = {"=2C": ",", "=3D": "="}
_escape = re.compile(r"=(?:2C|3D)?")


class AuthenticationError(Exception):
    """The client has not proved that it is who it says."""


@dataclass(frozen=True, slots=True)
class Continue:
    reply: bytes


@dataclass(frozen=True, slots=True)
class Done:
    """``credential`` is the one that was proved; ``token``: of this delegation token. ``reply`` goes
    with the good news.
    """

    user: str
    mechanism: ScramMechanism
    credential: ScramCredential
    reply: bytes = b""
    token: DelegationToken | None = None


@dataclass(frozen=True, slots=True)
class Check:
    """``is_right`` hashes for some milliseconds and touches nothing; ``done`` holds if it is True."""

    is_right: Callable[[], bool]
    done: Done


Step = Continue | Check | Done


class NobodysCredentials:
    """Credentials of users that do not exist: always the same for a name, on every broker, and
    nobody's password. ``key`` is a secret of the cluster.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key

    def credential(self, user: str, mechanism: ScramMechanism) -> ScramCredential:
        def derived(purpose: str) -> bytes:
            return mechanism.hmac(self._key, f"{purpose} {mechanism.value} {user}".encode())

        return ScramCredential(salt_of(derived("salt")), derived("stored"), derived("server"), ITERATIONS_MIN)


class ScramExchange:
    """``nonce`` is random, printable and without commas, and is used once. ``tokens`` are those that
    may be used, ``now_ms`` the time since 1970.
    """

    def __init__(
        self,
        mechanism: ScramMechanism,
        credentials: Credentials,
        nobody: NobodysCredentials,
        nonce: str,
        *,
        tokens: TokenCredentials | None = None,
        now_ms: int = 0,
    ) -> None:
        self._mechanism = mechanism
        self._credentials = credentials
        self._nobody = nobody
        self._own_nonce = nonce
        self._tokens = tokens or TokenCredentials()
        self._now_ms = now_ms
        self._token: DelegationToken | None = None
        self._is_known = False
        self._user = ""
        self._gs2_header = ""
        self._nonce = ""
        self._messages = ""  # client-first-bare and server-first; empty: neither was sent
        self._credential: ScramCredential | None = None
        self._is_over = False

    def receive(self, token: bytes) -> Step:
        """The answer to a token. Raises AuthenticationError."""
        assert not self._is_over, "a token after the end"
        try:
            text = token.decode()
        except UnicodeDecodeError:
            self._is_over = True
            raise AuthenticationError("a message that is not UTF-8") from None
        try:
            if self._credential is None:
                return self._first(text)
            return self._final(text, self._credential)
        except AuthenticationError:
            self._is_over = True
            raise

    def _first(self, text: str) -> Continue:
        found = _FIRST.fullmatch(text)
        if found is None:
            raise AuthenticationError("its first message is not SCRAM's, or asks for channel binding")
        self._gs2_header, authzid, bare, name, nonce, extensions = found.groups()
        self._user = _unescaped(name)
        if authzid and _unescaped(authzid) != self._user:
            raise AuthenticationError("it asks for another user's rights")
        credential = self._kept(dict(each.split("=", 1) for each in extensions.split(",")[1:]))
        self._is_known = credential is not None
        self._credential = credential or self._nobody.credential(self._user, self._mechanism)
        self._nonce = nonce + self._own_nonce
        salt = b64encode(self._credential.salt).decode()
        server_first = f"r={self._nonce},s={salt},i={self._credential.iterations}"
        self._messages = f"{bare},{server_first}"
        return Continue(server_first.encode())

    def _kept(self, extensions: Mapping[str, str]) -> ScramCredential | None:
        """The user's credential, or that of the token of this id."""
        if extensions.get("tokenauth", "").lower() != "true":
            return self._credentials.get((self._user, self._mechanism))
        self._token = self._tokens.find(self._user, self._now_ms)
        return None if self._token is None else self._tokens.credential(self._user, self._mechanism)

    def _final(self, text: str, credential: ScramCredential) -> Done:
        found = _FINAL.fullmatch(text)
        if found is None:
            raise AuthenticationError("its last message is not SCRAM's")
        without_proof, binding, nonce, proof_text = found.groups()
        if _decoded(binding) != self._gs2_header.encode():
            raise AuthenticationError("the flag of channel binding has changed on the way")
        if not hmac.compare_digest(nonce.encode(), self._nonce.encode()):
            raise AuthenticationError("the nonce is not that of this exchange")
        proof = _decoded(proof_text)
        if len(proof) != self._mechanism.key_bytes:
            raise AuthenticationError("a proof of the wrong length")
        message = f"{self._messages},{without_proof}".encode()
        signature = self._mechanism.hmac(credential.stored_key, message)
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        is_right = hmac.compare_digest(self._mechanism.hash(client_key), credential.stored_key)
        if not (is_right and self._is_known):
            raise AuthenticationError(_wrong(self._user, is_known=self._is_known))
        self._is_over = True
        server_signature = b64encode(self._mechanism.hmac(credential.server_key, message))
        user = self._user if self._token is None else principal_name(self._token.owner)
        return Done(user, self._mechanism, credential, b"v=" + server_signature, self._token)


class PlainExchange:
    """A password is checked against the user's SCRAM credential: that of SHA-256 if he has one."""

    def __init__(self, credentials: Credentials, nobody: NobodysCredentials) -> None:
        self._credentials = credentials
        self._nobody = nobody

    def receive(self, token: bytes) -> Step:
        """What is to be checked. Raises AuthenticationError."""
        user, password = plain_message(token)
        first = next((each for each in ScramMechanism if (user, each) in self._credentials), None)
        mechanism = first or ScramMechanism.SCRAM_SHA_256
        credential = self._credentials[user, mechanism] if first else self._nobody.credential(user, mechanism)

        def is_right() -> bool:
            return has_password(mechanism, credential, password) and first is not None

        return Check(is_right, Done(user, mechanism, credential))


Exchange = ScramExchange | PlainExchange


def plain_message(token: bytes) -> tuple[str, str]:
    """The name and the password of PLAIN's only message. Raises AuthenticationError."""
    try:
        authzid, user, password = token.decode().split("\0")
    except ValueError:  # not three texts, or not UTF-8
        raise AuthenticationError("a message that is not PLAIN's") from None
    if not user or not password:
        raise AuthenticationError("no name or no password")
    if authzid not in ("", user):
        raise AuthenticationError("it asks for another user's rights")
    return user, password


def _wrong(user: str, *, is_known: bool) -> str:
    """A name that nobody has may be a password that somebody typed at the wrong place."""
    return f"a wrong password of user {user!r}" if is_known else "no such user"


def _unescaped(name: str) -> str:
    """A name as SCRAM writes it: ``=2C`` is a comma, ``=3D`` an equals sign, and nothing else is
    escaped.
    """

    def plain(found: re.Match[str]) -> str:
        if found[0] not in _ESCAPES:
            raise AuthenticationError("a name that is not escaped as SCRAM's are")
        return _ESCAPES[found[0]]

    return _escape.sub(plain, name)


def _decoded(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except binascii.Error:
        raise AuthenticationError("a message with broken base64") from None
