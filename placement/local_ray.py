"""The Ray that runs on this machine: where it is, found without asking Ray.

Only a Ray that somebody left running on purpose (``ray start``, ``raylog up``) counts. One that lives inside a program
(``ray.init`` in a notebook) is not found here: it ends with that program.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

import psutil

_TOKEN_TIMEOUT_S = 10.0


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


def may_listen(address: str) -> bool:
    """False where nothing listens at a ``host:port``. Asked before Ray is: Ray ends the program when it finds nobody."""
    if not is_endpoint(address):
        return True  # a name that Ray resolves itself
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=5):
            return True
    except OSError:
        return False


def refuses_token(address: str, token: str | None) -> bool:
    """Whether the Ray at a ``host:port`` says that this token (None: no token) is not its own.

    Asked before Ray's client is, which repeats the refused question for 20 s and prints each refusal. Whatever else happens is for
    Ray's client to say.
    """
    import grpc

    with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        ask = channel.unary_unary("/ray.rpc.NodeInfoGcsService/GetClusterId")  # an empty message both ways is valid
        try:
            ask(b"", timeout=_TOKEN_TIMEOUT_S, metadata=[("authorization", f"Bearer {token}")] if token else None)
        except grpc.RpcError as error:
            return bool(error.code() is grpc.StatusCode.UNAUTHENTICATED)
    return False


def is_child_of_raylet(pid: int) -> bool:
    """Whether the Ray that started this process of this machine still lives: Ray's processes are children of its raylet."""
    try:
        parent = psutil.Process(pid).parent()
        return parent is not None and parent.name() == "raylet"
    except psutil.Error:
        return False
