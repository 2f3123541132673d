"""Buffers that come and go cost a replica's process no page faults."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.core

PROGRAM = """
import resource, sys
from raylog.actors.malloc_settings import keep_freed_memory
if sys.argv[1] == "keep":
    keep_freed_memory()
def work():
    for _ in range(200):
        buffers = [b"x" * 1_000_000 for _ in range(5)]
        del buffers
work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
work()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(mode: str) -> int:
    run = subprocess.run([sys.executable, "-c", PROGRAM, mode], capture_output=True, text=True, check=True, timeout=300)
    return int(run.stdout)


def test_memory_that_was_freed_is_used_again_without_asking_the_kernel() -> None:
    assert page_faults("keep") < 2_000 < 100_000 < page_faults("leave")
