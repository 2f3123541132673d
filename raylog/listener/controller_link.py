"""Forwards requests that change the cluster to the active controller.

The Broker's control session knows the active controller's address (``find``). While there is none,
a request waits. If the connection breaks or the process turns out not to be the active controller,
the request is sent again, as Kafka's brokers do. After ``TIMEOUT_MS``, or slightly more than the
request's own timeout if that is longer, the answer is REQUEST_TIMED_OUT. A request is dropped when
its client disconnects.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from kio.schema.errors import ErrorCode

from raylog.errors import RaylogError
from raylog.kafka.context import RequestContext
from raylog.kafka.refusal import is_not_controller, refusal
from raylog.kafka.spec import ApiSpec
from raylog.kafka.traces import in_trace
from raylog.server.apis.entities import NO_DELAY, milliseconds
from raylog.types import Endpoint
from raylog.wire.connection import Connection
from raylog.wire.handshake import Peer
from raylog.wire.internal_tls import Secret
from raylog.wire.request import Request

logger = logging.getLogger("raylog.broker")

TIMEOUT_MS = 30_000
SLACK_MS = 2_000  # grace for the answer, which the controller sends within the request's own timeout
RETRY_S = 0.05
OPEN_TIMEOUT_MS = 2_000
NO_ANSWER = "no controller answered in time; the change may have been made"


class ControllerLink:
    """``find`` returns the active controller's address, or None while there is none."""

    def __init__(
        self, find: Callable[[], Endpoint | None], *, secret: Secret, cluster_id: str, caller: Peer, timeout_ms: int
    ) -> None:
        self._find = find
        self._secret = secret
        self._cluster_id = cluster_id
        self._caller = caller
        self._timeout_s = timeout_ms / 1_000
        self._connection: Connection | None = None
        self._opening = asyncio.Lock()

    def forward(self, spec: ApiSpec) -> Callable[[Request], Any]:
        """Return the handler of an API that the controller answers."""

        async def handle(request: Request) -> Any:
            reply = await self.ask(request.body, context=request.context, is_wanted=lambda: request.is_open)
            if reply is not None:
                return reply
            return refusal(spec, request.version, request.body, ErrorCode.request_timed_out, NO_ANSWER)

        return handle

    async def ask(
        self, entity: Any, *, context: RequestContext | None = None, is_wanted: Callable[[], bool] = lambda: True
    ) -> Any | None:
        """Return the active controller's reply; None on a timeout or if the client is gone.

        ``context`` names the client; without one the request is the Broker's own.
        """
        loop = asyncio.get_running_loop()
        own = getattr(entity, "timeout", NO_DELAY)
        deadline = loop.time() + max(self._timeout_s, (milliseconds(own) + SLACK_MS) / 1_000)
        while is_wanted() and (left_s := deadline - loop.time()) > 0:
            try:
                connection = await self._connected()
                if connection is not None:
                    reply = await connection.request(entity, timeout_ms=left_s * 1_000, context=context)
                    if not is_not_controller(reply):
                        return reply
                    connection.close()
            except RaylogError as error:
                logger.debug("the controller does not answer: %s", error, extra=in_trace(context))
            await asyncio.sleep(min(RETRY_S, max(0.0, deadline - loop.time())))
        return None

    async def _connected(self) -> Connection | None:
        async with self._opening:
            endpoint = self._find()
            known = self._connection
            if known is not None and (not known.is_open or (endpoint is not None and known.endpoint != endpoint)):
                known.close()
                self._connection = None
            if self._connection is None and endpoint is not None:
                self._connection = await Connection.open(
                    endpoint,
                    secret=self._secret,
                    cluster_id=self._cluster_id,
                    caller=self._caller,
                    client_id=f"broker-{self._caller.node_id >> 16}",
                    timeout_ms=OPEN_TIMEOUT_MS,
                )
            return self._connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
