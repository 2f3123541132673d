"""Faults between Kafka clients and a Broker's listener: the n-th request of an API is refused, held
up, or lost with its connection.

``RequestFaults`` is a stage before the handlers of a listener (``raylog.kafka.chain``); ``watch``
puts it there. While there is no order, a request costs one look at an empty tuple. An order counts
the requests of its API, over all listeners that are watched, from the moment it is given::

    order                          what happens to requests number nth … nth + times − 1
    ---------------------------    -----------------------------------------------------------------------------------
    fail(api, code)                answered by that error on every item, and not carried out
    delay(api, ms)                 carried out so much later; what follows on the connection waits behind it, as behind a slow network
    drop(api, lost="request")      the connection breaks, nothing was carried out
    drop(api, lost="reply")        it is carried out, and the connection breaks where the answer should come

Several orders may strike one request: delays add up, then the first other one counts. What raylog
itself does inside (replication, the controller, what a test asks of its handle) does not pass here.

Orders may be given and cancelled from any thread; counting happens on the loop of the listeners.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Self, assert_never

from kio.schema.errors import ErrorCode

from raylog.errors import ConfigError
from raylog.kafka import table
from raylog.kafka.chain import Close, Delay, Refuse, Verdict
from raylog.wire import private
from raylog.wire.request import Request
from raylog.wire.server import Server

MESSAGE = "an error that the test asked for"
Lost = Literal["request", "reply"]


class Order:
    """What ``fail``, ``delay`` and ``drop`` return. ``hits`` counts the requests it has struck;
    ``cancel`` ends it, as ``with`` does.
    """

    def __init__(self, faults: RequestFaults, key: int, action: Action, *, nth: int, times: int | None) -> None:
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
        return f"<{_described(self.action)} for {name_of(self.key)}: struck {self.hits} of {self._seen} requests>"

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


@dataclass(frozen=True, slots=True)
class LoseReply:
    """The request is carried out, and the connection ends where the answer should leave."""


Action = Verdict | LoseReply


def _described(action: Action) -> str:
    match action:
        case Refuse(code):
            return code.name.upper()
        case Delay(seconds):
            return f"{seconds * 1_000:g} ms"
        case Close():
            return "the loss of the request"
        case LoseReply():
            return "the loss of the reply"
        case _:
            assert_never(action)


class RequestFaults:
    """The orders of one cluster, a ``Stage`` of all its listeners."""

    def __init__(self) -> None:
        self._orders: tuple[Order, ...] = ()
        self._served: frozenset[int] = frozenset()

    # ------------------------------------------------------------------ orders

    def fail(self, api: str | int, code: str | int, *, nth: int = 1, times: int | None = 1) -> Order:
        found = error_code(code)
        return self._add(Order(self, self.key_of(api), Refuse(found, MESSAGE), nth=nth, times=times))

    def delay(self, api: str | int, ms: float, *, nth: int = 1, times: int | None = 1) -> Order:
        if ms < 0:
            raise ConfigError(f"ms={ms}: a delay is not negative")
        return self._add(Order(self, self.key_of(api), Delay(ms / 1_000), nth=nth, times=times))

    def drop(self, api: str | int, *, lost: Lost = "request", nth: int = 1, times: int | None = 1) -> Order:
        if lost not in ("request", "reply"):
            raise ConfigError(f'lost={lost!r}: either "request" (nothing is carried out) or "reply" (it is)')
        action = LoseReply() if lost == "reply" else Close("a test has ordered it")
        return self._add(Order(self, self.key_of(api), action, nth=nth, times=times))

    def forget(self, order: Order) -> None:
        self._orders = tuple(each for each in self._orders if each is not order)

    def clear(self) -> None:
        """Cancel all orders."""
        self._orders = ()

    def _add(self, order: Order) -> Order:
        self._orders = (*self._orders, order)
        return order

    def key_of(self, api: str | int) -> int:
        """The API key of a name, written as Kafka does or as in Python. Raises ConfigError for one
        that the listeners do not serve.
        """
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
        server.stages = (*server.stages, self)

    def judge(self, request: Request) -> Sequence[Verdict]:
        """What the orders do to one more request."""
        if not self._orders:
            return ()
        struck = [each.action for each in self._orders if each.key == request.api_key and each.strikes()]
        verdicts: list[Verdict] = [each for each in struck if isinstance(each, Delay)]
        end = next((each for each in struck if not isinstance(each, Delay)), None)
        if isinstance(end, LoseReply):
            request.replace_reply(request.connection.close)
        elif end is not None:
            verdicts.append(end)
        return verdicts


def name_of(key: int) -> str:
    """An API's name as Kafka writes it; of raylog's own APIs that of the request, as docs/wire.md
    has it, without "Request".
    """
    if key in table.BY_KEY:
        return table.BY_KEY[key].name
    return (private.name_of(key) or str(key)).removesuffix("Request")


def error_code(code: str | int) -> ErrorCode:
    """An error by its name in Kafka's ``Errors``, or its number. Raises ConfigError for one that
    there is not, and for NONE.
    """
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
