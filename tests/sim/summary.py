"""What all runs of a test session counted together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

counts: dict[str, float] = Counter()
further: list[str] = []


def add(counted: Mapping[str, int]) -> None:
    for name, count in counted.items():
        counts[name] += count


def lines() -> list[str]:
    if not counts:
        return further
    seconds = counts.pop("seconds", 0)
    listed = [f"{count:9,.0f}  {name}" for name, count in sorted(counts.items()) if count]
    if seconds:
        listed.append(f"{counts['seeds'] / seconds:.1f} seeds per second")
    return ["simulator: what the runs went through", *listed, *further]
