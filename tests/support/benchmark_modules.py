"""Modules of the benchmarks that tests use, too, found by path: benchmarks are scripts, no package."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

_FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


def benchmark_module(name: str) -> ModuleType:
    """``benchmarks/<name>.py``, imported once."""
    module = sys.modules.get(name)
    if module is None:
        spec = importlib.util.spec_from_file_location(name, _FOLDER / f"{name}.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return module
