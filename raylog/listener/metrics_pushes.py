"""A Broker's metrics on their way to what does not scrape them: Ray's agent, a collector of
OpenTelemetry.

Each push has a task that collects and sends, and then waits for its interval. ``send`` is called in
a thread, one call of a push at a time, so that a receiver that does not answer delays nobody. What
cannot be sent is gone, and the next push has the counters' new values. A receiver that fails is named
in the log once, until it takes a push again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from raylog.configs import broker_configs
from raylog.configs.broker_configs import BrokerConfigs
from raylog.metrics.registry import Samples

logger = logging.getLogger("raylog.metrics")


@dataclass(frozen=True, slots=True)
class PushTarget:
    """``send`` may block, and raises what went wrong. ``interval_ms`` holds unless the broker's config
    ``interval_config`` is set; "": there is no such config. An interval of 0: nothing is pushed.
    """

    name: str
    send: Callable[[Samples], None]
    interval_ms: int
    interval_config: str = ""


class MetricsPush:
    """Pushes to one target. ``collect`` may be called at any time, by several at once."""

    def __init__(self, target: PushTarget, collect: Callable[[], Awaitable[Samples]]) -> None:
        self._target = target
        self._collect = collect
        self._interval_ms = 0
        self._ended = asyncio.Event()  # of the task that pushes now
        self._pushing: asyncio.Task[None] | None = None
        self._is_failing = False

    @property
    def is_on(self) -> bool:
        return self._interval_ms > 0

    def follow(self, configs: BrokerConfigs, broker_id: int) -> None:
        """Go by what the configs say now."""
        wanted, name = self._target.interval_ms, self._target.interval_config
        if name:
            wanted = broker_configs.number(configs, broker_id, name, default=wanted)
        if wanted == self._interval_ms:
            return
        self._interval_ms = wanted
        self._ended.set()
        before, self._ended = self._pushing, asyncio.Event()
        loop = asyncio.get_running_loop()
        self._pushing = loop.create_task(self._push(wanted / 1_000, self._ended, before))

    async def stop(self) -> None:
        """Push no more. A push that is under way is not waited for."""
        self._interval_ms = 0
        self._ended.set()
        if self._pushing is not None:
            self._pushing.cancel()
            await asyncio.wait({self._pushing})

    async def _push(self, interval_s: float, ended: asyncio.Event, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait({before})
        while interval_s > 0 and not ended.is_set():
            try:
                async with asyncio.timeout(interval_s):
                    await ended.wait()
            except TimeoutError:
                await self._push_once()

    async def _push_once(self) -> None:
        try:
            samples = await self._collect()
            await asyncio.to_thread(self._target.send, samples)
        except Exception as error:
            if not self._is_failing:
                logger.warning("the metrics cannot be pushed to %s: %s", self._target.name, error)
            self._is_failing = True
            return
        if self._is_failing:
            logger.info("the metrics are pushed to %s again", self._target.name)
        self._is_failing = False
