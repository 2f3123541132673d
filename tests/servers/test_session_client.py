"""What a server actor says over its control session."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path

import pytest

from raylog.actors import session_client
from raylog.actors.session_client import SessionClient
from raylog.metadata.session import ActorIdentity, FromActor, Hello, ReplicaFailed
from raylog.types import Endpoint

HERE = Endpoint("127.0.0.1", 1)


class Wire:
    """A session that notes what is sent."""

    def __init__(self) -> None:
        self.sent: list[FromActor] = []
        self.is_open = True

    def send(self, frame: FromActor) -> None:
        self.sent.append(frame)

    def close(self) -> None:
        self.is_open = False


def test_what_happens_between_hello_and_welcome_is_said_behind_the_hello(monkeypatch: pytest.MonkeyPatch) -> None:
    identity = ActorIdentity("cluster", 65538, uuid.UUID(int=1), 7)
    hello = Hello(identity, HERE, "boot")
    news = ReplicaFailed(uuid.UUID(int=2), 0, "the disk broke")
    wire = Wire()

    async def opened(*arguments: object, **settings: object) -> Wire:
        return wire

    async def run() -> None:
        client = SessionClient(Path("/nowhere"), identity, hello=lambda: hello, on_frame=lambda frame: None)
        client.send(news)
        await client._open(HERE, b"secret")
        client.send(news)

    monkeypatch.setattr(session_client, "open_session", opened)
    asyncio.run(run())
    assert wire.sent == [hello, news], "before the hello there is nobody to tell"
