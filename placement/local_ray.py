"""The Ray that runs on this machine: where it is, found without asking Ray.

Only a Ray that somebody left running on purpose (``ray start``, ``raylog up``) counts. One that lives inside a program
(``ray.init`` in a notebook) is not found here: it ends with that program.
"""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

import psutil


def running_ray() -> str | None:
    """``host:port`` of the Ray that RAY_ADDRESS names or ``ray start`` left running here; None if there is none.

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
    """The Ray with that address has ended: take back what it noted for ``address="auto"``, as ``ray stop`` does.

    Else programs would try to reach it there. The note of another Ray stays.
    """
    note = _rays_note()
    with contextlib.suppress(OSError):
        if note.read_text().strip() == address:
            note.unlink()


def _rays_note() -> Path:
    return Path(os.environ.get("RAY_TMPDIR") or "/tmp") / "ray" / "ray_current_cluster"


def is_loopback(address: str) -> bool:
    """Whether that Ray listens on the loopback interface only."""
    return address.rpartition(":")[0] in ("127.0.0.1", "localhost", "[::1]")


def is_endpoint(address: str) -> bool:
    """Whether an address is ``host:port``, not a name that Ray resolves itself."""
    host, _, port = address.rpartition(":")
    return bool(host) and port.isdecimal()


def is_child_of_raylet(pid: int) -> bool:
    """Whether the Ray that started this process of this machine still lives: Ray's processes are children of its raylet."""
    try:
        parent = psutil.Process(pid).parent()
        return parent is not None and parent.name() == "raylet"
    except psutil.Error:
        return False


COMES_UP_CPU_S = 3.0
"""What a process of Ray's uses of a CPU, about, until it serves."""


def coming_up(gcs_address: str) -> int:
    """How far the processes of that Ray are on this machine, in tenths of the CPU seconds that they use until they serve.

    What a process uses beyond ``COMES_UP_CPU_S`` is work, or idling, and does not count.
    """
    raylets = set()
    workers: list[tuple[int, float]] = []
    for process in psutil.process_iter(["ppid", "name", "cmdline", "cpu_times"]):
        info = process.info
        if info["name"] == "raylet" and f"--gcs-address={gcs_address}" in (info["cmdline"] or ()):
            raylets.add(process.pid)
        elif info["cpu_times"] is not None:
            workers.append((info["ppid"], info["cpu_times"].user + info["cpu_times"].system))
    return sum(int(10 * min(used_s, COMES_UP_CPU_S)) for parent, used_s in workers if parent in raylets)
