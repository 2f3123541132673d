"""Runs seeds of the simulator: ``python -m raylog.testing.replay --seed N [--events N] [--trace]``, or many with ``--seeds N``.

``--trace`` prints every step of the run. A run that breaks a promise prints what broke, the last lines of its trace, and the
command that repeats it, and exits with 1.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections import Counter

from raylog.testing.simulation import EVENTS, Simulation


def command(seed: int, events: int) -> str:
    """What to type to see a run again."""
    return f"python -m raylog.testing.replay --seed {seed} --events {events} --trace"


def run_seed(seed: int, *, events: int = EVENTS, tracing: bool = False) -> tuple[Simulation | None, str | None]:
    """(the simulation, None), or (None or it, what broke)."""
    simulation = None
    try:
        simulation = Simulation(seed, events=events, tracing=tracing, on_line=print if tracing else None)
        simulation.run()
    except (AssertionError, Exception):
        return simulation, traceback.format_exc()
    return simulation, None


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m raylog.testing.replay", description="Run seeds of the simulator.")
    parser.add_argument("--seed", type=int, default=1, help="the (first) seed")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds, from the first on")
    parser.add_argument("--events", type=int, default=EVENTS, help="events of trouble before the healing")
    parser.add_argument("--trace", action="store_true", help="print every step")
    parser.add_argument("--keep-going", action="store_true", help="go on after a seed that fails")
    arguments = parser.parse_args()
    counts: Counter[str] = Counter()
    failed: list[int] = []
    start = time.perf_counter()
    for seed in range(arguments.seed, arguments.seed + arguments.seeds):
        simulation, failure = run_seed(seed, events=arguments.events, tracing=arguments.trace)
        if simulation is not None:
            counts.update(simulation.counts)
            counts["events"] += simulation.scheduler.steps
        if failure is not None:
            failed.append(seed)
            lines = failure.rstrip().splitlines()
            print(f"seed {seed} failed at event {simulation.scheduler.steps if simulation else 0}: {lines[-1]}")
            if not arguments.keep_going:
                print(failure)
            print(f"    {command(seed, arguments.events)}", flush=True)
            if not arguments.keep_going:
                break
    seconds = time.perf_counter() - start
    for name, count in sorted(counts.items()):
        print(f"{count:9d}  {name}")
    print(f"{arguments.seeds} seeds in {seconds:.1f} s ({arguments.seeds / seconds:.2f} per second); failed: {failed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
