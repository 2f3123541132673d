"""Runs seeds of the simulator: ``python -m raylog.simulator --seed N [--events N] [--trace]``, or
many with ``--seeds N``.

``--groups`` runs those with consumer groups (``simulated_groups``), ``--clients`` those with the
production clients (``simulated_clients``), ``--plans`` those whose controllers move
(``simulated_plans``), ``--transactions`` those with the production transaction coordinator
(``hosted_transactions``), ``--disks`` those whose brokers have two disks each (``second_disks``); a
seed is another run there. ``--night-minutes N`` gives
each run nights of so many minutes of the cluster's time (``rhythm``).

``--trace`` prints every step of the run. A run that breaks a promise prints what broke and the
command that repeats it; at the end stand the counts of what the runs went through, how many hours
of the clusters' time they spanned, the seeds that failed, and the seeds per second. Exits with 1 if
one failed.

Many seeds run in ``--processes`` processes; a run is what its seed makes it wherever it runs, and
results come in the order of the seeds.

``--hours H`` goes on until so many hours of the clusters' time are done, with nights, every other
run with groups, and keeps a tally in a file (``tally``), from which the next call goes on:
``--hours`` counts what the file has already.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from multiprocessing.pool import Pool
from pathlib import Path

from raylog.simulator.hosted_transactions import TransactionSimulation
from raylog.simulator.second_disks import DiskSimulation
from raylog.simulator.simulated_clients import ClientSimulation
from raylog.simulator.simulated_groups import GroupSimulation
from raylog.simulator.simulated_plans import PlanSimulation
from raylog.simulator.simulation import EVENTS, Simulation
from raylog.simulator.tally import Tally

NIGHT_MINUTES = 240  # of a run of ``--hours``, where no other number is given


@dataclass(frozen=True, slots=True)
class SeedOutcome:
    """One seed's run. ``failure`` is the traceback of what broke, its last line ``broke``; both
    None if nothing did.

    ``by_checker``: a checker or an assertion of the machines' own said so; anything else is an
    error in the code that ran.
    """

    seed: int
    events: int
    counts: Counter[str]
    failure: str | None
    broke: str | None
    by_checker: bool = False
    hours: float = 0.0
    """Of the cluster's time."""
    seconds: float = 0.0
    """Of this process's time."""


def command(
    seed: int,
    events: int,
    *,
    groups: bool = False,
    clients: bool = False,
    plans: bool = False,
    transactions: bool = False,
    disks: bool = False,
    night_minutes: int = 0,
) -> str:
    """What to type to see a run again."""
    kind = " --clients" if clients else " --groups" if groups else " --plans" if plans else ""
    kind = " --transactions" if transactions else " --disks" if disks else kind
    kind += f" --night-minutes {night_minutes}" if night_minutes else ""
    return f"python -m raylog.simulator{kind} --seed {seed} --events {events} --trace"


def run_seed(
    seed: int,
    *,
    events: int = EVENTS,
    night_minutes: int = 0,
    tracing: bool = False,
    groups: bool = False,
    clients: bool = False,
    plans: bool = False,
    transactions: bool = False,
    disks: bool = False,
) -> SeedOutcome:
    start = time.process_time()
    plain = DiskSimulation if disks else Simulation
    plain = PlanSimulation if plans else TransactionSimulation if transactions else plain
    simulated = ClientSimulation if clients else GroupSimulation if groups else plain
    simulation = simulated(
        seed, events=events, night_minutes=night_minutes, tracing=tracing, on_line=print if tracing else None
    )
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
    counts["seconds of the clusters' time"] += simulation.scheduler.now_us // 1_000_000
    hours = simulation.scheduler.now_us / 3.6e9
    return SeedOutcome(seed, events, counts, failure, broke, by_checker, hours, time.process_time() - start)


def _run_one(work: tuple[int, int], kind: dict[str, bool]) -> SeedOutcome:
    seed, events = work
    return run_seed(seed, events=events, **kind)


def _run_of_hours(seed: int, night_minutes: int) -> SeedOutcome:
    return run_seed(seed, night_minutes=night_minutes, groups=seed % 2 == 0)


def pool(processes: int, prepare: Callable[..., None] | None = None, *arguments: object) -> Pool:
    """Processes that have nothing of this one; ``prepare(*arguments)`` runs first in each, and has
    to be importable.
    """
    return multiprocessing.get_context("spawn").Pool(processes, prepare, arguments)


def run_seeds(
    work: Iterable[tuple[int, int]],
    processes: Pool,
    *,
    groups: bool = False,
    clients: bool = False,
    plans: bool = False,
    transactions: bool = False,
    disks: bool = False,
) -> Iterator[SeedOutcome]:
    """The outcomes of (seed, events), in the order of ``work``."""
    kind = {"groups": groups, "clients": clients, "plans": plans, "transactions": transactions, "disks": disks}
    run = partial(_run_one, kind=kind)
    return processes.imap(run, work)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m raylog.simulator", description="Run seeds of the simulator.")
    parser.add_argument("--seed", type=int, default=1, help="the (first) seed")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds, from the first on")
    parser.add_argument("--events", type=int, default=EVENTS, help="events of trouble before the healing")
    parser.add_argument("--groups", action="store_true", help="the simulator with consumer groups")
    parser.add_argument("--clients", action="store_true", help="the simulator with the production clients")
    parser.add_argument("--plans", action="store_true", help="the simulator whose controllers move")
    parser.add_argument(
        "--transactions", action="store_true", help="the simulator with the real transaction coordinator"
    )
    parser.add_argument("--disks", action="store_true", help="the simulator whose brokers have two disks each")
    parser.add_argument("--trace", action="store_true", help="print every step; one process")
    parser.add_argument("--keep-going", action="store_true", help="go on after a seed that fails")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="how many run at the same time")
    parser.add_argument("--night-minutes", type=int, default=0, help="of the cluster's time, beside that of the events")
    parser.add_argument("--hours", type=float, help="run until so many hours of the clusters' time are done")
    parser.add_argument("--tally", type=Path, default=Path("sim-tally.json"), help="where --hours keeps its tally")
    arguments = parser.parse_args()
    if arguments.hours is not None:
        night_minutes = arguments.night_minutes or NIGHT_MINUTES
        return _run_hours(arguments.hours, night_minutes, arguments.tally, arguments.seed, arguments.processes)
    counts: Counter[str] = Counter()
    failed: list[int] = []
    seeds = range(arguments.seed, arguments.seed + arguments.seeds)
    hours = 0.0
    start = time.perf_counter()
    if arguments.trace or arguments.processes == 1 or len(seeds) == 1:
        hours = _sum_up(
            (
                run_seed(
                    seed,
                    events=arguments.events,
                    night_minutes=arguments.night_minutes,
                    tracing=arguments.trace,
                    **_kind(arguments),
                )
                for seed in seeds
            ),
            counts,
            failed,
            arguments,
        )
    else:
        with pool(arguments.processes) as processes:
            run = partial(
                run_seed,
                events=arguments.events,
                night_minutes=arguments.night_minutes,
                **_kind(arguments),
            )
            hours = _sum_up(processes.imap(run, seeds), counts, failed, arguments)
    seconds = time.perf_counter() - start
    for name, count in sorted(counts.items()):
        print(f"{count:9d}  {name}")
    done = counts["seeds"]
    print(f"{hours * 60:,.1f} minutes of the clusters' time")
    print(f"{done} seeds in {seconds:.1f} s ({done / seconds:.2f} per second); failed: {failed}")
    return 1 if failed else 0


def _kind(arguments: argparse.Namespace) -> dict[str, bool]:
    """Which runs were asked for."""
    return {name: getattr(arguments, name) for name in ("groups", "clients", "plans", "transactions", "disks")}


def _sum_up(
    outcomes: Iterable[SeedOutcome], counts: Counter[str], failed: list[int], arguments: argparse.Namespace
) -> float:
    """Adds to ``counts`` and ``failed``; returns the hours of the clusters' time."""
    hours = 0.0
    for outcome in outcomes:
        counts.update(outcome.counts)
        hours += outcome.hours
        if outcome.failure is not None:
            failed.append(outcome.seed)
            print(f"seed {outcome.seed} failed at event {outcome.counts['events']}: {outcome.broke}")
            if not arguments.keep_going:
                print(outcome.failure)
            again = command(
                outcome.seed,
                outcome.events,
                **_kind(arguments),
                night_minutes=arguments.night_minutes,
            )
            print(f"    {again}", flush=True)
            if not arguments.keep_going:
                break
    return hours


def _run_hours(hours: float, night_minutes: int, path: Path, first_seed: int, processes: int) -> int:
    """Until the tally has so many hours. It is written after every run; the runs under way when
    that is reached are finished.
    """
    tally = Tally.load(path, first_seed=first_seed)
    start = said = time.perf_counter()
    with pool(processes) as workers:
        wanted = processes + 1 if tally.hours < hours else 0
        seeds = itertools.count(tally.next_seed)
        ahead = deque(
            workers.apply_async(_run_of_hours, (seed, night_minutes)) for seed in itertools.islice(seeds, wanted)
        )
        while ahead:
            outcome = ahead.popleft().get()
            failure = None
            if outcome.failure is not None:
                groups = outcome.seed % 2 == 0
                again = command(outcome.seed, outcome.events, groups=groups, night_minutes=night_minutes)
                failure = f"seed {outcome.seed}: {outcome.broke}\n    {again}"
                print(failure, flush=True)
            tally.add(outcome.seed, outcome.counts, hours=outcome.hours, seconds=outcome.seconds, failure=failure)
            tally.save(path)
            if tally.hours < hours:
                ahead.append(workers.apply_async(_run_of_hours, (next(seeds), night_minutes)))
            if time.perf_counter() - said > 60:
                said = time.perf_counter()
                print(tally.line(), flush=True)
    for name, count in sorted(tally.counts.items()):
        print(f"{count:9d}  {name}")
    print(f"{tally.line()}; {time.perf_counter() - start:.0f} s now; kept in {path}")
    return 1 if tally.failed else 0
