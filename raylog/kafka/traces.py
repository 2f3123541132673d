"""The trace id of a request, in the log lines of every process that the request comes to
(``request.trace.enable``).

``TraceIds`` is a stage (``chain``) of the servers that clients connect to: it draws an id for each
request, which its context carries on every way. Whoever carries a request out does so ``within`` its
trace, and what is logged meanwhile has the id: ``trace_id_of`` a log record returns it. A callback
that the request waits for is ``within`` it too.

The scope is the running function's, not a context variable: tasks, timers and transports that a
request happens to create keep the variables of the context they were created in, and their later
lines, of other requests, would have its id. So lines of coroutines and threads say it themselves
(``in_trace``).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from raylog.kafka.context import RequestContext

if TYPE_CHECKING:
    from raylog.kafka.chain import Stage, Verdict
    from raylog.wire.request import Request
    from raylog.wire.server import Server

TRACE_BITS: Final = 128


class _Running(threading.local):
    trace_id: str | None = None


_running = _Running()


@contextmanager
def within(context: RequestContext) -> Iterator[None]:
    """What is logged in the block, on this thread, belongs to that request."""
    before, _running.trace_id = _running.trace_id, context.trace_id
    try:
        yield
    finally:
        _running.trace_id = before


def traced(context: RequestContext | None, callback: Callable[..., None]) -> Callable[..., None]:
    """The callback of something that the request waits for; itself if it has no trace."""
    if context is None or context.trace_id is None:
        return callback

    def call(*arguments: Any) -> None:
        with within(context):
            callback(*arguments)

    return call


def in_trace(context: RequestContext | None) -> dict[str, str | None]:
    """The ``extra`` of a log line that belongs to that request, wherever it is logged."""
    return {"trace_id": None if context is None else context.trace_id}


def trace_id_of(record: logging.LogRecord) -> str | None:
    """Of the request that a log record belongs to. On the thread that has logged it."""
    return getattr(record, "trace_id", None) or _running.trace_id


class TraceIds:
    """A stage that gives each request of a client an id: 32 hexadecimal digits, as W3C's traces have, of
    ``draw``'s random bits.
    """

    def __init__(self, draw: Callable[[int], int]) -> None:
        self._draw = draw

    def judge(self, request: Request) -> Iterable[Verdict]:
        if request.context.trace_id is not None or request.peer.node_id >= 0:
            return ()  # it has one, or no client has sent it
        request.context = replace(request.context, trace_id=f"{self._draw(TRACE_BITS) or 1:032x}")
        return ()

    def follow(self, server: Server, is_on: bool) -> None:
        """Be one of the server's stages, the first, or none."""
        stage: Stage = self
        if is_on and self not in server.stages:
            server.stages = (stage, *server.stages)
        elif not is_on and self in server.stages:
            server.stages = tuple(each for each in server.stages if each is not self)
