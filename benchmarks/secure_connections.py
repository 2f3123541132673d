"""Opens connections by TLS, logs in with SCRAM-SHA-512 and closes them, one behind the other, for so many seconds.

Needs little CPU itself: frames are made once, and the password is stretched once, as Kafka clients do that keep it. Each connection has
a handshake of its own, whose certificates are verified; no session is resumed. Prints how many connections were logged in.

    python secure_connections.py PORT AUTHORITY USER PASSWORD SECONDS
"""

from __future__ import annotations

import hashlib
import hmac
import os
import socket
import ssl
import sys
import time
from base64 import b64decode, b64encode
from typing import Any

from kio.schema.sasl_authenticate.v2.request import SaslAuthenticateRequest
from kio.schema.sasl_handshake.v1.request import SaslHandshakeRequest
from plain_kafka import ask, frame

from raylog.wire.frames import decode_response

MECHANISM = "SCRAM-SHA-512"
HANDSHAKE, AUTHENTICATE = (17, 1), (36, 2)


class Login:
    def __init__(self, user: str, password: str) -> None:
        self._user = user
        self._password = password
        self._keys: dict[tuple[str, str], tuple[bytes, bytes]] = {}
        self._handshake = frame(SaslHandshakeRequest(mechanism=MECHANISM))

    def run(self, connection: Any) -> None:
        """Log in on a connection. Raises AssertionError where the server refuses, or does not prove itself."""
        assert not decode_response(*HANDSHAKE, ask(connection, self._handshake)).error_code.value
        nonce = b64encode(os.urandom(18)).decode()
        first = f"n={self._user},r={nonce}"
        server_first = self._token(connection, f"n,,{first}")
        fields = dict(each.split("=", 1) for each in server_first.split(","))
        assert fields["r"].startswith(nonce), "the nonce is another one"
        client_key, server_key = self._stretched(fields["s"], fields["i"])
        without_proof = f"c=biws,r={fields['r']}"
        message = f"{first},{server_first},{without_proof}".encode()
        signature = hmac.digest(hashlib.sha512(client_key).digest(), message, "sha512")
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        last = self._token(connection, f"{without_proof},p={b64encode(proof).decode()}")
        assert b64decode(last.removeprefix("v=")) == hmac.digest(server_key, message, "sha512"), "an impostor"

    def _token(self, connection: Any, text: str) -> str:
        reply = decode_response(
            *AUTHENTICATE, ask(connection, frame(SaslAuthenticateRequest(auth_bytes=text.encode())))
        )
        assert not reply.error_code.value, reply
        return bytes(reply.auth_bytes).decode()

    def _stretched(self, salt: str, iterations: str) -> tuple[bytes, bytes]:
        """Client key and server key."""
        found = self._keys.get((salt, iterations))
        if found is None:
            salted = hashlib.pbkdf2_hmac("sha512", self._password.encode(), b64decode(salt), int(iterations))
            found = hmac.digest(salted, b"Client Key", "sha512"), hmac.digest(salted, b"Server Key", "sha512")
            self._keys[salt, iterations] = found
        return found


def main() -> None:
    port, authority, user, password, seconds = sys.argv[1:]
    context = ssl.create_default_context(cafile=authority)
    login = Login(user, password)
    count = 0
    until = time.monotonic() + float(seconds)
    while time.monotonic() < until:
        with (
            socket.create_connection(("127.0.0.1", int(port)), 30) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as connection,
        ):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            login.run(connection)
        count += 1
    print(count)


if __name__ == "__main__":
    main()
