"""Runs lanes of tests, prints their times beside their budgets, and ends with plain totals.

A lane is a pytest mark (fast: no mark). Its budget is a target, in minutes on two quiet cores: a lane that takes longer
says so and passes. A lane that takes three times its budget hangs: its process prints every thread's stack, reports what
has failed so far, and ends. Lanes that run side by side share the machine, so each has twice as long, and twice that while
its tests go on: what the other lanes leave of the machine is no fault of a lane. On a machine whose Python is slower than the one
that the budgets are for, which a short loop shows, that end comes later in proportion.

One lane prints its output as it comes. With several, the tracks below run side by side; each lane writes to
``build/lanes/LANE.log``, and a lane that failed prints that file. A machine with one core, or with less memory than two
lanes need, runs one lane after another.

    python .ci/lanes.py fast core        # these
    python .ci/lanes.py                  # all
    python .ci/lanes.py --long           # the slow tests, for which CI has no time; make test-long

The slow tests run one lane after another. All of them together write ``tests/long_results.md``, which is committed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path

from lane_process import ROOT, LaneProcess, Outcome, marks_of_whole_file

MARKS = ("core", "sim", "ray", "conformance", "spark", "chaos", "slow")
BUDGET_MINUTES = {"fast": 1.5, "core": 3, "sim": 4, "ray": 5, "conformance": 6, "spark": 6, "chaos": 4}
BUDGET_OF_ALL_MINUTES = 30
LONG_BUDGET_MINUTES = 120
HANG_FACTOR = 3
LOOP_S = 0.014
"""What ``loop_s`` takes on the machine that the budgets are for."""
SLOWNESS_MAX = 4.0
PATIENCE_S = 300.0
"""A lane beside others whose tests go on has one that began or ended within that time."""
TRACKS = (("ray", "chaos", "conformance"), ("fast", "core", "spark", "sim"))
"""Lanes that run side by side: the first track starts Ray clusters and waits a lot, the second one computes."""
NICENESS = {"fast": 5, "core": 5, "spark": 5, "sim": 10}
"""Beside the first track, whose tests of real processes have clocks to keep, the others take what it leaves idle. The simulator has no
clock but its own."""
MEMORY_FOR_TWO_BYTES = 12 << 30
PROGRESS_S = 60.0
LOGS = ROOT / "build" / "lanes"
LONG_RESULTS = ROOT / "tests" / "long_results.md"
TOOLS = {
    "core": {"chromium": "chromium"},
    "conformance": {"java": "openjdk-17-jre-headless", "mvn": "maven", "kcat": "kcat"},
}
"""By lane: programs that its tests call, with their Debian packages. Apache Kafka's own tools want Java and Maven."""


def mark_expression(lane: str, *, long: bool = False) -> str:
    """What ``pytest -m`` takes to run that lane and no other; ``long``: the slow tests of that lane."""
    if long:
        others = [mark for mark in MARKS if mark != "slow"]
        return f"slow and {lane}" if lane != "fast" else f"slow and not ({' or '.join(others)})"
    if lane == "fast":
        return "not (" + " or ".join(MARKS) + ")"
    return f"{lane} and not slow"


def without_tests_of(lane: str, *, long: bool = False) -> list[Path]:
    """The test files that hold no test of that lane: they need not be imported."""
    found = []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        if lane != "fast":
            is_without = f"mark.{lane}" not in text
        elif long:
            is_without = bool(marks_of_whole_file(text).intersection(MARKS) - {"slow"})
        else:
            is_without = bool(marks_of_whole_file(text).intersection(MARKS))
        if is_without or (long and "mark.slow" not in text):
            found.append(path)
    return found


def loop_s() -> float:
    """How long this machine takes for a short loop, at its best."""
    best = float("inf")
    for _ in range(7):
        start, total = time.perf_counter(), 0
        for number in range(500_000):
            total += number & 7
        best = min(best, time.perf_counter() - start)
    return best


def hang_s(budget_s: float, *, beside: bool, loop_s: float) -> float:
    """After how long a lane counts as hung."""
    slowness = min(SLOWNESS_MAX, max(1.0, loop_s / LOOP_S))
    return budget_s * HANG_FACTOR * slowness * (2 if beside else 1)


class Run:
    """Lanes that run, one after another or side by side."""

    def __init__(self, *, long: bool = False, beside: bool = False) -> None:
        self.long = long
        self.beside = beside
        self.loop_s = loop_s()
        self.stop = threading.Event()
        self.running: dict[str, LaneProcess] = {}
        self.failed: list[str] = []
        self.total = Outcome(0, 0, 0)
        self.rows: list[str] = []
        """The Markdown table of what ran: lane, seconds, passed, failed, skipped."""
        self._printing = threading.Lock()
        self._installing = threading.Lock()

    def say(self, line: str) -> None:
        with self._printing:
            print(line, flush=True)

    def lanes(self, names: tuple[str, ...]) -> None:
        """Run them one after another."""
        for name in names:
            if not self.stop.is_set():
                self.lane(name)

    def lane(self, lane: str) -> None:
        budget_s = (LONG_BUDGET_MINUTES if self.long else BUDGET_MINUTES[lane]) * 60
        self.say(f"── lane {lane}: budget {budget_s / 60:g} min")
        self.find_tools(lane)
        log = None
        if self.beside:
            LOGS.mkdir(parents=True, exist_ok=True)
            log = LOGS / f"{lane}.log"
        process = LaneProcess(
            lane,
            mark_expression(lane, long=self.long),
            ignored=without_tests_of(lane, long=self.long),
            log=log,
            niceness=NICENESS.get(lane, 0) if self.beside else 0,
        )
        self.running[lane] = process
        limit_s = hang_s(budget_s, beside=self.beside, loop_s=self.loop_s)
        outcome = process.wait(limit_s, self.stop, patience_s=PATIENCE_S if self.beside else 0.0)
        del self.running[lane]
        spent_s = process.seconds
        state = "FAILED" if outcome.failed else "ok"
        missed = "" if spent_s <= budget_s else f", MISSED its budget by {spent_s - budget_s:.0f} s"
        if self.beside and missed:
            missed += " (beside other lanes)"
        if log is not None and outcome.failed:
            self.say(log.read_text(encoding="utf-8", errors="replace"))
        for failure in outcome.failures:
            if failure.startswith("── lane"):  # not a test's, so pytest has not printed it
                self.say(failure)
        counts = f"{outcome.passed} passed, {outcome.failed} failed, {outcome.skipped} skipped"
        self.say(f"── lane {lane}: {state} in {spent_s:.0f} s of {budget_s:.0f} s{missed}; {counts}")
        self.total += outcome
        self.rows.append(f"| {lane} | {spent_s:.0f} | {outcome.passed} | {outcome.failed} | {outcome.skipped} |")
        if outcome.failed:
            self.failed.append(lane)

    def find_tools(self, lane: str) -> None:
        """What the lane's tests call: present, else installed where that is ours to do, else said."""
        packages = TOOLS.get(lane, {})
        missing = [name for name in packages if shutil.which(name) is None]
        if missing and os.getuid() == 0 and shutil.which("apt-get"):
            self.say(f"── lane {lane}: installing {' and '.join(missing)}")
            wanted = [packages[name] for name in missing]
            with self._installing:
                for command in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", *wanted]):
                    subprocess.run(
                        ["apt-get", *command],
                        check=False,
                        stdout=subprocess.DEVNULL,
                        env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"},
                    )
            missing = [name for name in packages if shutil.which(name) is None]
        if missing:
            self.say(f"── lane {lane}: no {' and no '.join(missing)}: what needs them is skipped")


def can_run_side_by_side() -> bool:
    """Whether this machine has the cores and the memory for two lanes."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return len(os.sched_getaffinity(0)) >= 2 and memory >= MEMORY_FOR_TWO_BYTES


def run(names: list[str], *, long: bool) -> Run:
    """Run the lanes; side by side where there are several and the machine can."""
    tracks = tuple(found for track in TRACKS if (found := tuple(name for name in track if name in names)))
    if long or len(tracks) < 2 or not can_run_side_by_side():
        alone = Run(long=long)
        try:
            alone.lanes(tuple(names))
        except KeyboardInterrupt:
            end(alone)
            raise
        return alone
    beside = Run(long=long, beside=True)
    started = time.monotonic()
    if beside.loop_s > LOOP_S:
        times = beside.loop_s / LOOP_S
        beside.say(f"── this machine's Python takes {times:.1f} times as long as that for which the budgets are")
    with ThreadPoolExecutor(len(tracks)) as threads:
        working = {threads.submit(beside.lanes, track) for track in tracks}
        try:
            while working:
                done, working = wait(working, timeout=PROGRESS_S, return_when=FIRST_COMPLETED)
                for future in done:
                    future.result()
                if not done:
                    lanes = ", ".join(process.progress for process in list(beside.running.values()))
                    beside.say(f"── {(time.monotonic() - started) / 60:.0f} min: {lanes}")
        except BaseException:
            beside.stop.set()
            raise
    return beside


def write_long_results(done: Run) -> None:
    """Write what the slow tests came to, and of which commit, for whoever reads the repository."""
    describe = ["git", "describe", "--always", "--dirty", "--abbrev=10"]
    commit = subprocess.run(describe, cwd=ROOT, capture_output=True, text=True).stdout.strip() or "an unknown commit"
    head = [
        "# The slow tests",
        "",
        f"Written by `make test-long` at {commit}, on {time.strftime('%Y-%m-%d', time.gmtime())}, on a machine with"
        f" {len(os.sched_getaffinity(0))} cores.",
        "",
        "| lane | seconds | passed | failed | skipped |",
        "|---|---:|---:|---:|---:|",
    ]
    LONG_RESULTS.write_text("\n".join([*head, *done.rows]) + "\n", encoding="utf-8")


def end(interrupted: Run) -> None:
    """End the lane that runs in this thread."""
    interrupted.stop.set()
    for process in interrupted.running.values():
        process.wait(0.0, interrupted.stop)


def main(arguments: list[str]) -> int:
    long = "--long" in arguments
    names = [argument for argument in arguments if argument != "--long"]
    unknown = [name for name in names if name not in BUDGET_MINUTES]
    if unknown:
        print(f"no lane {', '.join(unknown)}; there are {', '.join(BUDGET_MINUTES)}", file=sys.stderr)
        return 2
    started = time.monotonic()
    done = run(names or list(BUDGET_MINUTES), long=long)
    if long and not names:
        write_long_results(done)
    for failure in done.total.failures:  # once more, where a reader of a log's last lines finds them
        print(failure)
    if done.failed:
        print(f"lanes that failed: {', '.join(done.failed)}")
    minutes = (time.monotonic() - started) / 60
    if not names and not long:
        missed = "" if minutes <= BUDGET_OF_ALL_MINUTES else f": MISSED by {minutes - BUDGET_OF_ALL_MINUTES:.0f} min"
        print(f"── all lanes: {minutes:.0f} min of {BUDGET_OF_ALL_MINUTES}{missed}")
    total = done.total
    print(f"{total.passed} passed, {total.failed} failed, {total.skipped} skipped", flush=True)
    return 1 if total.failed or total.passed == 0 else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
