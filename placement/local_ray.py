"""The Ray that runs on this machine: where it is, found without asking Ray.

Only a Ray that somebody left running on purpose (``ray start``, ``raylog up``) counts. One that
lives inside a program (``ray.init`` in a notebook) is not found here: it ends with that program.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
from pathlib import Path

import psutil


def running_ray() -> str | None:
    """``host:port`` of the Ray that RAY_ADDRESS names or ``ray start`` left running here; None if
    there is none.

    The address is the one that Ray notes for ``address="auto"``; something has to listen there.
    """
    named = os.environ.get("RAY_ADDRESS")
    if named:
        return named
    try:
        address = _rays_note().read_text().strip()
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=2):
            return address
    except (OSError, ValueError):
        return None


def forget_ray(address: str) -> None:
    """The Ray with that address has ended: take back what it noted for ``address="auto"``, as ``ray
    stop`` does.

    Else programs would try to reach it there. The note of another Ray stays.
    """
    note = _rays_note()
    with contextlib.suppress(OSError):
        if note.read_text().strip() == address:
            note.unlink()


def _rays_note() -> Path:
    return Path(os.environ.get("RAY_TMPDIR") or "/tmp") / "ray" / "ray_current_cluster"


def noted_ray() -> str | None:
    """The head that the last ``ray start`` on this machine has noted; it may be gone."""
    try:
        return _rays_note().read_text().strip() or None
    except OSError:
        return None


def flags_of_raylets(flag: str) -> set[str]:
    """The values of that flag, such as ``--node_id``, on the command lines of this machine's
    raylets.
    """
    found = set()
    for process in psutil.process_iter(["name"]):
        if process.info["name"] == "raylet":
            with contextlib.suppress(psutil.Error):  # it has ended meanwhile
                found |= {each.removeprefix(f"{flag}=") for each in process.cmdline() if each.startswith(f"{flag}=")}
    return found - {""}


def is_loopback(address: str) -> bool:
    """Whether that Ray listens on the loopback interface only."""
    return address.rpartition(":")[0] in ("127.0.0.1", "localhost", "[::1]")


def is_endpoint(address: str) -> bool:
    """Whether an address is ``host:port``, not a name that Ray resolves itself."""
    host, _, port = address.rpartition(":")
    return bool(host) and port.isdecimal()


def is_of_a_raylet(pid: int) -> bool:
    """Whether the Ray that started this process of this machine still lives.

    Ray's processes are children of its raylet, or of a fork server that is one and ends with it.
    """
    try:
        return any(ancestor.name() == "raylet" for ancestor in psutil.Process(pid).parents())
    except psutil.Error:
        return False


_WORKER_COMMAND = "--python_worker_command="


@functools.cache  # it reads the command lines of all processes, and a raylet's does not change
def python_of_workers(ray_node_id: str) -> str | None:
    """The interpreter in which the raylet of that node, on this machine, starts workers by Ray's
    own script.

    None where it does not say so in a known way, or starts them by raylog's script: a raylet of a
    Ray that raylog has started.
    """
    for process in psutil.process_iter(["name", "cmdline"]):
        command: list[str] = process.info["cmdline"] or []
        if process.info["name"] == "raylet" and f"--node_id={ray_node_id}" in command:
            worker = next((each for each in command if each.startswith(_WORKER_COMMAND)), "")
            python, script, *_ = [*worker.removeprefix(_WORKER_COMMAND).split(), "", ""]
            is_rays_own = os.path.basename(script) == "setup_worker.py" and os.access(python, os.X_OK)
            return python if is_rays_own else None
    return None


COMES_UP_CPU_S = 3.0
"""What a process of Ray's uses of a CPU, about, until it serves."""


def coming_up(gcs_address: str) -> int:
    """How far the processes of that Ray are on this machine, in tenths of the CPU seconds that they
    use until they serve.

    What a process uses beyond ``COMES_UP_CPU_S`` is work, or idling, and does not count.
    """
    parents: dict[int, int] = {}
    raylets = set()
    used_s: dict[int, float] = {}
    for process in psutil.process_iter(["ppid", "name", "cmdline", "cpu_times"]):
        info = process.info
        parents[process.pid] = info["ppid"]
        if info["name"] == "raylet" and f"--gcs-address={gcs_address}" in (info["cmdline"] or ()):
            raylets.add(process.pid)
        elif info["cpu_times"] is not None:
            used_s[process.pid] = info["cpu_times"].user + info["cpu_times"].system
    started = {pid for pid in used_s if parents[pid] in raylets}
    started |= {pid for pid in used_s if parents[pid] in started}  # by a fork server
    return sum(int(10 * min(used_s[pid], COMES_UP_CPU_S)) for pid in started)
