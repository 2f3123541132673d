"""A server actor whose creator died before it could start it does not stay for ever, nor does a controller that cannot start."""

from __future__ import annotations

import asyncio
import gc
import os
import uuid
from typing import Any

import pytest

from raylog.actors import ray_actors
from raylog.server.spec import ServerSpec
from raylog.types import Endpoint

pytestmark = pytest.mark.core

SPEC = ServerSpec(2, uuid.UUID(int=1), "nowhere", "127.0.0.1", 1)


class StandInServer:
    """A server that listens once it is let."""

    def __init__(self) -> None:
        self.may_listen = asyncio.Event()
        self.error: OSError | None = None

    async def start(self) -> Endpoint:
        if self.error is not None:
            raise self.error
        await self.may_listen.wait()
        return Endpoint("127.0.0.1", 1)

    async def stop(self) -> None: ...

    async def ended(self) -> str:
        await asyncio.Event().wait()
        return ""


class Actor(ray_actors.ServerActor):
    def __init__(self, spec: ServerSpec) -> None:
        super().__init__(spec)
        self.server = StandInServer()

    def _build(self, spec: ServerSpec) -> Any:
        return self.server


class Controller(ray_actors.ControllerActor):
    def __init__(self, spec: ServerSpec, server: StandInServer) -> None:
        super().__init__(spec)
        self.server = server

    def _build(self, spec: ServerSpec) -> Any:
        return self.server


@pytest.fixture
def exits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    codes: list[int] = []
    monkeypatch.setattr(ray_actors, "ABANDONED_AFTER_S", 0.01)
    monkeypatch.setattr(ray_actors, "RESTARTED_AFTER_S", 0.01)
    monkeypatch.setattr(os, "_exit", codes.append)
    monkeypatch.setattr(gc, "callbacks", [])  # this process is no server's
    return codes


def test_an_actor_that_nobody_starts_ends_its_process(exits: list[int]) -> None:
    async def live() -> None:
        Actor(SPEC)
        while not exits:
            await asyncio.sleep(0)

    asyncio.run(asyncio.wait_for(live(), 60))
    assert exits == [0]


def test_an_actor_that_is_being_started_or_was_stays(exits: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[None] = []
    judge = ray_actors.ServerActor._end_if_abandoned

    def judge_and_count(actor: ray_actors.ServerActor) -> None:
        judge(actor)
        judged.append(None)

    monkeypatch.setattr(ray_actors.ServerActor, "_end_if_abandoned", judge_and_count)

    async def live() -> None:
        actor = Actor(SPEC)
        starting = asyncio.create_task(actor.start())
        while len(judged) < 2:
            await asyncio.sleep(0)
        actor.server.may_listen.set()
        await starting
        while len(judged) < 3:
            await asyncio.sleep(0)

    asyncio.run(asyncio.wait_for(live(), 60))
    assert exits == []


def test_a_controller_that_cannot_start_leaves_its_place_to_another_process(
    exits: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_actors, "ABANDONED_AFTER_S", 60.0)
    server = StandInServer()
    server.error = OSError("the disk fails")

    async def live() -> None:
        Controller(SPEC, server)
        while not exits:
            await asyncio.sleep(0)

    asyncio.run(asyncio.wait_for(live(), 60))
    assert exits == [1]


def test_a_controller_that_somebody_else_starts_meanwhile_stays(
    exits: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_actors, "ABANDONED_AFTER_S", 60.0)
    server = StandInServer()
    server.error = OSError("the disk fails")
    server.may_listen.set()

    async def live() -> None:
        controller = Controller(SPEC, server)
        with pytest.raises(OSError, match="the disk fails"):
            await controller.start()
        server.error = None
        await controller.start()
        await controller._serving

    asyncio.run(asyncio.wait_for(live(), 60))
    assert exits == []
