"""One question to a server over HTTP or HTTPS, with a connection of its own, that blocks for a bounded
time and reads a bounded answer.

Redirects are not followed, and no proxy of the environment is used: nobody connects to any other host.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import Final
from urllib.parse import SplitResult

from raylog.errors import RaylogError

_CHUNK_BYTES: Final = 1 << 16


class HttpAnswerTooLongError(RaylogError):
    """The answer has more bytes than whoever asked would read."""


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    status: int
    reason: str
    body: bytes


@dataclass(frozen=True, slots=True)
class HttpServer:
    """Whom to ask, by the scheme, host and port of ``url``. ``tls`` is for https."""

    url: SplitResult
    tls: ssl.SSLContext | None
    answer_bytes_max: int

    def ask(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None = None, *, within_s: float
    ) -> HttpAnswer:
        """Blocks for up to twice ``within_s``. Raises TimeoutError if that is not enough for the whole
        answer, other OSErrors, HTTPException, and HttpAnswerTooLongError.
        """
        until, late = time.monotonic() + within_s, f"no answer within {within_s:g} s"
        try:
            with self._connected(within_s) as connection:
                connection.request(method, target, body, dict(headers))
                with connection.getresponse() as answer:
                    content = self._body(answer)
        except (OSError, http.client.HTTPException):
            if time.monotonic() >= until:
                raise TimeoutError(late) from None
            raise
        if time.monotonic() >= until:  # the body may have been cut
            raise TimeoutError(late)
        return HttpAnswer(answer.status, answer.reason, content)

    @contextmanager
    def _connected(self, within_s: float) -> Iterator[http.client.HTTPConnection]:
        """A connection that ends after ``within_s``, however slowly the other side sends."""
        host, port = self.url.hostname or "", self.url.port
        connection = (
            http.client.HTTPConnection(host, port, timeout=within_s)
            if self.url.scheme != "https"
            else http.client.HTTPSConnection(host, port, timeout=within_s, context=self.tls)
        )
        with closing(connection):
            connection.connect()
            # the connection forgets its socket before the answer is read, so the timer has it
            end = threading.Timer(within_s, _shut, (connection.sock,))
            end.daemon = True
            end.start()
            try:
                yield connection
            finally:
                end.cancel()

    def _body(self, answer: http.client.HTTPResponse) -> bytes:
        parts, size = [], 0
        while part := answer.read1(_CHUNK_BYTES):
            parts.append(part)
            size += len(part)
            if size > self.answer_bytes_max:
                raise HttpAnswerTooLongError(f"an answer has more than {self.answer_bytes_max >> 20} MiB")
        return b"".join(parts)


def _shut(connected: socket.socket) -> None:
    with suppress(OSError):  # it is closed
        connected.shutdown(socket.SHUT_RDWR)
