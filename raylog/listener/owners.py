"""Connections from a Broker to the processes that hold its replicas.

A connection opens on first use. There is one for each process and purpose, shared by all clients.

``Owners`` sends a request to one process and calls back exactly once, with the reply or an error.
When a connection ends, everything in flight on it fails at once. ``keep`` closes the connections to
processes that the image no longer lists as alive, so no request waits for a machine that was
declared dead in silence. Nothing is retried here: clients retry.

Produce has a connection of its own: a process that receives more than it can hold stops reading,
and consumers must not wait for that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, NamedTuple

from raylog.errors import DisconnectedError, RaylogError
from raylog.kafka import table
from raylog.kafka.context import RequestContext
from raylog.kafka.traces import traced
from raylog.listener.raw_forward import OnePartition
from raylog.types import Endpoint
from raylog.wire.connection import Connection, OnReply
from raylog.wire.handshake import Peer
from raylog.wire.internal_tls import Secret
from raylog.wire.request import Request

logger = logging.getLogger("raylog.broker")

OPEN_TIMEOUT_MS = 5_000
PRODUCE = table.PRODUCE.key
NO_REPLY = -1  # the correlation id of requests that cannot be cancelled

Routed = Callable[[Request, "Owner", OnePartition], None]
"""Called before a request for one partition is forwarded unchanged to a single owner."""
Send = Callable[[Connection, OnReply], int]
"""Sends a request and returns its correlation id."""


class Owner(NamedTuple):
    """One process of a server actor."""

    node_id: int
    incarnation: int
    endpoint: Endpoint


def unmoved(request: Request, owner: Owner, asked: OnePartition) -> None:
    """The default where connections do not move to owners (``raylog.listener.moves``)."""


def _nothing() -> None:
    pass


class Owners:
    """``secret`` and ``caller`` are this Broker's, for the handshake."""

    def __init__(self, *, secret: Secret, cluster_id: str, caller: Peer) -> None:
        self._secret = secret
        self._cluster_id = cluster_id
        self._caller = caller
        self._links: dict[tuple[Owner, bool], _Link] = {}

    def call(
        self, owner: Owner, request: Any, on_reply: OnReply, *, timeout_ms: float, context: RequestContext | None = None
    ) -> Callable[[], None]:
        """Send a request. Returns a function that cancels it, after which ``on_reply`` is not
        called.

        ``context`` names the client; without one the request is the Broker's own.
        """
        link = self._link(owner, is_produce=getattr(request, "__api_key__", None) == PRODUCE)
        return link.begin(
            lambda connection, heard: connection.call(request, heard, timeout_ms=timeout_ms, context=context),
            traced(context, on_reply),
        )

    def pass_on(
        self, owner: Owner, request: Request, end: int, on_reply: OnReply, *, timeout_ms: float, is_produce: bool
    ) -> Callable[[], None]:
        """Send the bytes of a request unchanged: its frame up to ``end``. ``on_reply`` gets the
        reply's frame (``Connection.pass_on``).
        """
        frame, position, context = request.frame, request.position, request.context
        assert frame is not None, "only a request that came as bytes can be forwarded as bytes"
        return self._link(owner, is_produce).begin(
            lambda connection, heard: connection.pass_on(
                frame, position, end, heard, context=context, timeout_ms=timeout_ms
            ),
            traced(context, on_reply),
        )

    def tell(self, owner: Owner, request: Any, on_loss: Callable[[], None], *, context: RequestContext) -> None:
        """Send a Produce with acks 0, which has no reply. ``on_loss`` is called if the process is
        unreachable.
        """
        self._link(owner, is_produce=True).tell(request, traced(context, on_loss), context)

    def keep(self, living: Collection[Owner]) -> None:
        """Close the connections to all other processes."""
        for key in [key for key in self._links if key[0] not in living]:
            self._links.pop(key).close()

    def close(self) -> None:
        self.keep(())

    def _link(self, owner: Owner, is_produce: bool) -> _Link:
        key = (owner, is_produce)
        link = self._links.get(key)
        if link is None:
            link = self._links[key] = _Link(self._open, owner)
        return link

    async def _open(self, owner: Owner) -> Connection:
        return await Connection.open(
            owner.endpoint,
            secret=self._secret,
            cluster_id=self._cluster_id,
            caller=self._caller,
            expect=(owner.node_id, owner.incarnation),
            client_id=f"broker-{self._caller.node_id >> 16}",
            timeout_ms=OPEN_TIMEOUT_MS,
            borrows_records=True,
        )


class _Link:
    """The connection to one process. Requests wait in order while it opens."""

    def __init__(self, open_: Callable[[Owner], Any], owner: Owner) -> None:
        self._open = open_
        self._owner = owner
        self._connection: Connection | None = None
        self._opening: asyncio.Task[None] | None = None
        self._waiting: list[_Waiting] = []

    def begin(self, send: Send, on_reply: OnReply) -> Callable[[], None]:
        connection = self._connection
        if connection is not None and connection.is_open:
            return partial(connection.cancel, send(connection, on_reply))
        waiting = _Waiting(send, on_reply)
        self._wait(waiting)
        return waiting.cancel

    def tell(self, request: Any, on_loss: Callable[[], None], context: RequestContext) -> None:
        def send(connection: Connection, heard: OnReply) -> int:
            connection.send_unanswered(request, context=context)
            return NO_REPLY

        if self._connection is not None and self._connection.is_open:
            self._connection.send_unanswered(request, context=context)
        else:
            self._wait(_Waiting(send, lambda reply, error: on_loss()))

    def _wait(self, waiting: _Waiting) -> None:
        self._connection = None
        self._waiting.append(waiting)
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._connect())

    async def _connect(self) -> None:
        failure: RaylogError | None = None
        try:
            self._connection = await self._open(self._owner)
        except RaylogError as error:
            logger.info("node %d cannot be reached at %s: %s", self._owner.node_id, self._owner.endpoint, error)
            failure = error
        finally:
            self._opening = None
            waiting, self._waiting = self._waiting, []
            if self._connection is None:
                failure = failure or DisconnectedError(f"node {self._owner.node_id} is gone")
        for each in waiting:
            each.go_on(self._connection, failure)

    def close(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            each.go_on(None, DisconnectedError(f"node {self._owner.node_id} is gone"))
        if self._connection is not None:
            self._connection.abort()


class _Waiting:
    """A request whose connection is being opened."""

    def __init__(self, send: Send, on_reply: OnReply) -> None:
        self._send = send
        self._on_reply: OnReply | None = on_reply
        self._cancel_sent: Callable[[], None] = _nothing

    def go_on(self, connection: Connection | None, failure: RaylogError | None) -> None:
        on_reply = self._on_reply
        if on_reply is None:
            return
        if connection is None:
            on_reply(None, failure)
        else:
            self._cancel_sent = partial(connection.cancel, self._send(connection, on_reply))

    def cancel(self) -> None:
        self._on_reply = None
        self._cancel_sent()
