"""What a server actor says over its control session."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path
from typing import Any

import pytest

from raylog.control.session import FromActor, Hello, ReplicaFailed, Welcome
from raylog.disks.disk import format_disk, open_disk, with_controllers
from raylog.errors import DisconnectedError
from raylog.server import session_client
from raylog.server.session_client import SessionClient
from raylog.types import ActorIdentity, Endpoint

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


class Door:
    """A place where a controller may be: what happens there when a session is opened."""

    def __init__(self, answer: str, epoch: int = 0) -> None:
        self.answer = answer
        self.epoch = epoch


class Doors:
    """``open_session`` for a table of doors; notes where it was called."""

    def __init__(self, doors: dict[Endpoint, Door]) -> None:
        self.doors = doors
        self.tried: list[Endpoint] = []
        self.news = asyncio.Event()

    async def open(self, endpoint: Endpoint, *, on_frame: Any, on_close: Any, **_: Any) -> Any:
        self.tried.append(endpoint)
        door = self.doors[endpoint]
        if door.answer == "silent":
            await asyncio.Event().wait()
        if door.answer == "gone":
            self.news.set()
            raise DisconnectedError(f"nobody listens at {endpoint}")
        loop = asyncio.get_running_loop()

        class Opened(Wire):
            def send(opened, frame: FromActor) -> None:
                if not isinstance(frame, Hello):
                    return
                if door.answer == "standby":
                    loop.call_soon(opened.close)
                else:
                    loop.call_soon(on_frame, opened, Welcome(door.epoch, 60_000, 120_000))

            def close(opened) -> None:
                if opened.is_open:
                    opened.is_open = False
                    loop.call_soon(on_close, opened, None)

            abort = close

        return Opened()


A, B, C, D = (Endpoint("127.0.0.1", port) for port in (1, 2, 3, 4))


def client_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, doors: Doors) -> tuple[SessionClient, list[bool]]:
    disk = format_disk(tmp_path / "d", cluster_id="c", broker_id=1, rack=None, controllers=[A, B, C], secret="s")
    identity = ActorIdentity("c", 65538, disk.directory_id, 7)
    changes: list[bool] = []

    def changed(connected: bool) -> None:
        changes.append(connected)
        doors.news.set()

    monkeypatch.setattr(session_client, "open_session", doors.open)
    client = SessionClient(
        disk.path,
        identity,
        hello=lambda: Hello(identity, HERE, "boot"),
        on_frame=lambda frame: None,
        on_change=changed,
    )
    return client, changes


async def news(doors: Doors) -> None:
    await asyncio.wait_for(doors.news.wait(), 60)
    doors.news.clear()


def test_standbys_are_passed_by_until_one_says_welcome(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        doors = Doors({A: Door("standby"), B: Door("standby"), C: Door("active", 1)})
        client, changes = client_of(tmp_path, monkeypatch, doors)
        client.start()
        await news(doors)
        assert (doors.tried, changes) == ([A, B, C], [True])
        await client.stop()

    asyncio.run(run())


def test_a_summons_ends_the_session_to_a_controller_that_may_be_frozen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        doors = Doors({A: Door("active", 1), B: Door("silent"), C: Door("active", 2)})
        client, changes = client_of(tmp_path, monkeypatch, doors)
        client.start()
        await news(doors)
        client.summon(2, C)
        await news(doors)
        if changes[-1] is False:
            await news(doors)
        assert (doors.tried, changes) == ([A, C], [True, False, True])
        client.summon(1, A)  # the former one wakes up
        client.summon(2, B)
        await asyncio.sleep(0)
        assert (doors.tried, changes) == ([A, C], [True, False, True])
        await client.stop()

    asyncio.run(run())


def test_a_summons_interrupts_an_attempt_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        doors = Doors({A: Door("silent"), B: Door("silent"), C: Door("active", 2)})
        client, changes = client_of(tmp_path, monkeypatch, doors)
        client.start()
        while not doors.tried:
            await asyncio.sleep(0)
        client.summon(2, C)
        await news(doors)
        assert (doors.tried, changes) == ([A, C], [True])
        await client.stop()

    asyncio.run(run())


def test_a_welcome_of_an_older_epoch_than_the_summons_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        doors = Doors({A: Door("active", 1), B: Door("active", 3), C: Door("standby")})
        client, changes = client_of(tmp_path, monkeypatch, doors)
        client.summon(3, C)
        client.start()
        await news(doors)
        assert (doors.tried, changes) == ([C, A, B], [True])
        await client.stop()

    asyncio.run(run())


def test_controllers_that_came_back_on_other_ports_are_found_where_the_disk_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        doors = Doors({A: Door("active", 1), B: Door("gone"), C: Door("gone"), D: Door("active", 2)})
        client, changes = client_of(tmp_path, monkeypatch, doors)
        client.start()
        await news(doors)
        doors.doors[A] = Door("gone")
        assert client._session is not None
        client._session.close()
        while C not in doors.tried:  # all are gone, and no controller that comes back summons whom it does not know
            await news(doors)
        with_controllers(open_disk(tmp_path / "d"), [D])  # as ``raylog up`` does
        async with asyncio.timeout(60):
            while changes != [True, False, True]:
                await news(doors)
        assert doors.tried[-1] == D
        await client.stop()

    asyncio.run(run())
