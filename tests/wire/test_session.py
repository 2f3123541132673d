"""Two ends of a control session over a real connection."""

import asyncio
import uuid
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from raylog.control import session_stream as session_module
from raylog.control.session import Exit, Heartbeat, Hello, Welcome
from raylog.control.session_frames import to_frame
from raylog.control.session_stream import SessionStream, accept_session, open_session
from raylog.errors import RaylogError, error_for
from raylog.types import ActorIdentity, Endpoint
from raylog.wire import private
from raylog.wire.connection import Connection
from raylog.wire.handshake import Peer
from raylog.wire.request import Request
from raylog.wire.server import Server

pytestmark = pytest.mark.core

Run = Callable[[Coroutine[Any, Any, Any]], Any]
IDENTITY = ActorIdentity("cluster-1", 1, uuid.UUID(int=7), 4711)
HELLO = Hello(ActorIdentity("cluster-1", 65538, uuid.UUID(int=8), 99), Endpoint("127.0.0.1", 1), "boot")
WELCOME = Welcome(controller_epoch=3, heartbeat_interval_ms=500, session_timeout_ms=9000)


class End:
    """What one end of a session heard."""

    def __init__(self) -> None:
        self.session: SessionStream | None = None
        self.frames: list[Any] = []
        self.endings: list[Exception | None] = []

    def on_frame(self, session: SessionStream, frame: Any) -> None:
        self.frames.append(frame)

    def on_close(self, session: SessionStream, reason: Exception | None) -> None:
        self.endings.append(reason)

    def accept(self, request: Request) -> None:
        self.session = accept_session(request, self.on_frame, self.on_close)
        self.session.send(WELCOME)  # in the same write as the reply


async def pair(controller: End, actor: End) -> tuple[Server, SessionStream]:
    server = Server({private.SESSION: controller.accept}, identity=IDENTITY, secret="s")
    session = await open_session(
        await server.start(),
        secret="s",
        cluster_id="cluster-1",
        caller=Peer(65538, 99),
        expect=Peer(1, 4711),
        on_frame=actor.on_frame,
        on_close=actor.on_close,
    )
    return server, session


async def until(condition: Callable[[], Any]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def test_both_ends_send_whenever_they_like(run: Run) -> None:
    async def work() -> None:
        controller, actor = End(), End()
        server, session = await pair(controller, actor)
        assert controller.session is not None
        assert controller.session.peer == Peer(65538, 99) and session.peer == Peer(1, 4711)
        session.send(HELLO)
        for _ in range(1000):
            session.send(Heartbeat())
        await until(lambda: len(controller.frames) == 1001 and actor.frames)
        assert controller.frames[:2] == [HELLO, Heartbeat()]
        assert actor.frames == [WELCOME]
        session.close()
        await until(lambda: controller.endings and actor.endings)
        assert controller.endings == [None] == actor.endings
        controller.session.send(WELCOME)  # nobody there any more
        await server.stop()

    run(work())


def test_a_frame_that_is_sent_to_several_sessions_is_encoded_once(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[object] = []

    def counted(frame: Any) -> bytes:
        encoded.append(frame)
        return to_frame(frame)

    async def work() -> None:
        ends = [(End(), End()) for _ in range(3)]
        pairs = [await pair(*each) for each in ends]
        monkeypatch.setattr(session_module, "to_frame", counted)
        frame = Exit(4, "replaced")
        for controller, _ in ends:
            assert controller.session is not None
            controller.session.send(frame)
        await until(lambda: all(frame in actor.frames for _, actor in ends))
        assert encoded == [frame]
        for server, session in pairs:
            session.close()
            await server.stop()

    run(work())


def test_a_lost_connection_ends_the_session_at_both_ends_once(run: Run) -> None:
    async def work() -> None:
        controller, actor = End(), End()
        server, session = await pair(controller, actor)
        session.abort()
        await until(lambda: controller.endings and actor.endings)
        await server.stop()
        assert len(controller.endings) == len(actor.endings) == 1
        assert not session.is_open

    run(work())


def test_the_last_frame_before_a_close_arrives(run: Run) -> None:
    async def work() -> None:
        controller, actor = End(), End()
        server, _ = await pair(controller, actor)
        assert controller.session is not None
        controller.session.send(Exit(4, "replaced"))
        controller.session.close()
        await until(lambda: actor.endings)
        assert actor.frames == [WELCOME, Exit(4, "replaced")]
        await server.stop()

    run(work())


def test_a_controller_that_refuses_says_why(run: Run) -> None:
    def refuse(request: Request) -> None:
        request.refuse(error_for(41, "the active controller is elsewhere"))

    async def work() -> None:
        server = Server({private.SESSION: refuse}, identity=IDENTITY, secret="s")
        end = End()
        with pytest.raises(RaylogError, match="elsewhere"):
            await open_session(
                await server.start(), secret="s", cluster_id="cluster-1", on_frame=end.on_frame, on_close=end.on_close
            )
        assert end.endings == []
        await server.stop()

    run(work())


def test_garbage_in_a_session_closes_it_and_says_so(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        controller = End()
        server = Server({private.SESSION: controller.accept}, identity=IDENTITY, secret="s")
        connection = await Connection.open(await server.start(), secret="s", cluster_id="cluster-1")
        connection.call(private.OpenSession(), lambda reply, error: None)
        await until(lambda: controller.session)
        connection.write_frame([b"\0\0\0\3abc"])
        await until(lambda: controller.endings)
        assert controller.frames == []
        await server.stop()

    run(work())
    assert "not a session frame" in caplog.text


def test_an_order_that_cannot_be_handled_closes_the_session(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    class Broken(End):
        def on_frame(self, session: SessionStream, frame: Any) -> None:
            raise ZeroDivisionError

    async def work() -> None:
        controller, actor = End(), Broken()
        server, _ = await pair(controller, actor)
        await until(lambda: controller.endings and actor.endings)
        assert isinstance(actor.endings[0], ZeroDivisionError)
        await server.stop()

    run(work())
    assert "Welcome could not be handled" in caplog.text


def test_a_peer_that_never_reads_loses_the_session(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raylog.control.session_stream.BACKLOG_BYTES_MAX", 100_000)

    async def work() -> None:
        controller, actor = End(), End()
        server, session = await pair(controller, actor)
        session._connection.hold_reading()
        assert controller.session is not None
        while controller.session.is_open:
            controller.session.send(Exit(1, "x" * 50_000))
            await asyncio.sleep(0)
        await until(lambda: controller.endings)
        assert "unread" in str(controller.endings[0])
        session.abort()
        await server.stop()

    run(work())
