"""Where a producer without a transactional id gets its producer id: from the active controller, at
the first record and when a partition has used an id up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from kio.schema.errors import ErrorCode

from raylog.client.links import requests
from raylog.client.links.connections import ControllerConnection
from raylog.client.producer.partition_queue import ProducerIdentity
from raylog.clock import MachineClock
from raylog.errors import RaylogError, error_for

logger = logging.getLogger("raylog.client")


class IdentityFetch:
    """One at a time. ``not_before_ms``: when another attempt may begin, after one that failed."""

    def __init__(
        self, controller: ControllerConnection, clock: MachineClock, backoff_ms: float, on_end: Callable[[], None]
    ) -> None:
        self._controller = controller
        self._clock = clock
        self._backoff_ms = backoff_ms
        self._on_end = on_end
        self._task: asyncio.Task[None] | None = None
        self._has_told = False  # why there is no identity, since the last one came
        self.not_before_ms = 0.0
        self.identity: ProducerIdentity | None = None

    @property
    def is_under_way(self) -> bool:
        return self._task is not None

    def begin(self) -> None:
        """Ask for an identity, which takes the place of the last one; ``on_end`` is called either way."""
        assert self._task is None, "two at a time"
        self.identity = None
        self._task = asyncio.get_running_loop().create_task(self._fetch())

    async def _fetch(self) -> None:
        try:
            reply = await self._controller.request(requests.init_producer_id())
            if reply.error_code is not ErrorCode.none:
                raise error_for(reply.error_code, "no producer id")
            self.identity = ProducerIdentity(int(reply.producer_id), int(reply.producer_epoch))
            self._has_told = False
        except RaylogError as error:
            logger.log(logging.DEBUG if self._has_told else logging.WARNING, "no producer id yet: %s", error)
            self._has_told = True
            self.not_before_ms = self._clock.monotonic_s() * 1000 + self._backoff_ms
        finally:
            self._task = None
        self._on_end()

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
