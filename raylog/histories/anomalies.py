"""What can be wrong with a history, and which of it a level of isolation allows.

The kinds and their names are those of Jepsen's workload for Kafka, where it has one. What Kafka
promises is less than the databases' levels of the same name:

- Transactions are not isolated from each other when they write. Their records lie between each
  other's in a partition, so cycles of writes (G0) and cycles that need such an edge (here G1c-ww)
  are normal, at every level that Kafka has. ``IsolationModel.ADYA_PL_2`` does not allow them: it is
  for systems that promise more, or for a workload whose transactions exclude each other.
- A reader at ``read_uncommitted`` sees the records of transactions that are open or aborted, and so
  what it sees may also go in circles.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum

from raylog.histories.operations import HistoryOperation, LocatedRecord

EXAMPLES_MAX = 3  # of each kind, in words


class AnomalyKind(StrEnum):
    """What is wrong."""

    ABORTED_READ = "G1a"
    """Somebody polled a record of an operation that failed."""
    PRECOMMITTED_READ = "precommitted-read"
    """A transaction polled a record that it had sent itself, before it could have committed."""
    UNSENT_READ = "unsent-read"
    """Somebody polled a record that nobody sent to that partition."""
    INCONSISTENT_OFFSETS = "inconsistent-offsets"
    """One offset of a partition has several values."""
    DUPLICATE = "duplicate"
    """One record is at several offsets of a partition."""
    LOST_WRITE = "lost-write"
    """An acknowledged record was never polled, although somebody polled a higher offset."""
    UNSEEN = "unseen"
    """Acknowledged records of a partition were never polled until the end of the history."""
    POLL_SKIP = "poll-skip"
    """From one operation to the next, a process passed over records that others polled."""
    INTERNAL_POLL_SKIP = "int-poll-skip"
    """Within an operation, a process passed over records that others polled."""
    NONMONOTONIC_POLL = "nonmonotonic-poll"
    """From one operation to the next, a process went back to an offset that it had passed."""
    INTERNAL_NONMONOTONIC_POLL = "int-nonmonotonic-poll"
    """Within an operation, a process went back to an offset that it had passed."""
    NONMONOTONIC_SEND = "nonmonotonic-send"
    """A process sent a record after another was acknowledged, and it has no higher offset."""
    INTERNAL_NONMONOTONIC_SEND = "int-nonmonotonic-send"
    """Of two records of one operation, the later has no higher offset."""
    G0 = "G0"
    """Operations precede each other in the order of their writes."""
    G1C = "G1c"
    """Operations read from each other in a circle."""
    G1C_WW = "G1c-ww"
    """Operations read from each other in a circle that also follows the order of writes."""


class IsolationModel(StrEnum):
    """What the readers of a history were promised."""

    READ_UNCOMMITTED = "read_uncommitted"
    READ_COMMITTED = "read_committed"
    ADYA_PL_2 = "adya_pl_2"

    @property
    def allowed(self) -> frozenset[AnomalyKind]:
        """The kinds that are no error at this level."""
        return _ALLOWED[self]


_INTERLEAVED = frozenset({AnomalyKind.G0, AnomalyKind.G1C_WW})
_UNCOMMITTED = frozenset({AnomalyKind.ABORTED_READ, AnomalyKind.PRECOMMITTED_READ, AnomalyKind.G1C})
_ALLOWED = {
    IsolationModel.READ_UNCOMMITTED: _INTERLEAVED | _UNCOMMITTED,
    IsolationModel.READ_COMMITTED: _INTERLEAVED,
    IsolationModel.ADYA_PL_2: frozenset(),
}


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One thing that is wrong: the operations and the records at fault, and both in words.

    ``is_excused`` says that something outside of the history may explain it: a rebalance that the
    history does not report.
    """

    kind: AnomalyKind
    operations: tuple[HistoryOperation, ...]
    records: tuple[LocatedRecord, ...]
    words: str
    is_excused: bool = False

    def __str__(self) -> str:
        return f"{self.kind.value}: {self.words}"


@dataclass(frozen=True, slots=True)
class HistoryVerdict:
    """What ``check`` found: ``errors`` break the promise, ``allowed`` do not."""

    errors: tuple[Anomaly, ...]
    allowed: tuple[Anomaly, ...]
    operations: int
    sent: int
    polled: int

    @property
    def holds(self) -> bool:
        return not self.errors

    @property
    def kinds(self) -> frozenset[AnomalyKind]:
        """The kinds of the errors."""
        return frozenset(anomaly.kind for anomaly in self.errors)

    def words(self) -> str:
        """What was checked and what was found, with the first few of each kind."""
        checked = f"{self.operations:,} operations, {self.sent:,} records sent, {self.polled:,} polled."
        beside = f" Allowed at this level: {_counts(self.allowed)}." if self.allowed else ""
        if self.holds:
            return f"{checked} No anomaly is an error.{beside}"
        shown: Counter[AnomalyKind] = Counter()
        lines = [f"{checked} FOUND: {_counts(self.errors)}.{beside}"]
        for anomaly in self.errors:
            shown[anomaly.kind] += 1
            if shown[anomaly.kind] <= EXAMPLES_MAX:
                lines.append(str(anomaly))
        return "\n  ".join(lines)


def verdict_of(
    anomalies: Sequence[Anomaly], allowed: Collection[AnomalyKind], operations: Sequence[HistoryOperation]
) -> HistoryVerdict:
    """Sort anomalies into errors and what is allowed."""
    excused = [anomaly.is_excused or anomaly.kind in allowed for anomaly in anomalies]
    return HistoryVerdict(
        errors=tuple(each for each, is_excused in zip(anomalies, excused, strict=True) if not is_excused),
        allowed=tuple(each for each, is_excused in zip(anomalies, excused, strict=True) if is_excused),
        operations=len(operations),
        sent=sum(len(operation.sends) for operation in operations),
        polled=sum(len(operation.polled) for operation in operations),
    )


def _counts(anomalies: Sequence[Anomaly]) -> str:
    counts = Counter(anomaly.kind.value for anomaly in anomalies)
    return ", ".join(f"{count:,} {kind}" for kind, count in counts.items())
