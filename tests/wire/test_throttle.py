"""``throttle_time``: a client waits when it is told to, and a server does not read one that was (KIP-219)."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from wire_ends import EMPTY_REPLY, produce, server_of, until

from raylog.wire.connection import Connection
from raylog.wire.request import Request
from raylog.wire.server import Server

pytestmark = pytest.mark.core

Run = Callable[[Coroutine[Any, Any, Any]], Any]
WAIT_S = 0.3
LONG_WAIT_S = 1.5
TICK_S = 0.002
"""A loop's clock is rounded (uvloop's counts milliseconds): what it waits can read that much shorter than it was told to."""


class Producing:
    """Answers the first Produce with a delay, the others without one; notes when each was told and when each came."""

    def __init__(self, wait_s: float = WAIT_S) -> None:
        self.throttled = dataclasses.replace(EMPTY_REPLY, throttle_time=datetime.timedelta(seconds=wait_s))
        self.came: list[float] = []
        self.told = 0.0

    def __call__(self, request: Request) -> None:
        now = asyncio.get_running_loop().time()
        self.came.append(now)
        if len(self.came) == 1:
            self.told = now
        request.reply(self.throttled if len(self.came) == 1 else EMPTY_REPLY)

    @property
    def waited_s(self) -> float:
        return self.came[1] - self.told


async def ends(server: Server, *, obeys: bool) -> Connection:
    return await Connection.open(
        await server.start(), secret=server.secret, cluster_id=server.cluster_id, obeys_throttle=obeys
    )


def test_a_client_waits_as_long_as_it_is_told_to_and_loses_nothing(run: Run) -> None:
    async def work() -> None:
        producing = Producing(LONG_WAIT_S)
        server = server_of({0: producing})
        connection = await ends(server, obeys=True)
        assert (await connection.request(produce())).throttle_time == datetime.timedelta(seconds=LONG_WAIT_S)
        assert await connection.request(produce(), timeout_ms=LONG_WAIT_S * 950) == EMPTY_REPLY, "its time begins then"
        assert producing.waited_s >= LONG_WAIT_S - TICK_S
        assert await connection.request(produce()) == EMPTY_REPLY
        connection.close()
        await server.stop()

    run(work())


def test_requests_that_were_held_back_leave_in_order(run: Run) -> None:
    async def work() -> None:
        producing = Producing()
        seen: list[int] = []

        def handle(request: Request) -> None:
            seen.append(request.correlation_id)
            producing(request)

        server = server_of({0: handle})
        connection = await ends(server, obeys=True)
        await connection.request(produce())
        assert all(
            reply == EMPTY_REPLY for reply in await asyncio.gather(*(connection.send(produce()) for _ in range(5)))
        )
        assert seen == sorted(seen) and len(seen) == 6
        connection.close()
        await server.stop()

    run(work())


def test_what_is_held_back_ends_with_the_connection(run: Run) -> None:
    async def work() -> None:
        server = server_of({0: Producing()})
        connection = await ends(server, obeys=True)
        await connection.request(produce())
        held = connection.send(produce())
        connection.abort()
        with pytest.raises(Exception, match="ended"):
            await held
        await asyncio.sleep(0)
        await server.stop()

    run(work())


def test_a_link_between_servers_goes_on(run: Run) -> None:
    """What it carries is passed on for clients: it is they who wait."""

    async def work() -> None:
        producing = Producing()
        server = server_of({0: producing})
        connection = await ends(server, obeys=False)
        await connection.request(produce())
        loop = asyncio.get_running_loop()
        connection._throttle = lambda seconds: pytest.fail("it waits")  # type: ignore[method-assign, assignment]
        await connection.request(produce())
        assert loop.time() >= producing.told
        connection.close()
        await server.stop()

    run(work())


def test_a_server_for_outside_clients_does_not_read_one_that_was_told_to_wait(run: Run) -> None:
    async def work() -> None:
        producing = Producing()
        server = server_of({0: producing}, ordered=True)
        heedless = await ends(server, obeys=False)
        other = await Connection.open(server.endpoint, secret=server.secret, cluster_id=server.cluster_id)  # type: ignore[arg-type]
        await heedless.request(produce())
        late = heedless.send(produce())
        assert await other.request(produce()) == EMPTY_REPLY, "others are read"
        others_came = producing.came.pop(1)
        assert others_came >= producing.told
        assert await late == EMPTY_REPLY
        assert producing.waited_s >= WAIT_S - TICK_S
        await until(lambda: not server.waiting)
        heedless.close()
        other.close()
        await server.stop()

    run(work())
