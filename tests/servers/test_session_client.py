"""What a server actor says over its control session."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from raylog.control.session import FromActor, FromController, Heartbeat, Hello, ReplicaFailed, Welcome
from raylog.disks.disk import format_disk, open_disk, with_controllers
from raylog.errors import DisconnectedError
from raylog.server import session_client
from raylog.server.session_client import SessionClient
from raylog.types import ActorIdentity, Endpoint
from raylog.wire.handshake import Peer

HERE = Endpoint("127.0.0.1", 1)


class Wire:
    """A session that notes what is sent."""

    def __init__(self) -> None:
        self.sent: list[FromActor] = []
        self.is_open = True
        self.peer = Peer(65536, 1)

    def send(self, frame: FromActor) -> None:
        self.sent.append(frame)

    def close(self) -> None:
        self.is_open = False


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
        self.opened: list[Wire] = []
        self.say: list[Callable[[FromController], None]] = []  # by link: a frame that arrives over it, open or not
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
        doors = self

        class Opened(Wire):
            def send(opened, frame: FromActor) -> None:
                super().send(frame)
                if not isinstance(frame, Hello):
                    return
                if door.answer == "standby":
                    loop.call_soon(opened.close)
                elif door.answer == "mute":
                    doors.news.set()
                else:
                    loop.call_soon(on_frame, opened, Welcome(door.epoch, 60_000, 120_000))

            def close(opened) -> None:
                if opened.is_open:
                    opened.is_open = False
                    loop.call_soon(on_close, opened, None)

            abort = close

        session = Opened()
        self.opened.append(session)
        self.say.append(lambda frame: on_frame(session, frame))
        return session


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


def test_what_happens_between_hello_and_welcome_is_said_behind_the_hello(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = ReplicaFailed(uuid.UUID(int=2), 0, "the disk broke")

    async def run() -> None:
        doors = Doors({A: Door("mute")})
        client, _ = client_of(tmp_path, monkeypatch, doors)
        client.send(report)  # before the hello there is nobody to tell
        client.start()
        await news(doors)
        client.send(report)
        hello, *rest = doors.opened[0].sent
        assert isinstance(hello, Hello) and rest == [report]
        await client.stop()
        client.send(report)
        assert doors.opened[0].sent == [hello, report]

    asyncio.run(run())


def test_news_that_the_welcome_causes_are_sent_after_it_has_been_taken_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = ReplicaFailed(uuid.UUID(int=2), 0, "the disk broke")

    async def run() -> None:
        doors = Doors({A: Door("active", 1)})
        client, _ = client_of(tmp_path, monkeypatch, doors)
        heard: list[object] = []

        def changed(connected: bool) -> None:
            heard.append(connected)
            client.send(report)
            doors.news.set()

        client._on_change = changed
        client._on_frame = lambda frame: heard.append((frame, report in doors.opened[0].sent))
        client.start()
        await news(doors)
        assert heard == [True, (Welcome(1, 60_000, 120_000), False)]
        hello, beat, *rest = doors.opened[0].sent
        assert isinstance(hello, Hello) and isinstance(beat, Heartbeat) and rest == [report]
        await client.stop()

    asyncio.run(run())


def test_heartbeats_follow_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        doors = Doors({A: Door("mute")})
        client, _ = client_of(tmp_path, monkeypatch, doors)
        client.start()
        await news(doors)
        doors.say[0](Welcome(1, 5, 60_000))
        async with asyncio.timeout(60):
            while sum(isinstance(frame, Heartbeat) for frame in doors.opened[0].sent) < 4:
                await asyncio.sleep(0.001)
        await client.stop()

    asyncio.run(run())


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


def test_a_welcome_over_a_link_that_was_given_up_opens_no_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        doors = Doors({A: Door("mute"), B: Door("mute"), C: Door("mute"), D: Door("mute")})
        client, changes = client_of(tmp_path, monkeypatch, doors)
        client.start()
        await news(doors)
        client.summon(2, D)
        while len(doors.say) < 2:
            await news(doors)
        doors.say[0](Welcome(2, 60_000, 120_000))
        assert (doors.tried, changes, client.controller()) == ([A, D], [], None), "D has said nothing yet"
        await client.stop()

    asyncio.run(run())


def test_a_process_that_reaches_no_controller_says_so_seldom_and_that_it_reaches_one_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        doors = Doors({each: Door("gone") for each in (A, B, C)})
        client, changes = client_of(tmp_path, monkeypatch, doors)
        client.start()
        while len(doors.tried) < 12:
            await news(doors)
        doors.doors[B] = Door("welcome", 1)
        while not changes:
            await news(doors)
        await client.stop()

    monkeypatch.setattr(session_client, "UNREACHED_S", 0.0)
    with caplog.at_level(logging.INFO, "raylog.session"):
        asyncio.run(run())
    said = [(each.levelname, each.message) for each in caplog.records]
    assert [level for level, _ in said[:2]] == ["WARNING", "INFO"], said
    assert "no controller is reached for 0 s" in said[0][1] and "nobody listens at" in said[0][1]
    assert said[1][1] == f"the controller at {B} is reached again"
