"""What the command ``raylog`` runs: it imports the commands, which takes a moment, and calls them.

Whoever interrupts that moment sees no traceback, as at any later one.
"""

from __future__ import annotations

import sys

INTERRUPTED = 130
"""The exit code of a shell's command that was interrupted."""


def main() -> None:
    """Run the command line and exit the process."""
    try:
        from raylog.cli.main import main as run  # not at the top: that is the moment
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    run()


if __name__ == "__main__":
    main()
