"""What runs before the handler of every request, on every server: a row of stages, each of which
may have a say.

A ``Stage`` looks at a request and its context and gives verdicts; none lets it pass. The stages are
asked in their order when the request arrives. Delays add up; the first ``Refuse`` or ``Close``
decides, and no later stage is asked. Then, after the delay, the handler carries the request out, or
what was decided happens in its place::

    verdict             what happens
    ----------------    ----------------------------------------------------------------------------------------------------
    Delay(seconds)      the handler runs so much later. What follows on the connection waits behind it: requests of one client
                        that overtook each other would be appended in the wrong order
    Refuse(code)        the answer says so on every item, in the API's own words; a Produce with acks=0, which has no answer, ends the
                        connection, as in Kafka
    Close(reason)       the connection ends

A stage may also replace ``request.context``, which the handler, and whoever the request is passed
on to, then has; and have something else happen where the answer would leave
(``Request.replace_reply``). It leaves the body alone, because some handlers pass on the bytes as
they came. It runs on the loop and must not block. A stage that fails ends the connection: nothing
passes unseen.

The chain runs on each server that a request comes to, so twice for one that is passed on. A stage
sees by ``context.listener`` where the client came in, and by ``request.connection.server.listener``
where the request is now.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Protocol, assert_never

from kio.schema.errors import ErrorCode

from raylog.errors import error_for
from raylog.kafka import table
from raylog.kafka.refusal import refusal
from raylog.kafka.traces import in_trace, within
from raylog.wire import private

if TYPE_CHECKING:
    from raylog.wire.request import Request

logger = logging.getLogger("raylog.wire")


@dataclass(frozen=True, slots=True)
class Delay:
    seconds: float


@dataclass(frozen=True, slots=True)
class Refuse:
    """``message``: for APIs whose answers have a place for one."""

    code: ErrorCode
    message: str | None = None


@dataclass(frozen=True, slots=True)
class Close:
    reason: str


Verdict = Delay | Refuse | Close
Handle = Callable[["Request"], Awaitable[Any] | None]
Refusal = Callable[["Request", Refuse], None]
"""Refuses a request of an API whose refusals are more than a form to fill in."""


class Stage(Protocol):
    def judge(self, request: Request) -> Iterable[Verdict]:
        """What is to happen to this request; nothing if it may pass."""
        ...


def carry_out(stages: Sequence[Stage], request: Request, handler: Handle) -> Awaitable[Any] | None:
    """Run the stages and then, if they let it pass, the handler; returns what the handler does."""
    delay_s = 0.0
    end: Refuse | Close | None = None
    for stage in stages:
        for verdict in stage.judge(request):
            match verdict:
                case Delay(seconds):
                    delay_s += seconds
                case Refuse() | Close():
                    end = end or verdict
                case _:
                    assert_never(verdict)
        if end is not None:
            break
    connection = request.connection
    before = connection.turn
    if before is None and not delay_s:
        return _finish(request, end, handler)
    turn = connection.turn = connection.loop.create_future()
    return _in_turn(request, end, handler, before=before, delay_s=delay_s, turn=turn)


async def _in_turn(
    request: Request,
    end: Refuse | Close | None,
    handler: Handle,
    *,
    before: asyncio.Future[None] | None,
    delay_s: float,
    turn: asyncio.Future[None],
) -> Any:
    try:
        if before is not None:
            await asyncio.wait({before})
        if delay_s:
            await asyncio.sleep(delay_s)
        began_ns = perf_counter_ns()
        request.queue_ns, request.local_ns = began_ns - request.arrived_ns, None
        # Nothing is done for a client that has hung up.
        awaitable = _finish(request, end, handler) if request.is_open else None
        request.local_ns = perf_counter_ns() - began_ns if awaitable is None else 0
    finally:
        turn.set_result(None)
        if request.connection.turn is turn:
            request.connection.turn = None
    return await awaitable if awaitable is not None else None


def _finish(request: Request, end: Refuse | Close | None, handler: Handle) -> Awaitable[Any] | None:
    match end:
        case None:
            if request.context.trace_id is None:
                return handler(request)
            with within(request.context):
                return handler(request)
        case Refuse():
            _refuse(request, end)
        case Close(reason):
            _close(request, reason)
        case _:
            assert_never(end)
    return None


def _refuse(request: Request, refuse: Refuse) -> None:
    key = request.api_key
    if key >= private.FIRST_API_KEY:
        request.refuse(error_for(int(refuse.code.value), refuse.message))
    elif (own := request.connection.server.refusals.get(key)) is not None:
        own(request, refuse)
    elif key == table.PRODUCE.key and request.body.acks == 0:
        _close(request, f"a Produce with acks=0 is refused by {refuse.code.name.upper()}")
    else:
        request.reply(refusal(table.BY_KEY[key], request.version, request.body, refuse.code, refuse.message))


def _close(request: Request, reason: str) -> None:
    logger.info(
        "closing the connection of %s: %s", request.connection.peername, reason, extra=in_trace(request.context)
    )
    request.connection.close()
