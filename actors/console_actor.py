"""The console as a Ray actor: one detached actor per Ray, on the head, restarted by Ray.

The console stands above this room, and needs packages that servers do not: the actor's process loads
it by name when it starts. ``retire`` of ``ray_launcher`` ends it with the cluster.
"""

from __future__ import annotations

import importlib
import threading
import time
from typing import Any, Final

import ray

from raylog.actors.ray_launcher import CONSOLE_NAME
from raylog.errors import ClusterError
from raylog.placement.resources import NAMESPACE
from raylog.server import process_log

CONSOLE: Final = ("raylog.console.on_head", "HeadConsole")
HEAD: Final = {"node:__internal_head__": 0.001}
POLL_S: Final = 0.1


class ConsoleActor:
    """Serves in a thread of its own for as long as it lives."""

    def __init__(self, port: int) -> None:
        process_log.begin_without_cluster()
        module, name = CONSOLE
        self._console = getattr(importlib.import_module(module), name)(port, on_cluster=process_log.belong_to)
        threading.Thread(target=self._console.run, name="raylog-console", daemon=True).start()

    def status(self) -> dict[str, Any]:
        host = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        return {**self._console.status(), "port": self._console.port, "host": host}


def ensure_console(port: int, *, timeout_s: float) -> dict[str, Any]:
    """Start the console of this Ray at that port of its head's loopback interface; one at another
    port ends. Returns its status.

    ClusterError if it hasn't answered after ``timeout_s`` seconds.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        actor = _actor(port)
        try:
            left_s = max(0.0, deadline - time.monotonic())
            status: dict[str, Any] = ray.get(actor.status.remote(), timeout=left_s)
        except ray.exceptions.GetTimeoutError:
            raise ClusterError(
                f"Ray has not started the console within {timeout_s:g} s: it runs on the head's node; see `ray status` and "
                "Ray's logs of the ConsoleActor. It goes on starting, and the same command again waits for it"
            ) from None
        except ray.exceptions.RayActorError as error:
            if time.monotonic() > deadline or "the actor died because of an error raised in its creation task" in str(
                error
            ):
                raise ClusterError(f"the console does not start: {error}") from None
            time.sleep(POLL_S)  # it was just ended; its name is free in a moment
            continue
        if status["port"] == port:
            return status
        ray.kill(actor, no_restart=True)


def _actor(port: int) -> Any:
    ray_class: Any = ray.remote(ConsoleActor)
    return ray_class.options(
        name=CONSOLE_NAME,
        namespace=NAMESPACE,
        lifetime="detached",
        get_if_exists=True,
        max_restarts=-1,
        num_cpus=0,
        resources=HEAD,
    ).remote(port)
