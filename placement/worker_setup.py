"""How raylog begins a worker process of Ray's; Ray's own script for this is ``setup_worker.py``.

Ray's script imports all of Ray to apply a runtime environment, and then executes another
interpreter that imports all of Ray again. On two cores that bring up a dozen servers, these imports
and raylog's own are nearly all of the time. So server actors are forked from a process that has
imported everything once: the fork server (``raylog.actors.fork_server``).

The first server actor of a raylet becomes the fork server. It stays a child of the raylet, and the
actors' processes are its children. Each later one hands its arguments and environment over and
ends. A fork server serves one environment only, because C code reads some variables once, before
the fork. The id of the job is one of these, so each job has a fork server: a cluster's servers are
of one job.

Every other worker, and one that cannot be forked, is set up by Ray's own script. This script runs
once per worker, so it imports only small modules of the standard library, and nothing of raylog's.

A raylet of raylog's own Ray runs it as ``python worker_setup.py [-S] [-s] …/default_worker.py --… --language=PYTHON
--serialized-runtime-env-context={…}``. The raylets of other Rays run Ray's script, which makes the environment and then
executes what the actor names as its interpreter: for a server actor ``python -P -m raylog.placement.worker_setup``
(``raylog.placement.groups``), followed by ``…/default_worker.py --…``. That saves the second of the two imports.
"""

from __future__ import annotations

import sys

if __name__ == "__main__" and globals()["__spec__"] is None:  # run by its path, not by -m
    del sys.path[0]  # this folder: its modules are raylog.placement's

import fcntl
import json
import os
import socket
import time
import zlib

SERVER_PROCESS = "RAYLOG_SERVER_PROCESS"  # raylog.types has it, too
WORKER_SCRIPT = "default_worker.py"
RAYS_OWN = "setup_worker.py"
CONTEXT = "--serialized-runtime-env-context="
LANGUAGE = "--language="
RAYLET_SOCKET = "--raylet-name="
PATIENCE_S = 30.0
_RETRY_S = 0.005


def environment_of(context: dict[str, object]) -> dict[str, str] | None:
    """What the worker's environment is to be; None for one that only Ray's own script can make."""
    variables = context.get("env_vars")
    plain = {"env_vars", "py_executable"}
    if not isinstance(variables, dict) or SERVER_PROCESS not in variables:
        return None
    if any(value for name, value in context.items() if name not in plain):
        return None
    if context.get("py_executable") not in (None, sys.executable) or any("$" in each for each in variables.values()):
        return None
    return {**os.environ, **variables}


def meeting_point(raylet_socket: str, environment: dict[str, str]) -> str:
    """The path of the fork server's socket: beside the raylet's, and no longer than the shortest
    name there.
    """
    digest = zlib.crc32(repr((os.getppid(), sorted(environment.items()))).encode())
    return os.path.join(os.path.dirname(raylet_socket), f"rf{digest:08x}")


def hand_over(path: str, arguments: list[str], environment: dict[str, str]) -> bool:
    """Have the fork server fork this worker. False where it does not, so that another way may be
    taken.

    The request is sent when the fork server has asked for it: one that begins to listen after this
    process has given up forks nothing.
    """
    request = json.dumps([arguments, environment]).encode()
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(PATIENCE_S)
            connection.connect(path)
            if not connection.recv(1):
                return False
            connection.settimeout(None)
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
            return bool(connection.recv(1))
    except OSError:
        return False


def become_fork_server(path: str, lock: int, arguments: list[str], environment: dict[str, str]) -> None:
    """Listen, then go on as the fork server in a fresh interpreter, whose environment is that of
    the workers.
    """
    if os.path.exists(path):
        os.unlink(path)  # of a fork server that has ended: the lock is this one's
    raylet = os.pidfd_open(os.getppid())
    listener = socket.socket(socket.AF_UNIX)
    mask = os.umask(0o177)
    listener.bind(path)
    os.umask(mask)
    listener.listen(64)
    descriptors = [lock, listener.fileno(), raylet]
    for each in descriptors:
        os.set_inheritable(each, True)
    module = ["-P", "-m", "raylog.actors.fork_server", *map(str, descriptors)]
    os.execve(sys.executable, [sys.executable, *module, *arguments], environment)


def be_forked(path: str, arguments: list[str], environment: dict[str, str]) -> None:
    """Ends this process, or makes it the fork server. Returns where neither can be done."""
    lock = os.open(f"{path}.lock", os.O_CREAT | os.O_RDWR, 0o600)
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline and not os.fstat(lock).st_size:  # a fork server that may not fork writes into it
        if hand_over(path, arguments, environment):
            os._exit(0)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_RETRY_S)  # it does not listen yet
        else:
            become_fork_server(path, lock, arguments, environment)
    os.close(lock)


def rays_own_script(scripts: list[str]) -> str:
    """Where Ray's own script is: beside the script that Python workers run. Java's command names
    none.
    """
    if scripts:
        return os.path.join(os.path.dirname(scripts[0]), RAYS_OWN)
    from importlib.util import find_spec

    ray = find_spec("ray")  # does not import it
    assert ray is not None and ray.origin is not None
    return os.path.join(os.path.dirname(ray.origin), "_private", "workers", RAYS_OWN)


def go_on(worker: list[str]) -> None:
    """Ray's own script has made the environment, and has run this in place of the interpreter."""
    values = dict(each.split("=", 1) for each in worker if each.startswith(RAYLET_SOCKET))
    try:
        be_forked(meeting_point(values[RAYLET_SOCKET.rstrip("=")], dict(os.environ)), worker, dict(os.environ))
    except (OSError, KeyError):
        pass  # it starts as Ray would have started it
    os.execv(sys.executable, [sys.executable, *worker])


def main(given: list[str]) -> None:
    if not any(each.startswith((CONTEXT, LANGUAGE)) for each in given):
        go_on(given)
    worker = [each for each in given if not each.startswith((CONTEXT, LANGUAGE))]
    named = [place for place, each in enumerate(worker) if os.path.basename(each) == WORKER_SCRIPT]
    values = dict(each.split("=", 1) for each in given if each.startswith((CONTEXT, LANGUAGE, RAYLET_SOCKET)))
    context = values.get(CONTEXT.rstrip("="))
    if context and named == [0] and values.get(LANGUAGE.rstrip("=")) == "PYTHON":
        try:
            environment = environment_of(json.loads(context))
            if environment is not None:
                be_forked(meeting_point(values[RAYLET_SOCKET.rstrip("=")], environment), worker, environment)
        except (OSError, ValueError, KeyError):
            pass  # Ray's own script does it, or says what is wrong
    os.execv(sys.executable, [sys.executable, rays_own_script([worker[place] for place in named]), *given])


if __name__ == "__main__":
    main(sys.argv[1:])
