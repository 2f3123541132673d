"""What became of a fuzzer's frames, and ``tests/fuzz_results.md``, which is made of the last run of each kind."""

from __future__ import annotations

import json
import resource
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

GROWTH_BYTES_MAX: Final = 96 << 20
BAD_OUTCOMES: Final = ("an answer that is not decoded", "an answer to nothing")
ROOT: Final = Path(__file__).resolve().parents[2]
RESULTS: Final = ROOT / "tests" / "fuzz_results.md"
REPORTS: Final = ROOT / "build" / "fuzz"
KINDS: Final = {
    "random": "Changed at random (`make fuzz`): one in a hundred was sent through a socket, by a client in a process of its own, "
    "and all were decoded and refused as a listener does it.",
    "guided": "Chosen by coverage (`make fuzz-guided`): all were fed to connections of a Broker's listeners, with the controller, "
    "replicas and coordinators behind them. Frames of a session that stand behind one which ended its connection are counted, too, "
    "and never read.",
}


@dataclass
class Report:
    frames: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    findings: Counter[str] = field(default_factory=Counter)
    signatures: int = 0
    seconds: float = 0.0
    grown_bytes: int = 0
    peak_bytes: int = 0
    slowest_cpu_s: float = 0.0
    edges: int = 0
    kept: int = 0

    def add(self, told: dict[str, Any]) -> None:
        self.frames.update(told["frames"])
        self.outcomes.update(told["outcomes"])
        self.signatures += told["signatures"]

    def as_json(self) -> str:
        return json.dumps(vars(self), indent=1)

    @classmethod
    def of_json(cls, text: str) -> Report:
        told = json.loads(text)
        counters = {name: Counter(value) for name, value in told.items() if isinstance(value, dict)}
        return cls(**{**told, **counters})

    def judge(self) -> None:
        for outcome, count in self.outcomes.items():
            if outcome.startswith(BAD_OUTCOMES):
                self.findings[outcome] += count
        if self.grown_bytes > GROWTH_BYTES_MAX:
            self.findings[f"memory has grown by {self.grown_bytes >> 20} MiB"] += 1

    def __str__(self) -> str:
        total = sum(self.frames.values())
        lines = [f"{total} frames in {self.seconds:.0f} s, {total / max(self.seconds, 0.001):.0f} a second"]
        lines += [
            f"peak memory {self.peak_bytes >> 20} MiB, grown by {self.grown_bytes >> 20} MiB after the first tenth"
        ]
        if self.edges:
            lines.append(f"{self.edges} edges covered, {self.kept} sessions kept for what they cover")
            lines.append(f"the slowest frame took {self.slowest_cpu_s * 1_000:.0f} ms of the listener's thread")
        for title, counts in (
            ("frames by where they came in", self.frames),
            (f"outcomes ({self.signatures} kinds of API, version and errors)", self.outcomes),
            ("connections closed, by reason", self.refusals),
            ("FINDINGS", self.findings),
        ):
            lines.append(f"\n{title}:" + ("" if counts else " none"))
            lines += [f"  {count:>10} {name}" for name, count in counts.most_common(40)]
        return "\n".join(lines)


def write_results(kind: str, report: Report, command: str) -> None:
    """Keep that run's report, and write the committed page of the last run of each kind."""
    REPORTS.mkdir(parents=True, exist_ok=True)
    (REPORTS / f"{kind}.json").write_text(json.dumps({"command": command, "report": report.as_json()}))
    RESULTS.write_text(page({each: _last(each) for each in KINDS}), encoding="utf-8")


def page(runs: dict[str, tuple[str, Report] | None]) -> str:
    lines = [
        "# Fuzzing: the last run of each kind",
        "",
        '`make fuzz` and `make fuzz-guided` write this page. What they do: docs/security.md, "Hostile requests".',
    ]
    for kind, run in runs.items():
        lines += ["", f"## {kind.capitalize()}", "", KINDS[kind], ""]
        if run is None:
            lines.append("It has not run here.")
            continue
        command, report = run
        lines += [f"`{command}`", "", "```", str(report), "```"]
    return "\n".join(lines) + "\n"


def _last(kind: str) -> tuple[str, Report] | None:
    file = REPORTS / f"{kind}.json"
    if not file.exists():
        return None
    told: dict[str, Any] = json.loads(file.read_text())
    return told["command"], Report.of_json(told["report"])


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()
