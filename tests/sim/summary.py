"""What all runs of a test session counted together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

counts: dict[str, float] = Counter()
of_groups: dict[str, float] = Counter()
"""The same of the runs with consumer groups."""
of_clients: dict[str, float] = Counter()
"""The same of the runs with the production clients."""
of_plans: dict[str, float] = Counter()
"""The same of the runs whose controllers move."""
of_transactions: dict[str, float] = Counter()
"""The same of the runs with the production coordinator of transactions."""
further: list[str] = []


def add(counted: Mapping[str, int], to: dict[str, float] = counts) -> None:
    for name, count in counted.items():
        to[name] += count


def lines() -> list[str]:
    listed = []
    kinds = (
        ("what the runs went through", counts),
        ("runs with consumer groups", of_groups),
        ("runs with the production clients", of_clients),
        ("runs whose controllers move", of_plans),
        ("runs with the production coordinator of transactions", of_transactions),
    )
    for title, counted in kinds:
        if counted:
            listed += [f"simulator: {title}", *_listed(counted)]
    return [*listed, *further]


def _listed(counted: dict[str, float]) -> list[str]:
    seconds = counted.pop("seconds", 0)
    listed = [f"{count:9,.0f}  {name}" for name, count in sorted(counted.items()) if count]
    if seconds:
        listed.append(f"{counted['seeds'] / seconds:.1f} seeds per second")
    return listed
