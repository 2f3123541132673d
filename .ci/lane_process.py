"""One pytest process: its start, its output, its end, and what its report says."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NO_TESTS_COLLECTED = 5
STACKS_S = 2.0
"""How long a hung process has to print its stacks."""
REPORT_S = 60.0
"""How long an interrupted process has to report what failed."""
LINES_OF_A_FAILURE = 12


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


class LaneProcess:
    """pytest over the tests that ``expression`` selects, in a session of its own.

    ``log`` receives its output; None passes the output through. ``niceness`` is added to this process's own.
    """

    def __init__(
        self, lane: str, expression: str, *, ignored: Iterable[Path], log: Path | None = None, niceness: int = 0
    ) -> None:
        self.lane = lane
        self._folder = tempfile.TemporaryDirectory()
        self._report = Path(self._folder.name) / "report.xml"
        self._progress = Path(self._folder.name) / "progress"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "lane_plugin", "-m", expression]
        command += [f"--junitxml={self._report}", *(f"--ignore={path}" for path in ignored)]
        if niceness:
            command = ["nice", "-n", str(niceness), *command]
        path = os.pathsep.join(filter(None, (str(ROOT / ".ci"), os.environ.get("PYTHONPATH"))))
        with open(log, "wb") if log is not None else contextlib.nullcontext() as output:
            self._process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": path, "RAYLOG_LANE_PROGRESS": str(self._progress)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT if output is not None else None,
                start_new_session=True,
            )
        self._started = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    @property
    def quiet_s(self) -> float:
        """How long no test has begun or ended."""
        try:
            return max(0.0, time.time() - self._progress.stat().st_mtime)
        except OSError:  # it collects, or writes its report
            return self.seconds

    def is_hung(self, limit_s: float, patience_s: float) -> bool:
        """Whether its time is over: ``limit_s``, or twice that for one whose tests have gone on within the last ``patience_s``."""
        if self.seconds <= limit_s:
            return False
        return self.quiet_s >= patience_s or self.seconds > 2 * limit_s

    def wait(self, limit_s: float, stop: threading.Event, *, patience_s: float = 0.0) -> Outcome:
        """Wait until pytest ends. Once it is hung, or ``stop`` is set, interrupt it, so that it reports, and kill its group."""
        failure = None
        while self._process.poll() is None:
            if stop.is_set():
                failure = f"── lane {self.lane}: interrupted{self.in_the_middle}"
            elif self.is_hung(limit_s, patience_s):
                failure = f"── lane {self.lane}: FAILED, hung: not done after {self.seconds:.0f} s{self.in_the_middle}"
                self._signal(signal.SIGUSR1, wait_s=STACKS_S)
            if failure is not None:
                self._signal(signal.SIGINT, wait_s=REPORT_S)
                break
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=0.2)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        code = self._process.wait()
        outcome = read_report(self._report)
        if failure is None and code not in (0, NO_TESTS_COLLECTED) and outcome.failed == 0:
            # A collection error, an internal error or a signal: pytest counted no failed test.
            failure = f"── lane {self.lane}: FAILED, pytest itself ended with exit code {code}{self.in_the_middle}"
        self._folder.cleanup()
        return outcome if failure is None else outcome + Outcome(0, 1, 0, (failure,))

    def _signal(self, number: int, *, wait_s: float) -> None:
        self._process.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=wait_s)

    @property
    def progress(self) -> str:
        """How many of its tests are done; nothing before the first."""
        with contextlib.suppress(OSError, ValueError):
            done, total, _ = self._progress.read_text().split(" ", 2)
            return f"{self.lane} {done} of {total}"
        return self.lane

    @property
    def in_the_middle(self) -> str:
        """The test that runs now, in words; nothing between tests."""
        with contextlib.suppress(OSError, ValueError):
            return f", in the middle of {self._progress.read_text().split(' ', 2)[2]}"
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


MARKS_OF_A_FILE = re.compile(r"^pytestmark = ([^\n\[]+|\[[^\n]*\]|\[\n.*?^\])", re.MULTILINE | re.DOTALL)
MARK = re.compile(r"pytest\.mark\.(\w+)")


def marks_of_whole_file(text: str) -> set[str]:
    """The marks that a test file gives to all of its tests."""
    return {mark for whole in MARKS_OF_A_FILE.findall(text) for mark in MARK.findall(whole)}
