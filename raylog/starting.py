"""How long a start is waited for: as long as it makes progress.

How long a cluster takes to come up depends on the machine and on what recovery has to read, so no
bound on the whole fits every machine. A start is given up when there was no progress for a while:
no process came up or worked on it, no log was opened, no byte was recovered, no broker began to
serve. Each of these is a number that only grows, so a process that dies and comes back again and
again is no progress.

Imports nothing of raylog: the process that starts the controllers uses it, too.
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
        """Whether one of the numbers is higher than ever before."""
        best = [*self._best, *[-1] * (len(numbers) - len(self._best))]
        has_moved = any(now > before for now, before in zip(numbers, best, strict=True))
        if has_moved:
            self._best = [max(pair) for pair in zip(numbers, best, strict=True)]
            self._moved_at = self._clock()
        return has_moved

    def begin(self) -> None:
        """Wait for something else from now on."""
        self._best = []
        self._moved_at = self._clock()

    @property
    def left_s(self) -> float:
        return max(0.0, self._moved_at + self.still_s - self._clock())

    @property
    def has_ended(self) -> bool:
        return self._clock() >= self._moved_at + self.still_s


class Effort:
    """A number that takes a while to find out and is looked up now and then: how much the processes
    that do not answer yet have done.
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
    """One start of a cluster: its patience, where it reports, and how long each phase took."""

    def __init__(
        self, still_s: float, report: Report | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.patience = Patience(still_s, clock)
        self.phases_s: dict[str, float] = {}
        self._report = report
        self._clock = clock
        self._effort: Callable[[], int] = int

    def watch(self, count: Callable[[], int]) -> None:
        """Count a rise of that number as progress, too."""
        self._effort = Effort(count, self._clock)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Run a phase of the start. Each phase has a patience of its own."""
        self.patience.begin()
        began = self._clock()
        try:
            yield
        finally:
            self.phases_s[name] = self.phases_s.get(name, 0.0) + self._clock() - began

    def saw(self, numbers: Sequence[int], words: str) -> None:
        """Note how far the start is."""
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
        """Read it from what ``Cluster.status`` returns. ``wanted`` are the ids of the brokers that
        must serve.
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
        """The numbers that grow while the start makes progress."""
        return self.processes, self.brokers, self.logs_open, self.recovered_bytes

    @property
    def words(self) -> str:
        """The same as text for people."""
        said = [
            f"{self.brokers} of {self.brokers_wanted} brokers serve",
            f"{self.processes} of {self.processes_known} processes are up",
        ]
        if self.logs_known:
            said.append(f"{self.logs_open:,} of {self.logs_known:,} logs are open")
        if self.recovered_bytes:
            said.append(f"{self.recovered_bytes / 1e6:,.1f} MB recovered")
        return ", ".join(said)
