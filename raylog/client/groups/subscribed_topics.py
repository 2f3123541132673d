"""The topics of a subscription as they come and go, and how many partitions they have.

A pattern is matched against all topics of the cluster; new ones are noticed every
``metadata.max.age.ms``, and sooner while something that was named does not exist. ``changed`` is
called when a member has to join again: its topics are others, or, where it led the last plan, a
topic of that plan has another number of partitions now.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from raylog.client.config import ConsumerConfig
from raylog.client.groups.subscriptions import Wanted
from raylog.client.links.link import ClusterLink
from raylog.errors import RaylogError

logger = logging.getLogger("raylog.client")

_MISSING_S = 1.0


class SubscribedTopics:
    """``names`` None: not known yet."""

    def __init__(self, config: ConsumerConfig, link: ClusterLink, changed: Callable[[], None]) -> None:
        self._config = config
        self._link = link
        self._changed = changed
        self._wanted: Wanted | None = None
        self._planned: dict[str, int] = {}  # the partitions that this member has shared out as a leader
        self._watcher: asyncio.Task[None] | None = None
        self.names: tuple[str, ...] | None = None

    def want(self, wanted: Wanted) -> None:
        self.forget()
        self._wanted = wanted
        self.names = wanted.names if wanted.pattern is None else None
        if self.names is not None:
            self._changed()
        self._watcher = asyncio.get_running_loop().create_task(self._watch())

    def forget(self) -> None:
        self._wanted = None
        self._planned = {}
        self.names = None
        self.close()

    def follow(self) -> None:
        """Somebody else leads the group, and watches over its plan."""
        self._planned = {}

    def close(self) -> None:
        if self._watcher is not None:
            self._watcher.cancel()
            self._watcher = None

    async def resolved(self) -> tuple[str, ...]:
        """The topics now."""
        return self.names or ()

    async def partition_counts(self, topics: Iterable[str]) -> dict[str, int]:
        """Of those that exist; asked afresh, for a plan. Raises what kept the cluster from
        answering.
        """
        views = await self._link.metadata.refresh(None, timeout_ms=self._config.request_timeout_ms)
        known = {view.name: len(view.partitions) for view in views}
        asked = list(topics)
        self._planned = {name: known.get(name, 0) for name in asked}
        return {name: known[name] for name in asked if name in known}

    async def _watch(self) -> None:
        if self._wanted is None or self._wanted.pattern is None:
            await asyncio.sleep(min(_MISSING_S, self._period_s(is_complete=True)))
        while True:
            is_complete = False
            try:
                is_complete = await self._look()
            except RaylogError as error:
                logger.debug("the topics of a subscription were not looked up: %s", error)
            await asyncio.sleep(self._period_s(is_complete=is_complete))

    def _period_s(self, *, is_complete: bool) -> float:
        period_s = max(self._config.metadata_max_age_ms / 1000, 0.05)
        return period_s if is_complete else min(period_s, _MISSING_S)

    async def _look(self) -> bool:
        """Whether everything that is named exists."""
        wanted = self._wanted
        assert wanted is not None, "nothing is watched"
        views = await self._link.metadata.refresh(None, timeout_ms=self._config.request_timeout_ms)
        counts = {view.name: len(view.partitions) for view in views}
        internal = {view.name: view.is_internal for view in views}
        names = wanted.topics(internal, excludes_internal=self._config.exclude_internal_topics)
        is_other = names != self.names
        self.names = names
        grown = {name: counts.get(name, 0) for name in self._planned} != self._planned
        if grown:
            self._planned = {}
        if is_other or grown:
            self._changed()
        return all(name in counts for name in names)
