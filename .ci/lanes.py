"""Runs lanes of tests, each within its time budget, and prints plain totals.

A lane is a pytest mark (fast: no mark). It fails when a test fails or when its budget is spent: the test process of a lane
that is late is interrupted, so that it reports what had failed and where it was, and then ended with its group. A lane without tests passes
and says so; nothing is invented for it. The last lines repeat each failed test, and what was raised.

    python .ci/lanes.py fast core        # these, in this order
    python .ci/lanes.py                  # all
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MARKS = ("core", "sim", "ray", "conformance", "spark", "chaos", "slow")
BUDGET_MINUTES = {"fast": 1, "core": 4, "sim": 10, "ray": 8, "conformance": 10, "spark": 10, "chaos": 7}
NO_TESTS_COLLECTED = 5
REPORT_S = 20.0  # for a late lane's report
LINES_OF_A_FAILURE = 12
MARKS_OF_A_FILE = re.compile(r"^pytestmark = ([^\n\[]+|\[[^\n]*\]|\[\n.*?^\])", re.MULTILINE | re.DOTALL)
A_MARK = re.compile(r"pytest\.mark\.(\w+)")


@dataclass(frozen=True, slots=True)
class Outcome:
    passed: int
    failed: int
    skipped: int
    failures: tuple[str, ...] = ()
    """Each failed test: its name, and the end of what pytest said of it."""

    def __add__(self, other: Outcome) -> Outcome:
        return Outcome(
            self.passed + other.passed,
            self.failed + other.failed,
            self.skipped + other.skipped,
            self.failures + other.failures,
        )


def mark_expression(lane: str) -> str:
    """What ``pytest -m`` takes to run that lane and no other."""
    if lane == "fast":
        return "not (" + " or ".join(MARKS) + ")"
    return f"{lane} and not slow"


def without_tests_of(lane: str) -> list[Path]:
    """The test files in which that lane's mark does not occur, or, of the fast lane, that are marked whole: they need not be imported."""
    found = []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        if lane != "fast":
            is_without = f"mark.{lane}" not in text
        else:
            is_without = any(mark in MARKS for whole in MARKS_OF_A_FILE.findall(text) for mark in A_MARK.findall(whole))
        if is_without:
            found.append(path)
    return found


def run_lane(lane: str) -> Outcome:
    """Run one lane, with pytest's output passed through."""
    budget_s = BUDGET_MINUTES[lane] * 60
    print(f"── lane {lane}: budget {BUDGET_MINUTES[lane]} min", flush=True)
    if lane == "conformance":
        find_tools()
    with tempfile.TemporaryDirectory() as folder:
        report, current = Path(folder) / "report.xml", Path(folder) / "current"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "current_test", "-m", mark_expression(lane)]
        path = os.pathsep.join(filter(None, (str(ROOT / ".ci"), os.environ.get("PYTHONPATH"))))
        started = time.monotonic()
        process = subprocess.Popen(
            [*command, f"--junitxml={report}", *(f"--ignore={path}" for path in without_tests_of(lane))],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": path, "RAYLOG_LANE_TEST": str(current)},
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            code = process.wait(timeout=budget_s)
        except subprocess.TimeoutExpired:
            late = f"── lane {lane}: FAILED, not done after its {BUDGET_MINUTES[lane]} min{in_the_middle_of(current)}"
            end_late(process)
            print(late, flush=True)
            return read_report(report) + Outcome(0, 1, 0, (late,))
        except KeyboardInterrupt:
            os.killpg(process.pid, signal.SIGINT)
            process.wait()
            raise
        spent_s = time.monotonic() - started
        if code == NO_TESTS_COLLECTED:
            print(f"── lane {lane}: no tests yet; it comes with a later issue", flush=True)
            return Outcome(0, 0, 0)
        outcome = read_report(report)
        if code != 0 and outcome.failed == 0:  # a collection error, an internal error, a signal
            died = f"── lane {lane}: FAILED, pytest itself ended with exit code {code}{in_the_middle_of(current)}"
            outcome += Outcome(0, 1, 0, (died,))
    state = "ok" if outcome.failed == 0 else "FAILED"
    print(f"── lane {lane}: {state} in {spent_s:.0f} s of {budget_s} s", flush=True)
    return outcome


def end_late(process: subprocess.Popen[bytes]) -> None:
    """Interrupt pytest, which then reports, and end it with its group."""
    process.send_signal(signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=REPORT_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def in_the_middle_of(current: Path) -> str:
    """The test that ran when pytest ended without a word, in words; nothing if it wasn't in one."""
    with contextlib.suppress(OSError):
        return f", in the middle of {current.read_text()}"
    return ""


def read_report(report: Path) -> Outcome:
    """The totals of a JUnit report; none if pytest died before it wrote one."""
    if not report.exists():
        return Outcome(0, 0, 0)
    suites = ElementTree.parse(report).getroot().iter("testsuite")
    total = Outcome(0, 0, 0)
    for suite in suites:
        failed = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
        skipped = int(suite.get("skipped", 0))
        failures = tuple(
            failure_of(case)
            for case in suite.iter("testcase")
            if case.find("failure") is not None or case.find("error") is not None
        )
        total += Outcome(int(suite.get("tests", 0)) - failed - skipped, failed, skipped, failures)
    return total


def failure_of(case: ElementTree.Element) -> str:
    """The name of a failed test, what was raised (causes, too), and the end of its traceback."""
    said = "\n".join(part.text or part.get("message", "") for kind in ("failure", "error") for part in case.iter(kind))
    lines = said.splitlines()
    raised = [line for line in lines[:-LINES_OF_A_FAILURE] if line.startswith("E  ")][:LINES_OF_A_FAILURE]
    return "\n".join([f"── failed: {case.get('classname')}::{case.get('name')}", *raised, *lines[-LINES_OF_A_FAILURE:]])


def find_tools() -> None:
    """Java and Maven for Apache Kafka's own tools, and kcat: present, else installed where that is ours to do, else said."""
    packages = {"java": "openjdk-17-jre-headless", "mvn": "maven", "kcat": "kcat"}
    missing = [name for name in packages if shutil.which(name) is None]
    if not missing:
        return
    if os.getuid() == 0 and shutil.which("apt-get"):
        print(f"── lane conformance: installing {' and '.join(missing)}", flush=True)
        subprocess.run(["apt-get", "update", "-qq"], check=False, stdout=subprocess.DEVNULL)
        wanted = [packages[name] for name in missing]
        subprocess.run(
            ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *wanted],
            check=False,
            stdout=subprocess.DEVNULL,
            env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"},
        )
        missing = [name for name in packages if shutil.which(name) is None]
    if missing:
        print(
            f"── lane conformance: no {' and no '.join(missing)}: what needs them is skipped",
            flush=True,
        )


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in BUDGET_MINUTES]
    if unknown:
        print(f"no lane {', '.join(unknown)}; there are {', '.join(BUDGET_MINUTES)}", file=sys.stderr)
        return 2
    total = Outcome(0, 0, 0)
    failed = []
    for lane in names or list(BUDGET_MINUTES):
        outcome = run_lane(lane)
        total += outcome
        if outcome.failed:
            failed.append(lane)
    for failure in total.failures:  # once more, where a reader of a log's last lines finds them
        print(failure)
    if failed:
        print(f"lanes that failed: {', '.join(failed)}")
    print(f"{total.passed} passed, {total.failed} failed, {total.skipped} skipped", flush=True)
    return 1 if total.failed or total.passed == 0 else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
