"""A bound on what a Broker holds of answers that clients have asked for and do not read.

A Broker holds an answer until its client has taken it: a client that is slow, or stands still, costs its answers' bytes. One connection is
bounded by its own fetches (``connection_fetches_max``), and is not read while it does not read. All together are bounded here, without
an error: while ``answers_bytes_max`` are held, a Fetch waits until somebody has read, as long as it would wait for records; then it
asks for as little as there is, one batch. So everybody gets on, slowly, and who stands still gets nothing more. Below the bound a Fetch
asks for no more than what is left, or ``LEAST_BYTES``.

What owners are sending already, or hold parked, comes on top: a bound on what is asked for, not on what arrives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from raylog.wire.request import Request
from raylog.wire.server import Server

LEAST_BYTES = 1 << 20
ONE_BATCH = 1  # an owner gives a whole batch, however little is asked for


class AnswerRoom:
    """``server`` is the outside listener."""

    def __init__(self, server: Callable[[], Server]) -> None:
        self._server = server
        self._waiting: dict[Request, Callable[[], None]] = {}

    def has(self, count: int) -> bool:
        """Whether so many bytes may be asked for at once."""
        return self._room() >= count

    def when_there_is_room(self, request: Request, max_wait_ms: int, begin: Callable[[int], None]) -> None:
        """Call ``begin`` with how many bytes may be asked for, now or within ``max_wait_ms``; never if the client hangs up before."""
        room = self._room()
        if room > 0:
            begin(max(room, LEAST_BYTES))
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
        self._waiting[request] = lambda: guarded(max(self._room(), LEAST_BYTES))
        request.on_close(lambda _: end_waiting())

    def answers_read(self) -> None:
        """Some client has read what was there for it, or is gone."""
        while self._waiting and self._room() > 0:
            request = next(iter(self._waiting))
            self._waiting[request]()

    def _room(self) -> int:
        server = self._server()
        limit = server.limits.answers_bytes_max
        return limit - server.unread_bytes() if limit is not None else 1 << 31
