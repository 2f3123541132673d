"""Connections to owning processes: order, failures, cancelling, and letting go of who is dead."""

from __future__ import annotations

import asyncio
import datetime
import uuid
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from kio.schema.metadata.v12.response import MetadataResponse
from outside import fetch, metadata, produce

from raylog.errors import DisconnectedError, RaylogError
from raylog.kafka.context import ANONYMOUS, EXTERNAL, RequestContext
from raylog.listener.owners import Owner, Owners
from raylog.types import ActorIdentity, Endpoint
from raylog.wire.handshake import Peer
from raylog.wire.request import Request
from raylog.wire.server import Server

pytestmark = pytest.mark.core

IDENTITY = ActorIdentity("cluster-1", 65_538, uuid.UUID(int=7), 4711)
EMPTY = MetadataResponse(throttle_time=datetime.timedelta(0), brokers=(), cluster_id=None, controller_id=-1, topics=())
CONTEXT = RequestContext(ANONYMOUS, EXTERNAL, "10.0.0.9", "c")
NODE, INCARNATION = IDENTITY.node_id, IDENTITY.incarnation


class Process:
    """A process that parks what it is asked."""

    def __init__(self) -> None:
        self.asked: list[Request] = []
        self.abandoned: list[Request] = []
        park = self._park
        self.server = Server({0: park, 1: park, 3: park}, identity=IDENTITY, secret="s")

    def _park(self, request: Request) -> None:
        self.asked.append(request)
        request.on_close(self.abandoned.append)

    async def start(self) -> Owner:
        return Owner(NODE, INCARNATION, await self.server.start())


def run(work: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await work

    asyncio.run(bounded())


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def owners() -> Owners:
    return Owners(secret=b"s", cluster_id="cluster-1", caller=Peer(65_536, 1))


class Heard:
    """What came back, in order."""

    def __init__(self) -> None:
        self.replies: list[Any] = []
        self.errors: list[Exception] = []

    def __call__(self, reply: Any, error: Exception | None) -> None:
        if error is not None:
            self.errors.append(error)
        else:
            self.replies.append(reply)


def test_requests_that_wait_for_the_connection_leave_in_order() -> None:
    async def work() -> None:
        process, links, heard = Process(), owners(), Heard()
        owner = await process.start()
        for number in range(20):
            links.call(owner, produce("t", {number: b"x"}), heard, timeout_ms=10_000)
        await until(lambda: len(process.asked) == 20)
        found = [each.body.topic_data[0].partition_data[0].index for each in process.asked]
        assert found == list(range(20)) and len(process.server.connections) == 1
        links.close()
        await process.server.stop()

    run(work())


def test_produce_and_the_rest_have_connections_of_their_own() -> None:
    async def work() -> None:
        process, links, heard = Process(), owners(), Heard()
        owner = await process.start()
        links.call(owner, produce("t", {0: b"x"}), heard, timeout_ms=10_000)
        links.call(owner, fetch("t", {0: 0}), heard, timeout_ms=10_000)
        links.call(owner, metadata(), heard, timeout_ms=10_000)
        await until(lambda: len(process.asked) == 3)
        assert len({each.connection for each in process.asked}) == 2
        links.close()
        await process.server.stop()

    run(work())


def test_who_is_not_kept_ends_at_once_for_whoever_waits() -> None:
    """A machine that vanished without a word keeps its connections open; the image says that it is dead."""

    async def work() -> None:
        process, links, heard = Process(), owners(), Heard()
        owner = await process.start()
        links.call(owner, fetch("t", {0: 0}), heard, timeout_ms=10_000)
        await until(lambda: bool(process.asked))
        links.keep([owner])
        assert not heard.errors
        links.keep([Owner(NODE, INCARNATION + 1, owner.endpoint)])
        await until(lambda: bool(heard.errors))
        assert isinstance(heard.errors[0], DisconnectedError)
        await until(lambda: bool(process.abandoned))
        await process.server.stop()

    run(work())


def test_who_is_not_kept_while_his_connection_opens_ends_at_once_too() -> None:
    async def work() -> None:
        links, heard = owners(), Heard()
        links.call(Owner(1, 1, Endpoint("127.0.0.1", 1)), fetch("t", {0: 0}), heard, timeout_ms=10_000)
        links.keep([])
        assert len(heard.errors) == 1
        await asyncio.sleep(0)
        assert len(heard.errors) == 1

    run(work())


def test_nobody_there_or_somebody_else_is_an_error_for_each_who_waits() -> None:
    async def work() -> None:
        process, links, heard = Process(), owners(), Heard()
        owner = await process.start()
        for stranger in (
            Owner(NODE, INCARNATION + 1, owner.endpoint),
            Owner(NODE, INCARNATION, Endpoint("127.0.0.1", 1)),
        ):
            for _ in range(2):
                links.call(stranger, fetch("t", {0: 0}), heard, timeout_ms=10_000)
        await until(lambda: len(heard.errors) == 4)
        assert all(isinstance(each, RaylogError) for each in heard.errors) and not process.asked
        links.close()
        await process.server.stop()

    run(work())


def test_a_connection_that_broke_is_opened_again() -> None:
    async def work() -> None:
        process, links, heard = Process(), owners(), Heard()
        owner = await process.start()
        links.call(owner, fetch("t", {0: 0}), heard, timeout_ms=10_000)
        await until(lambda: len(process.asked) == 1)
        for connection in list(process.server.connections):
            connection.abort()
        await until(lambda: len(heard.errors) == 1)
        links.call(owner, fetch("t", {0: 0}), heard, timeout_ms=10_000)
        await until(lambda: len(process.asked) == 2)
        links.close()
        await process.server.stop()

    run(work())


@pytest.mark.parametrize("opens_first", [True, False])
def test_what_is_cancelled_is_forgotten_there_and_here(opens_first: bool) -> None:
    async def work() -> None:
        process, links, heard = Process(), owners(), Heard()
        owner = await process.start()
        if opens_first:
            links.call(owner, metadata(), heard, timeout_ms=10_000)
            await until(lambda: len(process.asked) == 1)
        cancel = links.call(owner, fetch("t", {0: 0}), heard, timeout_ms=10_000)
        if opens_first:
            await until(lambda: len(process.asked) == 2)
        cancel()
        if opens_first:
            await until(lambda: len(process.abandoned) == 1)
            assert process.abandoned == process.asked[1:]
        links.call(owner, fetch("t", {1: 0}), heard, timeout_ms=10_000)
        await until(lambda: any(each.api_key == 1 and each.is_open for each in process.asked))
        assert not heard.replies and not heard.errors
        links.close()
        await process.server.stop()

    run(work())


def test_what_has_no_reply_is_told_and_its_loss_is_heard_of() -> None:
    async def work() -> None:
        process, links = Process(), owners()
        owner = await process.start()
        lost: list[int] = []
        unanswered = produce("t", {0: b"x"}, acks=0)
        links.tell(owner, unanswered, lambda: lost.append(0), context=CONTEXT)
        await until(lambda: len(process.asked) == 1)
        nobody = Owner(NODE, INCARNATION, Endpoint("127.0.0.1", 1))
        links.tell(nobody, unanswered, lambda: lost.append(1), context=CONTEXT)
        await until(lambda: lost == [1])
        links.close()
        await process.server.stop()

    run(work())


def test_a_reply_that_does_not_come_in_time_is_an_error() -> None:
    async def work() -> None:
        process, links, heard = Process(), owners(), Heard()
        owner = await process.start()
        links.call(owner, metadata(), heard, timeout_ms=10_000)
        await until(lambda: len(process.asked) == 1)
        links.call(owner, metadata(), heard, timeout_ms=20)
        await until(lambda: len(heard.errors) == 1)
        assert "in time" in str(heard.errors[0])
        process.asked[0].reply(EMPTY)
        await until(lambda: len(heard.replies) == 1)
        links.close()
        await process.server.stop()

    run(work())
