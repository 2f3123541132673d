"""The timer of a sender's rounds: the earliest moment that was asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from raylog.clock import clock_of


class RoundTimer:
    """Calls ``fire`` at the earliest moment named since it last did, or a little later."""

    def __init__(self, loop: asyncio.AbstractEventLoop, fire: Callable[[], None]) -> None:
        self._loop = loop
        self._clock = clock_of(loop)
        self._fire = fire
        self._handle: asyncio.TimerHandle | None = None
        self._at_ms = float("inf")

    def at(self, at_ms: float) -> None:
        """Fire then at the latest. Infinity is never."""
        if self._handle is not None:
            if self._at_ms <= at_ms:
                return  # it comes early and is set again
            self._handle.cancel()
            self._handle = None
        self._at_ms = at_ms
        if at_ms != float("inf"):
            now_ms = self._clock.monotonic_s() * 1000
            self._handle = self._loop.call_later(max(0.0, at_ms - now_ms) / 1000 + 0.0005, self._fired)

    def _fired(self) -> None:
        self._handle = None
        self._at_ms = float("inf")
        self._fire()

    def cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
