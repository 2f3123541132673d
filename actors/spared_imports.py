"""Packages that a server process does without, although something in it would import them just in case.

Ray imports pyarrow and pydantic before it unpickles the first argument of a call, to be ready for values of theirs, and
kio registers test strategies wherever hypothesis is installed. No server handles such values. Without them a replica's
process is about 25 MB smaller and starts sooner, and with it what waits for that: a cluster's start, a replica's return.

Imports nothing that would import any of them.
"""

from __future__ import annotations

import os
import sys

from raylog.types import SERVER_PROCESS

_SPARED = ("hypothesis", "pyarrow", "pydantic")


def spare_imports() -> None:
    """From here on those that have not been imported look as if they were not installed. For processes of raylog's own."""
    for name in _SPARED:
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]


def spare_imports_in_servers() -> None:
    """The same, in the processes of server actors; nothing in any other that imports their classes."""
    if os.environ.get(SERVER_PROCESS):
        spare_imports()
