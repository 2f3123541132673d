"""The server's half of OAUTHBEARER (RFC 7628, KIP-255): a client shows a token.

::

    client   n,[a=AUTHZID],\\x01auth=Bearer TOKEN\\x01[KEY=VALUE\\x01]…\\x01
    server   (nothing), and the client is in          {"status":"invalid_token"}
    client                                            \\x01
    server                                            the failure

``BearerExchange.receive`` takes a message apart and returns the ``Bearer`` whose token somebody else
has to verify. If the token is refused, ``reject`` returns the answer, and the next message, whatever
it is, is the end.

A message that is not of this form fails at once, as in Kafka. Extensions (KIP-342) have to be of the
form that RFC 7628 gives them, each key once. They have no meaning here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from raylog.security.sasl import AuthenticationError

REFUSAL: Final = b'{"status":"invalid_token"}'

_MESSAGE = re.compile(r"[ny],(?:a=((?:[^=,\x00\x01]|=2C|=3D)+))?,\x01((?:[A-Za-z]+=[\x21-\x7E \t\r\n]*\x01)*)\x01")
_AUTHORIZATION = re.compile(r"[Bb][Ee][Aa][Rr][Ee][Rr] +([A-Za-z0-9._~+/-]+=*)")


@dataclass(frozen=True, slots=True)
class Bearer:
    """What a client shows. ``authzid``: as whom it wants to act; None: as whom the token names."""

    token: str = field(repr=False)
    authzid: str | None = None


@dataclass(frozen=True, slots=True)
class BearerDone:
    """Who the client is. ``expires_in_s``: when it has to come again, and ``ends_in_s``: when its
    session is over, both from now; None: never.
    """

    user: str
    expires_in_s: float | None = None
    ends_in_s: float | None = None
    reply: bytes = b""


class RejectedTokenError(AuthenticationError):
    """The end of an exchange whose token was refused. ``told`` is what Kafka tells a client then."""

    told: Final = REFUSAL.decode()


class BearerExchange:
    """Takes one token, and after its refusal one more message."""

    def __init__(self) -> None:
        self._is_rejected = False

    def receive(self, message: bytes) -> Bearer:
        """What the client shows. Raises AuthenticationError."""
        if self._is_rejected:
            raise RejectedTokenError("its token was refused")
        try:
            found = _MESSAGE.fullmatch(message.decode())
        except UnicodeDecodeError:
            found = None
        if found is None:
            raise AuthenticationError("a message that is not OAUTHBEARER's, or asks for channel binding")
        pairs = [(pair.partition("=")[0], pair.partition("=")[2]) for pair in found[2].split("\x01")[:-1]]
        values = dict(pairs)
        if len(values) < len(pairs):
            raise AuthenticationError("a message that says something twice")
        shown = _AUTHORIZATION.fullmatch(values.pop("auth", ""))
        if shown is None:
            raise AuthenticationError("a message without a bearer token")
        authzid = None if found[1] is None else found[1].replace("=2C", ",").replace("=3D", "=")
        return Bearer(shown[1], authzid)

    def reject(self) -> bytes:
        """The answer to a token that is refused."""
        self._is_rejected = True
        return REFUSAL
