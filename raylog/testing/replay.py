"""Runs seeds of the simulator: ``python -m raylog.testing.replay --seed N [--events N] [--trace]``, or many with ``--seeds N``.

``--groups`` runs those with consumer groups (``simulated_groups``); a seed is another run there.

``--trace`` prints every step of the run. A run that breaks a promise prints what broke and the command that repeats it; at the end
stand the counts of what the runs went through, the seeds that failed, and the seeds per second. Exits with 1 if one failed.

Many seeds run in ``--processes`` processes; a run is what its seed makes it wherever it runs, and results come in the order of the seeds.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from multiprocessing.pool import Pool

from raylog.testing.simulated_groups import GroupSimulation
from raylog.testing.simulation import EVENTS, Simulation


@dataclass(frozen=True, slots=True)
class Outcome:
    """One seed's run. ``failure`` is the traceback of what broke, its last line ``broke``; both None if nothing did.

    ``by_checker``: a checker or an assertion of the machines' own said so; anything else is an error in the code that ran.
    """

    seed: int
    events: int
    counts: Counter[str]
    failure: str | None
    broke: str | None
    by_checker: bool = False


def command(seed: int, events: int, *, groups: bool = False) -> str:
    """What to type to see a run again."""
    kind = " --groups" if groups else ""
    return f"python -m raylog.testing.replay{kind} --seed {seed} --events {events} --trace"


def run_seed(seed: int, *, events: int = EVENTS, tracing: bool = False, groups: bool = False) -> Outcome:
    simulated = GroupSimulation if groups else Simulation
    simulation = simulated(seed, events=events, tracing=tracing, on_line=print if tracing else None)
    failure = broke = None
    by_checker = False
    try:
        simulation.run()
    except Exception as error:
        failure = traceback.format_exc()
        by_checker = isinstance(error, AssertionError)  # a Violation is one
        broke = f"{type(error).__name__}: {error}"
    counts = Counter(simulation.counts)
    counts["unclean elections"] += simulation.checkers.unclean_elections
    counts["events"] += simulation.scheduler.steps
    counts["seeds"] += 1
    return Outcome(seed, events, counts, failure, broke, by_checker)


def _run_one(work: tuple[int, int], *, groups: bool) -> Outcome:
    return run_seed(work[0], events=work[1], groups=groups)


def pool(processes: int, prepare: Callable[..., None] | None = None, *arguments: object) -> Pool:
    """Processes that have nothing of this one; ``prepare(*arguments)`` runs first in each, and has to be importable."""
    return multiprocessing.get_context("spawn").Pool(processes, prepare, arguments)


def run_seeds(work: Iterable[tuple[int, int]], processes: Pool, *, groups: bool = False) -> Iterator[Outcome]:
    """The outcomes of (seed, events), in the order of ``work``."""
    return processes.imap(partial(_run_one, groups=groups), work)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m raylog.testing.replay", description="Run seeds of the simulator.")
    parser.add_argument("--seed", type=int, default=1, help="the (first) seed")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds, from the first on")
    parser.add_argument("--events", type=int, default=EVENTS, help="events of trouble before the healing")
    parser.add_argument("--groups", action="store_true", help="the simulator with consumer groups")
    parser.add_argument("--trace", action="store_true", help="print every step; one process")
    parser.add_argument("--keep-going", action="store_true", help="go on after a seed that fails")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="how many run at the same time")
    arguments = parser.parse_args()
    counts: Counter[str] = Counter()
    failed: list[int] = []
    seeds = range(arguments.seed, arguments.seed + arguments.seeds)
    start = time.perf_counter()
    if arguments.trace or arguments.processes == 1 or len(seeds) == 1:
        _sum_up(
            (
                run_seed(seed, events=arguments.events, tracing=arguments.trace, groups=arguments.groups)
                for seed in seeds
            ),
            counts,
            failed,
            arguments,
        )
    else:
        with pool(arguments.processes) as processes:
            work = ((seed, arguments.events) for seed in seeds)
            _sum_up(run_seeds(work, processes, groups=arguments.groups), counts, failed, arguments)
    seconds = time.perf_counter() - start
    for name, count in sorted(counts.items()):
        print(f"{count:9d}  {name}")
    done = counts["seeds"]
    print(f"{done} seeds in {seconds:.1f} s ({done / seconds:.2f} per second); failed: {failed}")
    return 1 if failed else 0


def _sum_up(
    outcomes: Iterable[Outcome], counts: Counter[str], failed: list[int], arguments: argparse.Namespace
) -> None:
    for outcome in outcomes:
        counts.update(outcome.counts)
        if outcome.failure is not None:
            failed.append(outcome.seed)
            print(f"seed {outcome.seed} failed at event {outcome.counts['events']}: {outcome.broke}")
            if not arguments.keep_going:
                print(outcome.failure)
            print(f"    {command(outcome.seed, outcome.events, groups=arguments.groups)}", flush=True)
            if not arguments.keep_going:
                break


if __name__ == "__main__":
    sys.exit(main())
