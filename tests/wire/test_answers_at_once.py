"""When a server writes an answer: at once, or with others at the end of the loop's turn."""

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
