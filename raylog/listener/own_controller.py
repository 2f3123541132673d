"""The controller of this Broker's broker, active or standby, and what it answers.

A controller writes where it listens onto the disks of its machine (``raylog.disks.disk``). The
addresses there are those of all controllers. Only the handshake says who is at one of them, so
``OwnController`` asks at each, once, and then keeps the connection to its own. It asks again at all
of them when that connection has ended, except where another broker's controller answered.
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
    """``addresses`` returns where controllers listen, as far as this broker's disk says."""

    def __init__(
        self,
        broker_id: int,
        addresses: Callable[[], Sequence[Endpoint]],
        *,
        secret: Secret,
        cluster_id: str,
        caller: Peer,
    ) -> None:
        self._node = node_id(broker_id, CONTROLLER_SLOT)
        self._addresses = addresses
        self._secret = secret
        self._cluster_id = cluster_id
        self._caller = caller
        self._connection: Connection | None = None
        self._last: Endpoint | None = None  # where the own one listened
        self._asked: tuple[Endpoint, ...] = ()  # the addresses that ``_others`` are of
        self._others: set[Endpoint] = set()  # where another broker's controller answered

    @property
    def was_here(self) -> bool:
        """Whether it has answered, and is still among the addresses: it has not retired since."""
        return self._last is not None and self._last in self._addresses()

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
        if self._connection is not None and self._connection.is_open:
            return self._connection
        addresses = tuple(self._addresses())
        if addresses != self._asked:
            self._asked, self._others = addresses, set()
        unknown = [each for each in addresses if each not in self._others]
        found = [each for each in await asyncio.gather(*map(self._dialled, unknown)) if each is not None]
        self._connection = found[0] if found else None
        for each in found[1:]:
            each.close()
        if self._connection is not None:
            self._last = self._connection.endpoint
        return self._connection

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
        if self._connection is not None:
            self._connection.close()
            self._connection = None
