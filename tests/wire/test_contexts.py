"""Whom a server takes a request to be of: the word of a client, of who knows the secret, and of a process of the cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from wire_ends import CLUSTER, EMPTY_REPLY, client_of, produce, raw, read_frame, server_of

from raylog.kafka.context import (
    ANONYMOUS,
    CLIENT_ID_CHARACTERS_MAX,
    EXTERNAL,
    FIELD_BYTES_MAX,
    INTERNAL,
    SECRET_HOLDER,
    RequestContext,
)
from raylog.wire import server_connection
from raylog.wire.connection import Connection
from raylog.wire.frames import client_id_field, encode_request
from raylog.wire.handshake import Peer
from raylog.wire.limits import Limits
from raylog.wire.request import Request
from raylog.wire.server import Server

pytestmark = pytest.mark.core

Run = Callable[[Coroutine[Any, Any, Any]], Any]
ELSEWHERE = RequestContext("User:ann", EXTERNAL, "10.0.0.7", "orders", "trace-7")
ENCODED = ELSEWHERE.header_field()[2:].decode()
BROKER = Peer(65_536, 1)


def witness(**options: Any) -> tuple[Server, list[RequestContext]]:
    """A server that answers a Produce, and the contexts that it has seen."""
    seen: list[RequestContext] = []

    def handle(request: Request) -> None:
        seen.append(request.context)
        request.reply(EMPTY_REPLY)

    return server_of({0: handle}, **options), seen


def outside(**options: Any) -> tuple[Server, list[RequestContext]]:
    return witness(secret=None, ordered=True, listener=EXTERNAL, **options)


def test_an_outside_client_is_anonymous_and_says_what_it_is_called(run: Run) -> None:
    async def work() -> None:
        server, seen = outside()
        endpoint = await server.start()
        for client_id in ("orders", None, ENCODED):
            client = await client_of(endpoint, secret=None, client_id=client_id)
            await client.request(produce())
            client.close()
        assert seen == [RequestContext(ANONYMOUS, EXTERNAL, "127.0.0.1", each) for each in ("orders", None, ENCODED)]
        await server.stop()

    run(work())


def test_who_only_knows_the_secret_speaks_for_itself(run: Run) -> None:
    async def work() -> None:
        server, seen = witness()
        client = await client_of(await server.start(), client_id=ENCODED)
        await client.request(produce())
        assert seen == [RequestContext(SECRET_HOLDER, INTERNAL, "127.0.0.1", ENCODED)]
        client.close()
        await server.stop()

    run(work())


def test_a_process_speaks_for_itself_and_for_others_on_one_connection(run: Run) -> None:
    async def work() -> None:
        server, seen = witness()
        broker = await client_of(await server.start(), caller=BROKER, client_id="broker-1")
        heard: list[Any] = []
        await broker.request(produce())
        await broker.request(produce(), context=ELSEWHERE)
        await asyncio.gather(broker.send(produce(), context=ELSEWHERE), broker.send(produce()))
        frame = b"".join(encode_request(produce(b"raw"), 7, client_id_field("somebody")))[4:]
        broker.pass_on(frame, 18, len(frame), lambda *reply: heard.append(reply), context=ELSEWHERE, timeout_ms=20_000)
        broker.send_unanswered(produce(acks=0), context=ELSEWHERE)
        await broker.request(produce())
        own = RequestContext("Cluster:65536", INTERNAL, "127.0.0.1", "broker-1")
        assert seen == [own, ELSEWHERE, ELSEWHERE, own, ELSEWHERE, ELSEWHERE, own]
        assert len(heard) == 1 and heard[0][1] is None
        broker.close()
        await server.stop()

    run(work())


def test_requests_share_a_context_and_those_of_many_clients_are_not_all_kept(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_connection, "PASSED_CONTEXTS_MAX", 3)

    async def work() -> None:
        server, seen = witness()
        broker = await client_of(await server.start(), caller=BROKER)
        for number in (*range(10), 9, 0):
            context = RequestContext(ANONYMOUS, EXTERNAL, "10.0.0.7", f"client-{number}")
            await broker.request(produce(), context=context)
        assert [each.client_id for each in seen[-2:]] == ["client-9", "client-0"]
        assert seen[-2] is seen[-3], "the same client's requests have the same context"
        (connection,) = server.connections
        assert len(connection._contexts) <= 3
        broker.close()
        await server.stop()

    run(work())


def test_a_trace_is_of_one_request(run: Run) -> None:
    async def work() -> None:
        server, seen = witness()
        broker = await client_of(await server.start(), caller=BROKER)
        for trace_id in ("1", "2"):
            await broker.request(produce(), context=RequestContext(ANONYMOUS, EXTERNAL, "10.0.0.7", "c", trace_id))
            assert seen[-1].trace_id == trace_id
        (connection,) = server.connections
        assert not any(context.trace_id for context in connection._contexts.values())
        broker.close()
        await server.stop()

    run(work())


def test_a_deadline_is_of_one_request(run: Run) -> None:
    async def work() -> None:
        server, seen = witness()
        broker = await client_of(await server.start(), caller=BROKER)
        for left_s in (60.0, 70.0):
            deadline = asyncio.get_running_loop().time() + left_s
            timed = RequestContext(ANONYMOUS, EXTERNAL, "10.0.0.7", "c", None, deadline)
            await broker.request(produce(), context=timed)
            assert abs((seen[-1].deadline or 0) - deadline) < 5
        (connection,) = server.connections
        assert not any(context.deadline for context in connection._contexts.values())
        broker.close()
        await server.stop()

    run(work())


def test_a_long_client_id_is_cut_and_not_kept(run: Run) -> None:
    async def work() -> None:
        server, seen = outside()
        endpoint = await server.start()
        for letter in ("x", "é"):
            client = await client_of(endpoint, secret=None, client_id=letter * 15_000)
            await client.request(produce())
            (connection,) = server.connections
            assert seen[-1].client_id == letter * CLIENT_ID_CHARACTERS_MAX and not connection._contexts
            assert len(seen[-1].header_field()) <= FIELD_BYTES_MAX
            client.close()
            await client.wait_closed()
        await server.stop()

    run(work())


def test_the_largest_request_that_a_client_may_send_can_be_passed_on(run: Run) -> None:
    """Its context may be longer than the client id in whose place it stands."""
    longest = RequestContext("p" * 1_000, EXTERNAL, "h", "c" * CLIENT_ID_CHARACTERS_MAX)
    frame = b"".join(encode_request(produce(b"r" * 5_000), 7, client_id_field("c")))[4:]

    async def work() -> None:
        server, seen = witness(limits=Limits(request_bytes_max=len(frame)))
        endpoint = await server.start()
        broker: Connection = await client_of(endpoint, caller=BROKER)
        answered = asyncio.get_running_loop().create_future()
        broker.pass_on(
            frame, 11, len(frame), lambda *reply: answered.set_result(reply), context=longest, timeout_ms=None
        )
        assert (await answered)[1] is None and seen == [longest]
        broker.close()
        await server.stop()

    run(work())


@pytest.mark.parametrize("context", ["raylog-context-9\tx", "raylog-context-1\tx"])
def test_a_process_whose_contexts_make_no_sense_is_not_listened_to(
    run: Run, caplog: pytest.LogCaptureFixture, context: str
) -> None:
    async def work() -> None:
        server, seen = witness()
        broker = await client_of(await server.start(), caller=BROKER, client_id=context)
        broker.call(produce(), lambda reply, error: None)
        await broker.wait_closed()
        assert not seen and server.refused_connections == 1
        await server.stop()

    # The handshake itself has that client id, too, and is not judged by it.
    run(work())
    assert "a request's context" in caplog.text and "Traceback" not in caplog.text


def test_a_stranger_gets_no_context_at_all(run: Run) -> None:
    async def work() -> None:
        server, seen = witness(cluster_id=CLUSTER)
        reader, writer = await raw(await server.start())
        writer.write(b"".join(encode_request(produce(), 1, ELSEWHERE.header_field())))
        assert await reader.read() == b"" and not seen
        writer.close()
        await server.stop()
        with pytest.raises(asyncio.IncompleteReadError):
            await read_frame(reader)

    run(work())
