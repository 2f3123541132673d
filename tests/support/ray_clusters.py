"""What the tests on real Ray processes share: waiting for conditions, looking at a cluster, killing its processes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import raylog
from raylog.errors import RaylogError

PATIENCE_S = 120.0
STATUS_S = 60.0  # where a controller is there to answer


@contextmanager
def kept_environment(*names: str) -> Iterator[None]:
    """Those environment variables as they were, afterwards. Connecting to a Ray sets RAY_AUTH_MODE for all that this process starts."""
    before = {name: os.environ.get(name) for name in names}
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def eventually(condition: Callable[[], Any], what: str, timeout_s: float | None = None) -> Any:
    """What the condition returns once it is true; an assertion error that says what never came true. None: within ``PATIENCE_S``.

    A condition that raises an error of raylog's is not true yet: whom it asked is away, or too busy to answer in time.
    """
    timeout_s = PATIENCE_S if timeout_s is None else timeout_s
    deadline = time.monotonic() + timeout_s
    last: RaylogError | None = None
    while time.monotonic() < deadline:
        try:
            found, last = condition(), None
        except RaylogError as error:
            found, last = None, error
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError(f"not within {timeout_s:.0f} s: {what}" + (f" ({last!r})" if last else ""))


def partition_of(cluster: raylog.Cluster, topic: str, partition: int = 0) -> dict[str, Any]:
    """One partition as the controller describes it."""
    topics = cluster.status(STATUS_S)["topics"]
    return next(
        part
        for each in topics
        if each["name"] == topic
        for part in each["partitions"]
        if part["partition"] == partition
    )


def isr_is_whole(cluster: raylog.Cluster, topic: str) -> bool:
    """Whether every partition of the topic has a leader and all its replicas alive and in the ISR."""
    parts = [
        part for each in cluster.status(STATUS_S)["topics"] if each["name"] == topic for part in each["partitions"]
    ]
    return bool(parts) and all(
        part["leader"] >= 0 and not part["offline"] and sorted(part["isr"]) == sorted(part["replicas"])
        for part in parts
    )


def pid_of(cluster: raylog.Cluster, node_id: int) -> int:
    """The process of a live server actor."""
    return next(actor["pid"] for actor in cluster.status(STATUS_S)["actors"] if actor["node_id"] == node_id)


def kill(pid: int) -> None:
    """SIGKILL to a process that the test's own cluster started."""
    os.kill(pid, signal.SIGKILL)
