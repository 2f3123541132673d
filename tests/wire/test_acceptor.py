"""Limits by address hold from the moment a socket is accepted, before TLS's handshake; and a handshake that fails says why."""

from __future__ import annotations

import asyncio
import os
import resource
import select
import socket
import ssl
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from certificates import Authority, settings
from wire_ends import EMPTY_REPLY, produce, read_frame, server_of, until

from raylog.types import Endpoint
from raylog.wire import private
from raylog.wire.frames import client_id_field, encode_request
from raylog.wire.limits import Limits
from raylog.wire.ports import Port
from raylog.wire.request import Request
from raylog.wire.sasl import SaslAuthenticator, SaslConnection
from raylog.wire.server import Server
from raylog.wire.tls import TlsConfig

pytestmark = pytest.mark.core

Run = Callable[[Coroutine[Any, Any, Any]], Any]
Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def behind_tls(authority: Authority, has_sasl: bool = False, client_auth: str = "none", **limits: Any) -> Server:
    """One port, which has TLS, and SASL inside of it if asked for."""
    trusts = settings(authority.signed("broker"), authority.certificate, ssl_client_auth=client_auth)
    tls = TlsConfig.of(trusts, "OUT")
    port = Port("OUT", Endpoint("0.0.0.0", 0), ssl=tls.context(), principal_of=tls.principal_of, has_sasl=has_sasl)
    if has_sasl:
        port.connection = SaslAuthenticator(dict, key=b"k").connection
    answers = {0: lambda request: request.reply(EMPTY_REPLY)}
    return server_of(answers, secret=None, ordered=True, ports=[port], limits=replace(Limits(), **limits))


async def silent(server: Server, source: str = "127.0.0.1") -> Ends:
    """Somebody who says nothing."""
    assert server.endpoint is not None
    return await asyncio.open_connection("127.0.0.1", server.endpoint.port, local_addr=(source, 0))


async def speaking(server: Server, authority: Authority, own: Path | None = None, source: str = "127.0.0.1") -> Ends:
    """Somebody whose handshake is done."""
    context = ssl.create_default_context(cafile=str(authority.certificate))
    if own is not None:
        context.load_cert_chain(own)
    assert server.endpoint is not None
    local = (source, 0)
    return await asyncio.open_connection("127.0.0.1", server.endpoint.port, ssl=context, local_addr=local)


async def is_closed(ends: Ends) -> bool:
    """Waits for it."""
    try:
        return await ends[0].read(1) == b""
    except ConnectionError:
        return True
    finally:
        ends[1].close()


async def is_served(ends: Ends) -> bool:
    ends[1].writelines(encode_request(produce(), 7, client_id_field("c")))
    return (await read_frame(ends[0]))[:4] == (7).to_bytes(4, "big")


async def gone(*all_ends: Ends) -> None:
    for _, writer in all_ends:
        writer.close()
    await asyncio.gather(*(writer.wait_closed() for _, writer in all_ends), return_exceptions=True)


# ------------------------------------------------------------------ limits


def test_unfinished_handshakes_count_as_unauthenticated_connections_of_their_address(
    run: Run, authority: Authority
) -> None:
    async def work() -> None:
        server = behind_tls(authority, unauthenticated_of_host_max=2)
        await server.start()
        counted = server.acceptor.unauthenticated_of_host
        first, second = await silent(server), await silent(server)
        await until(lambda: counted == {"127.0.0.1": 2})
        assert await is_closed(await silent(server))
        other = await speaking(server, authority, source="127.0.0.2")
        assert await is_served(other)
        assert counted == {"127.0.0.1": 2}, "whose handshake is done counts no more"
        await gone(first)
        await until(lambda: counted == {"127.0.0.1": 1})
        third = await speaking(server, authority)
        assert await is_served(third)
        await gone(second, third, other)
        await until(lambda: not counted and not server.connections_of_host and not server.acceptor.at_the_door)
        await server.stop()

    run(work())


def test_with_sasl_inside_tls_a_client_counts_until_it_has_authenticated(run: Run, authority: Authority) -> None:
    async def work() -> None:
        server = behind_tls(authority, has_sasl=True, unauthenticated_of_host_max=2)
        await server.start()
        first, second = await silent(server), await speaking(server, authority)
        await until(lambda: len(server.connections) == 1)
        assert server.acceptor.unauthenticated_of_host == {"127.0.0.1": 2}
        assert await is_closed(await silent(server))
        await gone(second)
        await until(lambda: server.acceptor.unauthenticated_of_host == {"127.0.0.1": 1})
        third = await speaking(server, authority)
        await until(lambda: len(server.connections) == 1)
        await gone(first, third)
        await server.stop()

    run(work())


@pytest.mark.parametrize("limit", ["connections_max", "connections_of_host_max"])
def test_unfinished_handshakes_count_as_connections(run: Run, authority: Authority, limit: str) -> None:
    async def work() -> None:
        server = behind_tls(authority, **{limit: 2})
        await server.start()
        first, second = await silent(server), await silent(server)
        await until(lambda: server.acceptor.at_the_door == 2)
        assert server.connections_of_host == {"127.0.0.1": 2}
        assert await is_closed(await silent(server))
        assert server.refused_connections == 1
        await gone(first)
        await until(lambda: server.acceptor.at_the_door == 1)
        third = await speaking(server, authority)
        assert await is_served(third)
        assert server.connections_of_host == {"127.0.0.1": 2}
        await gone(second, third)
        await until(lambda: not server.connections_of_host)
        await server.stop()

    run(work())


@pytest.mark.parametrize("has_tls", [True, False])
def test_an_address_that_opens_too_many_is_turned_away_unread(run: Run, authority: Authority, has_tls: bool) -> None:
    async def work() -> None:
        asked: list[str] = []

        def turned_away_s(host: str) -> float:
            asked.append(host)
            return 0.05

        server = behind_tls(authority) if has_tls else server_of({}, secret=None)
        await server.start()
        server.turned_away_s = turned_away_s
        one = await silent(server)
        one[1].write(b"\x16\x03\x01" if has_tls else b"\0\0\0\0")
        await until(lambda: server.acceptor.at_the_door == 1)
        assert asked == ["127.0.0.1"] and server.connections_of_host == {"127.0.0.1": 1}
        assert not server.connections and not server.acceptor.unauthenticated_of_host
        assert await is_closed(one)
        assert not server.acceptor.at_the_door and not server.connections_of_host
        server.turned_away_s = lambda host: 1_000
        late = await silent(server)
        await until(lambda: server.acceptor.at_the_door == 1)
        await server.stop()
        assert await is_closed(late), "no later than the server ends"
        assert not server.connections_of_host

    run(work())


def test_the_time_to_authenticate_includes_the_handshake_of_tls(run: Run, authority: Authority) -> None:
    async def work() -> None:
        server = behind_tls(authority, has_sasl=True)
        await server.start()
        await _slow_handshake(server, authority)
        limit_s = server.limits.handshake_timeout_ms / 1000
        (connection,) = server.connections
        assert isinstance(connection, SaslConnection)
        assert connection.accepted_at < connection.opened_at
        connection.sweep(connection.accepted_at + limit_s)
        assert not connection.shut
        connection.sweep((connection.accepted_at + connection.opened_at) / 2 + limit_s)
        assert connection.shut, "the handshake took a part of its time"
        await server.stop()

    run(work())


async def _slow_handshake(server: Server, authority: Authority) -> None:
    """It begins some turns of the loop after the connection is there."""
    context = ssl.create_default_context(cafile=str(authority.certificate))
    _, writer = await silent(server)
    await until(lambda: server.acceptor.at_the_door == 1)
    began = asyncio.get_running_loop().time()
    await until(lambda: asyncio.get_running_loop().time() > began)
    await writer.start_tls(context, server_hostname="127.0.0.1")
    await until(lambda: len(server.connections) == 1)
    server.loop.call_soon(writer.close)


def test_a_handshake_that_does_not_end_is_ended(run: Run, authority: Authority) -> None:
    async def work() -> None:
        server = behind_tls(authority, handshake_timeout_ms=20)
        await server.start()
        assert await is_closed(await silent(server))
        await until(lambda: not server.acceptor.at_the_door)
        assert not server.connections_of_host and not server.acceptor.unauthenticated_of_host
        await server.stop()

    run(work())


def test_a_server_that_stops_ends_unfinished_handshakes(run: Run, authority: Authority) -> None:
    async def work() -> None:
        server = behind_tls(authority)
        await server.start()
        ends = [await silent(server) for _ in range(5)]
        await until(lambda: server.acceptor.at_the_door == 5)
        await server.stop()
        assert all([await is_closed(each) for each in ends])
        assert not server.connections_of_host and not server.acceptor.unauthenticated_of_host
        assert not server.acceptor.at_the_door

    run(work())


# ------------------------------------------------------------------ no descriptors left


def test_stop_does_not_cut_a_client_off_whose_first_request_came_with_its_connection(run: Run) -> None:
    async def work() -> None:
        stopping: list[asyncio.Task[None]] = []

        def answer_and_stop(request: Request) -> None:
            request.reply(private.ClusterStatusReply({"filler": bytes(30_000_000)}))
            stopping.append(asyncio.ensure_future(server.stop(grace_s=300)))

        server = server_of({private.CLUSTER_STATUS: answer_and_stop}, secret=None)
        endpoint = await server.start()
        asked = b"".join(encode_request(private.ClusterStatusRequest(), 1, client_id_field("c")))
        with socket.create_connection((endpoint.host, endpoint.port)) as sock:  # before the server can accept it
            sock.sendall(asked)
            reader, writer = await asyncio.open_connection(sock=sock.dup())
            assert len(await read_frame(reader)) > 30_000_000
            writer.close()
        await stopping[0]

    run(work())


class NoDescriptors:
    """While it lasts, this process can open nothing more."""

    def __enter__(self) -> None:
        self._soft, self._hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._free = os.dup(0)  # everything below it is taken
        resource.setrlimit(resource.RLIMIT_NOFILE, (self._free + 1, self._hard))

    def __exit__(self, *_: object) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (self._soft, self._hard))
        os.close(self._free)


def test_a_port_without_descriptors_waits_and_goes_on(
    run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("raylog.wire.ports.PAUSE_S", 0.02)

    async def work() -> None:
        server = server_of({0: lambda request: request.reply(EMPTY_REPLY)}, secret=None)
        endpoint = await server.start()
        sock = socket.socket()
        sock.setblocking(False)
        with NoDescriptors():
            await asyncio.get_running_loop().sock_connect(sock, (endpoint.host, endpoint.port))
            await until(lambda: caplog.text.count("accepts nobody for 0.02 s: Too many open files") >= 2)
            assert not server.connections
        ends = await asyncio.open_connection(sock=sock)
        assert await is_served(ends)
        await gone(ends)
        await server.stop()

    run(work())


def test_a_port_that_waits_for_descriptors_does_not_try_meanwhile(
    run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("raylog.wire.ports.PAUSE_S", 1_000)

    async def work() -> None:
        server = server_of({}, secret=None)
        endpoint = await server.start()
        (port,) = server.ports
        sock = socket.socket()
        sock.setblocking(False)
        with NoDescriptors():
            await asyncio.get_running_loop().sock_connect(sock, (endpoint.host, endpoint.port))
            await until(lambda: "accepts nobody" in caplog.text)
            for _ in range(100):  # turns of the loop, in each of which the socket can be read
                await asyncio.sleep(0)
        await until(lambda: not port._bound or bool(select.select([port._bound], [], [], 0)[0]))
        for _ in range(100):
            await asyncio.sleep(0)
        assert caplog.text.count("accepts nobody") == 1, "one line for the whole pause"
        assert not server.connections and not server.acceptor.at_the_door
        await server.stop()
        sock.close()

    run(work())


def test_a_server_that_stops_ends_the_pause_of_its_port(
    run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("raylog.wire.ports.PAUSE_S", 0.02)

    async def work() -> None:
        loop, failures = asyncio.get_running_loop(), []
        loop.set_exception_handler(lambda _, context: failures.append(context))
        server = server_of({}, secret=None)
        endpoint = await server.start()
        sock = socket.socket()
        sock.setblocking(False)
        with NoDescriptors():
            await loop.sock_connect(sock, (endpoint.host, endpoint.port))
            await until(lambda: "accepts nobody" in caplog.text)
            await server.stop()
        over = loop.create_future()
        loop.call_later(0.04, over.set_result, None)  # a later turn than the end of the pause
        await over
        assert not failures, "nobody listens any more"
        sock.close()

    run(work())


# ------------------------------------------------------------------ alerts


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("shows", ["a stranger's", "none"])
def test_a_client_whose_certificate_is_refused_is_told_why(
    run: Run, authority: Authority, tmp_path: Path, version: ssl.TLSVersion, shows: str
) -> None:
    stranger = Authority(tmp_path / "strangers", "somebody else").signed("eve")

    def told(port: int) -> str:
        context = ssl.create_default_context(cafile=str(authority.certificate))
        context.minimum_version = context.maximum_version = version
        if shows != "none":
            context.load_cert_chain(stranger)
        with (
            socket.create_connection(("127.0.0.1", port), 60) as plain,
            pytest.raises(ssl.SSLError) as refused,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as sock,
        ):
            sock.recv(1)
        return refused.value.reason or ""

    async def work() -> None:
        server = behind_tls(authority, client_auth="required")
        endpoint = await server.start()
        said = await asyncio.to_thread(told, endpoint.port)
        if shows != "none":
            assert said == "TLSV1_ALERT_UNKNOWN_CA"
        else:
            is_new = version is ssl.TLSVersion.TLSv1_3
            assert said == ("TLSV13_ALERT_CERTIFICATE_REQUIRED" if is_new else "SSLV3_ALERT_HANDSHAKE_FAILURE")
        await until(lambda: not server.acceptor.at_the_door)
        assert not server.connections
        await server.stop()

    run(work())
