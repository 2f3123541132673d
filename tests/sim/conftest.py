"""Sums up what the simulator's runs of this session went through, and prints it at the end."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import summary


def pytest_terminal_summary(terminalreporter: Any) -> None:
    for line in summary.lines():
        terminalreporter.write_line(line)
