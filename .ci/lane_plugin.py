"""A pytest plugin of the lanes: it says how far the lane is, and lets the lane be interrupted.

It keeps a file with the progress, prints every thread's stack on SIGUSR1, and makes pytest end with its report on SIGINT.

pytest names failed tests when it ends. A process that is killed in the middle of a test says nothing; the file does.
Its one line is ``<tests done> <tests in all> <name of the test that runs>``. ``RAYLOG_LANE_PROGRESS`` names it.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
from pathlib import Path

import pytest


class Progress:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.done = 0
        self.total = 0

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.total = len(session.items)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.path.write_text(f"{self.done} {self.total} {nodeid}")

    def pytest_runtest_logfinish(self) -> None:
        self.done += 1

    def pytest_sessionfinish(self) -> None:
        self.path.unlink(missing_ok=True)


def pytest_configure(config: pytest.Config) -> None:
    # A shell's background job ignores SIGINT, and so would its children: then no interrupt could make them report.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # pytest's own capture replaces file descriptor 2, so the stacks go to a copy made before a test runs.
    stacks = os.fdopen(os.dup(sys.__stderr__.fileno() if sys.__stderr__ else 2), "w")
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
    config.pluginmanager.register(Progress(Path(os.environ["RAYLOG_LANE_PROGRESS"])))
