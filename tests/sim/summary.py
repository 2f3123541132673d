"""What all runs of a test session counted together."""

from __future__ import annotations

from collections import Counter

from raylog.testing.simulation import Simulation

counts: Counter[str] = Counter()
further: list[str] = []


def add(simulation: Simulation) -> None:
    counts.update(simulation.counts)
    counts["seeds"] += 1
    counts["events"] += simulation.scheduler.steps
    counts["unclean elections"] += simulation.checkers.unclean_elections


def lines() -> list[str]:
    if not counts:
        return further
    listed = [f"{count:9,d}  {name}" for name, count in sorted(counts.items()) if count]
    return ["simulator: what the runs went through", *listed, *further]
