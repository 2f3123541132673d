"""Faults between Kafka clients and a Broker's listener: the n-th request of an API is refused, held up, or lost with its connection.

``RequestFaults.watch`` wraps the handlers of a listener's table, from outside: nothing in the servers knows of faults. While there is no
order, a request costs one look at an empty tuple. An order counts the requests of its API, over all listeners that are watched, from the
moment it is given::

    order                          what happens to requests number nth … nth + times − 1
    ---------------------------    -----------------------------------------------------------------------------------
    fail(api, code)                answered by that error on every item, and not carried out
    delay(api, ms)                 carried out so much later; what follows on the connection waits behind it, as behind a slow network
    drop(api, lost="request")      the connection breaks, nothing was carried out
    drop(api, lost="reply")        it is carried out, and the connection breaks where the answer should come

Several orders may strike one request: delays add up, then the first other one counts. What raylog itself does inside (replication, the
controller, what a test asks of its handle) does not pass here.

Orders may be given and cancelled from any thread; counting happens on the loop of the listeners.
"""

from __future__ import annotations

import asyncio
import dataclasses
import difflib
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, ClassVar, Literal, Self

from kio.schema.errors import ErrorCode

from raylog.actors.outside.fetch import Fetches
from raylog.actors.outside.owners import Owner
from raylog.actors.outside.places import Elsewhere, Places
from raylog.actors.outside.scattered import Scattered
from raylog.errors import ConfigError
from raylog.kafka import table
from raylog.kafka.refusal import refusal
from raylog.wire.frames import PRODUCE
from raylog.wire.server import Handler, Request, Server, ServerConnection

MESSAGE = "an error that the test asked for"
Lost = Literal["request", "reply"]


class Order:
    """What ``fail``, ``delay`` and ``drop`` return. ``hits`` counts the requests it has struck; ``cancel`` ends it, as ``with`` does."""

    def __init__(self, faults: RequestFaults, key: int, action: _Action, *, nth: int, times: int | None) -> None:
        if nth < 1:
            raise ConfigError(f"nth={nth}: the next request is number 1")
        if times is not None and times < 1:
            raise ConfigError(f"times={times}: at least once; None for every request until it is cancelled")
        self._faults = faults
        self.key = key
        self.action = action
        self._first = nth
        self._end = None if times is None else nth + times
        self._seen = 0
        self.hits = 0

    def __repr__(self) -> str:
        return f"<{self.action} for {name_of(self.key)}: struck {self.hits} of {self._seen} requests>"

    def strikes(self) -> bool:
        """Count one more request; whether it is one of those."""
        self._seen += 1
        struck = self._seen >= self._first and (self._end is None or self._seen < self._end)
        self.hits += struck
        return struck

    def cancel(self) -> None:
        """From the next request on it counts no more. Idempotent."""
        self._faults.forget(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()


@dataclasses.dataclass(frozen=True, slots=True)
class _Fail:
    code: ErrorCode

    def __str__(self) -> str:
        return self.code.name.upper()


@dataclasses.dataclass(frozen=True, slots=True)
class _Delay:
    seconds: float

    def __str__(self) -> str:
        return f"{self.seconds * 1_000:g} ms"


@dataclasses.dataclass(frozen=True, slots=True)
class _Drop:
    lost: Lost

    def __str__(self) -> str:
        return f"the loss of the {self.lost}"


_Action = _Fail | _Delay | _Drop


class RequestFaults:
    """The orders of one cluster."""

    def __init__(self) -> None:
        self._orders: tuple[Order, ...] = ()
        self._turns: dict[ServerConnection, asyncio.Future[None]] = {}  # the last of those that wait, by connection
        self._served: frozenset[int] = frozenset()

    # ------------------------------------------------------------------ orders

    def fail(self, api: str | int, code: str | int, *, nth: int = 1, times: int | None = 1) -> Order:
        found = error_code(code)
        return self._add(Order(self, self.key_of(api), _Fail(found), nth=nth, times=times))

    def delay(self, api: str | int, ms: float, *, nth: int = 1, times: int | None = 1) -> Order:
        if ms < 0:
            raise ConfigError(f"ms={ms}: a delay is not negative")
        return self._add(Order(self, self.key_of(api), _Delay(ms / 1_000), nth=nth, times=times))

    def drop(self, api: str | int, *, lost: Lost = "request", nth: int = 1, times: int | None = 1) -> Order:
        if lost not in ("request", "reply"):
            raise ConfigError(f'lost={lost!r}: either "request" (nothing is carried out) or "reply" (it is)')
        return self._add(Order(self, self.key_of(api), _Drop(lost), nth=nth, times=times))

    def forget(self, order: Order) -> None:
        self._orders = tuple(each for each in self._orders if each is not order)

    def clear(self) -> None:
        """Cancel all orders."""
        self._orders = ()

    def _add(self, order: Order) -> Order:
        self._orders = (*self._orders, order)
        return order

    def key_of(self, api: str | int) -> int:
        """The API key of a name, written as Kafka does or as in Python. Raises ConfigError for one that the listeners do not serve."""
        names = {_plain(name_of(key)): key for key in sorted(self._served)}
        key = names.get(_plain(api)) if isinstance(api, str) else api
        if key in self._served:
            return key
        shown = {_plain(name_of(each)): name_of(each) for each in self._served}
        near = difflib.get_close_matches(_plain(str(api)), shown, 1)
        hint = f"did you mean {shown[near[0]]}?" if near else f"those are {', '.join(sorted(shown.values()))}"
        raise ConfigError(f"{api!r} is no API that the listener serves: {hint}")

    # ------------------------------------------------------------------ at work

    def watch(self, server: Server) -> None:
        """Put the faults before every handler of a listener."""
        self._served |= frozenset(server.handlers)
        refusals = _refusals(server)
        for key, handler in list(server.handlers.items()):
            server.handlers[key] = self._faulty(handler, refusals.get(key, _by_schema))

    def _faulty(self, handler: Handler, refusal: _Refusal) -> Handler:
        def handle(request: Request) -> Awaitable[Any] | None:
            if not self._orders and not self._turns:
                return handler(request)
            struck = [each.action for each in self._orders if each.key == request.api_key and each.strikes()]
            delay_s = sum(each.seconds for each in struck if isinstance(each, _Delay))
            end = next((each for each in struck if not isinstance(each, _Delay)), None)

            def act() -> Awaitable[Any] | None:
                if isinstance(end, _Fail):
                    return refusal(end.code, handler)(request)
                if isinstance(end, _Drop):
                    return _dropped(end.lost, handler, request)
                return handler(request)

            before = self._turns.get(request.connection)
            if before is None and not delay_s:
                return act()
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._turns[request.connection] = turn
            return self._in_turn(request, before, delay_s, act, turn)

        return handle

    async def _in_turn(
        self,
        request: Request,
        before: asyncio.Future[None] | None,
        delay_s: float,
        act: Callable[[], Awaitable[Any] | None],
        turn: asyncio.Future[None],
    ) -> Any:
        try:
            if before is not None:
                await asyncio.wait({before})
            if delay_s:
                await asyncio.sleep(delay_s)
            awaitable = act() if request.is_open else None  # nothing is done for a client that has hung up
        finally:
            turn.set_result(None)
            if self._turns.get(request.connection) is turn:
                del self._turns[request.connection]
        return await awaitable if awaitable is not None else None


def name_of(key: int) -> str:
    """An API's name as Kafka writes it."""
    return table.BY_KEY[key].name


def error_code(code: str | int) -> ErrorCode:
    """An error by its name in Kafka's ``Errors``, or its number. Raises ConfigError for one that there is not, and for NONE."""
    if isinstance(code, int):
        found = next((each for each in ErrorCode if int(each.value) == code), None)
    else:
        found = ErrorCode.__members__.get(code.lower())
    if found is not None and found is not ErrorCode.none:
        return found
    near = difflib.get_close_matches(str(code).lower(), ErrorCode.__members__, 1)
    hint = f"did you mean {near[0].upper()}?" if near else "they are named as in Kafka, such as NOT_LEADER_OR_FOLLOWER"
    raise ConfigError(f"code={code!r} is no error of Kafka's: {hint}")


def _plain(name: str) -> str:
    return name.replace("_", "").replace(" ", "").lower()


# ---------------------------------------------------------------------- what strikes

_Refusal = Callable[[ErrorCode, Handler], Handler]
"""Makes the handler that refuses by an error, out of the one that would carry the request out."""


class _Refusing(Places):
    """What a Broker looks like that serves no partition, for this reason."""

    def __init__(self, places: Places, code: ErrorCode) -> None:
        super().__init__(places.broker_id, lambda: places.image)
        self._elsewhere = Elsewhere(code)

    def leader_of(self, topic: Any, number: int) -> Owner | Elsewhere:
        return self._elsewhere

    def reader(self, topic: Any, number: int) -> Owner | Elsewhere:
        return self._elsewhere


def _refusals(server: Server) -> dict[int, _Refusal]:
    """Of the APIs whose refusals are more than a form to fill in: the product's own, which know fetch sessions and acks=0."""
    fetches = getattr(server.handlers[table.FETCH.key], "__self__", None)
    assert isinstance(fetches, Fetches), f"Fetch is answered by {fetches!r}"
    places, owners = fetches.places, fetches.owners
    refusals: dict[int, _Refusal] = {table.METADATA.key: _metadata}
    for spec in table.OF_LEADERS:
        refusals[spec.key] = lambda code, _, spec=spec: (
            Scattered(spec, _Refusing(places, code), owners, fetches.arrivals).handle
        )  # type: ignore[misc]
    refusals[table.FETCH.key] = lambda code, _: (
        Fetches(
            _Refusing(places, code), owners, fetches.sessions, fetches.now_ms, fetches.room, fetches.arrivals
        ).handle
    )
    return refusals


def _by_schema(code: ErrorCode, handler: Handler) -> Handler:
    def refuse(request: Request) -> None:
        spec = table.BY_KEY[request.api_key]
        request.reply(refusal(spec, request.version, request.body, code, MESSAGE))

    return refuse


def _metadata(code: ErrorCode, handler: Handler) -> Handler:
    """Brokers are named all the same: a client without any could not ask again."""

    def refused(entity: Any) -> Any:
        topics = tuple(dataclasses.replace(each, error_code=code, partitions=()) for each in entity.topics)
        return dataclasses.replace(entity, topics=topics)

    return lambda request: _intercepted(handler, request, lambda entity: request.reply(refused(entity)))


def _dropped(lost: Lost, handler: Handler, request: Request) -> Awaitable[Any] | None:
    if lost == "request" or (request.api_key == PRODUCE and request.body.acks == 0):
        awaitable = handler(request) if lost == "reply" else None
        request.connection.close()
        return awaitable
    return _intercepted(handler, request, lambda _: request.connection.close())


def _intercepted(handler: Handler, request: Request, take: Callable[[Any], None]) -> Awaitable[Any] | None:
    """Carry a request out, the answer going to ``take`` instead of to the client."""
    stand_in: Any = _StandIn(request, take)
    awaitable = handler(stand_in)
    if awaitable is None:
        return None

    async def answered() -> None:
        entity = await awaitable
        if entity is not None:
            take(entity)

    return answered()


class _StandIn:
    """A request in everything but where its answer goes. It has no bytes: then its answer would come in bytes, too."""

    __slots__ = ("_request", "_take")
    frame: ClassVar[None] = None

    def __init__(self, request: Request, take: Callable[[Any], None]) -> None:
        object.__setattr__(self, "_request", request)
        object.__setattr__(self, "_take", take)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._request, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._request, name, value)

    def reply(self, entity: Any) -> None:
        self._take(entity)
