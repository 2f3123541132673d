"""The session timeout, changed while the controllers run: processes that fall silent are dead by the new one, and without a restart."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from raw_requests import eventually

from raylog.client.sync import AdminClient
from raylog.configs.server_configs import HEARTBEAT_INTERVAL, SESSION_TIMEOUT
from raylog.testing.in_process import InProcessCluster, cluster

pytestmark = pytest.mark.core


@contextmanager
def frozen_servers(running: InProcessCluster) -> Iterator[None]:
    """Everybody but the controllers stands still, as SIGSTOP would have it: connections stay open, and nothing is sent."""
    still, go_on = threading.Event(), threading.Event()

    def freeze() -> None:
        still.set()
        go_on.wait()

    running.loop.call_soon_threadsafe(freeze)
    still.wait()
    try:
        yield
    finally:
        go_on.set()


def all_were_heard_since(running: InProcessCluster, then_ms: int) -> bool:
    active = running.controller._controller.active
    assert active is not None
    return all(each.last_heard_ms > then_ms for each in active._liveness._watched.values())


def test_processes_that_are_silent_die_by_the_timeout_that_is_set_now() -> None:
    with cluster(brokers=3, controllers=3) as running, AdminClient(running.address) as admin:
        everybody, controllers = running.controller.live_nodes(), dict(running.controllers)
        admin.alter_configs(broker="all", set={SESSION_TIMEOUT: "3600000", HEARTBEAT_INTERVAL: "200"})
        changed_ms = time.monotonic_ns() // 1_000_000
        eventually(lambda: all_were_heard_since(running, changed_ms), "everybody has the long timeout before it")
        with frozen_servers(running):
            admin.alter_configs(broker="all", set={SESSION_TIMEOUT: "400"})
            eventually(lambda: not running.controller.live_nodes(), "the silent ones are dead")
            admin.alter_configs(broker="all", delete=[SESSION_TIMEOUT, HEARTBEAT_INTERVAL])
        eventually(lambda: running.controller.live_nodes() == everybody, "their successors are there")
        assert running.controllers == controllers, "no controller was started again"
