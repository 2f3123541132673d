"""Packages whose public names are imported on first use, so that ``import raylog`` costs no Spark,
no Arrow and no client.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from typing import Any


def lazy_names(
    package: str, homes: Mapping[str, str], submodules: Collection[str] = (), *, extra: str | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The ``__getattr__`` and ``__dir__`` of a package (PEP 562). ``homes``: of each public name
    the module that has it. ``extra`` installs what all of them need.
    """

    def get(name: str) -> Any:
        if name in submodules:
            return import_module(f"{package}.{name}")
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            return getattr(import_module(home), name)
        except ModuleNotFoundError as error:
            from raylog.extras import missing

            raise missing(error, f"{package}.{name}", extra) from None

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return get, names
