"""A client of a listener with SASL that sends whatever a test wants, in whatever order, over a plain blocking socket."""

from __future__ import annotations

import hashlib
import hmac
import socket
from base64 import b64decode, b64encode
from functools import cache
from typing import Any, Self

from outside import request

from raylog.types import Endpoint
from raylog.wire.frames import api_of, client_id_field, decode_response, encode_request

WAIT_S = 60


class SaslClient:
    def __init__(self, endpoint: Endpoint) -> None:
        self.socket = socket.create_connection((endpoint.host, endpoint.port), timeout=WAIT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    # ------------------------------------------------------------------ frames

    def send(self, *entities: Any) -> None:
        """Requests, in one piece."""
        self.socket.sendall(
            b"".join(part for each in entities for part in encode_request(each, 1, client_id_field("test")))
        )

    def ask(self, entity: Any) -> Any:
        self.send(entity)
        return self.reply_to(entity)

    def reply_to(self, entity: Any) -> Any:
        return decode_response(*api_of(entity), self.frame())

    def send_raw(self, token: bytes) -> None:
        self.socket.sendall(len(token).to_bytes(4, "big") + token)

    def frame(self) -> bytes:
        """The next frame. Raises ConnectionError where there is none any more."""
        return self._exactly(int.from_bytes(self._exactly(4), "big"))

    def _exactly(self, count: int) -> bytes:
        got = b""
        while len(got) < count:
            more = self.socket.recv(count - len(got))
            if not more:
                raise ConnectionError("closed")
            got += more
        return got

    def is_closed(self) -> bool:
        """Wait for the end; nothing may come before it."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True

    # ------------------------------------------------------------------ SASL

    def handshake(self, mechanism: str, version: int = 1) -> Any:
        return self.ask(request(17, version, mechanism=mechanism))

    def token(self, token: bytes, version: int = 2) -> Any:
        return self.ask(request(36, version, auth_bytes=token))

    def log_in(self, user: str, password: str, mechanism: str = "SCRAM-SHA-256") -> Any:
        """By SCRAM; the last answer."""
        assert self.handshake(mechanism).error_code == 0
        scram = Scram(user, password, mechanism)
        reply = self.token(scram.first())
        return self.token(scram.final(reply.auth_bytes))


class Scram:
    """A client's half, written from RFC 5802, with every part open to tampering."""

    def __init__(
        self, user: str, password: str, mechanism: str = "SCRAM-SHA-256", nonce: str = "fyko+d2lbbFgONRv9q"
    ) -> None:
        self.hash = mechanism.removeprefix("SCRAM-").replace("-", "").lower()
        self.password = password
        self.header = "n,,"
        self.bare = f"n={user.replace('=', '=3D').replace(',', '=2C')},r={nonce}"
        self.server_first = ""
        self.server_signature = b""

    def first(self) -> bytes:
        return (self.header + self.bare).encode()

    def final(self, server_first: bytes, *, header: str | None = None, nonce: str | None = None) -> bytes:
        self.server_first = server_first.decode()
        told = dict(part.split("=", 1) for part in self.server_first.split(","))
        salted = _stretched(self.hash, self.password, told["s"], int(told["i"]))
        binding = b64encode((self.header if header is None else header).encode()).decode()
        without_proof = f"c={binding},r={told['r'] if nonce is None else nonce}"
        message = f"{self.bare},{self.server_first},{without_proof}".encode()
        client_key = hmac.digest(salted, b"Client Key", self.hash)
        signature = hmac.digest(hashlib.new(self.hash, client_key).digest(), message, self.hash)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        server_key = hmac.digest(salted, b"Server Key", self.hash)
        self.server_signature = b"v=" + b64encode(hmac.digest(server_key, message, self.hash))
        return f"{without_proof},p={b64encode(proof).decode()}".encode()


@cache
def _stretched(digest: str, password: str, salt: str, iterations: int) -> bytes:
    return hashlib.pbkdf2_hmac(digest, password.encode(), b64decode(salt), iterations)
