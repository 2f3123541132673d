"""The server with real sockets: replies, order, limits, back-pressure, endings."""

import asyncio
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from kio.schema.metadata.v12.request import MetadataRequest
from wire_ends import EMPTY_REPLY, IDENTITY, client_of, produce, raw, read_frame, server_of, until

from raylog.errors import ClientTimeoutError, DisconnectedError, error_for
from raylog.types import BROKER_SLOT, Endpoint, node_id
from raylog.wire import private
from raylog.wire import server as server_module
from raylog.wire.connection import Connection
from raylog.wire.frames import client_id_field, encode_request
from raylog.wire.handshake import Peer
from raylog.wire.limits import Limits
from raylog.wire.request import Request
from raylog.wire.server import Server

pytestmark = pytest.mark.core

Run = Callable[[Coroutine[Any, Any, Any]], Any]


def metadata() -> MetadataRequest:
    return MetadataRequest(topics=None, allow_auto_topic_creation=False, include_topic_authorized_operations=False)


# ------------------------------------------------------------------ requests and replies


def test_a_handler_may_answer_at_once_later_or_as_a_coroutine(run: Run) -> None:
    parked: list[Request] = []

    async def slowly(request: Request) -> private.AwaitLeaderResponse:
        await asyncio.sleep(0)
        return private.AwaitLeaderResponse(leader_node=1, leader_epoch=request.body.newer_than_epoch + 1)

    async def work() -> None:
        server = server_of(
            {0: lambda request: request.reply(EMPTY_REPLY), 3: parked.append, private.AWAIT_LEADER: slowly}
        )
        connection = await client_of(await server.start())
        late = connection.send(metadata())
        assert await connection.request(produce()) == EMPTY_REPLY
        assert (await connection.request(private.AwaitLeaderRequest("t", 0, 4, 100))).leader_epoch == 5
        assert not late.done() and len(parked) == 1
        assert parked[0].header == (3, 12, parked[0].correlation_id, "raylog")
        late.cancel()
        connection.close()
        await server.stop()

    run(work())


def test_replies_are_matched_by_correlation_id_whatever_their_order(run: Run) -> None:
    parked: list[Request] = []

    async def work() -> None:
        server = server_of({private.AWAIT_LEADER: parked.append})
        connection = await client_of(await server.start())
        futures = [connection.send(private.AwaitLeaderRequest("t", number, 0, 100)) for number in range(20)]
        await until(lambda: len(parked) == 20)
        for request in reversed(parked):
            request.reply(private.AwaitLeaderResponse(leader_node=request.body.partition, leader_epoch=1))
        assert [reply.leader_node for reply in await asyncio.gather(*futures)] == list(range(20))
        connection.close()
        await server.stop()

    run(work())


def test_an_ordered_server_replies_in_the_order_of_the_requests(run: Run) -> None:
    parked: list[Request] = []

    async def work() -> None:
        server = Server({0: parked.append}, ordered=True)
        reader, writer = await raw(await server.start())
        for correlation_id in range(5):
            writer.write(
                b"".join(
                    encode_request(produce(acks=0 if correlation_id == 2 else 1), correlation_id, client_id_field("c"))
                )
            )
        await until(lambda: len(parked) == 5)
        for index in (4, 2, 1, 3):
            parked[index].done() if index == 2 else parked[index].reply(EMPTY_REPLY)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.readexactly(1), 0.05)
        parked[0].reply(EMPTY_REPLY)
        assert [int.from_bytes((await read_frame(reader))[:4], "big") for _ in range(4)] == [0, 1, 3, 4]
        writer.close()
        await server.stop()

    run(work())


def test_a_cancelled_request_is_forgotten_and_the_connection_lives_on(run: Run) -> None:
    parked: list[Request] = []
    abandoned: list[Request] = []

    def park(request: Request) -> None:
        parked.append(request)
        request.on_close(abandoned.append)

    async def work() -> None:
        server = Server({3: park, 0: lambda request: request.reply(EMPTY_REPLY)}, secret="s", cluster_id="c")
        connection = await Connection.open(await server.start(), secret="s", cluster_id="c")
        told: list[object] = []
        kept = connection.send(metadata())
        cancelled = connection.call(metadata(), lambda reply, error: told.append(reply))
        await until(lambda: len(parked) == 2)
        connection.cancel(cancelled)
        await until(lambda: bool(abandoned))
        assert abandoned == [parked[1]] and not parked[1].is_open and parked[0].is_open
        assert await connection.request(produce()) == EMPTY_REPLY
        assert connection.in_flight == 1 and not told and not kept.done()
        kept.cancel()
        connection.close()
        await server.stop()

    run(work())


def test_a_connection_has_no_more_fetches_in_flight_than_allowed(run: Run) -> None:
    from outside import fetch

    parked: list[Request] = []

    async def work() -> None:
        server = Server({1: parked.append}, ordered=True, limits=Limits(connection_fetches_max=2))
        connection = await Connection.open(await server.start(), secret=None, cluster_id="")
        asked = [connection.send(fetch("t", {0: 0})) for _ in range(5)]
        await until(lambda: len(parked) > 2 or len(server.waiting) == 1)  # it reads no further
        assert len(parked) == 2
        for number in range(5):
            await until(lambda number=number: len(parked) > number)  # type: ignore[misc]
            parked[number].done()
            assert sum(each.is_open for each in parked) <= 2
        for each in asked:
            each.cancel()
        connection.close()
        await server.stop()

    run(work())


def test_an_idle_connection_is_closed(
    run: Run, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "SWEEP_INTERVAL_S", 0.02)
    caplog.set_level("DEBUG")

    async def work() -> None:
        server = Server({0: lambda request: request.reply(EMPTY_REPLY)}, limits=Limits(idle_timeout_ms=1))
        connection = await Connection.open(await server.start(), secret=None, cluster_id="")
        await until(lambda: not connection.is_open)
        await server.stop()

    run(work())
    assert "idle for 1 ms" in caplog.text


def test_a_refusal_of_a_private_api_is_raised_at_the_client(run: Run) -> None:
    def refuse(request: Request) -> None:
        raise error_for(int(ErrorCode.unknown_topic_or_partition), "no topic t")

    async def work() -> None:
        server = server_of({private.AWAIT_LEADER: refuse})
        connection = await client_of(await server.start())
        with pytest.raises(type(error_for(3)), match="no topic t"):
            await connection.request(private.AwaitLeaderRequest("t", 0, 0, 1))
        assert connection.is_open
        connection.close()
        await server.stop()

    run(work())


def test_a_handler_that_fails_closes_the_connection_with_its_traceback_in_the_log(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(request: Request) -> None:
        raise ZeroDivisionError("a bug")

    async def work() -> None:
        server = server_of({0: fail})
        connection = await client_of(await server.start())
        with pytest.raises(DisconnectedError):
            await connection.request(produce())
        await server.stop()

    run(work())
    assert "the handler of API 0 failed" in caplog.text and "ZeroDivisionError" in caplog.text


def test_produce_with_acks_0_gets_no_reply(run: Run) -> None:
    received: list[int] = []

    def handle(request: Request) -> None:
        received.append(request.body.acks)
        request.done() if request.body.acks == 0 else request.reply(EMPTY_REPLY)

    async def work() -> None:
        server = server_of({0: handle})
        connection = await client_of(await server.start())
        connection.send_unanswered(produce(acks=0))
        assert await connection.request(produce()) == EMPTY_REPLY
        assert received == [0, 1] and server.in_flight_bytes == 0
        connection.close()
        await server.stop()

    run(work())


def test_large_bodies_pass_whole(run: Run) -> None:
    async def work() -> None:
        checks: list[bool] = []

        def handle(request: Request) -> None:
            records = request.body.topic_data[0].partition_data[0].records
            checks.append(records == bytes([len(checks)]) * 5_000_000)
            request.reply(EMPTY_REPLY)

        server = server_of({0: handle})
        connection = await client_of(await server.start())
        await asyncio.gather(*(connection.send(produce(bytes([number]) * 5_000_000)) for number in range(6)))
        assert checks == [True] * 6
        connection.close()
        await server.stop()

    run(work())


# ------------------------------------------------------------------ limits and back-pressure


def test_a_connection_over_its_share_is_not_read_until_replies_free_it(run: Run) -> None:
    parked: list[Request] = []

    async def work() -> None:
        server = server_of({0: parked.append}, limits=Limits(connection_bytes_max=2_500_000))
        connection = await client_of(await server.start())
        futures = [connection.send(produce(bytes(1_000_000))) for _ in range(8)]
        await until(lambda: bool(server.waiting))
        assert len(parked) == 3
        (peer,) = server.connections
        assert peer.in_flight_requests == 3 and 3_000_000 < peer.in_flight_bytes == server.in_flight_bytes
        for index in range(8):
            await until(lambda: len(parked) > index)  # noqa: B023
            parked[index].reply(EMPTY_REPLY)
        await asyncio.gather(*futures)
        assert (peer.in_flight_bytes, peer.in_flight_requests, server.in_flight_bytes) == (0, 0, 0)
        connection.close()
        await server.stop()

    run(work())


def test_a_released_body_no_longer_counts(run: Run) -> None:
    parked: list[Request] = []

    def handle(request: Request) -> None:
        request.release()
        parked.append(request)

    async def work() -> None:
        server = server_of({0: handle}, limits=Limits(connection_bytes_max=1_500_000))
        connection = await client_of(await server.start())
        futures = [connection.send(produce(bytes(1_000_000))) for _ in range(8)]
        await until(lambda: len(parked) == 8)
        assert server.in_flight_bytes == 0
        for request in parked:
            request.reply(EMPTY_REPLY)
        await asyncio.gather(*futures)
        connection.close()
        await server.stop()

    run(work())


def test_many_small_parked_requests_are_bounded_too(run: Run) -> None:
    parked: list[Request] = []

    async def work() -> None:
        server = server_of({0: parked.append}, limits=Limits(connection_requests_max=10))
        connection = await client_of(await server.start())
        futures = [connection.send(produce()) for _ in range(35)]
        await until(lambda: bool(server.waiting))
        assert len(parked) == 10
        answered = 0
        while answered < 35:
            await until(lambda: len(parked) > answered)  # noqa: B023
            parked[answered].reply(EMPTY_REPLY)
            answered += 1
        await asyncio.gather(*futures)
        connection.close()
        await server.stop()

    run(work())


def test_a_broker_may_have_the_requests_of_many_clients_parked(run: Run) -> None:
    """Members of groups wait in JoinGroup over the one connection that their Broker has to the coordinator's process."""
    parked: list[Request] = []
    asked = 6_000

    async def work() -> None:
        server = server_of({0: parked.append})
        broker = Peer(node_id(1, BROKER_SLOT), 99)
        connection = await client_of(
            await server.start(), caller=broker, expect=(IDENTITY.node_id, IDENTITY.incarnation)
        )
        futures = [connection.send(produce()) for _ in range(asked)]
        await until(lambda: len(parked) == asked or bool(server.waiting))
        at_a_time = len(parked)
        connection.close()
        await asyncio.gather(*futures, return_exceptions=True)
        await server.stop()
        assert at_a_time == asked

    run(work())


def test_a_full_server_still_reads_those_who_hold_little(run: Run) -> None:
    """The follower's fetch that frees a parked produce has to get through when produce requests fill the server."""
    parked: list[Request] = []

    async def work() -> None:
        limits = Limits(server_bytes_max=2_500_000, connection_bytes_max=10_000_000)
        server = server_of({0: parked.append}, limits=limits)
        server.handlers[private.AWAIT_LEADER] = lambda request: request.reply(private.AwaitLeaderResponse(1, 1))
        server.versions[private.AWAIT_LEADER] = range(1)
        endpoint = await server.start()
        producer, follower = await client_of(endpoint), await client_of(endpoint)
        futures = [producer.send(produce(bytes(1_000_000))) for _ in range(6)]
        await until(lambda: len(parked) == 3)
        for _ in range(3):
            assert (await follower.request(private.AwaitLeaderRequest("t", 0, 0, 1))).leader_node == 1
        assert len(parked) == 3
        for index in range(6):
            await until(lambda: len(parked) > index)  # noqa: B023
            parked[index].reply(EMPTY_REPLY)
        await asyncio.gather(*futures)
        producer.close()
        follower.close()
        await server.stop()

    run(work())


def test_a_client_that_does_not_read_is_not_read_either(run: Run) -> None:
    served = 0

    def handle(request: Request) -> None:
        nonlocal served
        served += 1
        request.reply(private.ClusterStatusReply({"filler": bytes(1_000_000)}))

    async def work() -> None:
        server = server_of({private.CLUSTER_STATUS: handle}, secret=None)
        reader, writer = await raw(await server.start())
        long_name = client_id_field("c" * 1_000)  # so that one read, of 64 KiB, takes no more than a few dozen requests
        for correlation_id in range(200):
            writer.write(b"".join(encode_request(private.ClusterStatusRequest(), correlation_id, long_name)))
        await writer.drain()
        await until(lambda: any(connection.write_paused for connection in server.connections))
        for _ in range(20):  # turns of the loop in which it could read on
            await asyncio.sleep(0.001)
        assert 0 < served < 100
        for _ in range(200):
            await read_frame(reader)
        assert served == 200
        writer.close()
        await writer.wait_closed()  # uvloop may never close a loop in which megabytes are on their way
        await server.stop()

    run(work())


# ------------------------------------------------------------------ endings


def test_parked_requests_hear_of_a_lost_client(run: Run) -> None:
    parked: list[Request] = []
    gone: list[int] = []

    def park(request: Request) -> None:
        request.on_close(lambda lost: gone.append(lost.correlation_id))
        parked.append(request)

    async def work() -> None:
        server = server_of({0: park})
        connection = await client_of(await server.start())
        futures = [connection.send(produce()) for _ in range(3)]
        await until(lambda: len(parked) == 3)
        parked[1].reply(EMPTY_REPLY)
        await futures[1]
        connection.abort()
        await until(lambda: len(gone) == 2)
        assert gone == [parked[0].correlation_id, parked[2].correlation_id]
        assert not parked[0].is_open and server.in_flight_bytes == 0 and not server.connections
        parked[0].reply(EMPTY_REPLY)  # too late, and harmless
        parked[0].on_close(lambda lost: gone.append(-1))
        assert gone[-1] == -1
        for future in (futures[0], futures[2]):
            with pytest.raises(DisconnectedError):
                await future
        await server.stop()

    run(work())


def test_everything_in_flight_fails_at_once_when_the_server_goes(run: Run) -> None:
    parked: list[Request] = []

    async def work() -> None:
        server = server_of({0: parked.append})
        connection = await client_of(await server.start())
        order: list[int] = []
        for number in range(5):
            connection.call(produce(), lambda reply, error, number=number: order.append(number))
        future = connection.send(produce())
        await until(lambda: len(parked) == 6)
        await server.stop()
        with pytest.raises(DisconnectedError):
            await future
        assert order == [0, 1, 2, 3, 4]
        assert not connection.is_open
        with pytest.raises(DisconnectedError):
            await connection.request(produce())
        await connection.wait_closed()

    run(work())


def test_a_server_stops_and_starts_again_on_its_port(run: Run) -> None:
    async def work() -> None:
        port = 0
        for _ in range(3):
            server = server_of({0: lambda request: request.reply(EMPTY_REPLY)}, port=port, port_must_match=port > 0)
            endpoint = await server.start()
            assert port in (0, endpoint.port)
            port = endpoint.port
            connection = await client_of(endpoint)
            await connection.request(produce())
            await server.stop()

    run(work())


@pytest.mark.parametrize("reads", [True, False])
def test_stop_waits_for_replies_to_leave_but_not_for_a_client_that_reads_nothing(run: Run, reads: bool) -> None:
    async def work() -> None:
        reply = private.ClusterStatusReply({"filler": bytes(30_000_000)})
        server = server_of({private.CLUSTER_STATUS: lambda request: request.reply(reply)}, secret=None)
        endpoint = await server.start()
        if reads:
            connection = await client_of(endpoint, secret=None)
            future = connection.send(private.ClusterStatusRequest())
        else:
            _, writer = await raw(endpoint)
            writer.write(b"".join(encode_request(private.ClusterStatusRequest(), 1, client_id_field("c"))))
            writer.transport.pause_reading()  # type: ignore[attr-defined]
        await until(lambda: len(server.connections) == 1 and all(each.bytes_received for each in server.connections))
        await server.stop(grace_s=300 if reads else 0.2)
        if reads:
            assert len((await future).status["filler"]) == 30_000_000
        else:
            writer.transport.abort()  # type: ignore[attr-defined]

    run(work())


# ------------------------------------------------------------------ the client's timeouts


def test_a_request_times_out_alone(run: Run) -> None:
    parked: list[Request] = []

    async def work() -> None:
        server = server_of(
            {0: parked.append, private.AWAIT_LEADER: lambda request: request.reply(private.AwaitLeaderResponse(1, 1))}
        )
        connection = await client_of(await server.start())
        patient = connection.send(produce(), timeout_ms=None)
        with pytest.raises(ClientTimeoutError):
            await connection.request(produce(), timeout_ms=20)
        await until(lambda: len(parked) == 2)
        parked[1].reply(EMPTY_REPLY)  # its reply comes too late and is dropped
        assert (await connection.request(private.AwaitLeaderRequest("t", 0, 0, 1))).leader_node == 1
        parked[0].reply(EMPTY_REPLY)
        assert await patient == EMPTY_REPLY
        connection.close()
        await server.stop()

    run(work())


def test_opening_times_out_when_nobody_answers(run: Run) -> None:
    async def work() -> None:
        with socket.socket() as mute:
            mute.bind(("127.0.0.1", 0))
            mute.listen()
            with pytest.raises(ClientTimeoutError, match="within 50 ms"):
                await client_of(Endpoint("127.0.0.1", mute.getsockname()[1]), timeout_ms=50)

    run(work())


def test_opening_fails_at_once_where_nobody_listens(run: Run) -> None:
    async def work() -> None:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            with pytest.raises(DisconnectedError, match="refused"):
                await client_of(Endpoint("127.0.0.1", unused.getsockname()[1]))

    run(work())


def test_names_are_resolved(run: Run) -> None:
    async def work() -> None:
        server = server_of({0: lambda request: request.reply(EMPTY_REPLY)}, host="localhost")
        endpoint = await server.start()
        assert endpoint.host == "localhost"
        connection = await client_of(endpoint)
        assert await connection.request(produce()) == EMPTY_REPLY
        connection.close()
        await server.stop()

    run(work())


def test_a_callback_that_fails_hurts_nobody_else(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    def fail(reply: Any, error: Exception | None) -> None:
        raise ZeroDivisionError

    async def work() -> None:
        server = server_of({0: lambda request: request.reply(EMPTY_REPLY)})
        connection = await client_of(await server.start())
        connection.call(produce(), fail)
        assert await connection.request(produce()) == EMPTY_REPLY
        connection.close()
        await server.stop()

    run(work())
    assert "the callback of a reply" in caplog.text


@pytest.mark.parametrize("rounds", range(6))
def test_a_connection_that_comes_while_the_server_ends_ends_too(run: Run, rounds: int) -> None:
    """Whatever the loop has done of it when the server stops: nothing, accepted it, made its transport."""

    async def work() -> None:
        server = server_of({3: lambda request: request.reply(EMPTY_REPLY)})
        endpoint = await server.start()
        with socket.create_connection((endpoint.host, endpoint.port)) as peer:
            peer.setblocking(False)
            for _ in range(rounds):
                await asyncio.sleep(0)
            await server.stop()
            try:
                said = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(peer, 1), 60)
            except ConnectionResetError:
                said = b""
            assert said == b"" and not server.connections

    run(work())
