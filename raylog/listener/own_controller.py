"""The controller of this Broker's broker, active or standby, and what it answers.

A controller writes where it listens onto the disks of its machine (``raylog.disks.disk``). The
addresses there are those of all controllers. Only the handshake says who is at one of them, so
``OwnController`` asks at each, once, and then keeps the connection to its own. It asks again at all
of them when that connection has ended, except where another broker's controller answered. All of a
Broker who ask its controller share this one connection.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

from raylog.errors import RaylogError
from raylog.types import CONTROLLER_SLOT, Endpoint, node_id
from raylog.wire.connection import Connection
from raylog.wire.handshake import Peer
from raylog.wire.internal_tls import Secret

logger = logging.getLogger("raylog.metrics")

OPEN_TIMEOUT_MS: Final = 2_000
Process = tuple[int, int]
"""Node id and incarnation."""


class OwnController:
    """``addresses`` returns where controllers listen, as far as this broker's disk says, and
    ``is_planned`` whether the plan of controllers names this broker. ``on_end`` is called when a
    connection to the own controller has ended: the process that answers next may be another one.
    """

    def __init__(
        self,
        broker_id: int,
        addresses: Callable[[], Sequence[Endpoint]],
        *,
        secret: Secret,
        cluster_id: str,
        caller: Peer,
        is_planned: Callable[[], bool] = lambda: False,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        self._node = node_id(broker_id, CONTROLLER_SLOT)
        self._addresses = addresses
        self._secret = secret
        self._cluster_id = cluster_id
        self._caller = caller
        self._is_planned = is_planned
        self._on_end = on_end
        self._opening = asyncio.Lock()
        self._connection: Connection | None = None
        self._ending: asyncio.Task[None] | None = None  # waits for the connection's end
        self._is_over = False
        self._last: Endpoint | None = None  # where the own one listened
        self._asked: tuple[Endpoint, ...] = ()  # the addresses that ``_others`` are of
        self._others: set[Endpoint] = set()  # where another broker's controller answered

    @property
    def was_here(self) -> bool:
        """Whether it has answered, and is still among the addresses: it has not retired since."""
        return self._last is not None and self._last in self._addresses()

    @property
    def is_planned(self) -> bool:
        return self._is_planned()

    @property
    def should_answer(self) -> bool:
        """Whether there should be one: the plan names this broker, or one has answered before."""
        return self.is_planned or self.was_here

    async def ask(self, entity: Any, *, timeout_ms: int) -> tuple[Process, Any] | None:
        """Who answered, and the reply; None if this broker has no controller, or it does not answer."""
        try:
            connection = await self._connected()
            if connection is None:
                return None
            reply = await connection.request(entity, timeout_ms=timeout_ms)
        except RaylogError as error:
            logger.debug("the controller of this broker does not answer: %s", error)
            return None
        return (connection.peer.node_id, connection.peer.incarnation), reply

    async def _connected(self) -> Connection | None:
        async with self._opening:
            if self._connection is not None and self._connection.is_open:
                return self._connection
            addresses = tuple(self._addresses())
            if addresses != self._asked:
                self._asked, self._others = addresses, set()
            unknown = [each for each in addresses if each not in self._others]
            found = [each for each in await asyncio.gather(*map(self._dialled, unknown)) if each is not None]
            for each in found if self._is_over else found[1:]:
                each.close()
            self._connection = found[0] if found and not self._is_over else None
            if self._connection is not None:
                self._last = self._connection.endpoint
                self._ending = asyncio.get_running_loop().create_task(self._wait_for_end(self._connection))
            return self._connection

    async def _wait_for_end(self, connection: Connection) -> None:
        await connection.wait_closed()
        self._on_end()

    async def _dialled(self, endpoint: Endpoint) -> Connection | None:
        """The connection to the own controller, if it is there."""
        try:
            connection = await Connection.open(
                endpoint,
                secret=self._secret,
                cluster_id=self._cluster_id,
                caller=self._caller,
                client_id=f"broker-{self._caller.node_id >> 16}",
                timeout_ms=OPEN_TIMEOUT_MS,
            )
        except RaylogError:
            return None
        if connection.peer.node_id == self._node:
            return connection
        self._others.add(endpoint)
        connection.close()
        return None

    def close(self) -> None:
        self._is_over = True
        if self._ending is not None:
            self._ending.cancel()
        if self._connection is not None:
            self._connection.close()
            self._connection = None
