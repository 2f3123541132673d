"""Requests that came before this process leads their partition of a coordinators' topic.

They overtook the election, or the Assignment, of a partition that is new, or whose process has just
come back. Instead of receiving NOT_COORDINATOR they wait, like requests for records
(``raylog.replication.awaited``), in the order in which they came, until ``go_on``.

A wait ends after ``WAIT_MS``, or sooner if the request allows less; and after ``UNKNOWN_WAIT_MS``
if the partition is still unknown here, since it may never come. Then the request is answered as if
it came now. At most ``REQUESTS_MAX`` wait. The requests of a native client (those with a
``connection``) are dropped when it ends.

Invariant: each waiter has a deadline.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Protocol

from raylog.coordination.events import ReplyT, RequestT

WAIT_MS = 5_000
UNKNOWN_WAIT_MS = 1_000
REQUESTS_MAX = 10_000


class CancellableTimer(Protocol):
    def cancel(self) -> None: ...


class _EarlyRequest(Generic[RequestT, ReplyT]):
    __slots__ = ("number", "request", "then", "timers")

    def __init__(self, number: int, request: RequestT, then: Callable[[ReplyT], None]) -> None:
        self.number = number
        self.request = request
        self.then = then
        self.timers: list[CancellableTimer] = []


class EarlyRequests(Generic[RequestT, ReplyT]):
    """``answer`` is called once for each request whose wait ends. ``is_known`` says whether a
    partition is assigned to this process.
    """

    def __init__(
        self,
        call_later: Callable[[int, Callable[[], Any]], CancellableTimer],
        answer: Callable[[int, RequestT, Callable[[ReplyT], None]], None],
        is_known: Callable[[int], bool],
    ) -> None:
        self._call_later = call_later
        self._answer = answer
        self._is_known = is_known
        self._waiting: dict[int, dict[_EarlyRequest[RequestT, ReplyT], None]] = {}  # by partition, in order of arrival
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def wait(self, number: int, request: RequestT, then: Callable[[ReplyT], None], wait_ms: int | None) -> bool:
        """Whether it waits from now on; False: it may not, or there is no room. ``wait_ms``: as
        long as the request itself allows.
        """
        wait_ms = WAIT_MS if wait_ms is None else min(WAIT_MS, wait_ms)
        if wait_ms <= 0 or self._count >= REQUESTS_MAX:
            return False
        waiter = _EarlyRequest(number, request, then)
        self._waiting.setdefault(number, {})[waiter] = None
        self._count += 1
        waiter.timers.append(self._call_later(wait_ms, lambda: self._end(waiter)))
        if not self._is_known(number):
            waiter.timers.append(self._call_later(UNKNOWN_WAIT_MS, lambda: self._end_if_unknown(waiter)))
        return True

    def partitions(self) -> list[int]:
        """Those for which somebody waits."""
        return list(self._waiting)

    def go_on(self, number: int) -> None:
        """That partition need not be waited for any longer."""
        for waiter in list(self._waiting.get(number, ())):
            self._end(waiter)

    def connection_closed(self, connection: int) -> None:
        for waiters in list(self._waiting.values()):
            for waiter in list(waiters):
                if getattr(waiter.request, "connection", None) == connection:
                    self._forget(waiter)

    def stop(self) -> None:
        """Nobody is answered any more."""
        for waiters in list(self._waiting.values()):
            for waiter in list(waiters):
                self._forget(waiter)

    def _end_if_unknown(self, waiter: _EarlyRequest[RequestT, ReplyT]) -> None:
        if not self._is_known(waiter.number):
            self._end(waiter)

    def _end(self, waiter: _EarlyRequest[RequestT, ReplyT]) -> None:
        if self._forget(waiter):
            self._answer(waiter.number, waiter.request, waiter.then)

    def _forget(self, waiter: _EarlyRequest[RequestT, ReplyT]) -> bool:
        """Whether it was still waiting."""
        waiters = self._waiting.get(waiter.number, {})
        if waiter not in waiters:
            return False
        del waiters[waiter]
        self._count -= 1
        if not waiters:
            del self._waiting[waiter.number]
        for timer in waiter.timers:
            timer.cancel()
        return True
