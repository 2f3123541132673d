"""Who waits in this process, not over a connection, for what a machine replies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

ToEntity = Callable[[Any], Any]
"""Makes the answer of a machine's reply."""


def as_it_is(reply: Any) -> Any:
    return reply


class InsideWait:
    """Waits for a reply as the machine gives it, in the place of a request of the wire."""

    __slots__ = ("reply",)

    def __init__(self, reply: Callable[[Any], None]) -> None:
        self.reply = reply
