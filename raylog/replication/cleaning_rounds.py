"""Which log a process compacts next, and when: one cleaning at a time, of the log with the largest
dirty share that is due [L25].

A round looks at every compacted log that is open here. Where none is due the next round comes after
``log.cleaner.backoff.ms``; after a cleaning it comes at once, since there may be more. The work is
an order, ``Clean``, carried out by the shell beside everything else; its end comes back as
``CleaningEnded``.

A damaged batch leaves its log uncleaned from there on, until it was cut or is opened anew; the log
is scrubbed next. A disk that is full is no reason to take the replica offline, as it can still be
read: the log is tried again in a later round. Any other IO error takes it offline.

Invariant (``check``): nothing is awaited but the end of ``_current`` or the timer.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import TYPE_CHECKING

from raylog.log.cleaning import Cleaning
from raylog.records.corrupt import CorruptBatch, UnsupportedMagic
from raylog.replication.context import HostContext
from raylog.replication.events import Clean, CleaningEnded
from raylog.types import TopicIdPartition

if TYPE_CHECKING:
    from raylog.log.log import Log
    from raylog.replication.replica import Replica

FULL = (errno.ENOSPC, errno.EDQUOT)


def ended(order: Clean, broken: Exception | None = None) -> CleaningEnded:
    """What a shell reports when a step returned None, or raised."""
    fault = error = None
    if isinstance(broken, OSError):
        error = None if broken.errno in FULL else str(broken)
    elif broken is not None:
        fault = (
            str(broken) if isinstance(broken, CorruptBatch | UnsupportedMagic) else f"{type(broken).__name__}: {broken}"
        )
    return CleaningEnded(order.id, order.log, order.cleaning, fault, error)


class CleaningRounds:
    __slots__ = ("_context", "_current", "_is_armed", "_replicas")

    def __init__(self, context: HostContext, replicas: Mapping[TopicIdPartition, Replica]) -> None:
        self._context = context
        self._replicas = replicas
        self._current: Cleaning | None = None
        self._is_armed = False

    def opened(self, log: Log | None, now_ms: int) -> None:
        """A log was opened, or configured: from now on there may be something to compact in it."""
        if log is not None and log.config.compacts:
            self._look(now_ms)

    def _look(self, now_ms: int) -> None:
        """Have a round after the backoff, if any log is compacted."""
        if self._current is None and not self._is_armed and (backoff_ms := self._backoff_ms()) is not None:
            self._arm(now_ms + backoff_ms)

    def _backoff_ms(self) -> int | None:
        """None where no log is compacted."""
        configs = [each.log.config for each in self._replicas.values() if each.log is not None]
        started_with = self._context.config.log_cleaner_backoff_ms
        backoffs = (config.cleaner_backoff_ms for config in configs if config.compacts)
        return min((started_with if backoff is None else backoff for backoff in backoffs), default=None)

    def _arm(self, at_ms: int) -> None:
        self._is_armed = True
        self._context.wheel.add(at_ms, self._due)

    def _due(self, now_ms: int, wall_ms: int) -> None:
        self._is_armed = False
        found = []
        for replica in self._replicas.values():
            log = replica.log
            part = log.compaction.cleanable(wall_ms) if log is not None else None
            if log is not None and part is not None and part.is_due(log.config):
                found.append((part.dirty_ratio, replica.id, log, part))
        if not found:
            self._look(now_ms)
            return
        _, id, log, part = max(found, key=lambda each: each[0])
        self._current = log.compaction.begin(part, wall_ms)
        self._context.effects.append(Clean(id, log, self._current))

    def ended(self, event: CleaningEnded, now_ms: int) -> None:
        """The shell is done with it."""
        event.log.compaction.end(event.cleaning, fault=event.fault)
        self._current = None
        self._count(event)
        replica = self._replicas.get(event.id)
        if event.error is not None and replica is not None and replica.log is event.log:
            replica.fail(f"compaction: {event.error}")
        if event.cleaning.report.end_offset >= 0:
            self._arm(now_ms + 1)
        else:
            self._look(now_ms)

    def _count(self, event: CleaningEnded) -> None:
        counts, report = self._context.counts, event.cleaning.report
        if report.end_offset < 0:
            counts.failed_cleanings += 1
            return
        counts.cleanings += 1
        counts.cleaned_bytes_before += report.bytes_before
        counts.cleaned_bytes_after += report.bytes_after

    def check(self) -> None:
        """Raise AssertionError where the invariant is broken."""
        assert self._current is None or not self._is_armed, "a round is due while a cleaning is under way"
