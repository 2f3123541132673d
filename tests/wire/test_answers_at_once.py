"""When answers and requests are written: at once, or with others at the end of the read or of the loop's turn."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from wire_ends import client_of, server_of, until

from raylog.wire import private
from raylog.wire.connection import Connection
from raylog.wire.frames import encode_response
from raylog.wire.request import Request

pytestmark = pytest.mark.core

Run = Callable[[Coroutine[Any, Any, Any]], Any]


def test_an_answer_leaves_at_once_if_no_other_one_may_leave_with_it(run: Run) -> None:
    parked: list[Request] = []

    def answer(request: Request, *, now: bool) -> int:
        """How much of it is still to be written then."""
        found = private.AwaitLeaderResponse(leader_node=request.body.partition, leader_epoch=1)
        request.send(encode_response(found, request.correlation_id), now=now)
        return request.connection.unsent_bytes

    async def work() -> None:
        for ordered in (False, True):
            server = server_of({private.AWAIT_LEADER: parked.append}, ordered=ordered)
            connection = await client_of(await server.start())

            async def asked(count: int, connection: Connection = connection) -> list[asyncio.Future[Any]]:
                parked.clear()
                sent = [connection.send(private.AwaitLeaderRequest("t", each, 0, 100)) for each in range(count)]
                await until(lambda: len(parked) == count)
                return sent

            futures = await asked(1)
            assert not answer(parked[0], now=False), "it is alone"
            await asyncio.gather(*futures)
            futures = await asked(3)
            assert not answer(parked[0], now=True), "so it was asked for"
            assert answer(parked[1], now=False), "another one is to follow"
            assert answer(parked[2], now=False), "it leaves with the one before"
            assert [reply.leader_node for reply in await asyncio.gather(*futures)] == [0, 1, 2]
            connection.close()
            await server.stop()

    run(work())


def test_a_request_leaves_amid_the_reply_before_it_if_no_other_one_is_awaited(run: Run) -> None:
    """A follower asks for more as soon as it has appended, and only then tells its coordinators what is replicated."""

    async def work() -> None:
        server = server_of({private.AWAIT_LEADER: _answered})
        connection = await client_of(await server.start())
        unsent: list[int] = []
        over = asyncio.get_running_loop().create_future()

        def ask(then: Callable[..., None]) -> None:
            connection.call(private.AwaitLeaderRequest("t", 0, 0, 100), then, timeout_ms=None)

        def last(*_: Any) -> None:
            over.set_result(None)

        def first(*_: Any) -> None:
            for then in (lambda *_: None, last):
                ask(then)
                unsent.append(connection.unsent_bytes)

        ask(first)
        await over
        assert unsent[0] == 0, "it has left"
        assert unsent[1] > 0, "this one waits for the end of the read"
        connection.close()
        await server.stop()

    run(work())


def _answered(request: Request) -> None:
    request.reply(private.AwaitLeaderResponse(leader_node=request.body.partition, leader_epoch=1))
