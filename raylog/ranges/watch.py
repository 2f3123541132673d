"""Looks up where the logs of topics begin and end, repeatedly, over connections that stay open.

``look`` returns the current topics: new ones that match a pattern, and new partitions, appear after
``REFRESH_S`` at the latest, and deleted topics disappear. It keeps nothing but its connections and,
for that time, the list of partitions. One caller at a time.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping

from kio.schema.errors import ErrorCode

from raylog.client.config import AdminConfig
from raylog.client.consumer.consumed_partition import EARLIEST, LATEST
from raylog.client.links import requests
from raylog.client.links.address import ClusterAddress
from raylog.client.links.leader_requests import LeaderRequests
from raylog.client.links.link import ClusterLink
from raylog.client.links.metadata import TopicView
from raylog.errors import RaylogError, kafka_error
from raylog.ranges.snapshot import LogEnds, hosts_of
from raylog.ranges.topics import Topics, checked, matching, names_of
from raylog.types import TopicPartition

REFRESH_S = 1.0

_UNKNOWN = kafka_error(ErrorCode.unknown_topic_or_partition)


class TopicWatch:
    """Async, on one loop. ``read_committed``: a log ends before its first open transaction."""

    def __init__(self, address: ClusterAddress, topics: Topics, *, read_committed: bool = False) -> None:
        self._topics = checked(topics)
        self._level = requests.READ_COMMITTED if read_committed else requests.READ_UNCOMMITTED
        self._config = AdminConfig.parse({"client.id": "raylog-stream"})
        self._link = ClusterLink(address, self._config)
        self._leaders = LeaderRequests(self._link)
        self._ids: dict[str, str] = {}
        self._keys: list[TopicPartition] = []
        self._refreshed_at: float | None = None

    async def look(self) -> tuple[dict[str, str], dict[TopicPartition, LogEnds]]:
        """Return the topics' ids (hex) by name, and each partition's first offset, end and hosts.

        RaylogError if there is no answer.
        """
        now = asyncio.get_running_loop().time()
        if self._refreshed_at is None or now - self._refreshed_at >= REFRESH_S:
            await self._refresh()
            self._refreshed_at = now
        try:
            earliest = await self._offsets(EARLIEST)
            latest = await self._offsets(LATEST)
        except RaylogError:
            self._refreshed_at = None  # perhaps a topic was deleted
            raise
        return dict(self._ids), {
            key: LogEnds(earliest[key], latest[key], {}, hosts_of(self._link, key)) for key in self._keys
        }

    async def close(self) -> None:
        await self._link.close()

    async def _offsets(self, timestamp: int) -> dict[TopicPartition, int]:
        asked = dict.fromkeys(self._keys, timestamp)
        limit_ms = self._config.default_api_timeout_ms
        answers = await self._leaders.list_offsets(asked, limit_ms, isolation_level=self._level)
        return {key: offset for key, (offset, _, _) in answers.items()}

    async def _refresh(self) -> None:
        views = await self._views()
        self._ids = {view.name: view.topic_id.hex for view in views}
        self._keys = [
            TopicPartition(view.name, number)
            for view in sorted(views, key=lambda view: view.name)
            for number in range(len(view.partitions))
            if not isinstance(self._topics, Mapping) or number in self._topics[view.name]
        ]

    async def _views(self) -> list[TopicView]:
        if isinstance(self._topics, re.Pattern):
            return matching(self._topics, await self._link.metadata.refresh(None))
        views = []
        for name in names_of(self._topics):
            try:
                views += await self._link.metadata.refresh([name])
            except _UNKNOWN:
                continue
        return views


async def topic_ids(address: ClusterAddress, topics: Topics) -> dict[str, str]:
    """Look up the ids of topics by name, once; missing topics are left out."""
    watch = TopicWatch(address, topics)
    try:
        return (await watch.look())[0]
    finally:
        await watch.close()
