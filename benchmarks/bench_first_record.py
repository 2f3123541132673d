"""From an empty environment to the first acknowledged record: a client of a cluster, the broker in a test's process, a cluster.

Each round makes a new environment, installs raylog from a wheel of this checkout with pip (the one that came with Python) or uv, and
runs a program that has one record acknowledged and, but for the client, reads it back. *Warm* means that the installer's cache has the
packages, as on a machine that has installed them before; *cold*, measured once, that it is empty, so it is the network's figure as much
as raylog's. Making the environment is not counted, since who has a Python has made it already. Environments stay until all have been
measured: ext4 is slow to create files for minutes after as many were deleted (it searches for inodes past those of the deleted), which
costs an installer several seconds that a newcomer does not see.

The client installs plain ``raylog`` and reaches a running cluster by the listener of a broker. The broker installs the same. The cluster
installs ``raylog[ray]``; its program starts Ray.

    python benchmarks/bench_first_record.py
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from embedded import EmbeddedCluster
from harness import Benchmark, arguments

ROOT = Path(__file__).resolve().parents[1]
ROUNDS = 3
WARM_S_MAX = 10
SIZE_MB_MAX = 80
IMPORT_MS_MAX = 150
CLIENT = """
import raylog
with raylog.connect(bootstrap_servers="{bootstrap}").producer() as producer:
    producer.send("first", b"hello").result(60)
"""
BROKER = """
import raylog, raylog.testing
with raylog.testing.broker(topics={"first": 1}) as broker:
    cluster = raylog.connect(bootstrap_servers=broker.bootstrap)
    with cluster.producer() as producer:
        producer.send("first", b"hello").result(60)
    assert [each.value for each in broker.records("first", count=1)] == [b"hello"]
"""
CLUSTER = """
import raylog
with raylog.init("data") as cluster:
    cluster.admin().create_topics([raylog.NewTopic("first")])
    with cluster.producer() as producer:
        producer.send("first", b"hello").result(60)
    with cluster.consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign([raylog.TopicPartition("first", 0)])
        assert consumer.poll(60).value == b"hello"
"""
IMPORT = "import time; started = time.perf_counter(); import raylog; print(time.perf_counter() - started)"


INSTALLERS = "pip", "uv"


class Newcomer:
    """Somebody with an empty environment, who installs the wheel with an extra."""

    def __init__(self, installer: str, wheel: Path, extra: str, program: str, folder: Path) -> None:
        self._installer = installer
        self._package = f"{wheel}[{extra}]" if extra else str(wheel)
        self._program = program
        self._folder = folder
        self.installs: list[float] = []
        self.size_mb = 0.0
        self.import_ms = 0.0

    def seconds(self, cache: Path) -> float:
        """From the start of the installer to the end of the program."""
        home = tempfile.mkdtemp(dir=self._folder)
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "RAY"))}
        environment |= {"PIP_CACHE_DIR": str(cache), "UV_CACHE_DIR": str(cache), "RAY_TMPDIR": home}
        run(sys.executable, "-m", "venv", f"{home}/env", cwd=home, env=environment)
        python = f"{home}/env/bin/python"
        empty_bytes = disk_bytes(Path(home))
        os.sync()  # what the environment before left to be written would hold this one up
        started = time.perf_counter()
        run(*self._install(python), cwd=home, env=environment)
        self.installs.append(time.perf_counter() - started)
        run(python, "-c", self._program, cwd=home, env=environment)
        took = time.perf_counter() - started
        self.size_mb = (disk_bytes(Path(home) / "env") - empty_bytes) / 1e6
        self.import_ms = float(run(python, "-c", IMPORT, cwd=home, env=environment)) * 1000
        return took

    def _install(self, python: str) -> tuple[str, ...]:
        what = "-c", str(ROOT / "constraints.txt"), self._package
        if self._installer == "uv":
            return str(Path(sys.executable).with_name("uv")), "pip", "install", "--quiet", "--python", python, *what
        return python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *what


def run(*command: str, cwd: str | Path, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr}")
    return done.stdout


def disk_bytes(folder: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def main() -> int:
    options = arguments()
    bench = Benchmark("first_record", "from an empty environment to the first record", quick=options.quick)
    with tempfile.TemporaryDirectory() as temporary, EmbeddedCluster() as running:
        folder = Path(temporary)
        run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT), cwd=folder)
        (wheel,) = folder.glob("*.whl")
        running.create_topic("first")
        bootstrap = running.cluster.bootstrap_servers()
        programs = {
            "client of a cluster": ("", CLIENT.format(bootstrap=bootstrap)),
            "test broker": ("", BROKER),
            "cluster": ("ray", CLUSTER),
        }
        for installer in INSTALLERS:
            for what, (extra, program) in programs.items():
                name = f"{what}, {installer}"
                newcomer = Newcomer(installer, wheel, extra, program, folder)
                cache = folder / f"cache-{what.split()[0]}-{installer}"
                bench.record("cold cache, once", name, [newcomer.seconds(cache)], unit="s")
                newcomer.installs.clear()
                rounds = [newcomer.seconds(cache) for _ in range(1 if options.quick else ROUNDS)]
                warm = bench.record("warm cache", name, rounds, unit="s")
                bench.record("of that, the installer", name, newcomer.installs, unit="s")
                bench.record("size on the disk", name, [newcomer.size_mb], unit="MB")
                bench.record("import raylog", name, [newcomer.import_ms], unit="ms")
                if what != "cluster":
                    bench.target(f"{name}: seconds, warm", warm.median, at_most=WARM_S_MAX)
                if name == "test broker, pip":
                    bench.target("pip install raylog, with all dependencies: MB", newcomer.size_mb, at_most=SIZE_MB_MAX)
                    bench.target("import raylog: ms", newcomer.import_ms, at_most=IMPORT_MS_MAX)
    return bench.finish()


if __name__ == "__main__":
    raise SystemExit(main())
