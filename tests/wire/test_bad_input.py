"""What strangers, broken clients and slow ones may do to a server: nothing to anybody else."""

import asyncio
import datetime
import random
import struct
import uuid
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.schema.produce.v9.request import PartitionProduceData, ProduceRequest, TopicProduceData
from kio.schema.produce.v9.response import ProduceResponse

from raylog.types import ActorIdentity, Endpoint
from raylog.wire.connection import Connection
from raylog.wire.frames import client_id_field, encode_request
from raylog.wire.handshake import HANDSHAKE_BYTES_MAX
from raylog.wire.limits import Limits
from raylog.wire.server import Server

pytestmark = pytest.mark.core

Run = Callable[[Coroutine[Any, Any, Any]], Any]
REPLY = ProduceResponse(responses=(), throttle_time=datetime.timedelta(0))
IDENTITY = ActorIdentity("cluster-1", 65538, uuid.UUID(int=7), 4711)


def produce(records: bytes = b"x") -> ProduceRequest:
    topic = TopicProduceData(name="t", partition_data=(PartitionProduceData(index=0, records=records),))
    return ProduceRequest(acks=1, timeout=datetime.timedelta(seconds=1), topic_data=(topic,))


def frame() -> bytes:
    return b"".join(encode_request(produce(b"x" * 100), 1, client_id_field("c")))


async def listening(secret: str | None, **limits: int) -> tuple[Server, Endpoint]:
    options: dict[str, Any] = {"identity": IDENTITY, "secret": secret, "limits": Limits(**limits)}
    server = Server({0: lambda request: request.reply(REPLY)}, **options)
    return server, await server.start()


async def is_served(endpoint: Endpoint, secret: str | None) -> bool:
    connection = await Connection.open(endpoint, secret=secret, cluster_id="cluster-1")
    reply = await connection.request(produce())
    connection.close()
    return bool(reply == REPLY)


async def throw(endpoint: Endpoint, data: bytes) -> bytes:
    """Sends bytes and an end, and gives back whatever came."""
    reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
    try:
        writer.write(data)
        writer.write_eof()
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.transport.abort()  # type: ignore[attr-defined]


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    garbage=st.lists(st.binary(min_size=1, max_size=300), min_size=1, max_size=5), secret=st.sampled_from([None, "s"])
)
def test_garbage_gets_nothing_and_the_server_serves_on(run: Run, garbage: list[bytes], secret: str | None) -> None:
    async def work() -> None:
        server, endpoint = await listening(secret)
        for data in garbage:
            assert not await throw(endpoint, data) or secret is None
        assert await is_served(endpoint, secret)
        await server.stop()
        assert server.in_flight_bytes == 0 and not server.connections

    run(work())


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(cut=st.integers(1, len(frame()) - 1))
def test_a_client_that_disconnects_within_a_frame_is_harmless(run: Run, cut: int) -> None:
    async def work() -> None:
        server, endpoint = await listening(None)
        assert await throw(endpoint, frame()[:cut]) == b""
        assert await is_served(endpoint, None)
        await server.stop()
        assert server.in_flight_bytes == 0 and not server.connections

    run(work())


def test_two_hundred_garbage_connections_at_once(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    rng = random.Random(5)
    kinds = [
        lambda: rng.randbytes(rng.randrange(1, 5000)),
        lambda: b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        lambda: b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + rng.randbytes(500),
        lambda: struct.pack(">i", 104_857_601) + b"x",
        lambda: struct.pack(">i", 2**31 - 1),
        lambda: struct.pack(">i", HANDSHAKE_BYTES_MAX) + rng.randbytes(HANDSHAKE_BYTES_MAX),
        frame,
        lambda: frame()[:20],
    ]

    async def work() -> None:
        server, endpoint = await listening("s")
        steady = await Connection.open(endpoint, secret="s", cluster_id="cluster-1")
        garbage = [throw(endpoint, kinds[number % len(kinds)]()) for number in range(200)]
        answers, _ = await asyncio.gather(asyncio.gather(*garbage), steady.request(produce()))
        assert set(answers) == {b""}
        assert await steady.request(produce()) == REPLY
        assert len(server.connections) == 1
        assert server.refused_connections >= 100
        steady.close()
        await server.stop()

    run(work())
    assert "this is no HTTP port" in caplog.text and "a TLS hello" in caplog.text
    assert "frame of 104857601 bytes, allowed are 4096" in caplog.text
    assert "Traceback" not in caplog.text


def test_a_frame_above_the_limit_is_refused_from_its_size_alone(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        server, endpoint = await listening(None)
        reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
        writer.write(struct.pack(">i", 104_857_601))
        assert await reader.read() == b""
        writer.close()
        await server.stop()

    run(work())
    assert "frame of 104857601 bytes, allowed are 104857600" in caplog.text


def test_a_claim_of_billions_of_elements_costs_its_sender_the_connection(run: Run) -> None:
    hostile = frame().replace(b"\x02t\x02\x00\x00\x00\x00", b"\x02t\xff\xff\xff\xff\x07")

    async def work() -> None:
        server, endpoint = await listening(None)
        assert hostile != frame()
        assert await throw(endpoint, struct.pack(">i", len(hostile) - 4) + hostile[4:]) == b""
        assert server.refused_connections == 1
        assert await is_served(endpoint, None)
        await server.stop()

    run(work())


def test_a_client_that_sends_byte_by_byte_is_served(run: Run) -> None:
    async def work() -> None:
        server, endpoint = await listening(None)
        reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
        for byte in frame():
            writer.write(bytes([byte]))
            await writer.drain()
        assert len(await reader.readexactly(4)) == 4
        writer.close()
        await server.stop()

    run(work())


def test_a_large_frame_that_comes_slowly_is_taken_before_it_counts_as_stopped(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raylog.wire.server.SWEEP_INTERVAL_S", 0.01)

    async def work() -> None:
        server, endpoint = await listening(None)
        reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
        data = b"".join(encode_request(produce(b"x" * 1_000_000), 1, client_id_field("c")))
        for start in (0, 1_000, 2_000):  # less than what the server would like to read at once
            writer.write(data[start : start + 1_000])
            while not (found := list(server.connections)) or found[0].bytes_received < start + 1_000:
                await asyncio.sleep(0.01)
        writer.write(data[3_000:])
        assert len(await reader.readexactly(4)) == 4
        writer.close()
        await server.stop()

    run(work())


def test_a_client_that_stops_within_a_frame_is_closed_after_a_while(
    run: Run, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raylog.wire.server.SWEEP_INTERVAL_S", 0.01)

    async def work() -> None:
        server, endpoint = await listening(None, frame_timeout_ms=1)
        reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
        writer.write(frame()[:20])
        assert await reader.read() == b""
        writer.close()
        await server.stop()

    run(work())
    assert "the rest of a frame did not come" in caplog.text


def test_a_server_that_answers_garbage_disconnects_its_client_only(run: Run) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 10)
        await writer.drain()
        writer.close()

    async def work() -> None:
        listener = await asyncio.start_server(serve, "127.0.0.1", 0)
        endpoint = Endpoint("127.0.0.1", listener.sockets[0].getsockname()[1])
        with pytest.raises(Exception, match="before the handshake was done"):
            await Connection.open(endpoint, secret="s", cluster_id="cluster-1")
        listener.close()
        await listener.wait_closed()

    run(work())
