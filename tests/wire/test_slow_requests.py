"""Where the time of a slow request went, as its server's log says; and that the log limits such lines."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import io
import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any

import pytest
from wire_ends import EMPTY_REPLY, client_of, produce, server_of

from raylog.kafka.chain import Delay, Verdict
from raylog.server.process_log import LINES_MAX, LimitedHandler
from raylog.wire.request import Request
from raylog.wire.slow_requests import OFF, slow_requests

pytestmark = pytest.mark.core

Run = Callable[[Coroutine[Any, Any, Any]], Any]
DELAY_S = 0.02
THROTTLED = dataclasses.replace(EMPTY_REPLY, throttle_time=datetime.timedelta(milliseconds=7))


class Delaying:
    """A stage that holds each request back."""

    def judge(self, request: Request) -> Iterable[Verdict]:
        return (Delay(DELAY_S),)


@pytest.fixture
def said() -> Iterator[list[dict[str, Any]]]:
    found: list[dict[str, Any]] = []

    class Noting(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record.facts["request"])  # type: ignore[attr-defined]

    handler, logger = Noting(), logging.getLogger("raylog.requests")
    logger.addHandler(handler)
    yield found
    logger.removeHandler(handler)


def one_request(run: Run, handler: Callable[[Request], Any], threshold_ms: int, **options: Any) -> None:
    """Of a program that knows the secret."""

    async def work() -> None:
        server = server_of({0: handler}, **options)
        server.slow = slow_requests(threshold_ms)
        client = await client_of(await server.start())
        await client.request(produce())
        client.close()
        await server.stop()

    run(work())


def at_once(request: Request) -> None:
    request.reply(THROTTLED)


async def later(request: Request) -> Any:
    await asyncio.sleep(DELAY_S)
    return EMPTY_REPLY


def in_a_while(request: Request) -> None:
    request.connection.loop.call_later(DELAY_S, request.reply, EMPTY_REPLY)


def ms(said: list[dict[str, Any]]) -> tuple[float, float, float]:
    (one,) = said
    queue, local, remote = (float(one[f"{part}_ms"]) for part in ("queue", "local", "remote"))
    assert float(one["total_ms"]) == pytest.approx(queue + local + remote, abs=0.01)
    return queue, local, remote


def test_what_is_answered_at_once_is_all_local_and_says_the_throttle_time(run: Run, said: list[dict[str, Any]]) -> None:
    one_request(run, at_once, 0)
    queue, local, remote = ms(said)
    assert queue == remote == 0 < local
    assert said[0]["throttle_ms"] == 7 and said[0]["principal"] == "Cluster:client"


@pytest.mark.parametrize("handler", [later, in_a_while])
def test_what_waits_for_others_is_remote(
    run: Run, said: list[dict[str, Any]], handler: Callable[[Request], Any]
) -> None:
    one_request(run, handler, 1)
    queue, local, remote = ms(said)
    assert queue == 0 and remote > local


@pytest.mark.parametrize("handler", [at_once, later, in_a_while])
def test_what_a_stage_delays_was_in_the_queue(
    run: Run, said: list[dict[str, Any]], handler: Callable[[Request], Any]
) -> None:
    one_request(run, handler, 1, stages=(Delaying(),))
    queue, local, remote = ms(said)
    assert queue >= DELAY_S * 900
    assert (remote > local) == (handler is not at_once)


def test_what_is_quick_enough_and_any_request_when_it_is_off_has_no_line(run: Run, said: list[dict[str, Any]]) -> None:
    one_request(run, in_a_while, 60_000)
    one_request(run, in_a_while, OFF)
    assert not said


def test_the_log_limits_slow_requests_as_other_lines(run: Run) -> None:
    stream, timers = io.StringIO(), []
    handler = LimitedHandler(stream, clock=lambda: 0.0, after=lambda seconds, call: timers.append(call))
    logger = logging.getLogger("raylog.requests")
    logger.addHandler(handler)

    async def work() -> None:
        server = server_of({0: at_once})
        server.slow = slow_requests(0)
        client = await client_of(await server.start(), obeys_throttle=False)
        for _ in range(LINES_MAX + 5):
            await client.request(produce())
        client.close()
        await server.stop()

    try:
        run(work())
    finally:
        logger.removeHandler(handler)
    assert len(stream.getvalue().splitlines()) == LINES_MAX
    timers[0]()
    assert stream.getvalue().splitlines()[-1].endswith("(and 4 more like it)")
