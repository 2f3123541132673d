"""An issuer's web server, over TLS, that answers as a test wants."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Self

Answer = Callable[[BaseHTTPRequestHandler], None]


def body(text: str | bytes, status: int = 200, **headers: str) -> Answer:
    data = text if isinstance(text, bytes) else text.encode()

    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            request.send_header(name, value)
        request.end_headers()
        request.wfile.write(data)

    return answer


def hanging(until: threading.Event, answer: Answer) -> Answer:
    def wait(request: BaseHTTPRequestHandler) -> None:
        until.wait()
        answer(request)

    return wait


class KeyServer:
    """``answer`` is what it says now. ``asked``: the paths, in order."""

    def __init__(self, certificate: Path | None, answer: Answer) -> None:
        self.answer = answer
        self.asked: list[str] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.asked.append(self.path)
                server.answer(self)

            def log_message(self, format: str, *args: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: object, client_address: object) -> None:
                pass  # a client that does not trust it

        self._server = Server(("127.0.0.1", 0), Handler)
        scheme = "http"
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self._server.socket = context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
            scheme = "https"
        self.url = f"{scheme}://127.0.0.1:{self._server.server_address[1]}/jwks"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
