"""Levels of loggers reach the controller of a broker, active or standby, and the one that comes after it."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable

import pytest

from raylog.errors import RaylogError
from raylog.listener.broker_loggers import BrokerLoggers
from raylog.listener.own_controller import OwnController
from raylog.metadata.image import MetadataImage
from raylog.server.logger_levels import LoggerLevels
from raylog.types import CONTROLLER_SLOT, ActorIdentity, Endpoint, node_id
from raylog.wire.handshake import Peer
from raylog.wire.private import SET_LOGGER_LEVELS
from raylog.wire.private_watching import LoggerLevelsSet
from raylog.wire.request import Request
from raylog.wire.server import Server

pytestmark = pytest.mark.core
NODE = node_id(1, CONTROLLER_SLOT)
CLUSTER = uuid.UUID(int=1)
CALLER = Peer(1 << 16, 1)
PATIENCE_S = 30
NAME = "raylog.of_controllers"


class StandInController:
    """What a controller does for loggers: ``orders`` are the levels that it was told, in order. Tests have it silent."""

    def __init__(self, incarnation: int, port: int = 0) -> None:
        self.orders: asyncio.Queue[dict[str, str]] = asyncio.Queue()
        self.is_silent = False
        identity = ActorIdentity("cluster-1", NODE, uuid.UUID(int=7), incarnation)
        handlers = {SET_LOGGER_LEVELS: self._set}
        self.server = Server(handlers, identity=identity, secret=b"secret", host="127.0.0.1", port=port)

    def _set(self, request: Request) -> None:
        if self.is_silent:
            return
        if request.body.levels is not None:
            self.orders.put_nowait(request.body.levels)
        request.reply(LoggerLevelsSet({NAME: "TRACE", "raylog.only_there": "INFO"}))


class Broker:
    """The loggers of broker 1 and its way to its controller, with an image that has no hosts."""

    def __init__(self, addresses: list[Endpoint]) -> None:
        self.is_planned = True
        self.controller = OwnController(
            1,
            lambda: addresses,
            secret=b"secret",
            cluster_id="cluster-1",
            caller=CALLER,
            is_planned=lambda: self.is_planned,
            on_end=lambda: self.loggers.controller_ended(),
        )
        image = MetadataImage.empty()
        self.loggers = BrokerLoggers(
            1,
            CALLER,
            secret=b"secret",
            cluster_id="cluster-1",
            image=lambda: image,
            controller=self.controller,
            own=LoggerLevels(),
        )

    async def close(self) -> None:
        await self.loggers.stop()
        self.controller.close()


def told(story: Callable[[Broker, list[Endpoint], StandInController], Awaitable[None]]) -> None:
    """Run a story about a broker whose controller is there."""

    async def run() -> None:
        logging.getLogger(NAME)
        addresses: list[Endpoint] = []
        broker, controller = Broker(addresses), StandInController(5)
        addresses.append(await controller.server.start())
        try:
            async with asyncio.timeout(PATIENCE_S):
                await story(broker, addresses, controller)
        finally:
            await broker.close()
            await controller.server.stop(grace_s=0)

    asyncio.run(run())


def test_a_controller_is_told_before_the_answer_and_its_loggers_are_among_the_brokers() -> None:
    async def story(broker: Broker, addresses: list[Endpoint], controller: StandInController) -> None:
        broker.loggers.follow()
        assert await controller.orders.get() == {}, "what an earlier Broker has set is void"
        await broker.loggers.alter({NAME: "DEBUG"}, validate_only=False)
        assert controller.orders.get_nowait() == {NAME: "DEBUG"}
        found = await broker.loggers.levels()
        assert found["raylog.only_there"] == "INFO" and found[NAME] == "DEBUG"
        assert controller.orders.empty(), "to be asked is not to be told"

    told(story)


def test_the_process_that_comes_after_a_controller_is_told_though_nothing_else_has_changed() -> None:
    async def story(broker: Broker, addresses: list[Endpoint], controller: StandInController) -> None:
        broker.loggers.follow()
        await broker.loggers.alter({NAME: "DEBUG"}, validate_only=False)
        again = StandInController(6)
        addresses[:] = [await again.server.start()]
        await controller.server.stop(grace_s=0)
        assert await again.orders.get() == {NAME: "DEBUG"}
        await again.server.stop(grace_s=0)

    told(story)


def test_a_controller_that_is_planned_later_is_told() -> None:
    async def story(broker: Broker, addresses: list[Endpoint], controller: StandInController) -> None:
        its, addresses[:] = list(addresses), []
        broker.is_planned = False
        broker.loggers.follow()
        await broker.loggers.alter({NAME: "DEBUG"}, validate_only=False)
        assert controller.orders.empty()
        addresses[:], broker.is_planned = its, True
        broker.loggers.follow()
        assert await controller.orders.get() == {NAME: "DEBUG"}

    told(story)


def test_a_controller_that_does_not_answer_is_named_and_told_when_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raylog.listener.broker_loggers.TIMEOUT_MS", 200)

    async def story(broker: Broker, addresses: list[Endpoint], controller: StandInController) -> None:
        broker.loggers.follow()
        assert await controller.orders.get() == {}
        controller.is_silent = True
        with pytest.raises(RaylogError, match=f"when they do: {NODE}$"):
            await broker.loggers.alter({NAME: "DEBUG"}, validate_only=False)
        controller.is_silent = False
        assert await controller.orders.get() == {NAME: "DEBUG"}

    told(story)
