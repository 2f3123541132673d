"""Hunts for mutations: how many seeds of the ordinary random run does it take until one patched into the machines is caught?

Those of the groups' machines are hunted in the runs with groups.

``make mutations`` (``python tests/sim/hunts.py [NAME …]``) hunts for each through up to 500 seeds and writes ``mutations.md`` beside
this file.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from group_mutations import GROUP_MUTATIONS
from mutations import MUTATIONS

from raylog.testing.replay import pool, run_seeds
from raylog.testing.simulation import EVENTS

FIRST_SEED = 10_001
SEEDS_MAX = 500
PROCESSES = 2
ALL = {**MUTATIONS, **GROUP_MUTATIONS}
TABLE = Path(__file__).parent / "mutations.md"


@dataclass(frozen=True, slots=True)
class Catch:
    """``seeds`` were run, the last of which broke, by ``broke``; None if none did."""

    seeds: int
    broke: str | None


def patch(name: str) -> None:
    """In a process that is all the mutation's, and is not patched back."""
    ALL[name](pytest.MonkeyPatch())


def hunt(name: str, seeds_max: int) -> Catch:
    """Until the first seed that breaks, in the order of the seeds. What breaks otherwise than by a checker no longer fits the code."""
    with pool(PROCESSES, patch, name) as processes:
        work = ((seed, EVENTS) for seed in range(FIRST_SEED, FIRST_SEED + seeds_max))
        for count, outcome in enumerate(run_seeds(work, processes, groups=name in GROUP_MUTATIONS), start=1):
            if outcome.broke is not None:
                assert outcome.by_checker, f"{name}: {outcome.failure}"
                return Catch(count, outcome.broke)
    return Catch(seeds_max, None)


def main(names: list[str]) -> int:
    rows = []
    for name in names or ALL:
        start = time.perf_counter()
        catch = hunt(name, SEEDS_MAX)
        said = f"caught after {catch.seeds} seeds" if catch.broke else f"NOT CAUGHT in {catch.seeds} seeds"
        print(f"{name}: {said} in {time.perf_counter() - start:.0f} s: {catch.broke}", flush=True)
        rows.append((name, catch))
    if not names:
        TABLE.write_text(table(rows))
    return 0 if all(catch.broke for _, catch in rows) else 1


def table(rows: list[tuple[str, Catch]]) -> str:
    lines = [
        "# Mutations",
        "",
        f"Faults patched into the machines (`mutations.py`), and after how many seeds of {EVENTS} events the ordinary random run of the",
        f"simulator found them; hunted from seed {FIRST_SEED} on through {SEEDS_MAX} at most. Written by `make mutations`.",
        "",
        "| mutation | seeds | what broke |",
        "|---|---:|---|",
    ]
    for name, catch in rows:
        broke = (catch.broke or "not caught").splitlines()[0].replace("|", "\\|")
        lines.append(f"| {name.replace('_', ' ')} | {catch.seeds} | {broke[:150]} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
