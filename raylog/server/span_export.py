"""Finished spans on their way to a collector of OpenTelemetry.

They wait in a queue of at most ``QUEUE_MAX``. A task sends what is there every ``INTERVAL_MS``, at most
``REQUEST_SPANS_MAX`` at once, in a thread, so a collector that does not answer delays nobody. What is not
taken is gone: spans that come to a full queue, those of a request that fails, and those that the collector
refuses of one that it takes. All are counted. A collector that fails or refuses is named in the log once,
until it takes all of a request again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping
from typing import Final

from raylog.otlp.reading import rejected_of
from raylog.otlp.sending import OtlpPost, settings_for
from raylog.otlp.spans import TraceSpan, export_request
from raylog.server.span_counts import SpanCounts
from raylog.version import VERSION

logger = logging.getLogger("raylog.traces")

QUEUE_MAX: Final = 4_096
REQUEST_SPANS_MAX: Final = 512
INTERVAL_MS: Final = 1_000


class SpanExport:
    """To one collector, from the running loop, until ``stop``. ``own``: attributes of the resource, behind
    those that the environment gives.

    Raises ConfigError for a value of the environment that cannot be honoured.
    """

    def __init__(
        self, endpoint: str, environment: Mapping[str, str], own: Mapping[str, str], counts: SpanCounts
    ) -> None:
        settings = settings_for("TRACES", endpoint, INTERVAL_MS, environment)
        self._endpoint = endpoint
        self._post = OtlpPost(settings)
        self._resource = {**own, **settings.resource}
        self._counts = counts
        self._queue: deque[TraceSpan] = deque()
        self._is_failing = False
        self._sending = asyncio.get_running_loop().create_task(self._send(INTERVAL_MS / 1_000))

    def add(self, span: TraceSpan) -> None:
        if len(self._queue) >= QUEUE_MAX:
            self._counts.queue_full += 1
        else:
            self._queue.append(span)

    def stop(self) -> None:
        """Send no more. What waits is gone; a request that is under way is not waited for."""
        self._sending.cancel()
        self._counts.unsent += len(self._queue)
        self._queue.clear()

    async def _send(self, interval_s: float) -> None:
        while True:
            await asyncio.sleep(interval_s)
            while self._queue:
                count = min(len(self._queue), REQUEST_SPANS_MAX)
                await self._send_once([self._queue.popleft() for _ in range(count)])

    async def _send_once(self, spans: list[TraceSpan]) -> None:
        try:
            lost, reason = await asyncio.to_thread(self._deliver, spans)
        except asyncio.CancelledError:
            self._counts.unsent += len(spans)  # as far as known
            raise
        except Exception as error:
            lost, reason = len(spans), str(error)
        self._counts.unsent += lost
        self._counts.sent += len(spans) - lost
        if lost and not self._is_failing:
            logger.warning("spans cannot be sent to %s: %s", self._endpoint, reason)
        elif self._is_failing and not lost:
            logger.info("spans are sent to %s again", self._endpoint)
        self._is_failing = lost > 0

    def _deliver(self, spans: list[TraceSpan]) -> tuple[int, str]:
        """How many of them the collector has refused, and why."""
        rejected, reason = rejected_of(self._post.send(export_request(spans, self._resource, version=VERSION)))
        return min(rejected, len(spans)), f"it has refused {rejected} spans: {reason}"
