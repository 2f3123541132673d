"""Writes a line to the log for each request that took long, with where its time went
(``request.slow.log.ms``).

A server without ``SlowRequests`` asks only whether it has one. One that has it looks at each request
when its answer is there, or its client is gone. The times, in milliseconds::

    total      from when the request was read until its answer was there
    queue      of these, while it waited for its turn: a stage delayed it, or an earlier request
    local      until its handler had done what it could without waiting
    remote     the rest: other processes, replicas, members of a group, threads, or records to come
    throttle   what the client was told to wait afterwards; it is not in the total

The controller's APIs are all ``remote`` at a Broker. A Fetch may wait for records for as long as it
asks for, and is slow only if it took so much longer than that (``wait``). Each process that a request
kept has a line of its own: the one that the client is connected to, and the one that it was passed on
to. Requests that a process sends for itself, such as followers' fetches, have none.

The line is ``key=value`` text, strings in JSON's quotes, for what clients write in them ends no line
and forges no key. In a log of JSON the same keys stand under ``request``.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final

from raylog.errors import ProtocolError
from raylog.kafka import table
from raylog.kafka.context import INTERNAL, RequestContext
from raylog.kafka.traces import in_trace
from raylog.wire.framing import Buffer
from raylog.wire.private import FIRST_API_KEY, name_of

if TYPE_CHECKING:
    from raylog.wire.request import Request
    from raylog.wire.server_connection import ServerConnection

logger = logging.getLogger("raylog.requests")

OFF: Final = -1
NS_PER_MS: Final = 1_000_000


class SlowRequests:
    """``threshold_ms``: what took at least so long is slow."""

    __slots__ = ("_threshold_ns",)

    def __init__(self, threshold_ms: int) -> None:
        self._threshold_ns = threshold_ms * NS_PER_MS

    def ended(self, request: Request, answer: Sequence[Buffer] | None) -> None:
        """A request has its answer, which is empty where none is sent; None: its client is gone."""
        total_ns = perf_counter_ns() - request.arrived_ns
        if total_ns < self._threshold_ns or _is_own(request):
            return
        wait_ms = _wait_ms(request)
        if total_ns < self._threshold_ns + wait_ms * NS_PER_MS:
            return
        handled_ns = total_ns - request.queue_ns
        local_ns = min(request.local_ns, handled_ns) if request.local_ns is not None else handled_ns
        _warn(
            request.connection,
            request.context,
            request.api_key,
            version=request.version,
            correlation_id=request.correlation_id,
            total_ms=_ms(total_ns),
            queue_ms=_ms(request.queue_ns),
            local_ms=_ms(local_ns),
            remote_ms=_ms(handled_ns - local_ns),
            throttle_ms=request.throttle_ms,
            wait_ms=wait_ms,
            request_bytes=request.held_bytes,
            response_bytes=sum(map(len, answer)) if answer is not None else 0,
            answered=answer is not None,
        )

    def ended_at_once(
        self,
        connection: ServerConnection,
        context: RequestContext,
        api: tuple[int, int],
        correlation_id: int,
        *,
        length_ns: int,
        request_bytes: int,
        answer: Sequence[Buffer],
    ) -> None:
        """The same of a request that waited for nobody and has no ``Request``. ``api``: key and
        version.
        """
        if length_ns < self._threshold_ns:
            return
        _warn(
            connection,
            context,
            api[0],
            version=api[1],
            correlation_id=correlation_id,
            total_ms=_ms(length_ns),
            queue_ms=0.0,
            local_ms=_ms(length_ns),
            remote_ms=0.0,
            throttle_ms=0,
            wait_ms=0,
            request_bytes=request_bytes,
            response_bytes=sum(map(len, answer)),
            answered=True,
        )


def slow_requests(threshold_ms: int) -> SlowRequests | None:
    """By the config's value; None if it is off."""
    return None if threshold_ms <= OFF else SlowRequests(threshold_ms)


def _is_own(request: Request) -> bool:
    """Whether a process of the cluster sent it for itself, or a tool that may wait for long."""
    return request.context.listener == INTERNAL and (request.peer.node_id >= 0 or request.api_key >= FIRST_API_KEY)


def _wait_ms(request: Request) -> int:
    """How long a Fetch may wait for records, as its client says."""
    if request.api_key != table.FETCH.key:
        return 0
    try:
        body = request.body
    except ProtocolError:
        return 0
    return max(0, round(body.max_wait.total_seconds() * 1_000)) if body is not None else 0


def _warn(connection: ServerConnection, context: RequestContext, api_key: int, **facts: Any) -> None:
    spec = table.BY_KEY.get(api_key)
    known = {
        "api": spec.name if spec is not None else name_of(api_key) or str(api_key),
        "client_id": context.client_id,
        "principal": context.principal,
        "listener": context.listener,
        "client_host": context.client_host,
        "connection": connection.peername,
        **facts,
    }
    text = " ".join(f"{key}={json.dumps(value)}" for key, value in known.items())
    logger.warning("slow request: %s", text, extra={"facts": {"request": known}, **in_trace(context)})


def _ms(length_ns: int) -> float:
    return round(length_ns / NS_PER_MS, 3)
