"""DescribeLogDirs: asks every process of this broker, and merges the answers by folder."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from typing import Any

from kio.schema.errors import ErrorCode

from raylog.kafka.table import DESCRIBE_LOG_DIRS
from raylog.listener.owners import Owners
from raylog.listener.routes import Routes
from raylog.server.apis.entities import NO_DELAY, build, response_class
from raylog.wire.request import Request

TIMEOUT_MS = 10_000


def handler(routes: Routes, owners: Owners) -> Callable[[Request], Any]:
    """Return the handler. A process that does not answer is left out, so its replicas have no size."""

    async def handle(request: Request) -> Any:
        loop = asyncio.get_running_loop()
        asked: list[asyncio.Future[Any]] = []
        for owner in routes.replica_processes():
            future: asyncio.Future[Any] = loop.create_future()

            def heard(reply: Any, error: Exception | None, future: asyncio.Future[Any] = future) -> None:
                if not future.done():
                    future.set_result(reply)

            owners.call(owner, request.body, heard, timeout_ms=TIMEOUT_MS, context=request.context)
            asked.append(future)
        found: dict[str, Any] = {}
        for reply in [each for each in await asyncio.gather(*asked) if each is not None]:
            for result in reply.results:
                known = found.get(result.log_dir)
                found[result.log_dir] = result if known is None else _merged(known, result)
        results = tuple(result for _, result in sorted(found.items()))
        cls = response_class(DESCRIBE_LOG_DIRS, request.version)
        return build(cls, throttle_time=NO_DELAY, error_code=ErrorCode.none, results=results)

    return handle


def _merged(one: Any, other: Any) -> Any:
    topics = {topic.name: topic for topic in one.topics}
    for topic in other.topics:
        known = topics.get(topic.name)
        topics[topic.name] = (
            topic if known is None else dataclasses.replace(known, partitions=(*known.partitions, *topic.partitions))
        )
    return dataclasses.replace(one, topics=tuple(topic for _, topic in sorted(topics.items())))
