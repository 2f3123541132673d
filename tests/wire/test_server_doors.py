"""Who gets in, which APIs and versions are spoken, and where a server listens."""

import asyncio
import logging
import struct
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from kio.schema.api_versions.v0.response import ApiVersionsResponse as ApiVersionsResponseV0
from kio.schema.api_versions.v3.request import ApiVersionsRequest
from kio.schema.errors import ErrorCode
from wire_ends import EMPTY_REPLY, client_of, produce, raw, read_frame, server_of, until

from raylog.errors import ClusterError
from raylog.wire import private
from raylog.wire.frames import client_id_field, decode_response, encode_request
from raylog.wire.handshake import HandshakeError, Peer, WrongPeerError
from raylog.wire.limits import Limits
from raylog.wire.request import Request
from raylog.wire.server import Server

pytestmark = pytest.mark.core

Run = Callable[[Coroutine[Any, Any, Any]], Any]


# ------------------------------------------------------------------ who may come in


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"secret": "a guess"}, HandshakeError, "secret"),
        ({"cluster_id": "cluster-2"}, HandshakeError, "another cluster"),
        ({"expect": (65538, 1)}, WrongPeerError, "incarnation 4711 answers"),
        ({"expect": (65539, 4711)}, WrongPeerError, "node 65538"),
    ],
)
def test_strangers_and_the_wrong_neighbour_get_nothing(
    run: Run, options: dict[str, Any], error: type[Exception], match: str
) -> None:
    async def work() -> None:
        server = server_of({0: lambda request: request.reply(EMPTY_REPLY)})
        endpoint = await server.start()
        with pytest.raises(error, match=match):
            await client_of(endpoint, **options)
        await until(lambda: not server.connections)
        await server.stop()

    run(work())


def test_both_ends_know_each_other_after_the_handshake(run: Run) -> None:
    async def work() -> None:
        seen: list[Peer] = []

        def handle(request: Request) -> None:
            seen.append(request.peer)
            request.reply(EMPTY_REPLY)

        server = server_of({0: handle})
        connection = await client_of(await server.start(), caller=Peer(131074, 99), expect=(65538, 4711))
        await connection.request(produce())
        assert connection.peer == Peer(65538, 4711) and seen == [Peer(131074, 99)]
        connection.close()
        await server.stop()

    run(work())


def test_nothing_is_served_before_the_handshake(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        server = server_of({0: lambda request: request.reply(EMPTY_REPLY)})
        endpoint = await server.start()
        for request in (produce(), ApiVersionsRequest(client_software_name="a", client_software_version="b")):
            reader, writer = await raw(endpoint)
            writer.write(b"".join(encode_request(request, 1, client_id_field("c"))))
            assert await reader.read() == b""
            writer.close()
        await server.stop()

    run(work())
    assert caplog.text.count("before the handshake") == 2


def test_a_silent_stranger_is_closed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raylog.wire.server.SWEEP_INTERVAL_S", 0.01)

    async def work() -> None:
        server = server_of({}, limits=Limits(handshake_timeout_ms=1))
        reader, writer = await raw(await server.start())
        assert await reader.read() == b""
        writer.close()
        await server.stop()

    run(work())


# ------------------------------------------------------------------ API keys and versions


def test_api_versions_lists_the_table(run: Run) -> None:
    async def work() -> None:
        server = Server(
            {0: lambda request: None, private.AWAIT_LEADER: lambda request: None}, versions={0: range(3, 10)}
        )
        connection = await client_of(await server.start(), secret=None)
        reply = await connection.request(ApiVersionsRequest(client_software_name="a", client_software_version="b"))
        assert reply.error_code is ErrorCode.none
        spoken = [(each.api_key, each.min_version, each.max_version) for each in reply.api_keys]
        assert spoken == [(0, 3, 9), (18, 0, 4)]
        connection.close()
        await server.stop()

    run(work())


def test_a_newer_api_versions_request_is_answered_in_version_0(run: Run) -> None:
    async def work() -> None:
        server = Server({0: lambda request: None})
        reader, writer = await raw(await server.start())
        body = struct.pack(">hhih", 18, 99, 5, -1) + b"whatever a future version holds"
        writer.write(struct.pack(">i", len(body)) + body)
        frame = await read_frame(reader)
        reply = decode_response(18, 0, frame)
        assert frame[:4] == struct.pack(">i", 5) and isinstance(reply, ApiVersionsResponseV0)
        assert reply.error_code is ErrorCode.unsupported_version
        assert [each.api_key for each in reply.api_keys] == [0, 18]
        request = ApiVersionsRequest(client_software_name="a", client_software_version="b")
        writer.write(b"".join(encode_request(request, 6, client_id_field("c"))))
        assert decode_response(18, 3, await read_frame(reader)).error_code is ErrorCode.none
        writer.close()
        await server.stop()

    run(work())


@pytest.mark.parametrize(("api_key", "version"), [(999, 0), (0, 99), (0, 2), (1, 12), (20_002, 0), (0, -1)])
def test_other_unknown_keys_and_versions_end_the_connection(
    run: Run, api_key: int, version: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        server = Server({0: lambda request: None}, versions={0: range(3, 10)})
        reader, writer = await raw(await server.start())
        writer.write(struct.pack(">ihhih", 10, api_key, version, 5, -1))
        assert await reader.read() == b""
        writer.close()
        await server.stop()

    run(work())
    assert "is not spoken here" in caplog.text


# ------------------------------------------------------------------ ports


def test_a_busy_port_moves_to_the_next_with_a_notice(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        first = server_of({})
        taken = (await first.start()).port
        second = server_of({}, port=taken)
        moved = (await second.start()).port
        assert taken < moved <= taken + 100
        assert f"port {taken} is taken; listening on {moved} instead" in caplog.text
        third = server_of({}, port=taken, port_must_match=True)
        with pytest.raises(ClusterError, match=f"port {taken} is taken"):
            await third.start()
        await first.stop()
        await second.stop()

    caplog.set_level(logging.WARNING)
    run(work())


def test_an_address_of_another_machine_is_refused_with_its_name(run: Run) -> None:
    async def work() -> None:
        with pytest.raises(ClusterError, match=r"192\.0\.2\.1"):
            await server_of({}, host="192.0.2.1").start()

    run(work())


def test_a_server_that_is_stopped_while_it_starts_does_not_listen(run: Run) -> None:
    async def work() -> None:
        server = server_of({})
        starting = asyncio.ensure_future(server.start())
        await asyncio.sleep(0)
        await server.stop()
        endpoint = await starting
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(endpoint.host, endpoint.port)

    run(work())
