"""The end of a whole cluster: whoever asked for it may end the processes once it is answered."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import Any

import pytest

from raylog.client.sync import call
from raylog.control.session import SHUT_DOWN
from raylog.log.log import Log
from raylog.server import controller_server, log_work
from raylog.server.replica_server import ReplicaServer
from raylog.wire import private
from raylog.wire.private import Shutdown

pytestmark = pytest.mark.core


def test_a_server_keeps_its_session_until_its_logs_are_closed(faulty: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The controller answers a Shutdown when no session is left, and an answer means that every stop was clean."""
    faulty.make_topic()
    close = log_work.close_cleanly
    kept: list[bool] = []

    def closing(log: Log) -> None:
        servers = [each for each in faulty.running.launcher.servers.values() if isinstance(each, ReplicaServer)]
        owner = next(each for each in servers if log in each._host.logs())
        session = owner._session._session
        kept.append(session is not None and session.is_open)
        close(log)

    monkeypatch.setattr(log_work, "close_cleanly", closing)
    call(faulty.running.address, Shutdown(), timeout_s=60)
    await_end(faulty.running)
    assert kept and all(kept)


def test_the_logs_of_a_host_are_closed_side_by_side(faulty: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    faulty.make_topic("t")
    faulty.make_topic("u")
    close = log_work.close_cleanly
    servers = [each for each in faulty.running.launcher.servers.values() if isinstance(each, ReplicaServer)]
    host = next(each for each in servers if len(each._host.logs()) == 2)
    mine, met = list(host._host.logs()), threading.Barrier(2, timeout=60)

    def closing(log: Log) -> None:
        if log in mine:
            with suppress(threading.BrokenBarrierError):
                met.wait()  # for the other one, which must be under way, too
        close(log)

    monkeypatch.setattr(log_work, "close_cleanly", closing)
    call(faulty.running.address, Shutdown(), timeout_s=120)
    await_end(faulty.running)
    assert not met.broken


def await_end(running: Any) -> None:
    for broker, controller in running.controllers.items():
        assert running._loops[broker].run(controller.ended()) == SHUT_DOWN
    servers = list(running.launcher.servers.values())
    running.launcher.servers.clear()  # ended already
    assert all(running.run(server.ended()) == SHUT_DOWN for server in servers)


def test_a_shutdown_waits_longer_where_there_are_more_logs_to_close(
    faulty: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    faulty.make_topic()
    close = log_work.close_cleanly
    sessions = len(faulty.running.controller._sessions)

    def closing(log: Log) -> None:
        time.sleep(0.3)
        close(log)

    monkeypatch.setattr(log_work, "close_cleanly", closing)
    monkeypatch.setattr(controller_server, "SHUTDOWN_PATIENCE_S", 0.0)
    monkeypatch.setattr(private, "LOG_CLOSING_S", 60.0)
    done = call(faulty.running.address, Shutdown(), timeout_s=60)
    assert done.stopped == sessions, "nobody was given up"
    await_end(faulty.running)
