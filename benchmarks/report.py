"""Writes ``docs/benchmarks.md`` from the result files, with every case and every target, met or
missed. Draws ``docs/failover.png`` anew where its figures have changed.

::

    python benchmarks/report.py            # after a benchmark wrote its file
    python benchmarks/report.py --check    # exit 1 where the page is not what the files say

Only the introduction and what is said of the failover faults are typed by hand, so the page cannot
claim what no run has shown.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from failover_chart import CHART, draw, is_current
from harness import Measurement

RESULTS = Path(__file__).resolve().parent / "results"
PAGE = Path(__file__).resolve().parent.parent / "docs" / "benchmarks.md"
FAILOVER = "failover"
STRUCK = """\
A pause is the longest time between two acknowledgements of the partition around a fault. It is
measured from the detection of the fault until the process is back. For *metadata changes* it is the
longest time between two committed changes of a topic's config. Both sides have three brokers and
three controllers, their own defaults (a silent process is dead after 9 s) and the same load. "Lost"
counts records that were acknowledged and not read back.

The machine was shared, and load on it lengthens pauses. The table gives that load, and how late the
thread that writes woke up at worst during a fault (the median of the runs). A pause of that length
comes from the machine.

- *leader process killed*: SIGKILL of the process that leads.
- *leader's node killed*: SIGKILL of the raylet of its Ray node and of all that it started. A Kafka
  broker is one process, so for Kafka this is the same as the leader killed.
- *leader silent*: SIGSTOP; connections stay open.
- *active controller killed*: SIGKILL. raylog's controllers are separate processes. Kafka's are also
  brokers (combined mode), so a replica dies with the controller.
- *Ray's head killed*: SIGKILL of the GCS process, which is started again after 3 s. Kafka has no
  counterpart.
- Kafka's client is confluent-kafka with its default retries. It gives a request up after 2 s instead
  of 60 s, so that it notices a fault early.
"""

INTRODUCTION = """\
# Benchmarks

`python benchmarks/report.py` writes this page from the files in
[benchmarks/results](../benchmarks/results), which hold every raw value. In each script the
contestants take turns within one run, on one machine with two cores that clients and servers share.
Compare the ratios: the absolute figures depend on the machine. `make bench` runs all scripts. Apache
Kafka (3.9 and 4.3, from Maven Central) needs Java.
"""


def page(results: Path = RESULTS) -> str:
    """The whole page."""
    found = [json.loads(path.read_text()) for path in sorted(results.glob("*.json"))]
    return "\n".join([INTRODUCTION, *(_section(each) for each in found)])


def _section(result: dict[str, Any]) -> str:
    machine = result["machine"]
    lines = [
        f"## {result['benchmark'].replace('.', ', ').replace('_', ' ')}",
        "",
        f"{result['claim'][0].upper()}{result['claim'][1:]}. Script: `benchmarks/{script_of(result['benchmark'])}`; "
        f"{machine['cores']} cores, {machine['cpu']}, {result['started'][:10]}.",
        "",
        *(_pauses(result) if result["benchmark"] == FAILOVER else _medians(result)),
    ]
    if result["targets"]:
        lines += ["", "| target | bound | reached | |", "|---|---:|---:|---|"]
        for target in result["targets"]:
            verdict = "met" if target["met"] else "**missed**"
            lines.append(f"| {target['claim']} | {target['bound']} | {target['value']:.4g} | {verdict} |")
    lines += [f"\n{note}" for note in result.get("notes", ())]
    return "\n".join(lines) + "\n"


def script_of(benchmark: str) -> str:
    """The script that wrote a result."""
    name = benchmark.partition(".")[0]  # before the variant
    return f"{name}.py" if name == FAILOVER else f"bench_{name}.py"


def _medians(result: dict[str, Any]) -> list[str]:
    lines = ["| case | contestant | median | min – max | unit |", "|---|---|---:|---:|---|"]
    for case, contestants in result["cases"].items():
        for name, each in contestants.items():
            span = f"{each['min']:.4g} – {each['max']:.4g}"
            lines.append(f"| {case} | {name} | {each['median']:.4g} | {span} | {each['unit']} |")
    return lines


def _pauses(result: dict[str, Any]) -> list[str]:
    """The chart, and the table that is its truth."""
    lines = [
        f"![every pause of every kind, raylog and Apache Kafka]({CHART.name})",
        "",
        STRUCK,
        "| struck | contestant | runs | p50, ms | p95, ms | max, ms | acked records lost | script late, ms | until; the machine's load |",
        "|---|---|---:|---:|---:|---:|---:|---:|---|",
    ]
    for case, contestants in result["cases"].items():
        for name, each in contestants.items():
            pauses = Measurement(each["unit"], each["values"])
            figures = [f"{value:,.0f}" for value in (pauses.percentile(50), pauses.percentile(95), max(pauses.values))]
            notes = each.get("notes", {})
            lost = f"{notes['lost']} of {notes['acknowledged']:,}" if "lost" in notes else ""
            when = (
                f"{notes['measured']}, {min(notes['loads']):.0f} – {max(notes['loads']):.0f}" if "lost" in notes else ""
            )
            late = (
                f"{Measurement('ms', [run['late_ms'] for run in notes['runs']]).median:,.0f}" if "runs" in notes else ""
            )
            lines.append(
                f"| {case} | {name} | {len(pauses.values)} | {' | '.join(figures)} | {lost} | {late} | {when} |"
            )
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description="make docs/benchmarks.md from the result files")
    parser.add_argument("--check", action="store_true", help="only say whether the page is up to date")
    wanted = page()
    pauses = RESULTS / f"{FAILOVER}.json"
    struck = json.loads(pauses.read_text()) if pauses.exists() else None
    is_drawn = struck is None or is_current(struck)
    if parser.parse_args().check:
        if PAGE.exists() and PAGE.read_text() == wanted and is_drawn:
            return 0
        print("docs/benchmarks.md or its chart is not what benchmarks/results say: run python benchmarks/report.py")
        return 1
    PAGE.write_text(wanted)
    if struck is not None and not is_drawn:
        draw(struck)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
