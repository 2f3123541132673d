"""The Ray that runs on this machine: where it is, found without asking Ray.

Only a Ray that somebody left running on purpose (``ray start``, ``raylog up``) counts. One that lives inside a program
(``ray.init`` in a notebook) is not found here: it ends with that program.
"""

from __future__ import annotations

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
    note = Path(os.environ.get("RAY_TMPDIR") or "/tmp") / "ray" / "ray_current_cluster"
    try:
        address = note.read_text().strip()
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=2):
            return address
    except (OSError, ValueError):
        return None


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
