"""Looks at the machine for ``raylog doctor``: limits, kernel settings, disks, ports, Ray, Java,
processes.

It looks only. It asks the cluster that runs from a folder for its status, and whether a port is
bound; it connects to nothing else, starts nothing but ``java -version``, and needs no rights.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import socket
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from raylog.cli.checks import RAY_HEAD_PORT, DiskFacts, Facts, RayFacts
from raylog.disks.disk import check_writable, read_disk
from raylog.disks.filesystems import doubts
from raylog.errors import DiskError, RaylogError
from raylog.placement.local_ray import running_ray
from raylog.records import kernel

if TYPE_CHECKING:
    from raylog.cluster import Cluster

STATUS_TIMEOUT_S = 5.0
SERVER_ACTORS = ("PartitionReplicaActor", "CoordinatorActor", "ControllerActor", "BrokerActor")


def look(folders: Sequence[Path]) -> Facts:
    """The facts of this machine now; ``folders`` are disks or folders that shall become disks."""
    return replace(
        look_at_limits(folders),
        loopback_problem=_loopback_problem(),
        head_port_owner=_port_owner(RAY_HEAD_PORT),
        ray=_look_at_ray(),
        java_version=_java_version(),
        kernel_trouble=kernel.trouble(),
        oom_scores=_oom_scores(),
        damaged_logs=_damaged_logs(folders),
        recovering_controllers=_recovering_controllers(folders),
        replicas=sum(map(count_replicas, folders)),
        replicas_of_a_disk=max(map(count_replicas_of_a_disk, folders), default=0),
    )


def look_at_limits(folders: Sequence[Path]) -> Facts:
    """What the machine's files say at once: limits, memory and disks. The rest is left as if all
    were well.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    shm = shutil.disk_usage("/dev/shm") if Path("/dev/shm").is_dir() else None
    return Facts(
        open_files_soft=_unlimited(soft),
        open_files_hard=_unlimited(hard),
        map_count=int(Path("/proc/sys/vm/max_map_count").read_text()),
        shm_total_bytes=shm.total if shm else 0,
        shm_free_bytes=shm.free if shm else 0,
        disks=tuple(look_at_disk(folder) for folder in folders),
        loopback_problem=None,
        head_port_owner="free",
        ray=RayFacts(None, None, None, None, False),
        java_version=None,
        kernel_trouble=None,
        oom_scores=(),
        threads_allowed=_threads_allowed(),
        threads_running=int(Path("/proc/loadavg").read_text().split()[3].partition("/")[2]),
        memory_available_bytes=min(psutil.virtual_memory().available, _left_in_container(Path("/sys/fs/cgroup"))),
    )


def _left_in_container(groups: Path) -> int:
    """Bytes of memory that the control group at ``groups`` may still take, version 2 or 1; its page
    cache counts as free.
    """
    for folder, limit, usage, cache in (
        (groups, "memory.max", "memory.current", "inactive_file"),
        (groups / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        try:
            allowed, used = (folder / limit).read_text().strip(), int((folder / usage).read_text())
            stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        except (OSError, ValueError):
            continue
        if allowed.isdigit():
            return max(0, int(allowed) - used + int(stat.get(cache, 0)))
    return 1 << 62


def _damaged_logs(folders: Sequence[Path]) -> tuple[str, ...] | None:
    """What the clusters of these folders know of damage; None if none of them answers."""
    return _told(folders, lambda cluster: damaged_logs(cluster.status(timeout_s=STATUS_TIMEOUT_S)))


def _recovering_controllers(folders: Sequence[Path]) -> tuple[str, ...] | None:
    return _told(folders, lambda cluster: recovering_controllers(cluster.quorum(timeout_s=STATUS_TIMEOUT_S)))


def _told(folders: Sequence[Path], ask: Callable[[Cluster], list[str]]) -> tuple[str, ...] | None:
    """What the clusters of these folders answer; None if none of them does."""
    from raylog.cluster import connect

    found: list[str] | None = None
    for folder in folders:
        if any(folder.glob("broker-*/meta.properties")):
            try:
                answer = ask(connect(folder=folder, timeout_s=STATUS_TIMEOUT_S))
            except RaylogError:  # ``raylog status`` says why
                continue
            found = [*(found or []), *answer]
    return None if found is None else tuple(found)


def damaged_logs(status: dict[str, Any]) -> list[str]:
    """The damaged logs that a cluster's status names, each with its broker."""
    return [f"broker {actor['broker']}: {damage}" for actor in status["actors"] for damage in actor["damaged"]]


def recovering_controllers(quorum: dict[str, Any]) -> list[str]:
    """The controllers that a quorum's status calls recovering, each by its broker."""
    return [f"broker {voter['broker']}" for voter in quorum["voters"] if voter.get("recovering")]


def look_at_disk(folder: Path) -> DiskFacts:
    """A folder that need not exist yet: then its nearest existing parent is measured."""
    existing = folder
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    problem = None
    try:
        if any(folder.glob("broker-*/meta.properties")):
            for disk in sorted(folder.glob("broker-*")):
                read_disk(disk)
        else:
            read_disk(folder)
        check_writable(existing)
    except DiskError as error:
        problem = str(error)
    usage = shutil.disk_usage(existing)
    return DiskFacts(str(folder), usage.free, usage.total, problem, next(iter(doubts([folder])), None))


def count_replicas(folder: Path) -> int:
    """The replicas in a disk's folder, or in those of an embedded cluster."""
    return sum(1 for disk in (folder, *folder.glob("broker-*")) for _ in disk.glob("*-*/partition.metadata"))


def count_replicas_of_a_disk(folder: Path) -> int:
    """The same of the fullest disk."""
    return max(sum(1 for _ in disk.glob("*-*/partition.metadata")) for disk in (folder, *folder.glob("broker-*")))


def _threads_allowed() -> int:
    bounds = [int(Path(f"/proc/sys/kernel/{name}").read_text()) for name in ("threads-max", "pid_max")]
    bounds.append(_unlimited(resource.getrlimit(resource.RLIMIT_NPROC)[0]))
    for path in ("/sys/fs/cgroup/pids.max", "/sys/fs/cgroup/pids/pids.max"):
        try:
            text = Path(path).read_text().strip()
        except OSError:
            continue
        if text.isdigit():
            bounds.append(int(text))
    return min(bounds)


def _unlimited(limit: int) -> int:
    return 1 << 62 if limit == resource.RLIM_INFINITY else limit


def _loopback_problem() -> str | None:
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            with socket.create_connection(listener.getsockname(), timeout=2):
                return None
    except OSError as error:
        return str(error)


def _port_owner(port: int) -> str:
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("0.0.0.0", port))
            return "free"
    except OSError:
        pass
    try:
        listening = [each for each in psutil.net_connections("tcp") if each.status == psutil.CONN_LISTEN]
        pids = [each.pid for each in listening if each.laddr and each.laddr.port == port and each.pid]
        names = sorted({psutil.Process(pid).name() for pid in pids})
    except psutil.Error:
        names = []
    if any(name.startswith(("gcs_server", "ray")) for name in names):
        return "ray"
    return ", ".join(names) or "another process"


def _look_at_ray() -> RayFacts:
    installed: str | None
    try:
        installed = version("ray")
    except PackageNotFoundError:
        installed = None
    token_files = [Path(os.environ.get("RAY_AUTH_TOKEN_PATH", "")), Path.home() / ".ray" / "auth_token"]
    has_token = bool(os.environ.get("RAY_AUTH_TOKEN")) or any(path.is_file() for path in token_files)
    return RayFacts(installed, running_ray(), _running_version(), os.environ.get("RAY_AUTH_MODE"), has_token)


def _running_version() -> str | None:
    """The version of the Ray whose raylet runs here, from the packages that its executable lies in."""
    for process in psutil.process_iter(["name", "exe"]):
        if process.info["name"] == "raylet" and process.info["exe"]:
            packages = Path(process.info["exe"]).parents
            for folder in packages:
                for found in folder.glob("ray-*.dist-info"):
                    return found.name.removeprefix("ray-").removesuffix(".dist-info")
    return None


def _java_version() -> int | None:
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin") if home else None
    java = java or shutil.which("java")
    if java is None:
        return None
    try:
        run = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', run.stderr + run.stdout)
    return int(match.group(1)) if match else None


def _oom_scores() -> tuple[tuple[int, int], ...]:
    scores = []
    for process in psutil.process_iter(["cmdline"]):
        command = " ".join(process.info["cmdline"] or ())
        if command.startswith("ray::") and any(name in command for name in SERVER_ACTORS):
            try:
                score = int(Path(f"/proc/{process.pid}/oom_score_adj").read_text())
            except OSError:
                continue
            scores.append((process.pid, score))
    return tuple(sorted(scores))
