"""A pytest plugin of the lanes: the name of the test that runs stands in the file that RAYLOG_LANE_TEST names.

pytest names failed tests when it ends. One that is ended, or dies, in the middle of a test says nothing; this file does.
"""

from __future__ import annotations

import os
from pathlib import Path


def pytest_runtest_logstart(nodeid: str) -> None:
    Path(os.environ["RAYLOG_LANE_TEST"]).write_text(nodeid)


def pytest_sessionfinish() -> None:
    Path(os.environ["RAYLOG_LANE_TEST"]).unlink(missing_ok=True)
