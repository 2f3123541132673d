"""One line per lost leader: tells the user, on the logger ``raylog.client``, that partitions go on
under another one.

A process may lead many partitions (``replicas.per.actor``); what a handle loses with it together
stands in one line. A process may hold many handles and each finds the new leaders for itself; the
line is written once, by the first. A leader that cannot be reached any more is a warning (it shows
on the terminal of a program that never set up logging), a leader that lives and has given up the
lead is information. The time is from the first search to the new leader's answer, what a client
waited.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Change:
    """One partition that goes on under another leader, found after ``after_ms``."""

    key: TopicPartition
    before: Led
    now: Led
    after_ms: float


def report(cluster_id: str, changes: Sequence[Change], *, gone: bool) -> None:
    """Write the line about partitions that one process led, but for what this process has written
    already. Any thread.
    """
    with _lock:
        new = [each for each in changes if _reported.get((cluster_id, each.key), -1) < each.now.epoch]
        if len(_reported) + len(new) > _REMEMBERED_MAX:
            _reported.clear()
        _reported.update({(cluster_id, each.key): each.now.epoch for each in new})
    if not new:
        return
    level = logging.WARNING if gone else logging.INFO
    happened = "is gone" if gone else "gave up the lead"
    after_ms = max(each.after_ms for each in new)
    old = broker_of(new[0].before.node)
    leaders = sorted({broker_of(each.now.node) for each in new})
    if len(new) == 1:
        key, epoch = new[0].key, new[0].now.epoch
        since = "again since" if leaders == [old] else "since"
        line = "leader of %s-%d (broker %d) %s; broker %d leads %s epoch %d, after %.0f ms"
        logger.log(level, line, key.topic, key.partition, old, happened, leaders[0], since, epoch, after_ms)
    else:
        lead = f"broker {leaders[0]} leads" if len(leaders) == 1 else f"brokers {', '.join(map(str, leaders))} lead"
        line = "leader of %d partitions (broker %d) %s; %s them now, after %.0f ms"
        logger.log(level, line, len(new), old, happened, lead, after_ms)
