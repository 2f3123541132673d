"""What a process says of itself in its heartbeats."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from pathlib import Path
from weakref import WeakSet

import pytest

from raylog.actors import process_usage
from raylog.actors.process_usage import ProcessUsage, idle_seconds
from raylog.metadata.session import ReplicaLoad


@pytest.fixture(autouse=True)
def a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers of other tests may not be collected yet."""
    monkeypatch.setattr(process_usage, "_IN_THIS_PROCESS", WeakSet())


def spin(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_a_loop_that_works_is_busy_and_one_that_waits_is_not() -> None:
    usage = ProcessUsage()
    assert usage.heartbeat().busy_per_mille == -1, "it has measured nothing yet"
    spin(0.05)
    load = ReplicaLoad(uuid.UUID(int=1), 0, 1, 2, 3)
    beat = usage.heartbeat((load,))
    assert 0 < beat.busy_per_mille <= 1_000 and beat.loads == (load,) and beat.cores >= 1
    time.sleep(0.2)
    assert usage.heartbeat().busy_per_mille < beat.busy_per_mille


def test_servers_that_share_a_process_do_not_say_how_busy_their_loop_is() -> None:
    usage, other = ProcessUsage(), ProcessUsage()
    usage.heartbeat()
    spin(0.01)
    assert usage.heartbeat().busy_per_mille == -1 and usage.heartbeat().cpu_per_mille >= 0
    del other
    spin(0.01)
    assert usage.heartbeat().busy_per_mille > 0


def test_a_busy_loop_says_how_much_of_the_machine_is_idle() -> None:
    """As the kernel counts it, other programs' use included."""
    usage = ProcessUsage()
    usage.heartbeat()
    time.sleep(0.2)
    assert usage.heartbeat().idle_per_mille == -1, "its loop is not busy"
    spin(0.2)
    assert usage.heartbeat().idle_per_mille == -1, "it has only just begun to measure"
    cores = os.sched_getaffinity(0)
    loop = f"import os; os.sched_setaffinity(0, {{{max(cores)}}})\nwhile True: pass"
    others = [subprocess.Popen([sys.executable, "-c", loop]) for _ in range(2)]
    try:
        usage.heartbeat()
        spin(0.3)
        usage.heartbeat()
        spin(1.0)
        idle = usage.heartbeat().idle_per_mille
    finally:
        for other in others:
            other.kill()
            other.wait()
    assert 0 <= idle <= (len(cores) - 1) * 1_000 + 100, "two others run on one core, and this loop"


def test_idle_time_is_that_of_the_cores_a_process_may_use(tmp_path: Path) -> None:
    path = tmp_path / "stat"
    path.write_text("cpu  9 9 9 9 9\ncpu0 1 2 3 400 100 5\ncpu1 1 2 3 50 25 5\ncpu10 1 1 1 7 7 7\nintr 5 6\n")
    assert idle_seconds({0}, str(path)) == 5.0
    assert idle_seconds({0, 1}, str(path)) == 5.75
    assert idle_seconds({0, 3}, str(path)) is None, "of core 3 the kernel does not say"
    assert idle_seconds({0}, str(tmp_path / "none")) is None
