"""The client's half of SASL: the tokens by which a client proves who it is, and by which a server
proves that it knows the user (``security.sasl`` has the server's half, and the messages).

A server that does not prove itself at the end of SCRAM is not trusted. One that asks for fewer
iterations than RFC 7677 allows, or for more than raylog and Apache Kafka keep, is refused before
anything is computed: few would make the password easy to guess, many would keep the client busy.

Names and passwords are the UTF-8 of what was given, as the server takes them. Errors never hold a
password.
"""

from __future__ import annotations

import binascii
import hmac
from base64 import b64decode, b64encode

from raylog.security.sasl import AuthenticationError
from raylog.security.scram import ITERATIONS_MAX, ITERATIONS_MIN, ScramMechanism, salted_password


def plain_token(user: str, password: str) -> bytes:
    """The one token of PLAIN, which holds the password."""
    return f"\0{user}\0{password}".encode()


class ScramLogin:
    """One exchange: ``first``, then ``final`` with what the server answers, then ``verify`` with its
    last answer. ``nonce`` is random, printable and without commas, and is used once.
    """

    def __init__(self, mechanism: ScramMechanism, user: str, password: str, nonce: str) -> None:
        self._mechanism = mechanism
        self._password = password
        self._nonce = nonce
        self._bare = f"n={user.replace('=', '=3D').replace(',', '=2C')},r={nonce}"
        self._server_signature = b""

    def first(self) -> bytes:
        return f"n,,{self._bare}".encode()

    def final(self, server_first: bytes) -> bytes:
        """The proof. Takes milliseconds. Raises AuthenticationError for an answer that is no SCRAM."""
        told = _fields(server_first)
        nonce, salt, iterations = told.get("r", ""), _decoded(told.get("s", "")), told.get("i", "")
        if not nonce.startswith(self._nonce) or nonce == self._nonce or not salt or not iterations.isdecimal():
            raise AuthenticationError("the server's first message is not SCRAM's")
        if not ITERATIONS_MIN <= int(iterations) <= ITERATIONS_MAX:
            raise AuthenticationError(
                f"the server asks for {iterations} iterations; allowed are {ITERATIONS_MIN} to {ITERATIONS_MAX}"
            )
        mechanism = self._mechanism
        salted = salted_password(mechanism, self._password, salt, int(iterations))
        without_proof = f"c={b64encode(b'n,,').decode()},r={nonce}"
        message = f"{self._bare},{server_first.decode()},{without_proof}".encode()
        client_key = mechanism.hmac(salted, b"Client Key")
        signature = mechanism.hmac(mechanism.hash(client_key), message)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        self._server_signature = mechanism.hmac(mechanism.hmac(salted, b"Server Key"), message)
        return f"{without_proof},p={b64encode(proof).decode()}".encode()

    def verify(self, server_final: bytes) -> None:
        """Raises AuthenticationError for a server that does not know the user's credential."""
        assert self._server_signature, "the end of an exchange whose proof was not sent"
        signature = _decoded(_fields(server_final).get("v", ""))
        if not hmac.compare_digest(signature, self._server_signature):
            raise AuthenticationError("the server has not proved that it knows this user: it may be an impostor")


def _fields(message: bytes) -> dict[str, str]:
    try:
        parts = message.decode().split(",")
    except UnicodeDecodeError:
        raise AuthenticationError("the server's message is not SCRAM's") from None
    return {part[0]: part[2:] for part in parts if part[1:2] == "="}


def _decoded(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise AuthenticationError("the server's message has broken base64") from None
