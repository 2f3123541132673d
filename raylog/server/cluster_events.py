"""What a controller tells of the cluster's history (``raylog.metadata.controllers.history``)."""

from __future__ import annotations

from collections.abc import Callable

from raylog.metadata.controllers.history import EVENTS_MAX, ClusterHistory
from raylog.wire.private_watching import DescribeEvents, EventsDescribed
from raylog.wire.request import Handler, Request


def handler(history: Callable[[], ClusterHistory]) -> Handler:
    """Answers DescribeEvents, at most ``EVENTS_MAX`` events at a time."""

    def describe(request: Request) -> None:
        asked: DescribeEvents = request.body
        count = max(0, min(asked.count, EVENTS_MAX))
        if asked.index < 0:
            events, lacks = history().newest(count)
        else:
            events, lacks = history().after((asked.index, asked.number), count)
        told = tuple((each.index, each.number, each.at_ms, each.kind, each.subject, each.text) for each in events)
        request.reply(EventsDescribed(told, lacks))

    return describe
