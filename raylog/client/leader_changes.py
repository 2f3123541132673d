"""One line per lost leader: tells the user, on the logger ``raylog.client``, that a partition goes on under another one.

A process may hold many handles and each finds the new leader for itself; the line is written once, by the first. A leader that
cannot be reached any more is a warning (it shows on the terminal of a program that never set up logging), a leader that lives
and has given up the lead is information. The time is from the first search to the new leader's answer, what a client waited.
"""

from __future__ import annotations

import logging
import threading
from typing import Final, Protocol

from raylog.types import TopicPartition, broker_of

logger = logging.getLogger("raylog.client")

_REMEMBERED_MAX: Final = 10_000


class Led(Protocol):
    """Who leads, as of which leader epoch."""

    @property
    def node(self) -> int: ...

    @property
    def epoch(self) -> int: ...


_lock = threading.Lock()
_reported: dict[tuple[str, TopicPartition], int] = {}  # the newest epoch that a line was written for


def report(cluster_id: str, key: TopicPartition, before: Led, now: Led, *, gone: bool, after_ms: float) -> None:
    """Write the line, unless this process has written it for that epoch already. Any thread."""
    with _lock:
        if _reported.get((cluster_id, key), -1) >= now.epoch:
            return
        if len(_reported) >= _REMEMBERED_MAX:
            _reported.clear()
        _reported[cluster_id, key] = now.epoch
    old, new = broker_of(before.node), broker_of(now.node)
    logger.log(
        logging.WARNING if gone else logging.INFO,
        "leader of %s-%d (broker %d) %s; broker %d leads %s epoch %d, after %.0f ms",
        key.topic,
        key.partition,
        old,
        "is gone" if gone else "gave up the lead",
        new,
        "again since" if old == new else "since",
        now.epoch,
        after_ms,
    )
