"""Limits the memory that a Broker spends on answers that clients have not read yet.

A Broker holds an answer until its client has read it, so slow or stalled clients cost memory. Each
connection is limited by its own fetches (``connection_fetches_max``), and its requests are not read
while it does not read its answers. This module limits all connections together, without an error:
while the Broker holds ``answers_bytes_max``, a Fetch waits for other clients to read, as long as it
would wait for records, and then asks for the minimum, one batch. So every client makes progress,
slowly, and a stalled one gets nothing more. Below the limit a Fetch asks for at most the rest of
the budget, or ``LEAST_BYTES``.

The limit is on what is requested, not on what arrives: answers that owners are already sending, or
that are still waiting at them, come on top.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from raylog.wire.request import Request
from raylog.wire.server import Server

LEAST_BYTES = 1 << 20
ONE_BATCH = 1  # an owner returns a whole batch even if asked for one byte


class ResponseBudget:
    """The bytes that all unread answers of a Broker may take. ``server`` is the listener for clients."""

    def __init__(self, server: Callable[[], Server]) -> None:
        self._server = server
        self._waiting: dict[Request, Callable[[], None]] = {}

    def has(self, count: int) -> bool:
        """Return whether that many bytes may be requested now."""
        return self._left() >= count

    def when_some_is_left(self, request: Request, max_wait_ms: int, begin: Callable[[int], None]) -> None:
        """Call ``begin`` with the allowed bytes, now or within ``max_wait_ms``; never if the client
        disconnects first.
        """
        left = self._left()
        if left > 0:
            begin(max(left, LEAST_BYTES))
            return
        timer: asyncio.TimerHandle | None = None

        def end_waiting() -> None:
            self._waiting.pop(request, None)
            if timer is not None:
                timer.cancel()

        def go_on(most: int) -> None:
            end_waiting()
            begin(most)

        guarded = request.guarded(go_on)
        timer = request.connection.loop.call_later(max_wait_ms / 1_000, guarded, ONE_BATCH)
        self._waiting[request] = lambda: guarded(max(self._left(), LEAST_BYTES))
        request.on_close(lambda _: end_waiting())

    def answers_read(self) -> None:
        """Resume waiting fetches: a client has read its answers or disconnected."""
        while self._waiting and self._left() > 0:
            request = next(iter(self._waiting))
            self._waiting[request]()

    def _left(self) -> int:
        server = self._server()
        limit = server.limits.answers_bytes_max
        return limit - server.unread_bytes() if limit is not None else 1 << 31
