"""The process that server actors are forked from: ``python -P -m raylog.actors.fork_server LOCK
LISTENER RAYLET SCRIPT …``.

The first worker of a raylet becomes it (``raylog.placement.worker_setup`` tells how). It imports
Ray and raylog's servers once, and then forks a process for each request: its own first, whose
script and arguments are on its command line, then those that come over its socket. A forked process
takes over the arguments and the environment of its request and runs Ray's worker script. From there
on it is a worker like any other.

The first three arguments are file descriptors: the lock that makes this the only fork server of its
raylet and environment, the socket, and the raylet's process. The fork server ends with the raylet,
and when no process that it has forked has been there for a while. Until then it waits, and does
nothing.

Forking is refused where it would not be safe, and the workers start in Ray's own way: where an
import has started a thread, and where one has drawn random numbers in Ray's C++ code, because all
forked processes would go on with the same numbers, and so give the same ids to different objects.
"""

from __future__ import annotations

import gc

if __name__ == "__main__":
    gc.disable()
    from raylog.actors.import_trimming import spare_imports_in_servers

    spare_imports_in_servers()

import json
import os
import runpy
import select
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module

REQUEST_TIMEOUT_S = 10.0
IDLE_MS = 60_000
PRELOADED = (
    "ray",
    "raylog.actors.ray_actors",
    "raylog.actors.malloc_settings",
    "raylog.server.controller_server",
    "raylog.actors.ray_launcher",
    "raylog.server.broker_server",
    "raylog.actors.ray_notices",
    "raylog.server.replica_server",
)
"""What the servers of all roles need."""


@dataclass(frozen=True, slots=True)
class Descriptors:
    """What the fork server holds, and a forked process lets go of."""

    lock: int
    listener: int
    raylet: int


@dataclass(frozen=True, slots=True)
class Worker:
    """One that is to be forked."""

    arguments: list[str]  # the script, and what it is given
    environment: dict[str, str]


def preload() -> None:
    """Import them, and let no garbage collection of a forked process look through them again."""
    for name in PRELOADED:
        import_module(name)
    gc.collect()
    gc.freeze()
    gc.enable()


def why_not_fork() -> str | None:
    """What keeps this process from being forked."""
    if len(os.listdir("/proc/self/task")) > 1:
        return "an import has started a thread"
    if _drawn_by_a_forked_process() == _drawn_by_a_forked_process():
        return "an import has drawn random numbers in Ray, and forked processes would draw the same ones"
    return None


def _drawn_by_a_forked_process() -> bytes:
    """A random id of Ray's. This process must not draw one itself."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        from ray import ObjectRef

        os.write(writing, ObjectRef.from_random().binary())
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as drawn:
        found = drawn.read()
    os.waitpid(pid, 0)
    return found


def serve(held: Descriptors, first: Worker) -> Worker | None:
    """Returns in each forked process: which worker it is. In this one None, when it is needed no
    more.
    """
    if os.fork() == 0:
        _let_go(held)
        return first
    with ended_children() as ended, socket.socket(fileno=os.dup(held.listener)) as listener:
        waiting = select.poll()
        for descriptor in (listener.fileno(), held.raylet, ended.fileno()):
            waiting.register(descriptor, select.POLLIN)
        has_children = _reap()
        while ready := dict(waiting.poll(None if has_children else IDLE_MS)):
            if held.raylet in ready:
                return None
            if listener.fileno() in ready:
                connection, _ = listener.accept()
                with connection:
                    worker = _read(connection)
                    if worker is not None and _fork_for(connection):
                        _let_go(held)
                        return worker
            if ended.fileno() in ready:
                ended.recv(1 << 16)
            has_children = _reap()
    return None


@contextmanager
def ended_children() -> Iterator[socket.socket]:
    """Readable when a forked process has ended."""
    reading, writing = socket.socketpair()
    with reading, writing:
        writing.setblocking(False)
        signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        try:
            yield reading
        finally:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def _reap() -> bool:
    """Take note of forked processes that have ended; whether any is left."""
    try:
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
    except ChildProcessError:
        return False
    return True


def _fork_for(connection: socket.socket) -> bool:
    """Fork for whoever asked, and say so; True in the forked process. Without a word they go
    another way.
    """
    try:
        pid = os.fork()
    except OSError:
        return False
    if pid:
        with suppress(OSError):
            connection.send(b"f")
    return pid == 0


def _let_go(held: Descriptors) -> None:
    os.setpgid(0, 0)  # as the raylet does: when a worker ends, the raylet ends all of the worker's group
    for descriptor in (held.lock, held.listener, held.raylet):
        os.close(descriptor)


def _read(connection: socket.socket) -> Worker | None:
    """None if whoever asked is gone."""
    received = bytearray()
    connection.settimeout(REQUEST_TIMEOUT_S)
    try:
        connection.send(b"a")
        while part := connection.recv(1 << 16):
            received += part
        arguments, environment = json.loads(received)
    except (OSError, ValueError):
        return None
    return Worker(arguments, environment)


def main(given: Sequence[str]) -> None:
    held = Descriptors(*map(int, given[:3]))
    for descriptor in (held.lock, held.listener, held.raylet):
        os.set_inheritable(descriptor, False)
    first = Worker(list(given[3:]), dict(os.environ))
    preload()
    if reason := why_not_fork():
        os.write(held.lock, reason.encode())
        os.execv(sys.executable, [sys.executable, *first.arguments])
    worker = serve(held, first)
    if worker is None:
        return
    os.environ.clear()
    os.environ.update(worker.environment)
    sys.argv = worker.arguments
    runpy.run_path(worker.arguments[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
