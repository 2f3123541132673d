"""Two controllers' ends of a quorum link over a real connection."""

import asyncio
import uuid
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from raylog.control import quorum_stream
from raylog.control.quorum_stream import QuorumStream, accept_quorum, open_quorum
from raylog.errors import RaylogError
from raylog.raft.messages import AppendReply, Snapshot, SnapshotRequest, VoteRequest
from raylog.types import ActorIdentity, Endpoint
from raylog.wire import private
from raylog.wire.handshake import HandshakeError, Peer
from raylog.wire.request import Request
from raylog.wire.server import Server

pytestmark = pytest.mark.core

Run = Callable[[Coroutine[Any, Any, Any]], Any]
A, B = uuid.UUID(int=1), uuid.UUID(int=2)


class End:
    """What one end of a link heard."""

    def __init__(self) -> None:
        self.stream: QuorumStream | None = None
        self.messages: list[Any] = []
        self.endings: list[Exception | None] = []
        self.news = asyncio.Event()

    def on_message(self, stream: QuorumStream, message: Any) -> None:
        self.messages.append(message)
        self.news.set()

    def on_close(self, stream: QuorumStream, reason: Exception | None) -> None:
        self.endings.append(reason)
        self.news.set()

    def accept(self, request: Request) -> None:
        self.stream = accept_quorum(request, B, self.on_message, self.on_close)

    async def hears(self, count: int) -> None:
        while len(self.messages) + len(self.endings) < count:
            self.news.clear()
            await asyncio.wait_for(self.news.wait(), 60)


async def linked(one: End, other: End, secret: str = "s") -> tuple[Server, QuorumStream]:
    server = Server({private.QUORUM: other.accept}, identity=ActorIdentity("c", 65537, B, 22), secret="s")
    endpoint: Endpoint = await server.start()
    try:
        stream = await open_quorum(
            endpoint,
            A,
            secret=secret,
            cluster_id="c",
            caller=Peer(1, 11),
            on_message=one.on_message,
            on_close=one.on_close,
            timeout_ms=60_000,
        )
    except RaylogError:
        await server.stop()
        raise
    return server, stream


def test_both_ends_send_and_know_each_other(run: Run) -> None:
    async def scenario() -> None:
        one, other = End(), End()
        server, stream = await linked(one, other)
        stream.send(VoteRequest(1, 2, 1, True))
        await other.hears(1)
        assert other.stream is not None
        assert (other.stream.directory_id, other.stream.peer) == (A, Peer(1, 11))
        assert (stream.directory_id, stream.peer) == (B, Peer(65537, 22))
        other.stream.send(AppendReply(1, 2, 0))
        await one.hears(1)
        assert (one.messages, other.messages) == ([AppendReply(1, 2, 0)], [VoteRequest(1, 2, 1, True)])
        await server.stop()
        await one.hears(2)
        assert one.endings and not stream.is_open

    run(scenario())


def test_a_snapshot_larger_than_a_frame_arrives_whole_and_in_order(run: Run) -> None:
    async def scenario() -> None:
        one, other = End(), End()
        server, stream = await linked(one, other)
        data = bytes(range(256)) * 14_000  # 3.5 MB
        snapshot = SnapshotRequest(1, Snapshot(9, 1, "c", (A, B), data), 0)
        sent = [VoteRequest(1, 2, 1, True), snapshot, snapshot, AppendReply(1, 2, 0)]
        for message in sent:
            stream.send(message)
        await other.hears(4)
        assert other.messages == sent
        await server.stop()

    run(scenario())


def test_a_message_without_end_is_refused(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        one, other = End(), End()
        server, stream = await linked(one, other)
        monkeypatch.setattr(quorum_stream, "MESSAGE_BYTES_MAX", 100_000)
        for _ in range(3):
            stream._write(b"\x01" + bytes(50_000))
        await other.hears(1)
        assert "100000" in str(other.endings[0])
        await server.stop()

    run(scenario())


def test_messages_to_a_peer_that_does_not_read_are_dropped(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        one, other = End(), End()
        server, stream = await linked(one, other)
        monkeypatch.setattr(quorum_stream, "BACKLOG_BYTES_MAX", 0)
        stream.send(AppendReply(1, 1, 0))
        stream.send(AppendReply(1, 2, 0))  # the first one has not left yet
        await other.hears(1)
        stream.send(AppendReply(1, 3, 0))
        await other.hears(2)
        assert other.messages == [AppendReply(1, 1, 0), AppendReply(1, 3, 0)]
        await server.stop()

    run(scenario())


def test_a_stranger_gets_no_link(run: Run) -> None:
    async def scenario() -> None:
        with pytest.raises(HandshakeError):
            await linked(End(), End(), secret="guessed")

    run(scenario())
