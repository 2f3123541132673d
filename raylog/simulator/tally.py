"""What many runs of the simulator have seen together, kept in a file, so that a hunt of many hours
can be ended and gone on with.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path

FAILURES_MAX = 100  # that are kept in words


@dataclass(slots=True)
class Tally:
    """``hours`` of the clusters' time, ``seconds`` of ours (of one process). ``counts`` is what the
    runs met.
    """

    next_seed: int = 1
    seeds: int = 0
    hours: float = 0.0
    events: int = 0
    seconds: float = 0.0
    failed: int = 0
    failures: list[str] = field(default_factory=list)  # what broke, and the command that shows it again
    counts: dict[str, int] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path, *, first_seed: int) -> Tally:
        """What the file says, or nothing yet."""
        return cls(**json.loads(path.read_text())) if path.exists() else cls(next_seed=first_seed)

    def save(self, path: Path) -> None:
        beside = path.with_name(path.name + ".tmp")
        beside.write_text(json.dumps(asdict(self), indent=1, sort_keys=True) + "\n")
        os.replace(beside, path)

    def add(self, seed: int, counts: Counter[str], *, hours: float, seconds: float, failure: str | None) -> None:
        self.next_seed = max(self.next_seed, seed + 1)
        self.seeds += 1
        self.hours += hours
        self.events += counts["events"]
        self.seconds += seconds
        self.counts = dict(Counter(self.counts) + counts)
        if failure is not None:
            self.failed += 1
            if len(self.failures) < FAILURES_MAX:
                self.failures.append(failure)

    def line(self) -> str:
        """In one line."""
        pace = self.seconds / self.hours if self.hours else 0.0
        return (
            f"{self.hours:,.1f} simulated hours in {self.seeds:,} seeds and {self.events:,} events, "
            f"{self.failed} failed; {pace:.1f} s of one core for an hour"
        )
