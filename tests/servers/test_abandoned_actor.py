"""A server actor whose creator died before it could start it does not stay for ever."""

from __future__ import annotations

import asyncio
import os
import uuid
from typing import Any

import pytest

from raylog.actors import ray_actors
from raylog.actors.spec import ServerSpec
from raylog.types import Endpoint

pytestmark = pytest.mark.core

SPEC = ServerSpec(2, uuid.UUID(int=1), "nowhere", "127.0.0.1", 1)


class StandInServer:
    """A server that listens once it is let."""

    def __init__(self) -> None:
        self.may_listen = asyncio.Event()

    async def start(self) -> Endpoint:
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


@pytest.fixture
def exits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    codes: list[int] = []
    monkeypatch.setattr(ray_actors, "ABANDONED_AFTER_S", 0.01)
    monkeypatch.setattr(os, "_exit", codes.append)
    return codes


def test_an_actor_that_nobody_starts_ends_its_process(exits: list[int]) -> None:
    async def live() -> None:
        Actor(SPEC)
        while not exits:
            await asyncio.sleep(0)

    asyncio.run(asyncio.wait_for(live(), 10))
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

    asyncio.run(asyncio.wait_for(live(), 10))
    assert exits == []
