"""Users of PLAIN that a listener's settings name, as Kafka's PlainLoginModule has them::

    org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="PASSWORD" user_bob="PASSWORD";

Its ``username`` and ``password`` are those by which Kafka's brokers log in at each other; raylog's
servers do not, and nobody gets in with them.

No password is kept, only its hash. A wrong password and an unknown user take the same steps, and
hashes are compared in constant time. The passwords of a file may be weak all the same, and so may
their hashes be guessed: neither is shown anywhere.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from raylog.security.jaas import PLAIN_MODULE, JaasError, login_module
from raylog.security.sasl import AuthenticationError, plain_message

NAME_CHARACTERS_MAX: Final = 255
_USER: Final = "user_"
_OF_BROKERS: Final = ("username", "password")


@dataclass(frozen=True, slots=True)
class PlainDone:
    """``password_hash`` is what counted for this user."""

    user: str
    password_hash: bytes = field(repr=False)
    reply: bytes = b""


class PlainUsers:
    """The users of one listener. Equal if names and passwords are."""

    __slots__ = ("_hashes",)

    def __init__(self, passwords: Mapping[str, str]) -> None:
        self._hashes = {user: _hash(password) for user, password in passwords.items()}

    @classmethod
    def of(cls, text: str) -> PlainUsers:
        """The users of a JAAS configuration. Raises JaasError, which holds no value."""
        options = login_module(text, (PLAIN_MODULE,)).options
        passwords: dict[str, str] = {}
        for name, value in options.items():
            user = name.removeprefix(_USER)
            if name in _OF_BROKERS:
                continue
            if user == name:
                raise JaasError(f'{name} is not supported, only user_NAME="PASSWORD"')
            if not 0 < len(user) <= NAME_CHARACTERS_MAX or not user.isprintable():
                raise JaasError(f"a user's name has 1 to {NAME_CHARACTERS_MAX} characters that can be printed")
            if not value or "\0" in value:
                raise JaasError(f"{name} has no password, or one with NUL, which PLAIN can't carry")
            passwords[user] = value
        if not passwords:
            raise JaasError('it names no user: write user_NAME="PASSWORD"')
        return cls(passwords)

    def __eq__(self, other: object) -> bool:
        return self._hashes == other._hashes if isinstance(other, PlainUsers) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        return len(self._hashes)

    def __repr__(self) -> str:
        return f"<{len(self)} users of PLAIN>"

    @property
    def names(self) -> Collection[str]:
        return self._hashes.keys()

    def log_in(self, token: bytes) -> PlainDone:
        """Who the client is. Raises AuthenticationError."""
        user, password = plain_message(token)
        given = _hash(password)
        kept = self._hashes.get(user)
        if not hmac.compare_digest(given, kept or _NOBODYS) or kept is None:
            raise AuthenticationError("no such user" if kept is None else f"a wrong password of user {user!r}")
        return PlainDone(user, kept)


def _hash(password: str) -> bytes:
    return hashlib.sha256(password.encode()).digest()


_NOBODYS: Final = _hash("")  # PLAIN has no empty password
