"""What stands behind Ray's private names, with the Ray that is installed."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.core

TOLD = """
import sys
from raylog.placement.ray_private import messages_to_stderr

messages_to_stderr()
assert "ray" not in sys.modules, "who has no Ray imports none"
import ray._private.worker as worker

messages_to_stderr()
messages_to_stderr()
worker.print_to_stdstream({"lines": ["a node has died"], "pid": "raylet", "is_err": False}, ignore_prefix=False)
print("the answer")
"""


def test_what_ray_tells_of_its_nodes_is_no_part_of_a_commands_answer() -> None:
    done = subprocess.run([sys.executable, "-c", TOLD], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "the answer\n" and "a node has died" in done.stderr
