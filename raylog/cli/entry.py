"""What the command ``raylog`` and ``make demo`` run: it imports the rest, which takes a moment, and
calls it.

Whoever interrupts that moment sees no traceback, as at any later one.
"""

from __future__ import annotations

import importlib
import sys

INTERRUPTED = 130
"""The exit code of a shell's command that was interrupted."""


def main() -> None:
    """Run the command line and exit the process."""
    _run("raylog.cli.main")


def demo() -> None:
    """Run the demo and exit the process."""
    _run("raylog.cli.demo")


def _run(module: str) -> None:
    try:
        command = importlib.import_module(module)  # not at the top: that is the moment
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    sys.exit(command.main())


if __name__ == "__main__":
    main()
