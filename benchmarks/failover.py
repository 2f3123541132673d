"""How long writes (and changes of metadata) pause when something is killed or falls silent, and whether anything acknowledged is lost.

raylog and Apache Kafka, three brokers each, under the same load, struck in every way of ``KINDS`` again and again
(``struck`` says what is struck, how, and through which clients). Contestants take turns in blocks of ``BLOCK`` runs of
each kind, every block with a cluster of its own, so that both see the same machine. ::

    python benchmarks/failover.py                       # everything, 30 runs of each kind: about an hour
    python benchmarks/failover.py --quick               # one run of each kind, nothing written
    python benchmarks/failover.py --only raylog --kinds "leader silent" "Ray's head killed"
                                                        # measures these anew and keeps the others' results
    python benchmarks/failover.py --add --runs 10       # ten more of each
    python benchmarks/report.py                         # then: the page and the chart

One idempotent producer sends paced records with acks=all through everything. At a random moment, with requests in flight,
the fault strikes. A *pause* is the longest time between two consecutive acknowledgements, the second of which came after
the strike and before everything is whole again: it covers detection, election, retries and the return of what was struck.
In kinds that concern metadata, a topic's config is changed 20 times a second all the while; their pause is the longest time between two
completed changes. Every run counts and every pause is in the JSON file, beside the longest gap in the second before each strike.

After each block the partition is read back: every acknowledged record has to be there once, at the offset that the acknowledgement
named, in the order in which it was sent.
"""

from __future__ import annotations

import argparse
import os
import random
import threading
import time
from array import array
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from typing import Any

from harness import Benchmark, Measurement, arguments
from paced_load import Ledger, Pacer, held_against, longest_gap
from struck import CHANGES_IN, CONTROLLER, HEAD, KINDS, LEADER, NODE, SILENT, Kafka, Raylog

RUNS = 30
BLOCK = 5
RECORD_BYTES = 100
RECORDS_PER_SECOND = 3000
CHANGE_EVERY_S = 0.05
CALM_S = 1.0  # of undisturbed acknowledgements before a strike, and up to as much more
RESUME_S = 120.0
CONTESTANTS = {each.name: each for each in (Raylog, Kafka)}
CHANGES = ": metadata changes"


@dataclass(slots=True)
class Run:
    """One strike. Times in ms; ``changes_ms`` where metadata was changed meanwhile."""

    pause_ms: float
    calm_ms: float
    late_ms: float
    whole_after_s: float
    changes_ms: float | None
    circumstances: dict[str, Any]


@dataclass(slots=True)
class Figures:
    """All runs of a kind by one contestant."""

    runs: list[Run] = field(default_factory=list)
    lost: int = 0
    misplaced: int = 0  # twice, elsewhere or out of order, in the blocks of this kind
    refused: list[str] = field(default_factory=list)
    acknowledged: int = 0
    loads: list[float] = field(default_factory=list)  # of the machine, before each row of strikes


class Changes(threading.Thread):
    """Changes a topic's config at a fixed rate, whether earlier changes have ended or not; knows when they are committed."""

    def __init__(self, contestant: Raylog | Kafka) -> None:
        super().__init__(daemon=True)
        self._contestant = contestant
        self._stopped = threading.Event()
        self.times = array("d")
        self.last_started = -1.0  # when the newest of those that succeeded was sent
        self.failures: list[str] = []

    def run(self) -> None:
        number = 0
        while not self._stopped.wait(CHANGE_EVERY_S):
            number += 1
            self._change(number)

    def _change(self, number: int) -> None:
        started = time.perf_counter()

        def done(error: object) -> None:
            if error is not None:
                self.failures.append(str(error))
                return
            self.times.append(time.perf_counter())
            self.last_started = max(self.last_started, started)

        self._contestant.change(number, done)

    def __enter__(self) -> Changes:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self.join()


class Block:
    """One contestant's cluster under load, struck some times in each way."""

    def __init__(self, contestant: Raylog | Kafka, dice: random.Random) -> None:
        self._contestant = contestant
        self._dice = dice
        self._ledger = Ledger()
        self._pacer = Pacer(
            lambda sequence, value: contestant.send(sequence, value, self._ledger.note),
            records_per_second=RECORDS_PER_SECOND,
            record_bytes=RECORD_BYTES,
        )

    def run(self, kinds: Sequence[str], runs: int, figures: dict[str, Figures]) -> None:
        spans: list[tuple[float, str]] = []
        self._pacer.start()
        time.sleep(CALM_S)
        for kind in kinds:
            spans.append((time.perf_counter(), kind))
            figures[kind].loads.append(round(os.getloadavg()[0], 1))
            with Changes(self._contestant) if kind in CHANGES_IN else nullcontext() as changes:
                for _ in range(runs):
                    run = self._strike(kind, changes)
                    figures[kind].runs.append(run)
                    self._say(kind, run)
        time.sleep(CALM_S)
        self._pacer.stop()
        self._contestant.flush()
        result = held_against(self._ledger, self._contestant.records())
        for index, (start, kind) in enumerate(spans):
            end = spans[index + 1][0] if index + 1 < len(spans) else float("inf")
            figures[kind].lost += sum(start <= at < end for at in result.lost_at)
            figures[kind].misplaced += result.twice + result.misplaced + result.disordered
            figures[kind].refused += self._ledger.failures
            figures[kind].acknowledged += self._ledger.count(start, end)
        print(f"{self._contestant.name}: {len(self._ledger.times):,} records acknowledged, {result}", flush=True)

    def _strike(self, kind: str, changes: Changes | None) -> Run:
        time.sleep(CALM_S * (1 + self._dice.random()))
        steps = self._contestant.faults[kind]()
        circumstances = next(steps)
        self._await(self._contestant.is_in_flight, 0.0001, "something is in flight")
        at = time.perf_counter()
        next(steps)
        sent = self._pacer.sent
        self._await(lambda: bool(self._ledger.sequences) and self._ledger.sequences[-1] >= sent, 0.002, "writes go on")
        if changes is not None:
            self._await(lambda: changes.last_started > at, 0.01, "changes go on")
        for _ in steps:
            raise AssertionError(f"{kind}: a fault stops twice, not three times")
        end = time.perf_counter()
        return Run(
            pause_ms=1000 * self._ledger.longest_gap(at, end),
            calm_ms=1000 * self._ledger.longest_gap(at - CALM_S, at),
            late_ms=1000 * self._pacer.worst_lateness(at, end),
            whole_after_s=end - at,
            changes_ms=None if changes is None else 1000 * longest_gap(changes.times, at, end),
            circumstances=circumstances,
        )

    def _await(self, condition: Any, every_s: float, what: str) -> None:
        deadline = time.monotonic() + RESUME_S
        while not condition():
            self._pacer.check()
            assert time.monotonic() < deadline, f"not within {RESUME_S:g} s: {what}"
            time.sleep(every_s)  # a busy loop would starve the threads that send

    def _say(self, kind: str, run: Run) -> None:
        changes = "" if run.changes_ms is None else f", changes {run.changes_ms:,.0f} ms"
        print(
            f"{self._contestant.name}, {kind}: {run.pause_ms:,.0f} ms{changes}; whole after {run.whole_after_s:.1f} s"
            f"; {run.calm_ms:.0f} ms before, {run.late_ms:.0f} ms late {run.circumstances or ''}",
            flush=True,
        )


Found = dict[str, dict[str, Figures]]
"""By contestant and kind."""


def measure(options: argparse.Namespace, contestants: Sequence[str], runs: int) -> Iterator[Found]:
    """What has been found so far, after each block. No further round begins once ``--minutes`` are over."""
    found: Found = {name: {} for name in contestants}
    dice = random.Random(options.seed)
    ends_at = time.monotonic() + 60 * options.minutes
    left = runs
    turn = 0
    while left and time.monotonic() < ends_at:
        for name in [*contestants[turn:], *contestants[:turn]]:
            os.sync()
            contestant = CONTESTANTS[name]()
            wanted = [kind for kind in options.kinds if kind in contestant.faults]
            for kind in wanted:
                found[name].setdefault(kind, Figures())
            if wanted:
                with contestant:
                    Block(contestant, dice).run(wanted, min(BLOCK, left), found[name])
                yield found
        left -= min(BLOCK, left)
        turn = (turn + 1) % len(contestants)


# ------------------------------------------------------------------ results


def joined(before: Measurement, now: Measurement) -> Measurement:
    """The runs of both. Counts and lists add up; the time is that of the later ones."""
    notes = {name: value if isinstance(value, str) else before.notes[name] + value for name, value in now.notes.items()}
    return Measurement(now.unit, before.values + now.values, notes)


def record(bench: Benchmark, kept: dict[str, dict[str, Measurement]], found: Found, *, add: bool) -> None:
    """What was measured now, in the place of what is kept of the same, or after it (``add``)."""
    cases: dict[str, dict[str, Measurement]] = {case: dict(measured) for case, measured in kept.items()}
    for name, by_kind in found.items():
        for kind, figures in by_kind.items():
            notes = {
                "measured": time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
                "loads": figures.loads,
                "acknowledged": figures.acknowledged,
                "lost": figures.lost,
                "misplaced": figures.misplaced,
                "refused": figures.refused,
                "runs": [asdict(run) for run in figures.runs],
            }
            now = Measurement("ms", [run.pause_ms for run in figures.runs], notes)
            changes = [run.changes_ms for run in figures.runs if run.changes_ms is not None]
            for case, each in ((kind, now), (kind + CHANGES, Measurement("ms", changes))):
                before = cases.get(case, {}).get(name)
                if each.values:
                    cases.setdefault(case, {})[name] = joined(before, each) if add and before else each
    contestants = list(CONTESTANTS)
    bench.cases = {
        case: dict(sorted(cases[case].items(), key=lambda each: contestants.index(each[0])))
        for case in (case for kind in KINDS for case in (kind, kind + CHANGES))
        if case in cases
    }


def judge(bench: Benchmark) -> None:
    """Targets on raylog's figures, as far as there are any."""
    bench.targets = []

    def of(case: str, name: str = Raylog.name) -> Measurement | None:
        return bench.cases.get(case, {}).get(name)

    for case, least in ((LEADER, 30.0), (SILENT, 1.0), (CONTROLLER, 30.0), (CONTROLLER + CHANGES, 1.0)):
        here, there = of(case), of(case, Kafka.name)
        if here and there:
            bench.target(f"{case}: Kafka's median pause in raylog's", there.median / here.median, at_least=least)
    for case in (LEADER, NODE, CONTROLLER, CONTROLLER + CHANGES, HEAD):
        if here := of(case):
            bench.target(f"{case}: longest pause, ms", max(here.values), at_most=1000)
    measured = [here for kind in KINDS if (here := of(kind))]
    bench.target("acknowledged records lost", sum(each.notes["lost"] for each in measured), at_most=0)
    bench.target(
        "records twice in the log, at another offset or out of order",
        sum(each.notes["misplaced"] for each in measured),
        at_most=0,
    )


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=None, help=f"of each kind (default {RUNS})")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS, help="only these")
    parser.add_argument("--only", choices=CONTESTANTS, help="one contestant; the other's results are kept")
    parser.add_argument("--add", action="store_true", help="add the runs to the file's, instead of replacing those")
    parser.add_argument("--minutes", type=float, default=240, help="begin no further round of blocks after this time")
    parser.add_argument("--seed", type=int, default=1, help="of the moments of the strikes")
    options = arguments(parser)
    runs = options.runs or (1 if options.quick else RUNS)
    bench = Benchmark(
        "failover",
        "pause of writes when something is killed or falls silent, RF 3, acks=all; raylog, and Apache Kafka 3.9.1 where it is named",
        settings={
            "replication.factor": 3,
            "min.insync.replicas": 2,
            "acks": "all",
            "records_per_second": RECORDS_PER_SECOND,
            "record_bytes": RECORD_BYTES,
            "seed": options.seed,
        },
        quick=options.quick,
    )
    contestants = [options.only] if options.only else list(CONTESTANTS)
    kept = {} if options.quick else bench.earlier()  # read once: each block's write has all that was found so far
    for found in measure(options, contestants, runs):
        record(bench, kept, found, add=options.add)
        judge(bench)
        bench.write()
    return bench.finish()


if __name__ == "__main__":
    raise SystemExit(main())
