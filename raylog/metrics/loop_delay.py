"""How late an event loop is: a timer of one second, and how long after its time it was called."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

INTERVAL_S: Final = 1.0
KEPT: Final = 60


class LoopDelay:
    """``is_over``: whether its server has stopped, and the timer ends."""

    def __init__(self, is_over: Callable[[], bool]) -> None:
        self._is_over = is_over
        self._delays: deque[float] = deque(maxlen=KEPT)  # seconds, of the last minute

    @property
    def worst_s(self) -> float:
        """Within the last minute; 0 before the first second is over."""
        return max(self._delays, default=0.0)

    def start(self) -> None:
        """In the running loop."""
        self._arm(asyncio.get_running_loop())

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        due = loop.time() + INTERVAL_S
        loop.call_at(due, self._called, loop, due)

    def _called(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        self._delays.append(max(0.0, loop.time() - due))
        if not self._is_over():
            self._arm(loop)
