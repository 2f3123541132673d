"""How requests look for the active controller, on connections that a script answers."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from kio.schema.errors import ErrorCode

from raylog.client.config import ClientConfig
from raylog.client.links.address import ClusterAddress
from raylog.client.links.connections import ControllerConnection
from raylog.errors import DisconnectedError, kafka_error
from raylog.types import Endpoint
from raylog.wire.private import ControllerFound, FindController

DEAD, STANDBY, ACTIVE = "dead", "standby", "active"


@dataclass
class Doors:
    """Stands for ``Connections``: what each controller is, how often each was dialled, and how often asked."""

    states: dict[Endpoint, str]
    dialled: Counter[Endpoint] = field(default_factory=Counter)
    asked: Counter[Endpoint] = field(default_factory=Counter)
    hint: Endpoint | None = None

    def peek(self, endpoint: Endpoint) -> None:
        return None

    def pause_s(self, endpoint: Endpoint) -> float:
        return 1.0 if self.states[endpoint] == DEAD and self.dialled[endpoint] else 0.0

    async def get(self, endpoint: Endpoint) -> Door:
        self.dialled[endpoint] += 1
        await asyncio.sleep(0)
        if self.states[endpoint] == DEAD:
            raise DisconnectedError("refused")
        return Door(self, endpoint)


@dataclass
class Door:
    doors: Doors
    endpoint: Endpoint

    async def request(self, entity: Any, *, timeout_ms: float) -> Any:
        await asyncio.sleep(0)
        if isinstance(entity, FindController):
            hint = self.doors.hint
            return ControllerFound(hint.host, hint.port) if hint is not None else ControllerFound()
        self.doors.asked[self.endpoint] += 1
        if self.doors.states[self.endpoint] == STANDBY:
            raise kafka_error(ErrorCode.not_controller)("a standby")
        return entity


def link(name: str, *states: str) -> tuple[ControllerConnection, Doors, list[Endpoint]]:
    """A link that asks controllers in these states in this order. What a process learns of a cluster is kept by its id: each
    test has a cluster of its own."""
    bootstrap = tuple(Endpoint("10.0.0.1", port) for port in range(1, 1 + len(states)))
    doors = Doors({})
    made = ControllerConnection(ClusterAddress(name, "raylog", name, bootstrap, b"secret"), ClientConfig(), doors)  # type: ignore[arg-type]
    order = [made.endpoint, *(each for each in bootstrap if each != made.endpoint)]
    assert made._endpoints == order, "the test's idea of the order"
    doors.states = dict(zip(order, states, strict=True))
    return made, doors, order


def test_requests_that_fail_together_move_on_by_one_controller() -> None:
    async def run() -> None:
        controllers, doors, (_, active, standby) = link("together", DEAD, ACTIVE, STANDBY)
        answers = await asyncio.gather(*(controllers.request(number) for number in range(20)))
        assert answers == list(range(20))
        assert doors.asked == {active: 20} and standby not in doors.dialled

    asyncio.run(run())


def test_a_controller_that_was_found_dead_is_left_alone_while_others_may_be_asked() -> None:
    async def run() -> None:
        controllers, doors, (dead, _, last) = link("left alone", DEAD, STANDBY, STANDBY)

        async def elect() -> None:
            while doors.asked[last] < 3:
                await asyncio.sleep(0.001)
            doors.states[last] = ACTIVE

        answer, _ = await asyncio.gather(controllers.request("a change"), elect())
        assert answer == "a change" and doors.dialled[dead] == 1

    asyncio.run(run())
