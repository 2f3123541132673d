"""Apache Kafka for the conformance tests: the benchmarks' own module, found by path, or a skip that says why."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

_HOME = Path(__file__).resolve().parents[2] / "benchmarks" / "apache_kafka.py"


def apache_kafka() -> ModuleType:
    """The module ``benchmarks/apache_kafka.py`` with its jars fetched; skips where Java or Maven cannot be had."""
    if shutil.which("java") is None:
        pytest.skip("no java on this machine: Apache Kafka's own tools cannot run")
    module = sys.modules.get("apache_kafka")
    if module is None:
        spec = importlib.util.spec_from_file_location("apache_kafka", _HOME)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["apache_kafka"] = module
        spec.loader.exec_module(module)
    try:
        module.libs()
    except module.PeerError as error:
        pytest.skip(f"Apache Kafka's jars cannot be had: {error}")
    return module
