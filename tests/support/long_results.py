"""``tests/long_fuzz_results.md``: the last long run of the fuzzer (``long_fuzz.py``)."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, Final

from fast_feed import DOORS
from fuzz_report import ROOT
from kio.schema.index import api_key_map

from raylog.wire import private

PAGE: Final = ROOT / "tests" / "long_fuzz_results.md"
BEFORE: Final = ("open", "sasl", "bearer", "tls", "hello")
ROWS_MAX: Final = 25
INTRODUCTION: Final = """\
# Fuzzing: the last long run

`make fuzz-long` writes this page. What it does, and what the doors are: docs/security.md, "Hostile requests".
A frame is counted once its connection has taken it; of those through TLS, once it was answered or ended its
connection. The requests that are held are JoinGroups of members whose clients have gone: they wait as long as
their rebalance timeout says, as in Apache Kafka.
"""


def write_page(told: Path, command: str) -> None:
    PAGE.write_text(page(json.loads(told.read_text()), command), encoding="utf-8")


def page(told: dict[str, Any], command: str) -> str:
    """Of what ``Hunt.write`` has written."""
    total = sum(count for _, _, count in told["frames"])
    lines = [
        INTRODUCTION,
        f"`{command}`",
        "",
        f"{total:,} frames on {told['connections']:,} connections in {told['seconds']:,.0f} s, "
        f"{total / max(told['seconds'], 0.001):,.0f} a second; {told['cpu_seconds']:,.0f} s of the processor, "
        f"{total / max(told['cpu_seconds'], 0.001):,.0f} a second of it.",
        "",
        "Findings: " + ("none." if not told["findings"] else ""),
        *(f"- {count} × {text}" for text, count in told["findings"].items()),
        "",
        "## By door",
        "",
        "| door | who | frames |",
        "|---|---|---:|",
    ]
    doors: Counter[str] = Counter()
    for door, _, count in told["frames"]:
        doors[door] += count
    lines += [f"| {door} | {_who(door)} | {doors[door]:,} |" for door in DOORS]
    lines += ["", "## By API", "", "| API | before authentication | after |", "|---|---:|---:|"]
    before: Counter[int] = Counter()
    after: Counter[int] = Counter()
    for door, key, count in told["frames"]:
        (before if is_before(door) else after)[key] += count
    keys = sorted({*before, *after}, key=lambda key: (key < 0, key))
    lines += [f"| {name_of(key)} | {before[key]:,} | {after[key]:,} |" for key in keys]
    lines += ["", "## What was held", "", *_held(told["samples"])]
    for title, counts in (("What became of them", told["outcomes"]), ("Why connections were closed", told["refusals"])):
        most = Counter(counts).most_common(ROWS_MAX)
        lines += ["", f"## {title}", "", "```", *(f"{count:>10} {name}" for name, count in most), "```"]
    return "\n".join(lines) + "\n"


def is_before(door: str) -> bool:
    """Whether nobody has authenticated there."""
    return door in BEFORE or door.startswith("stranger")


def name_of(key: int) -> str:
    if key < 0:
        return "none that is served"
    if key >= private.FIRST_API_KEY:
        return private._requests[key].__name__
    return str(api_key_map[key]) if key in api_key_map else str(key)


def _who(door: str) -> str:
    return "before authentication" if is_before(door) else "after"


def _held(samples: list[dict[str, Any]]) -> list[str]:
    """At the first count, in the middle and at the last; and the tables that have grown the most."""
    if not samples:
        return ["It was not counted."]
    chosen = [samples[0], samples[len(samples) // 2], samples[-1]]
    lines = ["| | " + " | ".join(f"after {each['frames']:,}" for each in chosen) + " |", "|---|---:|---:|---:|"]
    for name in ("requests", "tasks", "connections", "descriptors", "timers", "objects"):
        lines.append(f"| {name} | " + " | ".join(f"{each[name]:,}" for each in chosen) + " |")
    lines.append("| memory, MiB | " + " | ".join(str(each["memory_bytes"] >> 20) for each in chosen) + " |")
    first, last = samples[0]["tables"], samples[-1]["tables"]
    grown = sorted(last, key=lambda name: first.get(name, 0) - last[name])[:8]
    for name in grown:
        lines.append(f"| {name}, entries | " + " | ".join(f"{each['tables'].get(name, 0):,}" for each in chosen) + " |")
    return lines
