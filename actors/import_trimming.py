"""Packages that a server process does without, although something in it would import them just in
case.

Ray imports pyarrow and pydantic before it unpickles the first argument of a call, to be ready for
values of theirs, and kio registers test strategies wherever hypothesis is installed. No server
handles such values. Without them a replica's process is about 25 MB smaller and starts sooner, and
with it what waits for that: a cluster's start, a replica's return.

The record codec is a compiled module of aiokafka's. To import it imports the package first, which
means every client in it: a tenth of what raylog's own modules take. Here the package is an empty
one whose modules are found as ever.

Imports nothing that would import any of them.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec

from raylog.types import SERVER_PROCESS

_SPARED = ("hypothesis", "pyarrow", "pydantic")
_HOLLOW = ("aiokafka",)


def spare_imports() -> None:
    """From here on those that have not been imported look as if they were not installed. For
    processes of raylog's own.
    """
    for name in _SPARED:
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]
    for name in _HOLLOW:
        found = PathFinder.find_spec(name) if name not in sys.modules else None
        if found is not None:
            sys.modules[name] = module_from_spec(found)  # its __init__ is not run


def spare_imports_in_servers() -> None:
    """The same, in the processes of server actors; nothing in any other that imports their classes."""
    if os.environ.get(SERVER_PROCESS):
        spare_imports()
