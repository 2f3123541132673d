"""Ray as on several machines: a head that holds no broker, and nodes with one disk each, every one started by ``ray start``.

Each machine has its own loopback address, its own temporary folder and its own processes, so that any of them can be lost whole: the
head killed and started again on its RocksDB store, a node killed or stopped, everything killed at once. Ray runs with its own
token authentication, as it does for a user, and serves on without a head as ``cluster.yaml`` sets it.

A machine's processes are known by a variable of their environment (``MACHINE``), which Ray's workers inherit from their raylet: also
those whose raylet is gone. The head runs in a PID namespace of its own, since a head does not start where it sees the raylets of
others; ``namespace_command`` says how this machine allows that, if it does.

Nothing here is a driver of that Ray: a driver would live and die with the raylet that it is attached to.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from driver_scripts import PROLOGUE, facts_of
from ray_clusters import PATIENCE_S, eventually

from raylog.placement.ray_environment import RAY_STARTUPS
from raylog.placement.resources import node_resources

MACHINE = "RAYLOG_TEST_MACHINE"
HEAD = "head"
RECONNECT_TIMEOUT_S = 7 * 24 * 3600
START_PATIENCE_S = 300.0
RAY_TOOK_TOO_LONG = "timed out during startup"
HEALTH_CHECK_PERIOD_MS = (
    500  # Ray's head gives up a node that refuses connections after five of these; 3,000 by default
)
OBJECT_STORE_BYTES = 80_000_000
NAMESPACE_COMMANDS = (
    ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"],
    ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "--kill-child"],
)


def namespace_command() -> list[str] | None:
    """What runs a program in a PID namespace of its own on this machine; None where that is not allowed."""
    for command in NAMESPACE_COMMANDS:
        if shutil.which(command[0]) is None:
            continue
        done = subprocess.run([*command, "true"], capture_output=True)
        if done.returncode == 0:
            return command
    return None


def processes_marked(marks: Collection[str]) -> list[psutil.Process]:
    """All processes whose environment, or that of who started them, says one of these of ``MACHINE``."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MACHINE) in marks and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def kill_marked(marks: Collection[str]) -> int:
    """SIGKILL all of them, until none is left; how many there were at first."""
    first = 0
    while processes := processes_marked(marks):
        first = first or len(processes)
        for process in processes:
            _signal(process, signal.SIGKILL)
        psutil.wait_procs(processes, timeout=0.1)
    return first


@dataclass(slots=True)
class RayMachines:
    """The head and its nodes by name. Addresses are 127.1.x.y, where x is drawn for each Ray."""

    folder: Path
    namespace: list[str]
    disks: dict[str, list[Path]]
    port: int = 0
    token: str = field(default_factory=lambda: secrets.token_hex(32))
    _started: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.port = self.port or _free_port(self.ip(HEAD))

    # ---------------------------------------------------------- what there is

    def ip(self, machine: str) -> str:
        return f"127.1.0.{1 + [HEAD, *self.disks].index(machine)}"

    @property
    def address(self) -> str:
        """Where Ray's head listens."""
        return f"{self.ip(HEAD)}:{self.port}"

    @property
    def store(self) -> Path:
        """The head's own state: all that Ray knows."""
        return self.folder / "gcs"

    def environment(self, **more: str) -> dict[str, str]:
        """What a program on this Ray is started with."""
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith("RAY_")},
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": self.token,
            "RAY_USAGE_STATS_ENABLED": "0",
            **RAY_STARTUPS,
            "RAY_gcs_rpc_server_reconnect_timeout_s": str(RECONNECT_TIMEOUT_S),
            **more,
        }

    def processes(self, *machines: str) -> list[psutil.Process]:
        """All processes of those machines, or of all of them."""
        return processes_marked({self._mark(machine) for machine in machines or (HEAD, *self.disks)})

    def processes_called(self, name: str, machine: str) -> list[psutil.Process]:
        """Those of a machine with that word in their title; Ray's workers are called after their actor's class."""
        return [each for each in self.processes(machine) if name in " ".join(_command_line(each))]

    def node_id(self, machine: str) -> str:
        """Ray's id of the machine's node, which is on its raylet's command line."""
        words = [word for each in self.processes(machine) for word in _command_line(each)]
        return next(word.removeprefix("--node_id=") for word in words if word.startswith("--node_id="))

    def _mark(self, machine: str) -> str:
        return f"{self.folder}/{machine}"

    # ---------------------------------------------------------- coming

    def start_all(self) -> None:
        """The head, then the nodes, one by one: Ray gives up a node that shares the machine with too many that start."""
        for machine in (HEAD, *self.disks):
            self.start(machine)

    def start(self, machine: str) -> None:
        """Start a machine and wait until it has joined."""
        self.spawn(machine)
        self.await_started(machine)

    def spawn(self, machine: str) -> None:
        """``ray start`` on a machine."""
        home = self.folder / machine
        home.mkdir(exist_ok=True)
        command = [str(Path(sys.executable).parent / "ray"), "start", "--block", "--disable-usage-stats"]
        command += [
            f"--node-ip-address={self.ip(machine)}",
            f"--temp-dir={home}",
            "--num-cpus=0",
            "--include-log-monitor=false",
        ]
        command += [f"--object-store-memory={OBJECT_STORE_BYTES}", "--min-worker-port=0", "--max-worker-port=0"]
        environment = self.environment(**{MACHINE: self._mark(machine)})
        if machine == HEAD:
            command += ["--head", f"--port={self.port}", "--include-dashboard=false"]
            command = [*self.namespace, *command]
            environment |= {"RAY_gcs_storage": "rocksdb", "RAY_gcs_storage_path": str(self.store)}
            environment |= {"RAY_health_check_period_ms": str(HEALTH_CHECK_PERIOD_MS)}
        else:
            resources = ",".join(f'"{name}": {count}' for name, count in node_resources(self.disks[machine]).items())
            command += [f"--address={self.address}", f"--resources={{{resources}}}"]
        with (self.folder / f"{machine}.log").open("w") as log:
            self._started[machine] = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def await_started(self, machine: str) -> None:
        """Returns when it has joined. Ray gives up a node that takes longer than 30 s, as it may on a busy machine: it is tried again."""
        log = self.folder / f"{machine}.log"

        def started() -> bool:
            if self._started[machine].poll() is not None:
                said = log.read_text()
                assert RAY_TOOK_TOO_LONG in said, f"{machine} did not start: {said}"
                self.kill(machine)
                self.spawn(machine)
            return "Ray runtime started" in log.read_text()

        eventually(started, f"Ray on {machine}", timeout_s=START_PATIENCE_S)

    # ---------------------------------------------------------- going

    def kill(self, *machines: str) -> None:
        """SIGKILL every process of those machines, or of all, if none is named; returns when they are gone."""
        named = machines or (HEAD, *self.disks)
        kill_marked({self._mark(machine) for machine in named})
        for machine in named:
            if machine in self._started:
                self._started.pop(machine).wait()

    @contextmanager
    def silent(self, machine: str) -> Iterator[None]:
        """SIGSTOP every process of a machine, SIGCONT at the end."""
        stopped: dict[int, psutil.Process] = {}
        while fresh := [each for each in self.processes(machine) if each.pid not in stopped]:
            for process in fresh:
                _signal(process, signal.SIGSTOP)
                stopped[process.pid] = process
        try:
            yield
        finally:
            for process in stopped.values():
                _signal(process, signal.SIGCONT)

    # ---------------------------------------------------------- programs

    def command(self, *arguments: object) -> subprocess.Popen[str]:
        """A ``raylog`` command as a user of this Ray gives it."""
        return self._popen("-m", "raylog.cli.main", *arguments)

    def run(self, body: str, *arguments: object) -> dict[str, Any]:
        """The facts that a program (``driver_scripts``) notes by its end."""
        with self._popen("-c", PROLOGUE + body, *arguments) as process:
            output, _ = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, output
        return facts_of(output)

    @contextmanager
    def program(self, body: str, *arguments: object) -> Iterator[Program]:
        """A program that goes on until a file exists whose name is its last argument; here once it has noted something."""
        ending = self.folder / f"ending-{secrets.token_hex(4)}"
        with self._popen("-c", PROLOGUE + body, *arguments, ending) as process:
            assert process.stdout is not None
            try:
                first = process.stdout.readline()
                assert first.startswith("{"), first + process.stdout.read()
                program = Program(process, ending)
                yield program
                program.end()
            finally:
                process.kill()

    def _popen(self, *arguments: object) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, *map(str, arguments)],
            env=self.environment(),
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


@dataclass(slots=True)
class Program:
    """One that runs until it is told to end; ``facts`` are there afterwards."""

    process: subprocess.Popen[str]
    ending: Path
    facts: dict[str, Any] = field(default_factory=dict)

    def end(self) -> None:
        """Idempotent."""
        if self.process.returncode is None:
            self.ending.touch()
            output, _ = self.process.communicate(timeout=PATIENCE_S)
            assert self.process.returncode == 0, output
            self.facts |= facts_of(output)


def _signal(process: psutil.Process, number: int) -> None:
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        pass


def _command_line(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


def _free_port(host: str) -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
