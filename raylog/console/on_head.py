"""The console that a cluster of Ray nodes has on its head (``raylog up --disks N --console-port PORT``).

A Ray actor runs it (``raylog.actors.console_actor``), so it ends with the head's Ray and with the
cluster. It listens on loopback only, is read-only, and wants a password, because other users of that
machine can connect to its loopback interface, too. The password is in a file that its owner alone can
read; it is made once. The console is inside the cluster, with the cluster's own rights.

It waits for a cluster that does not serve yet, and for a port that is taken.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from raylog.cli.schema_registry import password_in
from raylog.cluster import connect
from raylog.console.app import console_app
from raylog.console.serving import ConsoleSettings, listening, server_of
from raylog.console.view import ClusterView
from raylog.errors import ConfigError, RaylogError

if TYPE_CHECKING:
    import uvicorn

    from raylog.cluster import Cluster

logger = logging.getLogger("raylog.console")

PASSWORD_FILE: Final = Path("~/.raylog/console.password")
RETRY_S: Final = 2.0


class HeadConsole:
    """``run`` blocks until ``stop``. ``find`` returns the cluster, or raises RaylogError while there
    is none.
    """

    def __init__(
        self,
        port: int,
        *,
        password_file: Path = PASSWORD_FILE,
        find: Callable[[], Cluster] = connect,
        on_cluster: Callable[[str], None] = lambda cluster_id: None,
    ) -> None:
        """``on_cluster`` is called with the cluster's id when it was found."""
        self.port = port
        self._on_cluster = on_cluster
        self._password_file = password_file.expanduser()
        self._find = find
        self._url: str | None = None
        self._problem: str | None = "it is starting"
        self._server: uvicorn.Server | None = None
        self._is_over = threading.Event()

    def status(self) -> dict[str, Any]:
        """``url`` None: it does not serve yet; ``problem`` says why."""
        return {"url": self._url, "password_file": str(self._password_file), "problem": self._problem}

    def run(self) -> None:
        while not self._is_over.is_set():
            try:
                self._serve()
            except RaylogError as error:
                if str(error) != self._problem:
                    logger.warning("the console waits: %s", error)
                self._problem = str(error)
            self._is_over.wait(RETRY_S)

    def stop(self) -> None:
        self._is_over.set()
        if self._server is not None:
            self._server.should_exit = True

    def _serve(self) -> None:
        settings = ConsoleSettings(port=self.port, is_read_only=True, password=made_password(self._password_file))
        settings.checked()
        view = ClusterView(self._find())  # the app closes it
        self._on_cluster(view.cluster.address.cluster_id)
        try:
            bound, url = listening(settings)
        except ConfigError:
            view.close()
            raise
        with bound:
            self._server = server_of(console_app(view, settings), settings)
            self._url, self._problem = url, None
            logger.info("the console is at %s; its password is in %s", url, self._password_file)
            if self._is_over.is_set():
                self._server.should_exit = True
            self._server.run(sockets=[bound])
        self._url, self._problem = None, "it has ended"


def made_password(path: Path) -> str:
    """The password in that file, which is made if it is missing. Raises ConfigError."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return password_in(path)
    except OSError as error:
        raise ConfigError(f"the password cannot be written to {path}: {error}") from error
    password = secrets.token_urlsafe(24)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(password + "\n")
    return password
