"""Creates topics on first use (Kafka's ``auto.create.topics.enable``).

A Metadata request that names an unknown topic and allows creation creates it with the cluster's
default partitions and replicas. The answer waits until this Broker's image has all of the topic's
leaders, at most ``WAIT_S``; after that it names the future leaders. A topic that cannot be created
is answered with the reason. Concurrent requests for one topic share one creation, made on behalf of
the first.
"""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Iterable
from typing import Any

from kio.schema.errors import ErrorCode

from raylog.configs import broker_configs
from raylog.kafka.context import RequestContext
from raylog.kafka.table import CREATE_TOPICS
from raylog.listener.arrivals import Arrivals
from raylog.listener.cluster_view import asks_for_all
from raylog.listener.controller_link import ControllerLink
from raylog.listener.routes import Routes
from raylog.server.apis.entities import module_of, request_class

ENABLED = "auto.create.topics.enable"
VERSION = 7  # of CreateTopics, which is sent to the controller
ALWAYS_ALLOWED_BELOW = 4  # older Metadata requests have no field for it
WAIT_S = 5.0
DEFAULT = -1
TIMEOUT = datetime.timedelta(seconds=30)


class TopicCreator:
    def __init__(self, routes: Routes, link: ControllerLink, arrivals: Arrivals) -> None:
        self._arrivals = arrivals
        self._routes = routes
        self._link = link
        self._creations: dict[str, asyncio.Task[int]] = {}

    def wanted(self, body: Any, version: int) -> list[str]:
        """Return the missing topics that this request names and allows to be created."""
        if asks_for_all(body, version):
            return []
        if version >= ALWAYS_ALLOWED_BELOW and not body.allow_auto_topic_creation:
            return []
        image = self._routes.image
        missing = [each.name for each in body.topics if each.name is not None and each.name not in image.topic_ids]
        if missing and broker_configs.number(image.broker_configs, None, ENABLED, default=1):
            return list(dict.fromkeys(missing))
        return []

    async def create(self, names: Iterable[str], context: RequestContext | None = None) -> dict[str, int]:
        """Create the topics, and return the error of each that failed.

        ``context`` names the client; without one the request is the Broker's own.
        """
        tasks = {}
        for name in names:
            task = self._creations.get(name)
            if task is None:
                task = self._creations[name] = asyncio.create_task(self._create(name, context))
                task.add_done_callback(lambda _, name=name: self._creations.pop(name, None))  # type: ignore[misc]
            tasks[name] = task
        await asyncio.wait(tasks.values(), timeout=WAIT_S)
        return {
            name: task.result() if task.done() and not task.cancelled() else int(ErrorCode.unknown_topic_or_partition)
            for name, task in tasks.items()
        }

    async def _create(self, name: str, context: RequestContext | None) -> int:
        """Return the error that a Metadata reply shows while the topic is not in the image."""
        cls = request_class(CREATE_TOPICS, VERSION)
        topic = module_of(cls).CreatableTopic(
            name=name, num_partitions=DEFAULT, replication_factor=DEFAULT, assignments=(), configs=()
        )
        reply = await self._link.ask(cls(topics=(topic,), timeout=TIMEOUT, validate_only=False), context=context)
        error = reply.topics[0].error_code if reply is not None else ErrorCode.unknown_topic_or_partition
        if error in (ErrorCode.none, ErrorCode.topic_already_exists, ErrorCode.request_timed_out):
            # The topic exists. If another Broker created it, its leaders may not be elected yet.
            await self._arrivals.until(lambda: self._routes.has_leaders(name), WAIT_S * 1_000)
            return int(ErrorCode.leader_not_available)
        return int(error)
