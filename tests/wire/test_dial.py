"""The outcomes of a dial, each with a real socket that behaves so."""

import asyncio
import errno
import os
import signal
import socket
import struct
import subprocess
import sys
import textwrap
import uuid
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from raylog.types import ActorIdentity, Endpoint
from raylog.wire import dial as dial_module
from raylog.wire.client_security import ClientSecurity
from raylog.wire.connection import Connection
from raylog.wire.dial import DIAL_TIMEOUT_MS, dial
from raylog.wire.server import Server

pytestmark = pytest.mark.core

Run = Callable[[Coroutine[Any, Any, Any]], Any]
IDENTITY = ActorIdentity("cluster-1", 65538, uuid.UUID(int=7), 4711)
EXPECTED: dict[str, Any] = {"node_id": 65538, "incarnation": 4711, "secret": "s", "cluster_id": "cluster-1"}
PATIENT: dict[str, Any] = EXPECTED | {"timeout_ms": 60_000}  # where what happens decides, and not the time


def listener() -> socket.socket:
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    listening.listen()
    listening.setblocking(False)
    return listening


def endpoint_of(listening: socket.socket) -> Endpoint:
    return Endpoint("127.0.0.1", listening.getsockname()[1])


async def dial_from_the_connection_on(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> str:
    """The outcome of a dial whose time begins when it is connected: a machine that takes its time for that changes nothing."""
    loop = asyncio.get_running_loop()
    limits: list[tuple[float, asyncio.Timeout]] = []

    def timeout(seconds: float) -> asyncio.Timeout:
        limits.append((seconds, asyncio.timeout(None)))
        return limits[-1][1]

    class Dialling(Connection):
        async def connect(self, security: ClientSecurity | None = None, **said: str) -> None:
            await super().connect(security, **said)
            seconds, limit = limits[-1]
            limit.reschedule(loop.time() + seconds)

    with monkeypatch.context() as patch:
        patch.setattr(dial_module, "asyncio", SimpleNamespace(timeout=timeout))
        patch.setattr(dial_module, "Connection", Dialling)
        outcome = await dial(endpoint, **EXPECTED)
    assert [seconds for seconds, _ in limits] == [DIAL_TIMEOUT_MS / 1000]
    return outcome


@pytest.mark.parametrize(
    ("change", "outcome"),
    [
        ({}, "alive"),
        ({"incarnation": 4712}, "closed"),
        ({"node_id": 65539}, "closed"),
        ({"secret": "another"}, "closed"),
        ({"cluster_id": "another"}, "closed"),
    ],
)
def test_alive_is_only_that_process(run: Run, change: dict[str, Any], outcome: str) -> None:
    async def work() -> None:
        server = Server({}, identity=IDENTITY, secret="s")
        endpoint = await server.start()
        assert await dial(endpoint, **PATIENT | change) == outcome
        await server.stop()

    run(work())


def test_a_port_where_nobody_listens_refuses(run: Run) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        assert run(dial(endpoint_of(unused), **PATIENT)) == "refused"


def test_a_listener_that_accepts_and_closes_is_closed(run: Run) -> None:
    """What a killed process may do for an instant, and what a proxy in front of it does."""

    async def work(reset: bool) -> None:
        loop = asyncio.get_running_loop()
        with listener() as listening:
            dialing = asyncio.ensure_future(dial(endpoint_of(listening), **PATIENT))
            accepted, _ = await loop.sock_accept(listening)
            if reset:
                accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            accepted.close()
            assert await dialing == "closed"

    run(work(reset=False))
    run(work(reset=True))


def test_a_listener_that_never_accepts_is_mute(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        with listener() as listening:
            start = asyncio.get_running_loop().time()
            assert await dial_from_the_connection_on(endpoint_of(listening), monkeypatch) == "mute"
            assert asyncio.get_running_loop().time() - start > 0.19

    run(work())


def test_a_full_backlog_is_unreachable(run: Run) -> None:
    """The kernel drops the connection request, as a network would."""

    async def work() -> None:
        with socket.socket() as listening:
            listening.bind(("127.0.0.1", 0))
            listening.listen(0)
            fillers = [socket.socket() for _ in range(4)]
            for filler in fillers:
                filler.setblocking(False)
                filler.connect_ex(listening.getsockname())
            assert await dial(endpoint_of(listening), **EXPECTED) == "unreachable"
            for filler in fillers:
                filler.close()

    run(work())


def test_a_host_without_an_address_is_unreachable(run: Run) -> None:
    assert run(dial(Endpoint("no-such-host.invalid", 9), **EXPECTED)) == "unreachable"


def test_an_address_without_a_route_is_unreachable(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def no_route(*_: Any, **__: Any) -> None:
        raise OSError(errno.EHOSTUNREACH, "no route")

    async def work() -> None:
        monkeypatch.setattr(type(asyncio.get_running_loop()), "create_connection", no_route)
        assert await dial(Endpoint("127.0.0.1", 9), **PATIENT) == "unreachable"

    run(work())


def test_garbage_for_an_answer_is_closed(run: Run) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH_9.2\r\n")
        await reader.read(100)
        writer.close()

    async def work() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        assert await dial(Endpoint("127.0.0.1", server.sockets[0].getsockname()[1]), **PATIENT) == "closed"
        server.close()

    run(work())


def test_a_stopped_process_is_mute_and_a_killed_one_refuses(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    program = textwrap.dedent(
        """
        import asyncio, uuid
        from raylog.types import ActorIdentity
        from raylog.wire.server import Server

        async def main():
            server = Server({}, identity=ActorIdentity("cluster-1", 65538, uuid.UUID(int=7), 4711), secret="s")
            print((await server.start()).port, flush=True)
            await asyncio.Event().wait()

        asyncio.run(main())
        """
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            endpoint = Endpoint("127.0.0.1", int(process.stdout.readline()))
            assert run(dial(endpoint, **PATIENT)) == "alive"
            os.kill(process.pid, signal.SIGSTOP)
            assert run(dial_from_the_connection_on(endpoint, monkeypatch)) == "mute"
            os.kill(process.pid, signal.SIGCONT)
            assert run(dial(endpoint, **PATIENT)) == "alive"
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            assert run(dial(endpoint, **PATIENT)) == "refused"
        finally:
            process.kill()
