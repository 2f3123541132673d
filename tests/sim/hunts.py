"""Hunts for mutations: how many seeds of the ordinary random run does it take until one patched into the machines is caught?

Those of the groups' machines are hunted in the runs with groups, those of the
clients and of the Broker in the runs with the production clients, those of the transactions'
coordinator in worlds that have no cluster (``coordinator_worlds``), those of ``hosted_mutations``
in the runs with the production coordinator of transactions, and those of ``disk_move_mutations`` in
the runs whose brokers have two disks each.

``make mutations`` (``python tests/sim/hunts.py [--processes N] [NAME …]``) hunts for each through up to 200 seeds. Without
names it hunts for all. What it finds it writes into ``mutations.md`` beside this file, hunt by hunt.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from multiprocessing.pool import Pool
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parent))

from broker_mutations import BROKER_MUTATIONS
from client_mutations import CLIENT_MUTATIONS
from clock_mutations import CLOCK_MUTATIONS
from coordinator_mutations import COORDINATOR_MUTATIONS
from coordinator_worlds import run_worlds
from creation_mutations import CREATION_MUTATIONS
from damage_mutations import DAMAGE_MUTATIONS
from disk_move_mutations import DISK_MOVE_MUTATIONS
from disk_mutations import DISK_MUTATIONS
from driver_mutations import DRIVER_MUTATIONS
from follower_session_mutations import FOLLOWER_SESSION_MUTATIONS
from group_mutations import GROUP_MUTATIONS
from hosted_mutations import HOSTED_MUTATIONS
from leadership_mutations import LEADERSHIP_MUTATIONS
from log_mutations import LOG_MUTATIONS
from move_mutations import MOVE_MUTATIONS
from mutations import MUTATIONS
from producer_mutations import PRODUCER_MUTATIONS
from queue_mutations import QUEUE_MUTATIONS
from scaling_mutations import SCALING_MUTATIONS
from session_mutations import SESSION_MUTATIONS
from transaction_mutations import TRANSACTION_MUTATIONS
from unit_tests import UNIT_TESTS

from raylog.simulator.replay import SeedOutcome, pool, run_seed
from raylog.simulator.simulation import EVENTS

FIRST_SEED = 10_001
SEEDS_MAX = 200
PROCESSES = 2
ALL = {
    **MUTATIONS,
    **LEADERSHIP_MUTATIONS,
    **CREATION_MUTATIONS,
    **CLOCK_MUTATIONS,
    **DISK_MUTATIONS,
    **DAMAGE_MUTATIONS,
    **LOG_MUTATIONS,
    **MOVE_MUTATIONS,
    **DISK_MOVE_MUTATIONS,
    **SCALING_MUTATIONS,
    **PRODUCER_MUTATIONS,
    **TRANSACTION_MUTATIONS,
    **COORDINATOR_MUTATIONS,
    **HOSTED_MUTATIONS,
    **QUEUE_MUTATIONS,
    **SESSION_MUTATIONS,
    **FOLLOWER_SESSION_MUTATIONS,
    **DRIVER_MUTATIONS,
    **GROUP_MUTATIONS,
    **CLIENT_MUTATIONS,
    **BROKER_MUTATIONS,
}
HUNTED = [name for name in ALL if name not in UNIT_TESTS]
TABLE = Path(__file__).parent / "mutations.md"


@dataclass(frozen=True, slots=True)
class Catch:
    """``seeds`` were run, the last of which broke, by ``broke``; None if none did."""

    seeds: int
    broke: str | None


def _run(seed: int, kind: str) -> SeedOutcome:
    if kind == "coordinator":
        return run_worlds(seed)
    kinds = {each: kind == each for each in ("groups", "clients", "transactions", "disks")}
    return run_seed(seed, events=EVENTS, **kinds)


@cache
def _breaks_anyway(seed: int, kind: str) -> bool:
    return _run(seed, kind).broke is not None


def kind_of(name: str) -> str:
    """The runs that the mutation is hunted in."""
    if name in GROUP_MUTATIONS:
        return "groups"
    if name in COORDINATOR_MUTATIONS:
        return "coordinator"
    if name in HOSTED_MUTATIONS:
        return "transactions"
    if name in DISK_MOVE_MUTATIONS:
        return "disks"
    return "clients" if name in CLIENT_MUTATIONS or name in BROKER_MUTATIONS else "replicas"


def run_mutated(name: str, seed: int) -> SeedOutcome:
    """One seed with the mutation patched in, and out again."""
    with pytest.MonkeyPatch.context() as patch:
        ALL[name](patch)
        return _run(seed, kind_of(name))


def _outcomes(name: str, seeds: range, processes: Pool, *, at_a_time: int) -> Iterator[SeedOutcome]:
    """In the order of the seeds. Few are begun before they are asked for: most hunts are over after a handful."""
    ahead = deque(processes.apply_async(run_mutated, (name, seed)) for seed in seeds[:at_a_time])
    for seed in seeds[at_a_time:]:
        yield ahead.popleft().get()
        ahead.append(processes.apply_async(run_mutated, (name, seed)))
    for each in ahead:
        yield each.get()


def hunt(name: str, seeds_max: int, processes: Pool, *, at_a_time: int = PROCESSES) -> Catch:
    """Until the first seed that breaks with the mutation alone. What breaks otherwise than by a checker no longer fits the code."""
    seeds = range(FIRST_SEED, FIRST_SEED + seeds_max)
    for count, outcome in enumerate(_outcomes(name, seeds, processes, at_a_time=at_a_time), start=1):
        if outcome.broke is not None and not _breaks_anyway(outcome.seed, kind_of(name)):
            assert outcome.by_checker, f"{name}: {outcome.failure}"
            return Catch(count, outcome.broke)
    return Catch(seeds_max, None)


def main() -> int:
    parser = argparse.ArgumentParser(description="Hunt for mutations with the simulator.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these; the table keeps the other rows")
    parser.add_argument("--seeds", type=int, default=SEEDS_MAX, help="at most so many for each")
    parser.add_argument("--processes", type=int, default=PROCESSES, help="how many run at the same time")
    arguments = parser.parse_args()
    rows: list[tuple[str, Catch]] = []
    with pool(arguments.processes) as processes:
        for name in arguments.names or HUNTED:
            start = time.perf_counter()
            catch = hunt(name, arguments.seeds, processes, at_a_time=arguments.processes)
            said = f"caught after {catch.seeds} seeds" if catch.broke else f"NOT CAUGHT in {catch.seeds} seeds"
            print(f"{name}: {said} in {time.perf_counter() - start:.0f} s: {catch.broke}", flush=True)
            rows.append((name, catch))
            TABLE.write_text(table(last_catches() | dict(rows)))
    return 0 if all(catch.broke for _, catch in rows) else 1


def last_catches() -> dict[str, Catch]:
    """By mutation, as the table says."""
    rows = (line.split(" | ", 2) for line in TABLE.read_text().splitlines() if line.startswith("| "))
    caught = (row for row in rows if len(row) == 3 and row[1].isdigit())
    return {
        name.removeprefix("| ").replace(" ", "_"): Catch(int(seeds), broke.removesuffix(" |").replace("\\|", "|"))
        for name, seeds, broke in caught
    }


def table(catches: Mapping[str, Catch]) -> str:
    lines = [
        "# Mutations",
        "",
        f"Faults patched into the machines (`*_mutations.py`), and after how many seeds of {EVENTS} events the ordinary random",
        f"run of the simulator found them; hunted from seed {FIRST_SEED} on through {SEEDS_MAX} at most. Written by `make mutations`.",
        "Those of `coordinator_mutations.py` are hunted in worlds without a cluster (`coordinator_worlds.py`), those of",
        "`hosted_mutations.py` in the runs with the production coordinator of transactions, those of `disk_move_mutations.py` in the",
        "runs whose brokers have two disks each.",
        "",
        "| mutation | seeds | what broke |",
        "|---|---:|---|",
    ]
    for name in HUNTED:
        if name not in catches:
            continue
        catch = catches[name]
        broke = (catch.broke or "not caught").splitlines()[0].replace("|", "\\|")
        lines.append(f"| {name.replace('_', ' ')} | {catch.seeds} | {broke[:150]} |")
    lines += [
        "",
        "Left to other tests, which `make test-long` runs with the fault patched in: what the random run did not find in 60 to 200 seeds,",
        "or is not expected to find, and why.",
        "",
        "| mutation | test | what the simulator would have to meet |",
        "|---|---|---|",
    ]
    lines += [f"| {name.replace('_', ' ')} | `{test}` | {why} |" for name, (test, why) in UNIT_TESTS.items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
