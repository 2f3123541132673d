"""10,000 connections that begin a frame and never finish it, at one Broker's listener: what it holds for them, and what others notice.

An embedded cluster of one broker, every server a Ray actor. One client sends a record at a time, waits for its acknowledgement, and notes
how long that took: for some seconds before, while the connections are opened, while they are held, and after. A connection is *mute*
(it sends nothing) or *stuck* (it announces a frame of 100 MB, the most that is allowed, and sends a few bytes of it). Stuck ones are
ended by the Broker after 30 s, with a line in its log for each; mute ones after ten minutes, so the script ends them.

It needs 10,000 file descriptors here and there (``ulimit -n``); ``--connections`` asks for fewer.
"""

from __future__ import annotations

import argparse
import resource
import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from embedded import EmbeddedCluster
from harness import Benchmark, Measurement, arguments, pss_bytes

from raylog.types import BROKER_SLOT, node_id

TOPIC = "beside"
CONNECTIONS = 10_000
CALM_S = 5.0
HELD_S = 5.0
EVERY_S = 0.02  # a record, by the client beside
PATIENCE_S = 120.0
ANNOUNCED = struct.pack(">i", 100 << 20) + b"\x00\x00\x00\x0b"
MUTE, STUCK = "mute", "stuck"
BEFORE, OPENING, HELD, AFTER = "before", "while they are opened", "while they are held", "after"


class Beside(threading.Thread):
    """Somebody who is served all the time. ``took`` has how long each record took, by phase."""

    def __init__(self, servers: str) -> None:
        super().__init__(daemon=True)
        self.phase = BEFORE
        self.took: dict[str, list[float]] = {}
        self.errors: list[str] = []
        self.over = threading.Event()
        self._producer = Producer({"bootstrap.servers": servers, "linger.ms": 0, "log_level": 0})

    def run(self) -> None:
        while not self.over.is_set():
            began = time.perf_counter()
            self._producer.produce(TOPIC, b"v", partition=0, on_delivery=self._settled)
            self._producer.flush(PATIENCE_S)
            self.took.setdefault(self.phase, []).append(round(1_000 * (time.perf_counter() - began), 3))
            self.over.wait(EVERY_S)

    def _settled(self, error: Any, message: Any) -> None:
        if error is not None:
            self.errors.append(str(error))


def await_true(condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {PATIENCE_S:.0f} s: {what}")
        time.sleep(0.1)


def log_lines(folder: Path, pid: int, words: str) -> int:
    """The lines with these words in what a server process has logged."""
    return sum(
        line.count(words) for path in folder.glob(f"**/worker-*-{pid}.err") for line in path.read_text().splitlines()
    )


def sockets_of(pid: int) -> int:
    return sum(1 for each in Path(f"/proc/{pid}/fd").iterdir() if each.is_symlink())


def open_all(endpoint: tuple[str, int], count: int, kind: str) -> list[socket.socket]:
    opened = []
    for _ in range(count):
        each = socket.create_connection(endpoint, timeout=PATIENCE_S)
        if kind == STUCK:
            each.sendall(ANNOUNCED)
        opened.append(each)
    return opened


def strike(bench: Benchmark, running: EmbeddedCluster, kind: str, count: int) -> dict[str, Measurement]:
    """Opens so many, holds them, and waits for their end; how long the records beside them took, by phase."""
    actors = running.cluster.status()["actors"]
    pid = next(each["pid"] for each in actors if each["node_id"] == node_id(0, BROKER_SLOT))
    servers = running.cluster.bootstrap_servers()
    host, _, port = servers.rpartition(":")
    beside = Beside(servers)
    beside.start()
    time.sleep(CALM_S)
    fds, memory = sockets_of(pid), {BEFORE: pss_bytes(pid)}
    beside.phase = OPENING
    began = time.perf_counter()
    opened = open_all((host, int(port)), count, kind)
    await_true(lambda: sockets_of(pid) >= fds + count, "all of them accepted")
    opening_s = time.perf_counter() - began
    beside.phase = HELD
    time.sleep(HELD_S)
    memory[HELD] = pss_bytes(pid)
    if kind == STUCK:
        await_true(lambda: sockets_of(pid) < fds + 20, "the Broker has ended all of them")
    for each in opened:
        each.close()
    await_true(lambda: sockets_of(pid) < fds + 20, "all of them gone")
    beside.phase = AFTER
    time.sleep(CALM_S)
    memory[AFTER] = pss_bytes(pid)
    beside.over.set()
    beside.join()
    lines = log_lines(running.folder, pid, "did not come within")
    alive = {each["pid"] for each in running.cluster.status()["actors"]}
    bench.record(f"{kind}: the Broker's memory", BEFORE, [memory[BEFORE] / 1e6], unit="MB")
    bench.record(f"{kind}: the Broker's memory", HELD, [memory[HELD] / 1e6], unit="MB", opening_s=opening_s)
    bench.record(f"{kind}: the Broker's memory", AFTER, [memory[AFTER] / 1e6], unit="MB", log_lines=lines)
    grown = (memory[HELD] - memory[BEFORE]) / count / 1_000
    bench.target(f"{kind}: KB of the Broker's memory for each", grown, at_most=20)
    bench.target(f"{kind}: errors of the client beside", len(beside.errors), at_most=0)
    bench.target(f"{kind}: the Broker's process lives", float(pid in alive), at_least=1)
    if kind == STUCK:
        bench.target("stuck: lines in the log, per connection", lines / count, at_least=1)
    return {
        phase: bench.record(f"{kind}: a record beside", phase, took, unit="ms") for phase, took in beside.took.items()
    }


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--connections", type=int, default=None, help=f"how many (default {CONNECTIONS:,})")
    options = arguments(parser)
    count = options.connections or (500 if options.quick else CONNECTIONS)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard < count + 1_000:
        raise SystemExit(f"ulimit -n allows {hard} files: raise it, or ask for fewer with --connections")
    bench = Benchmark(
        "half_open",
        f"{count:,} half-open connections at one Broker: its memory, and a client beside them",
        settings={"connections": count, "announced_bytes": 100 << 20, "frame_timeout_s": 30},
        quick=options.quick,
    )
    with EmbeddedCluster(1) as running:
        running.create_topic(TOPIC)
        for kind in (MUTE, STUCK):
            beside = strike(bench, running, kind, count)
            bench.target(
                f"{kind}: a record beside while they are held, p99, ms", beside[HELD].percentile(99), at_most=100
            )
    return bench.finish()


if __name__ == "__main__":
    raise SystemExit(main())
