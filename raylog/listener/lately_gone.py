"""Brokers whose listener went away a moment ago.

Metadata goes on naming them, as Kafka names a broker until its session has timed out. They lead
nothing there, because stand-ins do (``routes``). A client gives up a broker that it no longer sees:
librdkafka ends its thread, and a call that waits for the group's coordinator there then waits for
ever (librdkafka issue 5511). Most Brokers are back within seconds, at the same address.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from raylog.listener.routes import BrokerListener, Routes

LINGERS_MS: Final = 9_000
"""Kafka's default of ``broker.session.timeout.ms``."""


class LatelyGone:
    def __init__(self, routes: Routes, now_ms: Callable[[], int]) -> None:
        self._routes = routes
        self._now_ms = now_ms
        self._there: set[int] = set()
        self._gone_at: dict[int, int] = {}

    def follow(self) -> None:
        """Note who has gone or come back with a change of the image."""
        there = {each.broker_id for each in self._routes.listeners()}
        for broker_id in self._there - there:
            self._gone_at[broker_id] = self._now_ms()
        for broker_id in there:
            self._gone_at.pop(broker_id, None)
        self._there = there

    def listeners(self) -> list[BrokerListener]:
        """Their last addresses, without those of brokers that the cluster has removed."""
        since = self._now_ms() - LINGERS_MS
        found = (self._routes.listener(broker, dead_too=True) for broker, at in self._gone_at.items() if at > since)
        return [each for each in found if each is not None]
