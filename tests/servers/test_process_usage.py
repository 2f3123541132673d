"""What a process says of itself in its heartbeats."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from weakref import WeakSet

import pytest

from raylog.control.session import ReplicaLoad
from raylog.server import process_usage
from raylog.server.process_usage import ProcessUsage


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


@pytest.fixture
def a_core_shared_with_a_busy_loop() -> Iterator[None]:
    """This thread, and a process that does nothing else, may run on one core only."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    loop = subprocess.Popen([sys.executable, "-c", "while True: pass"])  # it inherits the core
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
        loop.kill()
        loop.wait()


@pytest.mark.skipif(
    not os.path.exists("/proc/thread-self/schedstat"), reason="this kernel does not tell how long a thread waits"
)
@pytest.mark.usefixtures("a_core_shared_with_a_busy_loop")
def test_a_loop_that_has_to_share_its_core_is_as_busy_as_one_that_has_it_alone() -> None:
    usage = ProcessUsage()
    usage.heartbeat()
    spin(0.4)
    beat = usage.heartbeat()
    assert beat.cpu_per_mille < 800 and beat.busy_per_mille > 900, beat
    time.sleep(0.4)
    assert usage.heartbeat().busy_per_mille < 200


def test_servers_that_share_a_process_do_not_say_how_busy_their_loop_is() -> None:
    usage, other = ProcessUsage(), ProcessUsage()
    usage.heartbeat()
    spin(0.01)
    assert usage.heartbeat().busy_per_mille == -1 and usage.heartbeat().cpu_per_mille >= 0
    del other
    spin(0.01)
    assert usage.heartbeat().busy_per_mille > 0
