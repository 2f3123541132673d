"""Requests of the wire that coordinators answer in parts: one part for each id that the request
names, or one for each partition that this process coordinates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic

from raylog.coordination.context import KeyedT
from raylog.coordination.events import ReplyT, RequestT
from raylog.coordination.runtime import CoordinatorRuntime
from raylog.wire.request import Request

ToRequests = Callable[[Request], list[RequestT]]
ToEntity = Callable[[Any, Sequence[ReplyT], int], Any]


class _GatheredParts(Generic[ReplyT]):
    """One request, whose parts several coordinators answer."""

    __slots__ = ("_missing", "_replies", "_request", "_to_entity")

    def __init__(self, request: Request, to_entity: ToEntity[ReplyT], parts: int) -> None:
        self._request = request
        self._to_entity = to_entity
        self._replies: list[ReplyT | None] = [None] * parts
        self._missing = parts

    def reply(self, index: int, reply: ReplyT) -> None:
        self._replies[index] = reply
        self._missing -= 1
        if not self._missing:
            self.answer()

    def answer(self) -> None:
        replies = [reply for reply in self._replies if reply is not None]
        if self._request.is_open:
            self._request.reply(self._to_entity(self._request.body, replies, self._request.version))


def gathering(
    runtime: CoordinatorRuntime[RequestT, ReplyT, KeyedT],
    to_requests: ToRequests[RequestT],
    to_entity: ToEntity[ReplyT],
    ask: Callable[[int, RequestT, Callable[[ReplyT], None]], None] | None = None,
) -> Callable[[Request], None]:
    """The handler of an API: takes a request apart, asks the coordinator of each part and puts the
    answers together, in the order of the parts. ``ask``: instead of the runtime's.
    """

    def handle(request: Request) -> None:
        parts: list[tuple[int, RequestT]] = []
        for each in to_requests(request):
            number = runtime.kind.partition_of(each)
            numbers = runtime.coordinated() if number is None else [number]
            parts += [(number, each) for number in numbers]
        gathered = _GatheredParts(request, to_entity, len(parts))
        if not parts:
            gathered.answer()
        for index, (number, part) in enumerate(parts):
            (ask or runtime.ask)(number, part, partial(gathered.reply, index))

    return handle
