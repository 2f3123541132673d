"""Where the console listens, whom it lets in, and its process.

Bound to loopback it lets in every program of this machine, as a listener there does; a password keeps
others out. Another address needs a password, or ``--insecure``, because the console does for everyone
who reaches it what its own user may do at the cluster.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import uvicorn

from raylog.errors import ConfigError

if TYPE_CHECKING:
    from starlette.applications import Starlette

CONNECTIONS_MAX = 200
PASSWORD_LENGTH_MIN = 8


@dataclass(frozen=True, slots=True)
class ConsoleSettings:
    """``port`` 0: a free one. ``certificate`` and ``key``: files in PEM; without them, plain HTTP."""

    host: str = "127.0.0.1"
    port: int = 0
    is_read_only: bool = False
    is_insecure: bool = False
    password: str | None = field(default=None, repr=False)
    certificate: Path | None = None
    key: Path | None = None

    @property
    def is_on_loopback(self) -> bool:
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def hosts(self) -> frozenset[str] | None:
        """The names by which browsers may reach the console; None: any, as it is not on loopback."""
        return frozenset({"localhost", "127.0.0.1", "::1", self.host}) if self.is_on_loopback else None

    def checked(self) -> list[str]:
        """Lines to say before the start. Raises ConfigError for an address that strangers reach."""
        if (self.certificate is None) != (self.key is None):
            raise ConfigError("--ssl-certificate and --ssl-key go together: give both")
        if self.password is not None and len(self.password) < PASSWORD_LENGTH_MIN:
            raise ConfigError(f"the password has fewer than {PASSWORD_LENGTH_MIN} characters")
        if self.is_on_loopback:
            return [] if self.password is not None else ["Every program of this machine may use this console"]
        if self.password is None and not self.is_insecure:
            raise ConfigError(
                f"{self.host}: everyone who can connect there could use this console. Bind it to 127.0.0.1 (an SSH "
                "tunnel leads there); or give --password-file; or, if the network itself keeps strangers out, --insecure"
            )
        lines = []
        if self.password is None:
            lines.append(f"--insecure: everyone who can connect to {self.host} may use this console")
        if self.certificate is None:
            lines.append(
                "Without --ssl-certificate, all that the console shows, and its password, can be read on the network"
            )
        return lines


def listening(settings: ConsoleSettings) -> tuple[socket.socket, str]:
    """The socket, bound and listening, and the URL of the first page. Raises ConfigError."""
    bound: socket.socket | None = None
    try:
        family, kind, _, _, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen()
    except OSError as error:
        if bound is not None:
            bound.close()
        raise ConfigError(
            f"the console cannot listen at {settings.host}:{settings.port}: {error.strerror or error}"
        ) from error
    port = bound.getsockname()[1]
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return bound, f"{'http' if settings.certificate is None else 'https'}://{host}:{port}/"


def server_of(app: Starlette, settings: ConsoleSettings) -> uvicorn.Server:
    """The server of the app, to be run with a socket of ``listening``. Raises ConfigError for a
    certificate that can't be used.
    """
    config = uvicorn.Config(
        app,
        loop="asyncio",
        http="h11",
        ws="none",
        lifespan="on",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=CONNECTIONS_MAX,
        timeout_graceful_shutdown=3,
        ssl_certfile=settings.certificate,
        ssl_keyfile=settings.key,
    )
    try:
        config.load()
    except OSError as error:  # ssl.SSLError is one
        raise ConfigError(f"--ssl-certificate {settings.certificate}: {error.strerror or error}") from error
    return uvicorn.Server(config)


def serve(app: Starlette, settings: ConsoleSettings, on_ready: Callable[[str], None]) -> None:
    """Run until the process is interrupted. ``on_ready`` is called with the URL once the socket
    listens.
    """
    bound, url = listening(settings)
    with bound:
        server = server_of(app, settings)
        on_ready(url)
        server.run(sockets=[bound])
