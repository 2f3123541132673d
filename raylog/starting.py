"""How long a start is waited for: as long as something moves.

How long a cluster takes to come up depends on the machine and on what recovery has to read, so a
bound on the whole would be wrong on one machine or another. A start is given up when nothing has
moved for a while: no process came up or worked on it, no log was opened, no byte was recovered, no
broker began to serve. Each of these is a number that only grows, so a process that dies and comes
back again and again is no movement.

Imports nothing of raylog's: the process that starts the controllers uses it, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

EFFORT_EVERY_S = 2.0
Report = Callable[[str], None]
"""Is called with words for a person whenever something has moved."""


class Patience:
    """Ends when no number has risen for ``still_s`` seconds."""

    def __init__(self, still_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.still_s = still_s
        self._clock = clock
        self._best: list[int] = []
        self._moved_at = clock()

    def saw(self, numbers: Sequence[int]) -> bool:
        """Whether one of them is higher than it ever was."""
        best = [*self._best, *[-1] * (len(numbers) - len(self._best))]
        has_moved = any(now > before for now, before in zip(numbers, best, strict=True))
        if has_moved:
            self._best = [max(pair) for pair in zip(numbers, best, strict=True)]
            self._moved_at = self._clock()
        return has_moved

    def begin(self) -> None:
        """Something else is waited for from now on."""
        self._best = []
        self._moved_at = self._clock()

    @property
    def left_s(self) -> float:
        return max(0.0, self._moved_at + self.still_s - self._clock())

    @property
    def has_ended(self) -> bool:
        return self._clock() >= self._moved_at + self.still_s


class Effort:
    """A number that takes a while to find out, looked up now and then: how far processes are that
    do not answer yet.
    """

    def __init__(self, count: Callable[[], int], clock: Callable[[], float] = time.monotonic) -> None:
        self._count = count
        self._clock = clock
        self._looked_at: float | None = None
        self._found = 0

    def __call__(self) -> int:
        now = self._clock()
        if self._looked_at is None or now >= self._looked_at + EFFORT_EVERY_S:
            self._looked_at, self._found = now, self._count()
        return self._found


class Start:
    """One start of a cluster: its patience, to whom it reports, and how long each phase took."""

    def __init__(
        self, still_s: float, report: Report | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.patience = Patience(still_s, clock)
        self.phases_s: dict[str, float] = {}
        self._report = report
        self._clock = clock
        self._effort: Callable[[], int] = int

    def watch(self, count: Callable[[], int]) -> None:
        """From now on that number counts as movement, too."""
        self._effort = Effort(count, self._clock)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """What is done meanwhile is that phase of the start; it has a patience of its own."""
        self.patience.begin()
        began = self._clock()
        try:
            yield
        finally:
            self.phases_s[name] = self.phases_s.get(name, 0.0) + self._clock() - began

    def saw(self, numbers: Sequence[int], words: str) -> None:
        """How far it is now."""
        if self.patience.saw((*numbers, self._effort())) and self._report is not None:
            self._report(words)


@dataclass(frozen=True, slots=True)
class ClusterStanding:
    """How far a cluster is whose controllers serve."""

    processes: int
    processes_known: int
    brokers: int
    brokers_wanted: int
    logs_open: int
    logs_known: int
    recovered_bytes: int

    @classmethod
    def of(cls, status: dict[str, Any], wanted: Collection[int]) -> ClusterStanding:
        """From what ``Cluster.status`` returns; ``wanted`` are the ids of the brokers that are
        waited for.
        """
        logs = status["logs"]
        is_open = sum(logs[condition] for condition in ("clean", "whole", "suspect", "missing"))
        return cls(
            processes=sum(actor["state"] == "live" for actor in status["actors"]),
            processes_known=len(status["actors"]),
            brokers=sum(broker["live"] for broker in status["brokers"] if broker["id"] in wanted),
            brokers_wanted=len(wanted),
            logs_open=is_open,
            logs_known=is_open + logs["opening"],
            recovered_bytes=logs["scanned_bytes"],
        )

    @property
    def numbers(self) -> tuple[int, ...]:
        """What grows while the start goes on."""
        return self.processes, self.brokers, self.logs_open, self.recovered_bytes

    @property
    def words(self) -> str:
        """For a person."""
        said = [
            f"{self.brokers} of {self.brokers_wanted} brokers serve",
            f"{self.processes} of {self.processes_known} processes are up",
        ]
        if self.logs_known:
            said.append(f"{self.logs_open:,} of {self.logs_known:,} logs are open")
        if self.recovered_bytes:
            said.append(f"{self.recovered_bytes / 1e6:,.1f} MB recovered")
        return ", ".join(said)
