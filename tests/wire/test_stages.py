"""What runs before every handler: it lets pass, refuses, delays, closes, and changes who asks."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Coroutine, Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from kio.schema.metadata.v12.request import MetadataRequest, MetadataRequestTopic
from wire_ends import EMPTY_REPLY, client_of, produce, server_of, until

from raylog.errors import DisconnectedError, kafka_error
from raylog.kafka import chain
from raylog.kafka.chain import Close, Delay, Refuse, Verdict
from raylog.wire import private
from raylog.wire.request import Request
from raylog.wire.server import Server

pytestmark = pytest.mark.core

Run = Callable[[Coroutine[Any, Any, Any]], Any]
either_order = pytest.mark.parametrize("ordered", [False, True])
DENIED = ErrorCode.topic_authorization_failed


class Saying:
    """A stage that says the same of every request, and remembers them."""

    def __init__(self, *verdicts: Verdict) -> None:
        self.verdicts = verdicts
        self.judged: list[int] = []

    def judge(self, request: Request) -> Iterable[Verdict]:
        self.judged.append(request.api_key)
        return self.verdicts


class First:
    """A stage that says something of the first request only."""

    def __init__(self, *verdicts: Verdict) -> None:
        self.verdicts = verdicts

    def judge(self, request: Request) -> Iterable[Verdict]:
        said, self.verdicts = self.verdicts, ()
        return said


class Carried:
    """A handler that answers at once, and remembers what it has carried out."""

    def __init__(self) -> None:
        self.records: list[bytes] = []

    def __call__(self, request: Request) -> None:
        self.records.append(bytes(request.body.topic_data[0].partition_data[0].records))
        request.reply(EMPTY_REPLY)


class Delays:
    """In the place of asyncio's sleep: what is delayed goes on when the test says so, however slow the machine is."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.seconds: list[float] = []
        self.over = asyncio.Event()
        patch.setattr(chain, "asyncio", SimpleNamespace(sleep=self._sleep, wait=asyncio.wait))

    async def _sleep(self, seconds: float) -> None:
        self.seconds.append(seconds)
        await self.over.wait()


def server_with(handler: Callable[[Request], Any], *stages: Any, **options: Any) -> Server:
    return server_of({0: handler, 3: handler, private.AWAIT_LEADER: handler}, stages=stages, **options)


@either_order
def test_what_no_stage_objects_to_is_carried_out(run: Run, ordered: bool) -> None:
    async def work() -> None:
        stages, carried = [Saying(), Saying()], Carried()
        server = server_with(carried, *stages, ordered=ordered)
        client = await client_of(await server.start())
        assert await client.request(produce()) == EMPTY_REPLY
        assert carried.records == [b"x"] and [each.judged for each in stages] == [[0], [0]]
        client.close()
        await server.stop()

    run(work())


@either_order
@pytest.mark.parametrize("undecoded", [(), (0, 3)])
def test_a_refusal_is_an_answer_in_the_apis_own_words(run: Run, ordered: bool, undecoded: tuple[int, ...]) -> None:
    async def work() -> None:
        later, carried = Saying(), Carried()
        server = server_with(carried, Saying(Refuse(DENIED)), later, ordered=ordered, undecoded=undecoded)
        client = await client_of(await server.start())
        (topic,) = (await client.request(produce())).responses
        assert (topic.name, topic.partition_responses[0].error_code) == ("t", DENIED)
        named = (MetadataRequestTopic(topic_id=None, name="t"),)
        asked = MetadataRequest(
            topics=named, allow_auto_topic_creation=False, include_topic_authorized_operations=False
        )
        (shown,) = (await client.request(asked)).topics
        assert (shown.name, shown.error_code) == ("t", DENIED)
        with pytest.raises(kafka_error(DENIED), match="not yours"):
            server.stages = (Saying(Refuse(DENIED, "not yours")), later)
            await client.request(private.AwaitLeaderRequest("t", 0, 4, 100))
        assert not carried.records and not later.judged and server.in_flight_bytes == 0
        client.close()
        await server.stop()

    run(work())


def test_a_server_refuses_in_its_own_way_where_it_has_one(run: Run) -> None:
    async def work() -> None:
        heard: list[Refuse] = []

        def refuse(request: Request, refuse: Refuse) -> None:
            heard.append(refuse)
            request.reply(EMPTY_REPLY)

        server = server_with(Carried(), Saying(Refuse(DENIED, "no")), refusals={0: refuse})
        client = await client_of(await server.start())
        assert await client.request(produce()) == EMPTY_REPLY and heard == [Refuse(DENIED, "no")]
        client.close()
        await server.stop()

    run(work())


def test_a_refused_produce_that_wants_no_answer_ends_its_connection(run: Run) -> None:
    async def work() -> None:
        carried = Carried()
        server = server_with(carried, Saying(Refuse(DENIED)))
        client = await client_of(await server.start())
        client.send_unanswered(produce(acks=0))
        await client.wait_closed()
        assert not carried.records
        await server.stop()

    run(work())


@either_order
def test_a_stage_may_end_the_connection(run: Run, ordered: bool) -> None:
    async def work() -> None:
        carried = Carried()
        server = server_with(carried, First(Close("it has had its time")), ordered=ordered)
        endpoint = await server.start()
        client, other = await client_of(endpoint), await client_of(endpoint)
        with pytest.raises(DisconnectedError):
            await client.request(produce())
        assert await other.request(produce()) == EMPTY_REPLY and carried.records == [b"x"]
        other.close()
        await server.stop()

    run(work())


@either_order
def test_what_follows_a_delayed_request_waits_behind_it_and_nobody_else_does(
    run: Run, ordered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        carried, delays = Carried(), Delays(monkeypatch)
        server = server_with(carried, First(Delay(0.02), Delay(0.03)), ordered=ordered)
        endpoint = await server.start()
        client, other = await client_of(endpoint), await client_of(endpoint)
        first, second = client.send(produce(b"first")), client.send(produce(b"second"))
        await until(lambda: sum(each.in_flight_requests for each in server.connections) == 2)
        await other.request(produce(b"other"))
        assert carried.records == [b"other"]
        delays.over.set()
        await asyncio.gather(first, second)
        assert carried.records == [b"other", b"first", b"second"]
        assert delays.seconds == [pytest.approx(0.05)], "both delays"
        assert await client.request(produce(b"third")) == EMPTY_REPLY
        assert all(each.turn is None for each in server.connections)
        client.close()
        other.close()
        await server.stop()

    run(work())


def test_a_delayed_request_of_a_client_that_hung_up_is_not_carried_out(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        carried, delays = Carried(), Delays(monkeypatch)
        server = server_with(carried, First(Delay(0.03)))
        endpoint = await server.start()
        client = await client_of(endpoint)
        client.send(produce(b"never")).add_done_callback(lambda lost: lost.exception())
        await until(lambda: sum(each.in_flight_requests for each in server.connections) == 1)
        client.abort()
        await until(lambda: not server.connections)
        delays.over.set()
        await until(lambda: not server._tasks)
        assert delays.seconds == [0.03] and not carried.records
        await server.stop()

    run(work())


def test_a_delayed_request_may_be_refused_then(run: Run) -> None:
    async def work() -> None:
        carried = Carried()
        server = server_with(carried, Saying(Delay(0.01)), Saying(Refuse(DENIED)))
        client = await client_of(await server.start())
        (topic,) = (await client.request(produce())).responses
        assert topic.partition_responses[0].error_code is DENIED and not carried.records
        client.close()
        await server.stop()

    run(work())


class Naming:
    """A stage that says who asks, in the place of what the connection says."""

    def judge(self, request: Request) -> Iterable[Verdict]:
        request.context = dataclasses.replace(request.context, principal="User:ann", trace_id="trace-7")
        return ()


def test_a_stage_says_who_asks_and_the_next_one_and_the_handler_see_it(run: Run) -> None:
    seen: list[tuple[str, str | None]] = []

    def look(request: Request) -> tuple[()]:
        seen.append((request.context.principal, request.context.trace_id))
        return ()

    class Looking:
        def judge(self, request: Request) -> Iterable[Verdict]:
            return look(request)

    def handle(request: Request) -> None:
        look(request)
        request.reply(EMPTY_REPLY)

    async def work() -> None:
        server = server_with(handle, Looking(), Naming(), Looking())
        client = await client_of(await server.start())
        await client.request(produce())
        await client.request(produce())
        assert seen == 2 * [("Cluster:client", None), ("User:ann", "trace-7"), ("User:ann", "trace-7")]
        client.close()
        await server.stop()

    run(work())


@either_order
def test_something_else_may_happen_where_the_answer_would_leave(run: Run, ordered: bool) -> None:
    class Losing:
        def judge(self, request: Request) -> Iterable[Verdict]:
            request.replace_reply(request.connection.close)
            return ()

    async def work() -> None:
        carried = Carried()
        server = server_with(carried, Losing(), ordered=ordered)
        client = await client_of(await server.start())
        with pytest.raises(DisconnectedError):
            await client.request(produce())
        assert carried.records == [b"x"]
        await until(lambda: not server.connections)
        assert server.in_flight_bytes == 0
        await server.stop()

    run(work())


def test_a_stage_that_fails_lets_nothing_pass(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    class Failing:
        def judge(self, request: Request) -> Iterable[Verdict]:
            raise ZeroDivisionError("a mistake in a stage")

    async def work() -> None:
        carried = Carried()
        server = server_with(carried, Failing())
        client = await client_of(await server.start())
        with pytest.raises(DisconnectedError):
            await client.request(produce())
        assert not carried.records
        await server.stop()

    run(work())
    assert "a mistake in a stage" in caplog.text
