"""What every benchmark shares: alternating runs, medians, raw values kept, one JSON file and one table.

A benchmark compares *contestants* in *cases*. Contestants run alternately, in an order that turns with each round, so
that a slow minute of a shared machine hits all of them; figures are compared as ratios of medians of one run of the
script, never across runs. Nothing is left out: every raw value is in the JSON file. A *target* is a claim with a bound;
a script whose targets are missed ends with exit code 1::

    bench = Benchmark("produce", "one producer, one partition, 100-byte records")
    rates = bench.alternate("100 B, acks=1", {"raylog": here, "Apache Kafka": there}, unit="M records/s")
    bench.target("times Kafka's rate", rates["raylog"].median / rates["Apache Kafka"].median, at_least=1.0)
    raise SystemExit(bench.finish())

``--quick`` (see ``arguments``) is a smoke run: one round, small volumes, nothing written, misses don't count.
``RAYLOG_BENCH_ROUNDS`` overrides the number of rounds; nothing is written then either.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).resolve().parent / "results"
ROUNDS = 5


def arguments(parser: argparse.ArgumentParser | None = None) -> argparse.Namespace:
    """The command line of a script: ``--quick``, and what the script added to its own ``parser``."""
    parser = parser or argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="a smoke run: one round, small volumes, nothing written")
    return parser.parse_args()


@dataclass(slots=True)
class Measurement:
    """The raw values of one contestant in one case, in the order they were taken."""

    unit: str
    values: list[float] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def percentile(self, percent: float) -> float:
        """Nearest rank: with 200 values the 99th percentile is the 198th smallest."""
        ordered = sorted(self.values)
        return ordered[max(0, min(len(ordered) - 1, -int(-percent * len(ordered) // 100) - 1))]

    def as_json(self) -> dict[str, Any]:
        shown: dict[str, Any] = {
            "unit": self.unit,
            "median": self.median,
            "min": min(self.values),
            "max": max(self.values),
        }
        if len(self.values) >= 20:
            shown |= {f"p{percent}": self.percentile(percent) for percent in (50, 90, 99)}
        return shown | {"values": self.values} | ({"notes": self.notes} if self.notes else {})


@dataclass(frozen=True, slots=True)
class Target:
    """A bound and what was reached."""

    claim: str
    value: float
    at_least: float | None
    at_most: float | None

    @property
    def is_met(self) -> bool:
        return (self.at_least is None or self.value >= self.at_least) and (
            self.at_most is None or self.value <= self.at_most
        )

    @property
    def bound(self) -> str:
        return f"≥ {self.at_least:g}" if self.at_least is not None else f"≤ {self.at_most:g}"


class Benchmark:
    """One script's cases and targets. ``variant``: of a script that can measure the same in another way, with a file for each."""

    def __init__(
        self,
        name: str,
        claim: str,
        *,
        settings: Mapping[str, Any] | None = None,
        rounds: int | None = None,
        quick: bool = False,
        variant: str = "",
    ) -> None:
        override = os.environ.get("RAYLOG_BENCH_ROUNDS")
        self.name = f"{name}.{variant}" if variant else name
        self.claim = claim
        self.settings = dict(settings or {})
        self.rounds = int(override) if override else 1 if quick else (rounds or ROUNDS)
        self.cases: dict[str, dict[str, Measurement]] = {}
        self.targets: list[Target] = []
        self.notes: list[str] = []
        self.machine = machine()
        self._partial = quick or override is not None
        self._forgiving = quick
        self._started = time.time()
        self._console = Console()

    def alternate(
        self,
        case: str,
        contestants: Mapping[str, Callable[[], float]],
        *,
        unit: str,
        warm_up: bool = True,
        written_bytes: int = 0,
    ) -> dict[str, Measurement]:
        """Runs each contestant once per round.

        With ``warm_up`` a first round is run and thrown away for everybody alike. Before each run the kernel writes out what
        earlier ones left in the page cache, so that nobody is held up for another's bytes, and memory for ``written_bytes``
        is made ready, as many as a run writes (``ready_page_cache``).
        """
        names = list(contestants)
        measured = self.cases.setdefault(case, {})
        measured |= {name: Measurement(unit) for name in names}
        for number in range(-1 if warm_up else 0, self.rounds):
            turn = number % len(names)
            for name in names[turn:] + names[:turn]:
                os.sync()
                ready_page_cache(written_bytes)
                value = contestants[name]()
                if number >= 0:
                    measured[name].values.append(value)
                    self._console.print(f"[dim]{case} · {name} · {value:.4g} {unit}[/dim]", highlight=False)
        return measured

    def record(self, case: str, contestant: str, values: Iterable[float], *, unit: str, **notes: Any) -> Measurement:
        """Takes values that were measured elsewhere (pauses, latencies): all of them."""
        measurement = Measurement(unit, list(values), notes)
        self.cases.setdefault(case, {})[contestant] = measurement
        return measurement

    def target(self, claim: str, value: float, *, at_least: float | None = None, at_most: float | None = None) -> bool:
        """A bound on a figure; ``finish`` tells."""
        assert (at_least is None) != (at_most is None), "a target has one bound"
        target = Target(claim, value, at_least, at_most)
        self.targets.append(target)
        return target.is_met

    def note(self, text: str) -> None:
        """What the figures mean where they don't say it themselves; kept with them."""
        self.notes.append(text)

    def finish(self) -> int:
        """Writes the JSON file, prints the tables, and gives the exit code: 1 if a target was missed, except by a smoke run."""
        self._print()
        self.write()
        return 0 if self._forgiving or all(target.is_met for target in self.targets) else 1

    def write(self) -> None:
        """Writes the JSON file as far as the figures go, unless this is a smoke run. ``finish`` does it at the end."""
        if not self._partial:
            RESULTS.mkdir(exist_ok=True)
            scratch = RESULTS / f"{self.name}.json.tmp"
            scratch.write_text(json.dumps(self.as_json(), indent=1, ensure_ascii=False) + "\n")
            scratch.replace(RESULTS / f"{self.name}.json")

    def earlier(self) -> dict[str, dict[str, Measurement]]:
        """The cases that the file holds of earlier runs, for a script that measures some of them anew."""
        file = RESULTS / f"{self.name}.json"
        cases = json.loads(file.read_text())["cases"] if file.exists() else {}
        return {
            case: {
                name: Measurement(each["unit"], each["values"], each.get("notes", {}))
                for name, each in measured.items()
            }
            for case, measured in cases.items()
        }

    def as_json(self) -> dict[str, Any]:
        return {
            "benchmark": self.name,
            "claim": self.claim,
            "machine": self.machine,
            "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._started)),
            "took_s": round(time.time() - self._started, 1),
            "settings": self.settings,
            "cases": {
                case: {name: measurement.as_json() for name, measurement in measured.items()}
                for case, measured in self.cases.items()
            },
            "targets": [
                {"claim": each.claim, "value": each.value, "bound": each.bound, "met": each.is_met}
                for each in self.targets
            ],
            "notes": self.notes,
        }

    def _print(self) -> None:
        table = Table(title=f"{self.name}: {self.claim}", caption=machine_line(self.machine), title_justify="left")
        table.add_column("case")
        table.add_column("contestant")
        table.add_column("median", justify="right")
        table.add_column("min – max", justify="right")
        table.add_column("unit")
        table.add_column("ratio", justify="right")
        for case, measured in self.cases.items():
            first = next(iter(measured.values())).median
            for index, (name, each) in enumerate(measured.items()):
                ratio = f"{each.median / first:.2f}" if index and first else ""
                span = f"{min(each.values):.4g} – {max(each.values):.4g}"
                table.add_row(case if not index else "", name, f"{each.median:.4g}", span, each.unit, ratio)
            table.add_section()
        self._console.print(table)
        for target in self.targets:
            verdict = "[green]met[/green]" if target.is_met else "[red]missed[/red]"
            self._console.print(f"{verdict}  {target.claim}: {target.value:.4g} ({target.bound})", highlight=False)
        for note in self.notes:
            self._console.print(note, highlight=False)


# ------------------------------------------------------------------ the machine


def machine() -> dict[str, Any]:
    """What the figures were taken on. No names of hosts or people."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_at_start": [round(value, 2) for value in os.getloadavg()],
        "packages": {name: _version(name) for name in ("ray", "kio", "uvloop", "aiokafka", "confluent-kafka")},
    }


def machine_line(found: Mapping[str, Any]) -> str:
    load = found["load_at_start"][0]
    return f"{found['cores']} cores, {found['memory_gb']} GB, {found['cpu']}, Python {found['python']}, load {load}"


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


# ------------------------------------------------------------------ processes


def cpu_seconds(*pids: int) -> float:
    """CPU time that processes have used so far, user and system, all threads."""
    tick = os.sysconf("SC_CLK_TCK")
    total = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / tick


def cpu_ns(*pids: int) -> int:
    """CPU time of all threads of those processes so far. ``cpu_seconds`` counts in steps of 10 ms, too coarse for little work."""
    threads = [thread for pid in pids for thread in Path(f"/proc/{pid}/task").iterdir()]
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads)


def ready_page_cache(size: int) -> None:
    """Makes sure that the next ``size`` bytes of page cache are memory that this machine really has.

    A virtual machine gives memory that was free for some seconds back to its host, and getting it again at the first touch
    costs ten times the write itself (measured: 2.3 instead of 0.23 CPU s/GB). That would be billed to whoever writes, the
    faster the more. A file of twice that size, written and removed at once, leaves its pages to the next writer.
    """
    block = bytes(1 << 20)
    with tempfile.TemporaryFile(buffering=0) as scratch:
        for _ in range(-(-2 * size // len(block))):
            scratch.write(block)


def pss_bytes(pid: int) -> int:
    """A process's proportional share of memory: what it adds to the machine."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"process {pid} has no memory figures")
