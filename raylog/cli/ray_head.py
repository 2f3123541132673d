"""The Ray that ``raylog up`` starts on this machine, and ``raylog down`` ends.

A note in the cluster's folder names its processes, so ``down`` ends that Ray and no other. Every
process of an attempt to start carries the attempt's mark in its environment. When the attempt
fails, or is interrupted, only processes with that mark are ended: the port may belong to a Ray that
somebody else started at the same moment.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from raylog.cli.output import notice
from raylog.disks.embedded import prepare_disks
from raylog.errors import RayError
from raylog.placement.local_ray import forget_ray
from raylog.placement.ray_environment import RAY_CLUSTERS, RAY_STARTUPS

RAY_NOTE = "ray-started-by-raylog.json"
RAY_HEAD_PORT = 6379
END_TIMEOUT_S = 5
RAY_START_TIMEOUT_S = 300
RAY_START_ATTEMPTS = 3
RECONNECT_TIMEOUT_S = 7 * 24 * 3600
ATTEMPT_MARK = "RAYLOG_RAY_START"
LOADS_LOOKED_AT = 100
LOAD_POLL_S = 0.01
WORTH_ANOTHER_ATTEMPT = {
    "The current node timed out during startup": "Ray gave its own node up, which has 30 s to come up: the machine is busy",
    "does not match persisted value": "another Ray took the port at the same moment",
}
"""What Ray says, and what it means to the user."""


def start_ray(folder: Path, brokers: int, racks: list[str] | None, disks_each: int) -> str:
    """Start a Ray on the loopback interface that outlives this command; its address. Raises
    RayError.
    """
    from raylog.placement.ray_connection import OBJECT_STORE_BYTES
    from raylog.placement.resources import node_resources

    disks = prepare_disks(folder, brokers, racks, disks_each)
    resources = json.dumps(node_resources(disk.path for disk in disks))
    for attempt in range(1, RAY_START_ATTEMPTS + 1):
        port = _free_port(RAY_HEAD_PORT)
        if port != RAY_HEAD_PORT:
            notice(f"port {RAY_HEAD_PORT} is taken: Ray's head listens on {port}")
        with _ended_unless_kept() as attempt_mark:
            done = _attempt(port, resources, OBJECT_STORE_BYTES, attempt_mark.text)
            if done.returncode == 0:
                address = f"127.0.0.1:{port}"
                (folder / RAY_NOTE).write_text(
                    json.dumps({"address": address, "processes": _ray_processes(address)}) + "\n"
                )
                attempt_mark.is_kept = True
                return address
        said = done.stderr or done.stdout
        meaning = next((meaning for words, meaning in WORTH_ANOTHER_ATTEMPT.items() if words in said), None)
        if meaning is None:
            break
        if attempt < RAY_START_ATTEMPTS:
            notice(f"{meaning}; once more")
    reason = said.strip().splitlines()
    raise RayError(f"Ray did not start: {reason[-1] if reason else 'no reason given'}; see `raylog doctor`")


@dataclass(slots=True)
class _Mark:
    """Of the processes of one attempt; they run on if ``is_kept``."""

    text: str
    is_kept: bool = False


@contextlib.contextmanager
def _ended_unless_kept() -> Iterator[_Mark]:
    """Nothing of the attempt in this context is left where it fails or is interrupted."""
    mark = _Mark(uuid.uuid4().hex)
    try:
        yield mark
    finally:
        if not mark.is_kept:
            _end_with_children(_marked_processes(mark.text))


def _attempt(port: int, resources: str, object_store_bytes: int, mark: str) -> subprocess.CompletedProcess[str]:
    """One ``ray start``, whose processes carry the mark."""
    command = [
        *(sys.executable, "-m", "raylog.placement.ray_start", "start", "--head", "--disable-usage-stats"),
        *(f"--port={port}", "--node-ip-address=127.0.0.1", "--include-dashboard=false"),
        *(f"--object-store-memory={object_store_bytes}", f"--resources={resources}"),
    ]
    environment = (
        RAY_STARTUPS
        | os.environ
        | {
            "RAY_gcs_rpc_server_reconnect_timeout_s": str(RECONNECT_TIMEOUT_S),
            "RAY_prestart_worker_first_driver": "0",  # that is the process that starts the controllers: it runs no tasks
            RAY_CLUSTERS: "0",
            ATTEMPT_MARK: mark,
        }
    )
    try:
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            env=environment,
            stdin=subprocess.DEVNULL,
            timeout=RAY_START_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", f"`ray start` did not return within {RAY_START_TIMEOUT_S} s")


def end_ray(folder: Path) -> bool:
    """End the processes of the Ray that ``up`` started for this folder; False if it started none
    that still runs.

    A process is known by its id and the time of its start, so that an id that was used again is
    left alone.
    """
    note = folder / RAY_NOTE
    if not note.exists():
        return False
    noted = json.loads(note.read_text())
    started = {int(pid): created for pid, created in noted["processes"].items()}
    roots = []
    for pid, created in started.items():
        try:
            process = psutil.Process(pid)
            if process.create_time() == created:
                roots.append(process)
        except psutil.NoSuchProcess:
            continue
    _end_with_children(roots)
    forget_ray(noted["address"])
    note.unlink()
    return bool(roots)


def _end_with_children(roots: Iterable[psutil.Process]) -> None:
    everyone = {process.pid: process for process in roots}
    for root in list(everyone.values()):
        with contextlib.suppress(psutil.NoSuchProcess):
            everyone |= {child.pid: child for child in root.children(recursive=True)}
    for process in everyone.values():
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    _, stubborn = psutil.wait_procs(everyone.values(), timeout=END_TIMEOUT_S)
    for process in stubborn:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(stubborn, timeout=END_TIMEOUT_S)


def _marked_processes(mark: str) -> list[psutil.Process]:
    """The processes that an attempt started."""
    marked = []
    for pid in psutil.pids():
        with contextlib.suppress(psutil.Error):  # of another user, or just ended
            process = psutil.Process(pid)
            if _environment_of(process).get(ATTEMPT_MARK) == mark:
                marked.append(process)
    return marked


def _environment_of(process: psutil.Process) -> dict[str, str]:
    """The kernel shows none of a process whose program is still being loaded: that is awaited."""
    for _ in range(LOADS_LOOKED_AT):
        environment: dict[str, str] = process.environ()
        if environment or not process.exe():  # the kernel's own have no program
            return environment
        time.sleep(LOAD_POLL_S)
    return {}


def _ray_processes(address: str) -> dict[int, float]:
    """The processes that name the Ray with that address on their command line: id and time of
    start.
    """
    named = (f"--gcs-address={address}", f"--address={address}", f"--gcs_server_port={address.rpartition(':')[2]}")
    return {
        process.pid: process.info["create_time"]
        for process in psutil.process_iter(["cmdline", "create_time"])
        if any(word in named for word in process.info["cmdline"] or ())
    }


def _free_port(wanted: int) -> int:
    for candidate in (wanted, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", candidate))
            except OSError:
                continue
            port: int = probe.getsockname()[1]
            return port
    raise RayError("no port is free on 127.0.0.1")
