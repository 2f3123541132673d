"""Apache Kafka for the conformance tests: the benchmarks' own module, or a skip that says why."""

from __future__ import annotations

import shutil
from types import ModuleType

import pytest
from benchmark_modules import benchmark_module


def apache_kafka() -> ModuleType:
    """The module ``benchmarks/apache_kafka.py`` with its jars fetched; skips where Java or Maven cannot be had."""
    if shutil.which("java") is None:
        pytest.skip("no java on this machine: Apache Kafka's own tools cannot run")
    benchmark_module("maven")  # which the next one imports
    module = benchmark_module("apache_kafka")
    try:
        module.libs()
    except module.PeerError as error:
        pytest.skip(f"Apache Kafka's jars cannot be had: {error}")
    return module
