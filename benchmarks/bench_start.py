"""How long three brokers take to start, by phase, beyond what Ray itself takes.

Each round starts three things one after the other, each until its command returns:

- a *bare Ray*: the ``ray start`` that ``raylog up`` runs, and nothing else;
- *raylog up* of three brokers on a new folder: three controllers, three Brokers, and the two hosts of each disk;
- the same folder *after SIGKILL of everything*, Ray included, while a load of acknowledged records ran on 12 partitions, RF 3. The
  clients of the load go on; nothing that was acknowledged may be missing.

``raylog up`` says how long its phases took. What is left of its time is the command's own: the interpreter, imports, and the
end of the process. It does not wait for hosts that hold no replica yet: how long they take after it has returned is given
beside. "Beyond Ray's own start" is the time of ``raylog up`` less that of the bare Ray of the same round. CPU seconds of the
server processes and of the fork server are given, too: divided by the machine's cores they are the least time that such a
start can take here.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from harness import Benchmark, arguments

MARK = "RAYLOG_BENCH_START"
BROKERS = 3
SERVERS_EACH = 3  # the Broker, and the two hosts of its disk
PARTITIONS = 12
ROUNDS = 3
PATIENCE_S = 600.0
ACKNOWLEDGED = 2_000
TARGET_NEW_S, TARGET_KILLED_S = 4.0, 6.0
NEW, KILLED = "three brokers, a new folder", "three brokers, after SIGKILL of everything under load"
BARE, UP, BEYOND = "bare Ray", "raylog up", "raylog up beyond the bare Ray"
COMMAND = "the command itself"
HOSTS = "then, until all hosts are there"
FORK_SERVER = "raylog.actors.fork_server"
BARE_RAY = """
import sys, time
from pathlib import Path
from raylog.cli.ray_head import end_ray, start_ray
folder = Path(sys.argv[1])
began = time.monotonic()
start_ray(folder, int(sys.argv[2]), None, 1)
print(time.monotonic() - began)
end_ray(folder)
"""


class Home:
    """A folder of its own for Ray and the data; every process that is started from it carries a mark."""

    def __init__(self, folder: Path, brokers: int = BROKERS) -> None:
        self.folder = folder
        self.brokers = brokers
        self.mark = str(folder)
        kept = {name: value for name, value in os.environ.items() if name not in ("RAY_ADDRESS", "RAYLOG_FOLDER")}
        self._environment = kept | {"RAY_TMPDIR": str(folder), MARK: self.mark}

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def run(self, *command: object) -> str:
        done = subprocess.run(
            [sys.executable, *map(str, command)],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def bare_ray(self) -> float:
        """Seconds until it is there; it is ended again."""
        return float(self.run("-c", BARE_RAY, self.folder / "bare", self.brokers).splitlines()[-1])

    def up(self) -> tuple[float, dict[str, float]]:
        """Seconds until the command returns, and its phases."""
        began = time.monotonic()
        state = json.loads(self.run("-m", "raylog.cli.main", "up", self.data, "--brokers", self.brokers, "--json"))
        took_s = time.monotonic() - began
        phases: dict[str, float] = state["phases_s"]
        return took_s, phases | {COMMAND: took_s - sum(phases.values()), HOSTS: self.await_hosts()}

    def await_hosts(self) -> float:
        """Seconds until each disk's two hosts are there."""
        from raylog.cluster import find

        began = time.monotonic()
        cluster = find(folder=self.data)

        def count() -> int:
            return sum(each["state"] == "live" for each in cluster.status()["actors"])

        await_true(lambda: count() >= SERVERS_EACH * BROKERS, "all hosts")
        return time.monotonic() - began

    def down(self) -> float:
        """Seconds until everything has ended cleanly."""
        began = time.monotonic()
        self.run("-m", "raylog.cli.main", "down", self.data)
        return time.monotonic() - began

    def processes(self) -> list[psutil.Process]:
        """All that run with the mark."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == self.mark:
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def servers_cpu_s(self) -> float:
        """CPU seconds that the server processes have used so far."""
        total = 0.0
        for process in self.processes():
            try:
                command = process.cmdline()
                if (command[0].startswith("ray::") and "Actor" in command[0]) or FORK_SERVER in command:
                    times = process.cpu_times()
                    total += times.user + times.system
            except (psutil.Error, IndexError):
                continue
        return total

    def kill(self) -> int:
        """SIGKILL of everything; how many processes that were."""
        count = 0
        while victims := self.processes():
            for victim in victims:
                try:
                    victim.send_signal(signal.SIGKILL)
                    count += 1
                except psutil.NoSuchProcess:
                    continue
            psutil.wait_procs(victims, timeout=10)
        return count


@contextmanager
def home(brokers: int = BROKERS) -> Iterator[Home]:
    folder = Path(tempfile.mkdtemp(prefix="rlb"))  # short: Ray's sockets live in it
    made = Home(folder, brokers)
    try:
        yield made
    finally:
        made.kill()
        shutil.rmtree(folder, ignore_errors=True)


def await_true(condition: Any, what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {PATIENCE_S:.0f} s: {what}")
        time.sleep(0.05)


def killed_under_load(at: Home, figures: dict[str, list[float]]) -> int:
    """Kill everything under a load and start it again; how many acknowledged records were lost."""
    import raylog
    from raylog import NewTopic
    from raylog.testing.verifiable_load import VerifiableLoad, audit_of

    cluster = raylog.connect(folder=at.data)
    with cluster.admin() as admin:
        admin.create_topics([NewTopic("load", PARTITIONS, BROKERS, configs={"min.insync.replicas": "2"})])
    load = VerifiableLoad(cluster.address, "load", partitions=PARTITIONS, producers=2, records_per_second=2_000)
    with load:
        await_true(lambda: load.ledger.acknowledged > ACKNOWLEDGED, "acknowledged records")
        at.kill()
        before = load.ledger.acknowledged
        took_s, phases = at.up()
        take(figures, took_s, phases, at.servers_cpu_s())
        await_true(lambda: load.ledger.acknowledged > before, "the clients of the load go on")
    return audit_of(load, cluster.address).lost


def take(figures: dict[str, list[float]], took_s: float, phases: dict[str, float], cpu_s: float) -> None:
    figures.setdefault(UP, []).append(took_s)
    for name, seconds in phases.items():
        figures.setdefault(name if name == HOSTS else f"of it: {name}", []).append(seconds)
    figures.setdefault("CPU of the server processes", []).append(cpu_s)


def main() -> int:
    quick = arguments().quick
    bench = Benchmark(
        "start",
        f"three brokers start in ≤ {TARGET_NEW_S:g} s beyond Ray's own start, and in ≤ {TARGET_KILLED_S:g} s after SIGKILL of everything",
        settings={"brokers": BROKERS, "controllers": 3, "partitions of the load": PARTITIONS, "replication factor": 3},
        rounds=ROUNDS,
        quick=quick,
    )
    bare: list[float] = []
    new: dict[str, list[float]] = {}
    killed: dict[str, list[float]] = {}
    loads: list[float] = []
    lost = 0
    for number in range(bench.rounds):
        with home() as at:
            loads.append(os.getloadavg()[0])
            bare.append(at.bare_ray())
            took_s, phases = at.up()
            take(new, took_s, phases, at.servers_cpu_s())
            lost += killed_under_load(at, killed)
        print(
            f"round {number}: bare {bare[-1]:.1f} s, new {new[UP][-1]:.1f} s, killed {killed[UP][-1]:.1f} s", flush=True
        )
        record(bench, bare, new, killed, lost, loads)
        bench.write()  # a round may be the last that there is time for
    return bench.finish()


def record(
    bench: Benchmark,
    bare: list[float],
    new: dict[str, list[float]],
    killed: dict[str, list[float]],
    lost: int,
    loads: list[float],
) -> None:
    """All rounds so far."""
    bench.cases, bench.targets, bench.notes = {}, [], []
    for case, figures, bound_s in ((NEW, new, TARGET_NEW_S), (KILLED, killed, TARGET_KILLED_S)):
        bench.record(case, BARE, bare, unit="s")
        bench.record(case, UP, figures[UP], unit="s")
        beyond = [taken - own for taken, own in zip(bench.cases[case][UP].values, bare, strict=True)]
        bench.record(case, BEYOND, beyond, unit="s", load_at_start_of_rounds=loads)
        for name, values in figures.items():
            if name != UP:
                bench.record(case, name, values, unit="CPU s" if name.startswith("CPU") else "s")
        bench.target(f"{case}: s beyond Ray's own start", statistics.median(beyond), at_most=bound_s)
    bench.target("acknowledged records lost", lost, at_most=0)
    bench.note(
        f"The machine's load was {min(loads):.0f} to {max(loads):.0f} on {os.cpu_count()} cores when the rounds began: where it is "
        "higher than the number of cores, every phase waits for a share of them. The CPU seconds of the server processes do not depend "
        "on that: a start can't be faster than these divided by the cores."
    )


if __name__ == "__main__":
    raise SystemExit(main())
