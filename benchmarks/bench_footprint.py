"""What raylog weighs when nothing happens, and how long it takes to be there.

- *Up*: from the start of a fresh interpreter to ``raylog.init()`` having returned, on a blank folder, three brokers, Ray
  included; and the part of it that ``init`` itself took. A new process, folder and Ray each time.
- *Memory*: the proportional share (PSS) of the process of one replica actor, of one that holds 50 replicas (topic config
  ``replicas.per.actor``), of a broker and of the controller: what the process adds to the machine. Taken when it has
  stopped changing. Idle: topics have been created, nothing was ever produced.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from embedded import EmbeddedCluster
from harness import Benchmark, arguments, pss_bytes

REPLICAS_PER_ACTOR = 50
SETTLE_S = 30.0
STARTUP = """\
import time
started = time.perf_counter()
import raylog
cluster = raylog.init({folder!r}, ray_address="local")
print("init took", time.perf_counter() - started, flush=True)
input()
cluster.shutdown()
"""


def start_once() -> tuple[float, float]:
    """Seconds until a cluster serves: of the whole process, and of ``import raylog`` and ``init``."""
    folder = Path(tempfile.mkdtemp(prefix="rlb"))
    try:
        started = time.perf_counter()
        with subprocess.Popen(
            [sys.executable, "-c", STARTUP.format(folder=str(folder / "data"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"RAY_TMPDIR": str(folder)},
        ) as process:
            assert process.stdout is not None
            said = next((line for line in process.stdout if line.startswith("init took")), None)
            total = time.perf_counter() - started
            process.communicate("\n", timeout=120)
        if said is None or process.returncode:
            raise RuntimeError(f"the cluster did not start or end as it should: exit code {process.returncode}")
        return total, float(said.split()[-1])
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def settled_megabytes(pid: int) -> float:
    """The process's share of memory once it changes by less than a hundredth within a second."""
    deadline = time.monotonic() + SETTLE_S
    last = pss_bytes(pid)
    while time.monotonic() < deadline:
        time.sleep(1)
        now = pss_bytes(pid)
        if abs(now - last) < last / 100:
            break
        last = now
    return now / 1e6


def main() -> int:
    quick = arguments().quick
    bench = Benchmark(
        "footprint",
        "start of an embedded cluster of three brokers; memory of idle servers",
        settings={"brokers": 3, "replicas.per.actor": REPLICAS_PER_ACTOR},
        quick=quick,
    )
    starts = [start_once() for _ in range(bench.rounds)]
    bench.record("up", "whole process", [total for total, _ in starts], unit="s")
    bench.record("up", "import and init()", [inside for _, inside in starts], unit="s")
    bench.target("embedded cluster up, slowest, s", max(total for total, _ in starts), at_most=15)

    with EmbeddedCluster() as running:
        running.create_topic("one", partitions=bench.rounds)
        running.create_topic(
            "fifty",
            partitions=REPLICAS_PER_ACTOR,
            replication_factor=3,
            configs={"replicas.per.actor": REPLICAS_PER_ACTOR},
        )
        status = running.cluster.status()
        by_kind: dict[str, list[float]] = {}
        for actor in status["actors"]:
            kind = f"actor, {actor['replicas']} replicas" if actor["kind"] == "replicas" else actor["kind"]
            by_kind.setdefault(kind, []).append(settled_megabytes(int(actor["pid"])))
        by_kind["controller"] = [settled_megabytes(int(status["controller"]["pid"]))]
    for kind, megabytes in sorted(by_kind.items()):
        bench.record("memory (PSS)", kind, megabytes, unit="MB")
    bench.target("idle replica actor, largest, MB", max(by_kind["actor, 1 replicas"]), at_most=80)
    bench.target("actor with 50 idle replicas, largest, MB", max(by_kind["actor, 50 replicas"]), at_most=150)
    return bench.finish()


if __name__ == "__main__":
    raise SystemExit(main())
