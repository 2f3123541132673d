"""A Broker's connection to its own controller: who is at an address is known by the handshake alone."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from raylog.listener.own_controller import OwnController
from raylog.types import CONTROLLER_SLOT, ActorIdentity, Endpoint, node_id
from raylog.wire import private
from raylog.wire.handshake import Peer
from raylog.wire.request import Request
from raylog.wire.server import Server

pytestmark = pytest.mark.core
OWN, OTHER = node_id(1, CONTROLLER_SLOT), node_id(0, CONTROLLER_SLOT)
WITHIN_MS = 20_000


def controller(node: int, incarnation: int, port: int = 0) -> Server:
    def told(request: Request) -> None:
        request.reply(private.ControllerFound("here", node))

    identity = ActorIdentity("cluster-1", node, uuid.UUID(int=7), incarnation)
    return Server({private.FIND_CONTROLLER: told}, identity=identity, secret=b"secret", host="127.0.0.1", port=port)


def test_it_is_found_lost_and_found_again_also_where_another_one_was() -> None:
    async def story() -> None:
        addresses: list[Endpoint] = []
        own = OwnController(1, lambda: addresses, secret=b"secret", cluster_id="cluster-1", caller=Peer(1 << 16, 1))

        async def who() -> tuple[int, int] | None:
            found = await own.ask(private.FindController(), timeout_ms=WITHIN_MS)
            return found[0] if found is not None else None

        assert await who() is None and not own.was_here
        other, mine = controller(OTHER, 5), controller(OWN, 6)
        at_other = await other.start()
        addresses[:] = [at_other]
        assert await who() is None and not own.was_here
        at_own = await mine.start()
        addresses[:] = [at_other, at_own]
        assert await who() == (OWN, 6) and own.was_here
        await mine.stop(grace_s=0)
        assert await who() is None and own.was_here, "it is dead, and should be there"
        await other.stop(grace_s=0)
        again = controller(OWN, 7, port=at_other.port)
        await again.start()
        addresses[:] = [at_other]
        assert await who() == (OWN, 7), "another one's controller was there before"
        await again.stop(grace_s=0)
        addresses[:] = [at_own]
        assert await who() is None and not own.was_here, "it has retired"
        own.close()

    asyncio.run(story())
