"""Rounds of a sender: many calls make one, and whoever adds batches lets an overdue one in."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from raw_requests import eventually

from raylog.client.producer import rounds
from raylog.client.producer.rounds import OVERDUE_MS, RoundCall
from raylog.client.sync import Producer
from raylog.clock import MachineClock

pytestmark = pytest.mark.core

FOR_EVER_S = 60.0


class HandClock(MachineClock):
    """Moves by hand."""

    now_s = 0.0

    def monotonic_s(self) -> float:
        return self.now_s


class Loop:
    """A running loop in a thread of its own, which can be held."""

    def __init__(self) -> None:
        self.clock = HandClock()
        self.loop = asyncio.new_event_loop()
        self.loop.clock = self.clock  # type: ignore[attr-defined]
        self.done: list[str] = []
        self.call = RoundCall(self.loop, lambda: self.done.append("round"))
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._released = threading.Event()

    def start(self) -> None:
        self._thread.start()
        self.call._thread = self._thread.ident or 0  # as if it had been made there

    def hold(self) -> None:
        """Returns when the loop stands still."""
        held = threading.Event()
        self.loop.call_soon_threadsafe(lambda: (held.set(), self._released.wait(FOR_EVER_S)))
        assert held.wait(FOR_EVER_S)

    def release(self) -> None:
        self._released.set()

    def stop(self) -> None:
        self.release()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(FOR_EVER_S)
        self.loop.close()


@pytest.fixture
def loop() -> Iterator[Loop]:
    found = Loop()
    found.start()
    yield found
    found.stop()


@pytest.fixture
def threads_go_on_until_they_wait() -> Iterator[None]:
    """No thread has to give the interpreter's lock away."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(FOR_EVER_S)
    yield
    sys.setswitchinterval(before)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "PATIENCE_S", FOR_EVER_S)


def test_many_calls_before_a_round_make_one(loop: Loop) -> None:
    loop.hold()
    assert all(loop.call.ask() for _ in range(5))
    loop.release()
    eventually(lambda: loop.done == ["round"], "rounds")
    assert loop.call.ask()
    eventually(lambda: loop.done == ["round", "round"], "rounds")


@pytest.mark.usefixtures("threads_go_on_until_they_wait", "patient")
def test_an_overdue_round_runs_before_its_caller_goes_on(loop: Loop) -> None:
    loop.hold()
    loop.call.ask()
    loop.clock.now_s += OVERDUE_MS / 1_000
    loop.release()
    loop.call.let_in()
    loop.done.append("went on")
    assert loop.done == ["round", "went on"]


@pytest.mark.usefixtures("threads_go_on_until_they_wait", "patient")
def test_nobody_waits_for_a_round_that_is_not_overdue(loop: Loop) -> None:
    loop.hold()
    loop.call.ask()
    loop.clock.now_s += OVERDUE_MS / 2_000
    loop.call.let_in()  # it would wait until the loop is released, which is below
    loop.done.append("went on")
    loop.release()
    eventually(lambda: loop.done == ["went on", "round"], "rounds")


def test_a_loop_that_stands_still_keeps_nobody(loop: Loop) -> None:
    loop.hold()
    loop.call.ask()
    loop.clock.now_s += 1.0
    loop.call.let_in()
    assert loop.done == []


@pytest.mark.usefixtures("patient")
def test_the_loops_own_thread_does_not_wait_for_itself(loop: Loop) -> None:
    def add() -> None:
        loop.call.ask()
        loop.clock.now_s += 1.0
        loop.call.let_in()
        loop.done.append("went on")

    loop.loop.call_soon_threadsafe(add)
    eventually(lambda: loop.done == ["went on", "round"], "rounds")


def test_a_closed_loop_is_no_error(loop: Loop) -> None:
    closed = asyncio.new_event_loop()
    closed.close()
    assert not RoundCall(closed, lambda: None).ask()


@pytest.mark.usefixtures("threads_go_on_until_they_wait", "patient")
def test_a_batch_is_sent_before_the_next_one_is_encoded(scripted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    unbounded = {"enable_idempotence": False, "max_in_flight_requests_per_connection": 100}
    with Producer(scripted().address, **unbounded) as producer:
        producer.send_batch("t", [b"first"]).result(25)
        monkeypatch.setattr(rounds, "OVERDUE_MS", 0.0)
        assert producer._live is not None
        batch = producer.send_batch("t", [b"second"])
        waiting = [each for queue in producer._live.accumulator.active.values() for each in queue.pending]
        assert not waiting
        batch.result(25)
        monkeypatch.setattr(producer._live.accumulator, "_batch_size", 200)
        for number in range(20):
            producer.send("t", b"%080d" % number)
            waiting = [each for queue in producer._live.accumulator.active.values() for each in queue.pending]
            assert len(waiting) < 3, number
